// Reasons: what ranks tell each other of failures. The rank where a failure begins is its origin,
// and its number, the status and the text there stand in the text on every rank that ends for it:
// "rank 2: DEVICE_LOST: device 1, copy to the host: ...".
//
// PEER_LOST and MISMATCH concern all ranks alike, and stay what they are. Everything else concerns
// the origin: the others end with ABORTED. ABORTED itself was told by another rank, whose reason
// its text is, and goes on as it is.
#pragma once

#include <cstddef>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

// Longer texts are cut.
inline constexpr size_t kMaxReasonBytes = 192;

// The status by which |rank|, this one, tells the other ranks of |why|. Works without memory.
Status reason_for_others(int rank, const Status& why);

// The status that |rank| has told: |code|, which is not kOk and may be unknown, and a text from the
// wire. Works without memory.
Status told_by(int rank, Code code, ConstByteSpan text);

// Operations end so with |rank| when it takes no part in them any more, though it has not failed.
// Works without memory.
Status left_by(int rank);

// The reason in a kStop, kWithdraw or kTrackClosed. It is valid as long as the message.
class PeerReason {
 public:
  // |text|: the bytes of the message that are the reason.
  PeerReason(int peer, const WireHeader& header, ConstByteSpan text);

  // The peer's own status.
  Code code() const { return code_; }
  // The communicator was aborted. Everybody hears of that by another way.
  bool is_abort() const { return code_ == Code::kAborted && text_.empty(); }
  // The owner of a memory refuses an access to it: the status is the answer.
  bool is_answer() const;
  // How the operation here ends.
  Status status() const { return told_by(peer_, code_, text_); }

 private:
  int peer_;
  Code code_;
  ConstByteSpan text_;
};

}  // namespace hetcomm
