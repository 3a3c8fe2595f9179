// NetworkListener listens on the network interfaces that a context uses (choose_interfaces()), for
// transports that connect over TCP.
//
// There is one Acceptor for each family: on the chosen address, or on all addresses of the family
// if several were chosen. If Options::device is set, one more Acceptor on loopback accepts the
// connections of ranks on this host. Link-local IPv6 addresses are left out unless one of them
// leads to the other ranks (link_local_scope()). The poller drives the listener, which never
// blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "src/net/acceptor.h"
#include "src/net/listening_host.h"
#include "src/system/config.h"

namespace hetcomm {

class NetworkListener final {
 public:
  // Creates each Acceptor with |options|, but held and with the ports of HETCOMM_PORTS. If
  // |interface| is not empty, listens only on that one of |chosen|. Error texts start with |name|.
  // A family on which listening fails is logged and left out. Fails if no family is left or none
  // was chosen.
  static Result<std::unique_ptr<NetworkListener>> create(
      Poller& poller, Log& log, const Config& config, const ChosenInterfaces& chosen,
      std::string_view interface, std::string_view name, Acceptor::Options options,
      AcceptHandler& handler);

  // Returns the addresses that are sent to peers.
  const ListeningHost& host() const { return host_; }
  // Returns the interface of each address in host().
  const std::vector<std::string>& interfaces() const { return interfaces_; }

  // Starts checking connections against |credentials|. Called once.
  Status open(const Credentials& credentials);
  void expire(uint64_t now_ns);
  uint64_t next_timer_ns() const;
  // Returns the reason for which a connection was last dropped, or OK if none was.
  Status last_rejection() const;

 private:
  NetworkListener() = default;

  ListeningHost host_;
  std::vector<std::string> interfaces_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;
};

}  // namespace hetcomm
