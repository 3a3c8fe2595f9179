// Makes a LinkModel from the ranks' descriptions of their hosts when there are no measurements.
// Pure: the same descriptions give the same model on every rank.
//
//   host     the ranks with one host id, host label and cluster
//   NIC      one resource for each direction, at the rate that the NIC has
//   PCIe     one resource for each direction; NICs behind one link share it
//   inside   latency and rate of the quickest transport that joins the ranks of the host
//   path     latency and rate of the quickest transport that all ranks of both clusters have
//   cluster  those that were declared; the hosts of no declared cluster are one more
//
// A rate that is unknown becomes no resource.
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

// A kind of transport that all ranks have agreed on.
struct EstimatedTransport {
  bool within_host = false;
  uint64_t latency_ns = 0;
  uint64_t bytes_per_s = 0;  // rate of one transfer; 0: unknown
};

inline constexpr size_t kMaxEstimatedTransports = 64;

// The links of one rank's host, as described by the rank. Everything that it refers to must outlive
// the call.
struct RankLinks {
  HostId host{};
  std::string_view label;            // label of the host; may be any text
  std::string_view cluster;          // empty: none was declared
  uint64_t transports = 0;           // bits of the rank's transports, by number
  const HostLinks* links = nullptr;  // null: unknown
};

struct LinkEstimate {
  LinkModel model;           // checked and normalized
  std::vector<int> host_of;  // index of LinkModel::hosts, by rank
};

// Estimates the links. Different hosts with the same label get a number appended, in the order of
// their ranks. A host has the NICs of all its ranks, each as described by the first rank that lists
// it. PCIe links that never limit their NICs are left out if there would be too many resources.
// INVALID_ARGUMENT: the text names the LinkModel limit that the job exceeds.
Result<LinkEstimate> estimate_links(std::span<const RankLinks> ranks,
                                    std::span<const EstimatedTransport> transports);

}  // namespace hetcomm::topology
