// The ranks of a host tell each other of devices that only they see, so that all of them share out
// the host's NICs among the same devices. Ranks do so once, where the digest of a job shows that
// they do not know of the same ones. Pure.
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

inline constexpr size_t kMaxHiddenDevices = 128;  // devices of one host; the first ones count

// A number by which ranks find that they know of the same |devices|, which are in order. 0: of
// none.
uint32_t name_of_devices(const std::vector<topology::PciAddress>& devices);

// Encodes what one rank tells: the devices that it knows of on |host|.
std::vector<std::byte> encode_host_devices(const HostId& host,
                                           const std::vector<topology::PciAddress>& devices);

// Combines what the ranks of each host tell. Fails with kBootstrapFailed if a rank's part cannot be
// read.
class HostDevicesMaker final : public DigestMaker {
 public:
  Result<std::vector<std::byte>> part(
      int first, const std::vector<std::vector<std::byte>>& cards) const override;
  Result<std::vector<std::byte>> digest(
      const std::vector<std::vector<std::byte>>& parts) const override;
};

// The devices that the ranks of |host| have told, in order.
Result<std::vector<topology::PciAddress>> devices_of_host(ConstByteSpan digest, const HostId& host);

}  // namespace hetcomm
