// One rank's side of hetcomm: context, bootstrap and communicator, from the environment or from
// MPI. Any failure ends the process with a text: a benchmark has nothing to fall back on.
#pragma once

#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "bench/job.h"
#include "bench/work.h"

namespace bench {

// Prints "hetcomm_bench: ..." to standard error and ends the process with status 1.
[[noreturn]] void fail(const std::string& text);

// Ends the process unless |status| is OK; |what| was tried.
void require(hetcomm_status_t status, const char* what);

class Session {
 public:
  // A context as |work| asks for, with further |settings| of the form "NAME=value;NAME=value";
  // with |devices|, each a kind or as HETCOMM_DEVICES names it. Several sessions of one job have
  // numbers of their own, the same on all ranks, so that their stores do not meet.
  Session(Launcher launcher, int number, const Work& work, const std::vector<std::string>& devices,
          std::string settings = "");
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  hetcomm_context_t* context() const { return context_; }
  // The device |name|, or the first one of the kind |name|; "host": HETCOMM_DEVICE_HOST. Ends the
  // process where there is none.
  int32_t find_device(const std::string& name) const;

  // Collective. |transport| "auto": every usable one. The communicator is the caller's.
  // |timeout_ns| for the others to come, 0 for the library's own.
  hetcomm_communicator_t* create_communicator(const std::string& name, const std::string& transport,
                                              uint64_t timeout_ns = 0);
  void destroy_communicator(hetcomm_communicator_t* communicator);

 private:
  void start_bootstrap(Launcher launcher, int number);

  std::vector<std::string> devices_;  // device 1 and those after it
  hetcomm_context_t* context_ = nullptr;
  hetcomm_bootstrap_t* bootstrap_ = nullptr;
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace bench
