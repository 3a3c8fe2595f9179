// A context uses the addresses of the interfaces that are up, filtered by HETCOMM_INTERFACE and
// HETCOMM_FAMILY, in a fixed order of preference.
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <tuple>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/net/address.h"
#include "src/net/interface_check.h"
#include "src/net/listening_socket.h"
#include "src/net/variables.h"
#include "src/system/interface_list.h"

namespace hetcomm {
namespace {

ConstByteSpan host_bytes(const Address& address) {
  const auto* raw = reinterpret_cast<const std::byte*>(address.get());
  if (address.family() == AF_INET) {
    return {raw + offsetof(sockaddr_in, sin_addr), sizeof(in_addr)};
  }
  return {raw + offsetof(sockaddr_in6, sin6_addr), sizeof(in6_addr)};
}

// One entry of HETCOMM_INTERFACE: a name, a prefix with '*', or a subnet.
class Pattern {
 public:
  static Result<Pattern> parse(std::string_view text) {
    Pattern pattern;
    pattern.name_ = text;
    const size_t slash = text.find('/');
    Result<Address> network = Address::parse_numeric(text.substr(0, slash), 0);
    if (slash == std::string_view::npos && !network.ok()) return pattern;
    const Status malformed(
        Code::kInvalidArgument,
        fmt::format("HETCOMM_INTERFACE: '{}' is not a subnet; write one such as 10.0.0.0/8", text));
    if (!network.ok()) return malformed;
    pattern.network_ = network.value();
    const size_t all_bits = host_bytes(*pattern.network_).size() * 8;
    pattern.bits_ = all_bits;
    if (slash != std::string_view::npos) {
      const std::string_view digits = text.substr(slash + 1);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), pattern.bits_);
      if (error != std::errc() || end != digits.data() + digits.size() ||
          pattern.bits_ > all_bits) {
        return malformed;
      }
    }
    return pattern;
  }

  std::string_view text() const { return name_; }

  bool matches(std::string_view interface, const Address& address) const {
    if (network_) return in_network(address);
    if (!name_.ends_with('*')) return interface == name_;
    return interface.starts_with(std::string_view(name_).substr(0, name_.size() - 1));
  }

 private:
  bool in_network(const Address& address) const {
    if (address.family() != network_->family()) return false;
    const ConstByteSpan a = host_bytes(address);
    const ConstByteSpan b = host_bytes(*network_);
    const size_t whole = bits_ / 8;
    if (!std::equal(a.begin(), a.begin() + static_cast<ptrdiff_t>(whole), b.begin())) return false;
    if (bits_ % 8 == 0) return true;
    const auto mask = static_cast<std::byte>(0xff00u >> (bits_ % 8));
    return (a[whole] & mask) == (b[whole] & mask);
  }

  std::string name_;
  std::optional<Address> network_;
  size_t bits_ = 0;
};

Result<std::vector<Pattern>> parse_patterns(std::string_view text) {
  std::vector<Pattern> patterns;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    std::string_view entry = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    if (entry.empty()) continue;
    Result<Pattern> pattern = Pattern::parse(entry);
    if (!pattern.ok()) return pattern.status();
    patterns.push_back(std::move(pattern).value());
  }
  return patterns;
}

// Returns, in the kernel's order, all addresses whose interface is up and has a carrier, and
// |route| even if its interface is not. Fails if the kernel does not list the interfaces.
Result<std::vector<InterfaceAddress>> list_addresses(const Address& route) {
  Result<std::vector<ListedAddress>> all = list_addresses_of_host();
  if (!all.ok()) return all.status();
  std::vector<InterfaceAddress> result;
  for (const ListedAddress& entry : all.value()) {
    constexpr unsigned int kUsable = IFF_UP | IFF_RUNNING;
    const int family = entry.address.ss_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const Address address =
        Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&entry.address), length);
    if ((entry.flags & kUsable) != kUsable && !address.is_same_host(route)) continue;
    result.push_back({entry.interface, address});
  }
  return result;
}

// Returns the addresses that are known without a list of interfaces: loopback, and |route|, which
// is an address of this host that leads to the other ranks.
std::vector<InterfaceAddress> known_addresses(const Address& route) {
  std::vector<InterfaceAddress> result;
  if (route.family() != AF_UNSPEC && !route.is_loopback()) {
    result.push_back({"unknown", route.with_port(0)});
  }
  for (const char* const loopback : {"127.0.0.1", "::1"}) {
    Result<Address> address = Address::parse_numeric(loopback, 0);
    if (address.ok() && is_local(*address)) result.push_back({"lo", *address});
  }
  return result;
}

// Returns whether |interface| is a physical device or is built on one. In sysfs, bonds, VLANs and
// bridges list their lower interfaces.
bool is_physical(const std::string& interface, int depth = 0) {
  constexpr int kDeepest = 8;
  constexpr std::string_view kLower = "lower_";
  std::error_code error;
  const std::filesystem::path entry = "/sys/class/net/" + interface;
  if (std::filesystem::exists(entry / "device", error)) return true;
  if (depth == kDeepest) return false;
  for (auto at = std::filesystem::directory_iterator(entry, error);
       !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(kLower) && is_physical(name.substr(kLower.size()), depth + 1)) return true;
  }
  return false;
}

// Returns whether |interface| is a bridge without a physical interface. Containers and virtual
// machines use such bridges, with the same address on every host.
bool leads_nowhere(const std::string& interface) {
  std::error_code error;
  return std::filesystem::is_directory("/sys/class/net/" + interface + "/bridge", error) &&
         !is_physical(interface);
}

// Removes bridges without a physical interface, unless only loopback and link-local addresses would
// remain. A bridge that has the address |route| is kept.
void drop_bridges(const Address& route, std::vector<InterfaceAddress>* all) {
  std::vector<InterfaceAddress> kept;
  bool leads_out = false;
  for (const InterfaceAddress& entry : *all) {
    if (!entry.address.is_same_host(route) && leads_nowhere(entry.interface)) continue;
    leads_out = leads_out || !(entry.address.is_loopback() || entry.address.is_link_local());
    kept.push_back(entry);
  }
  if (leads_out) *all = std::move(kept);
}

// Returns the index of the first pattern that matches |entry|, or nothing if none does. Returns 0
// if there are no patterns.
std::optional<size_t> choose(const std::vector<Pattern>& patterns, const InterfaceAddress& entry) {
  if (patterns.empty()) return 0;
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (patterns[i].matches(entry.interface, entry.address)) return i;
  }
  return std::nullopt;
}

std::string describe(const std::vector<InterfaceAddress>& entries) {
  std::string text;
  for (const InterfaceAddress& entry : entries) {
    std::string address = entry.address.to_string();
    address.resize(address.rfind(':'));
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", entry.interface, address);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

ChosenInterfaces choose_interfaces(const Config& config, const Address& route) {
  Result<std::vector<Pattern>> patterns = parse_patterns(config.text(variable::kInterface));
  if (!patterns.ok()) return patterns.status();
  // A loopback route leads only to ranks on this host, for which the usual order is good enough.
  const bool has_route = patterns->empty() && !route.is_loopback();
  Result<std::vector<InterfaceAddress>> all = list_addresses(has_route ? route : Address());
  const Status unlisted = all.status();
  if (!unlisted.ok()) all = known_addresses(route);
  const std::string_view family = config.text(variable::kTcpBindFamily);
  std::vector<InterfaceAddress> candidates = all.value();
  std::erase_if(candidates, [family](const InterfaceAddress& entry) {
    return family == (entry.address.family() == AF_INET6 ? "ipv4" : "ipv6");
  });
  if (patterns->empty()) drop_bridges(has_route ? route : Address(), &candidates);
  // The sort key: index of the pattern, is not the route, is link-local, is loopback, is IPv6,
  // position in the kernel's order.
  using Rank = std::tuple<size_t, bool, bool, bool, bool, size_t>;
  std::vector<Rank> chosen;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const InterfaceAddress& entry = candidates[i];
    const bool is_ipv6 = entry.address.family() == AF_INET6;
    if (const std::optional<size_t> pattern = choose(patterns.value(), entry)) {
      const bool is_route = has_route && entry.address.is_same_host(route);
      chosen.emplace_back(*pattern, !is_route, entry.address.is_link_local(),
                          entry.address.is_loopback(), is_ipv6, i);
    }
  }
  if (chosen.empty()) {
    return Status(Code::kNotFound,
                  fmt::format("no network interface matches HETCOMM_INTERFACE='{}' and "
                              "HETCOMM_FAMILY='{}'; this host has {}{}{}",
                              config.text(variable::kInterface), family, describe(all.value()),
                              unlisted.ok() ? "" : "; ", unlisted.ok() ? "" : unlisted.text()));
  }
  std::sort(chosen.begin(), chosen.end());
  std::vector<InterfaceAddress> result;
  result.reserve(chosen.size());
  for (const Rank& rank : chosen) result.push_back(candidates[std::get<5>(rank)]);
  return result;
}

void warn_of_unknown_interfaces(const Config& config, Log& log) {
  Result<std::vector<Pattern>> patterns = parse_patterns(config.text(variable::kInterface));
  // choose_interfaces() reports an entry that is not a valid pattern.
  if (!patterns.ok() || patterns->empty()) return;
  Result<std::vector<InterfaceAddress>> all = list_addresses(Address());
  if (!all.ok()) return;
  for (const Pattern& pattern : patterns.value()) {
    const bool found = std::any_of(all->begin(), all->end(), [&](const InterfaceAddress& entry) {
      return pattern.matches(entry.interface, entry.address);
    });
    if (found) continue;
    log.warn_once(fmt::format(
        "HETCOMM_INTERFACE: '{}' matches no network interface that is up; this host has {}",
        printable(pattern.text()), describe(all.value())));
  }
}

Result<PortRange> port_range(const Config& config) {
  const std::string_view text = config.text(variable::kPorts);
  if (text.empty()) return PortRange();
  const auto read = [](std::string_view digits, uint16_t* out) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *out);
    return error == std::errc() && end == digits.data() + digits.size() && *out != 0;
  };
  const size_t dash = text.find('-');
  PortRange range;
  const bool good =
      read(text.substr(0, dash), &range.first) &&
      read(dash == std::string_view::npos ? text : text.substr(dash + 1), &range.last) &&
      range.first <= range.last;
  if (good) return range;
  return Status(
      Code::kInvalidArgument,
      fmt::format("HETCOMM_PORTS: '{}' is not a range of ports; write one such as 20000-20999",
                  printable(text)));
}

}  // namespace hetcomm
