// These tests check the flow control between an endpoint and its device, without either:
//   - completions are returned in order; those of an ended queue pair are removed, and those that
//     were set aside are returned before all others;
//   - credits never let a side send more messages than the peer has receives; a peer cannot return
//     more credits than it can owe; two sides that send as much as they may never starve each
//     other.
#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transports/rdma/completion_inbox.h"
#include "transports/rdma/credits.h"

namespace hetcomm::test {
namespace {

using rdma::CompletionInbox;
using rdma::Credits;
using testing::ElementsAre;

constexpr uint32_t kGranted = 32;

// Completions that the next poll_cq() returns.
std::vector<ibv_wc>& waiting() {
  static std::vector<ibv_wc> completions;
  return completions;
}

int poll_cq(ibv_cq*, int most, ibv_wc* out) {
  const size_t count = std::min(waiting().size(), static_cast<size_t>(most));
  std::copy_n(waiting().begin(), count, out);
  waiting().erase(waiting().begin(), waiting().begin() + static_cast<ptrdiff_t>(count));
  return static_cast<int>(count);
}

class RdmaInbox : public testing::Test {
 protected:
  RdmaInbox() {
    waiting().clear();
    verbs_.poll_cq = poll_cq;
  }
  int fetch() { return inbox_.fetch(verbs_, nullptr); }
  static ibv_wc completion(uint64_t id, uint32_t number) {
    ibv_wc made{};
    made.wr_id = id;
    made.qp_num = number;
    return made;
  }
  // Returns the remaining ids in order, without those that were taken.
  std::vector<uint64_t> rest() {
    std::vector<uint64_t> ids;
    while (!inbox_.empty()) {
      const ibv_wc next = inbox_.pop();
      if (!CompletionInbox::is_taken(next)) ids.push_back(next.wr_id);
    }
    inbox_.clear();
    return ids;
  }
  auto note() {
    return [this](const ibv_wc& each) { noted_.push_back(each.wr_id); };
  }

  rdma::Verbs verbs_{};
  CompletionInbox inbox_;
  std::vector<uint64_t> noted_;
};

TEST_F(RdmaInbox, CompletionsAreReturnedInOrder) {
  for (uint64_t id = 0; id < 3 * CompletionInbox::kBatch; ++id) {
    waiting().push_back(completion(id, 1));
  }
  for (uint64_t batch = 0; batch < 3; ++batch) {
    EXPECT_EQ(fetch(), static_cast<int>(CompletionInbox::kBatch));
  }
  EXPECT_EQ(fetch(), 0);
  EXPECT_EQ(inbox_.size(), 3 * CompletionInbox::kBatch);
  const std::vector<uint64_t> ids = rest();
  ASSERT_EQ(ids.size(), 3 * CompletionInbox::kBatch);
  for (uint64_t id = 0; id < ids.size(); ++id) EXPECT_EQ(ids[id], id);
}

TEST_F(RdmaInbox, EndingQueuePairRemovesOnlyItsCompletions) {
  waiting() = {completion(0, 7), completion(1, 8), completion(2, 7), completion(3, 8)};
  ASSERT_EQ(fetch(), 4);
  EXPECT_EQ(inbox_.pop().wr_id, 0u) << "handled before the end";
  const size_t position = inbox_.take_all_of(7, inbox_.begin(), note());
  EXPECT_THAT(noted_, ElementsAre(2u));
  // The device delivers some later.
  waiting() = {completion(4, 7), completion(5, 8)};
  ASSERT_EQ(fetch(), 2);
  inbox_.take_all_of(7, position, note());
  EXPECT_THAT(noted_, ElementsAre(2u, 4u));
  inbox_.take_all_of(7, inbox_.begin(), note());
  EXPECT_THAT(noted_, ElementsAre(2u, 4u)) << "taken once";
  EXPECT_THAT(rest(), ElementsAre(1u, 3u, 5u));
}

TEST_F(RdmaInbox, CompletionsSetAsideAreReturnedFirst) {
  inbox_.reserve_aside(4);
  for (const uint64_t id : {10u, 11u}) inbox_.put_aside(completion(id, 7));
  for (const uint64_t id : {20u, 21u}) inbox_.put_aside(completion(id, 8));
  waiting() = {completion(0, 9), completion(1, 7)};
  ASSERT_EQ(fetch(), 2);
  EXPECT_EQ(inbox_.pop().wr_id, 0u);
  inbox_.make_room_for(7);
  inbox_.bring_back(7);
  inbox_.drop_aside(8, note());
  EXPECT_THAT(noted_, ElementsAre(20u, 21u));
  inbox_.drop_aside(8, note());
  inbox_.bring_back(7);
  EXPECT_THAT(noted_, ElementsAre(20u, 21u)) << "forgotten";
  EXPECT_THAT(rest(), ElementsAre(10u, 11u, 1u));
}

TEST(RdmaCredits, LastCreditIsReservedForReturningCredits) {
  Credits credits(kGranted, kGranted);
  uint32_t puts = 0;
  for (; credits.allow_put(); ++puts) credits.spend();
  EXPECT_EQ(puts, kGranted - kGranted / 4) << "a quarter is left to messages";
  uint32_t messages = 0;
  for (; credits.allow_message(); ++messages) credits.spend();
  EXPECT_EQ(puts + messages, kGranted - 1);
  EXPECT_FALSE(credits.is_payment_due()) << "nothing is owed";
  for (uint32_t i = 0; i < kGranted / 2; ++i) credits.note_used();
  EXPECT_FALSE(credits.is_payment_due()) << "the receives are not posted again yet";
  credits.note_posted();
  EXPECT_TRUE(credits.is_payment_due());
  credits.spend();
  EXPECT_EQ(credits.take_owed(), kGranted / 2);
  EXPECT_FALSE(credits.is_payment_due());
}

TEST(RdmaCredits, PeerCannotReturnMoreCreditsThanItOwes) {
  Credits credits(kGranted, kGranted);
  EXPECT_TRUE(credits.regain(0));
  EXPECT_FALSE(credits.regain(1)) << "none was spent";
  credits.spend();
  credits.spend();
  EXPECT_FALSE(credits.regain(3));
  EXPECT_TRUE(credits.regain(2));
  EXPECT_FALSE(credits.regain(1));
}

TEST(RdmaCredits, TwoBusySidesNeverStarveEachOther) {
  struct End {
    Credits credits{kGranted, kGranted};
    std::vector<uint16_t> arriving;  // messages in flight to the side, each with its credits
  };
  std::array<End, 2> ends;
  std::mt19937 random(1);
  std::array<uint32_t, 2> sent{};
  for (int step = 0; step < 100'000; ++step) {
    const size_t me = random() % 2;
    End& mine = ends[me];
    End& other = ends[1 - me];
    const uint32_t choice = random() % 4;
    if (choice < 3 && mine.credits.allow_message()) {
      mine.credits.spend();
      other.arriving.push_back(mine.credits.take_owed());
      ++sent[me];
    }
    if (choice != 3) continue;
    while (!mine.arriving.empty()) {
      ASSERT_TRUE(mine.credits.regain(mine.arriving.front()));
      mine.arriving.erase(mine.arriving.begin());
      mine.credits.note_used();
    }
    mine.credits.note_posted();
    if (!mine.credits.is_payment_due()) continue;
    mine.credits.spend();
    other.arriving.push_back(mine.credits.take_owed());
    ASSERT_LE(other.arriving.size(), kGranted);
  }
  for (const uint32_t count : sent) EXPECT_GT(count, 10'000u);
}

}  // namespace
}  // namespace hetcomm::test
