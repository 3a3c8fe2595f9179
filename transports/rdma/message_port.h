// MessagePort sends the messages of one connection, and reads the heads of incoming messages. It
// also handles the credits in the heads. A head is short, since it is encoded relative to the
// previous one (decode_head).
//
// send() does not check whether a message can be sent, so the caller calls can_send() first. A
// posted message is sent immediately, together with everything added to the queue pair before it.
// send() is forced inline, since the overhead of a call is noticeable in short messages.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "src/base/span.h"
#include "transports/rdma/credits.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class MessagePort {
 public:
  // |peer_slot_bytes| is the size of the peer's receives, and |slot_bytes| the size of this side's.
  // |pair| may be destroyed before this object. No function may be called after that.
  MessagePort(QueuePair& pair, Credits& credits, uint32_t peer_slot_bytes, uint32_t slot_bytes)
      : pair_(pair),
        credits_(credits),
        peer_slot_bytes_(peer_slot_bytes),
        slot_bytes_(slot_bytes) {}

  // Returns whether the payload is short enough for a message on this connection.
  bool fits(uint64_t payload_bytes) const {
    return payload_bytes + kMaxHeadBytes <= peer_slot_bytes_;
  }
  // Returns whether the credits, the send queue and the send slots allow a message now.
  bool can_send(uint64_t payload_bytes) const {
    if (!credits_.allow_message() || pair_.room() < 4) return false;
    return payload_bytes + kMaxHeadBytes <= pair_.max_inline() || pair_.free_slots() > 0;
  }
  // Sends a message. Returns false if the device refuses it.
  [[nodiscard, gnu::always_inline]] bool send(const MessageHeader& header,
                                              const ExtentView& payload) {
    std::array<std::byte, QueuePair::kMaxInline> small;
    const size_t head = encode_head(small.data(), credits_.take_owed(), header, last_sent_);
    const uint64_t size = head + payload.length;
    const bool is_inline = size <= pair_.max_inline();
    std::byte* const bytes = is_inline ? small.data() : pair_.slot();
    if (!is_inline) std::memcpy(bytes, small.data(), head);
    gather(payload.extents, payload.offset, {bytes + head, payload.length});
    return post(bytes, size, is_inline);
  }
  // Returns whether a message that only returns credits is due and the send queue has space for it.
  bool is_payment_due() const { return credits_.is_payment_due() && pair_.room() >= 2; }
  bool can_pay() const { return pair_.max_inline() > 0 || pair_.free_slots() > 0; }
  // Sends a message that only returns credits. Returns false if the device refuses it.
  [[nodiscard]] bool pay_credits();

  // Reads the head of an incoming message of |size| bytes, and adds the credits in it. Returns
  // nullopt and sets |*error| if the peer violates the protocol.
  std::optional<Head> receive(const std::byte* bytes, size_t size, const char** error);
  // Returns the header of the last message that receive() read.
  const MessageHeader& last_received() const { return last_received_; }

 private:
  [[gnu::always_inline]] bool post(std::byte* bytes, size_t size, bool is_inline) {
    const WorkRequest work{.opcode = IBV_WR_SEND,
                           .flags = is_inline ? unsigned{IBV_SEND_INLINE} : 0u};
    const ibv_sge piece{.addr = reinterpret_cast<uint64_t>(bytes),
                        .length = static_cast<uint32_t>(size),
                        .lkey = pair_.slot_key()};
    credits_.spend();
    pair_.add(work, {&piece, 1}, {.slot = !is_inline}, false);
    // Flushes now, since the device copies inline data only when the request is posted, and |bytes|
    // may be a local variable of the caller.
    return pair_.flush();
  }

  QueuePair& pair_;
  Credits& credits_;
  const uint32_t peer_slot_bytes_;
  const uint32_t slot_bytes_;
  MessageHeader last_sent_{};
  MessageHeader last_received_{};
};

}  // namespace hetcomm::rdma
