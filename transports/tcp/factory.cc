#include "transports/tcp/factory.h"

#include <algorithm>

#include <fmt/core.h>

#include "src/net/address.h"
#include "transports/tcp/transport.h"

namespace hetcomm {
namespace {

class TcpFactory final : public TransportFactory {
 public:
  std::string_view name() const override { return "tcp"; }

  Status probe(const Config& config) const override {
    const Result<std::vector<InterfaceAddress>> chosen = choose_interfaces(config);
    if (!chosen.ok()) return chosen.status();
    Log quiet;
    const auto tls = TlsContext::create(config, quiet);
    if (!tls.ok()) return tls.status();
    std::string text;
    for (const InterfaceAddress& entry : chosen.value()) {
      std::string address = entry.address.to_string();
      address.resize(address.rfind(':'));  // removes the port, which is chosen later
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", entry.interface, address);
    }
    if (tls.value() != nullptr) text += ", TLS";
    return {Code::kOk, std::move(text)};
  }

  // Rejects an interface without an address, or one that the user's settings leave out. Also
  // rejects an interface that answers for the addresses of other interfaces in its subnet, since
  // bytes for a socket could arrive at an interface other than the one to which it is bound.
  Status check_nic(const Config& config, const BoundNic& nic) const override {
    if (!nic.has_address) return Status(Code::kUnsupported, "");
    if (nic.shares_subnet && answers_for_others(nic.interface)) {
      return Status(
          Code::kUnsupported,
          fmt::format("tcp: another interface is in its subnet, and this host answers ARP "
                      "requests for the addresses of both on each of them: set "
                      "net.ipv4.conf.{0}.arp_ignore=1 and "
                      "net.ipv4.conf.{0}.arp_announce=2 (sysctl)",
                      nic.interface));
    }
    Result<std::vector<InterfaceAddress>> chosen = choose_interfaces(config);
    if (!chosen.ok()) return chosen.status();
    const bool is_chosen = std::any_of(chosen->begin(), chosen->end(), [&](const auto& entry) {
      return entry.interface == nic.interface;
    });
    if (is_chosen) return {};
    return Status(Code::kUnsupported, "tcp: HETCOMM_INTERFACE or HETCOMM_FAMILY leaves it out");
  }

  bool follows_routes() const override { return true; }

  Result<std::unique_ptr<Transport>> create(
      const TransportEnvironment& environment) const override {
    Result<std::unique_ptr<tcp::TcpTransport>> transport = tcp::TcpTransport::create(environment);
    if (!transport.ok()) return transport.status();
    return std::unique_ptr<Transport>(std::move(transport).value());
  }
};

}  // namespace

std::unique_ptr<TransportFactory> make_tcp_factory() { return std::make_unique<TcpFactory>(); }

}  // namespace hetcomm
