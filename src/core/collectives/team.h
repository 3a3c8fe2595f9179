// A Team consists of the ranks of one list on one communicator. It executes their collective
// operations in order.
//
// Every operation has a number, which is the same on all ranks. Messages carry the number in their
// tag, so several operations can be in progress. Operations in the arena run one after the other.
// The first operation that can use an arena waits until the ranks have determined whether they
// share one. If the very first operation is a barrier or a split, it uses messages.
//
// A rank accepts data only from ranks that have made the same calls so far. For this purpose, tags
// and the checks in the arena contain a hash of all calls (ADR 12). A message from a rank that has
// made other calls is therefore detected. The two ranks then determine how their calls differ, and
// the operations fail on all ranks. Callers hold the baton.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/collectives/agreement.h"
#include "src/core/collectives/arena_runner.h"
#include "src/core/collectives/call_note.h"
#include "src/core/collectives/collective.h"
#include "src/core/job/job_member.h"

namespace hetcomm::collectives {

class Collectives;

class Team final : public JobTask {
 public:
  Team(Collectives& owner, std::vector<int32_t> list);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  const std::vector<int32_t>& list() const HETCOMM_UNDER_BATON { return list_; }
  uint64_t hash() const HETCOMM_UNDER_BATON { return hash_; }
  uint32_t size() const HETCOMM_UNDER_BATON { return static_cast<uint32_t>(ranks_.size()); }
  uint32_t index() const HETCOMM_UNDER_BATON { return index_; }
  int job_rank(uint32_t index) const HETCOMM_UNDER_BATON { return ranks_[index]; }
  const RankPlacement& placement() const HETCOMM_UNDER_BATON { return placement_; }
  // Returns the rank in the communicator, which texts for users show.
  int32_t shown_rank(uint32_t index) const HETCOMM_UNDER_BATON;
  // Returns the tag of an operation's messages, without the segment number.
  uint64_t tag(uint64_t sequence, uint64_t history) const HETCOMM_UNDER_BATON;
  uint64_t agreement_tag() const HETCOMM_UNDER_BATON;
  // Returns the part of the list's hash that the tags of the team's messages carry. Two teams with
  // the same mark cannot be distinguished.
  uint64_t mark() const HETCOMM_UNDER_BATON { return mark_of_hash(hash_); }
  static uint64_t mark_of_hash(uint64_t hash);
  static uint64_t mark_of(uint64_t tag);

  // Starts or queues the operation, and takes ownership of it. If the call throws before it has
  // taken ownership, |collective| is not null.
  void submit(std::unique_ptr<Collective>& collective) HETCOMM_UNDER_BATON;
  // Returns whether devices can copy directly to and from the arena, which must exist, for |task|.
  bool arena_serves_devices(const Task& task) const HETCOMM_UNDER_BATON {
    return arena_->serves_devices(task);
  }
  // Begins the transfer of |in_arena_|. Its data is in host memory, or is copied there part by
  // part.
  void begin_in_arena() HETCOMM_UNDER_BATON;
  // Records that an operation is ready to continue.
  void note_ready() HETCOMM_UNDER_BATON { ready_ = true; }
  bool ready() const override HETCOMM_UNDER_BATON { return ready_; }
  int progress() override HETCOMM_UNDER_BATON;
  // Returns the time at which tick() has work to do, or kForever if there is none.
  uint64_t next_timer_ns() const override HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) override HETCOMM_UNDER_BATON;
  // Makes sure that ranks that publish a ticket wake this rank. Returns false if there may be work
  // to do.
  [[nodiscard]] bool prepare_sleep(Sleep sleep) override HETCOMM_UNDER_BATON;
  void finish_sleep() override HETCOMM_UNDER_BATON;
  // Returns whether a sleep that was prepared earlier can continue.
  bool may_sleep_on() const override HETCOMM_UNDER_BATON;
  // Returns the ranks of the communicator that the operation in the arena waits for.
  std::vector<int> missing_in_arena() const HETCOMM_UNDER_BATON;
  // Returns the ranks of the communicator that the agreement waits for.
  std::vector<int> missing_in_agreement() const HETCOMM_UNDER_BATON;
  void note_unexpected_message(int job_rank, uint64_t tag) HETCOMM_UNDER_BATON;
  void peer_says(int job_rank, const CallNote& note) HETCOMM_UNDER_BATON;
  // Refuses the next call of the team, for the reason |why|. The other ranks are notified, and the
  // call fails on those that make it or have made it. If all ranks refuse the call, nothing fails.
  void refuse(std::string_view why) HETCOMM_UNDER_BATON;
  void peer_lost(int job_rank) HETCOMM_UNDER_BATON;
  // Ends all operations of the team on this rank. Does not fail if out of memory.
  void fail_all(Code code, std::string_view text) HETCOMM_UNDER_BATON;

 private:
  enum class Way : uint8_t { kUnknown, kAgreeing, kMessages, kArena };
  static constexpr size_t kMaxActive = 8;
  static constexpr size_t kRemembered = 128;
  static constexpr size_t kMaxDisputes = 16;
  // The time limit for a rank that has made another call to send that call, for comparison.
  static constexpr uint64_t kReasonNs = 1'000'000'000;
  struct Remembered {
    uint64_t sequence = 0;  // 0: none
    uint64_t history = 0;   // Task::history()
    Call call;
    uint32_t refusals = 0;  // number of times that this rank refused the call before
  };
  // A message or ticket of |peer| that does not match the call |own| of this rank.
  struct Dispute {
    Remembered own;
    uint32_t peer = 0;
    uint64_t since_ns = 0;
  };
  struct EarlyRefusal {
    uint32_t peer;
    CallNote note;
  };
  // A message that no operation was waiting for.
  struct UnexpectedMessage {
    uint32_t peer;
    uint64_t sequence;
    uint64_t tag;
  };
  struct UnexpectedMessages {
    std::vector<UnexpectedMessage> early;           // arrived before this rank made the call
    std::vector<UnexpectedMessage> seen;            // used by remember(); empty between its calls
    std::unordered_map<uint32_t, uint64_t> newest;  // the highest operation number, by rank index
  };

  bool idle() const HETCOMM_UNDER_BATON {
    return active_.empty() && queue_.empty() && in_arena_ == nullptr && agreement_ == nullptr &&
           disputes_.empty();
  }
  void set_busy(bool busy) HETCOMM_UNDER_BATON;
  void choose_way(const Call& next) HETCOMM_UNDER_BATON;
  void go_on_agreeing() HETCOMM_UNDER_BATON;
  bool goes_through_arena(const Collective& collective) const HETCOMM_UNDER_BATON {
    return way_ == Way::kArena && ArenaRunner::carries(collective.call(), size());
  }
  void remember(Collective& collective) HETCOMM_UNDER_BATON;
  void activate() HETCOMM_UNDER_BATON;
  bool advance_arena() HETCOMM_UNDER_BATON;
  void look_for_lost() HETCOMM_UNDER_BATON;
  void tell_call(int job_rank, const CallNote& note) const HETCOMM_UNDER_BATON;
  void tell_own(uint32_t peer, const Remembered& own) const HETCOMM_UNDER_BATON;
  void tell(Collective& collective, uint64_t now_ns) HETCOMM_UNDER_BATON;
  uint64_t oldest_under_way() const HETCOMM_UNDER_BATON;
  void look_at(const UnexpectedMessage& message) HETCOMM_UNDER_BATON;
  void dispute(uint32_t peer, const Remembered& own) HETCOMM_UNDER_BATON;
  void end_disputes(uint64_t now_ns) HETCOMM_UNDER_BATON;
  std::string text_of(const Dispute& dispute) const HETCOMM_UNDER_BATON;
  void compare(uint32_t peer, const CallNote& theirs, const Remembered& own) HETCOMM_UNDER_BATON;
  void peer_refuses(uint32_t peer, const CallNote& note) HETCOMM_UNDER_BATON;
  std::string disagreement(uint32_t peer, const Call& theirs, uint64_t sequence,
                           const Call& own) const HETCOMM_UNDER_BATON;
  std::string difference_in_order(uint32_t peer, const Call& theirs,
                                  uint64_t sequence) const HETCOMM_UNDER_BATON;
  std::string earlier_difference(uint32_t peer, uint64_t sequence) const HETCOMM_UNDER_BATON;
  void sweep_over() HETCOMM_UNDER_BATON;

  Collectives& owner_;
  std::vector<int32_t> list_;
  std::vector<int> ranks_;  // job ranks
  uint32_t index_ = 0;
  RankPlacement placement_;  // set when the first operation is submitted
  uint64_t hash_ = 0;
  const bool checks_;
  bool ready_ = false;
  bool busy_ = false;
  bool lost_ = false;  // one of the ranks is lost
  Way way_ = Way::kUnknown;
  std::unique_ptr<Agreement> agreement_;
  std::unique_ptr<ArenaRunner> arena_;
  std::unique_ptr<Collective> in_arena_;
  uint64_t sequence_ = 0;  // the number of the last submitted operation
  std::deque<std::unique_ptr<Collective>> queue_;
  std::vector<std::unique_ptr<Collective>> active_;
  std::array<Remembered, kRemembered> remembered_;
  uint64_t history_ = 0;           // Task::history() of the latest operation
  std::vector<Dispute> disputes_;  // oldest first
  UnexpectedMessages unexpected_;
  std::vector<std::pair<uint32_t, CallNote>> early_;  // notes of calls not yet made here
  uint32_t refusals_ = 0;                             // refusals of the next call by this rank
  std::vector<EarlyRefusal> early_refusals_;          // refusals of calls not yet made here
};

}  // namespace hetcomm::collectives
