#include "src/net/listening_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/core.h>

#include "src/net/socket_options.h"

namespace hetcomm {
namespace {

bool is_ipv6_any(const Address& address) { return address.with_port(0).to_string() == "[::]:0"; }

Result<UniqueFd> listen_at(const Address& address, int backlog, const std::string& device) {
  const std::string name = address.to_string();
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return status_from_errno(errno, fmt::format("listen on {}: socket", name));
  if (address.family() != AF_UNIX) {
    // SO_REUSEADDR frees a port that has only lingering connections of an earlier process, but not
    // one with a listener.
    HETCOMM_RETURN_IF_ERROR(
        set_socket_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  }
  if (!device.empty()) HETCOMM_RETURN_IF_ERROR(bind_to_device(fd.get(), device));
  if (address.family() == AF_INET6) {
    HETCOMM_RETURN_IF_ERROR(set_socket_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY,
                                              is_ipv6_any(address) ? 0 : 1, "IPV6_V6ONLY"));
  }
  if (::bind(fd.get(), address.get(), address.length()) != 0 || ::listen(fd.get(), backlog) != 0) {
    return status_from_errno(errno, fmt::format("listen on {}", name));
  }
  return fd;
}

}  // namespace

// The search starts at a port that depends on the process, so that ranks rarely collide.
Result<UniqueFd> listen_on(const Address& address, int backlog, const PortRange& ports,
                           const std::string& device) {
  if (ports.first == 0 || address.port() != 0 || address.family() == AF_UNIX) {
    return listen_at(address, backlog, device);
  }
  const int count = ports.last - ports.first + 1;
  const int start =
      static_cast<int>(static_cast<unsigned int>(getpid()) * 16 % static_cast<unsigned int>(count));
  Status failure;
  for (int i = 0; i < count; ++i) {
    const auto port = static_cast<uint16_t>(ports.first + (start + i) % count);
    Result<UniqueFd> listener = listen_at(address.with_port(port), backlog, device);
    if (listener.ok()) return listener;
    failure = listener.status();
    // A port that is in use or not permitted to this user (below 1024) is skipped.
    const bool next =
        failure.code() == Code::kInvalidArgument || failure.code() == Code::kPermissionDenied;
    if (!next) return failure;
  }
  return Status(Code::kOutOfResources,
                fmt::format("no port of HETCOMM_PORTS={}-{} is free; the last: {}", ports.first,
                            ports.last, failure.text()));
}

bool is_local(const Address& address) { return listen_at(address.with_port(0), 1, {}).ok(); }

Result<Address> bound_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getsockname(fd, address, &length) != 0) return status_from_errno(errno, "getsockname");
  return Address::from_sockaddr(address, length);
}

Result<Address> connected_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getpeername(fd, address, &length) != 0) return status_from_errno(errno, "getpeername");
  return Address::from_sockaddr(address, length);
}

}  // namespace hetcomm
