// Lets the ranks of a host exchange the devices that only some of them see, so that all divide the
// host's NICs among the same devices. They exchange devices once, if the digest of a job shows that
// they have found different ones. All functions are pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/bootstrap/digest_exchange.h"
#include "src/system/host_id.h"
#include "topology/machine/pci_address.h"

namespace hetcomm {

inline constexpr size_t kMaxHiddenDevices = 128;  // for one host; further devices are ignored

// Returns a number derived from |devices|, which are sorted. Ranks compare their numbers to detect
// whether they have found the same devices. Returns 0 for no devices.
uint32_t name_of_devices(const std::vector<topology::PciAddress>& devices);

// Encodes the devices that one rank has found on |host|.
std::vector<std::byte> encode_host_devices(const HostId& host,
                                           const std::vector<topology::PciAddress>& devices);

// Combines the reports from the ranks of each host. Fails with kBootstrapFailed if a report is
// malformed.
class HostDevicesMaker final : public DigestMaker {
 public:
  Result<std::vector<std::byte>> part(
      int first, const std::vector<std::vector<std::byte>>& cards) const override;
  Result<std::vector<std::byte>> digest(
      const std::vector<std::vector<std::byte>>& parts) const override;
};

// Returns the devices that the ranks of |host| have reported, sorted.
Result<std::vector<topology::PciAddress>> devices_of_host(ConstByteSpan digest, const HostId& host);

}  // namespace hetcomm
