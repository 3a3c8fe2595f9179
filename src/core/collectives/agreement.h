// How the ranks of a team find out, once, whether they share a segment: the first rank makes one
// and tells the others where it lies; they try to map it and say whether they could; the first rank
// says whether all could. Ranks that do not claim to run on one host do not try.
//
//   first rank   offer -->  ... <-- answers   decision -->
//
// Under the baton.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/log.h"
#include "src/base/span.h"
#include "src/core/collectives/segment.h"
#include "src/core/progress/communicator_base.h"
#include "src/core/progress/operation.h"

namespace hetcomm::collectives {

// The ranks that agree, and how they reach each other.
struct AgreementRanks {
  CommunicatorBase& communicator;
  const std::vector<int>& ranks;  // of the job
  uint32_t index;                 // this rank's place among them
  uint64_t tag;                   // of the agreement's messages
  Log& log;
  bool& ready;  // set when advance() is worth a call
};

class Agreement final : public EndHandler {
 public:
  explicit Agreement(const AgreementRanks& ranks) : ranks_(ranks) {}
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // May throw std::bad_alloc. |wanted|: this rank's configuration allows it.
  void start(bool wanted);
  // Its messages are cancelled; over() follows.
  void cancel();
  void on_end(Operation& part) override;
  // Goes on when its messages have ended. May throw std::bad_alloc.
  void advance();
  // Ranks of the communicator that it waits for.
  std::vector<int> missing() const;
  // No messages are under way, and none follow.
  bool over() const { return parts_.empty() && step_ == Step::kOver; }
  // When over: null where there is none that all ranks have.
  std::unique_ptr<Segment> take_segment() { return concluded_ ? std::move(segment_) : nullptr; }
  // When over: messages to another rank have failed.
  const Status& failure() const { return failure_; }

 private:
  // What is under way. On the first rank kOffer is the answers too.
  enum class Step : uint8_t { kOffer, kAnswer, kDecision, kOver };
  struct Answer {
    uint64_t mapped = 0;
    uint64_t barrier = 0;  // this rank's kernel fences for others
  };

  void post(bool sends, uint32_t peer, ByteSpan bytes);
  void answer();
  void decide();
  void conclude();

  uint32_t size() const { return static_cast<uint32_t>(ranks_.ranks.size()); }

  const AgreementRanks ranks_;
  Step step_ = Step::kOffer;
  bool wanted_ = false;
  bool concluded_ = false;
  SegmentOffer offer_;
  Answer answer_;
  std::vector<Answer> answers_;
  std::unique_ptr<Segment> segment_;
  std::vector<Operation*> parts_;
  Status failure_;
};

}  // namespace hetcomm::collectives
