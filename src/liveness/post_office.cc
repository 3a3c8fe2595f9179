#include "src/liveness/post_office.h"

#include <algorithm>
#include <utility>

namespace hetcomm::liveness {

void PostOffice::post(Peer& to, LetterType type, uint64_t value, std::string text, uint64_t now) {
  if (type == LetterType::kQuestion) to.answers_due = std::min(to.answers_due + 1, kMaxAnswers);
  to.letters.add(own_rank_, type, value, std::move(text));
  if (type != LetterType::kProfile) to.used_ns = now;
  send(to, now);
}

void PostOffice::send(Peer& to, uint64_t now) {
  if (to.letters.waiting().empty()) return;
  if (to.is_connected()) {
    to.next_letters_ns = now + timing_.detection_ns / 4;
    for (const Frame& letter : to.letters.waiting()) {
      if (network_.send(to.newest(), letter)) continue;
      to.next_letters_ns = now;
      return;
    }
  } else if (to.connecting == 0 && now >= to.next_connect_ns) {
    if (peers_.connecting() < kMaxConnections) {
      peers_.connect(to, now);
    } else {
      waits_for_turn_.insert(to.rank);
    }
  }
}

void PostOffice::send_next(uint64_t now) {
  while (!waits_for_turn_.empty() && !closed_) {
    const int rank = *waits_for_turn_.begin();
    waits_for_turn_.erase(waits_for_turn_.begin());
    Peer* const one = peers_.find(rank);
    if (one == nullptr || one->letters.waiting().empty()) continue;
    send(*one, now);
    return;
  }
}

void PostOffice::take(const Frame& letter, ConnectionId from, Peer& sender, uint64_t now) {
  if (letter.code != static_cast<uint8_t>(LetterType::kProfile)) sender.used_ns = now;
  const bool answers = letter.code == static_cast<uint8_t>(LetterType::kAnswer);
  if (answers && sender.answers_due-- <= 0) {
    sender.answers_due = 0;
    return;
  }
  const bool counted = letter.number != kUncounted;
  const bool known = letter.code >= 1 && letter.code <= static_cast<uint8_t>(kLastLetterType);
  if (!counted || sender.letters.is_new(letter.number)) {
    if (known && !closed_) observer_.on_letter(sender.rank, letter);
    if (counted) sender.letters.received(letter.number);
  }
  if (counted) {
    (void)network_.send(from, Frame{.type = FrameType::kLetterTaken, .number = letter.number});
  }
}

void PostOffice::taken(Peer& receiver, uint32_t number, uint64_t now) {
  if (receiver.letters.taken(number)) receiver.used_ns = now;
}

}  // namespace hetcomm::liveness
