// Listening for transports that connect by IP:
//  * a published host is decoded unchanged, and hostile bytes are refused or give a valid host;
//  * a peer's addresses are tried only if this rank listens on their family, and never if they are
//    another host's loopback addresses; the text names the omitted addresses;
//  * a NetworkListener listens on the addresses that HETCOMM_INTERFACE selects, with a port from
//    HETCOMM_PORTS, judges no peer before it is opened, and then hands over the peers that prove
//    the secret;
//  * this host's id is known and constant.
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/capi/variables.h"
#include "src/net/connector.h"
#include "src/net/key.h"
#include "src/net/listening_host.h"
#include "src/net/listening_socket.h"
#include "src/net/network_listener.h"
#include "src/system/clock.h"
#include "src/system/host_id.h"

namespace hetcomm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Address numeric(std::string_view text, uint16_t port) {
  return Address::parse_numeric(text, port).value();
}

std::vector<std::byte> encoded(const ListeningHost& host) {
  ByteWriter writer;
  host.encode(writer);
  return writer.take();
}

std::optional<ListeningHost> decoded(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  std::optional<ListeningHost> host = ListeningHost::decode(reader);
  if (host && !reader.finished()) return std::nullopt;
  return host;
}

std::vector<std::string> texts(const std::vector<Address>& addresses) {
  std::vector<std::string> result;
  for (const Address& address : addresses) result.push_back(address.to_string());
  return result;
}

TEST(HostIdTest, HostIdIsKnownAndConstant) {
  if (access("/proc/sys/kernel/random/boot_id", R_OK) != 0) {
    GTEST_SKIP() << "this kernel does not tell its boot id";
  }
  const HostId id = read_host_id();
  EXPECT_NE(id, kUnknownHost);
  EXPECT_EQ(read_host_id(), id);
}

TEST(HostIdTest, UnknownHostIdsNeverCountAsDifferent) {
  const HostId one{std::byte{1}};
  const HostId other{std::byte{2}};
  EXPECT_TRUE(are_different_hosts(one, other));
  EXPECT_FALSE(are_different_hosts(one, one));
  EXPECT_FALSE(are_different_hosts(one, kUnknownHost));
  EXPECT_FALSE(are_different_hosts(kUnknownHost, other));
}

TEST(ListeningHostTest, HostReadsBackAsWritten) {
  ListeningHost host{.id = {std::byte{7}}, .addresses = {numeric("192.0.2.1", 4000)}};
  host.addresses.push_back(numeric("2001:db8::2", 4001));
  const auto back = decoded(encoded(host));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->id, host.id);
  EXPECT_EQ(texts(back->addresses), texts(host.addresses));
}

TEST(ListeningHostTest, HostKeepsItsFirstAddressesUpToTheLimit) {
  ListeningHost host;
  for (size_t i = 0; i <= kMaxListeningAddresses; ++i) {
    host.addresses.push_back(numeric("192.0.2.1", static_cast<uint16_t>(4000 + i)));
  }
  const auto back = decoded(encoded(host));
  ASSERT_TRUE(back);
  ASSERT_EQ(back->addresses.size(), kMaxListeningAddresses);
  EXPECT_EQ(back->addresses.back().port(), 4000 + kMaxListeningAddresses - 1);
}

TEST(ListeningHostTest, InvalidOrTruncatedHostIsRefused) {
  EXPECT_FALSE(decoded(encoded({})));
  EXPECT_FALSE(decoded(encoded({.addresses = {numeric("192.0.2.1", 0)}})));
  EXPECT_FALSE(decoded(encoded({.addresses = {Address::local("x")}})));
  const ListeningHost good{.addresses = {numeric("192.0.2.1", 4000)}};
  std::vector<std::byte> bytes = encoded(good);
  ASSERT_TRUE(decoded(bytes));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decoded(ConstByteSpan(bytes).first(size))) << size;
  }
  ByteWriter nine;
  nine.write_raw(good.id);
  nine.write(static_cast<uint8_t>(kMaxListeningAddresses + 1));
  for (size_t i = 0; i <= kMaxListeningAddresses; ++i) good.addresses[0].encode(nine);
  EXPECT_FALSE(decoded(nine.bytes()));
}

TEST(ListeningHostTest, CorruptedBytesNeverDecodeToAnInvalidHost) {
  const std::vector<std::byte> good =
      encoded({.addresses = {numeric("192.0.2.1", 4000), numeric("::1", 1)}});
  std::mt19937 random(1);
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::byte> bytes = good;
    bytes[16 + random() % (bytes.size() - 16)] = static_cast<std::byte>(random());
    const auto host = decoded(bytes);
    if (!host) continue;
    EXPECT_GE(host->addresses.size(), 1u);
    for (const Address& address : host->addresses) EXPECT_NE(address.port(), 0);
  }
}

TEST(ListeningHostTest, UsableAddressesShareAFamilyAndExcludeForeignLoopback) {
  const ListeningHost mine{.id = {std::byte{1}}, .addresses = {numeric("192.0.2.9", 1)}};
  ListeningHost theirs{.id = {std::byte{1}}, .addresses = {numeric("127.0.0.1", 5)}};
  theirs.addresses.push_back(numeric("2001:db8::2", 6));
  theirs.addresses.push_back(numeric("192.0.2.1", 7));
  EXPECT_THAT(texts(usable_addresses(mine, theirs).value()),
              ElementsAre("127.0.0.1:5", "192.0.2.1:7"));
  theirs.id = kUnknownHost;
  EXPECT_EQ(usable_addresses(mine, theirs)->size(), 2u);
  theirs.id = {std::byte{2}};
  EXPECT_THAT(texts(usable_addresses(mine, theirs).value()), ElementsAre("192.0.2.1:7"));
  theirs.addresses.pop_back();
  const Result<std::vector<Address>> none = usable_addresses(mine, theirs);
  EXPECT_EQ(none.status().code(), Code::kUnsupported);
  EXPECT_THAT(std::string(none.status().text()),
              testing::AllOf(HasSubstr("127.0.0.1:5: loopback of another host"),
                             HasSubstr("[2001:db8::2]:6: family not in use here")));
}

// Peers do not know the indices of this host's interfaces.
TEST(ListeningHostTest, LinkLocalAddressesGetTheScopeOfThisHost) {
  const Address own = numeric("fe80::1", 1).with_scope(1);
  const ListeningHost theirs{.id = {std::byte{2}}, .addresses = {numeric("fe80::2", 7)}};
  auto usable = usable_addresses({.id = {std::byte{1}}, .addresses = {own}}, theirs);
  ASSERT_TRUE(usable.ok()) << usable.status().text();
  ASSERT_EQ(usable->size(), 1u);
  EXPECT_EQ(usable->front().scope(), 1u);
  EXPECT_EQ(usable->front().port(), 7);
  const auto none =
      usable_addresses({.id = {std::byte{1}}, .addresses = {numeric("2001:db8::1", 1)}}, theirs);
  EXPECT_THAT(std::string(none.status().text()), HasSubstr("link-local"));
}

TEST(LinkLocalScopeTest, OnlyALinkLocalFirstAddressGivesAScope) {
  const InterfaceAddress link{.interface = "eth1", .address = numeric("fe80::1", 0).with_scope(5)};
  const InterfaceAddress global{.interface = "eth0", .address = numeric("2001:db8::1", 0)};
  EXPECT_EQ(link_local_scope({link, global}), 5u);
  EXPECT_EQ(link_local_scope({global, link}), 0u);
  EXPECT_EQ(link_local_scope({}), 0u);
  EXPECT_TRUE(can_be_told(link.address, 5));
  EXPECT_FALSE(can_be_told(link.address, 6));
  EXPECT_FALSE(can_be_told(link.address, 0));
  EXPECT_TRUE(can_be_told(global.address, 0));
}

class NetworkListenerTest : public testing::Test, public AcceptHandler, public ConnectHandler {
 protected:
  NetworkListenerTest() {
    credentials_.identity = identity_of("job", "world", 0);
    credentials_.secret = secret_from(std::as_bytes(std::span(std::string_view("s"))));
  }
  Result<std::unique_ptr<NetworkListener>> listen(const std::string& settings) {
    const Config config = Config::load(kVariables, nullptr, settings, log_).value();
    return NetworkListener::create(poller_, log_, config, choose_interfaces(config), {}, "net",
                                   {.credentials = {}, .role = Role::kTcp, .rank = 1}, *this);
  }
  void on_accept(StreamSocket /*socket*/, const Hello& /*peer*/) override { ++accepted_; }
  void on_connect(Result<StreamSocket> socket) override { connected_ = socket.status(); }

  Poller poller_ = Poller::create().value();
  Log log_;
  Credentials credentials_;
  int accepted_ = 0;
  Status connected_{Code::kPending, ""};
};

TEST_F(NetworkListenerTest, ListensOnTheChosenInterfaces) {
  auto listener = listen("INTERFACE=lo;FAMILY=ipv4");
  ASSERT_TRUE(listener.ok()) << listener.status().text();
  const ListeningHost& host = (*listener)->host();
  EXPECT_EQ(host.id, read_host_id());
  ASSERT_FALSE(host.addresses.empty());
  EXPECT_EQ((*listener)->interfaces().size(), host.addresses.size());
  EXPECT_EQ((*listener)->interfaces().front(), "lo");
  EXPECT_TRUE(host.addresses.front().is_loopback());
  EXPECT_NE(host.addresses.front().port(), 0);
  const Result<std::unique_ptr<NetworkListener>> none = listen("INTERFACE=nosuch0");
  EXPECT_EQ(none.status().code(), Code::kNotFound);
}

TEST_F(NetworkListenerTest, UsesAPortFromTheRange) {
  uint16_t port = 0;
  {
    const UniqueFd probe = listen_on(numeric("127.0.0.1", 0), 1).value();
    port = bound_address(probe.get())->port();
  }
  const std::string settings = fmt::format("INTERFACE=127.0.0.1;PORTS={}", port);
  auto listener = listen(settings);
  ASSERT_TRUE(listener.ok()) << listener.status().text();
  EXPECT_EQ((*listener)->host().addresses.front().port(), port);
  const auto second = listen(settings);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().text()), testing::StartsWith("net: "));
}

TEST_F(NetworkListenerTest, AcceptsNoPeerBeforeItIsOpened) {
  const auto listener = listen("INTERFACE=127.0.0.1").value();
  Hello hello;
  hello.identity = credentials_.identity;
  hello.source = 4;
  hello.destination = 1;
  const auto connector = Connector::create(poller_, listener->host().addresses, credentials_.secret,
                                           hello, now_ns() + 60'000'000'000, *this);
  const uint64_t deadline = now_ns() + 30'000'000'000;
  const auto step = [&] {
    connector->expire(now_ns());
    listener->expire(now_ns());
    poller_.wait(1'000'000);
    poller_.poll();
  };
  while (connector->reached() == nullptr && now_ns() < deadline) step();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(accepted_, 0);
  EXPECT_EQ(connected_.code(), Code::kPending);
  ASSERT_TRUE(listener->open(credentials_).ok());
  while ((accepted_ == 0 || connected_.code() == Code::kPending) && now_ns() < deadline) step();
  EXPECT_EQ(accepted_, 1);
  EXPECT_TRUE(connected_.ok()) << connected_.text();
}

}  // namespace
}  // namespace hetcomm
