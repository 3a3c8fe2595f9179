// Sockets that listen, without any proof. acceptor.h puts the proof on top.
#pragma once

#include <string>

#include "src/base/status.h"
#include "src/net/address.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

// Creates a non-blocking, close-on-exec listener. Port 0 picks a free one (see bound_address), from
// |ports| if given; OUT_OF_RESOURCES if none of them is free. The IPv6 "any" address takes IPv4
// connections as well. |device| is the interface over which connections come; empty: any.
Result<UniqueFd> listen_on(const Address& address, int backlog, const PortRange& ports = {},
                           const std::string& device = {});
Result<Address> bound_address(int fd);
// The other end of a connected socket.
Result<Address> connected_address(int fd);
// Returns whether this host (its network namespace) has |address|. Only then can it be bound.
bool is_local(const Address& address);

}  // namespace hetcomm
