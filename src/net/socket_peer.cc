#include "src/net/socket_peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include <fmt/core.h>

#include "src/net/address.h"

namespace hetcomm {

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

}  // namespace hetcomm
