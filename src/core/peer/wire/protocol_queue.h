// ProtocolQueue holds small protocol messages that could not be sent immediately. They are sent in
// order, before queued user messages. All callers hold the baton.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/wire/permits.h"
#include "src/core/peer/wire/reason.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

// The longest message is a TrackClosedBody with its reason.
inline constexpr size_t kMaxProtocolBytes = 240;
static_assert(sizeof(TrackClosedBody) + kMaxReasonBytes <= kMaxProtocolBytes);

struct ProtocolMessage {
  WireHeader header;
  uint32_t size;
  // Number of the last message received before this one was queued. This message acknowledges no
  // later one.
  uint32_t received;
  Permit permit;  // held until the peer has acknowledged the message
  std::array<std::byte, kMaxProtocolBytes> body;
};

class ProtocolQueue {
 public:
  bool empty() const HETCOMM_UNDER_BATON { return messages_.empty(); }
  // Queues a message. May throw std::bad_alloc.
  void push(const WireHeader& header, const void* body, size_t size, uint32_t received,
            Permit permit) HETCOMM_UNDER_BATON {
    ProtocolMessage& message = messages_.emplace_back();
    message.header = header;
    message.size = static_cast<uint32_t>(size);
    message.received = received;
    message.permit = permit;
    if (size > 0) std::memcpy(message.body.data(), body, size);
  }
  bool holds(MessageKind kind) const HETCOMM_UNDER_BATON {
    return std::any_of(messages_.begin(), messages_.end(), [kind](const ProtocolMessage& message) {
      return message.header.kind == kind;
    });
  }
  // Calls |send(const ProtocolMessage&)| for each unsent message until it returns false. If all
  // were sent, empties the queue and returns true.
  template <typename Send>
  bool send_all(Send&& send) HETCOMM_UNDER_BATON {
    for (; sent_ < messages_.size(); ++sent_) {
      if (!send(messages_[sent_])) return false;
    }
    clear();
    return true;
  }
  void clear() HETCOMM_UNDER_BATON {
    messages_.clear();
    sent_ = 0;
  }

 private:
  std::vector<ProtocolMessage> messages_;
  size_t sent_ = 0;  // number of messages that were sent
};

}  // namespace hetcomm
