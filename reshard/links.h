// The routes between ranks, from a link model. Routes between equal ends are looked up once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "topology/links/link_model.h"

namespace hetcomm::reshard {

// A rank's location in a link model. An empty NIC means the first one of the host.
struct RankEnd {
  std::string host;
  std::string nic;
  auto operator<=>(const RankEnd&) const = default;
};

class Links {
 public:
  // |ends| has the location of each rank. Fails with NOT_FOUND if |model| lacks a host or a NIC;
  // the text names the rank.
  static Result<Links> create(topology::LinkModel model, const std::vector<RankEnd>& ends);

  const topology::LinkModel& model() const { return model_; }
  size_t ranks() const { return end_of_.size(); }
  // Returns the index of the rank's cluster in the model.
  int cluster(int rank) const { return location(rank).cluster; }
  // Where a rank is, by indices in the model. In the order of their locations ranks are as near to
  // each other as they can be.
  struct Location {
    int cluster = 0;
    int host = 0;
    int nic = 0;  // of the host
    auto operator<=>(const Location&) const = default;
  };
  const Location& location(int rank) const {
    return locations_[end_of_[static_cast<size_t>(rank)]];
  }
  // Returns the route between two ranks, which is empty between a rank and itself.
  const topology::Route& route(int from, int to) const { return routes_[index_of(from, to)]; }
  // Returns the rate of one transfer alone.
  uint64_t bytes_per_s(int from, int to) const { return rates_[index_of(from, to)]; }

 private:
  size_t index_of(int from, int to) const {
    if (from == to) return routes_.size() - 1;
    return end_of_[static_cast<size_t>(from)] * ends_ + end_of_[static_cast<size_t>(to)];
  }

  topology::LinkModel model_;
  size_t ends_ = 0;                      // number of different ends
  std::vector<Location> locations_;      // by end
  std::vector<size_t> end_of_;           // by rank
  std::vector<topology::Route> routes_;  // by pair of ends; the last one is empty
  std::vector<uint64_t> rates_;
};

}  // namespace hetcomm::reshard
