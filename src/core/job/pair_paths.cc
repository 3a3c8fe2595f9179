#include "src/core/job/pair_paths.h"

#include <algorithm>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/baton_role.h"
#include "src/base/text.h"
#include "src/core/peer/pair.h"
#include "src/net/handshake.h"

namespace hetcomm {

// --- choice -----------------------------------------------------------------

std::vector<PairPaths::Candidate> PairPaths::candidates(int rank) const {
  std::vector<Candidate> result;
  Pair* const pair = pairs_.find(rank);
  for (const auto& each : transports_.all()) {
    if ((each->name == "self") != (rank == commons_.rank)) continue;
    Candidate candidate{.transport = each.get(),
                        .contact = nullptr,
                        .reach = Status(Code::kUnsupported,
                                        "the peer does not offer it: its HETCOMM_TRANSPORTS leaves "
                                        "it out, or it cannot use it")};
    candidate.score_us = score_of(each->capabilities());
    candidate.cooling = pair != nullptr && pair->extra_rails().cool_downs().is_cooling(
                                               each->index, commons_.engine.coarse_now());
    if (const PeerInfo::Offer* offer = peers_.at(rank).find_offer(each->name); offer != nullptr) {
      candidate.contact = &offer->contact;
      candidate.reach = each->transport->reach(offer->contact);
    }
    result.push_back(std::move(candidate));
  }
  std::stable_sort(result.begin(), result.end(), [](const Candidate& a, const Candidate& b) {
    if (a.reach.ok() != b.reach.ok()) return a.reach.ok();
    return a.cooling != b.cooling ? b.cooling : a.score_us < b.score_us;
  });
  return result;
}

std::vector<size_t> PairPaths::useful_beside(int rank, size_t index) {
  std::vector<size_t> result;
  const JobTransport& used = transports_.at(index);
  if (transports_.size() < 2 || used.capabilities().lossless) return result;
  const double own = score_of(used.capabilities());
  for (const Candidate& candidate : candidates(rank)) {
    if (!candidate.reach.ok() || candidate.transport->index == index) continue;
    const bool shares = candidate.transport->kind == used.kind;
    if (shares || candidate.score_us * kClearlyBetter < own) {
      result.push_back(candidate.transport->index);
    }
  }
  return result;
}

// Transports that lose nothing count where they reach |rank|: they may take over.
uint32_t PairPaths::kept_payload_bytes(int rank) {
  uint32_t least = transports_.lossy_payload_bytes();
  for (const Candidate& candidate : candidates(rank)) {
    const Capabilities& can = candidate.transport->capabilities();
    if (can.lossless && candidate.reach.ok()) least = std::min(least, can.max_payload_bytes);
  }
  return least;
}

bool PairPaths::has_common_transport(int rank) const {
  const PeerInfo& peer = peers_.at(rank);
  return std::any_of(transports_.all().begin(), transports_.all().end(), [&](const auto& each) {
    return each->name != "self" && peer.find_offer(each->name);
  });
}

void PairPaths::warn_of_unreachable() {
  std::vector<int> unreachable;
  std::string why;  // for the first of them
  for (int rank = 0; rank < peers_.size(); ++rank) {
    if (rank == commons_.rank) continue;
    const std::vector<Candidate> ways = candidates(rank);
    const bool some = std::any_of(ways.begin(), ways.end(), [](const Candidate& way) {
      return way.reach.ok() || way.reach.code() == Code::kOutOfResources;
    });
    if (some) continue;
    if (unreachable.empty()) {
      for (const Candidate& way : ways) {
        why += fmt::format("; {}: {}", way.transport->name, way.reach.text());
      }
    }
    unreachable.push_back(rank);
  }
  if (unreachable.empty()) return;
  std::vector<std::string_view> mine;
  for (const auto& each : transports_.all()) mine.push_back(each->name);
  std::vector<std::string> theirs;
  for (const PeerInfo::Offer& offer : peers_.at(unreachable.front()).offers) {
    theirs.push_back(printable(offer.name));
  }
  const std::string more =
      unreachable.size() > 1 ? fmt::format(" (nor this rank and {} others)", unreachable.size() - 1)
                             : "";
  commons_.log.warn("rank {} offers {}, rank {} offers {}: no transport joins them{}{}",
                    commons_.rank, fmt::join(mine, ", "), unreachable.front(),
                    fmt::join(theirs, ", "), more, why);
}

std::string PairPaths::explain(int rank) {
  std::string text = fmt::format("path to rank {}:\n", rank);
  Pair* const pair = pairs_.find(rank);
  for (const Candidate& candidate : candidates(rank)) {
    std::string verdict =
        candidate.reach.ok()
            ? fmt::format("possible, estimate {:.1f} us for 64 KiB", candidate.score_us)
            : fmt::format("no: {}", candidate.reach.text());
    if (pair != nullptr) {
      for (const hetcomm_counters_t& counters : pair->association().rails().counters()) {
        if (candidate.transport->name == counters.transport && counters.connected != 0)
          verdict += "; in use";
      }
    }
    text += fmt::format("  {:<6} {}\n", candidate.transport->name, verdict);
  }
  if (rank != commons_.rank) {
    for (const std::string& unused : transports_.unused()) text += fmt::format("  {}\n", unused);
    text += commons_.device_access.explain();
  }
  if (pair == nullptr) {
    return text + "  not connected yet: a connection is made when the pair first talks\n";
  }
  if (!pair->association().rails().empty()) {
    pair->association().rails().for_each([&](Rail& rail) HETCOMM_UNDER_BATON {
      text += fmt::format("  connection: {}\n", rail.endpoint().describe());
    });
    constexpr uint64_t kSizes[] = {128u << 10, 1u << 20, 8u << 20, 64u << 20};
    for (const uint64_t size : kSizes) {
      const double put = pair->traffic().transfers().chooser().cost(size, false);
      const double get = pair->traffic().transfers().chooser().cost(size, true);
      if (put > 0 && get > 0) {
        text += fmt::format("  bulk of {} KiB measured: copied {:.1f} GB/s, read {:.1f} GB/s\n",
                            size >> 10, 1 / put, 1 / get);
      }
    }
  } else if (pair->state() == PairState::kLost) {
    text += fmt::format("  lost: {}\n", pair->lost_because().text());
  } else {
    text += "  not connected yet\n";
  }
  return text;
}

// --- connecting -------------------------------------------------------------

void PairPaths::connect_over(int rank, size_t index) {
  const JobTransport& transport = transports_.at(index);
  const PeerInfo::Offer* const offer = peers_.at(rank).find_offer(transport.name);
  if (offer == nullptr) return;
  commons_.log.info("rank {}: also connecting over {}", rank, offer->name);
  transport.transport->connect(rank, offer->contact);
}

void PairPaths::connect(int rank) {
  auto& connect = connect_of(rank);
  connect = std::make_unique<PairConnect>();
  connect->candidates = candidates(rank);
  try_next(pairs_.at(rank));
}

void PairPaths::try_next(Pair& pair) {
  auto& connect = connect_of(pair.rank());
  connect->since_ns = commons_.engine.refresh_now();
  while (connect->next < connect->candidates.size()) {
    const Candidate& candidate = connect->candidates[connect->next];
    const JobTransport& chosen = *candidate.transport;
    if (candidate.reach.ok()) {
      commons_.log.info("rank {}: connecting over {} (estimate {:.1f} us for 64 KiB)", pair.rank(),
                        chosen.name, candidate.score_us);
      if (pair.extra_rails().cool_downs().stop_connecting(chosen.index))
        chosen.transport->cancel_connect(pair.rank());
      chosen.transport->connect(pair.rank(), *candidate.contact);
      return;
    }
    ++connect->next;
    connect->failures += fmt::format("; {}: {}", chosen.name, candidate.reach.text());
    commons_.log.info("rank {}: {} cannot be used: {}", pair.rank(), chosen.name,
                      candidate.reach.text());
  }
  const bool may_change = std::any_of(
      connect->candidates.begin(), connect->candidates.end(), [](const Candidate& candidate) {
        return candidate.reach.ok() || candidate.reach.code() == Code::kOutOfResources;
      });
  const Status why(Code::kUnreachable,
                   fmt::format("no transport reaches it{}",
                               connect->failures.empty() ? "; none is usable" : connect->failures));
  connect.reset();
  pair.connect_failed(why, may_change);
}

void PairPaths::give_up(int rank) {
  auto& connect = connect_of(rank);
  if (connect == nullptr) return;
  if (connect->next < connect->candidates.size()) {
    connect->candidates[connect->next].transport->transport->cancel_connect(rank);
  }
  connect.reset();
}

// True if a connection within the host failed because this rank computed for longer than the peer
// waits for a proof. It is tried once more then: nothing is wrong with it.
bool PairPaths::was_late(PairConnect& connect) const {
  const JobTransport& tried = *connect.candidates[connect.next].transport;
  if (connect.late || !tried.capabilities().within_host) return false;
  connect.late = commons_.engine.refresh_now() - connect.since_ns >= kHandshakeTimeoutNs;
  return connect.late;
}

// Nobody else knows of the connection, or of its failure: it is not left half made.
template <typename Upcall>
void PairPaths::guarded(int peer, Upcall&& upcall) {
  try {
    upcall();
  } catch (const std::bad_alloc&) {
    if (Pair* found = pairs_.find(peer); found != nullptr) found->out_of_memory();
  }
}

void PairPaths::on_connected(JobTransport& transport, int peer,
                             Result<std::unique_ptr<Endpoint>> endpoint) {
  const bool short_of_descriptors = endpoint.status().code() == Code::kOutOfResources;
  guarded(peer, [&]() HETCOMM_UNDER_BATON { connected(transport, peer, std::move(endpoint)); });
  if (short_of_descriptors) idle_.run();
}

void PairPaths::connected(JobTransport& transport, int peer,
                          Result<std::unique_ptr<Endpoint>> endpoint) {
  auto& connect = connect_of(peer);
  if (connect == nullptr || connect->next >= connect->candidates.size() ||
      connect->candidates[connect->next].transport != &transport) {
    if (endpoint.ok()) {
      adopt(transport, peer, std::move(endpoint.value()));
    } else {
      pairs_.at(peer).extra_rails().connect_failed(transport.index, endpoint.status());
    }
    return;
  }
  if (endpoint.ok()) {
    connect.reset();
    adopt(transport, peer, std::move(endpoint.value()));
    return;
  }
  commons_.log.info("rank {}: connecting over {} failed: {}", peer, transport.name,
                    endpoint.status().text());
  if (was_late(*connect)) {
    try_next(pairs_.at(peer));
    return;
  }
  connect->failures += fmt::format("; {}: {}", transport.name, endpoint.status().text());
  ++connect->next;
  try_next(pairs_.at(peer));
}

void PairPaths::on_accepted(JobTransport& transport, int peer, std::unique_ptr<Endpoint> endpoint) {
  // Only the lower rank of a pair connects.
  if (peer < 0 || peer >= commons_.rank) return;
  guarded(peer, [&]() HETCOMM_UNDER_BATON { adopt(transport, peer, std::move(endpoint)); });
}

void PairPaths::adopt(JobTransport& transport, int peer, std::unique_ptr<Endpoint> endpoint) {
  transports_.note_connected(*transport.transport);
  pairs_.at(peer).adopt(std::move(endpoint), transport.name, transport.index);
  idle_.run();
}

}  // namespace hetcomm
