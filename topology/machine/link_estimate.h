// Estimates a LinkModel from the ranks' descriptions of their hosts, for use when there are no
// measurements. The function is pure, so all ranks compute the same model from the same
// descriptions. The parts of the model are derived as follows:
//
//   host     the ranks with the same host id, host label and cluster
//   NIC      one resource for each direction, with the NIC's rate
//   PCIe     one resource for each direction of a link, shared by the NICs behind the link
//   inside   latency and rate of the fastest transport that all ranks of the host have
//   path     latency and rate of the fastest transport that all ranks of both clusters have
//   cluster  the declared clusters, and one more for the hosts without a declared cluster
//
// A link, NIC or transport with an unknown rate gets no resource.
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

// The costs of one kind of transport. All ranks must use the same values.
struct EstimatedTransport {
  bool within_host = false;  // connects only ranks on the same host
  uint64_t latency_ns = 0;
  uint64_t bytes_per_s = 0;  // rate of one transfer; 0: unknown
};

inline constexpr size_t kMaxEstimatedTransports = 64;

// One rank's description of its host. The strings and the object to which it refers must stay valid
// during the call of estimate_links().
struct RankLinks {
  HostId host{};
  std::string_view label;            // label of the host; any text is valid
  std::string_view cluster;          // empty: no cluster was declared
  uint64_t transports = 0;           // bit i is set if the rank has transport i of estimate_links()
  const HostLinks* links = nullptr;  // null: unknown
};

struct LinkEstimate {
  LinkModel model;           // checked and normalized
  std::vector<int> host_of;  // by rank: index in LinkModel::hosts
};

// Estimates the model. If several hosts have the same label, numbers are appended to the labels of
// all but the first, in rank order. A host gets the NICs of all its ranks. Each NIC is as described
// by the first rank that lists it. If the model would have too many resources, PCIe links that
// never limit their NICs are omitted. Fails with INVALID_ARGUMENT if the job exceeds a limit of
// LinkModel. The text then names the limit.
Result<LinkEstimate> estimate_links(std::span<const RankLinks> ranks,
                                    std::span<const EstimatedTransport> transports);

}  // namespace hetcomm::topology
