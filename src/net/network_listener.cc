#include "src/net/network_listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/core.h>

namespace hetcomm {
namespace {

// Returns the index of |family| in an array with one element for each family.
size_t index_of(int family) { return family == AF_INET ? 0 : 1; }

// Returns the address to listen on for |family|, or an Address without a family if |chosen| has no
// address of |family|.
Result<Address> address_to_bind(const std::vector<InterfaceAddress>& chosen, int family) {
  const auto of_family = [&](const auto& entry) { return entry.address.family() == family; };
  const auto count = std::count_if(chosen.begin(), chosen.end(), of_family);
  if (count == 0) return Address();
  if (count == 1) return std::find_if(chosen.begin(), chosen.end(), of_family)->address;
  return Address::parse_numeric(family == AF_INET ? "0.0.0.0" : "::", 0);
}

}  // namespace

Result<std::unique_ptr<NetworkListener>> NetworkListener::create(
    Poller& poller, Log& log, const Config& config, const ChosenInterfaces& chosen,
    std::string_view interface, std::string_view name, Acceptor::Options options,
    AcceptHandler& handler) {
  if (!chosen.ok()) return chosen.status();
  const Result<PortRange> range = port_range(config);
  if (!range.ok()) return range.status();
  options.held = true;
  options.ports = range.value();
  std::vector<InterfaceAddress> used = chosen.value();
  const uint32_t scope = link_local_scope(used);
  std::erase_if(used, [&](const auto& entry) {
    return !can_be_told(entry.address, scope) ||
           (!interface.empty() && entry.interface != interface);
  });
  std::unique_ptr<NetworkListener> listener(new NetworkListener);
  listener->host_.id = read_host_id();
  Status failure(Code::kUnsupported,
                 interface.empty()
                     ? fmt::format("{}: the chosen interfaces have link-local addresses only", name)
                     : fmt::format("{}: {} has no address that can be used", name, interface));
  std::array<uint16_t, 2> ports{};
  for (const int family : {AF_INET, AF_INET6}) {
    Result<Address> address = address_to_bind(used, family);
    if (!address.ok()) return address.status();
    if (address->family() == AF_UNSPEC) continue;
    Result<std::unique_ptr<Acceptor>> acceptor =
        Acceptor::create(poller, log, *address, options, handler);
    if (!acceptor.ok()) {
      failure = acceptor.status().annotate(name);
      log.info("{}", failure.text());
      continue;
    }
    ports[index_of(family)] = (*acceptor)->address().port();
    listener->acceptors_.push_back(std::move(acceptor).value());
  }
  for (const InterfaceAddress& entry : used) {
    const uint16_t port = ports[index_of(entry.address.family())];
    if (port == 0 || listener->host_.addresses.size() == kMaxListeningAddresses) continue;
    listener->host_.addresses.push_back(entry.address.with_port(port));
    listener->interfaces_.push_back(entry.interface);
  }
  if (listener->host_.addresses.empty()) return failure;
  if (!options.device.empty()) {
    // Connections of ranks on this host arrive over loopback and not over the interface to which
    // the other acceptors are bound.
    options.device.clear();
    Result<Address> loopback = Address::parse_numeric("127.0.0.1", 0);
    Result<std::unique_ptr<Acceptor>> acceptor =
        Acceptor::create(poller, log, *loopback, options, handler);
    if (acceptor.ok() && listener->host_.addresses.size() < kMaxListeningAddresses) {
      listener->host_.addresses.push_back((*acceptor)->address());
      listener->interfaces_.emplace_back("lo");
      listener->acceptors_.push_back(std::move(acceptor).value());
    }
  }
  return listener;
}

Status NetworkListener::open(const Credentials& credentials) {
  for (const auto& acceptor : acceptors_) HETCOMM_RETURN_IF_ERROR(acceptor->open(credentials));
  return {};
}

void NetworkListener::expire(uint64_t now_ns) {
  for (const auto& acceptor : acceptors_) acceptor->expire(now_ns);
}

Status NetworkListener::last_rejection() const { return last_rejection_of(acceptors_); }

uint64_t NetworkListener::next_timer_ns() const {
  uint64_t next = kForever;
  for (const auto& acceptor : acceptors_) next = std::min(next, acceptor->next_timer_ns());
  return next;
}

}  // namespace hetcomm
