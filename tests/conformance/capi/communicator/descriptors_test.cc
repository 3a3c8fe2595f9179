// Connections use descriptors, and there may be fewer descriptors than peers:
//
//   * communication with nine peers on its host takes a rank fewer than twenty descriptors;
//   * a rank that may open fewer files than it has peers communicates with all of them repeatedly:
//     the least recently used connections are closed, and nothing fails or is lost;
//   * this holds also if every rank is short of descriptors, in any order of requests and with any
//     traffic in between.
#include "tests/support/descriptors.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

class Descriptors : public CapiTest {};

using hetcomm::test::open_descriptors;

// Limits this process to |spare| more files than it has now. Process jobs only.
void leave_descriptors(Member& me, unsigned spare) {
  // After this wait the last control connections exist, and duplicates that two ranks made at once
  // have been closed.
  (void)me.until([] { return false; }, kSec);
  std::vector<int> probes;
  for (unsigned i = 0; i <= spare; ++i) probes.push_back(dup(0));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = static_cast<rlim_t>(*std::max_element(probes.begin(), probes.end()));
  for (const int each : probes) close(each);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Sends |size| bytes there and back at the same time. Both ranks call it.
void exchange(Member& me, int32_t peer, uint64_t size, uint64_t seed) {
  const auto seed_of = [&](int32_t rank) { return seed * 100 + static_cast<uint64_t>(rank); };
  const std::vector<std::byte> out = pattern(size, seed_of(me.rank()));
  std::vector<std::byte> in(size);
  std::vector<hetcomm_request_t*> requests{me.recv(peer, 7, in.data(), size),
                                           me.send(peer, 7, out.data(), size)};
  finish_all(requests);
  ASSERT_TRUE(holds(in, seed_of(peer), size)) << me.rank() << " from " << peer;
}

// Returns the total number of broken connections with all peers.
uint64_t failures(const Member& me) {
  std::vector<hetcomm_counters_t> counters(8, {.struct_size = sizeof(hetcomm_counters_t)});
  uint64_t sum = 0;
  for (int32_t rank = 0; rank < me.size(); ++rank) {
    if (rank == me.rank()) continue;
    size_t count = 0;
    EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), rank, counters.size(),
                                            counters.data(), &count),
              HETCOMM_OK)
        << hetcomm_last_error();
    for (size_t i = 0; i < std::min(count, counters.size()); ++i) sum += counters[i].failures;
  }
  return sum;
}

// Returns the cases whose connections take one or two descriptors.
std::vector<CapiCase> chosen_cases() {
  std::vector<CapiCase> cases = process_cases();
  std::erase_if(cases, [](const CapiCase& each) {
    const std::string& name = each.name;
    return name != "shm" && name != "shm_thread" && name != "tcp" && name != "tcp_tls";
  });
  return cases;
}

constexpr uint64_t kSizes[] = {8, 3'000, 200'000};

TEST_P(Descriptors, NinePeersUseFewerThanTwentyDescriptors) {
  if (GetParam().transports != "shm") GTEST_SKIP() << "the bound is one for shm";
  run_job(GetParam(), 10, [](Member& me) {
    me.meet();
    const size_t before = open_descriptors();
    for (int32_t step = 1; step < me.size(); ++step) {
      // The two ranks of a pair add up to |step|, modulo the size.
      const int32_t peer = (step - me.rank() + me.size()) % me.size();
      if (peer != me.rank()) exchange(me, peer, 3'000, static_cast<uint64_t>(step));
    }
    const int32_t last = (me.size() - me.rank()) % me.size();
    if (last != me.rank()) exchange(me, last, 3'000, 0);
    me.meet();
    // Duplicate connections from the start end a little later.
    EXPECT_TRUE(me.until([&] { return open_descriptors() < before + 20; })) << open_descriptors();
  });
}

// The rank communicates with one peer after the other.
TEST_P(Descriptors, RankShortOfDescriptorsReachesAllPeersInTurn) {
  run_job(GetParam(), 10, [](Member& me) {
    if (me.rank() == 4) leave_descriptors(me, 8);
    std::atomic<uint64_t>& turn = me.store().word(3);
    me.meet();
    uint64_t turns = 0;
    for (uint64_t round = 0; round < 3; ++round) {
      for (int32_t peer = 0; peer < me.size(); ++peer) {
        if (peer == 4) continue;
        if (me.rank() == peer) {
          ASSERT_TRUE(me.until([&] { return turn.load() == turns; }));
          exchange(me, 4, kSizes[round], round);
        }
        if (me.rank() == 4) {
          exchange(me, peer, kSizes[round], round);
          turn.fetch_add(1);
        }
        ++turns;
      }
    }
    ASSERT_TRUE(me.until([&] { return turn.load() == turns; }));
    EXPECT_EQ(failures(me), 0u);
    me.meet();
  });
}

// All peers send to the rank at once, and their messages wait in its memory. A connection with
// messages in flight stays open.
TEST_P(Descriptors, RankShortOfDescriptorsReceivesFromAllPeersAtOnce) {
  run_job(GetParam(), 10, [](Member& me) {
    if (me.rank() == 4) leave_descriptors(me, 8);
    me.meet();
    for (uint64_t round = 0; round < 3; ++round) {
      for (int32_t peer = 0; peer < me.size(); ++peer) {
        if (peer == 4) continue;
        if (me.rank() == 4) exchange(me, peer, 8 + 500 * round, round);
        if (me.rank() == peer) exchange(me, 4, 8 + 500 * round, round);
      }
    }
    me.meet();
  });
}

// A tournament in which every rank meets every other rank once per round, in a random order.
TEST_P(Descriptors, AllRanksShortOfDescriptorsReachEachOther) {
  run_job(GetParam(), 8, [](Member& me) {
    leave_descriptors(me, 10);
    me.meet();
    Random random(11);
    const int32_t others = me.size() - 1;
    for (uint64_t round = 0; round < 8; ++round) {
      std::vector<int32_t> days(static_cast<size_t>(others));
      std::iota(days.begin(), days.end(), 0);
      for (size_t i = days.size(); i > 1; --i) std::swap(days[i - 1], days[random.below(i)]);
      for (const int32_t day : days) {
        // The last rank meets the rank that would otherwise meet itself.
        int32_t peer = (2 * day - me.rank() + 2 * others) % others;
        if (me.rank() == others) peer = day;
        if (peer == me.rank()) peer = others;
        exchange(me, peer, kSizes[round % 3], round);
      }
    }
    EXPECT_EQ(failures(me), 0u);
    me.meet();
  });
}

// A large host has this many ranks, and most systems have this limit. It takes minutes on two
// cores.
TEST_P(Descriptors, FiveHundredPeersFitWithin1024Descriptors) {
  if (std::getenv("HETCOMM_TEST_LONG") == nullptr) GTEST_SKIP() << "HETCOMM_TEST_LONG=1 runs it";
  if (GetParam().name != "shm") GTEST_SKIP() << "one transport will do";
  CapiCase patient = GetParam();
  patient.settings += "TIMEOUT=120s;BOOTSTRAP_TIMEOUT=300s;DETECTION_TIME=60s;";
  run_job(patient, 501, [](Member& me) {
    const rlimit usual{1024, 1024};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
    std::atomic<uint64_t>& turn = me.store().word(3);
    if (me.rank() == 0) {
      for (int32_t peer = 1; peer < me.size(); ++peer) {
        turn.store(static_cast<uint64_t>(peer));
        exchange(me, peer, 3'000, 1);
      }
      turn.store(static_cast<uint64_t>(me.size()));
      std::fprintf(stderr, "descriptors: %zu\n", open_descriptors());
    } else {
      // The rank does not poll, because that would take the cores from the communicating ranks.
      const auto wait_for = [&](int32_t peer) {
        while (turn.load() < static_cast<uint64_t>(peer)) usleep(20'000);
      };
      wait_for(me.rank());
      exchange(me, 0, 3'000, 1);
      wait_for(me.size());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Descriptors, ::testing::ValuesIn(chosen_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
