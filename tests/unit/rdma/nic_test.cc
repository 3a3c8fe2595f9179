// Which NIC and address the rdma transport chooses, and its error texts; over a fake: not run on
// hardware.
//   - the fastest active port, or the first usable port that was named;
//   - RoCE v2 over IPv4, then IPv6, link-local last, then RoCE v1; LIDs on InfiniBand;
//   - a wrong name, port, GID index or MTU, or an inactive port, gives a text that states what was
//     tried and what to set;
//   - peers without a common kind of address do not reach each other;
//   - a device that supports neither InfiniBand nor RoCE is not chosen, and not opened;
//   - the rate in a file is read correctly in any locale, up to the fastest rates;
//   - a port whose MTU is too small for HETCOMM_RDMA_MTU does not displace a usable port, even if
//     files report that MTU;
//   - the kernel's files agree with the open device, and no device is opened for them; without
//     files, or without the right to open the device, it is opened and says why;
//   - descriptors, parameters, answers and keys are decoded as they were encoded, and malformed
//     ones are refused; so are headers, each encoded as its difference from the preceding header.
#include "transports/rdma/nic.h"

#include <clocale>
#include <random>
#include <string>
#include <vector>

#include "src/capi/variables.h"
#include "src/system/log.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/rdma/fixture.h"
#include "transports/rdma/wire.h"

namespace hetcomm::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

FakeGid gid(std::initializer_list<uint8_t> first, uint32_t type = IBV_GID_TYPE_ROCE_V2) {
  FakeGid result{.bytes = first, .type = type};
  result.bytes.resize(16, 1);
  return result;
}

class RdmaNic : public ::testing::Test {
 protected:
  void SetUp() override { FakeFabric::reset(); }

  Status probe(const std::string& settings = "") {
    Log log;
    const auto config = Config::load(kVariables, nullptr, settings, log);
    if (!config.ok()) return config.status();
    return rdma::make_factory(FakeFabric::verbs())->probe(config.value());
  }
  static std::string text(const Status& status) { return std::string(status.text()); }
};

TEST_F(RdmaNic, ProbeWithoutADeviceIsUnsupported) {
  FakeFabric::reset({});
  EXPECT_EQ(probe().code(), Code::kUnsupported);
  EXPECT_THAT(text(probe()), HasSubstr("no RDMA device"));
}

TEST_F(RdmaNic, ProbeWithoutAnActivePortNamesThePort) {
  FakeFabric::reset({{.name = "nic0", .ports = {{.state = IBV_PORT_DOWN, .gids = {ipv4_gid(1)}}}}});
  EXPECT_EQ(probe().code(), Code::kUnsupported);
  EXPECT_THAT(text(probe()), HasSubstr("nic0:1"));
  EXPECT_THAT(text(probe()), HasSubstr("down"));
}

TEST_F(RdmaNic, DeviceIsSelectedByNameAndPort) {
  FakeFabric::reset(
      {{.name = "nic0", .ports = {{.gids = {ipv4_gid(1)}}}},
       {.name = "nic1",
        .ports = {{.state = IBV_PORT_DOWN, .gids = {ipv4_gid(2)}}, {.gids = {ipv4_gid(3)}}}}});
  EXPECT_THAT(text(probe()), HasSubstr("nic0:1"));
  EXPECT_THAT(text(probe("RDMA_NIC=nic1")), HasSubstr("nic1:2"));
  EXPECT_THAT(text(probe("RDMA_NIC=nic1:2")), HasSubstr("nic1:2"));
  EXPECT_THAT(text(probe("RDMA_NIC=nic9,nic1:1,nic1:2")), HasSubstr("192.0.2.3"));
  const Status down = probe("RDMA_NIC=nic1:1");
  EXPECT_EQ(down.code(), Code::kUnsupported);
  EXPECT_THAT(text(down), HasSubstr("down"));
  const Status wrong = probe("RDMA_NIC=nic7");
  EXPECT_FALSE(wrong.ok());
  EXPECT_THAT(text(wrong), HasSubstr("HETCOMM_RDMA_NIC=nic7"));
  EXPECT_THAT(text(wrong), HasSubstr("nic0, nic1"));
  EXPECT_THAT(text(probe("RDMA_NIC=nic0:4")), HasSubstr("1 port"));
  EXPECT_THAT(text(probe("RDMA_NIC=nic0:x")), HasSubstr("no port number"));
}

TEST_F(RdmaNic, UnknownDeviceNameLogsOneWarning) {
  FakeFabric::reset({{.name = "nic0", .ports = {{.gids = {ipv4_gid(1)}}}},
                     {.name = "nic1", .ports = {{.gids = {ipv4_gid(2)}}}}});
  std::vector<std::string> lines;
  Log log;
  log.set_sink(
      [](void* lines_of, int32_t, const char* line) {
        static_cast<std::vector<std::string>*>(lines_of)->emplace_back(line);
      },
      &lines);
  const auto check = [&](const char* settings) {
    rdma::warn_of_unknown_devices(FakeFabric::verbs(),
                                  Config::load(kVariables, nullptr, settings, log).value(), log);
  };
  for (const char* fine : {"", "RDMA_NIC=nic1", "RDMA_NIC=nic0:1,nic1"}) check(fine);
  EXPECT_TRUE(lines.empty());
  for (int i = 0; i < 2; ++i) check("RDMA_NIC=nic0,nic2:1");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("'nic2'"));
  EXPECT_THAT(lines[0], HasSubstr("it has nic0, nic1"));
}

TEST_F(RdmaNic, FastestPortsComeFirstAndMuchSlowerOnesAreOmitted) {
  const auto device = [](const std::string& name, uint8_t speed) {
    return FakeDeviceSpec{.name = name, .ports = {{.gids = {ipv4_gid(1)}, .active_speed = speed}}};
  };
  // The devices have four lanes each: 40, 200, 100, 200 and 10 Gbit/s.
  FakeFabric::reset({device("forty", 4), device("two", 64), device("hundred", 32),
                     device("twin", 64), device("ten", 1)});
  EXPECT_THAT(text(probe()), HasSubstr("two:1"));
  Log log;
  const Config config = Config::load(kVariables, nullptr, "", log).value();
  const rdma::Verbs& verbs = FakeFabric::verbs();
  std::vector<std::string> names;
  for (size_t i = 0; i < 3; ++i) {
    auto nic = rdma::find_nic(verbs, config, i);
    ASSERT_TRUE(nic.ok()) << i;
    names.push_back(nic->nic.device);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"two", "twin", "hundred"}));
  EXPECT_FALSE(rdma::find_nic(verbs, config, 3).ok()) << "a quarter of the best, at least";
  EXPECT_EQ(rdma::count_nics(verbs, config, 10), 3u);
  EXPECT_EQ(rdma::count_nics(verbs, config, 2), 2u);
  EXPECT_EQ(FakeFabric::open_objects(), 0u);
}

TEST_F(RdmaNic, AddressesAreChosenByPreference) {
  const FakeGid link_local = gid({0xfe, 0x80});
  const FakeGid global = gid({0x20, 0x01});
  const FakeGid old = {.bytes = ipv4_gid(7).bytes, .type = IBV_GID_TYPE_ROCE_V1};
  const auto with = [](std::vector<FakeGid> gids) {
    FakeFabric::reset({{.name = "nic0", .ports = {{.gids = std::move(gids)}}}});
  };
  with({link_local, old, global, ipv4_gid(1)});
  EXPECT_THAT(text(probe()), HasSubstr("RoCE v2 IPv4 192.0.2.1"));
  EXPECT_THAT(text(probe()), HasSubstr("GID index 3"));
  with({link_local, old, global});
  EXPECT_THAT(text(probe()), HasSubstr("GID index 2"));
  with({old, link_local});
  EXPECT_THAT(text(probe()), HasSubstr("GID index 1"));
  with({old});
  EXPECT_THAT(text(probe()), HasSubstr("RoCE v1"));
  with({{}, {}});
  EXPECT_THAT(text(probe()), HasSubstr("no GID"));
  with({old, {}, ipv4_gid(1)});
  EXPECT_THAT(text(probe("RDMA_GID_INDEX=0")), HasSubstr("RoCE v1"));
  const Status missing = probe("RDMA_GID_INDEX=1");
  EXPECT_FALSE(missing.ok());
  EXPECT_THAT(text(missing), HasSubstr("HETCOMM_RDMA_GID_INDEX=1"));
  EXPECT_THAT(text(missing), HasSubstr("2 (RoCE v2"));
  EXPECT_THAT(text(probe("RDMA_GID_INDEX=two")), HasSubstr("neither a number"));
}

// A connection names its GID by eight bits: 300 would be taken for 44.
TEST_F(RdmaNic, GidIndexBeyond255IsRefused) {
  std::vector<FakeGid> gids(301);
  gids[44] = ipv4_gid(1);
  gids[255] = ipv4_gid(2);
  gids[300] = ipv4_gid(3);
  FakeFabric::reset({{.name = "nic0", .ports = {{.gids = gids}}}});
  EXPECT_THAT(text(probe("RDMA_GID_INDEX=255")), HasSubstr("192.0.2.2"));
  EXPECT_THAT(text(probe("RDMA_GID_INDEX=300")), HasSubstr("nic0:1 has no GID there"));
  EXPECT_THAT(text(probe("RDMA_GID_INDEX=256")), HasSubstr("nic0:1 has no GID there"));
}

// Returns devices of every kind that affects the choice.
std::vector<FakeDeviceSpec> various_devices() {
  const FakeGid link_local = gid({0xfe, 0x80});
  const FakeGid old = {.bytes = ipv4_gid(7).bytes, .type = IBV_GID_TYPE_ROCE_V1};
  std::vector<FakePort> roce(2);
  roce[0] = {.state = IBV_PORT_INIT, .gids = {ipv4_gid(1)}};
  roce[1] = {.gids = {link_local, old, {}, gid({0x20, 0x01}), ipv4_gid(3)}, .active_speed = 64};
  FakePort infiniband{.link_layer = IBV_LINK_LAYER_INFINIBAND,
                      .lid = 0x1f,
                      .gids = {link_local, gid({0xfe, 0x80, 1})},
                      .active_speed = 4};
  return {{.name = "roce", .ports = std::move(roce)},
          {.name = "ib", .ports = {std::move(infiniband)}},
          {.name = "bare", .ports = {{.gids = {{}, {}}}}}};
}

TEST_F(RdmaNic, KernelFilesAgreeWithTheOpenDevice) {
  const TemporaryFolder folder;
  Log log;
  for (const char* settings :
       {"", "RDMA_NIC=ib", "RDMA_NIC=bare", "RDMA_NIC=roce:1", "RDMA_NIC=roce:3", "RDMA_NIC=gone",
        "RDMA_NIC=bare,ib:1", "RDMA_GID_INDEX=1", "RDMA_GID_INDEX=2"}) {
    const Config config = Config::load(kVariables, nullptr, settings, log).value();
    FakeFabric::reset(various_devices());
    auto opened = rdma::find_nic(FakeFabric::verbs(), config);
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
    FakeFabric::reset(various_devices());
    FakeFabric::show_files(folder.path());
    auto read = rdma::find_nic(FakeFabric::verbs(), config);
    EXPECT_EQ(FakeFabric::opens(), 0u) << settings;
    ASSERT_EQ(read.ok(), opened.ok()) << settings;
    if (!read.ok()) {
      EXPECT_EQ(text(read.status()), text(opened.status()));
      continue;
    }
    EXPECT_EQ(read->others, opened->others);
    EXPECT_EQ(read->nic.name(), opened->nic.name());
    EXPECT_EQ(read->nic.ethernet, opened->nic.ethernet);
    EXPECT_EQ(read->nic.lid, opened->nic.lid);
    EXPECT_EQ(read->nic.rate_mbit, opened->nic.rate_mbit);
    ASSERT_EQ(read->nic.gids.size(), opened->nic.gids.size()) << settings;
    for (size_t i = 0; i < read->nic.gids.size(); ++i) {
      EXPECT_EQ(read->nic.gids[i].bytes, opened->nic.gids[i].bytes);
      EXPECT_EQ(read->nic.gids[i].kind, opened->nic.gids[i].kind);
      EXPECT_EQ(read->nic.gids[i].index, opened->nic.gids[i].index);
    }
    EXPECT_THAT(read->nic.describe(), Not(HasSubstr("MTU"))) << "nobody has told it";
  }
}

TEST_F(RdmaNic, DevicesWithoutRoceOrInfiniBandAreNotChosen) {
  const TemporaryFolder folder;
  for (const bool files : {false, true}) {
    FakeFabric::reset({{.name = "iwarp0",
                        .ports = {{.gids = {ipv4_gid(1)}, .active_speed = 64}},
                        .transport = IBV_TRANSPORT_IWARP},
                       {.name = "efa0",
                        .ports = {{.gids = {ipv4_gid(2)}, .active_speed = 64}},
                        .transport = IBV_TRANSPORT_UNSPECIFIED},
                       {.name = "nic0", .ports = {{.gids = {ipv4_gid(3)}}}}});
    if (files) FakeFabric::show_files(folder.path());
    FakeFabric::fail_opens(0, EIO);
    Log log;
    auto nic =
        rdma::find_nic(FakeFabric::verbs(), Config::load(kVariables, nullptr, "", log).value());
    ASSERT_TRUE(nic.ok()) << files;
    EXPECT_EQ(nic->nic.name(), "nic0:1");
    EXPECT_THAT(nic->others, HasSubstr("iwarp0: an iWARP device"));
    EXPECT_THAT(nic->others, HasSubstr("efa0: neither InfiniBand nor RoCE"));
  }
}

void expect_rates_of_files() {
  const TemporaryFolder folder;
  const auto rate_of = [&](const char* text) {
    FakeFabric::reset({{.name = "nic0", .ports = {{.gids = {ipv4_gid(1)}, .rate = text}}}});
    FakeFabric::show_files(folder.path());
    Log log;
    return rdma::find_nic(FakeFabric::verbs(), Config::load(kVariables, nullptr, "", log).value())
        ->nic.rate_mbit;
  };
  EXPECT_EQ(rate_of("2.5 Gb/sec (1X SDR)"), 2'500u);
  EXPECT_EQ(rate_of("14.0625 Gb/sec (1X FDR)"), 14'063u);
  EXPECT_EQ(rate_of("800 Gb/sec (4X XDR)"), 800'000u);
  EXPECT_EQ(rate_of("2400 Gb/sec (12X XDR)"), 2'400'000u);
  for (const char* senseless : {"fast", "-1 Gb/sec", "0", "inf", "nan", "1e300"}) {
    EXPECT_EQ(rate_of(senseless), 0u) << senseless;
  }
}

TEST_F(RdmaNic, RatesAreReadFromFiles) { expect_rates_of_files(); }

TEST_F(RdmaNic, RatesAreReadInLocalesWithADecimalComma) {
  bool some = false;
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8", "nl_NL.UTF-8"}) {
    some = some || std::setlocale(LC_NUMERIC, name) != nullptr;
  }
  if (!some) GTEST_SKIP() << "no locale with a decimal comma is installed";
  expect_rates_of_files();
  std::setlocale(LC_NUMERIC, "C");
}

TEST_F(RdmaNic, DeviceThatMayNotBeOpenedIsNotChosen) {
  const TemporaryFolder folder;
  std::vector<FakeDeviceSpec> devices = {{.name = "nic0", .ports = {{.gids = {ipv4_gid(1)}}}},
                                         {.name = "nic1", .ports = {{.gids = {ipv4_gid(2)}}}}};
  devices[0].may_open = false;
  FakeFabric::reset(devices);
  FakeFabric::show_files(folder.path());
  Log log;
  auto nic =
      rdma::find_nic(FakeFabric::verbs(), Config::load(kVariables, nullptr, "", log).value());
  ASSERT_TRUE(nic.ok());
  EXPECT_EQ(nic->nic.name(), "nic1:1");
  EXPECT_THAT(nic->others, HasSubstr("nic0: cannot be opened: Permission denied"));
}

TEST_F(RdmaNic, MtuBeyondThePortIsRefused) {
  EXPECT_THAT(text(probe("RDMA_MTU=512")), HasSubstr("MTU 512"));
  EXPECT_THAT(text(probe("RDMA_MTU=4096")), HasSubstr("active MTU"));
  EXPECT_FALSE(probe("RDMA_MTU=1000").ok());
}

TEST_F(RdmaNic, PortWithTooSmallAnMtuIsPassedOver) {
  const TemporaryFolder folder;
  for (const bool files : {false, true}) {
    FakeFabric::reset(
        {{.name = "fast", .ports = {{.gids = {ipv4_gid(1)}, .active_speed = 64}}},
         {.name = "large", .ports = {{.active_mtu = IBV_MTU_4096, .gids = {ipv4_gid(2)}}}}});
    if (files) FakeFabric::show_files(folder.path());
    Log log;
    const Config config = Config::load(kVariables, nullptr, "RDMA_MTU=4096", log).value();
    auto nic = rdma::find_nic(FakeFabric::verbs(), config);
    ASSERT_TRUE(nic.ok()) << files;
    EXPECT_EQ(nic->nic.name(), "large:1");
    EXPECT_THAT(nic->others, HasSubstr("the active MTU of fast:1 is 1024"));
    EXPECT_FALSE(rdma::find_named_nic(FakeFabric::verbs(), config, "fast:1").ok());
    EXPECT_EQ(rdma::count_nics(FakeFabric::verbs(), config, 4), 1u);
    EXPECT_EQ(FakeFabric::open_objects(), 0u);
  }
}

TEST_F(RdmaNic, PeersConnectOverAnInfiniBandPort) {
  FakeFabric::reset({{.name = "ib0",
                      .ports = {{.link_layer = IBV_LINK_LAYER_INFINIBAND,
                                 .lid = 12,
                                 .gids = {gid({0xfe, 0x80}), gid({0xfe, 0x80, 1})}}}}});
  EXPECT_THAT(text(probe()), HasSubstr("InfiniBand"));
  FakePair pair;
  EXPECT_TRUE(pair.connect());
}

TEST_F(RdmaNic, PeersWithoutACommonAddressTypeAreUnreachable) {
  FakeFabric::reset(
      {{.name = "new", .ports = {{.gids = {ipv4_gid(1)}}}},
       {.name = "old",
        .ports = {{.gids = {{.bytes = ipv4_gid(2).bytes, .type = IBV_GID_TYPE_ROCE_V1}}}}},
       {.name = "ib",
        .ports = {
            {.link_layer = IBV_LINK_LAYER_INFINIBAND, .lid = 1, .gids = {gid({0xfe, 0x80})}}}}});
  const auto factory = rdma::make_factory(FakeFabric::verbs());
  const Credentials credentials = make_credentials();
  Node modern({*factory, "RDMA_NIC=new", credentials, 0, 3});
  Node old({*factory, "RDMA_NIC=old", credentials, 1, 3});
  Node infiniband({*factory, "RDMA_NIC=ib", credentials, 2, 3});
  const Status kinds = modern.transport().reach(old.transport().contact());
  EXPECT_EQ(kinds.code(), Code::kUnsupported);
  EXPECT_THAT(text(kinds), HasSubstr("RoCE v1"));
  const Status links = modern.transport().reach(infiniband.transport().contact());
  EXPECT_THAT(text(links), HasSubstr("InfiniBand"));
  EXPECT_TRUE(modern.transport().reach(modern.transport().contact()).ok());
}

TEST_F(RdmaNic, ParametersRoundTripAndMalformedOnesAreRefused) {
  const rdma::Parameters good{.queue_pair = 0x123456,
                              .packet_sequence = 0xabcdef,
                              .lid = 7,
                              .mtu = IBV_MTU_2048,
                              .read_depth = 16,
                              .credits = 32,
                              .slot_bytes = 8256,
                              .kind = rdma::GidKind::kRoceV2Ipv6};
  const auto bytes = rdma::encode_parameters(good);
  const auto back = rdma::decode_parameters(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->queue_pair, good.queue_pair);
  EXPECT_EQ(back->packet_sequence, good.packet_sequence);
  EXPECT_EQ(back->mtu, good.mtu);
  EXPECT_EQ(back->kind, good.kind);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(rdma::decode_parameters(ConstByteSpan(bytes).first(size)).has_value());
  }
  rdma::Parameters poor = good;
  poor.credits = 1;
  EXPECT_FALSE(rdma::decode_parameters(rdma::encode_parameters(poor)).has_value());
  const auto refusal = rdma::decode_answer(rdma::encode_refusal("no room\n"));
  EXPECT_THAT(text(refusal.status()), HasSubstr("no room?"));
  EXPECT_TRUE(rdma::decode_answer(rdma::encode_answer({good, {}})).ok());
  EXPECT_FALSE(rdma::decode_answer(rdma::AnswerBytes{}).ok());
  const rdma::Key key{.address = 0x7fff12345678,
                      .length = 1u << 30,
                      .rkey = 0xdeadbeef,
                      .immediate = rdma::make_immediate(5, 9),
                      .kind = rdma::KeyKind::kGetSource};
  const auto decoded = rdma::decode_key(rdma::encode_key(key));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->address, key.address);
  EXPECT_EQ(decoded->length, key.length);
  EXPECT_EQ(decoded->rkey, key.rkey);
  EXPECT_EQ(rdma::slot_of(decoded->immediate), 5u);
  EXPECT_EQ(rdma::generation_of(decoded->immediate), 9u);
  EXPECT_FALSE(rdma::decode_key(RemoteKey{}).has_value()) << "all-zero means none";
}

TEST(RdmaHead, EncodesTheDifferenceFromThePreviousHeader) {
  std::mt19937_64 random(1);
  MessageHeader sent{};
  MessageHeader received{};
  MessageHeader header{};
  for (int i = 0; i < 10000; ++i) {
    const uint64_t changes = random();
    for (size_t byte = 0; byte < header.size(); ++byte) {
      if (changes >> byte & 1) header[byte] = static_cast<std::byte>(random());
    }
    const auto credits = static_cast<uint16_t>(random());
    std::array<std::byte, rdma::kMaxHeadBytes> bytes;
    const size_t size = rdma::encode_head(bytes.data(), credits, header, sent);
    ASSERT_LE(size, bytes.size());
    const auto head = rdma::decode_head(bytes.data(), size + 10, received);
    ASSERT_TRUE(head);
    EXPECT_EQ(head->type, rdma::HeadType::kMessage);
    EXPECT_EQ(head->credits, credits);
    EXPECT_EQ(head->size, size);
    ASSERT_EQ(received, header);
  }
  header[4] = ~header[4];    // a sequence number
  header[16] = ~header[16];  // what was received
  std::array<std::byte, rdma::kMaxHeadBytes> bytes;
  EXPECT_EQ(rdma::encode_head(bytes.data(), 1, header, sent), 9u);
}

}  // namespace
}  // namespace hetcomm::test
