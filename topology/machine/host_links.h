// HostLinks is a rank's description of the links of its host, which the rank sends to all others.
// It contains the NICs with their rates, the PCIe links that limit them, and the NICs that the data
// of each device uses. The encodings of equal HostLinks are identical. The functions are pure.
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

// A full-duplex link of the PCIe tree.
struct PcieLink {
  std::string name;          // address of the PCI object at its lower end
  uint32_t mbyte_per_s = 0;  // rate in one direction, never 0
  bool operator==(const PcieLink&) const = default;
};

struct HostNic {
  std::string name;
  uint32_t mbit_per_s = 0;  // 0: unknown
  // Indices in HostLinks::pcie of the links that all data of the NIC crosses. The link nearest to
  // memory comes first.
  std::vector<uint8_t> links;
  bool operator==(const HostNic&) const = default;
};

struct HostLinks {
  std::vector<PcieLink> pcie;
  std::vector<HostNic> nics;  // data for which no NIC is specified uses the first one
  // For each device of the rank's context, the indices in |nics| of the NICs that its data uses,
  // best first. Device 0 is host memory. Devices beyond the end use the NICs of device 0.
  std::vector<std::vector<uint8_t>> devices;
  // Bit i is set if the location of device i on the host is known.
  uint64_t located_devices = 0;
  // True if the devices may also use the own NICs of other devices (own_nics.h). This is the case
  // if the user has set HETCOMM_RAILS.
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

// Returns the description of a host's links. |devices| has, for each device of the rank, the
// indices in Machine::nics of the NICs that its data uses, best first. Host memory is the first
// device. The result lists the NICs in |devices| first, then those in |others|. The caller has to
// set |located_devices| and |keeps_all_nics|.
//
// PCIe links with an unknown rate are omitted. Of several PCIe links that are used by the same
// NICs, only the narrowest is included. HostNic::links omits links that carry only a part of the
// NIC's data, such as those of one member of a bond.
HostLinks host_links(const Machine& machine, const std::vector<std::vector<int>>& devices,
                     const std::vector<int>& others);

// Encodes |links| in at most kMaxHostLinksBytes bytes.
std::vector<std::byte> encode_host_links(const HostLinks& links);
// Decodes |bytes|. Fails with INVALID_ARGUMENT if they are not a valid encoding.
Result<HostLinks> decode_host_links(ConstByteSpan bytes);

}  // namespace hetcomm::topology
