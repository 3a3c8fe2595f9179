#include "src/core/collectives/call_note.h"

#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "src/base/text.h"

namespace hetcomm::collectives {
namespace {

// The encoded header of a note. |why| follows it.
struct Head {
  uint64_t team;
  uint64_t sequence;
  uint32_t refusals;
  uint32_t zero;  // padding, so that no uninitialized memory is sent
  uint64_t history;
  Call call;
};
static_assert(std::is_trivially_copyable_v<Head> && sizeof(Head) == 32 + sizeof(Call));

}  // namespace

std::vector<std::byte> CallNote::encode() const {
  const Head head{team, sequence, refusals, 0, history, call};
  const ConstByteSpan first = std::as_bytes(std::span(&head, 1));
  const ConstByteSpan rest = std::as_bytes(std::span(why));
  std::vector<std::byte> bytes(first.begin(), first.end());
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

std::optional<CallNote> CallNote::decode(ConstByteSpan bytes) {
  Head head;
  if (bytes.size() < sizeof(head) || bytes.size() > sizeof(head) + kMaxWhyBytes)
    return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (static_cast<size_t>(head.call.kind) >= kKinds) return std::nullopt;
  if (head.refusals == 0 && bytes.size() != sizeof(head)) return std::nullopt;
  const auto* why = reinterpret_cast<const char*>(bytes.data() + sizeof(head));
  return CallNote{head.team,     head.sequence,
                  head.refusals, head.history,
                  head.call,     printable(std::string_view(why, bytes.size() - sizeof(head)))};
}

}  // namespace hetcomm::collectives
