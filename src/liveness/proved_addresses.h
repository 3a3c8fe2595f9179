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
  // Records that |rank| has proved its identity at |address|.
  void add(int rank, const Address& address);
  // Returns whether |rank| has proved its identity at |address|, on any port. Returns false for
  // every loopback address, because each container has its own. Several hosts can have the same
  // address, such as a bridge's, so an address means nothing until the rank was reached there.
  bool contain(int rank, const Address& address) const;
  // Classifies the failure of |connector|, which tried to connect to |rank|.
  ConnectFailure failure_of(int rank, const Connector& connector) const;

 private:
  std::multimap<int, std::string> addresses_;  // by rank, as texts without a port
};

// Returns |address| as text without its port, or "local" for a local socket.
std::string without_port(const Address& address);

}  // namespace hetcomm::liveness
