#include "src/liveness/proved_addresses.h"

#include <sys/socket.h>

#include <algorithm>
#include <vector>

namespace hetcomm::liveness {

std::string without_port(const Address& address) {
  return address.family() == AF_UNIX ? "local" : address.with_port(0).to_string();
}

void ProvedAddresses::add(int rank, const Address& address) {
  if (!contain(rank, address)) addresses_.emplace(rank, without_port(address));
}

bool ProvedAddresses::contain(int rank, const Address& address) const {
  if (address.is_loopback() && address.family() != AF_UNIX) return false;
  const auto [begin, end] = addresses_.equal_range(rank);
  const std::string proved = without_port(address);
  return std::any_of(begin, end, [&](const auto& one) { return one.second == proved; });
}

ConnectFailure ProvedAddresses::failure_of(int rank, const Connector& connector) const {
  const auto& other = connector.other_process();
  if (other && contain(rank, other->address)) return ConnectFailure::kOtherIncarnation;
  const std::vector<Address>& refused = connector.refused();
  const bool refuses = std::any_of(refused.begin(), refused.end(),
                                   [&](const Address& address) { return contain(rank, address); });
  return refuses ? ConnectFailure::kRefused : ConnectFailure::kOther;
}

}  // namespace hetcomm::liveness
