// ProtocolQueue: small protocol messages that wait for room. They leave in order, before queued
// messages of the user. Under the baton.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/core/peer/places.h"
#include "src/core/peer/wire.h"

namespace hetcomm {

struct ProtocolMessage {
  MessageKind kind;
  uint64_t tag;
  uint64_t value;
  uint32_t size;
  std::array<std::byte, 64> body;
  uint32_t received;  // last message received when it was queued: what it may acknowledge
  Place place;        // what RemoteAccess counts until the peer has acknowledged the message
};

class ProtocolQueue {
 public:
  bool empty() const { return messages_.empty(); }
  void push(const ProtocolMessage& message) { messages_.push_back(message); }
  bool holds(MessageKind kind) const {
    return std::any_of(messages_.begin(), messages_.end(),
                       [kind](const ProtocolMessage& message) { return message.kind == kind; });
  }
  // Calls |send(const ProtocolMessage&)| for each, until it returns false. True: none is left.
  template <typename Send>
  bool send_all(Send&& send) {
    for (; sent_ < messages_.size(); ++sent_) {
      if (!send(messages_[sent_])) return false;
    }
    clear();
    return true;
  }
  void clear() {
    messages_.clear();
    sent_ = 0;
  }

 private:
  std::vector<ProtocolMessage> messages_;
  size_t sent_ = 0;  // those that have left
};

}  // namespace hetcomm
