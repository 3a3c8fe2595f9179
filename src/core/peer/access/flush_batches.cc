#include "src/core/peer/access/flush_batches.h"

#include <string>
#include <utility>

#include "src/base/text.h"

namespace hetcomm {

void FlushBatches::open_batch() {
  Batch& batch = batches_.emplace_back();
  if (batches_.size() == 1) batch.first_failure = std::exchange(unreported_failure_, Code::kOk);
}

void FlushBatches::submit(Operation& flush) {
  flush.phase = OperationPhase::kAwaiting;
  if (batches_.empty() || batches_.back().closed) open_batch();
  Batch& batch = batches_.back();
  batch.closed = true;
  batch.flush = &flush;
  finish_batches();
}

void FlushBatches::forget(const Operation& flush) {
  for (Batch& batch : batches_) {
    if (batch.flush == &flush) batch.flush = nullptr;
  }
}

void FlushBatches::finish_batches() {
  while (!batches_.empty() && batches_.front().running == 0 && batches_.front().closed) {
    const Batch done = batches_.front();
    batches_.pop_front();
    ++first_;
    if (done.flush != nullptr) {
      complete(*done.flush, done.first_failure);
    } else if (done.first_failure != Code::kOk) {
      // The flush ended early, so the next one reports the failure.
      Code& next = batches_.empty() ? unreported_failure_ : batches_.front().first_failure;
      if (next == Code::kOk) next = done.first_failure;
    }
  }
}

void FlushBatches::complete(Operation& flush, Code first_failure) {
  std::string text;
  if (first_failure != Code::kOk) {
    text = text_or_none([&] {
      return fmt::format("flush to rank {}: an operation before it failed: {}", rank_,
                         code_text(first_failure));
    });
  }
  completer_.complete(flush, first_failure, std::move(text));
}

}  // namespace hetcomm
