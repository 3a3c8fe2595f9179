#include "src/core/collectives/agreement.h"

#include <span>

#include "src/base/membarrier.h"

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
    Result<std::unique_ptr<Segment>> made = Segment::create(size(), &offer_);
    if (made.ok()) {
      segment_ = std::move(made).value();
    } else {
      ranks_.log.info("no segment for collective operations: {}", made.status().text());
    }
  }
  for (uint32_t peer = 1; peer < size(); ++peer) post(true, peer, offer);
  for (uint32_t peer = 1; peer < size(); ++peer) {
    post(false, peer, std::as_writable_bytes(std::span(&answers_[peer], 1)));
  }
}

void Agreement::post(bool sends, uint32_t peer, ByteSpan bytes) {
  parts_.reserve(parts_.size() + 1);
  Operation* part = ranks_.communicator.make_internal(
      {.kind = sends ? OperationKind::kSend : OperationKind::kReceive,
       .peer = ranks_.ranks[peer],
       .tag = ranks_.tag,
       .bytes = bytes,
       .handler = this});
  if (part == nullptr) throw std::bad_alloc();
  parts_.push_back(part);
  ranks_.communicator.start_internal(*part);
}

void Agreement::cancel() {
  step_ = Step::kOver;
  for (size_t i = parts_.size(); i-- > 0;) {
    if (i >= parts_.size()) continue;
    ranks_.communicator.end(*parts_[i], Code::kCancelled,
                            "the agreement that it is part of has failed");
  }
}

void Agreement::on_end(Operation& part) {
  std::erase(parts_, &part);
  if (part.outcome.code != Code::kOk && step_ != Step::kOver) {
    failure_ = Status(part.outcome.code,
                      part.outcome.text ? *part.outcome.text : code_text(part.outcome.code));
    cancel();
  }
  if (parts_.empty()) ranks_.ready = true;
}

std::vector<int> Agreement::missing() const {
  std::vector<int> ranks;
  for (const Operation* part : parts_) {
    if (part->kind == OperationKind::kReceive) {
      ranks.push_back(ranks_.communicator.rank_of(part->peer));
    }
  }
  return ranks;
}

// Called when nothing is under way.
void Agreement::advance() {
  if (!parts_.empty()) return;
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
    Result<std::unique_ptr<Segment>> found = Segment::open(size(), ranks_.index, offer_);
    if (found.ok()) {
      segment_ = std::move(found).value();
      answer_ = {1, register_global_membarrier() ? uint64_t{1} : 0};
    } else {
      ranks_.log.info("no segment for collective operations with rank {}: {}",
                      ranks_.communicator.rank_of(ranks_.ranks[0]), found.status().text());
    }
  }
  post(true, 0, std::as_writable_bytes(std::span(&answer_, 1)));
}

void Agreement::decide() {
  answers_[0] = {segment_ != nullptr ? uint64_t{1} : 0,
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
    segment_.reset();
  } else {
    segment_->complete(answer_.barrier == 0);
  }
}

}  // namespace hetcomm::collectives
