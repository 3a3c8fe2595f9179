#include "src/core/job/membership/host_devices.h"

#include <cstring>
#include <map>
#include <set>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/packed.h"
#include "src/core/job/membership/job_digest.h"
#include "src/net/hash.h"

namespace hetcomm {
namespace {

using topology::PciAddress;
using Bytes = std::vector<std::byte>;
using DevicesByHost = std::map<HostId, std::set<PciAddress>>;

constexpr uint16_t kDevicesVersion = 1;
constexpr size_t kBytesOfDevice = 4 + 3;

Bytes encode(const DevicesByHost& hosts) {
  ByteWriter writer;
  writer.write(kDevicesVersion);
  write_packed(writer, hosts.size());
  for (const auto& [host, devices] : hosts) {
    writer.write_raw(host);
    const size_t count = std::min(devices.size(), kMaxHiddenDevices);
    writer.write(static_cast<uint8_t>(count));
    auto device = devices.begin();
    for (size_t i = 0; i < count; ++i, ++device) {
      writer.write(device->domain);
      writer.write(device->bus);
      writer.write(device->device);
      writer.write(device->function);
    }
  }
  return writer.take();
}

// Adds the devices in |bytes| to |hosts|. Returns false if |bytes| are malformed.
bool decode(ConstByteSpan bytes, DevicesByHost& hosts) {
  ByteReader reader(bytes);
  if (reader.read<uint16_t>() != kDevicesVersion) return false;
  const size_t count =
      reader.check_count(read_packed(reader), JobDigest::kMaxRanks, sizeof(HostId) + 1);
  for (size_t i = 0; i < count && !reader.failed(); ++i) {
    HostId host{};
    reader.read_into(host);
    const size_t devices = reader.read_count<uint8_t>(kMaxHiddenDevices, kBytesOfDevice);
    for (size_t j = 0; j < devices && !reader.failed(); ++j) {
      PciAddress address;
      address.domain = reader.read<uint32_t>();
      address.bus = reader.read<uint8_t>();
      address.device = reader.read<uint8_t>();
      address.function = reader.read<uint8_t>();
      if (address.device > 31 || address.function > 7) return false;
      hosts[host].insert(address);
    }
  }
  return reader.finished();
}

Status unreadable_devices(const std::string& whose) {
  return Status(Code::kBootstrapFailed,
                fmt::format("the devices that {} knows of cannot be read: install the same version "
                            "of hetcomm on all ranks",
                            whose));
}

}  // namespace

uint32_t name_of_devices(const std::vector<PciAddress>& devices) {
  if (devices.empty()) return 0;
  const Digest hash = sha256(encode({{HostId{}, {devices.begin(), devices.end()}}}));
  uint32_t name = 0;
  std::memcpy(&name, hash.data(), sizeof(name));
  return name >> 1 | 1;
}

Bytes encode_host_devices(const HostId& host, const std::vector<PciAddress>& devices) {
  return encode({{host, {devices.begin(), devices.end()}}});
}

Result<Bytes> HostDevicesMaker::part(int first, const std::vector<Bytes>& cards) const {
  DevicesByHost hosts;
  for (size_t i = 0; i < cards.size(); ++i) {
    if (!decode(cards[i], hosts)) {
      return unreadable_devices(fmt::format("rank {}", static_cast<size_t>(first) + i));
    }
  }
  return encode(hosts);
}

Result<Bytes> HostDevicesMaker::digest(const std::vector<Bytes>& parts) const {
  DevicesByHost hosts;
  for (const Bytes& part : parts) {
    if (!decode(part, hosts)) return unreadable_devices("a block of ranks");
  }
  return encode(hosts);
}

Result<std::vector<PciAddress>> devices_of_host(ConstByteSpan digest, const HostId& host) {
  DevicesByHost hosts;
  if (!decode(digest, hosts)) return unreadable_devices("some rank");
  const std::set<PciAddress>& devices = hosts[host];
  return std::vector<PciAddress>(devices.begin(), devices.end());
}

}  // namespace hetcomm
