// Ranks' cards, and the digest that all ranks make from them:
//  * a card and a digest are decoded as they were encoded; every prefix is refused, and no changed
//    byte yields an index outside a table;
//  * the digest of all ranks is the same whether it is gathered at once or merged from blocks, with
//    ranks placed on hosts in blocks, in turns, one by one or at random;
//  * it contains each rank's card;
//  * at 4,096 ranks each rank forwards it in less than 64 KiB;
//  * descriptions of hosts' links that exceed the budget are dropped and counted, and each rank's
//    number of devices remains;
//  * a card with an address that no other host can reach, with unreadable links, or from another
//    version is refused with the reason;
//  * a few bytes never expand to much memory;
//  * a rank that refuses, one with another HETCOMM_TLS, and too many different ranks are reported
//    with their numbers.
#include "src/core/job/membership/job_digest.h"

#include <array>
#include <random>

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/bytes.h"
#include "src/base/packed.h"
#include "src/bootstrap/digest_exchange.h"
#include "topology/machine/host_links.h"

namespace hetcomm {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

enum class Layout { kBlocks, kTurns, kOneByOne, kRandom };

RankCard card_on(int rank, int host, bool ipv6 = false) {
  RankCard card;
  card.incarnation = static_cast<uint32_t>(rank) * 2654435761u + 1;
  card.instance[0] = static_cast<std::byte>(rank);
  card.host[0] = static_cast<std::byte>(host);
  card.host[1] = static_cast<std::byte>(host >> 8);
  card.host_label = fmt::format("node{:05}", host);
  card.cluster = host % 2 == 0 ? "east" : "west";
  card.credit = 65536;
  card.device_count = 9;
  const auto port = static_cast<uint16_t>(32768 + card.incarnation % 28000);
  card.control =
      Address::parse_numeric(ipv6 ? fmt::format("fd00::{:x}:{:x}", host / 256, host % 256)
                                  : fmt::format("10.1.{}.{}", host / 256, host % 256),
                             port)
          .value();
  card.kinds = {{"self", true, {100, 1'000'000}}, {"shm", true, {300, 10'000'000}}};
  if (host % 3 != 0) card.kinds.push_back({"rdma", false, {2000, 12'000'000}});
  card.kinds.push_back({"tcp", false, {20000, 1'000'000}});
  return card;
}

// Returns the links of a host with a NIC named |nic|.
Bytes links_with(const std::string& nic) {
  topology::HostLinks links;
  links.nics = {{nic, 100'000, {}}};
  links.devices = {{0}};
  return topology::encode_host_links(links);
}

std::vector<RankCard> cards_of(int size, Layout layout, bool ipv6 = false) {
  std::mt19937 random(7);
  std::vector<RankCard> cards;
  const int hosts = std::max(1, size / 8);
  for (int rank = 0; rank < size; ++rank) {
    int host = rank;
    if (layout == Layout::kBlocks) host = rank / 8;
    if (layout == Layout::kTurns) host = rank % hosts;
    if (layout == Layout::kRandom) host = static_cast<int>(random() % static_cast<unsigned>(hosts));
    cards.push_back(card_on(rank, host, ipv6));
    cards.back().host_links = links_with(host < 100 ? "eth0" : "eth1");
    // Some ranks differ from their neighbours.
    if (layout == Layout::kRandom && rank % 5 == 0) cards.back().cluster = "north";
  }
  return cards;
}

Bytes digest_by_blocks(const std::vector<RankCard>& cards, int block) {
  const JobDigestMaker maker;
  std::vector<Bytes> parts;
  const int size = static_cast<int>(cards.size());
  for (int first = 0; first < size; first += block) {
    std::vector<Bytes> encoded;
    for (int rank = first; rank < std::min(size, first + block); ++rank) {
      encoded.push_back(encode_card(cards[static_cast<size_t>(rank)]));
    }
    parts.push_back(maker.part(first, encoded).value());
  }
  return maker.digest(parts).value();
}

// Returns one rank's entry in a digest, as text.
std::string told_of(const JobDigest& digest, size_t rank) {
  const RankClass& its_class = digest.classes[digest.class_of[rank]];
  std::string kinds;
  for (const RankClass::Kind& kind : its_class.kinds) {
    kinds += kind.name + (kind.within_host ? "! " : " ");
  }
  return fmt::format(
      "{} {} {} {} {} {} {} {} {}", digest.incarnations[rank], digest.labels[digest.label_of[rank]],
      digest.clusters[digest.cluster_of[rank]],
      digest.addresses[digest.address_of[rank]].with_port(digest.ports[rank]).to_string(),
      its_class.credit, its_class.tls, its_class.device_count, digest.links[digest.links_of[rank]],
      kinds);
}

std::string told_of(const RankCard& card) {
  std::string kinds;
  for (const RankCard::Kind& kind : card.kinds)
    kinds += kind.name + (kind.within_host ? "! " : " ");
  const std::string links(reinterpret_cast<const char*>(card.host_links.data()),
                          card.host_links.size());
  return fmt::format("{} {} {} {} {} {} {} {} {}", card.incarnation, card.host_label, card.cluster,
                     card.control.to_string(), card.credit, card.tls, card.device_count, links,
                     kinds);
}

TEST(RankCard, ReadsBackAsWritten) {
  RankCard given = card_on(77, 5);
  given.known_devices = 12345;
  const Bytes bytes = encode_card(given);
  const RankCard got = decode_card(bytes).value();
  EXPECT_EQ(told_of(got), told_of(given));
  EXPECT_EQ(got.instance, given.instance);
  EXPECT_EQ(got.host, given.host);
  EXPECT_EQ(got.link_model_bytes, given.link_model_bytes);
  EXPECT_EQ(got.known_devices, given.known_devices);
  ASSERT_EQ(got.kinds.size(), given.kinds.size());
  for (size_t i = 0; i < got.kinds.size(); ++i) EXPECT_EQ(got.kinds[i].link, given.kinds[i].link);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_card(ConstByteSpan(bytes).first(length)).ok()) << length;
  }
}

TEST(RankCard, AddressThatNoOtherHostCanReachIsRefused) {
  RankCard card = card_on(1, 1);
  card.control = Address::local("hetcomm-control-1");
  EXPECT_THAT(std::string(decode_card(encode_card(card)).status().text()),
              HasSubstr("no address for control connections"));
  card.control = card_on(1, 1).control.with_port(0);
  EXPECT_FALSE(decode_card(encode_card(card)).ok());
  card.control = Address();  // as in a job with one rank
  EXPECT_TRUE(decode_card(encode_card(card)).ok());
  RankProfile profile;
  profile.control = {Address::local("hetcomm-control-1"), card_on(1, 1).control};
  EXPECT_EQ(card_of(profile).control.to_string(), card_on(1, 1).control.to_string());
}

TEST(RankCard, UnreadableLinksAreRefused) {
  RankCard card = card_on(1, 1);
  card.host_links = links_with("eth0");
  EXPECT_TRUE(decode_card(encode_card(card)).ok());
  card.host_links.pop_back();
  EXPECT_THAT(std::string(decode_card(encode_card(card)).status().text()),
              HasSubstr("the links of its host"));
}

TEST(RankCard, CardOfAnotherVersionIsRefused) {
  const auto text_of = [](const Bytes& bytes) {
    return std::string(decode_card(bytes).status().text());
  };
  const Bytes card = encode_card(card_on(1, 1));
  Bytes other_card = card;
  other_card[0] ^= std::byte{1};
  EXPECT_THAT(text_of(other_card), HasSubstr("comes from another version of hetcomm"));
  Bytes other_profile = card;
  other_profile[3] ^= std::byte{1};  // the byte after the card's version and HETCOMM_TLS
  EXPECT_THAT(text_of(other_profile), HasSubstr("comes from another version of hetcomm"));
  EXPECT_THAT(text_of(encode_profile({})), HasSubstr("HETCOMM_SMALL_JOB"));
}

TEST(JobDigest, LinksBeyondTheSizeBudgetAreDroppedAndCounted) {
  std::vector<RankCard> cards = cards_of(1000, Layout::kOneByOne);
  for (size_t i = 0; i < cards.size(); ++i) {
    cards[i].host_links = links_with(fmt::format("{:060}", i));
    cards[i].device_count = 1 + static_cast<uint32_t>(i % 3);
  }
  const size_t bytes_each = cards[0].host_links.size();
  const size_t kept = 6 * 1024 / bytes_each;
  for (const int block : {16, 1000}) {
    const JobDigest got = decode_digest(digest_by_blocks(cards, block)).value();
    EXPECT_EQ(got.silenced, cards.size() - kept) << block;
    for (size_t rank = 0; rank < cards.size(); ++rank) {
      const std::string& links = got.links[got.links_of[rank]];
      EXPECT_EQ(links.empty(), rank >= kept) << rank;
      EXPECT_EQ(got.classes[got.class_of[rank]].device_count, cards[rank].device_count);
    }
  }
}

TEST(JobDigest, RanksWithoutLinksAreNotCountedAsDropped) {
  std::vector<RankCard> cards = cards_of(4, Layout::kOneByOne);
  cards[1].host_links.clear();
  cards[2].host_links = links_with("eth2");
  JobDigest digest = gather(0, cards).value();
  shorten_links(digest, SIZE_MAX);
  EXPECT_EQ(digest.silenced, 0U);
  for (int times = 0; times < 2; ++times) {
    shorten_links(digest, cards[0].host_links.size());
    EXPECT_EQ(digest.silenced, 1U);  // rank 2
    EXPECT_EQ(digest.links_of, (std::vector<uint32_t>{0, 1, 1, 0}));
    EXPECT_EQ(digest.links[0].size(), cards[0].host_links.size());
    EXPECT_EQ(digest.links[1], "");
  }
}

TEST(JobDigest, DigestThatExpandsTooMuchIsRefused) {
  // Every rank encodes 4 KiB about its host in two bytes: all letters but the first repeat the
  // preceding one.
  JobDigest digest = gather(0, cards_of(500, Layout::kOneByOne)).value();
  digest.links.clear();
  for (size_t rank = 0; rank < digest.size(); ++rank) {
    digest.links.emplace_back(4000, 'x');
    digest.links_of[rank] = static_cast<uint32_t>(rank);
  }
  EXPECT_FALSE(decode_digest(encode_digest(digest)).ok());
}

TEST(JobDigest, LocalAddressIsRefused) {
  JobDigest digest = gather(0, cards_of(5, Layout::kOneByOne)).value();
  ASSERT_TRUE(decode_digest(encode_digest(digest)).ok());
  digest.addresses[2] = Address::local("x");
  EXPECT_FALSE(decode_digest(encode_digest(digest)).ok());
}

TEST(JobDigest, PartsWithTooManyRanksAreRefused) {
  const JobDigestMaker maker;
  const JobDigest digest = gather(0, cards_of(1024, Layout::kBlocks)).value();
  const std::vector<Bytes> parts(65, encode_digest(digest));
  EXPECT_FALSE(maker.digest(parts).ok());
}

TEST(JobDigest, IsTheSameWhetherGatheredOrMerged) {
  for (const Layout layout :
       {Layout::kBlocks, Layout::kTurns, Layout::kOneByOne, Layout::kRandom}) {
    for (const int size : {1, 2, 7, 64, 500}) {
      const std::vector<RankCard> cards = cards_of(size, layout);
      JobDigest whole = gather(0, cards).value();
      whole.host_ids.clear();
      whole.known_devices.clear();
      const Bytes bytes = encode_digest(whole);
      for (const int block : {1, 3, 16, 512}) EXPECT_EQ(digest_by_blocks(cards, block), bytes);
      const JobDigest got = decode_digest(bytes).value();
      ASSERT_EQ(got.size(), cards.size());
      EXPECT_EQ(got.instance, cards[0].instance);
      for (size_t rank = 0; rank < cards.size(); ++rank) {
        EXPECT_EQ(told_of(got, rank), told_of(cards[rank]));
        for (const size_t other : {size_t{0}, cards.size() / 2, cards.size() - 1}) {
          EXPECT_EQ(got.host_of[rank] == got.host_of[other], cards[rank].host == cards[other].host);
        }
      }
    }
  }
}

TEST(JobDigest, FirstRankWithATransportDeterminesItsCost) {
  std::vector<RankCard> cards = cards_of(9, Layout::kOneByOne);
  cards[2].kinds[2].link = {77, 777};
  cards[1].kinds[2].link = {55, 5555};
  const JobDigest got = decode_digest(digest_by_blocks(cards, 2)).value();
  const auto rdma = std::find_if(got.costs.begin(), got.costs.end(),
                                 [](const auto& each) { return each.first == "rdma"; });
  ASSERT_NE(rdma, got.costs.end());
  EXPECT_EQ(rdma->second, (LinkCost{55, 5555}));
}

TEST(JobDigest, StaysSmallForThousandsOfRanks) {
  struct Case {
    Layout layout;
    bool ipv6;
    size_t most;
  };
  for (const Case& each :
       {Case{Layout::kBlocks, false, 32 << 10}, Case{Layout::kTurns, false, 40 << 10},
        Case{Layout::kOneByOne, false, 58 << 10}, Case{Layout::kOneByOne, true, 58 << 10},
        Case{Layout::kRandom, false, 60 << 10}}) {
    const size_t size =
        digest_by_blocks(cards_of(4096, each.layout, each.ipv6), block_size_of(4096)).size();
    printf("4096 ranks, layout %d%s: %zu bytes\n", static_cast<int>(each.layout),
           each.ipv6 ? ", IPv6" : "", size);
    EXPECT_LE(size, each.most);
  }
}

TEST(JobDigest, HostileBytesYieldNoIndexOutOfRange) {
  const Bytes bytes = digest_by_blocks(cards_of(40, Layout::kRandom), 8);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_digest(ConstByteSpan(bytes).first(length)).ok()) << length;
  }
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    Bytes changed = bytes;
    for (unsigned i = 0; i <= random() % 3; ++i) {
      changed[random() % changed.size()] = static_cast<std::byte>(random());
    }
    Result<JobDigest> got = decode_digest(changed);
    if (!got.ok()) continue;
    for (size_t rank = 0; rank < got->size(); ++rank)
      ASSERT_FALSE(told_of(got.value(), rank).empty());
    for (const uint32_t host : got->host_of) ASSERT_LT(host, got->host_count);
  }
}

TEST(JobDigest, ErrorNamesIncompatibleRanks) {
  const JobDigestMaker maker;
  const auto encoded = [](const std::vector<RankCard>& cards) {
    std::vector<Bytes> bytes;
    for (const RankCard& card : cards) bytes.push_back(encode_card(card));
    return bytes;
  };
  std::vector<RankCard> cards = cards_of(6, Layout::kBlocks);
  std::vector<Bytes> bytes = encoded(cards);
  bytes[2] = encode_refused_card(Status(Code::kUnsupported, "no \x1b[31mNIC"));
  EXPECT_THAT(std::string(maker.part(8, bytes).status().text()),
              HasSubstr("what rank 10 says of itself: it cannot take part: no \\x1b[31mNIC"));
  cards[4].tls = true;
  EXPECT_THAT(std::string(maker.part(8, encoded(cards)).status().text()),
              HasSubstr("rank 8 has HETCOMM_TLS=off, rank 12 has HETCOMM_TLS=on"));
  for (RankCard& card : cards) card.tls = true;
  const std::vector<Bytes> parts = {maker.part(0, encoded(cards_of(6, Layout::kBlocks))).value(),
                                    maker.part(6, encoded(cards)).value()};
  EXPECT_THAT(std::string(maker.digest(parts).status().text()),
              HasSubstr("rank 0 has HETCOMM_TLS=off, rank 6 has HETCOMM_TLS=on"));
  std::vector<RankCard> different = cards_of(300, Layout::kBlocks);
  for (size_t i = 0; i < different.size(); ++i) different[i].credit = static_cast<uint32_t>(i);
  EXPECT_THAT(std::string(maker.part(0, encoded(different)).status().text()),
              HasSubstr("in more than 256 ways"));
}

// Here the ranks exchange their devices.
TEST(JobDigest, DetectsDifferentDevicesAmongRanksOfOneHost) {
  std::vector<RankCard> cards = cards_of(32, Layout::kTurns);  // four hosts, in turns
  const auto must_tell = [&](int block) {
    return decode_digest(digest_by_blocks(cards, block)).value().must_tell_devices;
  };
  const auto expect = [&](bool expected) {
    for (const int block : {1, 8, 32}) EXPECT_EQ(must_tell(block), expected) << block;
  };
  expect(false);
  for (size_t rank = 0; rank < cards.size(); ++rank) {
    cards[rank].known_devices = 100 + static_cast<uint32_t>(rank % 4);
  }
  expect(false);
  cards[31].known_devices = 0;
  expect(true);
  cards[31].known_devices = 102;
  expect(true);
}

}  // namespace
}  // namespace hetcomm
