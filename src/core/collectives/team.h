// Team: the ranks of one list on one communicator, and their collective operations in order.
//
// Every operation has a number, the same on all ranks. Messages carry it in their tag, so several
// operations may be under way. Operations in the arena run one after the other. The first operation
// that may go there waits until the ranks have found out whether they share an arena. A barrier or
// a split that is the very first operation goes by messages. All under the baton.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

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

  const std::vector<int32_t>& list() const { return list_; }
  uint64_t hash() const { return hash_; }
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  uint32_t index() const { return index_; }
  int job_rank(uint32_t index) const { return ranks_[index]; }
  const RankPlacement& placement() const { return placement_; }
  // The rank in the communicator, which texts for users show.
  int32_t shown_rank(uint32_t index) const;
  // Tag of the messages of an operation, without the number of a pipeline.
  uint64_t tag(uint64_t sequence, const Call& call) const;
  uint64_t agreement_tag() const;
  // Whether another team's messages could be taken for those of this team.
  bool collides_with(const Team& other) const;

  // Takes the operation over, unless it throws.
  void submit(std::unique_ptr<Collective>& collective);
  // The operation in the arena has its memory on the host.
  void begin_in_arena();
  // An operation is ready to go on.
  void note_ready() { ready_ = true; }
  bool ready() const override { return ready_; }
  int progress() override;
  // The time at which tick() has something to do; kForever: never.
  uint64_t next_timer_ns() const override;
  void tick(uint64_t now_ns) override;
  // Arranges that the ranks whose tickets this rank waits for wake it. False: there may be
  // something to do.
  [[nodiscard]] bool prepare_sleep(bool short_sleep) override;
  void finish_sleep() override;
  // A sleep that was prepared before need not end.
  bool may_sleep_on() const override;
  // Ranks of the communicator that the operation in the arena waits for.
  std::vector<int> missing_in_arena() const;
  // Ranks of the communicator that the agreement waits for.
  std::vector<int> missing_in_agreement() const;
  void note_unexpected_part(int job_rank, uint64_t tag);
  void peer_says(int job_rank, const CallNote& note);
  // This rank does not make the next call that the others make, or have made, for the reason |why|:
  // they are told, and theirs fails. Where all refuse, nobody's does.
  void refuse(std::string_view why);
  void peer_lost(int job_rank);
  // Ends all operations of this rank.
  void fail_all(Code code, std::string_view text);

 private:
  enum class Way : uint8_t { kUnknown, kAgreeing, kMessages, kArena };
  static constexpr size_t kMaxActive = 8;
  static constexpr size_t kRemembered = 128;
  static constexpr size_t kMaxDisputed = 16;
  // Time after which the next rank is told what was called here.
  static constexpr uint64_t kTellAfterNs = 20'000'000;
  struct Remembered {
    uint64_t sequence = 0;  // 0: none
    Call call;
    uint32_t refusals = 0;  // times that this rank refused before it made the call
    bool told = false;
  };
  struct EarlyRefusal {
    uint32_t peer;
    CallNote note;
  };

  bool idle() const {
    return active_.empty() && queue_.empty() && in_arena_ == nullptr && agreement_ == nullptr;
  }
  void set_busy(bool busy);
  void choose_way(const Call& next);
  void go_on_agreeing();
  bool goes_through_arena(const Collective& collective) const {
    return way_ == Way::kArena && ArenaRunner::carries(collective.call(), size());
  }
  void remember(Collective& collective);
  void activate();
  bool advance_arena();
  void look_for_lost();
  void tell_call(int job_rank, const CallNote& note) const;
  void tell(const Collective& collective, uint64_t now_ns);
  void compare(uint32_t peer, const Call& theirs, uint64_t sequence, const Call& own);
  void peer_refuses(uint32_t peer, const CallNote& note);
  std::string disagreement(uint32_t peer, const Call& theirs, uint64_t sequence,
                           const Call& own) const;
  void sweep_over();

  Collectives& owner_;
  std::vector<int32_t> list_;
  std::vector<int> ranks_;  // numbers in the job
  uint32_t index_ = 0;
  RankPlacement placement_;  // known from the first operation on
  uint64_t hash_ = 0;
  const bool checks_;
  bool ready_ = false;
  bool busy_ = false;
  bool lost_ = false;  // one of the ranks is lost
  Way way_ = Way::kUnknown;
  std::unique_ptr<Agreement> agreement_;
  std::unique_ptr<ArenaRunner> arena_;
  std::unique_ptr<Collective> in_arena_;
  uint64_t sequence_ = 0;  // number of the last operation that was submitted
  std::deque<std::unique_ptr<Collective>> queue_;
  std::vector<std::unique_ptr<Collective>> active_;
  std::array<Remembered, kRemembered> remembered_;
  std::vector<Remembered> disputed_;  // calls that a message of another rank did not fit
  // Job ranks and tags of messages that came before the call was made here.
  std::vector<std::pair<int, uint64_t>> early_messages_;
  std::vector<std::pair<int, uint64_t>> seen_messages_;  // empty between calls
  std::vector<std::pair<uint32_t, CallNote>> early_;  // notes of calls that were not made here yet
  uint32_t refusals_ = 0;                             // times that this rank refused the next call
  std::vector<EarlyRefusal> early_refusals_;  // refusals of calls that were not made here yet
};

}  // namespace hetcomm::collectives
