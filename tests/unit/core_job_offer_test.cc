// Which job ranks share:
//  * the first of rank 0's that all offer, each with its own number and channel;
//  * none where a rank lacks it, two are one, or somebody takes one of them for lost;
//  * none where a mark is of another secret, exchange or rank, or what it marks was changed;
//  * bytes that are not of this kind are refused.
#include <random>

#include <gtest/gtest.h>

#include "src/core/job/job_offer.h"
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
// The job that all ranks choose; 0: none.
uint32_t chosen(const std::vector<std::vector<OwnJobOffer>>& all, const Values& told,
                std::string_view exchange = kExchange) {
  std::vector<uint32_t> jobs;
  for (const auto& own : all) {
    const auto choice = choose_job(own, told, exchange);
    EXPECT_TRUE(choice.ok()) << choice.status().text();
    const auto& found = choice.value();
    jobs.push_back(found ? own[found->own].offer.job.epoch : 0);
    if (!found) continue;
    EXPECT_EQ(found->members.size(), all.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      EXPECT_EQ(found->members[rank].job, own[found->own].offer.job);
      EXPECT_EQ(found->members[rank].channel % 100,
                static_cast<uint32_t>(found->members[rank].rank));
    }
  }
  for (const uint32_t job : jobs) EXPECT_EQ(job, jobs.front()) << "all choose alike";
  return jobs.front();
}
uint32_t chosen(const std::vector<std::vector<OwnJobOffer>>& all) { return chosen(all, tell(all)); }

TEST(JobOfferTest, TheFirstThatAllOffer) {
  EXPECT_EQ(chosen({{offer(1, 5)}, {offer(1, 0)}, {offer(1, 3)}}), 1U);
  EXPECT_EQ(chosen({{offer(1, 0), offer(2, 0), offer(3, 0)}, {offer(3, 1), offer(2, 4)}}), 2U);
  EXPECT_EQ(chosen({{offer(4, 0)}}), 4U) << "a rank alone";
}

TEST(JobOfferTest, NoneWhereTheyAreNotTogether) {
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

TEST(JobOfferTest, MarksAreForOneExchangeAndRank) {
  const std::vector<std::vector<OwnJobOffer>> all{{offer(1, 0)}, {offer(1, 1)}};
  const Values told = tell(all);
  EXPECT_EQ(chosen(all, told), 1U);
  EXPECT_EQ(chosen(all, told, "world/epoch 2"), 0U);
  EXPECT_EQ(chosen({all[1], all[0]}, {told[1], told[0]}), 0U) << "of the other rank";
  std::vector<OwnJobOffer> false_one{offer(1, 1)};
  false_one[0].secret = secret_of(9);
  EXPECT_EQ(chosen(all, {told[0], encode_offers(false_one, kExchange, 1)}), 0U);
}

TEST(JobOfferTest, WhatWasChangedIsNotChosen) {
  const std::vector<std::vector<OwnJobOffer>> all{{offer(1, 0)}, {offer(1, 1, {4})}};
  for (size_t byte = 0; byte < tell(all)[1].size(); ++byte) {
    Values told = tell(all);
    told[1][byte] ^= std::byte{1};
    for (const auto& own : all) {
      const auto choice = choose_job(own, told, kExchange);
      EXPECT_FALSE(choice.ok() && choice.value()) << "byte " << byte;
    }
  }
}

TEST(JobOfferTest, OtherBytesAreRefused) {
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
    const auto choice = choose_job(own, {mine, bytes}, kExchange);
    EXPECT_FALSE(choice.ok() && choice.value());
    if (i % 2 == 1) {
      EXPECT_EQ(choice.status().code(), Code::kBootstrapFailed);
    }
  }
}

}  // namespace
}  // namespace hetcomm
