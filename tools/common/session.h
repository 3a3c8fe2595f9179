// Creates one rank's context, bootstrap and communicators, from the environment or from MPI. Any
// failure terminates the process with a message, since a measurement has no fallback.
#pragma once

#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "tools/common/job.h"

namespace tools {

// Prints "PROGRAM: ..." to standard error and exits the process with status 1.
[[noreturn]] void fail(const std::string& text);

// Exits the process unless |status| is OK. |what| describes the call.
void require(hetcomm_status_t status, const char* what);

// Prints why the operation has failed, and exits the process.
[[noreturn]] void fail(const hetcomm_completion_t& completion);
// Exits the process unless the operation has succeeded.
inline void require(const hetcomm_completion_t& completion) {
  if (completion.status != HETCOMM_OK) [[unlikely]]
    fail(completion);
}

// Waits for |request|. Exits the process unless its operation succeeds.
inline hetcomm_completion_t wait(hetcomm_request_t* request) {
  hetcomm_completion_t completion;
  require(hetcomm_request_wait(request, HETCOMM_TIMEOUT_INFINITE, &completion), "waiting");
  require(completion);
  return completion;
}

// Returns the largest of all ranks' values, on all ranks. Exits the process on any failure.
double largest(hetcomm_communicator_t* communicator, double own);

struct SessionOptions {
  std::string progress;              // "caller", "thread"; "": set by HETCOMM_PROGRESS
  std::vector<std::string> devices;  // each a kind or a device as in HETCOMM_DEVICES
  std::string settings;              // further variables to set: "NAME=value;NAME=value"
};

class Session {
 public:
  // Each session of a job has its own |number|, the same on all ranks, so that the sessions'
  // stores use different ports.
  Session(Launcher launcher, int number, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  hetcomm_context_t* context() const { return context_; }
  // Returns the device called |name|, or the first one of the kind |name|, or HETCOMM_DEVICE_HOST
  // for "host". Exits the process if there is no such device.
  int32_t find_device(const std::string& name) const;

  // Creates a communicator, which the caller owns. Collective. With |transport| "auto", the
  // communicator may use every usable transport. |timeout_ns| limits the wait for the other ranks;
  // 0 is the library's default.
  hetcomm_communicator_t* create_communicator(const std::string& name, const std::string& transport,
                                              uint64_t timeout_ns = 0);
  void destroy_communicator(hetcomm_communicator_t* communicator);

 private:
  void start_bootstrap(Launcher launcher, int number);

  std::vector<std::string> devices_;  // the context's devices from index 1 on
  hetcomm_context_t* context_ = nullptr;
  hetcomm_bootstrap_t* bootstrap_ = nullptr;
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace tools
