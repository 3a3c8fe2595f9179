// RemoteAccess handles the one-sided operations between this rank and one peer, on both sides.
//
// clang-format off
//   initiator                                         owner
//     kPut (range, bytes)                        -->    writes the bytes; its next message to the
//                                                       initiator acknowledges the put
//     kAnnouncePut (range, source), a rendezvous -->    starts a receive of its own, in chunks
//     kGet (range)                               -->    starts a send of its own
//                                                <--    kGetData (bytes) or kAnnounceGet (source)
//     kAtomic                                    -->    performs the operation
//                                                <--    kAtomicDone (value before)
//                                                <--    kRefused (reason), for a kPut, kGet or
//                                                       kAtomic; kStop, for a kAnnouncePut
//     kAskMemory, while operations wait for      -->    checks that the memory is registered
//       users' streams                           <--    kNoMemory, if it is not
// clang-format on
//
// Connections that can access published regions perform puts and gets directly (direct_access.h).
// If a connection maps the region, the CPU performs the operations (mapped_access.h). In both cases
// a kPut without bytes carries the notification. All messages are numbered and delivered once, like
// all messages of the pair, so notifications and atomics are performed exactly once. Callers hold
// the baton.
//
// An initiator requests at most kMaxAsked operations from one owner at a time. An owner holds at
// most kMaxHeld for one initiator. permits.h says which operations count.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/baton_role.h"
#include "src/core/memory/access_state.h"
#include "src/core/peer/access/access_initiator.h"
#include "src/core/peer/access/access_owner.h"
#include "src/core/peer/access/flush_batches.h"
#include "src/core/peer/association.h"
#include "src/core/peer/matching/completer.h"
#include "src/core/peer/wire/permits.h"

namespace hetcomm {

class RemoteAccess final : public AccessLedger {
 public:
  RemoteAccess(Association& association, TransferTable& transfers, MessageReceiver& receiver,
               const AccessServices& services)
      : association_(association),
        permits_(association.permits()),
        listener_(services.listener),
        completer_(transfers.data().completer),
        batches_(completer_, association.rank()),
        initiator_(association, transfers, receiver, services.log),
        owner_(association, transfers, receiver, services, *this) {}
  RemoteAccess(const RemoteAccess&) = delete;
  RemoteAccess& operator=(const RemoteAccess&) = delete;

  // Counts a pending one-sided operation of this rank's user. Returns true for a flush, which does
  // not have to be started. May throw std::bad_alloc.
  bool accept(Operation& operation) HETCOMM_UNDER_BATON {
    access_of(operation).ledger = this;
    if (operation.kind == OperationKind::kFlush) [[unlikely]] {
      batches_.submit(operation);
      return true;
    }
    access_of(operation).batch = batches_.add();
    access_of(operation).started = true;
    return false;
  }
  // Starts |operation|, which is in no list. Returns false if the caller must try again later. May
  // throw std::bad_alloc.
  bool start(Operation& operation) HETCOMM_UNDER_BATON {
    return operation.kind == OperationKind::kAnswer ? owner_.start(operation)
                                                    : initiator_.start(operation);
  }
  // Ends an operation that is in flight (OperationPhase::kAwaiting or kDirect). Nothing accesses
  // its buffer after it has completed.
  void end(Operation& operation, Code code, std::string text) HETCOMM_UNDER_BATON;
  void ending(Operation& operation) override HETCOMM_UNDER_BATON;
  // Records that an operation of |batch| has completed. May complete flushes.
  void ended(uint64_t batch, Code code) override HETCOMM_UNDER_BATON {
    batches_.ended(batch, code);
  }

  // --- messages ---
  void receive(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  bool awaits_acknowledgement() const HETCOMM_UNDER_BATON {
    return permits_.has_answers() || initiator_.awaits_acknowledgement();
  }
  // Handle the peer's acknowledgement of all messages up to |sequence|. Call answers_acknowledged()
  // before the message that carries the acknowledgement is handled, since that message may be a
  // request, which counts against kMaxHeld. Call acknowledged() afterwards.
  void answers_acknowledged(uint32_t sequence) HETCOMM_UNDER_BATON {
    permits_.acknowledged(sequence);
  }
  void acknowledged(uint32_t sequence) HETCOMM_UNDER_BATON { initiator_.acknowledged(sequence); }

  // --- pending operations ---
  // Returns whether an answer or a waiting operation can start now if the connection accepts it.
  bool has_to_start() const HETCOMM_UNDER_BATON {
    return owner_.has_to_start() || initiator_.has_to_start();
  }
  // Returns false while a submitted operation waits to be started.
  bool has_all_started() const HETCOMM_UNDER_BATON {
    return !owner_.has_to_start() && initiator_.has_all_started();
  }
  // Returns whether nothing is in flight and this rank has no remote memory of the peer, which a
  // connection might map.
  bool is_idle() const HETCOMM_UNDER_BATON {
    return !owner_.has_to_start() && initiator_.is_idle();
  }
  void fail_everything(const Status& why) HETCOMM_UNDER_BATON {
    owner_.fail_everything(why);
    initiator_.fail_everything(why);
  }

  AccessInitiator& initiator() HETCOMM_UNDER_BATON { return initiator_; }
  AccessOwner& owner() HETCOMM_UNDER_BATON { return owner_; }
  const Permits& permits() const HETCOMM_UNDER_BATON { return permits_; }

 private:
  Association& association_;
  Permits& permits_;
  PairListener& listener_;
  Completer& completer_;
  FlushBatches batches_;
  AccessInitiator initiator_;
  AccessOwner owner_;
};

}  // namespace hetcomm
