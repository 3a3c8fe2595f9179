// Infers a LinkModel from measurements between hosts. The functions are pure: the same measurements
// give the same model on all ranks.
//
// The capacity of a resource is about the highest rate that was observed across it. The model
// includes a shared resource only if it would otherwise predict more than was observed:
//
//   NIC      each host has one resource for sending and one for receiving
//   single   limits one transfer between two clusters, or inside one; added if one transfer alone
//            gets less than its hosts' NICs allow, and several transfers together get more
//   trunk    joins two clusters, or the hosts of one cluster; added if simultaneous transfers get
//            less in total than their hosts' NICs allow
//   uplink   joins a cluster to all others, in one direction; added if transfers with several
//            clusters get less in total than the trunks allow
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "topology/links/link_clusters.h"
#include "topology/links/link_model.h"

namespace hetcomm::topology {

// The rate of one transfer from one host to another, or within one host, in bytes per second.
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
  std::vector<std::string> hosts;     // label of each host
  std::vector<std::string> clusters;  // name of each host's cluster; empty: infer() finds them
  std::vector<MeasuredLatency> latencies;
  // Each round contains the transfers that ran at the same time. A transfer that ran alone is a
  // round with one entry.
  std::vector<std::vector<MeasuredTransfer>> rounds;
  bool operator==(const LinkMeasurements&) const = default;
};

// This limit is above the size of any real measurement. It bounds the cost of reading a hostile
// file.
inline constexpr size_t kMaxMeasuredTransfers = 1u << 20;

// Checks measurements. The text of a failure names the fault, such as a rate of 0, a duplicate
// host, or a host that no transfer leaves or reaches.
Status check(const LinkMeasurements& measured);

// Infers a normalized model. Fails with INVALID_ARGUMENT if check() fails, or if clusters are
// declared and no transfer was measured between two of them.
Result<LinkModel> infer(const LinkMeasurements& measured);

// Returns, for each pair of hosts, the highest share of its NICs' rate that a transfer reached.
// find_clusters() uses shares instead of rates, so that a host with a slow NIC does not become a
// cluster. A transfer is used only if no other transfer of its round has the same sender or the
// same receiver.
PairShares pair_shares(const LinkMeasurements& measured);

}  // namespace hetcomm::topology
