// Connects NICs of one host to NICs of another. Pure: both ends of a pair that call it with the
// lower rank's ports first get the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hetcomm::topology {

// A NIC that a host offers to a peer. Ports are listed in the order in which the data prefers its
// NICs.
struct Port {
  // 0: unknown, which counts as the slowest known rate. If no rate is known, both sides count as
  // equally fast, and the ports of each side as equal. A port that surely reaches another one is
  // then not tried with a port that it may not reach.
  uint64_t mbit_per_s = 0;
  std::vector<std::string> subnets;  // "192.0.2.0/24"
  std::string fabric;                // the user's name for what is joined; empty: not set
};

// Whether some subnet is in both lists.
bool share_a_subnet(const std::vector<std::string>& one, const std::vector<std::string>& other);

// Whether a connection between two ports can work.
enum class Reach : uint8_t {
  kYes,    // they share a subnet, or a fabric
  kMaybe,  // unknown: a connection has to be tried
  kNo,     // they are in different fabrics, or were tried and failed
};
Reach reach(const Port& one, const Port& other);

struct PortPair {
  size_t lower = 0;  // index of the lower rank's port
  size_t upper = 0;
  uint64_t mbit_per_s = 0;  // the rate that it is meant to carry; 0: unknown
  bool operator==(const PortPair&) const = default;
};

using ReachFunction = std::function<Reach(size_t lower, size_t upper)>;

// Returns at most |most| pairs, the one that carries most first. Together they carry as much as
// possible: the sum of the slower side, if every port reaches ports of the other side with capacity
// left. Ports are used in their order as far as that allows. A pair that may not work is used only
// if the working pairs are not enough. If more than |most| pairs are needed, the largest ones are
// kept, which need not be the best choice of that number.
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most, const ReachFunction& reach);
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most);

}  // namespace hetcomm::topology
