// Chooses the port of a device and reads its addresses (GIDs). Finding a port does not open the
// device if the kernel's files contain enough information.
//
// Devices other than InfiniBand and RoCE (iWARP, usNIC, EFA) are skipped. The first usable port in
// HETCOMM_RDMA_NIC is chosen. If that variable is empty, the fastest active port is chosen.
// Rejected ports are listed with the reason.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "transports/rdma/verbs.h"

namespace hetcomm::rdma {

using GidBytes = std::array<std::byte, 16>;

// Kinds of GIDs, best first. Two ports can reach each other only through GIDs of the same kind.
enum class GidKind : uint8_t {
  kRoceV2Ipv4 = 1,
  kRoceV2Ipv6 = 2,
  kRoceV2LinkLocal = 3,
  kRoceV1 = 4,
  kInfiniBand = 5,
};
const char* gid_kind_name(GidKind kind);
std::string gid_text(const GidBytes& gid);

struct Gid {
  GidBytes bytes{};
  GidKind kind = GidKind::kRoceV2Ipv4;
  uint32_t index = 0;  // index in this port's table; not sent to the peer
};

struct Nic {
  std::string device;
  uint8_t port = 1;
  bool ethernet = true;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;  // MTU in use
  uint64_t rate_mbit = 0;
  // True if the device was open when it was examined. Otherwise |mtu|, |max_message_bytes| and
  // |limits| are unknown.
  bool was_open = false;
  uint32_t max_message_bytes = 0;
  ibv_device_attr limits{};
  // Returns whether the vendor id identifies Soft-RoCE. Soft-RoCE is unreliable after a
  // retransmission (README.md).
  bool is_soft_roce() const { return limits.vendor_id == kSoftRoceVendor; }
  static constexpr uint32_t kSoftRoceVendor = 0xffffff;
  std::vector<Gid> gids;  // best first; empty if none is left

  std::string name() const;  // e.g. "rxe0:1"
  // Returns e.g. "rxe0:1, RoCE v2 192.0.2.1 (GID index 1), MTU 1024", without the MTU if it is
  // unknown.
  std::string describe() const;
};

uint32_t mtu_bytes(ibv_mtu mtu);

// A chosen port. Its device is closed.
struct FoundNic {
  Nic nic;
  std::string others;  // rejected ports, with reasons
};
// Finds the best port, or the port |instance| positions after it in the order of preference. Ports
// that are too slow to share load with the best port are left out. Briefly opens a device if the
// kernel's files do not contain enough information.
Result<FoundNic> find_nic(const Verbs& verbs, const Config& config, size_t instance = 0);
// Finds the port called |name| ("mlx5_0:1").
Result<FoundNic> find_named_nic(const Verbs& verbs, const Config& config, const std::string& name);

struct CloseDevice {
  const Verbs* verbs = nullptr;
  void operator()(ibv_context* context) const { (void)verbs->close_device(context); }
};
using OpenContext = std::unique_ptr<ibv_context, CloseDevice>;

// An open device and the port chosen on it.
struct OpenNic {
  OpenContext context;
  Nic nic;
  std::string others;  // rejected ports, with reasons
};
// Opens the device of the best port. open_named_nic() opens the device of the port called |name|.
Result<OpenNic> open_nic(const Verbs& verbs, const Config& config);
Result<OpenNic> open_named_nic(const Verbs& verbs, const Config& config, const std::string& name);
// Rereads the GIDs and the LID of |nic|. If the port cannot be queried, the list of GIDs is empty.
void refresh_addresses(const Verbs& verbs, ibv_context* context, const Config& config, Nic& nic);
// Logs one warning for every name in HETCOMM_RDMA_NIC that is not a device of this host.
void warn_of_unknown_devices(const Verbs& verbs, const Config& config, Log& log);
// Returns the number of ports that find_nic() can find, at most |most|.
size_t count_nics(const Verbs& verbs, const Config& config, size_t most);

}  // namespace hetcomm::rdma
