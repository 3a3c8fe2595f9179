// Reasons: what ranks tell each other about failures. The rank where a failure begins is its
// origin. On every rank that ends because of it, the text contains the origin's number, status and
// text: "rank 2: DEVICE_LOST: device 1, copy to the host: ...".
//
// PEER_LOST and MISMATCH concern all ranks alike, and are passed on unchanged. Every other status
// concerns the origin only: the other ranks end with ABORTED. An ABORTED was itself told by another
// rank, whose reason is its text, and is passed on unchanged.
#pragma once

#include <cstddef>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

// Longer texts are cut.
inline constexpr size_t kMaxReasonBytes = 192;

// The status with which |rank|, this one, tells the other ranks of |why|. Works without memory.
Status reason_for_others(int rank, const Status& why);

// The status that |rank| has sent: |code|, which is not kOk and may be unknown, and a text from the
// wire. Works without memory.
Status told_by(int rank, Code code, ConstByteSpan text);

// The status of operations with |rank| once it no longer takes part in them, though it has not
// failed. Works without memory.
Status left_by(int rank);

// The reason in a kStop, kWithdraw or kTrackClosed. It is valid while the message is.
class PeerReason {
 public:
  // |text|: the bytes of the message that hold the reason.
  PeerReason(int peer, const WireHeader& header, ConstByteSpan text);

  // The peer's own status.
  Code code() const { return code_; }
  // The communicator was aborted. Everyone hears of that another way.
  bool is_abort() const { return code_ == Code::kAborted && text_.empty(); }
  // The owner of a memory refuses an access to it: the status is the answer to the access.
  bool is_answer() const;
  // The status with which the operation ends on this rank.
  Status status() const { return told_by(peer_, code_, text_); }

 private:
  int peer_;
  Code code_;
  ConstByteSpan text_;
};

}  // namespace hetcomm
