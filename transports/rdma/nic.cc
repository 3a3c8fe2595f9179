#include "transports/rdma/nic.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/text.h"
#include "transports/rdma/port_source.h"
#include "transports/rdma/variables.h"
#include "transports/variables.h"

namespace hetcomm::rdma {
namespace {

// Number of usable GID indices, since a connection identifies its GID by an 8-bit index.
constexpr uint32_t kGidIndices = 256;

struct Wanted {
  std::string device;
  uint8_t port = 0;  // 0: any
};

Result<std::vector<Wanted>> parse_names(std::string_view list) {
  std::vector<Wanted> wanted;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    if (item.empty()) continue;
    const size_t colon = item.find(':');
    Wanted entry{.device = std::string(item.substr(0, colon))};
    if (colon != std::string_view::npos) {
      const std::string_view port = item.substr(colon + 1);
      const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), entry.port);
      if (error != std::errc() || end != port.data() + port.size() || entry.port == 0) {
        return Status(Code::kInvalidArgument,
                      fmt::format("HETCOMM_RDMA_NIC: '{}' is no port number; write 'device' or "
                                  "'device:port', as in 'mlx5_0:1'",
                                  port));
      }
    }
    wanted.push_back(std::move(entry));
  }
  return wanted;
}

const char* state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initializing (on InfiniBand: no subnet manager)";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE_DEFER:
      return "deferred";
    default:
      return "in no known state";
  }
}

GidKind kind_of(const ibv_gid_entry& entry, bool ethernet) {
  if (!ethernet) return GidKind::kInfiniBand;
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return GidKind::kRoceV1;
  const uint8_t* raw = entry.gid.raw;
  static constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(raw, kMapped.data(), kMapped.size()) == 0) return GidKind::kRoceV2Ipv4;
  if (raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80) return GidKind::kRoceV2LinkLocal;
  return GidKind::kRoceV2Ipv6;
}

std::optional<Gid> read_gid(const PortSource& source, const Nic& nic, uint32_t index) {
  const std::optional<ibv_gid_entry> entry = source.gid(nic.port, index);
  if (!entry) return std::nullopt;
  Gid gid{.kind = kind_of(*entry, nic.ethernet), .index = index};
  std::memcpy(gid.bytes.data(), entry->gid.raw, gid.bytes.size());
  if (gid.bytes == GidBytes{}) return std::nullopt;
  return gid;
}

Status read_gids(const PortSource& source, const Config& config, uint32_t length, Nic& nic) {
  const std::string_view wanted = config.text(variable::kRdmaGidIndex);
  if (wanted != "auto" && !wanted.empty()) {
    uint32_t index = 0;
    const auto [end, error] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), index);
    if (error != std::errc() || end != wanted.data() + wanted.size()) {
      return {Code::kInvalidArgument,
              fmt::format("HETCOMM_RDMA_GID_INDEX: '{}' is neither a number nor 'auto'", wanted)};
    }
    const std::optional<Gid> gid =
        index < kGidIndices ? read_gid(source, nic, index) : std::nullopt;
    if (gid) {
      nic.gids.push_back(*gid);
      return {};
    }
    std::string there;
    for (uint32_t i = 0; i < std::min(length, kGidIndices); ++i) {
      if (const auto other = read_gid(source, nic, i)) {
        there += fmt::format("{}{} ({} {})", there.empty() ? "" : ", ", i,
                             gid_kind_name(other->kind), gid_text(other->bytes));
      }
    }
    return {Code::kInvalidArgument,
            fmt::format("HETCOMM_RDMA_GID_INDEX={}: {} has no GID there; it has {}; set one of "
                        "these or 'auto'",
                        index, nic.name(), there.empty() ? "none" : there)};
  }
  const uint32_t most = nic.ethernet ? std::min(length, kGidIndices) : std::min(length, 1u);
  for (uint32_t i = 0; i < most; ++i) {
    if (const auto gid = read_gid(source, nic, i)) nic.gids.push_back(*gid);
  }
  std::stable_sort(nic.gids.begin(), nic.gids.end(),
                   [](const Gid& a, const Gid& b) { return a.kind < b.kind; });
  if (nic.gids.empty()) {
    return {Code::kUnsupported,
            fmt::format("no GID (tried indices 0 to {}); give its network interface an address",
                        most == 0 ? 0 : most - 1)};
  }
  return {};
}

// Returns whether HETCOMM_RDMA_MTU can exceed a port's active MTU.
bool needs_mtu(const Config& config) {
  const std::string_view wanted = config.text(variable::kRdmaMtu);
  return wanted != "auto" && !wanted.empty() && wanted != std::to_string(mtu_bytes(IBV_MTU_256));
}

Status read_mtu(const Config& config, ibv_mtu active, Nic& nic) {
  nic.mtu = active;
  const std::string_view wanted = config.text(variable::kRdmaMtu);
  if (wanted == "auto" || wanted.empty()) return {};
  for (const ibv_mtu mtu : {IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096}) {
    if (wanted != std::to_string(mtu_bytes(mtu))) continue;
    if (mtu > active) {
      return {Code::kInvalidArgument,
              fmt::format("HETCOMM_RDMA_MTU={}: the active MTU of {} is {}; set that or less, or "
                          "'auto'",
                          wanted, nic.name(), mtu_bytes(active))};
    }
    nic.mtu = mtu;
  }
  return {};
}

// Checks whether the port can be used, and fills |nic| with the information in |source|.
Status examine(const PortSource& source, const Config& config, Nic& nic) {
  Result<PortState> port = source.read(nic.port);
  if (!port.ok()) return port.status();
  if (port->state != IBV_PORT_ACTIVE) {
    return {Code::kUnsupported, fmt::format("port is {}, not active", state_name(port->state))};
  }
  nic.ethernet = port->ethernet;
  nic.lid = port->lid;
  nic.rate_mbit = port->rate_mbit;
  if (!nic.ethernet && nic.lid == 0) return {Code::kUnsupported, "port has no LID"};
  return read_gids(source, config, port->gids, nic);
}

// Fills the fields that only an open device reports.
Status examine_open(const Verbs& verbs, ibv_context* context, const Config& config, Nic& nic) {
  ibv_port_attr port{};
  if (const int error = verbs.query_port(context, nic.port, &port); error != 0) {
    return {Code::kUnsupported, fmt::format("port cannot be queried: {}", std::strerror(error))};
  }
  nic.was_open = true;
  nic.max_message_bytes = port.max_msg_sz;
  if (nic.limits.max_srq == 0) return {Code::kUnsupported, "device has no shared receive queues"};
  return read_mtu(config, port.active_mtu, nic);
}

class DeviceList {
 public:
  explicit DeviceList(const Verbs& verbs)
      : verbs_(verbs), list_(verbs.get_device_list(&count_)), error_(errno) {}
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() {
    if (list_ != nullptr) verbs_.free_device_list(list_);
  }
  int count() const { return list_ == nullptr ? 0 : count_; }
  ibv_device* at(int i) const { return list_[i]; }
  // Returns the error number if the devices cannot be listed; 0 if they can.
  int error() const { return list_ == nullptr ? error_ : 0; }

 private:
  const Verbs& verbs_;
  int count_ = 0;
  ibv_device** list_;
  int error_;
};

// Specifies whether a search leaves the device of the chosen port open.
enum class Then : uint8_t { kNothing, kOpen };

class Search {
 public:
  // Skips the ports named in |taken|.
  Search(const Verbs& verbs, const Config& config, Then then, const std::vector<std::string>& taken)
      : Search(verbs, config, then, taken, config.text(variable::kRdmaNic)) {}
  // Considers the ports in |names| instead of HETCOMM_RDMA_NIC.
  Search(const Verbs& verbs, const Config& config, Then then, const std::vector<std::string>& taken,
         std::string_view names)
      : verbs_(verbs), config_(config), then_(then), taken_(taken), names_(names) {}

  // Returns the chosen port, with a context if the device should stay open.
  Result<OpenNic> run() {
    Result<std::vector<Wanted>> wanted = parse_names(names_);
    if (!wanted.ok()) return wanted.status();
    const DeviceList devices(verbs_);
    if (devices.count() == 0) {
      const bool missing = devices.error() == 0 || devices.error() == ENOSYS;
      // libibverbs silently skips devices when the process has no file descriptor left.
      if (missing && then_ == Then::kOpen && !names_.empty()) {
        return Status(Code::kOutOfResources,
                      fmt::format("rdma: no device is listed, and {} was found before: it is gone, "
                                  "or too few files may be opened",
                                  printable(names_)));
      }
      return Status(Code::kUnsupported, missing ? "rdma: this host has no RDMA device"
                                                : fmt::format("rdma: devices cannot be listed: {}",
                                                              std::strerror(devices.error())));
    }
    for (const Wanted& entry : *wanted) {
      const std::string before = refused_;
      try_devices(devices, &entry);
      if (found_) break;
      if (refused_ == before) {
        add_refusal(fmt::format("{}: no such device (there is {})", entry.device, list(devices)));
      }
    }
    if (wanted->empty()) try_devices(devices, nullptr);
    if (!found_) {
      return Status(Code::kUnsupported,
                    names_.empty() || names_ != config_.text(variable::kRdmaNic)
                        ? fmt::format("rdma: no usable port: {}", refused_)
                        : fmt::format("rdma: HETCOMM_RDMA_NIC={}: no usable port: {}; name another "
                                      "one, or none",
                                      names_, refused_));
    }
    best_.others = refused_;
    return std::move(best_);
  }

 private:
  static std::string list_of(const Verbs& verbs, const DeviceList& devices) {
    std::string text;
    for (int i = 0; i < devices.count(); ++i) {
      text += fmt::format("{}{}", text.empty() ? "" : ", ", verbs.get_device_name(devices.at(i)));
    }
    return text;
  }
  std::string list(const DeviceList& devices) const { return list_of(verbs_, devices); }

  void add_refusal(const std::string& text) { refused_ += (refused_.empty() ? "" : "; ") + text; }

  // Tries the ports of the device in |wanted|, or of all devices if |wanted| is null.
  void try_devices(const DeviceList& devices, const Wanted* wanted) {
    for (int i = 0; i < devices.count(); ++i) {
      const std::string name = verbs_.get_device_name(devices.at(i));
      if (wanted != nullptr && wanted->device != name) continue;
      try_device(devices.at(i), name, wanted == nullptr ? uint8_t{0} : wanted->port);
    }
  }

  void try_device(ibv_device* device, const std::string& name, uint8_t only) {
    // The transport type is known even if the device is not open.
    if (device->transport_type != IBV_TRANSPORT_IB) {
      add_refusal(fmt::format("{}: {}", name,
                              device->transport_type == IBV_TRANSPORT_IWARP
                                  ? "an iWARP device, neither InfiniBand nor RoCE"
                                  : "neither InfiniBand nor RoCE"));
      return;
    }
    // The kernel's files are sufficient unless the active MTU matters, which no file contains. A
    // device without access permission is opened anyway, since the error shows why it cannot be
    // used.
    if (then_ == Then::kNothing && !needs_mtu(config_) && verbs_.may_open(device)) {
      const PortFiles files(verbs_.files_of(device));
      if (files.ports() > 0) {
        try_ports(files, nullptr, {}, name, only);
        return;
      }
    }
    OpenContext context(verbs_.open_device(device), {&verbs_});
    if (context == nullptr) {
      add_refusal(fmt::format("{}: cannot be opened: {}; see the rights of /dev/infiniband", name,
                              std::strerror(errno)));
      return;
    }
    ibv_device_attr limits{};
    if (const int error = verbs_.query_device(context.get(), &limits); error != 0) {
      add_refusal(fmt::format("{}: cannot be queried: {}", name, std::strerror(error)));
      return;
    }
    const OpenPorts ports(verbs_, context.get(), limits.phys_port_cnt);
    const bool taken = try_ports(ports, context.get(), limits, name, only);
    if (taken) best_.context = then_ == Then::kOpen ? std::move(context) : nullptr;
  }

  // Tries the ports that |source| describes. |context| is null if their device is not open. Returns
  // true if one of them is the best so far.
  bool try_ports(const PortSource& source, ibv_context* context, const ibv_device_attr& limits,
                 const std::string& name, uint8_t only) {
    if (only > source.ports()) {
      add_refusal(fmt::format("{}:{}: the device has {} port(s)", name, only, source.ports()));
      return false;
    }
    bool taken = false;
    for (uint32_t port = 1; port <= source.ports(); ++port) {
      if (only != 0 && port != only) continue;
      Nic nic;
      nic.device = name;
      nic.port = static_cast<uint8_t>(port);
      nic.limits = limits;
      if (std::find(taken_.begin(), taken_.end(), nic.name()) != taken_.end()) continue;
      Status status = examine(source, config_, nic);
      if (status.ok() && context != nullptr) status = examine_open(verbs_, context, config_, nic);
      if (!status.ok()) {
        add_refusal(fmt::format("{}: {}", nic.name(), status.text()));
        continue;
      }
      if (found_ && nic.rate_mbit <= best_.nic.rate_mbit) {
        add_refusal(fmt::format("{}: not faster than {}", nic.name(), best_.nic.name()));
        continue;
      }
      if (found_) add_refusal(fmt::format("{}: slower than {}", best_.nic.name(), nic.name()));
      best_.nic = std::move(nic);
      found_ = taken = true;
    }
    return taken;
  }

  const Verbs& verbs_;
  const Config& config_;
  const Then then_;
  const std::vector<std::string>& taken_;
  const std::string_view names_;
  bool found_ = false;
  OpenNic best_{nullptr, {}, {}};
  std::string refused_;
};

Result<FoundNic> found(Result<OpenNic> nic) {
  if (!nic.ok()) return nic.status();
  return FoundNic{std::move(nic->nic), std::move(nic->others)};
}

}  // namespace

const char* gid_kind_name(GidKind kind) {
  switch (kind) {
    case GidKind::kRoceV2Ipv4:
      return "RoCE v2 IPv4";
    case GidKind::kRoceV2Ipv6:
      return "RoCE v2 IPv6";
    case GidKind::kRoceV2LinkLocal:
      return "RoCE v2 IPv6 link-local";
    case GidKind::kRoceV1:
      return "RoCE v1";
    case GidKind::kInfiniBand:
      return "InfiniBand";
  }
  return "unknown";
}

std::string gid_text(const GidBytes& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  static constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(gid.data(), kMapped.data(), kMapped.size()) == 0) {
    inet_ntop(AF_INET, gid.data() + kMapped.size(), text.data(), text.size());
  } else {
    inet_ntop(AF_INET6, gid.data(), text.data(), text.size());
  }
  return text.data();
}

uint32_t mtu_bytes(ibv_mtu mtu) { return 128u << static_cast<unsigned>(mtu); }

std::string Nic::name() const { return fmt::format("{}:{}", device, port); }

std::string Nic::describe() const {
  const Gid& gid = gids.front();
  return fmt::format("{}, {} {} (GID index {}){}", name(), gid_kind_name(gid.kind),
                     gid_text(gid.bytes), gid.index,
                     was_open ? fmt::format(", MTU {}", mtu_bytes(mtu)) : std::string());
}

Result<FoundNic> find_nic(const Verbs& verbs, const Config& config, size_t instance) {
  constexpr uint64_t kMuchSlower = 4;
  std::vector<std::string> taken;
  Result<FoundNic> next = found(Search(verbs, config, Then::kNothing, taken).run());
  if (!next.ok()) return next;
  const uint64_t best = next->nic.rate_mbit;
  while (instance > 0) {
    taken.push_back(next->nic.name());
    next = found(Search(verbs, config, Then::kNothing, taken).run());
    if (!next.ok()) return next;
    if (next->nic.rate_mbit * kMuchSlower >= best) --instance;
  }
  return next;
}

Result<FoundNic> find_named_nic(const Verbs& verbs, const Config& config, const std::string& name) {
  return found(Search(verbs, config, Then::kNothing, {}, name).run());
}

Result<OpenNic> open_nic(const Verbs& verbs, const Config& config) {
  return Search(verbs, config, Then::kOpen, {}).run();
}

Result<OpenNic> open_named_nic(const Verbs& verbs, const Config& config, const std::string& name) {
  return Search(verbs, config, Then::kOpen, {}, name).run();
}

void refresh_addresses(const Verbs& verbs, ibv_context* context, const Config& config, Nic& nic) {
  nic.gids.clear();
  const OpenPorts ports(verbs, context, nic.limits.phys_port_cnt);
  Result<PortState> port = ports.read(nic.port);
  if (!port.ok()) return;
  nic.lid = port->lid;
  if (!read_gids(ports, config, port->gids, nic).ok()) nic.gids.clear();
}

void warn_of_unknown_devices(const Verbs& verbs, const Config& config, Log& log) {
  Result<std::vector<Wanted>> wanted = parse_names(config.text(variable::kRdmaNic));
  // A malformed name is reported as an error when devices are opened.
  if (!wanted.ok() || wanted->empty()) return;
  const DeviceList devices(verbs);
  std::vector<std::string> names;
  for (int i = 0; i < devices.count(); ++i) {
    names.emplace_back(verbs.get_device_name(devices.at(i)));
  }
  for (const Wanted& entry : wanted.value()) {
    if (std::find(names.begin(), names.end(), entry.device) != names.end()) continue;
    log.warn_once(fmt::format("HETCOMM_RDMA_NIC: this host has no RDMA device '{}'; it has {}",
                              printable(entry.device),
                              names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
}

size_t count_nics(const Verbs& verbs, const Config& config, size_t most) {
  size_t count = 0;
  while (count < most) {
    if (!find_nic(verbs, config, count).ok()) break;
    ++count;
  }
  return count;
}

}  // namespace hetcomm::rdma
