// Processor sets, and threads that are restricted to fewer processors:
//   - the kernel's lists are read and written, even far above 1024 processors; an invalid list is
//     rejected;
//   - equality of sets does not depend on how they were built;
//   - narrow_thread() never gives a thread a processor that it did not have, and leaves the thread
//     unchanged for masks that are empty or add no restriction.
#include "src/system/processors.h"

#include <pthread.h>
#include <sched.h>

#include <random>
#include <set>
#include <thread>

#include <gtest/gtest.h>

namespace hetcomm {
namespace {

ProcessorSet set_of(std::string_view list) {
  const std::optional<ProcessorSet> set = ProcessorSet::parse(list);
  EXPECT_TRUE(set.has_value()) << list;
  return set.value_or(ProcessorSet());
}

TEST(Processors, ListsReadBackAsWritten) {
  for (const char* const list :
       {"", "0", "63", "64", "0-63", "0-64", "0-31,64,80-95", "1,3,5", "1000-2047", "65535"}) {
    EXPECT_EQ(set_of(list).text(), list);
  }
  EXPECT_EQ(set_of(" 3 , 1-2 ,0").text(), "0-3");
  EXPECT_EQ(set_of("5,5,4-6").text(), "4-6");
}

TEST(Processors, MalformedListsAreRefused) {
  for (const char* const list : {"x", "-", "1-", "-1", "3-1", "1-2-3", "65536", "0-65536", "1 2",
                                 "0x3", "99999999999999999999999", "1,,x"}) {
    EXPECT_FALSE(ProcessorSet::parse(list).has_value()) << list;
  }
}

TEST(Processors, SetOperationsMatchAReferenceSet) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::set<size_t> numbers[2];
    ProcessorSet sets[2];
    for (int side = 0; side < 2; ++side) {
      for (int i = static_cast<int>(random() % 40); i > 0; --i) {
        const size_t number = random() % (round % 2 == 0 ? 70 : 3000);
        numbers[side].insert(number);
        sets[side].add(number);
      }
    }
    ProcessorSet both = sets[0];
    both.keep(sets[1]);
    ProcessorSet either = sets[0];
    either.add(sets[1]);
    ProcessorSet again;
    bool some = false;
    for (size_t i = 0; i < 3100; ++i) {
      const bool shared = numbers[0].contains(i) && numbers[1].contains(i);
      if (shared) again.add(i);
      some = some || shared;
      ASSERT_EQ(both.has(i), shared);
      ASSERT_EQ(either.has(i), numbers[0].contains(i) || numbers[1].contains(i));
    }
    ASSERT_EQ(both, again);
    ASSERT_EQ(both.empty(), !some);
    ASSERT_EQ(set_of(either.text()), either);
  }
}

// Saves this thread's processors and restores them at the end.
class ProcessorsOfAThread : public ::testing::Test {
 protected:
  ProcessorsOfAThread() { pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_); }
  ~ProcessorsOfAThread() override {
    pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
  }
  cpu_set_t before_;
};

TEST_F(ProcessorsOfAThread, NarrowingNeverAddsAProcessor) {
  const ProcessorSet all = processors_of(pthread_self());
  ASSERT_FALSE(all.empty());
  size_t first = 0;
  while (!all.has(first)) ++first;
  ProcessorSet one;
  one.add(first);
  if (all == one) GTEST_SKIP() << "this process may use one processor only";
  ProcessorSet wanted = one;
  wanted.add(9999);  // no such processor exists
  EXPECT_TRUE(narrow_thread(pthread_self(), wanted));
  EXPECT_EQ(processors_of(pthread_self()), one);
  EXPECT_FALSE(narrow_thread(pthread_self(), all));
  EXPECT_EQ(processors_of(pthread_self()), one);
}

TEST_F(ProcessorsOfAThread, StayUnchangedIfAMaskKeepsNoneOrAllOfThem) {
  const ProcessorSet all = processors_of(pthread_self());
  EXPECT_FALSE(narrow_thread(pthread_self(), ProcessorSet()));
  EXPECT_FALSE(narrow_thread(pthread_self(), set_of("60000-65535")));
  EXPECT_FALSE(narrow_thread(pthread_self(), all));
  EXPECT_FALSE(narrow_thread(pthread_self(), set_of("0-65535")));
  EXPECT_EQ(processors_of(pthread_self()), all);
}

}  // namespace
}  // namespace hetcomm
