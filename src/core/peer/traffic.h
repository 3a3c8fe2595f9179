// Traffic: everything that this rank and one peer exchange while they have a connection. It starts
// what waits, deals with what arrives, and ends what is under way. Under the baton.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/core/peer/association.h"
#include "src/core/peer/message_receiver.h"
#include "src/core/peer/message_sender.h"
#include "src/core/peer/remote_access.h"
#include "src/core/peer/transfer.h"

namespace hetcomm {

class Traffic {
 public:
  explicit Traffic(Association& association)
      : association_(association),
        transfers_(association),
        sender_(association, transfers_),
        receiver_(association, transfers_),
        access_(association, transfers_, receiver_) {}
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  TransferTable& transfers() { return transfers_; }
  MessageSender& sender() { return sender_; }
  const MessageSender& sender() const { return sender_; }
  MessageReceiver& receiver() { return receiver_; }
  RemoteAccess& access() { return access_; }

  // --- operations ---
  // Takes an operation, which is pending and in no list, if the association may send and nothing
  // waits before it.
  bool submit(Operation& operation) {
    if (!association_.outbox().empty() || !association_.may_send()) [[unlikely]]
      return false;
    if (!start_or_end(operation)) association_.enqueue(operation);
    return true;
  }
  // Sends what waits, as far as there is room.
  void pump();
  // Ends an operation that this pair has, in whatever stage it is. Works without memory.
  void end(Operation& operation, Code code, std::string text);

  // --- what arrives ---
  // A message on |rail|, which is open.
  void receive(Rail& rail, const MessageHeader& raw, ConstByteSpan payload);
  void on_put(uint64_t cookie, uint64_t length) {
    if (PutTarget* target = transfers_.targets().find(cookie)) target->on_arrived(length);
  }
  // Sends credit and acknowledgements that are due. The association is ready.
  void send_update();
  // Asks the peer to acknowledge what it has. Without room nothing is asked.
  void ask_for_acknowledgement();

  // --- connections ---
  // A connection is open, whose number some grants that came before it name.
  void take_early_grants();
  // There are other connections than before: transfers and direct accesses go on.
  void restart();
  // Everything of |rail| is made quiet.
  void rail_failed(const Rail& rail, bool peer_has_to_know);
  // Something of this side's is under way on |rail|, or will be.
  bool uses(const Rail& rail);

  // --- as a whole ---
  // Nothing accepted is waiting to leave.
  bool flushed() const;
  // This side has nothing left to do.
  bool is_idle() const;
  // Nothing of the peer's is half here.
  bool has_all_received() const { return receiver_.is_whole() && early_grants_.empty(); }
  // Ends every operation that is queued or under way, but for receives that wait in match tables.
  void fail_everything(const Status& why);

 private:
  bool start(Operation& operation) {
    if (operation.kind != OperationKind::kSend) [[unlikely]]
      return access_.start(operation);
    return sender_.start(operation);
  }
  bool start_or_end(Operation& operation) {
    return association_.start_or_end(operation, [this](Operation& each) { return start(each); });
  }
  bool deal_with(const Rail& rail, const WireHeader& header, ConstByteSpan payload);
  void dispatch(const WireHeader& header, ConstByteSpan payload);
  void receive_grant(ConstByteSpan payload);
  void take(const GrantBody& grant);
  void receive_done(uint64_t id);
  void receive_push(uint64_t id);
  void receive_pull_pause(const WireHeader& header);

  Association& association_;
  TransferTable transfers_;
  MessageSender sender_;
  MessageReceiver receiver_;
  RemoteAccess access_;
  std::vector<GrantBody> early_grants_;  // of connections whose number has not come
};

}  // namespace hetcomm
