// Sends and receives bytes and file descriptors over a local stream socket.
#pragma once

#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/unique_fd.h"

namespace hetcomm::shm {

// Sends |bytes|, with |descriptor| unless it is negative. kWouldBlock: there is no room, and
// nothing was sent. If only a part was sent, returns an error, and the socket must not be used
// again.
Status send_with(int socket, ConstByteSpan bytes, int descriptor = -1);

// A partly received message. A complete message has |wanted| bytes and at most one descriptor.
struct Incoming {
  std::vector<std::byte> bytes;
  UniqueFd descriptor;
};

// Appends to |incoming| until it has |wanted| bytes. kPending: more bytes are still to arrive.
// kInvalidArgument: a descriptor arrived that is not |expected|, or a second one. The kernel
// discards that descriptor. kOutOfResources: this process may open no further files.
Status receive_with(int socket, size_t wanted, bool expected, Incoming& incoming);

}  // namespace hetcomm::shm
