// Credits counts the receives that the two sides of a connection have posted for each other's
// messages.
//
// Each message, and each fragment of a put to exposed memory, consumes one receive. Puts to regions
// consume none. Each side counts the messages that it may still send, and the credits that it owes:
// receives that it has reposted but not yet reported to the peer. The head of each message reports
// the owed credits. If at least half of the receives are owed, a separate message reports them. The
// last credit is reserved for that message. It returns at least half of the peer's credits, so two
// sides cannot starve each other. Puts leave a quarter of the credits for messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace hetcomm::rdma {

class Credits {
 public:
  // The peer has posted |granted| receives for this side; this side has posted |owned| for the
  // peer.
  Credits(uint32_t granted, uint32_t owned)
      : granted_(granted), owned_(owned), sendable_(granted) {}

  bool allow_message() const { return sendable_ >= 2; }
  bool allow_put() const { return sendable_ > granted_ / 4; }
  void spend() { --sendable_; }

  // Adds |count| credits that the peer has returned. Returns false if the peer cannot owe that
  // many.
  bool regain(uint32_t count) {
    if (count > granted_ - std::min(granted_, sendable_)) return false;
    sendable_ += count;
    return true;
  }

  // Records that the peer has consumed a receive.
  void note_used() { ++used_; }
  bool has_used() const { return used_ > 0; }
  // Records that the consumed receives have been reposted.
  void note_posted() { owed_ += std::exchange(used_, 0); }
  // Returns the owed credits, which the head of the next message must report, and resets them to 0.
  uint16_t take_owed() { return static_cast<uint16_t>(std::exchange(owed_, 0)); }
  // Returns whether a separate message should report the owed credits and a credit is left for it.
  bool is_payment_due() const { return owed_ >= owned_ / 2 && sendable_ >= 1; }

 private:
  const uint32_t granted_;
  const uint32_t owned_;
  uint32_t sendable_;  // credits left for this side's messages
  uint32_t used_ = 0;  // receives consumed but not yet reposted
  uint32_t owed_ = 0;  // receives reposted but not yet reported to the peer
};

}  // namespace hetcomm::rdma
