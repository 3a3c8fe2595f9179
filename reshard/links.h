// Links gives the routes between ranks, from a link model. A route is computed on first use, since
// a job with thousands of network interfaces uses only a few of their pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "topology/links/link_model.h"

namespace hetcomm::reshard {

// The location of a rank in a link model. An empty |nic| means the first NIC of the host.
struct RankEnd {
  std::string host;
  std::string nic;
  auto operator<=>(const RankEnd&) const = default;
};

// Not thread-safe: const methods also change a cache.
class Links {
 public:
  // |ends| has the location of each rank. Fails with NOT_FOUND if |model| lacks a host or a NIC.
  // The error text names the rank.
  static Result<Links> create(topology::LinkModel model, const std::vector<RankEnd>& ends);

  const topology::LinkModel& model() const { return model_; }
  size_t ranks() const { return end_of_.size(); }
  // Returns the index of the rank's cluster in the model.
  int cluster(int rank) const { return location(rank).cluster; }
  // The location of a rank, as indices in the model. Sorting ranks by location puts nearby ranks
  // next to each other.
  struct Location {
    int cluster = 0;
    int host = 0;
    int nic = 0;  // index among the host's NICs
    auto operator<=>(const Location&) const = default;
  };
  const Location& location(int rank) const {
    return locations_[end_of_[static_cast<size_t>(rank)]];
  }
  // Returns the route between two ranks. It is empty between a rank and itself.
  const topology::Route& route(int from, int to) const { return known(from, to).route; }
  // Returns the rate of a transfer that shares its route with no other.
  uint64_t bytes_per_s(int from, int to) const { return known(from, to).bytes_per_s; }

 private:
  struct KnownRoute {
    topology::Route route;
    uint64_t bytes_per_s = topology::kMaxBytesPerS;
  };

  const KnownRoute& known(int from, int to) const;

  topology::LinkModel model_;
  std::vector<RankEnd> ends_;        // the distinct locations of all ranks
  std::vector<Location> locations_;  // location of each of |ends_|
  std::vector<size_t> end_of_;       // indexed by rank: index in |ends_|
  KnownRoute none_;
  // The routes computed so far. The vector is indexed by the source's index in |ends_|, each map is
  // keyed by the destination's.
  mutable std::vector<std::unordered_map<size_t, KnownRoute>> routes_;
};

}  // namespace hetcomm::reshard
