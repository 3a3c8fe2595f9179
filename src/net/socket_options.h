// Sets socket options, including those that detect an unreachable peer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace hetcomm {

inline constexpr uint64_t kMinDetectionNs = 2'000'000'000;

// Calls setsockopt() with an integer. The text of a failure starts with |what|.
Status set_socket_option(int fd, int level, int name, int value, std::string_view what);

// Binds |fd|, which must not be connected yet, to the interface |device|, so that it sends and
// receives only over that interface. Before Linux 5.7 this requires CAP_NET_RAW.
Status bind_to_device(int fd, const std::string& device);

// Sets TCP_NODELAY. No effect on local sockets.
void set_no_delay(int fd);
// Enables keepalive, so that the connection to an unreachable peer fails within |detection_ns|. The
// kernel counts in seconds and needs two: one of silence and one for the probe. A shorter time
// therefore counts as kMinDetectionNs. Use this only for connections that carry no bulk data: it
// also sets TCP_USER_TIMEOUT, which would break a connection with data in flight to a live peer
// that does not read. No effect on local sockets, whose other end is always reachable.
Status set_keepalive(int fd, uint64_t detection_ns);

}  // namespace hetcomm
