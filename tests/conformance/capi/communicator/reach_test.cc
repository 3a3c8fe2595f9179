// News from one rank reaches all, in jobs whose ranks have neither communicated with it nor are its
// neighbours in the control plane: news spreads from rank to rank.
//
//   * an abort ends operations on ranks that have no connection to the rank that aborts;
//   * so does a failed collective operation;
//   * all ranks learn the reason and the rank where it started, including late callers.
//
// There are eight ranks on one host. A rank watches, and is watched by, those at distance 1 and 3
// (src/liveness/ring.h). So ranks 2, 4 and 6 have no control connection with rank 0.
#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr int32_t kRanks = 8;
// News takes some milliseconds. The deadlines of the operations that end here are longer.
constexpr uint64_t kSoonNs = 5 * kSec;

class Reach : public CapiTest {
 protected:
  // Expects that no data connection was made with |rank|.
  static void expect_no_connection(Member& me, int32_t rank) {
    std::array<hetcomm_counters_t, 16> counters{};
    counters[0].struct_size = sizeof(hetcomm_counters_t);
    size_t count = 0;
    EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), rank, counters.size(),
                                            counters.data(), &count),
              HETCOMM_OK);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(counters[i].connected, 0) << "rank " << me.rank() << " and rank " << rank;
    }
  }
  // Each rank up to |last| expects no connection with rank 0, and rank 0 expects none with them.
  static void expect_none_with_rank_0(Member& me, int32_t last) {
    for (int32_t rank = 0; rank <= last; ++rank) {
      if (rank != me.rank() && (rank == 0 || me.rank() == 0)) expect_no_connection(me, rank);
    }
  }
  static void expect_says(const std::string& text, const std::string& what) {
    EXPECT_NE(text.find(what), std::string::npos) << "'" << text << "' lacks '" << what << "'";
  }
};

TEST_P(Reach, AbortReachesRanksWithoutADirectConnection) {
  run(kRanks, [](Member& me) {
    uint64_t word = 0;
    hetcomm_request_t* request = me.recv(HETCOMM_ANY_SOURCE, 1, &word, sizeof(word));
    me.meet();
    const uint64_t begin = clock_ns();
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "the test says so"), HETCOMM_OK);
    }
    const Outcome outcome = finish(request);
    EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << "rank " << me.rank() << ": " << outcome.text;
    EXPECT_LT(clock_ns() - begin, kSoonNs) << "rank " << me.rank();
    expect_says(outcome.text, "the test says so");
    if (me.rank() != 0) expect_says(outcome.text, "rank 0");
    expect_none_with_rank_0(me, kRanks - 1);
    expect_rejected(me.communicator(), me.partner(), HETCOMM_ABORTED);
    me.meet();
  });
}

// Rank 7 is late, so no rank gets the data that it waits for, and rank 0 times out first. Nothing
// is sent before: only the root of a broadcast could send.
TEST_P(Reach, CollectiveFailureReachesRanksWithoutADirectConnection) {
  run(kRanks, [](Member& me) {
    int64_t word = me.rank();
    hetcomm_collective_options_t options{};
    options.struct_size = sizeof(options);
    options.algorithm = "binomial";  // by messages, and not in an arena
    const auto broadcast = [&](uint64_t timeout_ns) {
      options.timeout_ns = timeout_ns;
      hetcomm_request_t* request = nullptr;
      EXPECT_EQ(hetcomm_broadcast(me.communicator(), kRanks - 1, hetcomm_buffer_host(&word, 8),
                                  HETCOMM_INT64, &options, &request),
                HETCOMM_OK)
          << hetcomm_last_error();
      return finish(request);
    };
    me.meet();
    if (me.rank() != kRanks - 1) {
      const uint64_t begin = clock_ns();
      const Outcome outcome = broadcast(me.rank() == 0 ? 200 * kMs : 9 * kSec);
      EXPECT_EQ(outcome.status, me.rank() == 0 ? HETCOMM_TIMED_OUT : HETCOMM_ABORTED)
          << "rank " << me.rank() << ": " << outcome.text;
      EXPECT_LT(clock_ns() - begin, kSoonNs) << "rank " << me.rank();
      expect_says(outcome.text, "broadcast");
      if (me.rank() != 0) expect_says(outcome.text, "rank 0");
      expect_none_with_rank_0(me, kRanks - 2);  // the other ranks wait for the root's data
    }
    me.meet();
    // The late rank learns of the failure from a call. A call that comes too early needs nothing
    // from the other ranks, and succeeds.
    if (me.rank() == kRanks - 1) {
      Outcome outcome = broadcast(9 * kSec);
      for (int i = 0; i < 1000 && outcome.status == HETCOMM_OK; ++i) outcome = broadcast(9 * kSec);
      EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
      expect_says(outcome.text, "rank 0");
    }
    me.meet();
    // Messages still work.
    ring(me.communicator(), 5);
    me.meet();
    (void)me.until([] { return false; }, 50 * kMs);  // a rank that leaves stops acknowledging
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Reach,
                         ::testing::Values(CapiCase{.name = "shm", .transports = "shm"},
                                           CapiCase{.name = "tcp", .transports = "tcp"}),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
