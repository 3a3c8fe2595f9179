// Delivery copies the bytes of a message that has arrived to the buffer of its receive, and
// completes the receive. Callers hold the baton.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/copy.h"
#include "src/base/span.h"
#include "src/core/memory/staging.h"
#include "src/core/peer/matching/completer.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/graveyard.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

class Delivery {
 public:
  Delivery(Completer& completer, Staging& staging, BlockPool& blocks, Graveyard& graveyard)
      : completer_(completer), staging_(staging), blocks_(blocks), graveyard_(graveyard) {}

  // Records in |receive| that it was matched with a message of |length| bytes from rank |source| of
  // the job.
  static void note_message(Operation& receive, int source, uint64_t tag, uint64_t length) {
    receive.outcome.source = source;
    receive.outcome.matched_tag = tag;
    receive.outcome.bytes_sent = length;
    receive.outcome.bytes_received = std::min(length, receive.length);
  }
  // Copies as much of |bytes|, the whole message, into |receive| as fits, and completes it. If
  // |receive| is in device memory, it completes later, when the copy has ended.
  void deliver(Operation& receive, int source, uint64_t tag, ConstByteSpan bytes,
               uint64_t length) HETCOMM_UNDER_BATON {
    note_message(receive, source, tag, length);
    if (!receive.buffers.on_host || !receive.buffers.extent_list.empty() || length > receive.length)
        [[unlikely]] {
      deliver_rest(receive, bytes);
      return;
    }
    if (!bytes.empty()) copy_bytes(receive.buffers.extent.iov_base, bytes.data(), bytes.size());
    completer_.complete(receive);
  }
  // Completes |receive|, whose host memory already holds as much of a |length|-byte message as
  // fits.
  void delivered(Operation& receive, int source, uint64_t tag, uint64_t length) HETCOMM_UNDER_BATON;
  // Completes |receive|, whose memory already contains all bytes that fit. The code is kTruncated
  // if the message is longer.
  void complete_delivered(Operation& receive) HETCOMM_UNDER_BATON;
  void complete_truncated(Operation& receive) HETCOMM_UNDER_BATON;

 private:
  class ToDevice;

  void deliver_rest(Operation& receive, ConstByteSpan bytes) HETCOMM_UNDER_BATON;

  Completer& completer_;
  Staging& staging_;
  BlockPool& blocks_;
  Graveyard& graveyard_;
};

}  // namespace hetcomm
