// Credit is the number of bytes that a rank can send before its peer has matched earlier ones. All
// counts are modulo 2^32, so only their differences have a meaning. All callers hold the baton.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"

namespace hetcomm {

// SendCredit counts the bytes that the peer lets this rank send.
class SendCredit {
 public:
  // Allows |limit| bytes. All counts begin at |first|.
  SendCredit(uint32_t limit, uint32_t first) : limit_(limit), used_(first), returned_(first) {}

  uint32_t available() const HETCOMM_UNDER_BATON { return limit_ - (used_ - returned_); }
  void use(uint64_t bytes) HETCOMM_UNDER_BATON { used_ += static_cast<uint32_t>(bytes); }
  // Records that the peer has returned |returned| bytes so far. Returns whether that is more than
  // before. A report that arrives late over a slower rail has a lower count.
  bool learn(uint32_t returned) HETCOMM_UNDER_BATON {
    if (static_cast<int32_t>(returned - returned_) <= 0) return false;
    returned_ = returned;
    return true;
  }

 private:
  const uint32_t limit_;
  uint32_t used_;
  uint32_t returned_;  // returned by the peer so far
};

// ReceiveCredit counts the bytes that this rank lets the peer send.
class ReceiveCredit {
 public:
  ReceiveCredit(uint32_t granted, uint32_t first)
      : granted_(granted), taken_(first), returned_(first), reported_(first) {}

  uint32_t granted() const HETCOMM_UNDER_BATON { return granted_; }
  // Counts |bytes| that the peer has sent. Returns false if the peer has now exceeded its credit.
  [[nodiscard]] bool take(uint64_t bytes) HETCOMM_UNDER_BATON {
    taken_ += static_cast<uint32_t>(bytes);
    return taken_ - returned_ <= granted_;
  }
  // Returns |bytes| of credit to the peer. The result is true if so much of it is unreported that
  // the peer should be notified.
  bool give_back(uint64_t bytes) HETCOMM_UNDER_BATON {
    returned_ += static_cast<uint32_t>(bytes);
    return returned_ - reported_ >= granted_ / 4;
  }
  uint32_t returned() const HETCOMM_UNDER_BATON { return returned_; }
  bool is_reported() const HETCOMM_UNDER_BATON { return returned_ == reported_; }
  // Records that a message that carries returned() was sent.
  void report() HETCOMM_UNDER_BATON { reported_ = returned_; }

 private:
  const uint32_t granted_;
  uint32_t taken_;     // sent by the peer so far
  uint32_t returned_;  // returned to the peer so far
  uint32_t reported_;  // returned() as last reported to the peer
};

}  // namespace hetcomm
