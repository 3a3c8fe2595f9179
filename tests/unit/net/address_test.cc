// Addresses: text and wire forms round-trip, hostile bytes are refused, and HETCOMM_INTERFACE and
// HETCOMM_FAMILY take effect.
#include "src/net/address.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/capi/variables.h"
#include "src/net/interface_check.h"

namespace hetcomm {
namespace {

using testing::HasSubstr;

TEST(AddressTest, TextFormsParseAndPrint) {
  EXPECT_EQ(Address::parse_numeric("10.0.0.1", 4000)->to_string(), "10.0.0.1:4000");
  EXPECT_EQ(Address::parse_numeric("::1", 4000)->to_string(), "[::1]:4000");
  EXPECT_EQ(Address::parse_numeric("fe80::1%lo", 1)->to_string(), "[fe80::1%lo]:1");
  EXPECT_EQ(Address::local("name").to_string(), "local:name");
  for (const char* text : {"", "10.0.0", "10.0.0.256", "host", "::1%nosuch", "1.2.3.4%lo", ":::"}) {
    EXPECT_FALSE(Address::parse_numeric(text, 1).ok()) << text;
  }
}

TEST(AddressTest, PortCanBeReplacedAndLoopbackIsRecognized) {
  const Address address = Address::parse_numeric("10.0.0.1", 1).value();
  EXPECT_EQ(address.with_port(65535).port(), 65535);
  EXPECT_FALSE(address.is_loopback());
  EXPECT_TRUE(Address::parse_numeric("127.5.5.5", 1)->is_loopback());
  EXPECT_TRUE(Address::parse_numeric("::1", 1)->is_loopback());
  EXPECT_TRUE(Address::local("x").is_loopback());
  EXPECT_EQ(Address().to_string(), "no address");
}

TEST(AddressTest, OverlongLocalNameIsRefused) {
  EXPECT_EQ(Address::local(std::string(106, 'x')).length(), 2u + 1 + 106);
  EXPECT_EQ(Address::local(std::string(107, 'x')).length(), 0u) << "a peer would refuse it";
  EXPECT_EQ(Address::local(std::string(200, 'x')).length(), 0u);
}

TEST(AddressTest, WireFormRoundTrips) {
  for (const char* text : {"10.1.2.3", "::1", "2001:db8::7"}) {
    ByteWriter writer;
    Address::parse_numeric(text, 443)->encode(writer);
    ByteReader reader(writer.bytes());
    Result<Address> address = Address::decode(reader);
    ASSERT_TRUE(address.ok());
    EXPECT_TRUE(reader.finished());
    EXPECT_EQ(address->to_string(), Address::parse_numeric(text, 443)->to_string());
  }
  ByteWriter writer;
  Address::local("x").encode(writer);
  ByteReader reader(writer.bytes());
  Result<Address> local = Address::decode(reader);
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(local->to_string(), "local:x");
  ByteWriter none;
  Address().encode(none);
  ByteReader empty(none.bytes());
  EXPECT_FALSE(Address::decode(empty).ok());
}

TEST(AddressTest, RandomBytesNeverDecodeToAnEmptyAddress) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 24);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 8);
    ByteReader reader(bytes);
    Result<Address> address = Address::decode(reader);
    EXPECT_EQ(address.ok(), address.ok() && address->length() > 0);
  }
}

TEST(AddressTest, ResolveFindsLocalhostAndRejectsAnUnknownHost) {
  Result<std::vector<Address>> found = Address::resolve("localhost", 7);
  ASSERT_TRUE(found.ok()) << found.status().text();
  EXPECT_TRUE(found->front().is_loopback());
  EXPECT_EQ(found->front().port(), 7);
  const Result<std::vector<Address>> none = Address::resolve("no-such-host.invalid", 7);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.status().text()), HasSubstr("no-such-host.invalid"));
}

Result<std::vector<InterfaceAddress>> choose(std::string_view settings) {
  Log log;
  return choose_interfaces(Config::load(kVariables, nullptr, settings, log).value());
}

TEST(InterfaceTest, LoopbackIsSelectedByNamePrefixOrSubnet) {
  for (const char* pattern : {"lo", "l*", "127.0.0.0/8", "127.0.0.1", "nosuch0, lo"}) {
    auto found = choose(std::string("INTERFACE=") + pattern + ";FAMILY=ipv4");
    ASSERT_TRUE(found.ok()) << pattern << ": " << found.status().text();
    EXPECT_EQ(found->front().interface, "lo");
    EXPECT_EQ(found->front().address.to_string(), "127.0.0.1:0");
  }
}

TEST(InterfaceTest, LoopbackComesLastByDefault) {
  auto found = choose("");
  ASSERT_TRUE(found.ok()) << found.status().text();
  bool seen_loopback = false;
  for (const InterfaceAddress& entry : found.value()) {
    const bool link_local = entry.address.to_string().starts_with("[fe80") ||
                            entry.address.to_string().starts_with("169.254.");
    if (entry.address.is_loopback()) {
      seen_loopback = true;
    } else if (!link_local) {
      EXPECT_FALSE(seen_loopback) << entry.address.to_string();
    }
  }
  EXPECT_TRUE(seen_loopback);
}

TEST(InterfaceTest, OrderFollowsTheNamesInTheList) {
  auto found = choose("INTERFACE=lo,*;FAMILY=ipv4");
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->front().address.is_loopback());
}

TEST(InterfaceTest, DefaultRouteComesFirstByDefault) {
  const std::vector<InterfaceAddress> all = choose("").value();
  Log log;
  for (const InterfaceAddress& entry : all) {
    if (entry.address.is_loopback()) continue;
    const auto found = choose_interfaces(Config::load(kVariables, nullptr, "", log).value(),
                                         entry.address.with_port(9));
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found.value().size(), all.size());
    EXPECT_EQ(found.value().front().address.to_string(), entry.address.to_string());
    const auto named = choose_interfaces(
        Config::load(kVariables, nullptr, "INTERFACE=lo", log).value(), entry.address.with_port(9));
    ASSERT_TRUE(named.ok());
    EXPECT_TRUE(named.value().front().address.is_loopback());
  }
  // A loopback address yields no hint.
  const Address loopback = Address::parse_numeric("127.0.0.1", 0).value();
  const auto found =
      choose_interfaces(Config::load(kVariables, nullptr, "", log).value(), loopback);
  EXPECT_EQ(found.value().front().address.to_string(), all.front().address.to_string());
}

// Expects a child in its own namespaces to succeed. Exit status 77 means that it could not create
// the namespaces.
void expect_child_succeeds(pid_t child) {
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs namespaces of its own";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// An interface that has just come up has an address, but briefly no carrier.
TEST(InterfaceTest, DefaultRouteIsUsedWithoutCarrier) {
  const pid_t child = fork();
  if (child == 0) {
    const bool made = unshare(CLONE_NEWNET) == 0 &&
                      std::system(
                          "ip link set lo up 2>/dev/null && "
                          "ip link add eth0 type veth peer name eth1 2>/dev/null && "
                          "ip address add 198.18.5.1/24 dev eth0 2>/dev/null && "
                          "ip link set eth0 up 2>/dev/null") == 0;
    if (!made) _exit(77);
    Log log;
    const Config config = Config::load(kVariables, nullptr, "", log).value();
    const auto without = choose_interfaces(config);
    const auto with = choose_interfaces(config, Address::parse_numeric("198.18.5.1", 9).value());
    const bool good = without.ok() && without.value().front().address.is_loopback() && with.ok() &&
                      with.value().front().address.to_string() == "198.18.5.1:0";
    _exit(good ? 0 : 1);
  }
  expect_child_succeeds(child);
}

// Container bridges have the same address on every host. A bridge with a physical port leads off
// the host.
TEST(InterfaceTest, BridgeWithoutAPhysicalPortIsNotUsed) {
  const pid_t child = fork();
  if (child == 0) {
    const bool made =
        unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
        std::system(
            "mount --make-rprivate / 2>/dev/null && mount -t sysfs sysfs /sys 2>/dev/null && "
            "ip link set lo up 2>/dev/null && "
            "ip link add docker0 type bridge 2>/dev/null && "
            "ip link add inside type veth peer name port 2>/dev/null && "
            "ip link set port master docker0 2>/dev/null && "
            "ip address add 172.17.0.1/16 dev docker0 2>/dev/null && "
            "ip link set inside up && ip link set port up && ip link set docker0 up && "
            "until ip link show docker0 | grep -q LOWER_UP; do sleep 0.1; done") == 0;
    if (!made) _exit(77);
    Log log;
    const auto takes = [&](std::string_view settings, const Address& route) {
      const auto found =
          choose_interfaces(Config::load(kVariables, nullptr, settings, log).value(), route);
      return found.ok() && found.value().front().interface == "docker0";
    };
    const Address nowhere;
    const Address own = Address::parse_numeric("172.17.0.1", 9).value();
    // docker0 is the only interface so far.
    const bool alone = takes("FAMILY=ipv4", nowhere);
    const bool added = std::system(
                           "ip link add eth0 type veth peer name eth1 && "
                           "ip address add 198.18.5.1/24 dev eth0 && "
                           "ip link set eth0 up && ip link set eth1 up && "
                           "until ip link show eth0 | grep -q LOWER_UP; do sleep 0.1; done") == 0;
    auto chosen = choose_interfaces(Config::load(kVariables, nullptr, "", log).value());
    const bool dropped =
        chosen.ok() && std::none_of(chosen->begin(), chosen->end(),
                                    [](auto& each) { return each.interface == "docker0"; });
    const bool wanted = takes("INTERFACE=docker0;FAMILY=ipv4", nowhere);
    const bool route = takes("FAMILY=ipv4", own);
    _exit(alone && added && dropped && wanted && route ? 0 : 1);
  }
  expect_child_succeeds(child);
}

TEST(InterfaceTest, ErrorListsInterfacesIfNoneMatches) {
  auto found = choose("INTERFACE=nosuch0");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(found.status().text()), HasSubstr("lo (127.0.0.1)"));
}

TEST(InterfaceTest, EntryWithoutAMatchLogsOneWarning) {
  std::vector<std::string> lines;
  Log log;
  log.set_sink(
      [](void* lines_of, int32_t, const char* line) {
        static_cast<std::vector<std::string>*>(lines_of)->emplace_back(line);
      },
      &lines);
  const auto check = [&](const char* settings) {
    warn_of_unknown_interfaces(Config::load(kVariables, nullptr, settings, log).value(), log);
  };
  for (const char* fine : {"", "INTERFACE=lo", "INTERFACE=l*, 127.0.0.0/8"}) check(fine);
  EXPECT_TRUE(lines.empty());
  for (int i = 0; i < 2; ++i) check("INTERFACE=lo,none7,198.51.100.0/24");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("'none7'"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("lo (127.0.0.1)"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("'198.51.100.0/24'"), std::string::npos) << lines[1];
}

TEST(InterfaceTest, ErrorNamesAMalformedSubnet) {
  for (const char* pattern : {"10.0.0.0/33", "10.0.0.0/x", "eth0/8", "::/129", "10.0.0.0/"}) {
    auto found = choose(std::string("INTERFACE=") + pattern);
    ASSERT_FALSE(found.ok()) << pattern;
    EXPECT_EQ(found.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(found.status().text()), HasSubstr(pattern));
  }
}

}  // namespace
}  // namespace hetcomm
