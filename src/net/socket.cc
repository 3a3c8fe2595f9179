#include "src/net/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

namespace hetcomm {
namespace {

Status set_option(int fd, int level, int name, int value, std::string_view what) {
  if (setsockopt(fd, level, name, &value, sizeof(value)) != 0) {
    return status_from_errno(errno, what);
  }
  return {};
}

int family_of(int fd) {
  int family = AF_UNSPEC;
  socklen_t length = sizeof(family);
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
  return family;
}

bool is_ipv6_any(const Address& address) { return address.with_port(0).to_string() == "[::]:0"; }

Result<UniqueFd> listen_at(const Address& address, int backlog) {
  const std::string name = address.to_string();
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return status_from_errno(errno, fmt::format("listen on {}: socket", name));
  if (address.family() != AF_UNIX) {
    // A port whose connections of an earlier process linger is free; one that is listened on is
    // not.
    HETCOMM_RETURN_IF_ERROR(set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  }
  if (address.family() == AF_INET6) {
    HETCOMM_RETURN_IF_ERROR(set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY,
                                       is_ipv6_any(address) ? 0 : 1, "IPV6_V6ONLY"));
  }
  if (::bind(fd.get(), address.get(), address.length()) != 0 || ::listen(fd.get(), backlog) != 0) {
    return status_from_errno(errno, fmt::format("listen on {}", name));
  }
  return fd;
}

}  // namespace

// Where the search starts depends on the process, so that ranks that start together seldom meet.
Result<UniqueFd> listen_on(const Address& address, int backlog, const PortRange& ports) {
  if (ports.first == 0 || address.port() != 0 || address.family() == AF_UNIX) {
    return listen_at(address, backlog);
  }
  const int count = ports.last - ports.first + 1;
  const int start =
      static_cast<int>(static_cast<unsigned int>(getpid()) * 16 % static_cast<unsigned int>(count));
  Status failure;
  for (int i = 0; i < count; ++i) {
    const auto port = static_cast<uint16_t>(ports.first + (start + i) % count);
    Result<UniqueFd> listener = listen_at(address.with_port(port), backlog);
    if (listener.ok()) return listener;
    failure = listener.status();
    // A port that is taken, or not this user's (below 1024), is passed over.
    const bool next =
        failure.code() == Code::kInvalidArgument || failure.code() == Code::kPermissionDenied;
    if (!next) return failure;
  }
  return Status(Code::kOutOfResources,
                fmt::format("no port of HETCOMM_PORTS={}-{} is free; the last: {}", ports.first,
                            ports.last, failure.text()));
}

bool is_local(const Address& address) { return listen_at(address.with_port(0), 1).ok(); }

Result<Address> bound_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getsockname(fd, address, &length) != 0) return status_from_errno(errno, "getsockname");
  return Address::from_sockaddr(address, length);
}

std::string peer_name(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (getpeername(fd, address, &length) != 0) return "unknown";
  if (storage.ss_family != AF_UNIX) return Address::from_sockaddr(address, length).to_string();
  Result<LocalPeer> peer = local_peer(fd);
  if (!peer.ok()) return "unknown";
  return fmt::format("local process {} of user {}", peer->process, peer->user);
}

Result<LocalPeer> local_peer(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return status_from_errno(errno, "SO_PEERCRED");
  }
  return LocalPeer{peer.pid, peer.uid};
}

Status check_same_user(int fd) {
  Result<LocalPeer> peer = local_peer(fd);
  if (!peer.ok()) return peer.status();
  if (peer->user == geteuid()) return {};
  return Status(Code::kPermissionDenied,
                fmt::format("process {} runs as user {}, this process as user {}", peer->process,
                            peer->user, geteuid()));
}

void set_no_delay(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

Status set_keepalive(int fd, uint64_t detection_ns) {
  if (family_of(fd) == AF_UNIX) return {};
  // The kernel fails the connection at the first of the moments idle, idle + interval, ... at which
  // the peer has been silent for the user timeout and a probe has been sent. Its timers are late by
  // up to a tenth, so the plan takes nine tenths of the time: several probes, the last at its end.
  constexpr uint64_t kMaxSeconds = 32'767;
  const uint64_t wanted = std::max(detection_ns, kMinDetectionNs);
  const int seconds =
      static_cast<int>(std::clamp<uint64_t>(wanted / 10 * 9 / 1'000'000'000, 2, kMaxSeconds));
  const int interval = std::max(1, seconds / 5);
  const int count = std::min(3, (seconds - 1) / interval);
  const int idle = seconds - count * interval;
  HETCOMM_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle, "TCP_KEEPIDLE"));
  HETCOMM_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval, "TCP_KEEPINTVL"));
  HETCOMM_RETURN_IF_ERROR(set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, count, "TCP_KEEPCNT"));
  // Holds for the few bytes that may be unacknowledged too: while there are any, no probe is sent.
  HETCOMM_RETURN_IF_ERROR(
      set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000 - 200, "TCP_USER_TIMEOUT"));
  return set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
}

}  // namespace hetcomm
