// Candidates are all possible connections of a pair. Each goes from one of this rank's transports
// to one of the peer's transports of the same kind. A candidate's role says whether it shares the
// load.
//
// A host may have more network interfaces than another, or different ones.
// topology/machine/pairing.h pairs the interfaces of both sides, so that together they carry as
// much as the side with less capacity can. Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/job/membership/peer_directory.h"
#include "src/core/job/paths/job_transports.h"
#include "src/core/peer/rails/rail_ends.h"

namespace hetcomm {

// The way in which a connection shares the load with others of its kind of transport.
enum class PairingRole : uint8_t {
  kUnused,      // others of its kind carry all the load
  kPaired,      // carries its share of the load
  kSubstitute,  // carries a share while a paired one cools down
};

struct Candidate {
  JobTransport* transport;
  RailEnds ends;                 // |peer| is unknown if the peer has no such transport
  const PeerInfo::Offer* offer;  // null if the peer has no such transport
  Status reach;
  double score_us = 0;   // estimated time of a 64 KiB message
  bool cooling = false;  // the connection failed recently
  PairingRole role = PairingRole::kUnused;
  uint64_t mbit_per_s = 0;  // expected rate
};

// Options of find_candidates().
struct CandidateOptions {
  bool itself = false;  // true: the peer is this rank
  size_t most = 1;      // most paired connections of a kind for each need
  // The needs of the data: for each kind of data, the transports of both sides between which it
  // should move. If no connection of a need works, other connections are used instead.
  std::span<const RailMasks> needs;
  std::function<bool(const RailEnds&)> is_cooling;
  // Returns OK if the transport can reach the peer's offer with the given index; otherwise the
  // reason.
  std::function<Status(const JobTransport&, size_t)> reach;
};

// Returns the possible connections from this rank, which has |transports|, to a peer with |offers|,
// best first. A kind of transport that the peer does not offer has one entry, without an offer.
std::vector<Candidate> find_candidates(const JobTransports& transports,
                                       std::span<const PeerInfo::Offer> offers,
                                       const CandidateOptions& options) HETCOMM_UNDER_BATON;

// Returns whether some candidate between transports of |need| can work, and is as likely to work as
// any other of its kind.
bool serves(const std::vector<Candidate>& candidates, const RailMasks& need) HETCOMM_UNDER_BATON;

// Returns OK if |own| reaches a transport of its kind among |offers|, and otherwise the reason why
// not. After OUT_OF_RESOURCES a later call may succeed.
Status reach_by(const JobTransport& own,
                std::span<const PeerInfo::Offer> offers) HETCOMM_UNDER_BATON;

}  // namespace hetcomm
