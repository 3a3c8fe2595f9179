#include "transports/rdma/port_source.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm::rdma {
namespace {

// Upper bound for the length of a GID table.
constexpr uint32_t kMaxPortGids = 65536;

// Speeds above NDR (128) have a separate field, which older headers lack.
template <typename Attributes>
uint32_t speed_of(const Attributes& port) {
  if constexpr (requires { port.active_speed_ex; }) {
    if (port.active_speed_ex != 0) return port.active_speed_ex;
  }
  return port.active_speed;
}

uint64_t rate_of(const ibv_port_attr& port) {
  const uint64_t lanes = port.active_width == 1   ? 1
                         : port.active_width == 2 ? 4
                         : port.active_width == 4 ? 8
                         : port.active_width == 8 ? 12
                                                  : 2;
  switch (speed_of(port)) {
    case 1:
      return lanes * 2'500;
    case 2:
      return lanes * 5'000;
    case 4:
    case 8:
      return lanes * 10'000;
    case 16:
      return lanes * 14'000;
    case 32:
      return lanes * 25'000;
    case 64:
      return lanes * 50'000;
    case 256:
      return lanes * 200'000;
    default:
      return lanes * 100'000;
  }
}

// Returns the first line of a file; nullopt if it cannot be read.
std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// Parses a rate such as "14.0625 Gb/sec (1X FDR)", independently of the locale. Returns Mbit/s, or
// 0 if the rate is malformed.
uint64_t rate_of(std::string_view text) {
  const double gbit = leading_number(text);
  if (!(gbit > 0 && gbit < 1e6)) return 0;
  return static_cast<uint64_t>(std::lround(gbit * 1000));
}

bool is_there(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

// --- open devices ----------------------------------------------------------------------------

Result<PortState> OpenPorts::read(uint8_t port) const {
  ibv_port_attr attributes{};
  if (const int error = verbs_.query_port(context_, port, &attributes); error != 0) {
    return Status(Code::kUnsupported,
                  fmt::format("port cannot be queried: {}", std::strerror(error)));
  }
  return PortState{.state = attributes.state,
                   .ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET,
                   .lid = attributes.lid,
                   .rate_mbit = rate_of(attributes),
                   .gids = static_cast<uint32_t>(std::max(attributes.gid_tbl_len, 0))};
}

std::optional<ibv_gid_entry> OpenPorts::gid(uint8_t port, uint32_t index) const {
  ibv_gid_entry entry{};
  if (verbs_.query_gid(context_, port, index, &entry) != 0) return std::nullopt;
  return entry;
}

// --- the kernel's files ----------------------------------------------------------------------

PortFiles::PortFiles(std::string folder) : folder_(std::move(folder)) {
  if (folder_.empty()) return;
  while (ports_ < UINT8_MAX && is_there(folder_of(static_cast<uint8_t>(ports_ + 1)))) ++ports_;
}

std::string PortFiles::folder_of(uint8_t port) const {
  return fmt::format("{}/ports/{}", folder_, port);
}

// Reads the files state ("4: ACTIVE"), link_layer ("Ethernet"), lid ("0x1f") and rate ("100 Gb/sec
// (4X EDR)").
Result<PortState> PortFiles::read(uint8_t port) const {
  const std::string folder = folder_of(port);
  const auto state = first_line(folder + "/state");
  const auto layer = first_line(folder + "/link_layer");
  if (!state || !layer) {
    return Status(Code::kUnsupported, fmt::format("{} cannot be read", folder));
  }
  PortState told;
  told.state = static_cast<ibv_port_state>(std::strtoul(state->c_str(), nullptr, 10));
  told.ethernet = layer->starts_with("Ethernet");
  told.lid = static_cast<uint16_t>(
      std::strtoul(first_line(folder + "/lid").value_or("").c_str(), nullptr, 16));
  told.rate_mbit = rate_of(first_line(folder + "/rate").value_or(""));
  while (told.gids < kMaxPortGids && is_there(fmt::format("{}/gids/{}", folder, told.gids))) {
    ++told.gids;
  }
  return told;
}

// Reads the files gids/3 ("0000:0000:0000:0000:0000:ffff:c000:0201") and gid_attrs/types/3 ("RoCE
// v2" or "IB/RoCE v1"). The type of an empty entry cannot be read.
std::optional<ibv_gid_entry> PortFiles::gid(uint8_t port, uint32_t index) const {
  const std::string folder = folder_of(port);
  const auto text = first_line(fmt::format("{}/gids/{}", folder, index));
  ibv_gid_entry entry{};
  if (!text || inet_pton(AF_INET6, text->c_str(), entry.gid.raw) != 1) return std::nullopt;
  constexpr std::array<uint8_t, sizeof(entry.gid.raw)> kEmpty{};
  if (std::memcmp(entry.gid.raw, kEmpty.data(), kEmpty.size()) == 0) return std::nullopt;
  const auto type = first_line(fmt::format("{}/gid_attrs/types/{}", folder, index)).value_or("");
  entry.gid_type = type.starts_with("RoCE v2") ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
  entry.gid_index = index;
  entry.port_num = port;
  return entry;
}

}  // namespace hetcomm::rdma
