// Ranks report to each other why operations fail. The rank on which a failure occurs first is its
// origin. Other ranks fail their operations with a text that contains the origin's rank, status and
// text: "rank 2: DEVICE_LOST: device 1, copy to the host: ...".
//
// PEER_LOST and MISMATCH concern all ranks alike, and are passed on unchanged. Every other status
// concerns only the origin, and the other ranks get ABORTED instead. An ABORTED status has already
// come from another rank. Its text is that rank's reason, and it is passed on unchanged.
#pragma once

#include <cstddef>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

// Longer texts are truncated.
inline constexpr size_t kMaxReasonBytes = 192;

// Returns the status that this rank, |rank|, sends to other ranks when something fails with |why|.
// Works even when memory has run out.
Status reason_for_others(int rank, const Status& why);

// Returns the status for a reason that |rank| has sent. |code| is not kOk and may be unknown.
// |text| comes from the wire. Works even when memory has run out.
Status told_by(int rank, Code code, ConstByteSpan text);

// Returns the status for operations with |rank| after it has left the job without a failure. Works
// even when memory has run out.
Status left_by(int rank);

// The reason in a kStop, kWithdraw or kTrackClosed. It refers to the bytes of the message, so it is
// valid only as long as the message.
class PeerReason {
 public:
  // |text|: the bytes of the message that hold the reason.
  PeerReason(int peer, const WireHeader& header, ConstByteSpan text);

  // Returns the code that the peer has sent, or kAborted if that code means no failure.
  Code code() const { return code_; }
  // Returns whether the reason is an abort of the communicator. All ranks are also notified of an
  // abort separately.
  bool is_abort() const { return code_ == Code::kAborted && text_.empty(); }
  // Returns whether the code is one with which an owner refuses an access to its memory, or the
  // reason is an abort.
  bool is_answer() const;
  // Returns the status with which the operation fails on this rank.
  Status status() const { return told_by(peer_, code_, text_); }

 private:
  int peer_;
  Code code_;
  ConstByteSpan text_;
};

}  // namespace hetcomm
