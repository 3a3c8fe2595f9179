#include "src/net/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>

#include <fmt/core.h>

namespace hetcomm {
namespace {

constexpr uint8_t kFamilyIpv4 = 4;
constexpr uint8_t kFamilyIpv6 = 6;
constexpr uint8_t kFamilyLocal = 1;
constexpr std::string_view kLocalPrefix = "local:";
constexpr size_t kMaxLocalName = 106;

template <typename T>
T view_as(const sockaddr* address) {
  T result{};
  std::memcpy(&result, address, sizeof(result));
  return result;
}

Address make_ipv4(const in_addr& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr = host;
  return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

Address make_ipv6(const in6_addr& host, uint16_t port, uint32_t scope) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_addr = host;
  address.sin6_scope_id = scope;
  return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

std::string ipv6_text(const sockaddr_in6& address) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof(text));
  if (address.sin6_scope_id == 0) return text;
  char name[IF_NAMESIZE] = {};
  if (if_indextoname(address.sin6_scope_id, name) == nullptr) {
    return fmt::format("{}%{}", text, address.sin6_scope_id);
  }
  return fmt::format("{}%{}", text, name);
}

}  // namespace

Address Address::from_sockaddr(const sockaddr* address, socklen_t length) {
  Address result;
  result.length_ = std::min(length, static_cast<socklen_t>(sizeof(result.storage_)));
  std::memcpy(&result.storage_, address, result.length_);
  return result;
}

Address Address::local(std::string_view abstract_name) {
  sockaddr_un address{};
  static_assert(kMaxLocalName < sizeof(address.sun_path));
  if (abstract_name.size() > kMaxLocalName) return {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, abstract_name.data(), abstract_name.size());
  return from_sockaddr(
      reinterpret_cast<const sockaddr*>(&address),
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + abstract_name.size()));
}

Result<Address> Address::parse_numeric(std::string_view text, uint16_t port) {
  const size_t percent = text.find('%');
  const std::string host(text.substr(0, percent));
  in_addr ipv4{};
  if (percent == std::string_view::npos && inet_pton(AF_INET, host.c_str(), &ipv4) == 1) {
    return make_ipv4(ipv4, port);
  }
  in6_addr ipv6{};
  if (inet_pton(AF_INET6, host.c_str(), &ipv6) == 1) {
    uint32_t scope = 0;
    if (percent != std::string_view::npos) {
      scope = if_nametoindex(std::string(text.substr(percent + 1)).c_str());
      if (scope == 0) {
        return Status(Code::kInvalidArgument, fmt::format("'{}' names no interface", text));
      }
    }
    return make_ipv6(ipv6, port, scope);
  }
  return Status(Code::kInvalidArgument, fmt::format("'{}' is not a numeric address", text));
}

Result<std::vector<Address>> Address::resolve(const std::string& host, uint16_t port) {
  if (Result<Address> numeric = parse_numeric(host, port); numeric.ok()) {
    return std::vector<Address>{numeric.value()};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    const char* why = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return Status(Code::kNotFound, fmt::format("host '{}' cannot be resolved: {}", host, why));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    addresses.push_back(from_sockaddr(entry->ai_addr, entry->ai_addrlen).with_port(port));
  }
  if (addresses.empty()) {
    return Status(Code::kNotFound, fmt::format("host '{}' has no IPv4 or IPv6 address", host));
  }
  return addresses;
}

uint16_t Address::port() const {
  if (family() == AF_INET) return ntohs(view_as<sockaddr_in>(get()).sin_port);
  if (family() == AF_INET6) return ntohs(view_as<sockaddr_in6>(get()).sin6_port);
  return 0;
}

Address Address::with_port(uint16_t port) const {
  if (family() == AF_INET) return make_ipv4(view_as<sockaddr_in>(get()).sin_addr, port);
  if (family() != AF_INET6) return *this;
  const auto ipv6 = view_as<sockaddr_in6>(get());
  return make_ipv6(ipv6.sin6_addr, port, ipv6.sin6_scope_id);
}

uint32_t Address::scope() const {
  return family() == AF_INET6 ? view_as<sockaddr_in6>(get()).sin6_scope_id : 0;
}

Address Address::with_scope(uint32_t scope) const {
  if (!needs_scope() || this->scope() != 0) return *this;
  return make_ipv6(view_as<sockaddr_in6>(get()).sin6_addr, port(), scope);
}

bool Address::is_loopback() const {
  if (family() == AF_UNIX) return true;
  if (family() == AF_INET) {
    return ntohl(view_as<sockaddr_in>(get()).sin_addr.s_addr) >> 24 == 127;
  }
  if (family() != AF_INET6) return false;
  const in6_addr host = view_as<sockaddr_in6>(get()).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&host) || (IN6_IS_ADDR_V4MAPPED(&host) && host.s6_addr[12] == 127);
}

size_t common_prefix_bits(ConstByteSpan one, ConstByteSpan other) {
  const size_t shorter = std::min(one.size(), other.size());
  for (size_t i = 0; i < shorter; ++i) {
    const auto differ = std::to_integer<uint8_t>(one[i] ^ other[i]);
    if (differ != 0) return i * 8 + static_cast<size_t>(std::countl_zero(differ));
  }
  return shorter * 8;
}

ConstByteSpan Address::host_bytes() const {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&storage_);
  if (family() == AF_INET) return {bytes + offsetof(sockaddr_in, sin_addr), sizeof(in_addr)};
  if (family() == AF_INET6) return {bytes + offsetof(sockaddr_in6, sin6_addr), sizeof(in6_addr)};
  return {};
}

size_t Address::common_prefix_bits(const Address& other) const {
  if (family() != other.family()) return 0;
  return hetcomm::common_prefix_bits(host_bytes(), other.host_bytes());
}

bool Address::is_same_host(const Address& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET) {
    return view_as<sockaddr_in>(get()).sin_addr.s_addr ==
           view_as<sockaddr_in>(other.get()).sin_addr.s_addr;
  }
  if (family() == AF_INET6) {
    const auto one = view_as<sockaddr_in6>(get());
    const auto two = view_as<sockaddr_in6>(other.get());
    return IN6_ARE_ADDR_EQUAL(&one.sin6_addr, &two.sin6_addr) &&
           one.sin6_scope_id == two.sin6_scope_id;
  }
  return to_string() == other.to_string();
}

bool Address::is_link_local() const {
  if (family() == AF_INET) {
    return ntohl(view_as<sockaddr_in>(get()).sin_addr.s_addr) >> 16 == (169u << 8 | 254u);
  }
  if (family() != AF_INET6) return false;
  const in6_addr host = view_as<sockaddr_in6>(get()).sin6_addr;
  return IN6_IS_ADDR_LINKLOCAL(&host);
}

std::string Address::to_string() const {
  switch (family()) {
    case AF_INET: {
      const auto ipv4 = view_as<sockaddr_in>(get());
      char text[INET_ADDRSTRLEN] = {};
      inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof(text));
      return fmt::format("{}:{}", text, port());
    }
    case AF_INET6: {
      const auto ipv6 = view_as<sockaddr_in6>(get());
      if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) {
        const uint8_t* host = ipv6.sin6_addr.s6_addr;
        return fmt::format("{}.{}.{}.{}:{}", host[12], host[13], host[14], host[15], port());
      }
      return fmt::format("[{}]:{}", ipv6_text(ipv6), port());
    }
    case AF_UNIX: {
      constexpr size_t kNameAt = offsetof(sockaddr_un, sun_path) + 1;
      if (length_ <= kNameAt) return std::string(kLocalPrefix);
      return std::string(kLocalPrefix) +
             std::string(reinterpret_cast<const char*>(&storage_) + kNameAt, length_ - kNameAt);
    }
    default:
      return "no address";
  }
}

void Address::encode(ByteWriter& writer) const {
  if (family() == AF_INET) {
    const in_addr host = view_as<sockaddr_in>(get()).sin_addr;
    writer.write(kFamilyIpv4);
    writer.write(port());
    writer.write_raw(std::as_bytes(std::span(&host, 1)));
  } else if (family() == AF_INET6) {
    const in6_addr host = view_as<sockaddr_in6>(get()).sin6_addr;
    writer.write(kFamilyIpv6);
    writer.write(port());
    writer.write_raw(std::as_bytes(std::span(&host, 1)));
  } else if (family() == AF_UNIX) {
    writer.write(kFamilyLocal);
    writer.write(uint16_t{0});
    writer.write_string(std::string_view(to_string()).substr(kLocalPrefix.size()));
  } else {
    writer.write(uint8_t{0});
    writer.write(uint16_t{0});
  }
}

Result<Address> Address::decode(ByteReader& reader) {
  const auto family = reader.read<uint8_t>();
  const auto port = reader.read<uint16_t>();
  if (family == kFamilyIpv4) {
    in_addr host{};
    const ConstByteSpan raw = reader.read_raw(sizeof(host));
    if (!reader.failed()) {
      std::memcpy(&host, raw.data(), sizeof(host));
      return make_ipv4(host, port);
    }
  } else if (family == kFamilyIpv6) {
    in6_addr host{};
    const ConstByteSpan raw = reader.read_raw(sizeof(host));
    if (!reader.failed()) {
      std::memcpy(&host, raw.data(), sizeof(host));
      return make_ipv6(host, port, 0);
    }
  } else if (family == kFamilyLocal && port == 0) {
    const std::string name = reader.read_string(kMaxLocalName);
    if (!reader.failed()) return local(name);
  }
  return Status(Code::kInvalidArgument, "a peer has sent a malformed address");
}

uint32_t link_local_scope(const std::vector<InterfaceAddress>& chosen) {
  if (chosen.empty() || !chosen.front().address.needs_scope()) return 0;
  return chosen.front().address.scope();
}

bool answers_for_others(const std::string& interface) {
  int most = 0;
  for (const std::string& name : {std::string("all"), interface}) {
    int value = 0;
    std::ifstream("/proc/sys/net/ipv4/conf/" + name + "/arp_ignore") >> value;
    most = std::max(most, value);
  }
  return most == 0;
}

}  // namespace hetcomm
