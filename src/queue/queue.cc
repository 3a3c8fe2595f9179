#include "src/queue/queue.h"

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/core/context/context.h"
#include "src/core/peer/matching/track_base.h"
#include "src/system/clock.h"
#include "src/system/variables.h"

namespace hetcomm {

Result<std::unique_ptr<Queue>> Queue::create(Communicator& communicator, int32_t peer,
                                             Track::End end, const TrackTerms& terms,
                                             TrackShare share) {
  if (terms.most_bytes == 0) {
    return Status(Code::kInvalidArgument, "max_item_bytes is 0");
  }
  if (terms.most_bytes > kMaxMessageBytes) {
    return Status(Code::kOutOfRange, "an item has less than 2^48 bytes");
  }
  if (terms.depth == 0 || terms.depth > Track::kMaxDepth) {
    return Status(Code::kOutOfRange, fmt::format("a depth of {} is not between 1 and {}",
                                                 terms.depth, Track::kMaxDepth));
  }
  if (end == Track::End::kReceiving && (share.weight != 0 || share.bytes_per_second != 0)) {
    return Status(Code::kInvalidArgument, "the end that pushes says the weight and the rate");
  }
  if (share.weight == 0) share.weight = 1;
  if (share.weight > kMaxWeight) {
    return Status(Code::kOutOfRange,
                  fmt::format("a weight of {} is more than {}", share.weight, kMaxWeight));
  }
  if (!communicator.engine().threaded()) {
    return Status(Code::kUnsupported,
                  "a queue moves items while its rank computes: its context needs the progress "
                  "thread (hetcomm_context_options_t.progress, or HETCOMM_PROGRESS=thread)");
  }
  const uint32_t channel = end == Track::End::kSending
                               ? communicator.poster().filler().member(peer).channel
                               : communicator.id();
  std::unique_ptr<Queue> queue(new Queue(communicator, peer, end, channel, terms, share));
  communicator.poster().open_track(queue->track_);
  communicator.add_track_user();
  return queue;
}

Queue::Queue(Communicator& communicator, int32_t peer, Track::End end, uint32_t channel,
             const TrackTerms& terms, const TrackShare& share)
    : communicator_(communicator),
      peer_(peer),
      track_(end, communicator, communicator.ranks()[static_cast<size_t>(peer)], channel, terms,
             share) {}

Queue::~Queue() = default;

Status Queue::check(bool pushes, uint64_t bytes) const {
  if (pushes != track_.is_sending()) {
    return Status(Code::kInvalidArgument, pushes ? "this end of the queue pulls items"
                                                 : "this end of the queue pushes items");
  }
  if (bytes > track_.terms().most_bytes) {
    return Status(Code::kOutOfRange, fmt::format("{} bytes are more than an item of this queue has "
                                                 "(max_item_bytes: {})",
                                                 bytes, track_.terms().most_bytes));
  }
  if (!pushes && bytes == 0) return Status(Code::kInvalidArgument, "the buffer is empty");
  return {};
}

bool Queue::drain(uint64_t timeout_ns) {
  const uint64_t limit_ns =
      timeout_ns == 0 ? communicator_.context().config().number(variable::kTimeout) : timeout_ns;
  return communicator_.engine().wait(deadline_after(now_ns(), limit_ns),
                                     [this] { return track_.taken() == 0; });
}

void Queue::cancel() {
  Engine& engine = communicator_.engine();
  const Engine::Baton baton(engine);
  engine.drain();
  engine.pool().for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.state() == OperationState::kPending && operation.options.on_track &&
        track_run(operation).track == &track_) {
      communicator_.cancel(operation);
    }
  });
}

Status Queue::close() {
  if (communicator_.poster().close_track(track_) != Code::kOk) {
    return Status(Code::kBusy, fmt::format("{} items are under way", track_.taken()));
  }
  communicator_.drop_track_user();
  return {};
}

}  // namespace hetcomm
