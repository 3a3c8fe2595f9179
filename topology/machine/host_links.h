// HostLinks is a rank's description of its host's links for all other ranks: NICs with their rates,
// the PCIe links that NICs share, and the NICs that the data of each device uses. Ranks of
// identical hosts send identical bytes. The functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "topology/machine/machine.h"

namespace hetcomm::topology {

// A link of the PCIe tree, full duplex.
struct PcieLink {
  std::string name;          // the address of the object at its lower end
  uint32_t mbyte_per_s = 0;  // rate in one direction, never 0
  bool operator==(const PcieLink&) const = default;
};

struct HostNic {
  std::string name;
  uint32_t mbit_per_s = 0;  // 0: unknown
  // Indices in HostLinks::pcie of the links that all bytes of the NIC cross, nearest to memory
  // first.
  std::vector<uint8_t> links;
  bool operator==(const HostNic&) const = default;
};

struct HostLinks {
  std::vector<PcieLink> pcie;
  std::vector<HostNic> nics;  // the first one is the default
  // For each device of the rank's context, the indices in |nics| of the NICs that its data uses,
  // best first. Device 0 is the host's memory. Devices beyond the end use the NICs of device 0.
  std::vector<std::vector<uint8_t>> devices;
  // Devices whose location on the host is known, as bits by device number.
  uint64_t located_devices = 0;
  // The devices also use NICs that are the first ones of other devices (own_nics.h), since the user
  // has set the number of NICs.
  bool keeps_all_nics = false;

  bool is_located(size_t device) const {
    return device < devices.size() && device < kMaxLocated && (located_devices >> device & 1) != 0;
  }
  static constexpr size_t kMaxLocated = 64;
  // Returns the indices in |nics| of the NICs that the data of |device| uses, best first.
  std::span<const uint8_t> nics_of(size_t device) const;
  bool operator==(const HostLinks&) const = default;
};

inline constexpr size_t kMaxHostNics = 16;
inline constexpr size_t kMaxPcieLinks = 32;
inline constexpr size_t kMaxDeviceLists = 64;
inline constexpr size_t kMaxNicsOfDevice = 8;
inline constexpr size_t kMaxHostLinksBytes = 4096;

// Makes the description of a host's links. |devices| has, for each device of the rank, the indices
// in Machine::nics of the NICs that its data uses, best first. Host memory is the first device. The
// NICs in |devices| come first, then |others|. A PCIe link with an unknown rate is left out. Among
// the PCIe links that the same NICs cross, only the narrowest counts. A link that only a part of a
// NIC's bytes cross, as under a bond, does not count for that NIC.
HostLinks host_links(const Machine& machine, const std::vector<std::vector<int>>& devices,
                     const std::vector<int>& others);

// Encodes |links| into at most kMaxHostLinksBytes.
std::vector<std::byte> encode_host_links(const HostLinks& links);
// Decodes |bytes|. INVALID_ARGUMENT: encode_host_links() cannot have written them.
Result<HostLinks> decode_host_links(ConstByteSpan bytes);

}  // namespace hetcomm::topology
