// Collective is one collective operation on this rank.
//
//   fresh --> queued --> loading --> moving --> storing --> over --> fresh
//                 (any of them) --fail--> ending, until its messages and copies have ended --> over
//
// Device buffers are copied to and from host memory while the data moves (task_copies.h). An
// operation stays in the loading state only if all its data must be multiplied before it is sent. A
// storing operation waits for the rest of the results to be copied. The data is moved by steps that
// send messages (runner.h), or through the arena that the ranks of a host share (arena_runner.h).
// Objects are reused, so that an operation allocates no memory once enough objects exist. All calls
// need the baton, except set_up() and attach().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/collectives/runner.h"
#include "src/core/collectives/segments.h"
#include "src/core/collectives/slow_call.h"
#include "src/core/collectives/step_sums.h"
#include "src/core/collectives/task.h"
#include "src/core/collectives/task_copies.h"
#include "src/core/device/stand_ins.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/operation.h"

namespace hetcomm {
struct DataServices;
}  // namespace hetcomm

namespace hetcomm::collectives {

class Collectives;
class Team;

class Collective final : public CompositeOperation,
                         private SideCopiesClient,
                         private StepSumsClient,
                         private RunnerClient {
 public:
  Collective() = default;
  ~Collective() override = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  // Sets up the task of a fresh object, like Task::set_up(). |owner| must outlive the object.
  // [any-thread]
  Code set_up(Collectives& owner, const Arguments& arguments, std::string* text);
  void reset() HETCOMM_UNDER_BATON;

  // CompositeOperation
  const void* order() const override HETCOMM_UNDER_BATON { return owner_; }
  void lined_up() override HETCOMM_UNDER_BATON {}
  Status begin(Operation& operation) override HETCOMM_UNDER_BATON;
  // Makes |operation| represent this fresh object. The operation's pieces keep the object's
  // memories in use. [any-thread]
  void attach(Operation& operation);
  Task& task() HETCOMM_UNDER_BATON { return task_; }
  const std::vector<int32_t>& list() const HETCOMM_UNDER_BATON { return task_.list(); }
  const Call& call() const HETCOMM_UNDER_BATON { return task_.call(); }
  uint64_t sequence() const HETCOMM_UNDER_BATON { return task_.sequence(); }
  uint64_t history() const HETCOMM_UNDER_BATON { return task_.history(); }
  // Returns the schedule according to which the team reports this call to other ranks.
  SlowCall& slow_call() HETCOMM_UNDER_BATON { return slow_call_; }
  const SlowCall& slow_call() const HETCOMM_UNDER_BATON { return slow_call_; }
  // Returns the ranks of the communicator that this operation waits for, without duplicates, in
  // ascending order.
  std::vector<int> missing() const HETCOMM_UNDER_BATON;
  // Returns whether the operation is in the moving state, in which it can use the arena.
  bool moving() const HETCOMM_UNDER_BATON { return state_ == State::kMoving; }

  // The team calls join() when the operation is submitted, and start() when the operation is the
  // next to start. start() does nothing if the operation has already ended.
  void join(Team& team, uint64_t sequence) HETCOMM_UNDER_BATON;
  void start(bool in_arena) HETCOMM_UNDER_BATON;
  // Does all work that can be done now.
  void advance() HETCOMM_UNDER_BATON;
  TaskCopies& copies() HETCOMM_UNDER_BATON { return copies_; }
  bool ready() const HETCOMM_UNDER_BATON { return ready_; }
  // Continues after the data has moved through the arena.
  void moved() HETCOMM_UNDER_BATON {
    if (state_ == State::kMoving) store();
  }
  // Fails because rank |shown_rank| of the communicator has sent |sent| bytes instead of
  // |expected|.
  void refuse_length(int32_t shown_rank, uint64_t sent, uint64_t expected) HETCOMM_UNDER_BATON;
  // Ends the operation. It completes once nothing accesses its memory any longer.
  void fail(Code code, const std::string& text) HETCOMM_UNDER_BATON;
  bool over() const HETCOMM_UNDER_BATON { return state_ == State::kOver; }
  // Both fail the collective operations of the communicator on all ranks, for example because the
  // deadline of this one has passed or a caller cancels it.
  void withdraw(Code code, const std::string& text) override HETCOMM_UNDER_BATON;
  void end(Code code, const std::string& text) override HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool fails_without(int rank, bool has_left) const override HETCOMM_UNDER_BATON;
  Status known_end() const override HETCOMM_UNDER_BATON { return {}; }
  bool is_collective_call() const override HETCOMM_UNDER_BATON { return true; }
  std::string describe() const override HETCOMM_UNDER_BATON;
  std::vector<int> awaited() const override HETCOMM_UNDER_BATON;
  std::string remark() const override HETCOMM_UNDER_BATON { return {}; }
  Code code_at_deadline() const override HETCOMM_UNDER_BATON { return Code::kTimedOut; }

 private:
  enum class State : uint8_t { kQueued, kLoading, kMoving, kStoring, kEnding, kOver };
  // The time limit for the arrival of the reason for a failure from another rank.
  static constexpr uint64_t kReasonNs = 1'000'000'000;

  // RunnerClient
  void make_steps(uint64_t segment, Steps* steps) override HETCOMM_UNDER_BATON;
  bool may_begin(uint64_t segment) override HETCOMM_UNDER_BATON;
  std::byte* take_scratch(size_t slot, uint64_t bytes) override HETCOMM_UNDER_BATON;
  void give_scratch(size_t slot) override HETCOMM_UNDER_BATON;
  int job_rank(uint32_t peer) const override HETCOMM_UNDER_BATON;
  std::byte* user_address(const Range& range) const override HETCOMM_UNDER_BATON;
  bool run_local(size_t slot, const Steps& steps, const Step& step,
                 const Addresses& addresses) override HETCOMM_UNDER_BATON;
  void finish_segment(const Steps& steps, const Addresses& addresses) override HETCOMM_UNDER_BATON;
  void runner_ready() override HETCOMM_UNDER_BATON;
  void message_failed(const Operation& message) override HETCOMM_UNDER_BATON;

  void load() HETCOMM_UNDER_BATON;
  bool scales() const HETCOMM_UNDER_BATON;
  void on_slice(const Status& status) override HETCOMM_UNDER_BATON;
  void begin_moving() HETCOMM_UNDER_BATON;
  bool scale() HETCOMM_UNDER_BATON;
  void on_step(size_t slot, const Status& status) override HETCOMM_UNDER_BATON;
  void store() HETCOMM_UNDER_BATON;
  void finish() HETCOMM_UNDER_BATON;
  void note_ready() HETCOMM_UNDER_BATON;
  void try_to_end() HETCOMM_UNDER_BATON;
  void complete() HETCOMM_UNDER_BATON;
  void give_up(Code code, std::string_view why) HETCOMM_UNDER_BATON;
  DataServices& data() const HETCOMM_UNDER_BATON;

  Collectives* owner_ = nullptr;
  Team* team_ = nullptr;
  Operation* operation_ = nullptr;
  Task task_;
  Runner runner_;
  bool in_arena_ = false;
  bool ready_ = false;
  State state_ = State::kQueued;
  TaskCopies copies_;
  StepSums sums_;
  // Scratch memory for a segment, from one of two sources.
  struct Scratch {
    PoolBytes pooled;
    StandIns::Memory pinned;
  };
  std::array<Scratch, Runner::kSegmentsAtOnce> scratch_;
  SlowCall slow_call_;
  uint64_t forsaken_ns_ = 0;  // when a message failed because a peer ended this operation; 0: none
  Code code_ = Code::kOk;
  std::string text_;
};

}  // namespace hetcomm::collectives
