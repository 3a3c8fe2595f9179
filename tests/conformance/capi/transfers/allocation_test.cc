// Memory allocations: after warm-up, messages of every protocol are sent and received without any
// allocation on any thread of any rank.
#include "tests/conformance/capi/job.h"
#include "tests/support/counting_allocator.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::allocations_counted;
using hetcomm::test::start_counting_allocations;
using hetcomm::test::stop_counting_allocations;

constexpr int kWindow = 8;

class Allocation : public CapiTest {
 protected:
  void SetUp() override {
    CapiTest::SetUp();
    if (GetParam().processes) GTEST_SKIP() << "counts in one process";
  }
};

bool ended_well(hetcomm_request_t* request) {
  hetcomm_completion_t completion;
  return hetcomm_request_wait(request, kPatienceNs, &completion) == HETCOMM_OK &&
         completion.status == HETCOMM_OK;
}

bool post(Member& me, bool sends, hetcomm_buffer_t memory, uint64_t bytes, int index,
          hetcomm_request_t** request) {
  memory.offset += static_cast<uint64_t>(index) * bytes;
  memory.length = bytes;
  const auto tag = static_cast<uint64_t>(index);
  const hetcomm_status_t status =
      sends ? hetcomm_send(me.communicator(), me.partner(), tag, memory, nullptr, request)
            : hetcomm_recv(me.communicator(), me.partner(), tag, HETCOMM_EXACT_TAG, memory, nullptr,
                           request);
  return status == HETCOMM_OK;
}

// Exchanges |rounds| windows in both directions. About half of the messages are received after they
// were sent. If |apart|, all are, because the ranks meet in between. Returns false on failure.
bool exchange(Member& me, hetcomm_buffer_t out, hetcomm_buffer_t in, uint64_t bytes, int rounds,
              bool apart) {
  hetcomm_request_t* requests[2 * kWindow];
  bool well = true;
  for (int round = 0; round < rounds; ++round) {
    for (int half = 0; half < 2; ++half) {
      const bool sends = (half == 0) == (round % 2 == 0);
      for (int i = 0; i < kWindow; ++i) {
        well = well && post(me, sends, sends ? out : in, bytes, i, &requests[half * kWindow + i]);
      }
      if (apart) {
        well = well && hetcomm_communicator_barrier(me.communicator(), kPatienceNs) == HETCOMM_OK;
      }
    }
    for (hetcomm_request_t* request : requests) well = well && ended_well(request);
  }
  return well;
}

// Returns the number of allocations during one exchange on all ranks, as counted by rank 0; -1 on
// other ranks. Those of the barriers around it do not count: a rank that waits for long tells why.
int64_t allocations_of_exchange(Member& me, hetcomm_buffer_t out, hetcomm_buffer_t in,
                                uint64_t bytes, int rounds) {
  EXPECT_TRUE(me.meet());
  // Only the library's calls run from this point.
  const bool begun = hetcomm_communicator_barrier(me.communicator(), kPatienceNs) == HETCOMM_OK;
  if (me.rank() == 0) start_counting_allocations();
  const bool well = exchange(me, out, in, bytes, rounds, false);
  const int64_t found = allocations_counted();
  if (me.rank() == 0) stop_counting_allocations();
  const bool ended = hetcomm_communicator_barrier(me.communicator(), kPatienceNs) == HETCOMM_OK;
  EXPECT_TRUE(begun && well && ended);
  EXPECT_TRUE(me.meet());
  return me.rank() == 0 ? found : -1;
}

// A pool grows when more messages coincide than ever before. On a busy machine that may happen
// late, but it stops. Allocations per message would not stop.
void count(Member& me, hetcomm_buffer_t out, hetcomm_buffer_t in, uint64_t bytes) {
  constexpr int kExchanges = 20;
  const int rounds = bytes > (1 << 20) ? 4 : 24;
  ASSERT_TRUE(exchange(me, out, in, bytes, rounds, true));
  int64_t fewest = INT64_MAX;
  for (int i = 0; i < kExchanges; ++i) {
    const int64_t found = allocations_of_exchange(me, out, in, bytes, rounds);
    fewest = std::min(fewest, found);
  }
  if (me.rank() == 0) {
    EXPECT_EQ(fewest, 0) << bytes << " bytes: " << rounds * kWindow << " messages a side";
  }
}

TEST_P(Allocation, HostMemoryMessagesAllocateNothingAfterWarmUp) {
  run_two([](Member& me) {
    constexpr uint64_t kMax = 2 << 20;
    std::vector<std::byte> out(kMax * kWindow);
    std::vector<std::byte> in(kMax * kWindow);
    for (const uint64_t bytes :
         {uint64_t{8}, uint64_t{4096}, uint64_t{65536}, uint64_t{300000}, kMax}) {
      count(me, hetcomm_buffer_host(out.data(), out.size()),
            hetcomm_buffer_host(in.data(), in.size()), bytes);
    }
  });
}

// Moves a matrix on both ranks from rows to columns. Short rows are packed.
class Turning {
 public:
  Turning(Member& me, uint64_t columns) : me_(me), values_(kRows * columns / 2, 1) {
    const uint64_t shape[] = {kRows, columns};
    const uint64_t axes[] = {2};
    const int32_t ranks[] = {0, 1};
    for (const uint32_t dimension : {0u, 1u}) {
      const hetcomm_placement_t placement{HETCOMM_PLACEMENT_SHARD, dimension, 1, nullptr};
      EXPECT_EQ(hetcomm_layout_from_mesh(2, shape, 1, axes, ranks, &placement, nullptr,
                                         &layouts_[dimension]),
                HETCOMM_OK);
    }
    const hetcomm_reshard_tensor_t tensor{layouts_[0], layouts_[1], HETCOMM_UINT32, HETCOMM_UINT32};
    EXPECT_EQ(hetcomm_reshard_create(me.communicator(), &tensor, 1, nullptr, &plan_), HETCOMM_OK);
    result_.resize(values_.size());
  }
  Turning(const Turning&) = delete;
  Turning& operator=(const Turning&) = delete;
  ~Turning() {
    EXPECT_EQ(hetcomm_reshard_destroy(plan_), HETCOMM_OK);
    for (hetcomm_layout_t* layout : layouts_) EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  }
  bool run(int times) {
    const hetcomm_buffer_t from = hetcomm_buffer_host(values_.data(), values_.size() * 4);
    const hetcomm_buffer_t to = hetcomm_buffer_host(result_.data(), result_.size() * 4);
    for (int i = 0; i < times; ++i) {
      hetcomm_request_t* request = nullptr;
      if (hetcomm_reshard_start(plan_, &from, &to, nullptr, &request) != HETCOMM_OK) return false;
      if (!ended_well(request)) return false;
    }
    return true;
  }
  // Returns the number of allocations during |times| executions, as counted by rank 0.
  int64_t allocations_of(int times) {
    EXPECT_TRUE(me_.meet());
    if (me_.rank() == 0) start_counting_allocations();
    const bool begun = hetcomm_communicator_barrier(me_.communicator(), kPatienceNs) == HETCOMM_OK;
    const bool well = run(times);
    const bool ended = hetcomm_communicator_barrier(me_.communicator(), kPatienceNs) == HETCOMM_OK;
    const int64_t found = allocations_counted();
    if (me_.rank() == 0) stop_counting_allocations();
    EXPECT_TRUE(begun && well && ended);
    EXPECT_TRUE(me_.meet());
    return found;
  }

 private:
  static constexpr uint64_t kRows = 64;
  Member& me_;
  std::vector<uint32_t> values_;
  std::vector<uint32_t> result_;
  hetcomm_layout_t* layouts_[2] = {};
  hetcomm_reshard_t* plan_ = nullptr;
};

TEST_P(Allocation, RepeatedRedistributionsAllocateNothing) {
  if (GetParam().alone()) GTEST_SKIP() << "self: one rank only";
  run_two([](Member& me) {
    for (const uint64_t columns : {uint64_t{64}, uint64_t{40'000}}) {
      Turning turning(me, columns);
      ASSERT_TRUE(turning.run(20));
      int64_t fewest = INT64_MAX;
      for (int i = 0; i < 20; ++i) fewest = std::min(fewest, turning.allocations_of(10));
      if (me.rank() == 0) {
        EXPECT_EQ(fewest, 0) << columns << " columns";
      }
      me.meet();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Allocation, ::testing::ValuesIn(plain_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
