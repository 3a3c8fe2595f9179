// The ranks of a host exchange which devices they know:
//   - every rank gets the devices of all ranks on its host, in order, and none from other hosts;
//   - the digest does not depend on how ranks are grouped into blocks;
//   - equal sets have equal names, and different sets have different names;
//   - malformed bytes are refused.
#include "src/core/job/membership/host_devices.h"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hetcomm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using topology::PciAddress;
using Bytes = std::vector<std::byte>;

HostId host(uint8_t number) {
  HostId id{};
  id[0] = std::byte{number};
  return id;
}
std::vector<PciAddress> at(const std::vector<const char*>& texts) {
  std::vector<PciAddress> addresses;
  for (const char* const text : texts) addresses.push_back(*topology::parse_pci_address(text));
  return addresses;
}
Bytes digest_of(const std::vector<Bytes>& cards, size_t block) {
  const HostDevicesMaker maker;
  std::vector<Bytes> parts;
  for (size_t first = 0; first < cards.size(); first += block) {
    std::vector<Bytes> of_block;
    for (size_t i = first; i < std::min(first + block, cards.size()); ++i) {
      of_block.push_back(cards[i]);
    }
    parts.push_back(maker.part(static_cast<int>(first), of_block).value());
  }
  return maker.digest(parts).value();
}
std::vector<std::string> found(const Bytes& digest, uint8_t number) {
  std::vector<std::string> texts;
  const std::vector<PciAddress> devices = devices_of_host(digest, host(number)).value();
  for (const PciAddress& each : devices) texts.push_back(each.text());
  return texts;
}

TEST(HostDevices, EveryRankGetsOnlyTheDevicesOfItsHost) {
  const std::vector<Bytes> cards{encode_host_devices(host(1), at({"03:00.0"})),
                                 encode_host_devices(host(2), at({"05:00.0", "06:00.0"})),
                                 encode_host_devices(host(1), at({"0001:02:00.1", "03:00.0"})),
                                 encode_host_devices(host(3), {}),
                                 encode_host_devices(host(1), at({"02:1f.7"}))};
  for (const size_t block : {1u, 2u, 5u}) {
    const Bytes digest = digest_of(cards, block);
    EXPECT_THAT(found(digest, 1), ElementsAre("0000:02:1f.7", "0000:03:00.0", "0001:02:00.1"));
    EXPECT_THAT(found(digest, 2), ElementsAre("0000:05:00.0", "0000:06:00.0"));
    EXPECT_THAT(found(digest, 3), IsEmpty());
    EXPECT_THAT(found(digest, 4), IsEmpty());
    EXPECT_EQ(digest, digest_of(cards, 3));
  }
}

TEST(HostDevices, DeviceSetNamesAreEqualOnlyForEqualSets) {
  EXPECT_EQ(name_of_devices({}), 0u);
  EXPECT_EQ(name_of_devices(at({"03:00.0", "04:00.0"})),
            name_of_devices(at({"03:00.0", "04:00.0"})));
  EXPECT_NE(name_of_devices(at({"03:00.0"})), 0u);
  EXPECT_NE(name_of_devices(at({"03:00.0"})), name_of_devices(at({"03:00.1"})));
  EXPECT_NE(name_of_devices(at({"03:00.0"})), name_of_devices(at({"03:00.0", "04:00.0"})));
}

TEST(HostDevices, MalformedBytesAreRefused) {
  const Bytes good = encode_host_devices(host(1), at({"03:00.0", "04:00.0"}));
  const HostDevicesMaker maker;
  for (size_t length = 0; length < good.size(); ++length) {
    Bytes bytes(good.begin(), good.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_EQ(maker.part(0, {good, bytes}).status().code(), Code::kBootstrapFailed);
    EXPECT_EQ(devices_of_host(bytes, host(1)).status().code(), Code::kBootstrapFailed);
  }
  Bytes device_32 = good;
  device_32[good.size() - 2] = std::byte{32};
  EXPECT_FALSE(maker.digest({device_32}).ok());
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes(random() % 64);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    if (bytes.size() > 2 && i % 2 == 0) std::copy(good.begin(), good.begin() + 2, bytes.begin());
    static_cast<void>(maker.part(0, {bytes}));
    static_cast<void>(devices_of_host(bytes, host(1)));
  }
}

}  // namespace
}  // namespace hetcomm
