// Connects NICs on one host to NICs on another. Pure: both ends of a pair that pass the lower
// rank's ports first get the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hetcomm::topology {

// A NIC that a host offers to a peer. Ports are listed in the order in which the data prefers their
// NICs.
struct Port {
  // 0: unknown, which counts as the slowest known rate. If no rate is known, both sides count as
  // equally fast, and the ports on each side as equal. A port that surely reaches another one is
  // then not tried with a port that it may not reach.
  uint64_t mbit_per_s = 0;
  std::vector<std::string> subnets;  // "192.0.2.0/24"
  std::string fabric;                // user's name for the port's network; empty: not set
};

// Whether the lists have a subnet in common.
bool share_a_subnet(const std::vector<std::string>& one, const std::vector<std::string>& other);

// Whether a connection between two ports can work.
enum class Reach : uint8_t {
  kYes,    // they share a subnet, or a fabric
  kMaybe,  // unknown: a connection must be tried
  kNo,     // they are in different fabrics, or were tried and failed
};
Reach reach(const Port& one, const Port& other);

struct PortPair {
  size_t lower = 0;         // index of the lower rank's port
  size_t upper = 0;         // index of the upper rank's port
  uint64_t mbit_per_s = 0;  // the rate that the pair should carry; 0: unknown
  bool operator==(const PortPair&) const = default;
};

using ReachFunction = std::function<Reach(size_t lower, size_t upper)>;

// Returns at most |most| pairs, the one with the highest rate first. Together they carry as much as
// possible: the sum of the slower side, if every port reaches ports on the other side with spare
// capacity. Ports are used in their order as far as possible. A pair that may not work is used only
// if the working pairs do not suffice. If more than |most| pairs are needed, the largest ones are
// kept, which need not be the best choice for that number.
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most, const ReachFunction& reach);
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most);

}  // namespace hetcomm::topology
