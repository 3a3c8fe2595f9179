// Links gives the routes between ranks, from a link model. A route is computed when it is first
// asked for, since a job of thousands of network interfaces uses few of their pairs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "topology/links/link_model.h"

namespace hetcomm::reshard {

// A rank's location in a link model. An empty NIC means the first one of the host.
struct RankEnd {
  std::string host;
  std::string nic;
  auto operator<=>(const RankEnd&) const = default;
};

// Only one thread at a time may use an object, even a constant one.
class Links {
 public:
  // |ends| has the location of each rank. Fails with NOT_FOUND if |model| lacks a host or a NIC;
  // the text names the rank.
  static Result<Links> create(topology::LinkModel model, const std::vector<RankEnd>& ends);

  const topology::LinkModel& model() const { return model_; }
  size_t ranks() const { return end_of_.size(); }
  // Returns the index of the rank's cluster in the model.
  int cluster(int rank) const { return location(rank).cluster; }
  // The place of a rank, as indices in the model. Sorting ranks by location puts ranks that are
  // near each other next to each other.
  struct Location {
    int cluster = 0;
    int host = 0;
    int nic = 0;  // index among the host's NICs
    auto operator<=>(const Location&) const = default;
  };
  const Location& location(int rank) const {
    return locations_[end_of_[static_cast<size_t>(rank)]];
  }
  // Returns the route between two ranks, which is empty between a rank and itself.
  const topology::Route& route(int from, int to) const { return known(from, to).route; }
  // Returns the rate of one transfer alone.
  uint64_t bytes_per_s(int from, int to) const { return known(from, to).bytes_per_s; }

 private:
  struct KnownRoute {
    topology::Route route;
    uint64_t bytes_per_s = topology::kMaxBytesPerS;
  };

  const KnownRoute& known(int from, int to) const;

  topology::LinkModel model_;
  std::vector<RankEnd> ends_;        // distinct ends of all ranks
  std::vector<Location> locations_;  // location of each of |ends_|
  std::vector<size_t> end_of_;       // by rank: index in |ends_|
  KnownRoute none_;
  // Routes that are known so far, by the indices in |ends_| of their first and last end.
  mutable std::vector<std::unordered_map<size_t, KnownRoute>> routes_;
};

}  // namespace hetcomm::reshard
