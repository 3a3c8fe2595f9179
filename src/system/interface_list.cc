#include "src/system/interface_list.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include <fmt/core.h>

#include "src/system/unique_fd.h"

namespace hetcomm {
namespace {

void keep(const sockaddr* from, sockaddr_storage* to) {
  if (from == nullptr) return;
  if (from->sa_family == AF_INET) std::memcpy(to, from, sizeof(sockaddr_in));
  if (from->sa_family == AF_INET6) std::memcpy(to, from, sizeof(sockaddr_in6));
}

Result<std::vector<ListedAddress>> list_by_netlink() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return status_from_errno(errno, "getifaddrs (AF_NETLINK)");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<ListedAddress> result;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    ListedAddress listed{.interface = entry->ifa_name, .flags = entry->ifa_flags};
    keep(entry->ifa_addr, &listed.address);
    if (listed.address.ss_family != AF_UNSPEC) keep(entry->ifa_netmask, &listed.netmask);
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_PACKET) {
      const auto* link = reinterpret_cast<const sockaddr_ll*>(entry->ifa_addr);
      listed.index = static_cast<uint32_t>(link->sll_ifindex);
    }
    result.push_back(std::move(listed));
  }
  return result;
}

// Returns a socket for ioctls that query interfaces, or an invalid descriptor.
UniqueFd question_socket() {
  for (const int family : {AF_INET, AF_INET6}) {
    UniqueFd fd(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd.valid()) return fd;
  }
  return {};
}

ifreq named(const std::string& interface) {
  ifreq request{};
  interface.copy(request.ifr_name, sizeof(request.ifr_name) - 1);
  return request;
}

// Fills in the flags and the index. Returns false if the interface no longer exists.
bool complete(int fd, ListedAddress* listed) {
  ifreq request = named(listed->interface);
  if (ioctl(fd, SIOCGIFFLAGS, &request) != 0) return false;
  listed->flags = static_cast<uint16_t>(request.ifr_flags);
  request = named(listed->interface);
  if (ioctl(fd, SIOCGIFINDEX, &request) == 0) {
    listed->index = static_cast<uint32_t>(request.ifr_ifindex);
  }
  return true;
}

// Adds the IPv4 addresses of all interfaces to |result|, up to 512.
Status add_ipv4(int fd, std::vector<ListedAddress>* result) {
  constexpr size_t kMax = 512;
  std::vector<ifreq> entries(kMax);
  ifconf all{};
  all.ifc_len = static_cast<int>(entries.size() * sizeof(ifreq));
  all.ifc_req = entries.data();
  if (ioctl(fd, SIOCGIFCONF, &all) != 0) return status_from_errno(errno, "SIOCGIFCONF");
  entries.resize(static_cast<size_t>(all.ifc_len) / sizeof(ifreq));
  for (const ifreq& entry : entries) {
    ListedAddress listed{
        .interface = std::string(entry.ifr_name, strnlen(entry.ifr_name, sizeof(entry.ifr_name)))};
    keep(&entry.ifr_addr, &listed.address);
    if (!complete(fd, &listed)) continue;
    ifreq request = named(listed.interface);
    // If an interface has several addresses, the address in the request selects the mask that the
    // kernel returns.
    std::memcpy(&request.ifr_addr, &entry.ifr_addr, sizeof(request.ifr_addr));
    if (ioctl(fd, SIOCGIFNETMASK, &request) == 0) {
      request.ifr_netmask.sa_family = AF_INET;
      keep(&request.ifr_netmask, &listed.netmask);
    }
    result->push_back(std::move(listed));
  }
  return {};
}

// Adds all IPv6 addresses in /proc/net/if_inet6 to |result|. Each line holds the address, index,
// prefix length, scope, flags and name.
void add_ipv6(int fd, std::vector<ListedAddress>* result) {
  constexpr const char* kList = "/proc/net/if_inet6";
  std::ifstream file(kList);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string digits;
    unsigned int index = 0;
    unsigned int prefix = 0;
    unsigned int scope = 0;
    unsigned int state = 0;
    ListedAddress listed;
    words >> digits >> std::hex >> index >> prefix >> scope >> state >> listed.interface;
    if (words.fail() || digits.size() != 32 || prefix > 128) continue;
    for (size_t i = 28; i > 0; i -= 4) digits.insert(i, ":");
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    if (inet_pton(AF_INET6, digits.c_str(), &address.sin6_addr) != 1) continue;
    if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) address.sin6_scope_id = index;
    sockaddr_in6 mask{};
    mask.sin6_family = AF_INET6;
    for (unsigned int bit = 0; bit < prefix; ++bit) {
      mask.sin6_addr.s6_addr[bit / 8] |= static_cast<uint8_t>(0x80u >> (bit % 8));
    }
    std::memcpy(&listed.address, &address, sizeof(address));
    std::memcpy(&listed.netmask, &mask, sizeof(mask));
    if (complete(fd, &listed)) result->push_back(std::move(listed));
  }
}

}  // namespace

Result<std::vector<ListedAddress>> list_addresses_without_netlink() {
  const UniqueFd fd = question_socket();
  if (!fd.valid()) return status_from_errno(errno, "socket (AF_INET)");
  std::vector<ListedAddress> result;
  const Status ipv4 = add_ipv4(fd.get(), &result);
  add_ipv6(fd.get(), &result);
  if (!result.empty()) return result;
  if (!ipv4.ok()) return ipv4;
  return Status(Code::kNotFound, "SIOCGIFCONF: no interface has an address");
}

Result<std::vector<ListedAddress>> list_addresses_of_host() {
  Result<std::vector<ListedAddress>> all = list_by_netlink();
  if (all.ok()) return all;
  Result<std::vector<ListedAddress>> without = list_addresses_without_netlink();
  if (without.ok()) return without;
  return Status(all.status().code(), fmt::format("network interfaces cannot be listed: {}; {}",
                                                 all.status().text(), without.status().text()));
}

}  // namespace hetcomm
