// Creates sockets that listen. They do not check who connects; acceptor.h adds the proof.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/net/address.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

// Creates a non-blocking, close-on-exec listener. With port 0 it uses a free port (see
// bound_address()), from |ports| if given. Fails with OUT_OF_RESOURCES if none of |ports| is free.
// The IPv6 "any" address accepts IPv4 connections as well. Connections must arrive over interface
// |device|; if that is empty, over any.
Result<UniqueFd> listen_on(const Address& address, int backlog, const PortRange& ports = {},
                           const std::string& device = {});
Result<Address> bound_address(int fd);
// Returns the address of the other end of a connected socket.
Result<Address> connected_address(int fd);
// Returns whether this host's network namespace has |address|, so that a socket can be bound to it.
bool is_local(const Address& address);

}  // namespace hetcomm
