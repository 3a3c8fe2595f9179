#include "src/net/socket_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include <fmt/core.h>

namespace hetcomm {
namespace {

int family_of(int fd) {
  int family = AF_UNSPEC;
  socklen_t length = sizeof(family);
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
  return family;
}

}  // namespace

Status set_socket_option(int fd, int level, int name, int value, std::string_view what) {
  if (setsockopt(fd, level, name, &value, sizeof(value)) != 0) {
    return status_from_errno(errno, what);
  }
  return {};
}

Status bind_to_device(int fd, const std::string& device) {
  if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device.c_str(),
                 static_cast<socklen_t>(device.size() + 1)) != 0) {
    return status_from_errno(errno, fmt::format("SO_BINDTODEVICE {}", device));
  }
  return {};
}

void set_no_delay(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

Status set_keepalive(int fd, uint64_t detection_ns) {
  if (family_of(fd) == AF_UNIX) return {};
  // The kernel fails the connection at the first of the times idle, idle + interval, ... at which
  // the peer has been silent for the user timeout and a probe has been sent. Its timers are late by
  // up to a tenth, so the probes take nine tenths of the detection time. The last probe is sent at
  // the end of that.
  constexpr uint64_t kMaxSeconds = 32'767;
  const uint64_t wanted = std::max(detection_ns, kMinDetectionNs);
  const int seconds =
      static_cast<int>(std::clamp<uint64_t>(wanted / 10 * 9 / 1'000'000'000, 2, kMaxSeconds));
  const int interval = std::max(1, seconds / 5);
  const int count = std::min(3, (seconds - 1) / interval);
  const int idle = seconds - count * interval;
  HETCOMM_RETURN_IF_ERROR(set_socket_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle, "TCP_KEEPIDLE"));
  HETCOMM_RETURN_IF_ERROR(
      set_socket_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval, "TCP_KEEPINTVL"));
  HETCOMM_RETURN_IF_ERROR(set_socket_option(fd, IPPROTO_TCP, TCP_KEEPCNT, count, "TCP_KEEPCNT"));
  // No probe is sent while bytes are unacknowledged. The user timeout applies to them too.
  HETCOMM_RETURN_IF_ERROR(set_socket_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000 - 200,
                                            "TCP_USER_TIMEOUT"));
  return set_socket_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
}

}  // namespace hetcomm
