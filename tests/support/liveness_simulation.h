// A job of many ranks in one thread: the judges of src/liveness on a simulated clock and network.
//
// The network is as unreliable as TCP between machines. A path may be cut in one direction. Data
// sent during the cut arrives later, through retransmissions with backoff. Kernels send
// acknowledgements, so a stopped process still acknowledges data. The kernel announces the end of a
// process, but the end of a host is not announced. Connections can be cut while both ends live, and
// a live process may refuse them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/liveness/judge.h"

namespace hetcomm_test {

namespace live = hetcomm::liveness;

inline constexpr uint64_t kMilli = 1'000'000;
inline constexpr uint64_t kSecond = 1'000'000'000;

class Simulation {
 public:
  enum class State : uint8_t { kRuns, kStopped, kDead, kGone };  // kGone: left the job

  // Creates a job in which |hosts| gives the host of each rank.
  Simulation(uint64_t seed, const std::vector<int>& hosts, uint64_t detection_ns);
  ~Simulation();
  Simulation(const Simulation&) = delete;

  int size() const { return static_cast<int>(nodes_.size()); }
  uint64_t now() const { return now_; }
  uint64_t detection_ns() const { return timing_.detection_ns; }
  std::mt19937_64& random() { return random_; }
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void start();
  // Runs until all ranks are connected to their neighbours. Returns false if |limit_ns| was too
  // short.
  bool run_until_ready(uint64_t limit_ns);
  void run(uint64_t duration_ns);
  void at(uint64_t when_ns, std::function<void()> action) { schedule(when_ns, std::move(action)); }

  void kill(int rank);
  void kill_host(int host);
  void stop(int rank);
  void resume(int rank);
  void leave(int rank);
  // Starts another process at the address of a dead rank.
  void restart(int rank) { restarted_.insert(rank); }
  // Makes |to|'s host refuse new connections from |from|, as a firewall does. Existing ones
  // continue.
  void refuse(int from, int to) { refused_.insert({from, to}); }
  // Starts or stops dropping frames from |from| to |to|.
  void cut(int from, int to, bool is_cut);
  // Cuts all paths between ranks of different groups.
  void partition(const std::vector<int>& groups);
  void heal();
  // Resets all connections between two live ranks.
  void reset_connections(int one, int other);
  void first_contact(int from, int to);
  // Makes |from| ask |to| for its profile, as at a job's first contact with it.
  void introduce(int from, int to);
  void abort(int rank, uint32_t communicator);

  State state(int rank) const;
  live::Fate fate(int of, int as_seen_by) const;
  bool declared_dead(int rank) const;
  int aborts_seen(int rank) const;
  uint64_t letters_seen(int rank) const;
  // Returns whether |rank| has the profile of |other|.
  bool has_profile(int rank, int other) const;
  size_t connections(int rank) const;
  // Returns the number of ranks that a tick of |rank| examines.
  size_t active_peers(int rank) const;
  // Returns the first verdict against a live rank that a running watcher reached, or an empty text.
  // Such a verdict violates safety.
  const std::string& violation() const { return violation_; }
  // Returns when the last rank learned of the fate of |rank|.
  uint64_t known_ns(int rank) const { return known_ns_[static_cast<size_t>(rank)]; }
  uint64_t frames() const { return frames_; }
  uint64_t bytes() const { return bytes_; }
  size_t most_connections() const { return most_connections_; }

 private:
  struct Node;
  struct Wire;
  struct Event {
    uint64_t at;
    uint64_t order;
    std::function<void()> action;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  Node& node(int rank) { return *nodes_[static_cast<size_t>(rank)]; }
  const Node& node(int rank) const { return *nodes_[static_cast<size_t>(rank)]; }
  void schedule(uint64_t when_ns, std::function<void()> action);
  uint64_t latency() { return 50'000 + below(150'000); }
  bool host_is_up(int rank) const;
  bool path(int from, int to) const;
  void connect(int from, int to);
  void answer_connect(int from, int to, uint64_t deadline_ns);
  void transmit(uint64_t wire, int side, uint64_t backoff_ns);
  void deliver(uint64_t wire, int side);
  void end_wires(int rank);
  void give(Node& to, std::function<void(Node&)> what);
  void arm(Node& of);
  void judge_death(int declared, int by, bool published);

  uint64_t now_ = 0;
  uint64_t order_ = 0;
  std::mt19937_64 random_;
  live::Timing timing_;
  std::vector<int> hosts_;
  std::shared_ptr<const live::Ring> ring_;
  std::shared_ptr<const std::vector<uint64_t>> incarnations_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<uint64_t, Wire> wires_;
  uint64_t next_wire_ = 1;
  std::priority_queue<Event> events_;
  std::set<int> dead_hosts_;
  std::set<int> restarted_;
  std::set<std::pair<int, int>> refused_;
  std::set<std::pair<int, int>> reached_;  // (initiating rank, accepting rank)
  std::set<std::pair<int, int>> cuts_;
  std::map<std::pair<int, int>, uint64_t> cut_since_;
  std::vector<int> groups_;
  uint64_t partition_changed_ns_ = 0;
  std::vector<uint64_t> known_ns_;
  std::string violation_;
  uint64_t frames_ = 0;
  uint64_t bytes_ = 0;
  size_t most_connections_ = 0;
};

}  // namespace hetcomm_test
