// A LinkModel describes the capacity of the links between hosts: the resources that bytes between
// two hosts cross, the rate of each resource, and the latency of the whole route. It identifies
// hosts by their labels and contains no ranks. Its size grows with the number of hosts and of pairs
// of clusters.
//
// A full-duplex link is two resources, one for each direction, because bytes in one direction do
// not reduce the rate of the other. A resource that both directions share, such as the memory of a
// host, is in the lists of both.
//
// Times are whole nanoseconds and rates are whole bytes per second, so that all ranks compute the
// same results from one model. A LinkModel from link_model_json.h or link_inference.h has passed
// check() and is normalized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace hetcomm::topology {

// The kinds of resources. A resource carries bytes, and several routes can share it.
enum class ResourceKind : uint8_t {
  kMemory,  // memory of a host
  kPcie,    // a link of the PCIe tree
  kNic,     // one direction of a NIC
  kUplink,  // joins a cluster to all others
  kTrunk,   // joins two clusters, or the hosts of one cluster
};

struct LinkResource {
  std::string name;  // unique in the model
  ResourceKind kind = ResourceKind::kNic;
  uint64_t bytes_per_s = 0;  // never 0
  bool operator==(const LinkResource&) const = default;
};

// A NIC of a host. |out| lists the resources that a byte crosses from memory to the network, and
// |in| those that it crosses from the network to memory. Both hold indices in LinkModel::resources,
// in the order of crossing.
struct LinkNic {
  std::string name;  // unique on the host; may be empty
  std::vector<int> out;
  std::vector<int> in;
  bool operator==(const LinkNic&) const = default;
};

struct LinkHost {
  std::string label;
  int cluster = 0;            // index in LinkModel::clusters
  uint64_t latency_ns = 0;    // between two ranks of the host; 0: unknown
  std::vector<int> inside;    // resources between two ranks of the host; empty: unknown
  std::vector<LinkNic> nics;  // the first one is the default
  bool operator==(const LinkHost&) const = default;
};

// The part of a route between the NICs of two hosts, which are in one cluster or in two.
struct ClusterPath {
  bool exists = false;
  uint64_t latency_ns = 0;          // from memory to memory, NICs included; 0: unknown
  std::vector<int> resources;       // shared by all pairs of hosts on this path
  uint64_t single_bytes_per_s = 0;  // limit on a single transfer; 0: only |resources| limit it
  bool operator==(const ClusterPath&) const = default;
};

struct LinkModel {
  std::string source;  // origin of the model, as text for users
  std::vector<LinkResource> resources;
  std::vector<std::string> clusters;
  std::vector<LinkHost> hosts;
  // The path from cluster a to cluster b is at a * clusters.size() + b.
  std::vector<ClusterPath> paths;

  // Returns the index of the host with |label|, or -1. The model must be normalized.
  int find_host(std::string_view label) const;
  const ClusterPath& path(int from, int to) const {
    return paths[static_cast<size_t>(from) * clusters.size() + static_cast<size_t>(to)];
  }
  ClusterPath& path(int from, int to) {
    return paths[static_cast<size_t>(from) * clusters.size() + static_cast<size_t>(to)];
  }
  bool operator==(const LinkModel&) const = default;
};

// These limits are above the size of any real job. They bound the cost of reading a hostile file.
inline constexpr size_t kMaxLinkHosts = 4096;
inline constexpr size_t kMaxLinkClusters = 128;
inline constexpr size_t kMaxLinkResources = 32768;
inline constexpr size_t kMaxLinkNics = 64;   // per host
inline constexpr size_t kMaxCrossed = 32;    // resources in one list
inline constexpr size_t kMaxLinkName = 127;  // bytes in a name or a label
inline constexpr uint64_t kMaxLatencyNs = 3'600'000'000'000;
inline constexpr uint64_t kMaxBytesPerS = 1'000'000'000'000'000;

// Checks a model. The text of a failure names the fault, such as a rate of 0, two hosts with one
// label, a pair of clusters without a path, an invalid index, or too many objects.
Status check(const LinkModel& model);
// Sorts hosts, clusters and resources by name. |model| must have passed check().
void normalize(LinkModel& model);
// Returns a hash of the content, without |source|. |model| must be normalized. The hash is the same
// on all processors.
uint64_t hash_of(const LinkModel& model);

// One end of a route: a host, and the NIC that its data uses. If |nic| is empty, the data uses the
// host's first NIC.
struct LinkEnd {
  std::string_view host;
  std::string_view nic;
};

// The resources that bytes cross from one end to the other.
struct Route {
  std::vector<int> resources;  // in the order in which a byte crosses them
  uint64_t latency_ns = 0;
  uint64_t single_bytes_per_s = 0;  // limit on a single transfer; 0: only |resources| limit it
};

// Computes the route from one end to the other. Fails with NOT_FOUND if the model lacks a host or a
// NIC, which the text names.
Result<Route> route(const LinkModel& model, const LinkEnd& from, const LinkEnd& to);

// Returns the rate of each of |routes|, in bytes per second, when all are used at the same time.
// The rates are max-min fair: one of them could grow only at the expense of one that is not
// greater. A route without resources and without a limit of its own gets kMaxBytesPerS.
std::vector<uint64_t> rates(const LinkModel& model, const std::vector<Route>& routes);
// Returns the rate of |route|, in bytes per second, when no other route is used.
uint64_t rate_alone(const LinkModel& model, const Route& route);
// Returns how many nanoseconds |bytes| take at |bytes_per_s|, rounded up, and at most
// kMaxTransferNs, which is 146 years. |bytes_per_s| must be from 1 to kMaxBytesPerS.
inline constexpr uint64_t kMaxTransferNs = uint64_t{1} << 62;
uint64_t transfer_ns(uint64_t bytes, uint64_t bytes_per_s);

}  // namespace hetcomm::topology
