// Chooses the port of a device, and reads its addresses (GIDs). Finding a port opens no device
// where the kernel's files say enough about it.
//
// Devices of other kinds than InfiniBand and RoCE (iWARP, usNIC, EFA) are left out. The first port
// that is usable is taken: in the order of HETCOMM_RDMA_NIC, or, where that is empty, the fastest
// active port. Ports that were not taken are named with the reason.
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

// Best first. Two ports reach each other by GIDs of one kind.
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
  uint32_t index = 0;  // in this port's table; not for the peer
};

struct Nic {
  std::string device;
  uint8_t port = 1;
  bool ethernet = true;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;  // the MTU in use
  uint64_t rate_mbit = 0;
  // These three and |mtu| are known where the device was open.
  bool was_open = false;
  uint32_t max_message_bytes = 0;
  ibv_device_attr limits{};
  // The vendor's number identifies it. Soft-RoCE is wrong after a retransmission.
  bool is_soft_roce() const { return limits.vendor_id == kSoftRoceVendor; }
  static constexpr uint32_t kSoftRoceVendor = 0xffffff;
  std::vector<Gid> gids;  // best first; none once all have gone

  std::string name() const;  // "rxe0:1"
  // "rxe0:1, RoCE v2 192.0.2.1 (GID index 1), MTU 1024", without the MTU where it is not known.
  std::string describe() const;
};

uint32_t mtu_bytes(ibv_mtu mtu);

// A port that was chosen. Its device is not open.
struct FoundNic {
  Nic nic;
  std::string others;  // the ports that were not taken, and why
};
// Finds the best port, or the port |instance| places after it, as long as it is worth sharing load
// with the best. A device is opened for a moment if the kernel's files do not say enough about it.
Result<FoundNic> find_nic(const Verbs& verbs, const Config& config, size_t instance = 0);
// Finds the port that |name| ("mlx5_0:1") names.
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
  std::string others;  // the ports that were not taken, and why
};
// These open the best port, and the port that |name| names.
Result<OpenNic> open_nic(const Verbs& verbs, const Config& config);
Result<OpenNic> open_named_nic(const Verbs& verbs, const Config& config, const std::string& name);
// Reads the GIDs and the LID of |nic| again. If the port cannot be asked, there are no GIDs.
void refresh_addresses(const Verbs& verbs, ibv_context* context, const Config& config, Nic& nic);
// Warns once about every name in HETCOMM_RDMA_NIC that is no device of this host.
void warn_of_unknown_devices(const Verbs& verbs, const Config& config, Log& log);
// Returns how many usable ports there are, at most |most|.
size_t count_nics(const Verbs& verbs, const Config& config, size_t most);

}  // namespace hetcomm::rdma
