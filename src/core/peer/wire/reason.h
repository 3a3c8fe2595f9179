// Reasons: what ranks tell each other about failures. The rank where a failure begins is its
// origin. On every rank that ends because of it, the text contains the origin's number, status and
// text: "rank 2: DEVICE_LOST: device 1, copy to the host: ...".
//
// PEER_LOST and MISMATCH concern all ranks alike, and are passed on unchanged. Every other status
// concerns only the origin: the other ranks end with ABORTED. An ABORTED status has already come
// from another rank. Its text is that rank's reason, and it is passed on unchanged.
#pragma once

#include <cstddef>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

// Longer texts are cut.
inline constexpr size_t kMaxReasonBytes = 192;

// Returns the status with which |rank|, this one, tells the other ranks |why|. Works without
// memory.
Status reason_for_others(int rank, const Status& why);

// Returns the status that |rank| has sent: |code|, which is not kOk and may be unknown, and a text
// from the wire. Works without memory.
Status told_by(int rank, Code code, ConstByteSpan text);

// Returns the status for operations with |rank| once it no longer takes part in them, though it has
// not failed. Works without memory.
Status left_by(int rank);

// The reason in a kStop, kWithdraw or kTrackClosed. It is valid as long as the message.
class PeerReason {
 public:
  // |text|: the bytes of the message that hold the reason.
  PeerReason(int peer, const WireHeader& header, ConstByteSpan text);

  // Returns the peer's own status.
  Code code() const { return code_; }
  // Returns whether the communicator was aborted. All ranks learn of an abort separately.
  bool is_abort() const { return code_ == Code::kAborted && text_.empty(); }
  // Returns whether an owner refuses an access to its memory. The status then answers the access.
  bool is_answer() const;
  // Returns the status with which the operation ends on this rank.
  Status status() const { return told_by(peer_, code_, text_); }

 private:
  int peer_;
  Code code_;
  ConstByteSpan text_;
};

}  // namespace hetcomm
