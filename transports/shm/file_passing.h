// Bytes and descriptors over a local stream socket.
#pragma once

#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/unique_fd.h"

namespace hetcomm::shm {

// Sends |bytes|, with |descriptor| unless it is negative, all or nothing. kWouldBlock: no room.
Status send_with(int socket, ConstByteSpan bytes, int descriptor = -1);

// A message that is still arriving. A whole one has |wanted| bytes and at most one descriptor.
struct Incoming {
  std::vector<std::byte> bytes;
  UniqueFd descriptor;
};

// Appends to |incoming| until it has |wanted| bytes. kPending: the rest has yet to come. A
// descriptor that is not |expected|, or a second one, ends this at once with kInvalidArgument, and
// this process does not keep it.
Status receive_with(int socket, size_t wanted, bool expected, Incoming& incoming);

}  // namespace hetcomm::shm
