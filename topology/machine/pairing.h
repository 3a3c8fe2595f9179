// Decides which NICs of one host are connected to which NICs of another. The functions are pure, so
// both ranks of a pair get the same result if both pass the lower rank's ports first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hetcomm::topology {

// A NIC that a host offers to a peer. Lists of ports are sorted by preference, best first.
struct Port {
  // The rate of the NIC, or 0 if unknown. An unknown rate is replaced by the slowest known rate of
  // both sides. If no rate is known, both sides are assumed to have the same total rate, divided
  // equally among their ports. In that case, a port that reaches another one for certain is paired
  // only with ports that it reaches for certain.
  uint64_t mbit_per_s = 0;
  std::vector<std::string> subnets;  // such as "192.0.2.0/24"
  std::string fabric;                // the user's name for the port's network; empty: not set
  // True if the port is used only for peers that no other port is known to reach. An example is a
  // slow NIC that leads to rank 0.
  bool last_resort = false;
};

// Returns whether the two lists have a subnet in common.
bool share_a_subnet(const std::vector<std::string>& one, const std::vector<std::string>& other);

// Specifies whether a connection between two ports can work.
enum class Reach : uint8_t {
  kYes,    // the ports share a subnet or a fabric
  kMaybe,  // unknown until a connection is tried
  kNo,     // the ports are in different fabrics, or the caller excludes the pair
};
Reach reach(const Port& one, const Port& other);

struct PortPair {
  size_t lower = 0;         // index of the lower rank's port
  size_t upper = 0;         // index of the upper rank's port
  uint64_t mbit_per_s = 0;  // planned rate of the pair; 0: unknown
  bool operator==(const PortPair&) const = default;
};

using ReachFunction = std::function<Reach(size_t lower, size_t upper)>;

// Returns at most |most| pairs, sorted by rate, fastest first. The pairs are selected so that their
// total rate is as high as possible. If all ports reach each other, this is the total rate of the
// slower side. Ports at the beginning of the lists are preferred. A pair that may not work is used
// only if the pairs that work for certain do not suffice. If more than |most| pairs are needed,
// only those with the highest rates are returned. Another selection of |most| pairs might have a
// higher total rate.
//
// Last-resort ports are not used if other ports of both sides reach each other for certain, or if
// no pair with a last-resort port can work. Otherwise every pair contains a last-resort port.
// Either all pairs contain two of them or all contain one. Pairs that work for certain are
// preferred, and then pairs of two.
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most, const ReachFunction& reach);
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most);

}  // namespace hetcomm::topology
