// Addresses: text and wire forms round-trip, hostile bytes are refused, and HETCOMM_INTERFACE and
// HETCOMM_FAMILY choose what they say.
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/net/address.h"

namespace hetcomm {
namespace {

using testing::HasSubstr;

TEST(AddressTest, TextForms) {
  EXPECT_EQ(Address::parse_numeric("10.0.0.1", 4000)->to_string(), "10.0.0.1:4000");
  EXPECT_EQ(Address::parse_numeric("::1", 4000)->to_string(), "[::1]:4000");
  EXPECT_EQ(Address::parse_numeric("fe80::1%lo", 1)->to_string(), "[fe80::1%lo]:1");
  EXPECT_EQ(Address::local("name").to_string(), "local:name");
  for (const char* text : {"", "10.0.0", "10.0.0.256", "host", "::1%nosuch", "1.2.3.4%lo", ":::"}) {
    EXPECT_FALSE(Address::parse_numeric(text, 1).ok()) << text;
  }
}

TEST(AddressTest, PortAndLoopback) {
  const Address address = Address::parse_numeric("10.0.0.1", 1).value();
  EXPECT_EQ(address.with_port(65535).port(), 65535);
  EXPECT_FALSE(address.is_loopback());
  EXPECT_TRUE(Address::parse_numeric("127.5.5.5", 1)->is_loopback());
  EXPECT_TRUE(Address::parse_numeric("::1", 1)->is_loopback());
  EXPECT_TRUE(Address::local("x").is_loopback());
  EXPECT_EQ(Address().to_string(), "no address");
}

TEST(AddressTest, TooLongLocalNameIsNoAddress) {
  EXPECT_EQ(Address::local(std::string(106, 'x')).length(), 2u + 1 + 106);
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
  EXPECT_FALSE(Address::decode(reader).ok());
}

TEST(AddressTest, HostileBytesAreRefusedOrAnAddress) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 24);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 8);
    ByteReader reader(bytes);
    Result<Address> address = Address::decode(reader);
    EXPECT_EQ(address.ok(), address.ok() && address->length() > 0);
  }
}

TEST(AddressTest, ResolvesLocalhostAndNamesWhatItCannot) {
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
  return choose_interfaces(Config::load(nullptr, settings, log).value());
}

TEST(InterfaceTest, LoopbackByNamePrefixAndSubnet) {
  for (const char* pattern : {"lo", "l*", "127.0.0.0/8", "127.0.0.1", "nosuch0, lo"}) {
    auto found = choose(std::string("INTERFACE=") + pattern + ";FAMILY=ipv4");
    ASSERT_TRUE(found.ok()) << pattern << ": " << found.status().text();
    EXPECT_EQ(found->front().interface, "lo");
    EXPECT_EQ(found->front().address.to_string(), "127.0.0.1:0");
  }
}

TEST(InterfaceTest, NothingNamedKeepsLoopbackBehindTheRest) {
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

TEST(InterfaceTest, NamedOrderWins) {
  auto found = choose("INTERFACE=lo,*;FAMILY=ipv4");
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->front().address.is_loopback());
}

TEST(InterfaceTest, NothingFitsListsWhatExists) {
  auto found = choose("INTERFACE=nosuch0");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kNotFound);
  EXPECT_THAT(std::string(found.status().text()), HasSubstr("lo (127.0.0.1)"));
}

TEST(InterfaceTest, MalformedSubnetsAreNamed) {
  for (const char* pattern : {"10.0.0.0/33", "10.0.0.0/x", "eth0/8", "::/129", "10.0.0.0/"}) {
    auto found = choose(std::string("INTERFACE=") + pattern);
    ASSERT_FALSE(found.ok()) << pattern;
    EXPECT_EQ(found.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(std::string(found.status().text()), HasSubstr(pattern));
  }
}

}  // namespace
}  // namespace hetcomm
