// The receives that the two sides of a connection have posted for each other.
//
// Each message, and each fragment of a put, uses up one receive. Each side counts the messages that
// it may still send, and its debt: receives that it has posted again and not reported to the peer.
// The head of each message pays the debt. When half is owed and there is nothing to send, a
// separate message pays it. The last credit is kept for that message, which brings the peer at
// least half of its credits, so two sides cannot starve each other. Puts leave a quarter to
// messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace hetcomm::rdma {

class Credits {
 public:
  // The peer has posted |granted| receives for this side, and this side |owned| for the peer.
  Credits(uint32_t granted, uint32_t owned)
      : granted_(granted), owned_(owned), sendable_(granted) {}

  bool allow_message() const { return sendable_ >= 2; }
  bool allow_put() const { return sendable_ > granted_ / 4; }
  void spend() { --sendable_; }

  // The peer gives |count| back. False: these are more than it can owe.
  bool regain(uint32_t count) {
    if (count > granted_ - std::min(granted_, sendable_)) return false;
    sendable_ += count;
    return true;
  }

  // The peer has used a receive up.
  void note_used() { ++used_; }
  bool has_used() const { return used_ > 0; }
  // The receives that were used up are posted again.
  void note_posted() { owed_ += std::exchange(used_, 0); }
  // The credits that the head of the next message pays back.
  uint16_t take_owed() { return static_cast<uint16_t>(std::exchange(owed_, 0)); }
  // True: a separate message should pay, and may be sent.
  bool is_payment_due() const { return owed_ >= owned_ / 2 && sendable_ >= 1; }

 private:
  const uint32_t granted_;
  const uint32_t owned_;
  uint32_t sendable_;
  uint32_t used_ = 0;  // and not posted again yet
  uint32_t owed_ = 0;
};

}  // namespace hetcomm::rdma
