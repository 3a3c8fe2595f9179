// RemoteAccess: one-sided operations between this rank and one peer, for both sides.
//
// clang-format off
//   initiator                                         owner
//     kPut (range, bytes)                        -->    writes them; acknowledged with whatever
//                                                       goes back next
//     kAnnouncePut (range, source), a rendezvous  -->    its own receive, with chunks as any
//     kGet (range)                               -->    its own send:
//                                                <--    kGetData (bytes) or kAnnounceGet (source)
//     kAtomic                                    -->    does it
//                                                <--    kAtomicDone (value before)
//                                                <--    kRefused (why not), for each of them
//     kAskMemory, while operations wait for       -->
//       users' streams                           <--    kNoMemory, where it is not registered
// clang-format on
//
// Where a connection reaches published regions, puts and gets go there directly (direct_access.h).
// Where it maps the region, the CPU performs them (mapped_access.h). The notification then follows
// as a kPut without bytes. All messages are numbered and delivered once, like all messages of the
// pair, so notifications and atomics happen once. Under the baton.
//
// At most kMaxAsked operations are requested from one owner at a time, and at most kMaxHeld are
// held for one initiator. permits.h says which operations count.
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

  // Counts a pending one-sided operation of this rank's user. Returns true for a flush, which needs
  // no start. May throw std::bad_alloc.
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
  // Starts an operation whose turn it is. Returns false if the caller must try again later. May
  // throw std::bad_alloc.
  bool start(Operation& operation) HETCOMM_UNDER_BATON {
    return operation.kind == OperationKind::kAnswer ? owner_.start(operation)
                                                    : initiator_.start(operation);
  }
  // Ends an operation that is in flight (OperationPhase::kAwaiting or kDirect). Its buffer is quiet
  // once it has completed.
  void end(Operation& operation, Code code, std::string text) HETCOMM_UNDER_BATON;
  void ending(Operation& operation) override HETCOMM_UNDER_BATON;
  // Records that an operation of |batch| has ended. May complete flushes.
  void ended(uint64_t batch, Code code) override HETCOMM_UNDER_BATON {
    batches_.ended(batch, code);
  }

  // --- messages ---
  void receive(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  bool awaits_acknowledgement() const HETCOMM_UNDER_BATON {
    return permits_.has_answers() || initiator_.awaits_acknowledgement();
  }
  // These two handle the peer's acknowledgement of all messages up to |sequence|.
  // answers_acknowledged() is called before the message that carries the acknowledgement is
  // handled, since that message may request something. acknowledged() is called after it.
  void answers_acknowledged(uint32_t sequence) HETCOMM_UNDER_BATON {
    permits_.acknowledged(sequence);
  }
  void acknowledged(uint32_t sequence) HETCOMM_UNDER_BATON { initiator_.acknowledged(sequence); }

  // --- pending operations ---
  // Returns whether an answer or a waiting operation can start now if the connection has room.
  bool has_to_start() const HETCOMM_UNDER_BATON {
    return owner_.has_to_start() || initiator_.has_to_start();
  }
  // Returns whether no submitted operation waits for its turn.
  bool has_all_started() const HETCOMM_UNDER_BATON {
    return !owner_.has_to_start() && initiator_.has_all_started();
  }
  // Returns whether nothing is in flight and no mapped memory of the peer may be held.
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
