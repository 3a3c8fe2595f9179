// Makes a LinkModel from the ranks' descriptions of their hosts when there are no measurements.
// The function is pure: the same descriptions give the same model on every rank.
//
//   host     the ranks with the same host id, host label and cluster
//   NIC      one resource for each direction, with the NIC's rate
//   PCIe     one resource for each direction of a link; NICs behind one link share it
//   inside   latency and rate of the quickest transport that all ranks of the host have
//   path     latency and rate of the quickest transport that all ranks of both clusters have
//   cluster  the declared clusters, and one more for the hosts without a declared cluster
//
// The model has no resource for an unknown rate.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "src/base/host_id.h"
#include "src/base/status.h"
#include "topology/links/link_model.h"
#include "topology/machine/host_links.h"

namespace hetcomm::topology {

// Costs of one kind of transport, as all ranks have agreed on them.
struct EstimatedTransport {
  bool within_host = false;  // joins only ranks of one host
  uint64_t latency_ns = 0;
  uint64_t bytes_per_s = 0;  // rate of one transfer; 0: unknown
};

inline constexpr size_t kMaxEstimatedTransports = 64;

// One rank's description of its host. Everything that it refers to must outlive the call of
// estimate_links().
struct RankLinks {
  HostId host{};
  std::string_view label;            // label of the host, which may be any text
  std::string_view cluster;          // empty: none was declared
  uint64_t transports = 0;           // bit i: the rank has transport i of estimate_links()
  const HostLinks* links = nullptr;  // null: unknown
};

struct LinkEstimate {
  LinkModel model;           // checked and normalized
  std::vector<int> host_of;  // by rank: index in LinkModel::hosts
};

// Estimates the links. Different hosts with the same label get a number appended, in the order of
// their ranks. A host has the NICs of all its ranks, each as described by the first rank that lists
// it. PCIe links that never limit their NICs are left out if there would be too many resources.
// INVALID_ARGUMENT: the text names the LinkModel limit that the job exceeds.
Result<LinkEstimate> estimate_links(std::span<const RankLinks> ranks,
                                    std::span<const EstimatedTransport> transports);

}  // namespace hetcomm::topology
