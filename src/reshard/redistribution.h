// Redistribution: what one rank prepares once to move tensors from one layout to another, and then
// does as often as it is asked to: its program, the lanes to other ranks, and the executions.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <hetcomm/memory.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/communicator/communicator.h"
#include "src/core/job/job_member.h"
#include "src/reshard/execution.h"
#include "src/reshard/program.h"

namespace hetcomm::reshard {

// All ranks give the same.
struct RedistributionTerms {
  uint64_t tag = 0;            // tells redistributions between the same ranks apart, as with queues
  uint64_t content = 0;        // hash of all that the ranks have to agree on
  uint32_t in_flight = 1;      // executions under way at a time, at most
  uint64_t landing_bytes = 0;  // of each direction; this rank alone
};

// Of one execution.
struct ExecutionOptions {
  uint64_t timeout_ns = 0;  // 0: that of the communicator
  bool high_priority = false;
  UserStream* stream = nullptr;  // null: it starts at once
};

class Redistribution final : private JobTask, private ExecutionOwner {
 public:
  // Opens the lanes, which waits for nobody. May throw std::bad_alloc.
  static std::unique_ptr<Redistribution> create(Communicator& communicator, Program program,
                                                const RedistributionTerms& terms);
  Redistribution(const Redistribution&) = delete;
  Redistribution& operator=(const Redistribution&) = delete;
  // close() has succeeded.
  ~Redistribution();

  // [any-thread]
  Communicator& communicator() { return communicator_; }
  const Program& program() const { return shared_.program; }
  // Starts an execution. |sources| and |destinations| have a buffer for each tensor, which is not
  // looked at where this rank has no part of it. |*text| says why it was refused. May throw
  // std::bad_alloc.
  Code start(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
             const ExecutionOptions& options, Operation** out, std::string* text);
  // kBusy while executions are under way. Nothing else is called afterwards.
  Status close();

 private:
  Redistribution(Communicator& communicator, Program program, const RedistributionTerms& terms);

  // JobTask
  bool ready() const override HETCOMM_UNDER_BATON { return ready_; }
  int progress() override HETCOMM_UNDER_BATON;
  void tick(uint64_t /*now_ns*/) override HETCOMM_UNDER_BATON {}
  uint64_t next_timer_ns() const override HETCOMM_UNDER_BATON { return kForever; }
  bool prepare_sleep(bool /*short_sleep*/) override HETCOMM_UNDER_BATON { return !ready_; }
  bool may_sleep_on() const override HETCOMM_UNDER_BATON { return !ready_; }
  void finish_sleep() override HETCOMM_UNDER_BATON {}
  // ExecutionOwner
  Status begin(Execution& execution, Operation& operation) override HETCOMM_UNDER_BATON;
  void withdraw(const Status& why) override HETCOMM_UNDER_BATON;
  void note_ready() override HETCOMM_UNDER_BATON { ready_ = true; }
  void break_off(const Status& why) override HETCOMM_UNDER_BATON;
  void give_place() override { under_way_.fetch_sub(1, std::memory_order_release); }

  Code check(const hetcomm_buffer_t* buffers, const std::vector<ProgramSide>& sides,
             const char* name, std::string* text) const;
  bool take_place();
  std::unique_ptr<Execution> take() HETCOMM_EXCLUDES(baton_role);
  void sweep_over() HETCOMM_UNDER_BATON;
  void set_busy(bool busy) HETCOMM_UNDER_BATON;
  void close_lanes(Code code) HETCOMM_UNDER_BATON;

  Communicator& communicator_;
  ExecutionCommons shared_;
  const uint32_t in_flight_;
  std::atomic<uint32_t> under_way_{0};  // executions that are bound
  uint64_t next_number_ = 0;
  Status broken_;  // why no execution can go on
  bool lanes_open_ = false;
  bool ready_ = false;
  bool busy_ = false;
  std::vector<std::unique_ptr<Execution>> active_;  // in their order
  std::vector<std::unique_ptr<Execution>> spare_;
};

}  // namespace hetcomm::reshard
