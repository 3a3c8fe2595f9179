// Sends and receives bytes and file descriptors over a local stream socket.
#pragma once

#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/unique_fd.h"

namespace hetcomm::shm {

// Sends |bytes|, with |descriptor| unless it is negative. kWouldBlock: the socket is full, and
// nothing was sent. kPeerLost: the peer has closed the socket. If only a part was sent, returns
// kOutOfResources, and the socket must not be used again.
Status send_with(int socket, ConstByteSpan bytes, int descriptor = -1);

// A partly received message. A complete message has as many bytes as receive_with() was asked for,
// and at most one descriptor.
struct Incoming {
  std::vector<std::byte> bytes;
  UniqueFd descriptor;
};

// Appends to |incoming| until it has |wanted| bytes. kPending: more bytes have yet to arrive.
// kPeerLost: the peer has closed the socket. kInvalidArgument: a descriptor arrived that was not
// |expected|, or a second one. The kernel discards that descriptor. kOutOfResources: this process
// cannot open more files.
Status receive_with(int socket, size_t wanted, bool expected, Incoming& incoming);

}  // namespace hetcomm::shm
