// Silently cuts TCP connections over loopback, as a firewall or a broken link does. Packets to a
// socket of this process are dropped before the kernel's TCP sees them, so they are not
// acknowledged.
#pragma once

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

namespace hetcomm::test {

struct SocketEnds {
  uint16_t local = 0;
  uint16_t peer = 0;
};

inline constexpr int kMaxDescriptors = 1024;

inline bool drop_what_arrives(int fd) {
  sock_filter drop{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &drop};
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0;
}

// Makes the listeners of this process unreachable, as if their host were gone.
inline int cut_listeners() {
  int cut = 0;
  for (int fd = 3; fd < kMaxDescriptors; ++fd) {
    int listening = 0;
    socklen_t length = sizeof(listening);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) != 0) continue;
    if (listening != 0 && drop_what_arrives(fd)) ++cut;
  }
  return cut;
}

// Returns the ports of an IPv4 connection, or nullopt for any other descriptor.
inline std::optional<SocketEnds> ends_of(int fd) {
  sockaddr_in local{};
  sockaddr_in peer{};
  socklen_t length = sizeof(local);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &length) != 0) return std::nullopt;
  if (local.sin_family != AF_INET) return std::nullopt;
  length = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return std::nullopt;
  return SocketEnds{ntohs(local.sin_port), ntohs(peer.sin_port)};
}

// Cuts incoming traffic on those connections of this process whose ends |which| selects. Outgoing
// data still reaches the peer, unless the peer's incoming traffic is cut too. Returns the number of
// connections cut.
template <typename Which>
int cut_sockets(Which&& which) {
  int cut = 0;
  for (int fd = 3; fd < kMaxDescriptors; ++fd) {
    const std::optional<SocketEnds> ends = ends_of(fd);
    if (!ends || !which(*ends)) continue;
    if (drop_what_arrives(fd)) ++cut;
  }
  return cut;
}

// Extracts the port of the peer's listener from the description of a tcp endpoint or communicator.
inline uint16_t port_in(const std::string& description) {
  const std::string before = " to 127.0.0.1:";
  const size_t at = description.find(before);
  if (at == std::string::npos) return 0;
  return static_cast<uint16_t>(std::atoi(description.c_str() + at + before.size()));
}

}  // namespace hetcomm::test
