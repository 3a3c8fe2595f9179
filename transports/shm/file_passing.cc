#include "transports/shm/file_passing.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace hetcomm::shm {
namespace {

using ControlBytes = std::array<char, CMSG_SPACE(sizeof(int))>;

// Takes ownership of the descriptor in |message|, which holds at most one.
void collect(msghdr& message, UniqueFd& descriptor) {
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS ||
        at->cmsg_len < CMSG_LEN(sizeof(int))) {
      continue;
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(at), sizeof(int));
    descriptor.reset(fd);
  }
}

}  // namespace

Status send_with(int socket, ConstByteSpan bytes, int descriptor) {
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) ControlBytes control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
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

Status receive_with(int socket, size_t wanted, bool expected, Incoming& incoming) {
  while (incoming.bytes.size() < wanted) {
    std::array<std::byte, 256> buffer;
    iovec data{buffer.data(), std::min(buffer.size(), wanted - incoming.bytes.size())};
    alignas(cmsghdr) ControlBytes control;
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    // The kernel installs no more descriptors in this process than the control buffer can hold, and
    // reports any excess.
    const bool room = expected && !incoming.descriptor.valid();
    if (room) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_LEN(sizeof(int));
    }
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Code::kPending;
    if (got <= 0) return Status(Code::kPeerLost, "shm: peer has gone");
    if (room) collect(message, incoming.descriptor);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      if (room && !incoming.descriptor.valid()) {
        return Status(Code::kOutOfResources, "shm: too many open files to take the peer's memory");
      }
      return Status(Code::kInvalidArgument, "shm: peer sent more descriptors than it may");
    }
    incoming.bytes.insert(incoming.bytes.end(), buffer.begin(), buffer.begin() + got);
  }
  return {};
}

}  // namespace hetcomm::shm
