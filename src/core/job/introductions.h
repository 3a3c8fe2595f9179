// Introductions: in a large job two ranks exchange their profiles by the control plane before they
// connect for the first time. The lower rank of the two, which connects, asks. It gets an answer
// when the higher one has its profile, so both know each other once a connection arrives. Under the
// baton.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/core/job/peer_directory.h"
#include "src/core/peer/pair_commons.h"
#include "src/net/credentials.h"

namespace hetcomm {

class Introductions {
 public:
  // |credentials| are complete before the first call.
  Introductions(PairCommons& commons, PeerDirectory& peers, const Credentials& credentials)
      : commons_(commons), peers_(peers), credentials_(credentials) {}
  Introductions(const Introductions&) = delete;
  Introductions& operator=(const Introductions&) = delete;

  // Whether the directory has the offers of |rank|. Those that have just come are put there.
  bool knows(int rank) HETCOMM_UNDER_BATON;
  // Asks |rank| for its profile.
  void ask(int rank) HETCOMM_UNDER_BATON;
  bool is_asking(int rank) const HETCOMM_UNDER_BATON { return asked_ns_.contains(rank); }
  void forget(int rank) HETCOMM_UNDER_BATON { asked_ns_.erase(rank); }
  // The ranks that have not answered in time, or not with a profile. They are not asked any more.
  std::vector<int> take_overdue(uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Why |rank|, which is overdue, has no offers.
  Status why(int rank) const HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;

 private:
  // How long an answer may take. It is asked for again then, as often as connecting is tried.
  uint64_t patience_ns() const HETCOMM_UNDER_BATON { return commons_.detection_ns / 10; }

  PairCommons& commons_;
  PeerDirectory& peers_;
  const Credentials& credentials_;
  std::map<int, uint64_t> asked_ns_;  // by rank
  std::map<int, Status> refused_;     // profiles that could not be taken
};

}  // namespace hetcomm
