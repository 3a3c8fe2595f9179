// Options of sockets: no delay, and the detection of a peer that is cut off.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace hetcomm {

inline constexpr uint64_t kMinDetectionNs = 2'000'000'000;

// setsockopt() with an integer. |what| starts the text of a failure.
Status set_socket_option(int fd, int level, int name, int value, std::string_view what);

// Binds |fd|, which is not connected yet, to the interface |device|: it sends and receives over no
// other one. Before Linux 5.7 this takes CAP_NET_RAW.
Status bind_to_device(int fd, const std::string& device);

// TCP_NODELAY. No effect on local sockets.
void set_no_delay(int fd);
// Keepalive, so that a peer that is cut off fails the connection within |detection_ns|. The kernel
// counts in seconds and needs two, one of silence and one for the probe, so less than
// kMinDetectionNs counts as kMinDetectionNs. Use it only for connections that carry no bulk data:
// it sets TCP_USER_TIMEOUT too, which would kill a connection with data in flight to a live peer
// that does not read. No effect on local sockets, whose other end cannot be cut off.
Status set_keepalive(int fd, uint64_t detection_ns);

}  // namespace hetcomm
