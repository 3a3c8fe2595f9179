// BulkSender checks the puts and gets of one connection, cuts them into fragments, and posts the
// fragments to the device. The number of posted fragments is limited by the send queue, the peer's
// credits and the bytes in flight.
//
// The device accesses user memory directly, with two exceptions. Small bulks are copied through
// send slots, since copying is cheaper than registering. If memory cannot be registered, the rest
// of the bulk is copied. Device memory is never copied.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "transports/rdma/bulk_queue.h"
#include "transports/rdma/credits.h"
#include "transports/rdma/port.h"
#include "transports/rdma/queue_pair.h"
#include "transports/rdma/wire.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

class BulkSender {
 public:
  // Each of the peer's receives has |peer_slot_bytes|. |pair| may be destroyed before this object.
  // After that, only drop_all() and calls that merely inspect the queue are allowed.
  BulkSender(Port& port, QueuePair& pair, Credits& credits, uint32_t peer_slot_bytes);

  // Accepts a put or get, and posts as much of it as the limits allow. The caller flushes the queue
  // pair.
  Code start(Bulk& bulk, bool get);
  // Adds fragments of queued transfers to the queue pair until a limit is reached or none is left.
  // The caller flushes the queue pair.
  void pump() {
    if (queue_.front() != nullptr) post_queued();
  }
  // Returns whether pump() would post something.
  bool can_pump() const {
    const Transfer* transfer = queue_.front();
    return transfer != nullptr && can_post(transfer->key.kind, transfer->copied);
  }
  // Records that all work posted up to |id| has completed.
  void retire(uint64_t id) {
    pair_.retire(id, [this](const SendRecord& record) {
      if (record.transfer == nullptr) return;
      in_flight_bytes_ -= record.length;
      some_passed_ = true;
      copy_out(record);
      queue_.fragment_completed(*record.transfer);
    });
  }

  bool has_completed() const { return queue_.has_completed(); }
  std::pair<Bulk*, Code> pop_completed() { return queue_.pop_completed(); }
  // Cancels |bulk|. Returns false without effect if fragments in flight use its memory or write to
  // a region of the peer.
  bool cancel(Bulk& bulk) { return queue_.cancel(bulk); }
  // Drops all transfers. Call after the queue pair is destroyed.
  void drop_all() { queue_.drop_all(); }
  bool idle() const { return queue_.idle(); }
  // Returns whether any fragment has completed.
  bool some_passed() const { return some_passed_; }

 private:
  // Returns whether a fragment for a key of |kind| can be posted now. |copied| is true if the
  // fragment goes through a send slot.
  bool can_post(KeyKind kind, bool copied) const;
  bool put_at_once(Bulk& bulk, const Key& key);
  void post_queued();
  void post_fragment(Transfer& transfer);
  size_t add_fragment_head(const Transfer& transfer);
  void post_copied(Transfer& transfer, uint64_t length);
  void post_direct(Transfer& transfer, uint64_t length);
  void post(Transfer& transfer, uint64_t length, unsigned flags, std::span<const ibv_sge> pieces,
            bool slot);
  void copy_out(const SendRecord& record);

  Port& port_;
  const Settings& settings_;
  QueuePair& pair_;
  Credits& credits_;
  const uint32_t peer_slot_bytes_;
  uint64_t in_flight_bytes_ = 0;
  bool some_passed_ = false;
  BulkQueue queue_;
};

}  // namespace hetcomm::rdma
