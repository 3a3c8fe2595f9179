// Makes a LinkModel from measurements between hosts. Pure: the same measurements give the same
// model on all ranks.
//
// The capacity of a resource is the most that was ever seen to cross it. The model includes a
// shared resource only if it would otherwise promise more than was seen:
//
//   NIC      each host has one resource for what it sends and one for what it receives
//   single   what one transfer gets between two clusters, where that is less than the hosts can do
//            and several transfers get more together
//   trunk    between two clusters, or the hosts of one, where disjoint pairs together get less than
//            their hosts could do
//   uplink   of a cluster, towards or from all others, where pairs with several clusters get less
//            than the trunks would carry
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "topology/links/link_clusters.h"
#include "topology/links/link_model.h"

namespace hetcomm::topology {

// The rate of one transfer, in bytes per second, from one host to another, or within one.
struct MeasuredTransfer {
  int from = 0;  // indices of LinkMeasurements::hosts
  int to = 0;
  uint64_t bytes_per_s = 0;  // never 0
  bool operator==(const MeasuredTransfer&) const = default;
};

struct MeasuredLatency {
  int from = 0;
  int to = 0;
  uint64_t latency_ns = 0;
  bool operator==(const MeasuredLatency&) const = default;
};

struct LinkMeasurements {
  std::string source;
  std::vector<std::string> hosts;     // labels
  std::vector<std::string> clusters;  // the cluster of each host; empty: to be found
  std::vector<MeasuredLatency> latencies;
  // Transfers that were measured at the same time. A single transfer is a round of its own.
  std::vector<std::vector<MeasuredTransfer>> rounds;
  bool operator==(const LinkMeasurements&) const = default;
};

// More than any real measurement has, so that a hostile file costs little.
inline constexpr size_t kMaxMeasuredTransfers = 1u << 20;

// Fails with the name of the wrong object: a rate of 0, a host twice, a host that no transfer
// leaves.
Status check(const LinkMeasurements& measured);

// Returns the model, in order. INVALID_ARGUMENT: check() fails, or clusters are declared and no
// transfer was measured between two of them.
Result<LinkModel> infer(const LinkMeasurements& measured);

// The best share of their own NICs' rate that each pair of hosts got. Clusters are found by shares
// and not by rates, so that a host with a slow NIC is no cluster of its own. A transfer counts only
// if its hosts had no other transfer in the same direction at the same time.
PairShares pair_shares(const LinkMeasurements& measured);

}  // namespace hetcomm::topology
