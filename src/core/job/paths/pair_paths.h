// Makes paths from this rank to its peers: chooses transports, connects pairs over them, and
// explains the choice. Callers hold the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/job/membership/control_introducer.h"
#include "src/core/job/membership/introductions.h"
#include "src/core/job/membership/peer_directory.h"
#include "src/core/job/paths/candidates.h"
#include "src/core/job/paths/idle_connections.h"
#include "src/core/job/paths/job_transports.h"
#include "src/core/job/paths/pair_table.h"
#include "src/core/job/paths/pairing_report.h"
#include "src/core/peer/pair_services.h"
#include "src/system/clock.h"

namespace hetcomm {

class PairPaths final : public PairConnector,
                        public RailAdvisor,
                        public TransportDirectory,
                        public ConnectionHandler {
 public:
  PairPaths(ConnectionServices& services, DataServices& data, PairTurns& turns,
            PeerDirectory& peers, const Credentials& credentials, PairTable& pairs,
            JobTransports& transports, IdleConnections& idle, size_t most_rails)
      : services_(services),
        data_(data),
        turns_(turns),
        peers_(peers),
        introducer_(services),
        introductions_({.rank = services.terms.rank, .detection_ns = services.terms.detection_ns},
                       services.log, peers, credentials, introducer_),
        pairs_(pairs),
        transports_(transports),
        idle_(idle),
        most_rails_(most_rails),
        connects_(static_cast<size_t>(peers.size())),
        reaches_(static_cast<size_t>(peers.size())) {}
  PairPaths(const PairPaths&) = delete;
  PairPaths& operator=(const PairPaths&) = delete;

  // Logs one line if no transport reaches some ranks. Operations with such a rank fail later, each
  // with the reason.
  void warn_of_unreachable() HETCOMM_UNDER_BATON;
  // Handles the arrival of the profile of |rank|: resumes connecting, unless the profile is
  // refused.
  void introduced(int rank) HETCOMM_UNDER_BATON;
  // Records that |rank|, to which this rank connects, has no profile of this rank. This rank sends
  // its profile again before the next connection.
  void forgotten_by(int rank) HETCOMM_UNDER_BATON;
  void tick(uint64_t now_ns) HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON {
    return std::min(introductions_.next_timer_ns(), beside_at_ns_);
  }
  // Stops connecting to |rank|, which is lost.
  void give_up(int rank) HETCOMM_UNDER_BATON;
  // Returns readable text: which transports reach |rank|, which are in use, and their measurements.
  std::string explain(int rank) HETCOMM_UNDER_BATON;
  // Returns all possible connections to |rank|, best first, with their roles for data of |device|.
  std::vector<Pairing> pairings(int rank, size_t device) HETCOMM_UNDER_BATON;

  // PairConnector
  void connect(int rank) override HETCOMM_UNDER_BATON;
  void connect_over(int rank, const RailEnds& ends) override HETCOMM_UNDER_BATON;
  // RailAdvisor
  std::vector<RailEnds> useful_beside(int rank, const RailEnds& used,
                                      std::span<const RailMasks> needs) override
      HETCOMM_UNDER_BATON;
  RailEnds preferred(int rank, const RailEnds& used) override HETCOMM_UNDER_BATON;
  bool serves(int rank, const RailMasks& need) override HETCOMM_UNDER_BATON;
  bool are_apart(int rank, const RailEnds& ends) const override HETCOMM_UNDER_BATON;
  uint64_t expected_rate(int rank, size_t own) const override HETCOMM_UNDER_BATON;
  // TransportDirectory
  bool is_beside(int rank) const override HETCOMM_UNDER_BATON;
  RailMasks all_of_kind(int rank, std::string_view kind) const override HETCOMM_UNDER_BATON;
  bool has_common_transport(int rank) const override HETCOMM_UNDER_BATON;
  uint32_t kept_payload_bytes(int rank) override HETCOMM_UNDER_BATON;
  bool is_offered(int rank, size_t index, std::string_view kind) const override HETCOMM_UNDER_BATON;
  std::string_view transport_kind(size_t index) const override HETCOMM_UNDER_BATON {
    return transports_.at(index).kind;
  }
  std::string_view transport_name(size_t index) const override HETCOMM_UNDER_BATON {
    return transports_.at(index).name;
  }
  std::string name_of(int rank, const RailEnds& ends) const override HETCOMM_UNDER_BATON;

 private:
  // The state of one pair while it connects.
  //
  // Candidates are tried in their order. If an attempt does not end soon, the next candidate of the
  // same kind is tried too.
  struct PairConnect {
    struct Attempt {
      size_t candidate;  // index in |candidates|
      uint64_t since_ns;
    };
    std::vector<Candidate> candidates;
    size_t next = 0;                 // the candidate to try next
    std::vector<Attempt> under_way;  // the last one was started last
    uint64_t next_at_ns = kForever;  // when to try |next| although attempts are under way
    bool late = false;               // was_late() has returned true, which it does only once
    std::string failures;
  };

  // ConnectionHandler
  void on_connected(JobTransport& transport, const Destination& destination,
                    Result<std::unique_ptr<Endpoint>> endpoint) override HETCOMM_UNDER_BATON;
  void on_accepted(JobTransport& transport, int peer,
                   std::unique_ptr<Endpoint> endpoint) override HETCOMM_UNDER_BATON;

  std::string explain_kinds(int rank) const HETCOMM_UNDER_BATON;
  // Returns readable text on the candidates. |pair| may be null.
  std::string explain_candidates(int rank, Pair* pair) HETCOMM_UNDER_BATON;
  // Returns whether a connection of the pair uses |ends|. |pair| may be null.
  static bool is_in_use(Pair* pair, const RailEnds& ends) HETCOMM_UNDER_BATON;
  // Returns all possible connections to |rank|, best first. |needs| are the transports between
  // which data moves. If |with_failures| is true, connections that have failed recently come later.
  std::vector<Candidate> candidates(int rank, std::span<const RailMasks> needs,
                                    bool with_failures = true) HETCOMM_UNDER_BATON;
  // Returns the needs (RailMasks) of the data that |pair| has moved so far, and of data that any
  // transport may carry. |pair| may be null.
  static std::vector<RailMasks> known_needs(Pair* pair) HETCOMM_UNDER_BATON;
  std::vector<RailMasks> needs_of(size_t device, Pair* pair) HETCOMM_UNDER_BATON;
  // Returns OK if |own| reaches transport |index| of |rank|, and otherwise the reason. Caches a
  // positive result.
  Status reach(int rank, const JobTransport& own, size_t index) HETCOMM_UNDER_BATON;
  // Returns false if, as far as known, no transport connects this rank with |rank|.
  bool may_reach(int rank) HETCOMM_UNDER_BATON;
  std::unique_ptr<PairConnect>& connect_of(int rank) HETCOMM_UNDER_BATON {
    return connects_[static_cast<size_t>(rank)];
  }
  // Requests the next profiles.
  void ask_next() HETCOMM_UNDER_BATON;
  void try_next(Pair& pair) HETCOMM_UNDER_BATON;
  void start_attempt(Pair& pair, PairConnect& connect, size_t index) HETCOMM_UNDER_BATON;
  void plan_next(int rank, PairConnect& connect) HETCOMM_UNDER_BATON;
  void end_connecting(int rank) HETCOMM_UNDER_BATON;
  uint64_t try_beside(uint64_t now_ns) HETCOMM_UNDER_BATON;
  bool was_late(PairConnect& connect,
                const PairConnect::Attempt& attempt) const HETCOMM_UNDER_BATON;
  void connected(JobTransport& transport, const Destination& destination,
                 Result<std::unique_ptr<Endpoint>> endpoint) HETCOMM_UNDER_BATON;
  void accepted(JobTransport& transport, int peer,
                std::unique_ptr<Endpoint> endpoint) HETCOMM_UNDER_BATON;
  void adopt(JobTransport& transport, const Destination& destination,
             std::unique_ptr<Endpoint> endpoint) HETCOMM_UNDER_BATON;
  template <typename Upcall>
  void guarded(int peer, Upcall&& upcall) HETCOMM_UNDER_BATON;

  ConnectionServices& services_;
  DataServices& data_;
  PairTurns& turns_;
  const PeerDirectory& peers_;
  ControlIntroducer introducer_;
  Introductions introductions_;
  PairTable& pairs_;
  JobTransports& transports_;
  IdleConnections& idle_;
  const size_t most_rails_;                                    // limit for each pair
  std::vector<std::unique_ptr<PairConnect>> connects_;         // by rank; null: not connecting
  std::set<int> connecting_;                                   // ranks with a |next_at_ns|
  uint64_t beside_at_ns_ HETCOMM_GUARDED_BY_BATON = kForever;  // the first |next_at_ns|, or earlier
  // By rank: whether each transport of this rank is known to reach each transport of that rank;
  // null: not determined yet.
  std::vector<std::unique_ptr<std::vector<bool>>> reaches_;
};

}  // namespace hetcomm
