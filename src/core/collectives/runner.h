// Runner executes the steps of one transfer on this rank.
//
// The client makes the steps of each segment and runs steps that combine data. The runner sends,
// receives and copies, executes the rounds in order, and has up to kSegmentsAtOnce segments in
// progress. Objects are reused, so that a transfer allocates no memory once enough objects exist.
// Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/collectives/steps.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/progress/operation.h"

namespace hetcomm::collectives {

// Translates the ranges of one segment to addresses.
class Addresses {
 public:
  virtual std::byte* of(const Range& range) const HETCOMM_UNDER_BATON = 0;

 protected:
  ~Addresses() = default;
};

class RunnerClient {
 public:
  // Overwrites |steps| with the steps of |segment|. May throw std::bad_alloc.
  virtual void make_steps(uint64_t segment, Steps* steps) HETCOMM_UNDER_BATON = 0;
  // Returns whether |segment| can begin because its data has arrived. If not, the client calls
  // Runner::advance() once it has.
  virtual bool may_begin(uint64_t segment) HETCOMM_UNDER_BATON = 0;
  // Returns |bytes| of scratch memory for the steps in segment slot |slot|. The memory is valid
  // until give_scratch() or the end of the transfer. Returns null if out of memory.
  virtual std::byte* take_scratch(size_t slot, uint64_t bytes) HETCOMM_UNDER_BATON = 0;
  virtual void give_scratch(size_t slot) HETCOMM_UNDER_BATON = 0;
  // Returns the job rank of a step's |peer|.
  virtual int job_rank(uint32_t peer) const HETCOMM_UNDER_BATON = 0;
  // Returns the address of |range|, which must be in the user's buffers and not empty.
  virtual std::byte* user_address(const Range& range) const HETCOMM_UNDER_BATON = 0;
  // Runs a step that combines or reduces, in segment slot |slot|. Returns false if the step is
  // still in progress. The client then calls Runner::end_local() when the step has ended. May throw
  // std::bad_alloc.
  virtual bool run_local(size_t slot, const Steps& steps, const Step& step,
                         const Addresses& addresses) HETCOMM_UNDER_BATON = 0;
  // Called when all steps of a segment are done.
  virtual void finish_segment(const Steps& steps,
                              const Addresses& addresses) HETCOMM_UNDER_BATON = 0;
  // Called when Runner::advance() has work to do, and when a message or local step has ended after
  // Runner::stop().
  virtual void runner_ready() HETCOMM_UNDER_BATON = 0;
  // Called when |message| has ended with a code other than kOk, or is a receive whose length
  // differs from the requested one. The segment of |message| does not continue.
  virtual void message_failed(const Operation& message) HETCOMM_UNDER_BATON = 0;

 protected:
  ~RunnerClient() = default;
};

class Runner final : public EndHandler {
 public:
  static constexpr size_t kSegmentsAtOnce = 4;

  Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Begins a transfer of |segments| segments. The client then calls advance(). The low byte of
  // |tag| must be zero. No work of an earlier transfer may be in progress. May throw
  // std::bad_alloc.
  void start(MessagingCommunicator& communicator, RunnerClient& client, uint64_t segments,
             uint64_t tag) HETCOMM_UNDER_BATON;
  // Does all work that can be done now. If it throws std::bad_alloc, the client must stop the
  // runner.
  void advance() HETCOMM_UNDER_BATON;
  // Records that the pending local step of segment slot |slot| is over, and notifies the client
  // that the runner is ready.
  void end_local(size_t slot) HETCOMM_UNDER_BATON;
  // Returns whether all segments are done.
  bool done() const HETCOMM_UNDER_BATON { return running_ && segments_done_ == segments_; }
  // Returns the oldest segment that is not done.
  uint64_t oldest_segment() const HETCOMM_UNDER_BATON;
  // Cancels the messages in flight, and begins no further work. quiet() becomes true later. Does
  // not fail if out of memory.
  void stop() HETCOMM_UNDER_BATON;
  // Returns whether no message is in flight and no local step is in progress.
  bool quiet() const HETCOMM_UNDER_BATON { return messages_.empty() && locals_ == 0; }
  // Returns the job ranks whose messages this rank waits for, possibly with duplicates.
  std::vector<int> awaited() const HETCOMM_UNDER_BATON;

  void on_end(Operation& message) override HETCOMM_UNDER_BATON;

 private:
  struct Segment {
    Steps steps;
    std::byte* scratch = nullptr;
    uint64_t index = 0;
    size_t next = 0;       // the first step of the round
    size_t local = 0;      // the next local step of the round
    uint32_t pending = 0;  // in-flight messages of the round, plus one for a local step in progress
    bool posted = false;   // the round's messages have been posted
    bool active = false;
    void reset() HETCOMM_UNDER_BATON {
      scratch = nullptr;
      next = local = pending = 0;
      posted = active = false;
    }
  };
  class SegmentAddresses;

  void open_segment(Segment& segment, size_t slot) HETCOMM_UNDER_BATON;
  void advance(Segment& segment, size_t slot) HETCOMM_UNDER_BATON;
  void post_round(Segment& segment, size_t slot) HETCOMM_UNDER_BATON;
  static size_t end_of_round(const Segment& segment);
  bool run_locals(Segment& segment, size_t slot) HETCOMM_UNDER_BATON;
  bool run_step(const Segment& segment, size_t slot, const Step& step) HETCOMM_UNDER_BATON;

  MessagingCommunicator* communicator_ = nullptr;
  RunnerClient* client_ = nullptr;
  bool running_ = false;
  uint64_t tag_ = 0;
  uint64_t segments_ = 0;
  uint64_t next_segment_ = 0;
  uint64_t segments_done_ = 0;
  std::vector<Segment> slots_;  // segments in progress, and unused ones
  std::vector<Operation*> messages_;
  size_t locals_ = 0;  // local steps in progress
};

}  // namespace hetcomm::collectives
