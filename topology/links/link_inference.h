// Makes a LinkModel from measurements between hosts. Pure: the same measurements give the same
// model on all ranks.
//
// The capacity of a resource is the highest rate that was observed to cross it. The model includes
// a shared resource only if it would otherwise predict more than was observed:
//
//   NIC      each host has one resource for sending and one for receiving
//   single   limit on one transfer between two clusters, if it is below the hosts' capacity and
//            several transfers together are faster
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

// The rate of one transfer, in bytes per second, from one host to another, or within one host.
struct MeasuredTransfer {
  int from = 0;              // index of the sending host in LinkMeasurements::hosts
  int to = 0;                // index of the receiving host in LinkMeasurements::hosts
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
  std::vector<std::string> clusters;  // the cluster of each host; empty: inferred
  std::vector<MeasuredLatency> latencies;
  // Transfers that were measured at the same time. A single transfer is a separate round.
  std::vector<std::vector<MeasuredTransfer>> rounds;
  bool operator==(const LinkMeasurements&) const = default;
};

// Above any real measurement, so that a hostile file costs little.
inline constexpr size_t kMaxMeasuredTransfers = 1u << 20;

// Checks measurements. A failure names the wrong object: a rate of 0, a duplicate host, a host that
// no transfer leaves.
Status check(const LinkMeasurements& measured);

// Infers a normalized model. INVALID_ARGUMENT: check() fails, or clusters are declared and no
// transfer was measured between two of them.
Result<LinkModel> infer(const LinkMeasurements& measured);

// Returns the best share of their own NICs' rate that each pair of hosts reached. Clusters are
// found by shares instead of rates, so that a host with a slow NIC does not become a cluster. A
// transfer counts only if its hosts had no concurrent transfer in the same direction.
PairShares pair_shares(const LinkMeasurements& measured);

}  // namespace hetcomm::topology
