// Agreement determines, once per team, whether its ranks share an arena, which is memory that all
// of them have mapped. The first rank creates an arena and sends its location to the others. They
// try to map it and report whether they succeeded. The first rank then sends its decision: if all
// ranks could map the arena, all keep it, and otherwise none does. A rank whose configuration does
// not allow an arena does not try to map it.
//
//   first rank   offer -->  ... <-- answers   decision -->
//
// Callers hold the baton.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/core/collectives/shared_arena.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/progress/operation.h"
#include "src/system/log.h"

namespace hetcomm::collectives {

// The ranks that take part in an agreement, and the means by which they communicate.
struct AgreementRanks {
  MessagingCommunicator& communicator;
  const std::vector<int>& ranks;  // job ranks
  uint32_t index;                 // this rank's index in |ranks|
  uint64_t tag;                   // the tag of the agreement's messages
  Log& log;
  bool& ready;  // set when advance() has something to do
};

class Agreement final : public EndHandler {
 public:
  explicit Agreement(const AgreementRanks& ranks) : ranks_(ranks) {}
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Starts the agreement. |wanted| is true if this rank's configuration allows an arena. May throw
  // std::bad_alloc.
  void start(bool wanted) HETCOMM_UNDER_BATON;
  // Cancels the agreement's messages. over() becomes true later.
  void cancel() HETCOMM_UNDER_BATON;
  void on_end(Operation& message) override HETCOMM_UNDER_BATON;
  // Continues once the current messages have ended. May throw std::bad_alloc.
  void advance() HETCOMM_UNDER_BATON;
  // Returns the ranks of the communicator that the agreement waits for.
  std::vector<int> missing() const HETCOMM_UNDER_BATON;
  // Returns whether no message is in flight and none will follow.
  bool over() const HETCOMM_UNDER_BATON { return messages_.empty() && step_ == Step::kOver; }
  // Returns the arena if all ranks have mapped it. Call this once over() is true.
  std::optional<SharedArena> take_arena() HETCOMM_UNDER_BATON {
    return concluded_ ? std::exchange(arena_, std::nullopt) : std::nullopt;
  }
  // Returns whether the kernel of some rank lacks the global membarrier. If so, every ticket needs
  // a fence. Call this once over() is true.
  bool needs_fences() const HETCOMM_UNDER_BATON { return answer_.barrier == 0; }
  // Returns the error if messages to or from another rank have failed. Call this once over() is
  // true.
  const Status& failure() const HETCOMM_UNDER_BATON { return failure_; }

 private:
  // The messages that are in flight. On the first rank, kOffer also covers the answers.
  enum class Step : uint8_t { kOffer, kAnswer, kDecision, kOver };
  // The answer of one rank, or the decision, which combines the answers of all ranks.
  struct Answer {
    uint64_t mapped = 0;
    uint64_t barrier = 0;  // nonzero: the kernel has the global membarrier
  };

  void post(bool sends, uint32_t peer, ByteSpan bytes) HETCOMM_UNDER_BATON;
  void answer() HETCOMM_UNDER_BATON;
  void decide() HETCOMM_UNDER_BATON;
  void conclude() HETCOMM_UNDER_BATON;

  uint32_t size() const HETCOMM_UNDER_BATON { return static_cast<uint32_t>(ranks_.ranks.size()); }

  const AgreementRanks ranks_;
  Step step_ = Step::kOffer;
  bool wanted_ = false;
  bool concluded_ = false;
  ArenaOffer offer_;
  Answer answer_;
  std::vector<Answer> answers_;
  std::optional<SharedArena> arena_;
  std::vector<Operation*> messages_;  // in flight
  Status failure_;
};

}  // namespace hetcomm::collectives
