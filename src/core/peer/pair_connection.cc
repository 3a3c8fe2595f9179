// This part of Pair makes connections, handles their loss, and continues over the next one.
#include <algorithm>
#include <new>
#include <utility>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/pair.h"
#include "src/system/clock.h"

namespace hetcomm {

// An OwnRail is a connection that forwards its endpoint's reports to its pair.
class Pair::OwnRail final : public Rail {
 public:
  OwnRail(Pair& pair, std::unique_ptr<Endpoint> made, const RailEnds& its_ends)
      : OwnRail(pair, std::move(made), its_ends,
                pair.services_.paths.directory.transport_kind(its_ends.own)) {}
  OwnRail(Pair& pair, std::unique_ptr<Endpoint> made, const RailEnds& its_ends,
          std::string_view transport_kind)
      : Rail(std::move(made), its_ends, transport_kind,
             pair.services_.paths.directory.all_of_kind(pair.rank(), transport_kind),
             pair.rails().counters_of(pair.services_.paths.directory.transport_name(its_ends.own))),
        pair_(pair) {}

  void on_message(const MessageHeader& header, ConstByteSpan payload) override HETCOMM_UNDER_BATON {
    guarded([&]() HETCOMM_UNDER_BATON {
      if (!open) [[unlikely]] {
        pair_.receive_unopened(*this, decode_header(header));
        return;
      }
      pair_.traffic_.receive(*this, header, payload);
    });
  }
  void on_put(uint64_t cookie, uint64_t length) override HETCOMM_UNDER_BATON {
    guarded([&]() HETCOMM_UNDER_BATON { pair_.traffic_.on_put(cookie, length); });
  }
  void on_bulk_complete(Bulk& bulk, Code code) override HETCOMM_UNDER_BATON {
    guarded([&]() HETCOMM_UNDER_BATON {
      auto& owned = static_cast<OwnedBulk&>(bulk);
      if (code == Code::kOk && !owned.is_get) {
        pair_.association_.note_left(*this, owned.local.length);
      }
      pair_.association_.bulks().ended(owned, code);
    });
  }
  void on_mapped(const RemoteKey& key,
                 const Result<MappedRegion>& mapped) override HETCOMM_UNDER_BATON {
    guarded([&]() HETCOMM_UNDER_BATON { pair_.traffic_.on_mapped(*this, key, mapped); });
  }
  void on_unmap(const RemoteKey& key) override HETCOMM_UNDER_BATON {
    guarded([&]() HETCOMM_UNDER_BATON { pair_.traffic_.on_unmap(*this, key); });
  }
  void on_writable() override HETCOMM_UNDER_BATON {
    guarded([&]() HETCOMM_UNDER_BATON { pair_.writable(*this); });
  }
  void on_doubt(const StreamId& stream) override HETCOMM_UNDER_BATON {
    guarded([&]() HETCOMM_UNDER_BATON { pair_.services_.listener.on_doubt(pair_.rank(), stream); });
  }
  void on_failed(const Status& why) override HETCOMM_UNDER_BATON {
    guarded([&]() HETCOMM_UNDER_BATON { pair_.rail_failed(*this, why); });
  }

 private:
  // Runs |upcall|, unless this connection was dropped. If memory runs out partway, data of the
  // upcall is lost, so the pair ends.
  template <typename Upcall>
  void guarded(Upcall&& upcall) HETCOMM_UNDER_BATON {
    if (dropped) [[unlikely]]
      return;
    try {
      upcall();
    } catch (const std::bad_alloc&) {
      pair_.out_of_memory();
    }
  }

  Pair& pair_;
};

// --- getting a connection -------------------------------------------------------

void Pair::ensure_connected() {
  if (state() != PairState::kIdle) return;
  association_.set_state(PairState::kConnecting);
  try {
    // If the two ranks have no common transport, both detect this themselves. The higher rank then
    // makes an attempt that fails instead of knocking.
    if (!is_higher() || !services_.paths.directory.has_common_transport(rank())) {
      services_.paths.connector.connect(rank());
    } else {
      services_.control->knock(rank(), static_cast<uint32_t>(rails().made()));
    }
  } catch (const std::bad_alloc&) {
    // No attempt is in progress that would reset this state. The next caller that needs a
    // connection tries again.
    if (state() == PairState::kConnecting) association_.set_state(PairState::kIdle);
    throw;
  }
}

void Pair::knocked(uint32_t lost) {
  if (association_.own_rank() >= rank()) return;
  while (!association_.is_lost()) {
    Rail* gone = rails().find_up_to(lost);
    if (gone == nullptr) break;
    // UINT32_MAX means that the peer lost a connection whose number had not arrived. In this case
    // |gone| may be newer than the knock and still open at the peer, so the peer is notified.
    rail_failed(*gone, Status(Code::kPeerLost, "the peer has no connection left"),
                lost == UINT32_MAX);
  }
  ensure_connected();
}

void Pair::adopt(std::unique_ptr<Endpoint> endpoint, const RailEnds& ends) {
  if (association_.is_lost()) return;
  if (ends.peer != RailEnds::kUnknown) replace(ends);
  if (association_.is_lost()) return;
  if (is_higher()) services_.control->forget_knock(rank());
  if (rails().current() == nullptr) association_.set_state(PairState::kConnecting);
  retry_at_ns_ = kForever;
  services_.log.info("rank {}: connected over {}: {}", rank(),
                     services_.paths.directory.name_of(rank(), ends), endpoint->describe());
  auto made = std::make_unique<OwnRail>(*this, std::move(endpoint), ends);
  made->expect(services_.paths.advisor.expected_rate(rank(), ends.own));
  const Capabilities& can = made->capabilities();
  if (!can.lossless) made->limit_payload(services_.paths.directory.kept_payload_bytes(rank()));
  Rail& rail = rails().add(std::move(made));
  extra_rails_.cool_downs().stop_connecting(ends);
  rail.endpoint().set_handler(&rail);
  send_open(rail);
}

// Drops the existing connection between |ends|, if any. The peer detected its failure before this
// rank did.
void Pair::replace(const RailEnds& ends) {
  Rail* const before = rails().find_over(ends);
  if (before == nullptr) return;
  replaced_ = true;
  rail_failed(*before, Status(Code::kPeerLost, "replaced by a new connection"));
  replaced_ = false;
}

// Sends the first message on |rail|. If the send would block, writable() retries it.
void Pair::send_open(Rail& rail) {
  const WireHeader header{.kind = MessageKind::kOpen,
                          .channel = static_cast<uint16_t>(rail.ends.own),
                          .tag = rail.id,
                          .value = association_.sequencer().received()};
  const Code code = rail.endpoint().send(encode_header(header), ExtentView{});
  if (code == Code::kOk) {
    rail.open_sent = true;
  } else if (code != Code::kWouldBlock) {
    rail_failed(rail, Status(Code::kPeerLost, "connection broke while it was opened"));
  }
}

void Pair::receive_unopened(Rail& rail, const WireHeader& header) {
  if (header.kind == MessageKind::kOpen) {
    opened(rail, header);
  } else {
    violated(rail, "message before open");
  }
}

// Records the number of the peer's transport, at most once per connection. Returns false if the
// number is invalid, or if |rail| or the pair is lost afterwards.
bool Pair::learn_ends(Rail& rail, size_t peers_transport) {
  if (rail.ends.peer == peers_transport) return true;
  if (rail.ends.peer != RailEnds::kUnknown ||
      !services_.paths.directory.is_offered(rank(), peers_transport, rail.kind)) {
    violated(rail, "open by a transport that was not connected to");
    return false;
  }
  replace({rail.ends.own, peers_transport});
  rail.ends.peer = peers_transport;
  return !association_.is_lost() && !rail.dropped;
}

void Pair::opened(Rail& rail, const WireHeader& header) {
  if (!learn_ends(rail, header.channel)) return;
  rail.open = true;
  if (!rail.known) rails().learn(rail, header.tag);
  lost_unknown_ = false;
  const auto peer_received = static_cast<uint32_t>(header.value);
  Sequencer& sequencer = association_.sequencer();
  if (!sequencer.was_sent(peer_received)) {
    violated(rail, "acknowledgement of what was not sent");
    return;
  }
  sequencer.acknowledge(peer_received);
  // Messages that were sent on a lossless rail were not kept, so one that the peer has not received
  // cannot be sent again.
  if (!sequencer.check_unkept(peer_received)) {
    give_up(Status(Code::kPeerLost,
                   fmt::format("rank {}: messages were lost with the last connection", rank())));
    return;
  }
  reachability_.reached();
  blocked_paths_.opened(rail.ends);
  extra_rails_.cool_downs().came_up(rail.ends, services_.engine.refresh_now());
  if (rail.open_sent) rail_switch_.use(rail);
  traffic_.take_early_grants();
}

void Pair::connect_failed(const Status& why, bool may_change) {
  if (association_.is_lost()) return;
  const uint64_t now = services_.engine.refresh_now();
  // The failure does not show whether the peer is alive. This rank queries the control plane, and
  // keeps trying for the detection time.
  reachability_.connect_failed(now);
  trouble_ = why;
  if (reachability_.is_first_failure()) services_.control->inquire(rank());
  if (may_change && !reachability_.is_hopeless(now)) {
    retry_at(now + reachability_.pause_after_failure_ns(now));
    return;
  }
  const Status unreachable = status_or_code(Code::kUnreachable, [&]() HETCOMM_UNDER_BATON {
    return fmt::format(
        "rank {}{}: {}", rank(),
        reachability_.is_vouched() ? " lives, as others say, but is not reached from here" : "",
        why.text());
  });
  services_.control->refuse(rank(), unreachable.text());
  if (rails().made() > 0) {
    give_up(unreachable);
  } else {
    lose(unreachable);
  }
}

void Pair::refused_by_peer(const Status& why) {
  // If there was a connection before, the lower rank either tries again or reports that it has
  // declared this rank lost.
  if (rails().made() == 0) lose(why);
}

void Pair::writable(Rail& rail) {
  if (!rail.open_sent) {
    send_open(rail);
    if (association_.is_lost() || !rail.open_sent) return;
    if (rail.open) rail_switch_.use(rail);
  } else if (&rail == rails().current() && association_.sequencer().replaying()) {
    rail_switch_.resume();
  } else {
    pump();
  }
  send_update();
}

// --- messages about connections ---------------------------------------------------

void Pair::receive_connection_message(const WireHeader& header) {
  switch (header.kind) {
    case MessageKind::kRailDown:
      if (Rail* rail = rails().find(header.tag); rail != nullptr) {
        rail_failed(*rail, Status(Code::kPeerLost, "the peer has given it up"), false);
      } else if (rails().is_early(header.tag)) {
        // The lost rail is one of those whose number has not arrived yet.
        fail_unknown_rails();
      }
      association_.acknowledgement_due();  // puts of the peer may wait for the acknowledgement
      return;
    case MessageKind::kRailUnused:
      extra_rails_.receive_unused(header.tag);
      rail_switch_.follow_peer();
      return;
    case MessageKind::kRailClosed:
      extra_rails_.receive_closed(header.tag);
      return;
    case MessageKind::kCloseIdle:
      if (idle_closer_.receive_question()) {
        rails().current()->leaving = true;
        association_.set_state(PairState::kConnecting);
      }
      return;
    case MessageKind::kMayClose:
      if (idle_closer_.receive_answer(header.tag, header.value != 0)) {
        services_.log.info("rank {}: its idle connection is closed, since descriptors run short",
                           rank());
        drop_all_rails();
        association_.set_state(PairState::kIdle);
      }
      return;
    case MessageKind::kWake:
      stay_connected();
      return;
    case MessageKind::kRailsWanted:
      if (is_higher()) {
        association_.violated("asked for connections, which the peer makes");
      } else {
        extra_rails_.wanted_by_peer({.own = header.tag, .peer = header.value});
      }
      return;
    default:
      association_.violated("second open");
      return;
  }
}

// Keeps the connection because the peer still uses it.
void Pair::stay_connected() {
  rails().for_each([](Rail& rail) HETCOMM_UNDER_BATON { rail.leaving = false; });
  if (rails().current() != nullptr && state() == PairState::kConnecting) rail_switch_.resume();
}

void Pair::violated(Rail& rail, std::string_view what) {
  rail_failed(rail, Status(Code::kPeerLost, fmt::format("protocol violated: {}", what)));
}

void Pair::close_unused(Rail& rail) {
  services_.log.info("rank {}: connection over {} is closed, since others are in use", rank(),
                     services_.paths.directory.name_of(rank(), rail.ends));
  drop_rail(rail, false);
  traffic_.restart();
  extra_rails_.connect();  // another connection may have become useful
}

// --- losing it ------------------------------------------------------------------

// Stops everything in flight on |rail| and drops it. |tell| is false if the peer has already
// detected the failure and need not be notified.
void Pair::rail_failed(Rail& rail, const Status& why, bool tell) {
  if (rail.dropped) return;
  if (rail.leaving) {
    left_by_peer(rail);
    return;
  }
  if (rail.retiring && !extra_rails_.uses(rail)) {
    close_unused(rail);  // the peer closed it first
    return;
  }
  const bool lossless = rail.capabilities().lossless;
  // If the current rail is lossless, its messages were not kept, so they cannot be sent again on
  // another rail.
  const bool irreplaceable = lossless && &rail == rails().current();
  const uint64_t id = rail.id;
  const RailEnds ends = rail.ends;
  const Passage passage = rail.open ? rail.endpoint().passage() : Passage::kNothing;
  const std::string known =
      text_or_none([&]() HETCOMM_UNDER_BATON { return rail.endpoint().trouble(); });
  const Status reason = known.empty() ? why : status_or_code(why.code(), [&] { return known; });
  ++rail.counters().failures;
  if (!rail.known) lost_unknown_ = true;
  const bool peer_has_to_know = !lossless && rail.known && tell;
  drop_rail(rail, peer_has_to_know);
  if (irreplaceable) drop_all_rails();
  if (association_.is_lost()) return;
  if (left_ && rails().empty()) {
    peer_left();
    return;
  }
  if (irreplaceable) {
    access().initiator().start_again();
    // A lossless connection breaks only when the peer dies or leaves, and the control plane reports
    // which of the two happened. If it reports nothing within the detection time, the peer is alive
    // but does not communicate.
    verdict_ = why;
    retry_at(services_.engine.refresh_now() + services_.terms.detection_ns);
    return;
  }
  services_.log.info("rank {}: connection over {} failed, {} left: {}", rank(),
                     services_.paths.directory.name_of(rank(), ends), rails().size(), why.text());
  extra_rails_.cool_downs().failed(ends, services_.engine.refresh_now(),
                                   services_.paths.advisor.are_apart(rank(), ends));
  if (give_up_blocked(ends, passage, reason)) return;
  // This message must be sent before any data of the failed rail is sent again.
  if (peer_has_to_know) association_.send_protocol(MessageKind::kRailDown, id, 0);
  access().initiator().start_again();
  go_on_without(why);
}

// Declares the peer lost if its connections keep opening and then breaking because the network
// drops long packets. Each side counts only breaks that happen with its own data in flight. Returns
// whether the pair is lost.
bool Pair::give_up_blocked(const RailEnds& ends, Passage passage, const Status& why) {
  const bool counts = blocked_paths_.broke(ends, passage);
  if (counts || rails().empty()) trouble_ = why;
  const auto is_open = [&](const RailEnds& each)
                           HETCOMM_UNDER_BATON { return rails().find_over(each) != nullptr; };
  if (!counts || !blocked_paths_.all_blocked(is_open)) return false;
  give_up(status_or_code(Code::kUnreachable, [&]() HETCOMM_UNDER_BATON {
    return fmt::format(
        "rank {}: connections open, and carry no data: {}; does the network drop long packets "
        "(MTU)?",
        rank(), why.text());
  }));
  return true;
}

// Continues after a failed connection has been dropped.
void Pair::go_on_without(const Status& why) {
  if (rails().current() != nullptr) {
    traffic_.restart();
    pump();
    extra_rails_.connect();
  } else if (Rail* next = rails().best_open(); next != nullptr) {
    rail_switch_.go_over_to(*next);
  } else if (rails().empty() && !replaced_) {
    // Does not reconnect while another connection is being opened or is replacing the failed one,
    // because a knock would close that connection.
    reconnect(why);
  }
}

// The lower rank connects, counts the failures and decides when the peer is lost. The higher rank
// knocks, since a lower rank that only waits on the broken connection may not have detected the
// failure.
void Pair::reconnect(const Status& why) {
  if (is_higher()) {
    services_.control->knock(rank(),
                             lost_unknown_ ? UINT32_MAX : static_cast<uint32_t>(rails().made()));
    return;
  }
  const uint64_t now = services_.engine.refresh_now();
  reachability_.connection_broke(now);
  if (reachability_.keeps_breaking(now)) {
    give_up(
        Status(Code::kUnreachable,
               fmt::format("rank {}: connections break before they open: {}", rank(), why.text())));
  } else {
    retry_at(now + reachability_.pause_after_break_ns());
  }
}

void Pair::fail_unknown_rails() {
  while (!association_.is_lost()) {
    Rail* unknown = rails().find_unknown();
    if (unknown == nullptr) return;
    rail_failed(*unknown, Status(Code::kPeerLost, "the peer has given it up"), false);
  }
}

void Pair::drop_rail(Rail& rail, bool peer_has_to_know) {
  if (&rail == rails().current()) rail_switch_.leave(rail);
  traffic_.rail_failed(rail, peer_has_to_know);
  rail.dropped = true;
  rail.endpoint().close();
  data_.retire(rails().remove(rail));
  if (rails().empty()) idle_closer_.connection_gone();
}

void Pair::drop_all_rails() {
  while (!rails().empty()) drop_rail(rails().back(), false);
}

// Handles the end of |rail|, which the peer has closed with this rank's permission.
void Pair::left_by_peer(Rail& rail) {
  drop_rail(rail, false);
  if (association_.is_lost() || rails().current() != nullptr) return;
  if (left_ && rails().empty()) {
    peer_left();
  } else if (Rail* next = rails().best_open(); next != nullptr) {
    rail_switch_.go_over_to(*next);
  } else if (rails().empty()) {
    association_.set_state(PairState::kIdle);
    // If |replaced_|, another connection is already being made.
    if (!replaced_ && !traffic_.is_idle()) ensure_connected();
  }
}

}  // namespace hetcomm
