// Ranks tell each other the reasons why operations end. The rank where a failure begins is its
// origin. Other ranks end their operations with a text that contains the origin's number, status
// and text: "rank 2: DEVICE_LOST: device 1, copy to the host: ...".
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

// Longer texts are cut.
inline constexpr size_t kMaxReasonBytes = 192;

// Returns the status that this rank, |rank|, sends to other ranks when it ends with |why|. Works
// even when memory has run out.
Status reason_for_others(int rank, const Status& why);

// Returns the status for a reason that |rank| has sent. |code| is not kOk and may be unknown.
// |text| comes from the wire. Works even when memory has run out.
Status told_by(int rank, Code code, ConstByteSpan text);

// Returns the status for operations with |rank| after it has left without a failure. Works even
// when memory has run out.
Status left_by(int rank);

// The reason in a kStop, kWithdraw or kTrackClosed. It is valid as long as the message, to whose
// bytes it refers.
class PeerReason {
 public:
  // |text|: the bytes of the message that hold the reason.
  PeerReason(int peer, const WireHeader& header, ConstByteSpan text);

  // Returns the code that the peer has sent, or kAborted if that code means no failure.
  Code code() const { return code_; }
  // Returns whether the reason is an abort of the communicator. All ranks also learn of an abort
  // separately.
  bool is_abort() const { return code_ == Code::kAborted && text_.empty(); }
  // Returns whether the code is one with which an owner refuses an access to its memory.
  bool is_answer() const;
  // Returns the status with which the operation ends on this rank.
  Status status() const { return told_by(peer_, code_, text_); }

 private:
  int peer_;
  Code code_;
  ConstByteSpan text_;
};

}  // namespace hetcomm
