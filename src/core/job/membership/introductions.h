// Introductions: in a large job two ranks exchange their profiles by the control plane before they
// connect for the first time. The lower rank of the two, which connects, asks. It gets an answer
// when the higher one has its profile, so both know each other once a connection arrives.
//
// A rank asks few others at a time. The time that an answer may take begins when the ask goes out:
//
//             send_next()           an answer
//   waiting -------------> asked ----------------> known
//      ^                     |                       |
//      |        ask()        v   no answer in time   | forgotten_by()
//      +---------------- overdue                     |
//      +---------------------------------------------+
//
// Under the baton.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/job/membership/peer_directory.h"
#include "src/net/address.h"
#include "src/net/credentials.h"
#include "src/system/clock.h"
#include "src/system/log.h"

namespace hetcomm {

// An introducer carries profiles between ranks. The control plane does it in a job.
class Introducer {
 public:
  // Sends this rank's profile to |rank|, which may answer with its own.
  virtual void ask_profile(int rank) HETCOMM_UNDER_BATON = 0;
  // The profile that |rank| has sent since the last remove_profile(); empty: none.
  virtual std::string find_profile(int rank) HETCOMM_UNDER_BATON = 0;
  virtual void remove_profile(int rank) HETCOMM_UNDER_BATON = 0;
  // |rank| takes control connections at |addresses|.
  virtual void learn_addresses(int rank, std::vector<Address> addresses) HETCOMM_UNDER_BATON = 0;

 protected:
  ~Introducer() = default;
};

class Introductions {
 public:
  struct Setup {
    int rank = 0;
    uint64_t detection_ns = 0;
  };
  // |credentials| are complete before the first call.
  Introductions(const Setup& setup, Log& log, PeerDirectory& peers, const Credentials& credentials,
                Introducer& introducer)
      : setup_(setup),
        log_(log),
        peers_(peers),
        credentials_(credentials),
        introducer_(introducer) {}
  Introductions(const Introductions&) = delete;
  Introductions& operator=(const Introductions&) = delete;

  // Whether the directory has the offers of |rank|, and |rank| has those of this one as far as this
  // one knows. Puts offers that have just come into the directory.
  bool knows(int rank) HETCOMM_UNDER_BATON;
  // Asks |rank| for its profile, in the next send_next() that has room for it.
  void ask(int rank) HETCOMM_UNDER_BATON;
  // Sends waiting asks. Returns whether it has sent some; next_timer_ns() is sooner then.
  bool send_next(uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Nobody waits for |rank| any more.
  void forget(int rank) HETCOMM_UNDER_BATON;
  // |rank| says that it has no profile of this one. So it is not known until it has answered again.
  void forgotten_by(int rank) HETCOMM_UNDER_BATON;
  // The ranks that have not answered in time, or not with a profile. They are not asked any more.
  std::vector<int> take_overdue(uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Why |rank|, which is overdue, has no offers.
  Status why(int rank) const HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;

 private:
  // Connections that the control plane makes for these at a time. It makes no more for letters.
  static constexpr size_t kMaxAsked = 16;

  // How long an answer may take. After that it is asked for again, as often as connecting is tried.
  uint64_t patience_ns() const HETCOMM_UNDER_BATON { return setup_.detection_ns / 10; }
  // For how long the control plane may try to connect.
  uint64_t attempt_ns() const HETCOMM_UNDER_BATON { return setup_.detection_ns / 3; }
  bool take_profile(int rank) HETCOMM_UNDER_BATON;
  // Whether |rank| may be asked now.
  bool has_room_for(int rank) const HETCOMM_UNDER_BATON;

  const Setup setup_;
  Log& log_;
  PeerDirectory& peers_;
  const Credentials& credentials_;
  Introducer& introducer_;
  std::deque<int> waiting_;             // in the order in which they are asked
  std::map<int, uint64_t> asked_ns_;    // by rank: when the ask went out
  std::map<int, uint64_t> overdue_ns_;  // by rank: when the last ask went out, while it has a place
  std::map<int, Status> refused_;       // profiles that could not be taken
  std::set<int> forgotten_by_;
};

}  // namespace hetcomm
