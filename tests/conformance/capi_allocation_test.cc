// Memory: once a job has warmed up, messages of every protocol are sent and received without an
// allocation, on all threads of all ranks.
#include "tests/conformance/capi_job.h"
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

// |rounds| windows both ways, half of them received after they were sent; |apart|: certainly so, as
// the ranks meet in between. False when one failed.
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

// The result is what one exchange on all ranks allocates, as rank 0 counts it; -1 on the others.
int64_t allocations_of_exchange(Member& me, hetcomm_buffer_t out, hetcomm_buffer_t in,
                                uint64_t bytes, int rounds) {
  EXPECT_TRUE(me.meet());
  if (me.rank() == 0) start_counting_allocations();
  // Nothing but the library's calls from here on.
  const bool begun = hetcomm_communicator_barrier(me.communicator(), kPatienceNs) == HETCOMM_OK;
  const bool well = exchange(me, out, in, bytes, rounds, false);
  const bool ended = hetcomm_communicator_barrier(me.communicator(), kPatienceNs) == HETCOMM_OK;
  const int64_t found = allocations_counted();
  if (me.rank() == 0) stop_counting_allocations();
  EXPECT_TRUE(begun && well && ended);
  EXPECT_TRUE(me.meet());
  return me.rank() == 0 ? found : -1;
}

// A pool grows when more coincide than ever did before, which on a busy machine may come late; but
// it comes to an end. An allocation per message does not.
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

TEST_P(Allocation, NoneForMessagesOfHostMemory) {
  run_two([](Member& me) {
    constexpr uint64_t kMost = 2 << 20;
    std::vector<std::byte> out(kMost * kWindow);
    std::vector<std::byte> in(kMost * kWindow);
    for (const uint64_t bytes :
         {uint64_t{8}, uint64_t{4096}, uint64_t{65536}, uint64_t{300000}, kMost}) {
      count(me, hetcomm_buffer_host(out.data(), out.size()),
            hetcomm_buffer_host(in.data(), in.size()), bytes);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Allocation, ::testing::ValuesIn(plain_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
