// An Execution is one run of a redistribution on this rank.
//
//   fresh --> loading --> moving --> storing --> over --> fresh
//       (any of them) --fail--> ending, until its messages and copies have ended --> over
//
// Phases run concurrently, each as soon as its input has arrived. Messages of a track start in
// order. Objects are reused, so an execution allocates no memory once enough objects exist. Callers
// hold the baton, except where a function is marked [any-thread].
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <hetcomm/memory.h>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/base/text.h"
#include "src/core/device/host_blocks.h"
#include "src/core/memory/staging.h"
#include "src/core/peer/matching/data_services.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/progress/operation.h"
#include "src/reshard/claim.h"
#include "src/reshard/device_copies.h"
#include "src/reshard/execution_memory.h"
#include "src/reshard/landing.h"
#include "src/reshard/program.h"
#include "src/reshard/side_memory.h"
#include "src/reshard/talk.h"
#include "src/reshard/track_turns.h"

namespace hetcomm::reshard {

class Execution;

// State shared by the executions of one redistribution.
struct ExecutionCommons {
  MessagingCommunicator& communicator;
  DataServices& data;
  HostBlocks& host_blocks;
  const int own_rank;  // this rank's number in the job
  const Program program;
  Claims claims;
  TrackTurns turns;
  ReshardTalk talk;
  Landing packed;  // memory for outgoing messages
  Landing landed;  // memory for received messages
};

// The interface through which executions call their owner.
class ExecutionOwner {
 public:
  // These four correspond to the functions of CompositeOperation with the same names.
  virtual void lined_up(Execution& execution) HETCOMM_UNDER_BATON = 0;
  virtual Status begin(Execution& execution, Operation& operation) HETCOMM_UNDER_BATON = 0;
  virtual void withdraw(Execution& execution, const Status& why) HETCOMM_UNDER_BATON = 0;
  virtual Status known_end(const Execution& execution) const HETCOMM_UNDER_BATON = 0;
  // Notifies the other ranks that |execution|, of which this rank has moved no data, ends because
  // of |why|. Returns false if that is not possible, and all executions have to end.
  virtual bool give_up(Execution& execution, const Status& why) HETCOMM_UNDER_BATON = 0;
  // Records that an execution has work to do.
  virtual void note_ready() HETCOMM_UNDER_BATON = 0;
  // Stops all executions after one has failed because of |why|.
  virtual void break_off(const Status& why) HETCOMM_UNDER_BATON = 0;
  // Returns the status to report to rank |rank| of the job when an execution ends because of |why|.
  virtual Status told_to(int rank, const Status& why) const HETCOMM_UNDER_BATON = 0;
  // Removes |execution|, which was lined up but has not begun.
  virtual void leave_line(Execution& execution) HETCOMM_UNDER_BATON = 0;
  // Records that a bound execution is no longer in progress. [any-thread]
  virtual void note_over() = 0;
  // Returns the permit of an execution that was destroyed or is fresh again. [any-thread]
  virtual void give_permit() = 0;

 protected:
  ~ExecutionOwner() = default;
};

class Execution final : public CompositeOperation,
                        private EndHandler,
                        private CopyHandler,
                        private DeviceCopyHandler {
 public:
  // Both arguments outlive this object.
  Execution(ExecutionOwner& owner, ExecutionCommons& shared);
  ~Execution() override;
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Assigns a permit to this execution. reset() or the destructor returns it. [any-thread]
  void own_permit() { has_permit_ = true; }
  // Claims the memory of a fresh execution. |stream| is the stream that orders it, or null if there
  // is none. The claim ends when the execution is over. Fails with kInvalidArgument and sets
  // |*text| if memory overlaps. [any-thread]
  Code claim(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
             const UserStream* stream, std::string* text);
  // Stores the buffers of all tensors in a fresh execution. The buffers have been checked.
  // Afterwards |operation| represents the execution, which counts as in progress. May throw
  // std::bad_alloc. [any-thread]
  void bind(const hetcomm_buffer_t* sources, const hetcomm_buffer_t* destinations,
            const Label& label, Operation& operation);
  // Returns the execution's number within its redistribution. Valid if has_number().
  uint64_t number() const HETCOMM_UNDER_BATON { return number_; }
  bool has_number() const HETCOMM_UNDER_BATON { return has_number_; }
  void set_number(uint64_t number) HETCOMM_UNDER_BATON {
    number_ = number;
    has_number_ = true;
  }
  const Label& label() const { return label_; }
  Operation& operation() HETCOMM_UNDER_BATON { return *operation_; }
  bool is_lined_up() const HETCOMM_UNDER_BATON { return is_lined_up_; }
  void set_lined_up(bool is) HETCOMM_UNDER_BATON { is_lined_up_ = is; }

  // Returns the key for ordering. Executions of one redistribution have the same key, and start in
  // call order.
  const void* order() const override HETCOMM_UNDER_BATON { return &owner_; }
  void lined_up() override HETCOMM_UNDER_BATON { owner_.lined_up(*this); }
  Status begin(Operation& operation) override HETCOMM_UNDER_BATON {
    return owner_.begin(*this, operation);
  }
  void withdraw(Code code, const std::string& text) override HETCOMM_UNDER_BATON {
    owner_.withdraw(*this, status_or_code(code, [&] { return text; }));
  }
  // Begins the execution, which already has a number.
  void start() HETCOMM_UNDER_BATON;
  // Does the work that is possible now. The |oldest| pending execution may exceed the bound of
  // Landing. Returns true if more work is ready.
  bool advance(bool oldest) HETCOMM_UNDER_BATON;
  // Fails the execution, and with it the redistribution.
  void fail(Code code, std::string_view text) HETCOMM_UNDER_BATON;
  // Fails the execution if it still had a message to start on a track that has been closed. No
  // further message starts on that track.
  void track_closed() HETCOMM_UNDER_BATON;
  // Ends only this execution, because another rank has abandoned it. This rank has moved none of
  // its data.
  void end_alone(const Status& why) HETCOMM_UNDER_BATON;
  // Returns whether any of the execution's data has, or may have, left this rank or arrived here.
  bool has_moved() const HETCOMM_UNDER_BATON;
  // Fails the execution if a peer's label for it differs from this rank's.
  void compare_labels() HETCOMM_UNDER_BATON;
  bool is_over() const HETCOMM_UNDER_BATON { return state_ == State::kOver; }
  bool has_succeeded() const HETCOMM_UNDER_BATON { return is_over() && code_ == Code::kOk; }
  // Returns the permit of an execution that is over, and makes the execution fresh.
  void reset() HETCOMM_UNDER_BATON;

  void end(Code code, const std::string& text) override HETCOMM_UNDER_BATON;
  // Returns false. When a rank is lost, its tracks are closed, which ends the messages in flight.
  // If the execution still has a message to start, track_closed() fails it.
  bool fails_without(int /*rank*/, bool /*has_left*/) const override HETCOMM_UNDER_BATON {
    return false;
  }
  Status known_end() const override HETCOMM_UNDER_BATON { return owner_.known_end(*this); }
  bool is_collective_call() const override HETCOMM_UNDER_BATON { return false; }
  std::vector<int> awaited() const override HETCOMM_UNDER_BATON;
  std::string remark() const override HETCOMM_UNDER_BATON { return shared_.talk.lacking(); }
  // Returns the code for an expired deadline. It is kMismatch if a peer has reported that it has no
  // such plan.
  Code code_at_deadline() const override HETCOMM_UNDER_BATON {
    return shared_.talk.is_lacking() ? Code::kMismatch : Code::kTimedOut;
  }
  std::string describe() const override HETCOMM_UNDER_BATON;

 private:
  enum class State : uint8_t { kFresh, kLoading, kMoving, kStoring, kEnding, kOver };
  // The method by which the bytes of a message are read or stored. kAsTheyLie: the transports
  // access them in place. kPacked: the processor copies them. kStaged: devices copy some of them.
  enum class Way : uint8_t { kAsTheyLie, kPacked, kStaged };
  struct MessageState {
    Operation* operation = nullptr;  // null unless in flight
    std::byte* landing = nullptr;
    std::byte* raw = nullptr;  // device data before conversion
    Way way = Way::kPacked;
    bool started = false;
    bool copying = false;  // true while a copy from a device into |landing| or |raw| is in progress
    PieceLists lists;      // the operation's lists while no operation is in flight
  };
  struct PhaseState {
    uint32_t first_message = 0;  // index in |messages_| of the first send; receives follow
    uint32_t sends_left = 0;
    uint32_t receives_left = 0;
    uint32_t next_arrival = 0;
    uint32_t copies = 0;  // pending device copies of arrivals
    bool may_begin = false;
    bool has_arrived = false;
    std::byte* sums = nullptr;
  };
  // The number of phases that are considered at once, starting with the oldest.
  static constexpr size_t kWindow = 32;
  // The processor copies at most about this many bytes before it serves other executions. Starting
  // a device copy takes the processor as long as copying kBytesOfACopy bytes.
  static constexpr uint64_t kMaxBytesAtOnce = 1u << 20;
  static constexpr uint64_t kBytesOfACopy = 16u << 10;

  void move(bool oldest) HETCOMM_UNDER_BATON;
  void post_receives(size_t end, bool oldest) HETCOMM_UNDER_BATON;
  void post_sends(size_t index, bool oldest) HETCOMM_UNDER_BATON;
  bool post(size_t phase, size_t index, bool sends, bool must) HETCOMM_UNDER_BATON;
  Way way_of(const ProgramMessage& message) const HETCOMM_UNDER_BATON;
  void start_copies(StreamDirection direction, const DeviceCopyUse& use) HETCOMM_UNDER_BATON;
  bool take_memory(const ProgramMessage& message, MessageState& state, bool sends,
                   bool must) HETCOMM_UNDER_BATON;
  void fetch(const ProgramMessage& message, MessageState& state,
             const DeviceCopyUse& use) HETCOMM_UNDER_BATON;
  void list_buffers(const ProgramMessage& message) HETCOMM_UNDER_BATON;
  void pack(const ProgramMessage& message, const MessageState& state) HETCOMM_UNDER_BATON;
  uint64_t cost_of(const ProgramArrival& arrival) const HETCOMM_UNDER_BATON;
  void arrive(size_t index, bool must) HETCOMM_UNDER_BATON;
  bool take_arrivals(size_t phase_index, size_t end, bool must) HETCOMM_UNDER_BATON;
  void take_received(size_t phase_index, const ProgramArrival& arrival) HETCOMM_UNDER_BATON;
  void let_go_of_sums(PhaseState& state) HETCOMM_UNDER_BATON;
  void put_fetched(const DeviceCopyUse& use) HETCOMM_UNDER_BATON;
  void let_go(MessageState& state, bool sends) HETCOMM_UNDER_BATON;
  void put(const ProgramArrival& arrival, const CopySide& to, std::byte* sums) HETCOMM_UNDER_BATON;
  void store() HETCOMM_UNDER_BATON;
  void complete() HETCOMM_UNDER_BATON;
  void drop_landings() HETCOMM_UNDER_BATON;
  void stop(const Status& why, std::string text) HETCOMM_UNDER_BATON;
  void try_to_end() HETCOMM_UNDER_BATON;
  bool may_send_to(const Track& track) const HETCOMM_UNDER_BATON;
  std::string name() const HETCOMM_UNDER_BATON;
  void on_end(Operation& message) override HETCOMM_UNDER_BATON;
  void on_copied(const Status& status) override HETCOMM_UNDER_BATON;
  std::string copy_purpose() const override HETCOMM_UNDER_BATON { return describe(); }
  void on_device_copied(DeviceCopyUse use, const Status& status) override HETCOMM_UNDER_BATON;

  ExecutionOwner& owner_;
  ExecutionCommons& shared_;
  Operation* operation_ = nullptr;
  State state_ = State::kFresh;
  bool has_permit_ = false;
  bool has_number_ = false;
  bool is_lined_up_ = false;
  uint64_t number_ = 0;
  Label label_;
  ExecutionMemory memory_;
  Claim claim_;
  DeviceCopies device_copies_;
  std::vector<PhaseState> phases_;
  std::vector<MessageState> messages_;
  std::vector<hetcomm_buffer_t> buffers_;  // buffers of the message that is being posted
  size_t first_ = 0;                       // all phases before this one are done
  size_t receive_phase_ = 0;               // phase of the next receive to post
  size_t receive_index_ = 0;
  uint32_t under_way_ = 0;  // messages in flight
  uint32_t copies_ = 0;     // device copies in progress
  uint64_t budget_ = 0;     // bytes that the processor may still copy in this call of advance()
  bool no_room_ = false;    // true if a send waits for memory; others then allocate only in turn
  Code code_ = Code::kOk;
  std::string text_;
};

}  // namespace hetcomm::reshard
