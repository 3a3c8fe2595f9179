// Letters are messages to one rank that must not get lost. They are numbered, kept until the
// receiver acknowledges them, and sent again over every new connection. The receiver drops
// duplicates.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "src/liveness/frame.h"

namespace hetcomm::liveness {

class Letters {
 public:
  // The number of letters kept. One more letter drops the oldest, which its author posts again as
  // long as it matters.
  static constexpr size_t kMaxWaiting = 64;

  const Frame& add(int sender, LetterType type, uint64_t value, std::string text) {
    // A later knock or profile supersedes an earlier one.
    if (type == LetterType::kKnock || type == LetterType::kProfile) drop(type);
    if (type == LetterType::kQuestion) {
      std::erase_if(waiting_, [&](const Frame& letter) {
        return letter.code == static_cast<uint8_t>(type) && letter.text == text;
      });
    }
    if (waiting_.size() == kMaxWaiting) waiting_.pop_front();
    waiting_.push_back({.type = FrameType::kLetter,
                        .code = static_cast<uint8_t>(type),
                        .subject = sender,
                        .number = ++numbers_.sent,
                        .value = value,
                        .text = std::move(text)});
    return waiting_.back();
  }
  void drop(LetterType type) {
    std::erase_if(waiting_, [type](const Frame& letter) {
      return letter.code == static_cast<uint8_t>(type);
    });
  }
  // Drops the letters up to |number|. Returns whether any of them was not a profile.
  bool taken(uint32_t number) {
    bool other = false;
    while (!waiting_.empty() && static_cast<int32_t>(waiting_.front().number - number) <= 0) {
      other = other || waiting_.front().code != static_cast<uint8_t>(LetterType::kProfile);
      waiting_.pop_front();
    }
    return other;
  }
  const std::deque<Frame>& waiting() const { return waiting_; }

  // Returns whether letter |number| has not arrived before.
  bool is_new(uint32_t number) const {
    return static_cast<int32_t>(number - numbers_.received) > 0;
  }
  void received(uint32_t number) { numbers_.received = number; }

  // The last sequence numbers of both directions. go_on_from() restores them.
  struct Numbers {
    uint32_t sent = 0;
    uint32_t received = 0;
  };
  Numbers numbers() const { return numbers_; }
  void go_on_from(Numbers numbers) { numbers_ = numbers; }

 private:
  std::deque<Frame> waiting_;
  Numbers numbers_;
};

}  // namespace hetcomm::liveness
