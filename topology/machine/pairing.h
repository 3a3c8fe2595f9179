// Which NIC of one host is connected to which NIC of another. Pure: both ends of a pair that call
// it with the lower rank's ports first have the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hetcomm::topology {

// A NIC as its host offers it to a peer, in the order in which the data in question prefers its
// NICs.
struct Port {
  // 0: unknown, which counts as the slowest of all that are known. Where none is known both sides
  // count as equally fast, and the ports of each as equal; a port that surely reaches another is
  // not tried with one that it may not reach.
  uint64_t mbit_per_s = 0;
  std::vector<std::string> subnets;  // "192.0.2.0/24"
  std::string fabric;  // a name by which the user says what is joined; empty: not said
};

// Some subnet is in both lists.
bool share_a_subnet(const std::vector<std::string>& one, const std::vector<std::string>& other);

// Whether a connection between two ports can work.
enum class Reach : uint8_t {
  kYes,    // they share a subnet, or a fabric
  kMaybe,  // nothing is known: somebody has to try
  kNo,     // they are of different fabrics, or were tried
};
Reach reach(const Port& one, const Port& other);

struct PortPair {
  size_t lower = 0;  // index of the lower rank's port
  size_t upper = 0;
  uint64_t mbit_per_s = 0;  // what it is meant to carry; 0: no rate is known
  bool operator==(const PortPair&) const = default;
};

using ReachFunction = std::function<Reach(size_t lower, size_t upper)>;

// At most |most| pairs, the one that carries most first, which together carry as much as can be:
// the sum of the poorer side where every port reaches some of the other side's that have room.
// Ports are used in their order as far as that allows, and a pair that may not work only where
// those that do are not enough. Where that takes more than |most| pairs the largest ones are kept,
// which need not be the best choice of so few.
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most, const ReachFunction& reach);
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most);

}  // namespace hetcomm::topology
