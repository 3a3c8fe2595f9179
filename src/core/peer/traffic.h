// Traffic handles everything that this rank and one peer exchange while they are connected. It
// starts pending operations, handles arriving messages, and ends operations in flight. All callers
// hold the baton.
#pragma once

#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/access/remote_access.h"
#include "src/core/peer/association.h"
#include "src/core/peer/transfer/message_receiver.h"
#include "src/core/peer/transfer/message_sender.h"
#include "src/core/peer/transfer/reshard_notes.h"
#include "src/core/peer/transfer/tracks.h"
#include "src/core/peer/transfer/transfer.h"

namespace hetcomm {

class Traffic {
 public:
  Traffic(Association& association, const PairServices& services)
      : association_(association),
        completer_(services.data.completer),
        transfers_(association, services.data),
        sender_(association, transfers_),
        receiver_(association, transfers_, services.connections.listener),
        access_(association, transfers_, receiver_, services.access),
        tracks_(association, transfers_, services.turns, services.links),
        reshard_notes_(association, services.data.channels) {}
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  TransferTable& transfers() HETCOMM_UNDER_BATON { return transfers_; }
  MessageSender& sender() HETCOMM_UNDER_BATON { return sender_; }
  const MessageSender& sender() const HETCOMM_UNDER_BATON { return sender_; }
  MessageReceiver& receiver() HETCOMM_UNDER_BATON { return receiver_; }
  RemoteAccess& access() HETCOMM_UNDER_BATON { return access_; }
  Tracks& tracks() HETCOMM_UNDER_BATON { return tracks_; }
  const Tracks& tracks() const HETCOMM_UNDER_BATON { return tracks_; }
  ReshardNotes& reshard_notes() HETCOMM_UNDER_BATON { return reshard_notes_; }

  // --- operations ---
  // Starts |operation|, which is pending and in no list, or queues it if it must be tried again.
  // Returns false, and does nothing, if the outbox is not empty or the association cannot send.
  bool submit(Operation& operation) HETCOMM_UNDER_BATON {
    if (!association_.outbox().empty() || !association_.may_send()) [[unlikely]]
      return false;
    if (!start_or_end(operation)) association_.enqueue(operation);
    return true;
  }
  // Sends as many pending messages and operations as the connection accepts.
  void pump() HETCOMM_UNDER_BATON;
  // Completes an operation of this pair with |code|, in any phase. If its data has arrived and is
  // being copied, the operation completes with the copy instead. Works even when memory has run
  // out.
  void end(Operation& operation, Code code, std::string text) HETCOMM_UNDER_BATON;

  // --- arriving messages ---
  // Handles a message that has arrived on |rail|, which is open.
  void receive(Rail& rail, const MessageHeader& raw, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void on_put(uint64_t cookie, uint64_t length) HETCOMM_UNDER_BATON {
    if (PutTarget* target = transfers_.targets().find(cookie)) target->on_arrived(length);
  }
  // Handle the reports of |rail|'s endpoint (see EndpointHandler).
  void on_mapped(Rail& rail, const RemoteKey& key,
                 const Result<MappedRegion>& mapped) HETCOMM_UNDER_BATON;
  void on_unmap(Rail& rail, const RemoteKey& key) HETCOMM_UNDER_BATON;
  // Resumes tracks and pending operations, then sends the credit and acknowledgements that are due.
  // Requires that the association is ready.
  void send_update() HETCOMM_UNDER_BATON;
  // Requests an acknowledgement if the peer has not acknowledged all messages. Does nothing if no
  // message can be sent now.
  void ask_for_acknowledgement() HETCOMM_UNDER_BATON;

  // --- connections ---
  // Applies grants that arrived before the number of their connection, which has now opened.
  void take_early_grants() HETCOMM_UNDER_BATON;
  // Resumes tracks, transfers and direct accesses after the set of connections has changed.
  void restart() HETCOMM_UNDER_BATON;
  // Stops everything in flight on |rail|, which has failed or is being closed.
  void rail_failed(const Rail& rail, bool peer_has_to_know) HETCOMM_UNDER_BATON;
  // Returns whether this rank has, or will have, anything in flight on |rail|.
  bool uses(const Rail& rail) HETCOMM_UNDER_BATON;

  // --- as a whole ---
  // Returns whether all accepted operations were sent, and all messages that can be lost were
  // acknowledged.
  bool flushed() const HETCOMM_UNDER_BATON;
  // Returns whether this rank has nothing queued or in flight.
  bool is_idle() const HETCOMM_UNDER_BATON;
  // Returns whether every message that has begun to arrive is complete, and no grant waits for its
  // connection.
  bool has_all_received() const HETCOMM_UNDER_BATON {
    return receiver_.is_whole() && early_grants_.empty();
  }
  // Fails every operation that is queued or in flight, except receives that are posted in match
  // tables.
  void fail_everything(const Status& why) HETCOMM_UNDER_BATON;

 private:
  bool start(Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.kind != OperationKind::kSend) [[unlikely]]
      return access_.start(operation);
    return sender_.start(operation);
  }
  // Starts |operation|, which is in no list. Returns false if it must be tried again. Fails it if
  // memory runs out.
  bool start_or_end(Operation& operation) HETCOMM_UNDER_BATON {
    try {
      return start(operation);
    } catch (const std::bad_alloc&) {
      association_.end_started(operation);
      return true;
    }
  }
  bool deal_with(const Rail& rail, const WireHeader& header,
                 ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void dispatch(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_grant(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void take(const Grant& grant) HETCOMM_UNDER_BATON;
  SendTransfer* find_send(uint64_t id) HETCOMM_UNDER_BATON {
    return is_run_id(id) ? tracks_.find_send(id) : transfers_.sends().find(id);
  }
  void receive_stop(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_done(uint64_t id) HETCOMM_UNDER_BATON;
  void receive_offer(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_taken(const WireHeader& header) HETCOMM_UNDER_BATON;
  void receive_push(uint64_t id) HETCOMM_UNDER_BATON;
  void receive_pull_pause(const WireHeader& header) HETCOMM_UNDER_BATON;

  Association& association_;
  Completer& completer_;
  TransferTable transfers_;
  MessageSender sender_;
  MessageReceiver receiver_;
  RemoteAccess access_;
  Tracks tracks_;
  ReshardNotes reshard_notes_;
  std::vector<Grant> early_grants_;  // grants for connections whose number has not arrived
};

}  // namespace hetcomm
