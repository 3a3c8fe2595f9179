#include "src/core/collectives/agreement.h"

#include <span>
#include <string>

#include "src/base/text.h"
#include "src/system/membarrier.h"

namespace hetcomm::collectives {

void Agreement::start(bool wanted) {
  wanted_ = wanted;
  step_ = Step::kOffer;
  const ByteSpan offer = std::as_writable_bytes(std::span(&offer_, 1));
  if (ranks_.index != 0) {
    post(false, 0, offer);
    return;
  }
  answers_.resize(size());
  if (wanted) {
    Result<SharedArena> made = SharedArena::create(size(), &offer_);
    if (made.ok()) {
      arena_.emplace(std::move(made).value());
    } else {
      ranks_.log.info("collective operations go by messages: shared memory could not be made: {}",
                      made.status().text());
    }
  }
  for (uint32_t peer = 1; peer < size(); ++peer) post(true, peer, offer);
  for (uint32_t peer = 1; peer < size(); ++peer) {
    post(false, peer, std::as_writable_bytes(std::span(&answers_[peer], 1)));
  }
}

void Agreement::post(bool sends, uint32_t peer, ByteSpan bytes) {
  if (step_ == Step::kOver) return;  // an earlier message has failed
  messages_.reserve(messages_.size() + 1);
  Operation* message = ranks_.communicator.starter().make_internal(
      {.kind = sends ? OperationKind::kSend : OperationKind::kReceive,
       .peer = ranks_.ranks[peer],
       .tag = ranks_.tag,
       .bytes = bytes,
       .handler = this});
  if (message == nullptr) throw std::bad_alloc();
  messages_.push_back(message);
  ranks_.communicator.starter().start_internal(*message);
}

void Agreement::cancel() {
  step_ = Step::kOver;
  for (size_t i = messages_.size(); i-- > 0;) {
    if (i >= messages_.size()) continue;
    ranks_.communicator.end(*messages_[i], Code::kCancelled,
                            "the ranks could not find out whether they share memory");
  }
}

void Agreement::on_end(Operation& message) {
  std::erase(messages_, &message);
  const Code code = message.outcome.code;
  if (code != Code::kOk && step_ != Step::kOver) {
    // If another rank ended the agreement, it sends the reason over the control plane. The waiting
    // operations end when the reason arrives.
    if (code != Code::kAborted) {
      failure_ = status_or_code(code, [&] { return std::string(message.outcome.why()); });
    }
    cancel();
  }
  if (messages_.empty()) ranks_.ready = true;
}

std::vector<int> Agreement::missing() const {
  std::vector<int> ranks;
  for (const Operation* message : messages_) {
    if (message->kind == OperationKind::kReceive) {
      ranks.push_back(ranks_.communicator.rank_of(message->peer));
    }
  }
  return ranks;
}

// Continues with the next step unless messages are still in flight.
void Agreement::advance() {
  if (!messages_.empty()) return;
  const bool first = ranks_.index == 0;
  switch (step_) {
    case Step::kOffer:
      step_ = first ? Step::kDecision : Step::kAnswer;
      first ? decide() : answer();
      return;
    case Step::kAnswer:
      step_ = Step::kDecision;
      post(false, 0, std::as_writable_bytes(std::span(&answer_, 1)));
      return;
    case Step::kDecision:
      step_ = Step::kOver;
      conclude();
      return;
    case Step::kOver:
      return;
  }
}

void Agreement::answer() {
  answer_ = {};
  if (wanted_ && offer_.usable != 0) {
    Result<SharedArena> found = SharedArena::open(size(), offer_);
    if (found.ok()) {
      arena_.emplace(std::move(found).value());
      answer_ = {1, register_global_membarrier() ? uint64_t{1} : 0};
    } else {
      ranks_.log.info("collective operations go by messages: no access to rank {}'s memory: {}",
                      ranks_.communicator.rank_of(ranks_.ranks[0]), found.status().text());
    }
  }
  post(true, 0, std::as_writable_bytes(std::span(&answer_, 1)));
}

void Agreement::decide() {
  answers_[0] = {arena_.has_value() ? uint64_t{1} : 0,
                 register_global_membarrier() ? uint64_t{1} : 0};
  answer_ = {1, 1};
  for (const Answer& each : answers_) {
    answer_.mapped &= each.mapped;
    answer_.barrier &= each.barrier;
  }
  for (uint32_t peer = 1; peer < size(); ++peer) {
    post(true, peer, std::as_writable_bytes(std::span(&answer_, 1)));
  }
}

void Agreement::conclude() {
  concluded_ = true;
  if (answer_.mapped == 0) {
    arena_.reset();
  } else {
    arena_->close_file();
  }
}

}  // namespace hetcomm::collectives
