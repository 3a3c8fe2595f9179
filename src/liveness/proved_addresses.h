// ProvedAddresses records the addresses at which each rank has proved its identity. Ports are
// ignored.
#pragma once

#include <map>
#include <string>

#include "src/liveness/network.h"
#include "src/net/address.h"
#include "src/net/connector.h"

namespace hetcomm::liveness {

class ProvedAddresses {
 public:
  // Records that |rank| was proved at |address|.
  void add(int rank, const Address& address);
  // Returns whether |rank| was proved at |address|, on any port. A loopback address proves nothing,
  // because each container has its own. An address that several hosts may have, such as a bridge's,
  // proves something only after the rank was reached there.
  bool contain(int rank, const Address& address) const;
  // Returns what the failure of |connector|, which was to reach |rank|, says about the rank.
  ConnectFailure failure_of(int rank, const Connector& connector) const;

 private:
  std::multimap<int, std::string> addresses_;  // by rank, as texts without a port
};

// Returns |address| without its port.
std::string without_port(const Address& address);

}  // namespace hetcomm::liveness
