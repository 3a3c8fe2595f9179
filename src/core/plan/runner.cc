#include "src/core/plan/runner.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace hetcomm::plan {
namespace {

// Tags tell so many lanes apart.
constexpr uint64_t kLaneMask = 0xff;

}  // namespace

class Runner::LaneAddresses final : public Addresses {
 public:
  LaneAddresses(const Runner& runner, const Lane& lane) : runner_(runner), lane_(lane) {}
  std::byte* of(const Range& range) const override {
    if (range.place == Place::kScratch) return lane_.scratch.get() + range.offset;
    return range.length == 0 ? nullptr : runner_.client_->user_address(range);
  }

 private:
  const Runner& runner_;
  const Lane& lane_;
};

void Runner::start(CommunicatorBase& communicator, BlockPool& blocks, RunnerClient& client,
                   uint64_t lanes, uint64_t tag) {
  communicator_ = &communicator;
  blocks_ = &blocks;
  client_ = &client;
  tag_ = tag;
  lanes_ = lanes;
  next_lane_ = lanes_done_ = 0;
  for (Lane& lane : lane_list_) lane.reset();
  const uint64_t at_once = std::min<uint64_t>(lanes, kLanesAtOnce);
  if (lane_list_.size() < at_once) lane_list_.resize(at_once);
  running_ = true;
}

void Runner::advance() {
  bool again = true;
  while (again && running_) {
    again = false;
    for (size_t slot = 0; slot < lane_list_.size() && running_; ++slot) {
      Lane& lane = lane_list_[slot];
      if (!lane.active && next_lane_ < lanes_ && next_lane_ - oldest_lane() <= kLaneMask) {
        open_lane(lane);
      }
      if (!lane.active || lane.pending > 0) continue;
      advance(lane, slot);
      again = again || (!lane.active && next_lane_ < lanes_);
    }
  }
}

void Runner::open_lane(Lane& lane) {
  lane.index = next_lane_++;
  client_->make_plan(lane.index, &lane.plan);
  lane.scratch = PoolBytes(*blocks_, lane.plan.scratch_bytes);
  if (!lane.scratch) throw std::bad_alloc();
  lane.active = true;
}

// The first lane that is under way. Tags tell no more lanes apart than kLaneMask that follow it.
uint64_t Runner::oldest_lane() const {
  uint64_t oldest = next_lane_;
  for (const Lane& lane : lane_list_) {
    if (lane.active) oldest = std::min(oldest, lane.index);
  }
  return oldest;
}

void Runner::advance(Lane& lane, size_t slot) {
  const std::vector<Step>& steps = lane.plan.steps;
  while (running_) {
    if (lane.next == steps.size()) {
      client_->finish_lane(lane.plan, LaneAddresses(*this, lane));
      lane.reset();
      ++lanes_done_;
      return;
    }
    if (!lane.posted) {
      post_round(lane, slot);
      if (lane.pending > 0) return;
      continue;  // looks again whether one of them has failed
    }
    const size_t end = end_of_round(lane);
    for (size_t i = lane.next; i < end; ++i) run_step(lane, steps[i]);
    lane.next = end;
    lane.posted = false;
  }
}

size_t Runner::end_of_round(const Lane& lane) {
  const std::vector<Step>& steps = lane.plan.steps;
  size_t end = lane.next;
  while (end < steps.size() && steps[end].round == steps[lane.next].round) ++end;
  return end;
}

// Receives first: what comes finds its place.
void Runner::post_round(Lane& lane, size_t slot) {
  lane.posted = true;
  const size_t end = end_of_round(lane);
  const LaneAddresses addresses(*this, lane);
  ++lane.pending;  // until all are posted
  for (const StepKind kind : {StepKind::kReceive, StepKind::kSend}) {
    for (size_t i = lane.next; i < end && running_; ++i) {
      const Step& step = lane.plan.steps[i];
      if (step.kind != kind) continue;
      messages_.reserve(messages_.size() + 1);
      Operation* message = communicator_->make_internal(
          {.kind = kind == StepKind::kSend ? OperationKind::kSend : OperationKind::kReceive,
           .peer = client_->job_rank(step.peer),
           .tag = tag_ | (lane.index & kLaneMask),
           .bytes = {addresses.of(step.to), step.to.length},
           .handler = this});
      if (message == nullptr) throw std::bad_alloc();
      message->access.id = slot;
      messages_.push_back(message);
      ++lane.pending;
      communicator_->start_internal(*message);
    }
  }
  --lane.pending;
}

void Runner::run_step(const Lane& lane, const Step& step) {
  if (step.kind == StepKind::kSend || step.kind == StepKind::kReceive) return;
  const LaneAddresses addresses(*this, lane);
  if (step.kind != StepKind::kCopy) {
    client_->run_local(lane.plan, step, addresses);
    return;
  }
  std::byte* const to = addresses.of(step.to);
  const std::byte* const from = addresses.of(step.first);
  if (to != from && step.to.length > 0) std::memcpy(to, from, step.to.length);
}

void Runner::on_end(Operation& message) {
  std::erase(messages_, &message);
  Lane& lane = lane_list_[message.access.id];
  const bool whole =
      message.kind == OperationKind::kSend || message.outcome.bytes_sent == message.length;
  const bool failed = running_ && (message.outcome.code != Code::kOk || !whole);
  if (!failed) --lane.pending;
  if (failed) {
    client_->message_failed(message);
  } else if (!running_ || lane.pending == 0) {
    client_->runner_ready();
  }
}

void Runner::stop() {
  running_ = false;
  // Ended messages take themselves out of the list, some at once.
  for (size_t i = messages_.size(); i-- > 0;) {
    if (i >= messages_.size()) continue;
    communicator_->end(*messages_[i], Code::kCancelled,
                       "the operation that it is part of has failed");
  }
}

std::vector<int> Runner::awaited() const {
  std::vector<int> ranks;
  for (const Operation* message : messages_) {
    if (message->kind == OperationKind::kReceive) ranks.push_back(message->peer);
  }
  return ranks;
}

}  // namespace hetcomm::plan
