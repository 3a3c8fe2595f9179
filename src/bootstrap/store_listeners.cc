#include "src/bootstrap/store_listeners.h"

#include <optional>
#include <string>
#include <utility>

#include "src/net/listening_socket.h"

namespace hetcomm {
namespace {

constexpr int kBacklog = 4096;

// Listens on all hosts at |port|. If |port| is 0, uses the port that the first host's socket was
// assigned.
Result<StoreListeners> listen_at(const std::vector<Address>& hosts, uint16_t port) {
  StoreListeners listeners;
  for (const Address& host : hosts) {
    Result<UniqueFd> socket = listen_on(host.with_port(port), kBacklog);
    if (!socket.ok()) return socket.status();
    Result<Address> bound = bound_address(socket->get());
    if (!bound.ok()) return bound.status();
    port = bound->port();
    listeners.sockets.push_back(std::move(socket).value());
  }
  return listeners;
}

}  // namespace

Result<StoreListeners> listen_for_store(const std::vector<Address>& hosts,
                                        const std::vector<uint16_t>& ports) {
  std::optional<Status> failure;
  if (hosts.empty()) return Status(Code::kBootstrapFailed, "no address to listen on");
  for (const uint16_t port : ports) {
    Result<StoreListeners> listeners = listen_at(hosts, port);
    if (listeners.ok()) return listeners;
    const bool may_change = listeners.status().code() != Code::kPermissionDenied;
    if (!failure || may_change) failure = listeners.status();
  }
  return failure.value_or(Status(Code::kBootstrapFailed, "no port to listen on"));
}

}  // namespace hetcomm
