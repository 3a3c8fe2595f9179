#include "transports/shm/passing.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace hetcomm::shm {
namespace {

using ControlBytes = std::array<char, CMSG_SPACE(sizeof(int) * kMaxPassed)>;

// Takes over the descriptors in |message|.
void collect(msghdr& message, std::vector<UniqueFd>& descriptors) {
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
}

}  // namespace

Status send_with(int socket, ConstByteSpan bytes, std::span<const int> descriptors) {
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) ControlBytes control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    if (errno == EPIPE || errno == ECONNRESET) return Status(Code::kPeerLost, "shm: peer has gone");
    if (errno == EAGAIN) return Code::kWouldBlock;
    return status_from_errno(errno, "shm: passing memory");
  }
  if (static_cast<size_t>(sent) != bytes.size()) {
    return Status(Code::kOutOfResources, "shm: the local socket's buffer is too small");
  }
  return {};
}

Status receive_with(int socket, size_t wanted, std::vector<std::byte>& bytes,
                    std::vector<UniqueFd>& descriptors) {
  while (bytes.size() < wanted) {
    std::array<std::byte, 256> buffer;
    iovec data{buffer.data(), std::min(buffer.size(), wanted - bytes.size())};
    alignas(cmsghdr) ControlBytes control{};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Code::kPending;
    if (got <= 0) return Status(Code::kPeerLost, "shm: peer has gone");
    collect(message, descriptors);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      return Status(Code::kOutOfResources, "shm: too many open files to take the peer's memory");
    }
    bytes.insert(bytes.end(), buffer.begin(), buffer.begin() + got);
  }
  return {};
}

}  // namespace hetcomm::shm
