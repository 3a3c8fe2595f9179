// Interfaces: without netlink, the list has the same addresses, flags, netmasks and indices as the
// kernel reports over netlink.
#include "src/system/interface_list.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

std::string text_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
  } else if (address.ss_family == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof(text));
    return std::string(text) + "%" + std::to_string(ipv6.sin6_scope_id);
  }
  return text;
}

// Returns entries such as "lo 127.0.0.1 255.0.0.0", with the relevant flags.
std::set<std::string> described(const std::vector<ListedAddress>& all) {
  std::set<std::string> result;
  for (const ListedAddress& each : all) {
    if (each.address.ss_family == AF_UNSPEC) continue;
    const uint32_t flags = each.flags & (IFF_UP | IFF_RUNNING | IFF_LOOPBACK);
    result.insert(each.interface + " " + text_of(each.address) + " " + text_of(each.netmask) + " " +
                  std::to_string(flags));
  }
  return result;
}

TEST(InterfaceList, IsTheSameWithAndWithoutNetlink) {
  const Result<std::vector<ListedAddress>> usual = list_addresses_of_host();
  const Result<std::vector<ListedAddress>> other = list_addresses_without_netlink();
  ASSERT_TRUE(usual.ok()) << usual.status().text();
  ASSERT_TRUE(other.ok()) << other.status().text();
  EXPECT_EQ(described(other.value()), described(usual.value()));
  for (const ListedAddress& each : other.value()) {
    if (each.interface.find(':') != std::string::npos) continue;
    EXPECT_EQ(each.index, if_nametoindex(each.interface.c_str())) << each.interface;
  }
}

}  // namespace
}  // namespace hetcomm
