// Defines socket addresses, and chooses the network interfaces that a context uses.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/system/config.h"

namespace hetcomm {

// Address is an IPv4, IPv6 or abstract local (unix) socket address.
class Address {
 public:
  Address() = default;
  static Address from_sockaddr(const sockaddr* address, socklen_t length);
  // Returns an abstract local address, which has no file and is valid in this network namespace.
  // The name can have at most 106 bytes. A longer name gives an address without a family.
  static Address local(std::string_view abstract_name);
  // Parses a numeric address: "10.0.0.1", "::1", "fe80::1%eth0". Fails with INVALID_ARGUMENT if
  // |text| is not numeric, or if its scope names no interface.
  static Result<Address> parse_numeric(std::string_view text, uint16_t port);
  // Resolves a host name; may block. Returns at least one address, best first. Fails with NOT_FOUND
  // if there is none.
  static Result<std::vector<Address>> resolve(const std::string& host, uint16_t port);

  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  Address with_port(uint16_t port) const;
  bool is_loopback() const;
  // Returns how many leading bits two IP addresses of one family have in common.
  size_t common_prefix_bits(const Address& other) const;
  // Returns whether the addresses are equal apart from their ports.
  bool is_same_host(const Address& other) const;
  // Returns whether the address is in IPv4 169.254.0.0/16 or IPv6 fe80::/10.
  bool is_link_local() const;
  // Returns whether the address needs a scope: a link-local IPv6 address is unusable without the
  // number of its interface. Scope 0 means unknown, as for an address that a peer has sent.
  bool needs_scope() const { return family() == AF_INET6 && is_link_local(); }
  uint32_t scope() const;
  // Returns this address, with |scope| added if it needs a scope and has none.
  Address with_scope(uint32_t scope) const;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  // Returns "10.0.0.1:4000", "[fe80::1%eth0]:4000", "local:name".
  std::string to_string() const;

  // Returns the bytes of an IP address in network order; none for other families.
  ConstByteSpan host_bytes() const;

  // encode() omits the link-local scope. decode() fails with INVALID_ARGUMENT if the input is
  // malformed.
  void encode(ByteWriter& writer) const;
  static Result<Address> decode(ByteReader& reader);

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// Returns how many leading bits two addresses have in common.
size_t common_prefix_bits(ConstByteSpan one, ConstByteSpan other);

// One usable address of an interface that is up.
struct InterfaceAddress {
  std::string interface;
  Address address;  // port 0
};
using ChosenInterfaces = Result<std::vector<InterfaceAddress>>;

// Chooses the addresses of this host that match HETCOMM_INTERFACE and HETCOMM_FAMILY, best first.
// They are sorted by the matching entry of HETCOMM_INTERFACE. |route| then comes before all others,
// link-local addresses come last, non-loopback precedes loopback, and IPv4 precedes IPv6. |route|
// is an address that is known to lead to the other ranks, if there is one; it counts only if
// HETCOMM_INTERFACE is empty. Fails if no address matches; the text lists the addresses that exist.
//
// An empty HETCOMM_INTERFACE chooses all interfaces that are up. Loopback is among them, so that
// single-host jobs work without a network. |route| is chosen even if its interface has no carrier
// yet. Bridges without a physical interface are left out if another address leads out of this host.
ChosenInterfaces choose_interfaces(const Config& config, const Address& route = {});

// Returns the scope of all link-local IPv6 addresses that ranks send each other. If the first
// address in |chosen| is link-local, its interface leads to the other ranks, and the result is the
// scope of that interface. Otherwise link-local addresses cannot be used, and the result is 0.
uint32_t link_local_scope(const std::vector<InterfaceAddress>& chosen);
// Returns whether |address| can be sent to the peers of a rank with |link_local_scope|.
inline bool can_be_told(const Address& address, uint32_t link_local_scope) {
  return !address.needs_scope() || (link_local_scope != 0 && address.scope() == link_local_scope);
}

// Returns whether this host answers on |interface| for IPv4 addresses of its other interfaces
// (arp_ignore is 0).
bool answers_for_others(const std::string& interface);

// A range of ports to listen on. Both ends are included.
struct PortRange {
  uint16_t first = 0;  // 0: the kernel picks one
  uint16_t last = 0;
};
// Parses HETCOMM_PORTS: "20000-20999", "20000" or "". Fails with INVALID_ARGUMENT otherwise.
Result<PortRange> port_range(const Config& config);

}  // namespace hetcomm
