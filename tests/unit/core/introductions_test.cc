// Introductions, with a clock that is an argument and a control plane that only records:
//  * a received profile makes a rank known, whichever call processes it first, on time or late;
//  * an unanswered request is overdue a tenth of the detection time after it was sent, and a queued
//    one is never overdue;
//  * only a few ranks are asked concurrently, and those that do not answer make room for others;
//  * an unusable profile is reported immediately with its reason;
//  * a rank that has lost this rank's profile is asked again before it counts as known;
//  * if out of memory, a step either completes or has no effect.
#include "src/core/job/membership/introductions.h"

#include <map>
#include <new>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/core/job/membership/job_digest.h"
#include "src/core/job/membership/rank_card.h"
#include "src/core/job/membership/rank_profile.h"
#include "tests/support/counting_allocator.h"

namespace hetcomm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kT = 3000 * kMs;
constexpr uint64_t kPatience = kT / 10;
constexpr int kSize = 100;
constexpr size_t kAtOnce = 16;

RankProfile profile_of(int rank) {
  RankProfile profile;
  profile.info.incarnation = 1000 + static_cast<uint32_t>(rank);
  profile.control = {Address::parse_numeric("10.0.0.1", 77).value()};
  profile.info.offers.push_back(
      {.name = "tcp", .within_host = false, .link = {}, .port = {}, .contact = {}});
  return profile;
}

std::string text_of(const RankProfile& profile) {
  const std::vector<std::byte> bytes = encode_profile(profile);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

PeerDirectory directory() {
  std::vector<RankCard> cards;
  for (int rank = 0; rank < kSize; ++rank) cards.push_back(card_of(profile_of(rank)));
  PeerDirectory peers(kSize);
  peers.set(gather(0, cards).value());
  return peers;
}

// Rank 0 in a large job. The baton needs no lock here, because there is only one thread.
class CoreIntroductions : public testing::Test, protected Introducer {
 protected:
  CoreIntroductions() {
    log_.set_level(LogLevel::kError);
    auto incarnations = std::make_shared<std::vector<uint64_t>>();
    for (int rank = 0; rank < kSize; ++rank) {
      incarnations->push_back(1000 + static_cast<uint64_t>(rank));
    }
    credentials_.incarnations = incarnations;
  }

  void ask_profile(int rank) override { asked_.push_back(rank); }
  std::string find_profile(int rank) override {
    const auto found = book_.find(rank);
    return found != book_.end() ? found->second : std::string();
  }
  void remove_profile(int rank) override { book_.erase(rank); }
  void learn_addresses(int rank, std::vector<Address> addresses) override {
    addresses_[rank] = std::move(addresses);
  }

  void answer(int rank) { book_[rank] = text_of(profile_of(rank)); }
  void ask(int rank) {
    introductions_.ask(rank);
    introductions_.send_next(now_);
  }
  std::vector<int> asked() { return std::exchange(asked_, {}); }

  uint64_t now_ = 1000 * kT;
  Log log_;
  Credentials credentials_;
  PeerDirectory peers_ = directory();
  std::vector<int> asked_;
  std::map<int, std::string> book_;
  std::map<int, std::vector<Address>> addresses_;
  Introductions introductions_{{.rank = 0, .detection_ns = kT}, log_, peers_, credentials_, *this};
};

TEST_F(CoreIntroductions, AnswerMakesARankKnown) {
  EXPECT_FALSE(introductions_.knows(5));
  ask(5);
  EXPECT_THAT(asked(), ElementsAre(5));
  EXPECT_FALSE(introductions_.knows(5));
  answer(5);
  EXPECT_TRUE(introductions_.knows(5));
  EXPECT_TRUE(peers_.knows(5));
  EXPECT_EQ(peers_.offers(5).size(), 1U);
  EXPECT_EQ(addresses_[5].size(), 1U);
  EXPECT_THAT(book_, IsEmpty());
  EXPECT_THAT(introductions_.take_overdue(now_ + kT), IsEmpty());
  EXPECT_EQ(introductions_.next_timer_ns(), kForever);
}

// A call to explain may come between the answer and the pass that reads the mail.
TEST_F(CoreIntroductions, RepeatedLookupsAndAnswersKeepTheRankKnown) {
  ask(5);
  answer(5);
  EXPECT_TRUE(introductions_.knows(5));  // as explain does
  EXPECT_TRUE(introductions_.knows(5));  // as the pass that reads the mail does
  answer(5);                             // the profile was requested twice
  EXPECT_TRUE(introductions_.knows(5));
  EXPECT_THAT(book_, IsEmpty());
}

TEST_F(CoreIntroductions, RankThatDoesNotAnswerIsAskedAgain) {
  ask(5);
  EXPECT_EQ(introductions_.next_timer_ns(), now_ + kPatience);
  EXPECT_THAT(introductions_.take_overdue(now_ + kPatience - 1), IsEmpty());
  EXPECT_THAT(introductions_.take_overdue(now_ + kPatience), ElementsAre(5));
  EXPECT_THAT(std::string(introductions_.why(5).text()), HasSubstr("has not said how it is reach"));
  EXPECT_THAT(introductions_.take_overdue(now_ + kT), IsEmpty());
  asked();
  now_ += kPatience;
  ask(5);
  EXPECT_THAT(asked(), ElementsAre(5));
  EXPECT_EQ(introductions_.next_timer_ns(), now_ + kPatience);
}

TEST_F(CoreIntroductions, LateAnswerIsAccepted) {
  ask(5);
  EXPECT_THAT(introductions_.take_overdue(now_ + kPatience), ElementsAre(5));
  answer(5);
  EXPECT_TRUE(introductions_.knows(5));
  EXPECT_EQ(introductions_.next_timer_ns(), kForever);
}

TEST_F(CoreIntroductions, UnusableProfileIsReportedAtOnce) {
  ask(5);
  book_[5] = text_of(profile_of(6));
  EXPECT_FALSE(introductions_.knows(5));
  EXPECT_THAT(book_, IsEmpty());
  EXPECT_THAT(introductions_.take_overdue(now_), ElementsAre(5));
  EXPECT_THAT(std::string(introductions_.why(5).text()), HasSubstr("that of another process"));
  ask(5);
  book_[5] = "garbage";
  EXPECT_FALSE(introductions_.knows(5));
  EXPECT_THAT(introductions_.take_overdue(now_), ElementsAre(5));
  EXPECT_THAT(std::string(introductions_.why(5).text()), HasSubstr("another version of hetcomm"));
  ask(5);
  answer(5);
  EXPECT_TRUE(introductions_.knows(5));
}

TEST_F(CoreIntroductions, QueuedRequestIsNeverOverdue) {
  for (int rank = 1; rank < kSize; ++rank) ask(rank);
  EXPECT_EQ(asked().size(), kAtOnce);
  // The first ranks answer one by one, and the same number of further ranks is asked.
  for (int rank = 1; rank <= 2; ++rank) {
    now_ += kPatience / 2;
    answer(rank);
    EXPECT_TRUE(introductions_.knows(rank));
    EXPECT_EQ(introductions_.next_timer_ns(), 0U);  // more ranks may be asked
    EXPECT_TRUE(introductions_.send_next(now_));
    EXPECT_THAT(asked(), ElementsAre(rank + 16));
    if (rank == 1) {
      EXPECT_THAT(introductions_.take_overdue(now_), IsEmpty());
    }
  }
  // 14 of the first 16 ranks have not answered, and those asked later still have time.
  EXPECT_EQ(introductions_.take_overdue(now_).size(), 14U);
  EXPECT_EQ(introductions_.next_timer_ns(), now_ - kPatience / 2 + kPatience);
}

TEST_F(CoreIntroductions, SilentRankLosesItsSlotAfterOneRetry) {
  for (int rank = 1; rank <= 20; ++rank) ask(rank);
  asked();
  now_ += kPatience;
  for (const int rank : introductions_.take_overdue(now_)) ask(rank);  // as a pair does
  // The control plane still tries to connect to all of these ranks.
  EXPECT_THAT(asked(), IsEmpty());
  EXPECT_EQ(introductions_.next_timer_ns(), now_ - kPatience + kT / 3);
  now_ += kT / 3 - kPatience;
  EXPECT_TRUE(introductions_.send_next(now_));
  const std::vector<int> next = asked();
  ASSERT_EQ(next.size(), kAtOnce);
  EXPECT_EQ(std::vector<int>(next.begin(), next.begin() + 4), (std::vector<int>{17, 18, 19, 20}));
}

TEST_F(CoreIntroductions, RankAskedRepeatedlyTakesOneSlot) {
  for (int times = 0; times < 5; ++times) {
    ask(5);
    ask(5);
    EXPECT_THAT(asked(), ElementsAre(5)) << times;
    EXPECT_THAT(introductions_.take_overdue(now_ += kPatience), ElementsAre(5));
  }
  for (int rank = 10; rank < 50; ++rank) ask(rank);
  EXPECT_EQ(asked().size(), kAtOnce - 1);
}

TEST_F(CoreIntroductions, LostRankFreesItsSlot) {
  for (int rank = 1; rank <= 20; ++rank) ask(rank);
  asked();
  introductions_.forget(18);  // rank 18 was queued
  introductions_.forget(3);
  EXPECT_EQ(introductions_.next_timer_ns(), 0U);
  EXPECT_TRUE(introductions_.send_next(now_));
  EXPECT_THAT(asked(), ElementsAre(17));
  introductions_.forget(4);
  EXPECT_TRUE(introductions_.send_next(now_));
  EXPECT_THAT(asked(), ElementsAre(19));
}

TEST_F(CoreIntroductions, RankThatLostThisRanksProfileIsAskedAgain) {
  ask(5);
  answer(5);
  ASSERT_TRUE(introductions_.knows(5));
  introductions_.forgotten_by(5);
  EXPECT_FALSE(introductions_.knows(5));
  EXPECT_TRUE(peers_.knows(5));
  asked();
  ask(5);
  EXPECT_THAT(asked(), ElementsAre(5));
  answer(5);
  EXPECT_TRUE(introductions_.knows(5));
  EXPECT_THAT(introductions_.take_overdue(now_ + kT), IsEmpty());
  EXPECT_TRUE(introductions_.knows(5));
}

// Fails the first allocation, then the second, and so on, until |action| runs without failure.
template <typename Action>
void with_little_memory(Action&& action) {
  for (int64_t count = 0;; ++count) {
    ASSERT_LT(count, 10'000);
    test::fail_allocation_after(count);
    try {
      action();
      test::fail_allocation_after(-1);
      return;
    } catch (const std::bad_alloc&) {
      test::fail_allocation_after(-1);
    }
  }
}

TEST_F(CoreIntroductions, OutOfMemoryLosesNoRequest) {
  with_little_memory([&] { introductions_.ask(5); });
  introductions_.ask(5);  // the caller asks again after a failed allocation
  with_little_memory([&] { introductions_.send_next(now_); });
  // The rank was asked, or is asked again once overdue.
  std::vector<int> overdue;
  overdue.reserve(1);
  with_little_memory([&] {
    for (const int rank : introductions_.take_overdue(now_ + kPatience)) overdue.push_back(rank);
  });
  EXPECT_THAT(overdue, ElementsAre(5));
  answer(5);
  bool knows = false;
  with_little_memory([&] { knows = introductions_.knows(5); });
  EXPECT_TRUE(knows);
  EXPECT_EQ(peers_.offers(5).size(), 1U);
  EXPECT_THAT(book_, IsEmpty());
}

}  // namespace
}  // namespace hetcomm
