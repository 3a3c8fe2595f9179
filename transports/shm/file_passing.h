// Sends and receives bytes and file descriptors over a local stream socket.
#pragma once

#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/unique_fd.h"

namespace hetcomm::shm {

// Sends |bytes| completely or not at all, with |descriptor| unless it is negative. kWouldBlock: no
// room.
Status send_with(int socket, ConstByteSpan bytes, int descriptor = -1);

// A partly received message. A complete message has |wanted| bytes and at most one descriptor.
struct Incoming {
  std::vector<std::byte> bytes;
  UniqueFd descriptor;
};

// Appends to |incoming| until it has |wanted| bytes. kPending: more bytes are still to arrive.
// Returns kInvalidArgument at once for a descriptor that is not |expected| or for a second
// descriptor, and closes that descriptor.
Status receive_with(int socket, size_t wanted, bool expected, Incoming& incoming);

}  // namespace hetcomm::shm
