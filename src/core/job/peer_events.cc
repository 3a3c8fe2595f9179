#include "src/core/job/peer_events.h"

#include <memory>
#include <new>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/job/paths/path_inquiry.h"
#include "src/core/peer/pair.h"
#include "src/core/peer/wire/reason.h"

namespace hetcomm {

void PeerEvents::set_ready() {
  ready_.store(true, std::memory_order_release);
  services_.engine.note_arrival();  // wakes the thread that creates the job
}

void PeerEvents::read_mail() {
  // Handling a lost peer makes progress passes, which would re-enter this function.
  if (services_.control == nullptr || reading_mail_) return;
  reading_mail_ = true;
  std::unique_ptr<liveness::Mail> mail = services_.control->mailbox().take();
  for (; mail != nullptr; mail = std::move(mail->next)) {
    try {
      handle(*mail);
    } catch (const std::bad_alloc&) {
      pairs_.out_of_memory();
    }
  }
  reading_mail_ = false;
}

void PeerEvents::handle(const liveness::Mail& mail) {
  using Type = liveness::Mail::Type;
  Pair* const pair = mail.rank >= 0 ? pairs_.find(mail.rank) : nullptr;
  switch (mail.type) {
    case Type::kReady:
      set_ready();
      break;
    case Type::kDead:
      on_peer_lost(mail.rank, status_or_code(Code::kPeerLost, [&] { return mail.text; }));
      break;
    case Type::kLeft:
      on_peer_left(mail.rank);
      break;
    case Type::kDeclaredDead:
      on_declared_lost(status_or_code(Code::kPeerLost, [&] { return mail.text; }));
      break;
    case Type::kAborted:
      members_.on_abort(mail.rank, mail.communicator, mail.text);
      break;
    case Type::kFailed:
      members_.on_collectives_failed(
          mail.rank, mail.communicator,
          told_by(mail.rank, mail.code, std::as_bytes(std::span(mail.text))));
      break;
    case Type::kKnock:
      pairs_.at(mail.rank).knocked(static_cast<uint32_t>(mail.value));
      break;
    case Type::kRefused:
      on_refused(mail.rank, mail.text);
      break;
    case Type::kGivenUp:
      if (pair != nullptr) on_given_up(*pair, mail);
      break;
    case Type::kCall:
      members_.on_call(mail.rank, mail.communicator, std::as_bytes(std::span(mail.text)));
      break;
    case Type::kAnswer:
      on_path_answer(mail.rank, mail.value, std::as_bytes(std::span(mail.text)));
      break;
    case Type::kProfile:
      paths_.introduced(mail.rank);
      break;
    case Type::kVouched:
      if (pair != nullptr) pair->vouched();
      break;
    case Type::kSuspected:
      on_suspected(mail.rank);
      break;
  }
}

// Handles a peer's report that it has abandoned its connection to this rank. The peer then counts
// as lost, with kUnreachable if that is the reported reason, otherwise with kPeerLost.
void PeerEvents::on_given_up(Pair& pair, const liveness::Mail& mail) {
  const bool unreachable =
      mail.value == static_cast<uint64_t>(-static_cast<int64_t>(Code::kUnreachable));
  pair.lose(status_or_code(unreachable ? Code::kUnreachable : Code::kPeerLost, [&] {
    return unreachable ? fmt::format("rank {} does not reach this rank: {}", mail.rank, mail.text)
                       : mail.text;
  }));
}

// --- silent connections -----------------------------------------------------

// Handles the silence of |rank| on the control plane. Perhaps only the control connection is
// broken: recent data from |rank| shows that it lives.
void PeerEvents::on_suspected(int rank) {
  Pair* found = pairs_.find(rank);
  if (found != nullptr && found->has_received_since_asked(services_.engine.refresh_now(),
                                                          services_.terms.detection_ns / 3)) {
    services_.control->note_data(rank);
  }
}

void PeerEvents::on_doubt(int rank, const StreamId& stream) {
  try {
    services_.control->ask(rank, encode_question(stream), services_.engine.refresh_now());
  } catch (const std::bad_alloc&) {
    // The transport will ask again.
  }
}

void PeerEvents::on_path_answer(int rank, uint64_t asked_ns, ConstByteSpan bytes) {
  PathAnswer answer;
  Pair* found = pairs_.find(rank);
  if (found == nullptr || !decode_answer(bytes, &answer)) return;
  answer.receipt.asked_ns = asked_ns;
  services_.log.debug("a connection is silent: {} bytes of it have arrived at rank {}, which {}",
                      answer.receipt.received_bytes, rank,
                      answer.receipt.full ? "does not read" : "has room");
  found->association().rails().for_each([&](Rail& rail) HETCOMM_UNDER_BATON {
    DoubtResolver* const doubts = rail.abilities().doubts;
    if (doubts != nullptr) doubts->resolve(answer.stream, answer.receipt);
  });
}

// --- lost ranks -------------------------------------------------------------

void PeerEvents::on_rank_lost(int rank, const Status& why) {
  paths_.give_up(rank);
  pairs_.set_lost(rank, why);
  services_.engine.note_arrival();  // makes threads that probe for its messages check again
  members_.peer_lost(rank, why);
}

void PeerEvents::on_peer_lost(int rank, const Status& why) {
  if (!ready_.load(std::memory_order_relaxed)) {
    failure_ = why;
    set_ready();
  }
  if (!pairs_.status(rank).ok()) return;
  // Receives the messages of the lost rank that have already arrived.
  constexpr int kMaxPasses = 256;
  for (int pass = 0; pass < kMaxPasses && job_.progress() > 0; ++pass) {
  }
  lose(rank, why);
}

void PeerEvents::lose(int rank, const Status& why) {
  if (Pair* found = pairs_.find(rank); found != nullptr) {
    found->lose(why);  // all its memory accesses cease before any operation ends
  } else {
    on_rank_lost(rank, why);
  }
}

void PeerEvents::on_peer_left(int rank) {
  pairs_.note_left(rank);
  if (Pair* found = pairs_.find(rank); found != nullptr && found->state() != PairState::kIdle) {
    found->peer_left();
    return;
  }
  lose(rank, left_by(rank));
}

void PeerEvents::on_declared_lost(const Status& why) {
  const Status declared = status_or_code(
      why.code(), [&] { return fmt::format("this rank was declared lost: {}", why.text()); });
  declared_lost_ = true;
  for (int rank = 0; rank < pairs_.size(); ++rank) {
    if (rank != services_.terms.rank) on_peer_lost(rank, declared);
  }
}

void PeerEvents::on_refused(int rank, const std::string& why) {
  if (rank > services_.terms.rank) {
    // This rank connects, and the other rank has dropped the connection.
    paths_.forgotten_by(rank);
    return;
  }
  if (Pair* found = pairs_.find(rank); found != nullptr && found->association().rail() == nullptr) {
    found->refused_by_peer(status_or_code(Code::kUnreachable, [&] { return why; }));
  }
}

}  // namespace hetcomm
