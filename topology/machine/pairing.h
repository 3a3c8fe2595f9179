// Decides which NICs of one host are connected to which NICs of another. The functions are pure: if
// both ranks of a pair pass the lower rank's ports first, both get the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hetcomm::topology {

// A NIC that a host offers to a peer. In a list of ports, the NICs that the data prefers come
// first.
struct Port {
  // Rate of the NIC. 0: unknown. An unknown rate counts as the slowest known rate of both sides. If
  // no rate is known, both sides count as having the same total rate, shared equally by their
  // ports. In that case, a port that reaches another one for certain is paired only with ports that
  // it reaches for certain.
  uint64_t mbit_per_s = 0;
  std::vector<std::string> subnets;  // such as "192.0.2.0/24"
  std::string fabric;                // user's name for the port's network; empty: not set
  // Leads to rank 0, and is used only for a peer that no other port is known to reach.
  bool last_resort = false;
};

// Returns whether the lists have a subnet in common.
bool share_a_subnet(const std::vector<std::string>& one, const std::vector<std::string>& other);

// Says whether a connection between two ports can work.
enum class Reach : uint8_t {
  kYes,    // the ports share a subnet or a fabric
  kMaybe,  // unknown: a connection must be tried
  kNo,     // the ports are in different fabrics, or a connection was tried and failed
};
Reach reach(const Port& one, const Port& other);

struct PortPair {
  size_t lower = 0;         // index of the lower rank's port
  size_t upper = 0;         // index of the upper rank's port
  uint64_t mbit_per_s = 0;  // the rate that the pair should carry; 0: unknown
  bool operator==(const PortPair&) const = default;
};

using ReachFunction = std::function<Reach(size_t lower, size_t upper)>;

// Returns at most |most| pairs, the one with the highest rate first. Together the pairs carry as
// much as possible: the total rate of the slower side, if the ports reach each other. Ports are
// used in their order as far as possible. A pair that may not work is used only if the working
// pairs do not suffice. If more than |most| pairs are needed, those with the highest rates are
// kept. Another choice of |most| pairs might carry more.
//
// Ports of last resort are left out if other ports of both sides reach each other for certain, or
// if they reach nothing. Otherwise they carry all data: from one to another, or else between one of
// them and a usual port of the other side.
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most, const ReachFunction& reach);
std::vector<PortPair> pair_ports(const std::vector<Port>& lower, const std::vector<Port>& upper,
                                 size_t most);

}  // namespace hetcomm::topology
