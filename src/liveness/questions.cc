#include "src/liveness/questions.h"

#include <algorithm>
#include <string>

namespace hetcomm::liveness {

void Questions::ask(Peer& one, uint64_t now) {
  one.next_question_ns = now + timing_.beat_ns();
  peers_.send_all(
      {.type = FrameType::kSuspect, .subject = one.rank, .number = ++rounds_[one.rank].asked});
}

bool Questions::inquire(Peer& one, uint64_t now) {
  one.inquiry_end_ns = now + timing_.detection_ns;
  if (one.is_connected() && !one.is_suspected()) return true;
  ask(one, now);
  return false;
}

void Questions::question(const Frame& frame, ConnectionId from, uint64_t now) {
  const int rank = frame.subject;
  Round& round = rounds_[rank];
  const auto newer = static_cast<int32_t>(frame.number - round.asked);
  if (newer == 0) return;
  if (newer > 0) {
    round.asked = frame.number;
    const bool goes_on = now < round.asked_ns + timing_.suspicion_ns();
    if (round.unanswered_ns == kNever || !goes_on) round.unanswered_ns = now;
    round.asked_ns = now;
    peers_.send_all(frame, from);
  }
  const uint64_t age = silent_ns(rank, from, now);
  const bool vouches = age < timing_.suspicion_ns();
  const Frame vouch{.type = FrameType::kVouch,
                    .subject = rank,
                    .number = round.asked,
                    .value = age,
                    .text = vouches ? network_.addresses_of(rank) : std::string()};
  if (newer < 0) {
    // The sender has missed questions from other ranks, so this rank sends it the newest number.
    const Frame question{.type = FrameType::kSuspect, .subject = rank, .number = round.asked};
    (void)network_.send(from, vouches ? vouch : question);
  } else if (vouches) {
    round.vouched = frame.number;
    round.unanswered_ns = kNever;
    peers_.send_all(vouch);
  }
}

// Returns the time since the last sign of life of |rank| to this rank; kNever if there was none.
uint64_t Questions::silent_ns(int rank, ConnectionId from, uint64_t now) {
  if (rank == own_rank_) return 0;
  Peer* const one = peers_.find(rank);
  if (one == nullptr) return kNever;
  for (const ConnectionId id : one->connections) {
    one->own_life_ns = std::max(one->own_life_ns, network_.last_acknowledged_ns(id));
  }
  // The kernel of |rank| acknowledges a frame that it receives, which is a sign of life.
  if (one->is_connected() && one->newest() != from) (void)network_.send(one->newest(), Frame{});
  if (!one->proved) return kNever;
  return now - std::min(now, std::max(one->own_life_ns, one->reached_ns));
}

bool Questions::answer(const Frame& frame, ConnectionId from, uint64_t now) {
  const int rank = frame.subject;
  Round& round = rounds_[rank];
  if (static_cast<int32_t>(frame.number - round.vouched) <= 0) return false;
  round.vouched = frame.number;
  round.unanswered_ns = kNever;
  if (static_cast<int32_t>(frame.number - round.asked) > 0) round.asked = frame.number;
  peers_.send_all(frame, from);
  if (!frame.text.empty()) network_.learn_addresses(rank, frame.text);
  Peer* const one = peers_.find(rank);
  if (one == nullptr || frame.value >= timing_.suspicion_ns()) return false;
  one->life_ns = std::max(one->life_ns, now - std::min(now, frame.value));
  return now < one->inquiry_end_ns;
}

std::vector<int> Questions::unanswered(uint64_t patience_ns, uint64_t now) const {
  std::vector<int> ranks;
  for (const auto& [rank, round] : rounds_) {
    if (round.unanswered_ns != kNever && now >= round.unanswered_ns + patience_ns &&
        now < round.asked_ns + 2 * timing_.beat_ns()) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

void Questions::start_anew() {
  for (auto& [rank, round] : rounds_) round.unanswered_ns = kNever;
}

}  // namespace hetcomm::liveness
