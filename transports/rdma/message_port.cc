#include "transports/rdma/message_port.h"

#include <array>
#include <cstring>

namespace hetcomm::rdma {

bool MessagePort::send(const MessageHeader& header, const SegmentView& payload) {
  std::array<std::byte, QueuePair::kMaxInline> small;
  const size_t head = encode_head(small.data(), credits_.take_owed(), header, last_sent_);
  const uint64_t size = head + payload.length;
  const bool is_inline = size <= pair_.max_inline();
  std::byte* const place = is_inline ? small.data() : pair_.slot();
  if (!is_inline) std::memcpy(place, small.data(), head);
  gather(payload.segments, payload.offset, {place + head, payload.length});
  return post(place, size, is_inline);
}

bool MessagePort::pay_credits() {
  std::array<std::byte, kCreditsHeadBytes> head;
  const bool is_inline = pair_.max_inline() >= head.size();
  std::byte* const place = is_inline ? head.data() : pair_.slot();
  encode_credits(place, credits_.take_owed());
  return post(place, head.size(), is_inline);
}

bool MessagePort::post(std::byte* place, size_t size, bool is_inline) {
  const WorkRequest work{.opcode = IBV_WR_SEND,
                         .flags = is_inline ? unsigned{IBV_SEND_INLINE} : 0u};
  const ibv_sge piece{.addr = reinterpret_cast<uint64_t>(place),
                      .length = static_cast<uint32_t>(size),
                      .lkey = pair_.slot_key()};
  credits_.spend();
  pair_.add(work, {&piece, 1}, {.slot = !is_inline}, false);
  // Now, since the device copies inline data only when it takes the request.
  return pair_.flush();
}

std::optional<Head> MessagePort::receive(const std::byte* bytes, size_t size, const char** error) {
  const std::optional<Head> head = decode_head(bytes, size, last_received_);
  if (!head || size > slot_bytes_) {
    *error = "protocol error: malformed message";
    return std::nullopt;
  }
  if (!credits_.regain(head->credits)) {
    *error = "protocol error: more credits than there are";
    return std::nullopt;
  }
  return head;
}

}  // namespace hetcomm::rdma
