#include "src/core/job/paths/job_transports.h"

#include <sys/socket.h>

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/core.h>

#include "src/base/baton_role.h"
#include "src/core/job/paths/transport_choice.h"
#include "src/net/tls.h"
#include "transports/variables.h"

namespace hetcomm {
namespace {

// The most transports of one kind that are bound to interfaces. More would be of little use, and
// would make profiles long.
constexpr size_t kMaxOfAKind = 24;

// Returns |why|, the message of a transport, without the transport's name in front. The code that
// shows the message adds the name.
std::string_view without_name(std::string_view name, std::string_view why) {
  constexpr std::string_view kAfter = ": ";
  const bool named = why.starts_with(name) && why.substr(name.size()).starts_with(kAfter);
  return named ? why.substr(name.size() + kAfter.size()) : why;
}

// Returns the name of the interface that has |address|; empty if there is none, or |address| is
// unknown.
std::string interface_of(const ChosenInterfaces& interfaces, const Address& address) {
  if (address.family() == AF_UNSPEC || !interfaces.ok()) return {};
  for (const InterfaceAddress& entry : interfaces.value()) {
    if (entry.address.is_same_host(address)) return entry.interface;
  }
  return {};
}

// Returns the name of |nic| in link models and for users.
const std::string& model_name_of(const BoundNic& nic) {
  return nic.rdma_port.empty() ? nic.interface : nic.rdma_port;
}

}  // namespace

Status JobTransports::make(std::string_view wanted, const JobInterfaces& interfaces) {
  if (wanted.empty()) wanted = environment_.config.text(variable::kTransports);
  Result<TransportChoice> choice = TransportChoice::parse(wanted, environment_.factories);
  if (!choice.ok()) return choice.status();
  route_interface_ = interface_of(interfaces.chosen, interfaces.route);
  for (const auto& factory : environment_.factories) {
    // A rank communicates with itself over "self", regardless of the choice for other ranks.
    if (!choice->allows(factory->name()) && factory->name() != "self") {
      unused_.push_back(fmt::format("{:<6} no: {}", factory->name(), choice->refusal()));
      continue;
    }
    const Status usable = make_all_of(*factory, interfaces);
    if (usable.ok()) continue;
    const std::string_view why = without_name(factory->name(), usable.text());
    const bool some = !owned_.empty() && owned_.back()->kind == factory->name();
    if (choice->demands(factory->name()) && !some) {
      const Code code =
          usable.code() == Code::kPermissionDenied ? Code::kPermissionDenied : Code::kUnsupported;
      return Status(code, fmt::format("transport {}: {}", factory->name(), why));
    }
    if (!some) unused_.push_back(fmt::format("{:<6} no: {}", factory->name(), why));
    environment_.log.info(
        "transport {} {}: {}", factory->name(),
        some ? "does not use all network interfaces that it could" : "is not used", why);
  }
  report_unused_rate();
  return {};
}

// Makes a transport for each network interface that shares the load. If only some of these can be
// made, returns the last failure. If none can be made, makes transports that choose their own
// interface.
Status JobTransports::make_all_of(const TransportFactory& factory,
                                  const JobInterfaces& interfaces) {
  const Bindings bindings = bindings_for(factory, interfaces);
  size_t made = 0;
  Status failure;
  for (const RankNic* const nic : bindings.nics) {
    const Status status = make_one(factory, made, nic, interfaces.chosen);
    if (status.ok()) {
      ++made;
    } else {
      failure = status;
    }
  }
  if (made > 0) {
    // The last NIC in |bindings| may be the last resort, whose transport may have failed. A
    // transport that chooses its own interface then replaces it.
    const bool lacks_route = !bindings.nics.empty() && bindings.nics.back()->port.last_resort &&
                             !owned_.back()->port.last_resort;
    if (!bindings.also_unbound && !lacks_route) return failure;
    HETCOMM_RETURN_IF_ERROR(make_one(factory, made, nullptr, interfaces.chosen));
    JobTransport& unbound = *owned_.back();
    unbound.port.last_resort = true;
    unbound.has_route = true;
    return failure;
  }
  if (!failure.ok()) {
    environment_.log.info("transport {}: {}; it chooses by itself", factory.name(), failure.text());
  }
  HETCOMM_RETURN_IF_ERROR(make_one(factory, 0, nullptr, interfaces.chosen));
  describe_only_nic(*owned_.back(), factory, interfaces.chosen);
  const size_t instances = std::min<size_t>(factory.instances(environment_.config),
                                            environment_.config.number(variable::kRails));
  for (size_t instance = 1; instance < instances; ++instance) {
    HETCOMM_RETURN_IF_ERROR(make_one(factory, instance, nullptr, interfaces.chosen));
  }
  return {};
}

// If |made|, which chooses its own interface, can choose only one, copies the rate and subnets of
// its NIC into |made.port|, which is sent to peers.
void JobTransports::describe_only_nic(JobTransport& made, const TransportFactory& factory,
                                      const ChosenInterfaces& interfaces) const {
  if (!factory.follows_routes() || !interfaces.ok()) return;
  const std::string* only = nullptr;
  for (const InterfaceAddress& entry : interfaces.value()) {
    if (entry.address.is_loopback()) continue;
    if (only != nullptr && *only != entry.interface) return;
    only = &entry.interface;
  }
  const auto nic = std::find_if(
      environment_.nics.begin(), environment_.nics.end(),
      [&](const RankNic& each) { return only != nullptr && each.name.interface == *only; });
  if (nic == environment_.nics.end()) return;
  made.port.mbit_per_s = nic->port.mbit_per_s;
  made.port.subnets = nic->port.subnets;
}

void JobTransports::note_refusal(const RankNic& nic, const Status& why) {
  if (why.text().empty()) return;
  environment_.log.info("NIC {} is not used: {}", model_name_of(nic.name), why.text());
  refusals_.push_back({model_name_of(nic.name), std::string(why.text())});
}

// Logs if this rank uses less than half of the rate of its host's interfaces, with the reasons.
void JobTransports::report_unused_rate() const {
  // If all rates are unknown, the interfaces count alike.
  const bool is_known = std::any_of(environment_.nics.begin(), environment_.nics.end(),
                                    [](const RankNic& nic) { return nic.port.mbit_per_s != 0; });
  const auto rate_of = [&](const RankNic& nic) { return is_known ? nic.port.mbit_per_s : 1; };
  uint64_t total = 0;
  uint64_t used = 0;
  for (const RankNic& nic : environment_.nics) {
    total += rate_of(nic);
    const bool is_used = std::any_of(owned_.begin(), owned_.end(), [&](const auto& each) {
      return each->model_nic == model_name_of(nic.name) && !each->port.last_resort;
    });
    if (is_used) used += rate_of(nic);
  }
  const bool is_bound = std::any_of(owned_.begin(), owned_.end(),
                                    [](const auto& each) { return !each->model_nic.empty(); });
  if (environment_.nics.size() < 2 || used * 2 >= total || (!is_bound && refusals_.empty())) return;
  std::string why;
  for (const NicRefusal& each : refusals_) {
    why += fmt::format("; {}: {}", each.nic, each.why);
  }
  environment_.log.info("less than half of what this host's {} NICs can carry is used{}",
                        environment_.nics.size(), why);
}

// Returns the interfaces to which transports of |factory| are bound.
JobTransports::Bindings JobTransports::bindings_for(const TransportFactory& factory,
                                                    const JobInterfaces& interfaces) {
  Bindings bindings;
  for (const RankNic& nic : environment_.nics) {
    if (nic.port.last_resort) continue;
    if (const Status usable = factory.check_nic(environment_.config, nic.name); !usable.ok()) {
      note_refusal(nic, usable);
      continue;
    }
    bindings.nics.push_back(&nic);
    if (bindings.nics.size() == kMaxOfAKind) break;
  }
  if (!factory.follows_routes() || bindings.nics.empty()) return bindings;
  const auto is_bound = [&](const std::string& interface) {
    return std::any_of(bindings.nics.begin(), bindings.nics.end(),
                       [&](const RankNic* nic) { return nic->name.interface == interface; });
  };
  const Address& route = interfaces.route;
  if (route.family() != AF_UNSPEC && !route.is_loopback()) {
    // The interface of the route is used at least for ranks that no other NIC reaches.
    if (!is_bound(route_interface_)) add_route(factory, interfaces.chosen, bindings);
    if (bindings.nics.size() == 1 && !bindings.also_unbound) return {};
    return bindings;
  }
  // If the route is unknown, transports are bound to NICs only if these include all interfaces that
  // could lead to the other ranks.
  const ChosenInterfaces& all = interfaces.chosen;
  const bool covered =
      all.ok() && std::all_of(all.value().begin(), all.value().end(), [&](const auto& entry) {
        return entry.address.is_loopback() || is_bound(entry.interface);
      });
  if (!covered || bindings.nics.size() < 2) return {};
  return bindings;
}

// Adds the interface that leads to the other ranks to |bindings|, as a last resort.
void JobTransports::add_route(const TransportFactory& factory, const ChosenInterfaces& interfaces,
                              Bindings& bindings) const {
  // HETCOMM_INTERFACE may exclude the interface of the route.
  if (route_interface_.empty() && interfaces.ok()) return;
  const auto nic =
      std::find_if(environment_.nics.begin(), environment_.nics.end(), [&](const RankNic& each) {
        return each.port.last_resort && each.name.interface == route_interface_ &&
               factory.check_nic(environment_.config, each.name).ok();
      });
  if (nic != environment_.nics.end()) {
    bindings.nics.push_back(&*nic);
  } else {
    bindings.also_unbound = true;
  }
}

Status JobTransports::make_one(const TransportFactory& factory, size_t instance, const RankNic* nic,
                               const ChosenInterfaces& interfaces) {
  auto made = std::make_unique<JobTransport>(handler_, owned_.size());
  // If there is only one NIC, last-resort NICs aside, a transport that chooses its own interface
  // uses that NIC.
  const std::span<const RankNic> all = environment_.nics;
  const bool is_only = all.size() == 1 || (all.size() > 1 && all[1].port.last_resort);
  const RankNic* const near = nic != nullptr ? nic : is_only ? &all[0] : nullptr;
  const TransportEnvironment environment{
      .rank = rank_,
      .size = size_,
      .credentials = credentials_,
      .config = environment_.config,
      .interfaces = interfaces,
      .log = environment_.log,
      .poller = environment_.engine.poller(),
      .now_ns = environment_.engine.coarse_now(),
      .handler = *made,
      .instance = instance,
      .nic = nic != nullptr ? &nic->name : nullptr,
      .buffer_node = near != nullptr ? near->name.numa_node : environment_.memory_nodes.inside,
      .inside_node = environment_.memory_nodes.inside};
  Result<std::unique_ptr<Transport>> transport = factory.create(environment);
  if (!transport.ok()) return transport.status();
  if (tls_required(environment_.config) && !(*transport)->capabilities().protected_in_transit) {
    return Status(Code::kPermissionDenied,
                  "HETCOMM_REQUIRE_TLS refuses it, as nothing protects what it sends: use shm, or "
                  "tcp with HETCOMM_TLS=on, or unset HETCOMM_REQUIRE_TLS");
  }
  made->kind = factory.name();
  made->name =
      instance == 0 ? std::string(factory.name()) : fmt::format("{}#{}", factory.name(), instance);
  made->transport = std::move(transport.value());
  made->abilities = made->transport->abilities();
  if (nic != nullptr) {
    made->port = nic->port;
    const bool by_socket = factory.follows_routes() || nic->name.rdma_port.empty();
    made->nic = by_socket ? nic->name.interface : nic->name.rdma_port;
    made->model_nic = model_name_of(nic->name);
    made->devices = nic->devices;
    made->far_devices = nic->far_devices;
    made->has_route = !nic->name.interface.empty() && nic->name.interface == route_interface_;
  } else {
    made->port.mbit_per_s = made->capabilities().bandwidth_bytes_per_s / 125'000;
  }
  if (const Capabilities& can = made->capabilities(); !can.lossless) {
    lossy_payload_bytes_ = std::min(lossy_payload_bytes_, can.max_payload_bytes);
  }
  owned_.push_back(std::move(made));
  return {};
}

Status JobTransports::start() {
  for (const auto& each : owned_) HETCOMM_RETURN_IF_ERROR(each->transport->start());
  return {};
}

void JobTransports::close() {
  connected_.clear();
  owned_.clear();
}

bool JobTransports::shares_memory() const {
  return std::any_of(owned_.begin(), owned_.end(), [](const auto& each) HETCOMM_UNDER_BATON {
    return each->capabilities().within_host;
  });
}

void JobTransports::note_connected(Transport& transport) {
  if (std::find(connected_.begin(), connected_.end(), &transport) == connected_.end()) {
    connected_.push_back(&transport);
  }
}

uint64_t JobTransports::next_timer_ns() const {
  uint64_t next = kForever;
  for (const auto& each : owned_) next = std::min(next, each->transport->next_timer_ns());
  return next;
}

bool JobTransports::prepare_sleep(Sleep sleep) {
  bool quiet = true;
  for (const auto& each : owned_) quiet = each->transport->prepare_sleep(sleep) && quiet;
  return quiet;
}

bool JobTransports::may_sleep_on() const {
  return std::all_of(owned_.begin(), owned_.end(), [](const auto& each) HETCOMM_UNDER_BATON {
    return each->transport->may_sleep_on();
  });
}

void JobTransports::finish_sleep() {
  for (const auto& each : owned_) each->transport->finish_sleep();
}

}  // namespace hetcomm
