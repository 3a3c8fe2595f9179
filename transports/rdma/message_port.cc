#include "transports/rdma/message_port.h"

#include <array>

namespace hetcomm::rdma {

bool MessagePort::pay_credits() {
  std::array<std::byte, kCreditsHeadBytes> head;
  const bool is_inline = pair_.max_inline() >= head.size();
  std::byte* const bytes = is_inline ? head.data() : pair_.slot();
  encode_credits(bytes, credits_.take_owed());
  return post(bytes, head.size(), is_inline);
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
