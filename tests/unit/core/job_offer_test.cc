// The job that ranks share:
//  * the ranks choose the first of rank 0's jobs that all ranks offer, each rank with its own
//    number and channel;
//  * they choose none if a rank lacks it, two ranks claim to be the same one, or any rank considers
//    one of them lost;
//  * they choose none if a mark comes from another secret, exchange or rank, or its content was
//    changed;
//  * malformed bytes and a changed digest are refused;
//  * the digest of thousands of ranks takes a few bytes.
#include "src/core/job/membership/job_offer.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "src/net/key.h"

namespace hetcomm {
namespace {

using Values = std::vector<std::vector<std::byte>>;
constexpr std::string_view kExchange = "world/epoch 1";

Secret secret_of(uint8_t seed) { return Secret(Secret::Bytes{std::byte{seed}, std::byte{0x55}}); }
OwnJobOffer offer(uint8_t job, int32_t rank, std::vector<int32_t> lost = {}) {
  Identity identity{};
  identity.epoch = job;
  identity.instance[0] = std::byte{job};
  return {{identity, rank, static_cast<uint32_t>(100 * job + rank), std::move(lost)},
          secret_of(job)};
}
Values tell(const std::vector<std::vector<OwnJobOffer>>& all) {
  Values values;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    values.push_back(encode_offers(all[rank], kExchange, static_cast<int32_t>(rank)));
  }
  return values;
}
// Returns the digest of |told| with |block| ranks per block.
Result<std::vector<std::byte>> digest_of(const Values& told, size_t block) {
  const JobOfferMaker maker;
  Values parts;
  for (size_t first = 0; first < told.size(); first += block) {
    const auto begin = told.begin() + static_cast<ptrdiff_t>(first);
    const auto end = told.begin() + static_cast<ptrdiff_t>(std::min(first + block, told.size()));
    Result<std::vector<std::byte>> part = maker.part(static_cast<int>(first), Values(begin, end));
    if (!part.ok()) return part;
    parts.push_back(std::move(part).value());
  }
  return maker.digest(parts);
}
Result<std::optional<ChosenJob>> choose(const std::vector<OwnJobOffer>& own, const Values& told,
                                        std::string_view exchange = kExchange, size_t block = 64) {
  Result<std::vector<std::byte>> digest = digest_of(told, block);
  if (!digest.ok()) return digest.status();
  return choose_job(own, digest.value(), told.size(), exchange);
}
// Returns the job that all ranks choose, or 0.
uint32_t chosen(const std::vector<std::vector<OwnJobOffer>>& all, const Values& told,
                std::string_view exchange = kExchange) {
  std::vector<uint32_t> jobs;
  for (size_t of = 0; of < 2 * all.size(); ++of) {
    const auto& own = all[of / 2];
    // Once in one block, and once with each rank in its own block.
    const auto choice = choose(own, told, exchange, of % 2 == 0 ? 64 : 1);
    EXPECT_TRUE(choice.ok()) << choice.status().text();
    const auto& found = choice.value();
    jobs.push_back(found ? own[found->own].offer.job.epoch : 0);
    if (!found) continue;
    EXPECT_EQ(found->ranks.size(), all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const auto offered = std::find_if(all[rank].begin(), all[rank].end(), [&](const auto& each) {
        return each.offer.job == own[found->own].offer.job;
      });
      EXPECT_EQ(found->ranks[rank], offered->offer.rank);
      EXPECT_EQ(found->channels[rank], offered->offer.channel);
    }
  }
  for (const uint32_t job : jobs) EXPECT_EQ(job, jobs.front()) << "all choose alike";
  return jobs.front();
}
uint32_t chosen(const std::vector<std::vector<OwnJobOffer>>& all) { return chosen(all, tell(all)); }

TEST(JobOfferTest, FirstJobThatAllRanksOfferIsChosen) {
  EXPECT_EQ(chosen({{offer(1, 5)}, {offer(1, 0)}, {offer(1, 3)}}), 1U);
  EXPECT_EQ(chosen({{offer(1, 0), offer(2, 0), offer(3, 0)}, {offer(3, 1), offer(2, 4)}}), 2U);
  EXPECT_EQ(chosen({{offer(4, 0)}}), 4U) << "a rank alone";
}

TEST(JobOfferTest, NoJobIsChosenIfARankLacksIt) {
  EXPECT_EQ(chosen({{}, {}}), 0U);
  EXPECT_EQ(chosen({{offer(1, 0)}, {}}), 0U);
  EXPECT_EQ(chosen({{}, {offer(1, 1)}}), 0U);
  EXPECT_EQ(chosen({{offer(1, 0)}, {offer(2, 1)}}), 0U);
  EXPECT_EQ(chosen({{offer(1, 2)}, {offer(1, 2)}}), 0U) << "two processes say that they are one";
  EXPECT_EQ(chosen({{offer(1, 0)}, {offer(1, 1, {0})}}), 0U);
  EXPECT_EQ(chosen({{offer(1, 0, {1})}, {offer(1, 1)}}), 0U);
  EXPECT_EQ(chosen({{offer(1, 0, {7})}, {offer(1, 1, {8})}}), 1U) << "who is no member may be lost";
  EXPECT_EQ(chosen({{offer(1, 0, {1}), offer(2, 0)}, {offer(1, 1), offer(2, 1)}}), 2U);
}

TEST(JobOfferTest, OfferForAnotherExchangeOrRankIsRefused) {
  const std::vector<std::vector<OwnJobOffer>> all{{offer(1, 0)}, {offer(1, 1)}};
  const Values told = tell(all);
  EXPECT_EQ(chosen(all, told), 1U);
  EXPECT_EQ(chosen(all, told, "world/epoch 2"), 0U);
  EXPECT_EQ(chosen({all[1], all[0]}, {told[1], told[0]}), 0U) << "of the other rank";
  std::vector<OwnJobOffer> false_one{offer(1, 1)};
  false_one[0].secret = secret_of(9);
  EXPECT_EQ(chosen(all, {told[0], encode_offers(false_one, kExchange, 1)}), 0U);
}

TEST(JobOfferTest, TamperedOfferIsNotChosen) {
  const std::vector<std::vector<OwnJobOffer>> all{{offer(1, 0)}, {offer(1, 1, {4})}};
  for (size_t byte = 0; byte < tell(all)[1].size(); ++byte) {
    Values told = tell(all);
    told[1][byte] ^= std::byte{1};
    for (const auto& own : all) {
      const auto choice = choose(own, told);
      EXPECT_FALSE(choice.ok() && choice.value()) << "byte " << byte;
    }
  }
}

// An attacker who can write to the store could change the digest itself.
TEST(JobOfferTest, TamperedDigestIsNotChosen) {
  const std::vector<std::vector<OwnJobOffer>> all{
      {offer(1, 0)}, {offer(1, 2)}, {offer(1, 1, {4})}, {offer(1, 5, {4})}};
  const std::vector<std::byte> digest = digest_of(tell(all), 2).value();
  ASSERT_TRUE(choose_job(all[0], digest, all.size(), kExchange).value());
  for (size_t bit = 0; bit < 8 * digest.size(); ++bit) {
    std::vector<std::byte> bytes = digest;
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    const auto choice = choose_job(all[1], bytes, all.size(), kExchange);
    EXPECT_FALSE(choice.ok() && choice.value()) << "bit " << bit;
  }
}

TEST(JobOfferTest, DigestForOtherRanksIsNotChosen) {
  const std::vector<std::vector<OwnJobOffer>> all{{offer(1, 0)}, {offer(1, 1)}};
  const std::vector<std::byte> digest = digest_of(tell(all), 1).value();
  EXPECT_TRUE(choose_job(all[0], digest, 2, kExchange).value());
  EXPECT_FALSE(choose_job(all[0], digest, 3, kExchange).value());
  EXPECT_FALSE(choose_job(all[0], digest, 1, kExchange).value());
}

TEST(JobOfferTest, DigestOfThousandsOfRanksIsShort) {
  std::vector<std::vector<OwnJobOffer>> all;
  for (int32_t rank = 0; rank < 4096; ++rank) {
    all.push_back({offer(1, 4095 - rank, {7000, 7001})});
    all.back()[0].offer.channel = rank == 77 ? 3 : 2;
  }
  const std::vector<std::byte> digest = digest_of(tell(all), 32).value();
  EXPECT_LT(digest.size(), 256u);
  const auto choice = choose_job(all[9], digest, all.size(), kExchange);
  ASSERT_TRUE(choice.ok() && choice.value());
  EXPECT_EQ(choice.value()->ranks[9], 4086);
  EXPECT_EQ(choice.value()->channels[77], 3u);
}

// Different lists of lost ranks cannot make other ranks store much.
TEST(JobOfferTest, NoJobIsChosenIfListsOfLostRanksAreTooLong) {
  std::vector<std::vector<OwnJobOffer>> all;
  for (int32_t rank = 0; rank < 64; ++rank) {
    std::vector<int32_t> lost;
    for (int32_t i = 0; i < 20; ++i) lost.push_back(1000 + 32 * i + rank % 32);
    all.push_back({offer(1, rank, lost)});
  }
  EXPECT_EQ(chosen(all), 1U);
  for (int32_t i = 0; i < 200; ++i) all[5][0].offer.lost.push_back(5000 + i);
  for (int32_t i = 0; i < 200; ++i) all[6][0].offer.lost.push_back(6000 + i);
  for (int32_t i = 0; i < 200; ++i) all[7][0].offer.lost.push_back(7000 + i);
  EXPECT_EQ(chosen(all), 0U);
}

TEST(JobOfferTest, MalformedDigestsAreRefused) {
  const std::vector<std::vector<OwnJobOffer>> all{{offer(1, 0)}, {offer(1, 1)}};
  const std::vector<std::byte> digest = digest_of(tell(all), 1).value();
  std::mt19937 random(2);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = digest;
    bytes.resize(random() % (i % 2 == 0 ? 200 : bytes.size()));
    if (i % 2 == 0) std::generate(bytes.begin(), bytes.end(), [&] { return std::byte(random()); });
    const auto choice = choose_job(all[0], bytes, 2, kExchange);
    EXPECT_FALSE(choice.ok() && choice.value());
  }
}

TEST(JobOfferTest, MalformedOffersAreRefused) {
  const std::vector<OwnJobOffer> own{offer(1, 0)};
  const std::vector<std::byte> mine = encode_offers(own, kExchange, 0);
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes = mine;
    if (i % 2 == 0) {
      bytes.resize(random() % 200);
      for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    } else {
      bytes.resize(random() % bytes.size());
    }
    const auto choice = choose(own, {mine, bytes});
    EXPECT_FALSE(choice.ok() && choice.value());
    if (i % 2 == 1) {
      EXPECT_EQ(choice.status().code(), Code::kBootstrapFailed);
    }
  }
}

}  // namespace
}  // namespace hetcomm
