// Lists the network interfaces of this process's network namespace, and their addresses.
//
// The kernel reports the interfaces over a netlink socket (getifaddrs). Some sandboxes refuse such
// sockets (systemd's RestrictAddressFamilies, seccomp filters). The fallback queries the IPv4
// addresses through an ordinary socket (ioctl SIOCGIFCONF) and reads the IPv6 addresses from
// /proc/net/if_inet6. It does not list interfaces without an address.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace hetcomm {

// One address of an interface, or one interface without an address.
struct ListedAddress {
  std::string interface;       // "eth0", or the address's label: "eth0:1"
  uint32_t flags = 0;          // IFF_*
  uint32_t index = 0;          // the interface's index; 0: unknown
  sockaddr_storage address{};  // ss_family AF_UNSPEC: none
  sockaddr_storage netmask{};  // ss_family AF_UNSPEC: unknown
};

// Lists the interfaces, including those that are down, in the kernel's order. Fails if netlink
// fails and the fallback finds no address; the text names AF_NETLINK. [any-thread]
Result<std::vector<ListedAddress>> list_addresses_of_host();
// Lists the interfaces with the fallback. Fails if none has an address.
Result<std::vector<ListedAddress>> list_addresses_without_netlink();

}  // namespace hetcomm
