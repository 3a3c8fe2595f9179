#include "src/core/peer/wire/reason.h"

#include <algorithm>
#include <string>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm {
namespace {

bool is_common(Code code) { return code == Code::kPeerLost || code == Code::kMismatch; }

}  // namespace

Status reason_for_others(int rank, const Status& why) {
  if (is_common(why.code()) || why.code() == Code::kAborted) return why;
  return status_or_code(Code::kAborted, [&] {
    return fmt::format("rank {}: {}: {}", rank, code_name(why.code()), why.text());
  });
}

Status told_by(int rank, Code code, ConstByteSpan text) {
  const Code own = is_common(code) ? code : Code::kAborted;
  return status_or_code(own, [&] {
    if (text.empty()) return fmt::format("rank {}: {}", rank, code_name(code));
    return printable({reinterpret_cast<const char*>(text.data()), text.size()});
  });
}

Status left_by(int rank) {
  return status_or_code(Code::kPeerLost, [&] {
    return fmt::format(
        "rank {} left: its process ended, or it destroyed its communicator; read its log", rank);
  });
}

PeerReason::PeerReason(int peer, const WireHeader& header, ConstByteSpan text)
    : peer_(peer),
      code_(static_cast<Code>(static_cast<int32_t>(header.value))),
      text_(text.first(std::min(text.size(), kMaxReasonBytes))) {
  // A reason is always a failure, so a code that means success or pending is replaced.
  if (static_cast<int32_t>(code_) >= 0) code_ = Code::kAborted;
}

bool PeerReason::is_answer() const {
  switch (code_) {
    case Code::kInvalidArgument:
    case Code::kOutOfMemory:
    case Code::kOutOfRange:
    case Code::kPermissionDenied:
    case Code::kStaleHandle:
    case Code::kUnsupported:
      return true;
    default:
      return is_abort();
  }
}

}  // namespace hetcomm
