// Introductions lets two ranks of a large job exchange their profiles over the control plane before
// they connect for the first time. The lower rank, which connects, sends the higher rank its
// profile as a request. The higher rank answers with its own profile, so both know each other when
// a connection arrives.
//
// A rank has only a few requests in progress at a time. The time limit for an answer starts when
// the request is sent:
//
//             send_next()           an answer
//   waiting -------------> asked ----------------> known
//      ^                     |                       |
//      |        ask()        v   no answer in time   | forgotten_by()
//      +---------------- overdue                     |
//      +---------------------------------------------+
//
// Callers hold the baton.
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

// An introducer carries profiles between ranks. In a job this is the control plane.
class Introducer {
 public:
  // Sends this rank's profile to |rank|, which may answer with its own.
  virtual void ask_profile(int rank) HETCOMM_UNDER_BATON = 0;
  // Returns the profile that |rank| has sent since the last remove_profile(); empty if there is
  // none.
  virtual std::string find_profile(int rank) HETCOMM_UNDER_BATON = 0;
  virtual void remove_profile(int rank) HETCOMM_UNDER_BATON = 0;
  // Records that |rank| accepts control connections at |addresses|.
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
  // |credentials| must be complete before the first call.
  Introductions(const Setup& setup, Log& log, PeerDirectory& peers, const Credentials& credentials,
                Introducer& introducer)
      : setup_(setup),
        log_(log),
        peers_(peers),
        credentials_(credentials),
        introducer_(introducer) {}
  Introductions(const Introductions&) = delete;
  Introductions& operator=(const Introductions&) = delete;

  // Returns whether this rank has the offers of |rank|, and, as far as is known here, |rank| has
  // those of this rank. First adds newly arrived offers to the directory.
  bool knows(int rank) HETCOMM_UNDER_BATON;
  // Queues a request for |rank|'s profile. send_next() sends it as soon as fewer than kMaxAsked
  // requests are in progress.
  void ask(int rank) HETCOMM_UNDER_BATON;
  // Sends waiting requests. Returns whether it has sent any. If so, next_timer_ns() may return an
  // earlier time than before.
  bool send_next(uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Drops all requests to |rank|, because it has answered or no operation waits for it any longer.
  void forget(int rank) HETCOMM_UNDER_BATON;
  // Records that |rank| has no profile of this rank. knows(|rank|) is false until |rank| has
  // answered again.
  void forgotten_by(int rank) HETCOMM_UNDER_BATON;
  // Returns the ranks that have not answered in time or whose profile was refused, and marks their
  // requests as overdue.
  std::vector<int> take_overdue(uint64_t now_ns) HETCOMM_UNDER_BATON;
  // Returns the reason why |rank|, which is overdue, has no offers.
  Status why(int rank) const HETCOMM_UNDER_BATON;
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON;

 private:
  // The most requests that are in progress at a time. A request is a letter of the control plane,
  // which opens at most this many connections for letters at a time (liveness/post_office.h).
  static constexpr size_t kMaxAsked = 16;

  // Returns the time limit for an answer. Afterwards the pair may try to connect again, which
  // repeats the request.
  uint64_t patience_ns() const HETCOMM_UNDER_BATON { return setup_.detection_ns / 10; }
  // Returns the control plane's time limit for an attempt to connect.
  uint64_t attempt_ns() const HETCOMM_UNDER_BATON { return setup_.detection_ns / 3; }
  bool take_profile(int rank) HETCOMM_UNDER_BATON;
  // Returns whether a request to |rank| may be sent now.
  bool has_room_for(int rank) const HETCOMM_UNDER_BATON;

  const Setup setup_;
  Log& log_;
  PeerDirectory& peers_;
  const Credentials& credentials_;
  Introducer& introducer_;
  std::deque<int> waiting_;           // ranks in the order in which they will be asked
  std::map<int, uint64_t> asked_ns_;  // by rank: when the request was sent
  // By rank: when its overdue request was sent. has_room_for() counts these requests.
  std::map<int, uint64_t> overdue_ns_;
  std::map<int, Status> refused_;  // by rank: why its profile was refused
  std::set<int> forgotten_by_;     // ranks that have no profile of this rank
};

}  // namespace hetcomm
