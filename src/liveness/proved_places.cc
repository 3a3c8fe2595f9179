#include "src/liveness/proved_places.h"

#include <sys/socket.h>

#include <algorithm>
#include <vector>

namespace hetcomm::liveness {

std::string place_of(const Address& address) {
  return address.family() == AF_UNIX ? "local" : address.with_port(0).to_string();
}

void ProvedPlaces::add(int rank, const Address& address) {
  if (!contain(rank, address)) places_.emplace(rank, place_of(address));
}

bool ProvedPlaces::contain(int rank, const Address& address) const {
  if (address.is_loopback() && address.family() != AF_UNIX) return false;
  const auto [begin, end] = places_.equal_range(rank);
  const std::string place = place_of(address);
  return std::any_of(begin, end, [&](const auto& one) { return one.second == place; });
}

ConnectFailure ProvedPlaces::failure_of(int rank, const Connector& connector) const {
  const auto& other = connector.other_process();
  if (other && contain(rank, other->address)) return ConnectFailure::kOtherIncarnation;
  const std::vector<Address>& refused = connector.refused();
  const bool refuses = std::any_of(refused.begin(), refused.end(),
                                   [&](const Address& address) { return contain(rank, address); });
  return refuses ? ConnectFailure::kRefused : ConnectFailure::kOther;
}

}  // namespace hetcomm::liveness
