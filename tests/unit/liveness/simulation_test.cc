// The judges of all ranks of a job, on a simulated clock and network
// (tests/support/liveness_simulation.h):
//
//   * safety: no live rank that a running watcher reaches is declared dead, despite stops, resets,
//     one-way cuts, leaves and restarts;
//   * liveness: every death and every leave is known to all running ranks, in bounded time;
//   * a partition shorter than the detection time has no consequence, a longer one is reported on
//     both sides, and declared deaths stay;
//   * aborts and letters arrive, also during and after all this;
//   * ranks that introduce themselves have each other's profiles, also after resets and cuts, and
//     nothing but the profiles remains;
//   * frames and connections are bounded, with 4,096 ranks too.
//
// A failure prints its seed. HETCOMM_TEST_SEEDS=first:count selects others; long runs use 100,000.
#include <cstdlib>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/support/liveness_simulation.h"

namespace hetcomm_test {
namespace {

using State = Simulation::State;
using live::Fate;

constexpr uint64_t kT = 3 * kSecond;

// The fraction of the work in a quick run: sanitizers make it six times as slow.
#if defined(HETCOMM_ASAN) || defined(HETCOMM_TSAN)
constexpr int kPart = 4;
#else
constexpr int kPart = 1;
#endif

struct Seeds {
  uint64_t first = 1;
  uint64_t count = 300;
};

Seeds seeds(uint64_t quick) {
  Seeds result{1, quick / kPart};
  if (const char* text = std::getenv("HETCOMM_TEST_SEEDS"); text != nullptr) {
    char* rest = nullptr;
    result.first = std::strtoull(text, &rest, 10);
    if (*rest == ':') result.count = std::strtoull(rest + 1, nullptr, 10);
  }
  return result;
}

// Runs |scenario| for each of seeds(quick) until one fails.
template <typename Scenario>
void for_seeds(uint64_t quick, Scenario&& scenario) {
  const Seeds range = seeds(quick);
  for (uint64_t seed = range.first; seed < range.first + range.count; ++seed) {
    scenario(seed);
    if (testing::Test::HasFailure()) return;
  }
}

std::vector<int> random_hosts(std::mt19937_64& random, int ranks) {
  const int hosts = 1 + static_cast<int>(random() % static_cast<uint64_t>(ranks));
  std::vector<int> result;
  for (int rank = 0; rank < ranks; ++rank) {
    // The ranks on a host are consecutive, or hosts alternate.
    result.push_back(static_cast<int>(random() % 4 == 0 ? random() % static_cast<uint64_t>(hosts)
                                                        : static_cast<uint64_t>(rank % hosts)));
  }
  return result;
}

std::vector<int> one_each(int ranks) {
  std::vector<int> hosts(static_cast<size_t>(ranks));
  std::iota(hosts.begin(), hosts.end(), 0);
  return hosts;
}

bool runs(const Simulation& job, int rank) {
  return job.state(rank) == State::kRuns && !job.declared_dead(rank);
}

// Returns whether every running rank knows the truth about every other rank.
::testing::AssertionResult all_know(const Simulation& job) {
  for (int by = 0; by < job.size(); ++by) {
    if (!runs(job, by)) continue;
    for (int of = 0; of < job.size(); ++of) {
      if (of == by) continue;
      const Fate seen = job.fate(of, by);
      const bool lives = runs(job, of);
      if (lives != (seen == Fate::kAlive)) {
        return ::testing::AssertionFailure()
               << "rank " << by << " holds rank " << of << " for " << static_cast<int>(seen)
               << ", which " << (lives ? "lives" : "does not live");
      }
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult nobody_died(const Simulation& job) {
  for (int rank = 0; rank < job.size(); ++rank) {
    if (job.declared_dead(rank)) {
      return ::testing::AssertionFailure() << "rank " << rank << " was declared dead";
    }
  }
  return all_know(job);
}

// Runs random kills, stops, leaves, resets, restarts, cut paths, firewalls, first contacts and
// aborts.
void chaos(uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 choose(seed);
  const int size = 2 + static_cast<int>(choose() % (choose() % 8 == 0 ? 60 : 14));
  Simulation job(seed, random_hosts(choose, size), kT);
  const bool walled = choose() % 4 == 0;
  if (walled) {
    // Firewalls that pass one direction only.
    std::set<std::pair<int, int>> walls;
    for (int rank = 0; rank < size; ++rank) {
      const int other = static_cast<int>(choose() % static_cast<uint64_t>(size));
      if (other != rank && walls.count({other, rank}) == 0) walls.insert({rank, other});
    }
    for (const auto& [from, to] : walls) job.refuse(from, to);
  }
  job.start();
  if (!job.run_until_ready(2 * kT)) {
    // A rank may want a peer that it cannot connect to, and that does not want it.
    ASSERT_TRUE(walled);
    return;
  }
  const auto any = [&] { return static_cast<int>(choose() % static_cast<uint64_t>(size)); };
  const uint64_t end = job.now() + 8 * kT;
  const int events = 1 + static_cast<int>(choose() % 24);
  int lasting = size / 4;  // number of ranks that may go, so that a majority stays
  bool has_stops = false;
  bool has_cuts = false;
  uint32_t aborts = 0;
  for (int i = 0; i < events; ++i) {
    const uint64_t when = job.now() + choose() % (6 * kT);
    const int one = any();
    const int other = any();
    switch (choose() % 9) {
      case 0:
        if (lasting-- > 0) job.at(when, [&job, one] { job.kill(one); });
        break;
      case 1:
        if (lasting-- > 0) {
          job.at(when, [&job, one] { job.kill(one); });
          job.at(when + kMilli, [&job, one] {
            if (job.state(one) == State::kDead) job.restart(one);
          });
        }
        break;
      case 2:
        if (lasting-- > 0) job.at(when, [&job, one] { job.leave(one); });
        break;
      case 3:
      case 4: {
        const uint64_t length = choose() % (2 * kT);
        has_stops = true;
        job.at(when, [&job, one] { job.stop(one); });
        job.at(when + length, [&job, one] { job.resume(one); });
        break;
      }
      case 5:
        if (one != other) job.at(when, [&job, one, other] { job.reset_connections(one, other); });
        break;
      case 6:
        // Cuts one path in one direction, temporarily or permanently; the other ranks reach both
        // ends.
        if (one != other && size >= 5) {
          const uint64_t length = choose() % 3 == 0 ? 9 * kT : choose() % (3 * kT);
          job.at(when, [&job, one, other] { job.cut(one, other, true); });
          job.at(when + length, [&job, one, other] { job.cut(one, other, false); });
          i += 4;
          has_cuts = true;
        }
        break;
      case 7:
        if (one != other) job.at(when, [&job, one, other] { job.first_contact(one, other); });
        break;
      default:
        job.at(when, [&job, one, id = ++aborts] {
          if (runs(job, one)) job.abort(one, id);
        });
    }
  }
  job.run(end - job.now());
  for (int rank = 0; rank < size; ++rank) job.resume(rank);
  job.run(5 * kT);
  EXPECT_EQ(job.violation(), "");
  // If all ranks that a rank still reaches are stopped, or it is stopped behind firewalls, no rank
  // can vouch for it.
  if (!(has_stops && (has_cuts || walled))) {
    EXPECT_TRUE(all_know(job));
    for (int rank = 0; rank < size; ++rank) EXPECT_FALSE(job.declared_dead(rank)) << rank;
  }
  // The limit covers the frames of five connections each and those of questions.
  EXPECT_LT(job.frames(), 60'000U * static_cast<uint64_t>(size));
}

TEST(LivenessSimulation, NoReachableRankIsDeclaredDeadUnderRandomFaults) { for_seeds(400, chaos); }

// Partitions the network. A partition shorter than the detection time has no consequence.
void partition(uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 choose(seed);
  const int size = 2 + static_cast<int>(choose() % 14);
  const std::vector<int> hosts = random_hosts(choose, size);
  Simulation job(seed, hosts, kT);
  job.start();
  ASSERT_TRUE(job.run_until_ready(2 * kT));
  job.run(choose() % kT);
  std::vector<int> groups;
  groups.reserve(hosts.size());
  for (const int host : hosts)
    groups.push_back(static_cast<int>((choose() ^ static_cast<uint64_t>(host)) % 2));
  // Each host is cut off as a whole.
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    for (size_t first = 0; first < rank; ++first) {
      if (hosts[first] == hosts[rank]) {
        groups[rank] = groups[first];
        break;
      }
    }
  }
  const bool is_short = choose() % 2 == 0;
  job.partition(groups);
  if (is_short) {
    job.run(kT * 7 / 10);
    job.abort(0, 1);
    job.heal();
    job.run(3 * kT);
    EXPECT_EQ(job.violation(), "");
    EXPECT_TRUE(nobody_died(job));
    for (int rank = 1; rank < size; ++rank) EXPECT_EQ(job.aborts_seen(rank), 1) << "rank " << rank;
    return;
  }
  job.run(kT * 15 / 10);
  // Each side knows that the ranks to which it was connected are gone, or considers itself cut off.
  const bool cut = std::count(groups.begin(), groups.end(), groups[0]) != size;
  for (int by = 0; by < size && cut; ++by) {
    bool told = false;
    for (int of = 0; of < size; ++of) {
      told = told || (groups[static_cast<size_t>(of)] != groups[static_cast<size_t>(by)] &&
                      job.fate(of, by) != Fate::kAlive);
    }
    EXPECT_TRUE(told) << "rank " << by << " of " << size << " was not told";
  }
  job.heal();
  job.run(3 * kT);
  EXPECT_EQ(job.violation(), "");
}

TEST(LivenessSimulation, PartitionIsReportedOnBothSidesOrNotAtAll) { for_seeds(300, partition); }

// Kills whole hosts at once, possibly with all watchers of some of their ranks.
void hosts_die(uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 choose(seed);
  const int host_count = 3 + static_cast<int>(choose() % 10);
  const int each = 1 + static_cast<int>(choose() % 4);
  std::vector<int> hosts;
  for (int rank = 0; rank < host_count * each; ++rank) {
    hosts.push_back(choose() % 2 == 0 ? rank / each : rank % host_count);
  }
  Simulation job(seed, hosts, kT);
  job.start();
  ASSERT_TRUE(job.run_until_ready(2 * kT));
  job.run(choose() % kT);
  const auto dying = 1 + static_cast<int>(choose() % static_cast<uint64_t>((host_count - 1) / 2));
  for (int host = 0; host < dying; ++host) job.kill_host(host);
  job.run(6 * kT);
  EXPECT_EQ(job.violation(), "");
  EXPECT_TRUE(all_know(job));
}

TEST(LivenessSimulation, DeathOfWholeHostsReachesEveryRank) { for_seeds(200, hosts_die); }

TEST(LivenessSimulation, KilledProcessIsKnownDeadWithinATenthOfASecond) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 choose(seed);
    const int size = 3 + static_cast<int>(choose() % 60);
    Simulation job(seed, random_hosts(choose, size), kT);
    job.start();
    ASSERT_TRUE(job.run_until_ready(2 * kT));
    // Runs until neighbours have connected in both directions.
    job.run(kT / 10 + choose() % kT);
    job.kill(0);
    const uint64_t killed = job.now();
    job.run(kSecond / 5);
    EXPECT_TRUE(all_know(job));
    EXPECT_LT(job.known_ns(0) - killed, kSecond / 10);
  }
}

// All of a rank's neighbours leave, then the rank dies; by then some rank watches it.
TEST(LivenessSimulation, GraphIsRepairedAfterRanksLeave) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Simulation job(seed, one_each(24), kT);
    job.start();
    ASSERT_TRUE(job.run_until_ready(2 * kT));
    for (int rank = 2; rank < 24; ++rank) {
      if (rank % 5 != 0) job.leave(rank);
    }
    job.run(kT);
    job.kill_host(0);
    job.run(2 * kT);
    EXPECT_EQ(job.violation(), "");
    EXPECT_TRUE(all_know(job));
  }
}

TEST(LivenessSimulation, AbortsReachAStoppedRankAfterItResumes) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Simulation job(seed, one_each(9), kT);
    job.start();
    ASSERT_TRUE(job.run_until_ready(2 * kT));
    job.stop(4);
    for (uint32_t id = 1; id <= 1500; ++id) job.abort(0, id);
    job.run(2 * kT);
    job.resume(4);
    job.run(kT / 2);
    EXPECT_TRUE(nobody_died(job));
    for (int rank = 1; rank < 9; ++rank) EXPECT_EQ(job.aborts_seen(rank), 1500) << rank;
  }
}

TEST(LivenessSimulation, AllRanksMayLeaveSimultaneously) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Simulation job(seed, one_each(40), kT);
    job.start();
    ASSERT_TRUE(job.run_until_ready(2 * kT));
    const uint64_t before = job.frames();
    for (int rank = 0; rank < 40; ++rank) job.leave(rank);
    job.run(kT);
    EXPECT_EQ(job.violation(), "");
    for (int rank = 0; rank < 40; ++rank) {
      EXPECT_EQ(job.state(rank), State::kGone);
      EXPECT_FALSE(job.declared_dead(rank));
    }
    EXPECT_LT(job.frames() - before, 40U * 40U * 8U);
  }
}

// Retries an introduction like a job: again after a while without an answer.
void introduce_until_met(Simulation& job, int from, int to) {
  if (job.has_profile(from, to)) return;
  if (runs(job, from)) job.introduce(from, to);
  job.at(job.now() + job.detection_ns() / 10,
         [&job, from, to] { introduce_until_met(job, from, to); });
}

void introductions(uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 choose(seed);
  const int size = 8 + static_cast<int>(choose() % 24);
  Simulation job(seed, random_hosts(choose, size), kT);
  job.start();
  ASSERT_TRUE(job.run_until_ready(2 * kT));
  const auto any = [&] { return static_cast<int>(choose() % static_cast<uint64_t>(size)); };
  for (int from = 0; from < size; ++from) {
    for (int to = from + 1; to < size; ++to) {
      job.at(job.now() + choose() % kT, [&job, from, to] { introduce_until_met(job, from, to); });
    }
  }
  for (int i = 0; i < 30; ++i) {
    const int one = any();
    const int other = any();
    const uint64_t when = job.now() + choose() % kT;
    if (one == other) continue;
    switch (choose() % 3) {
      case 0:
        job.at(when, [&job, one, other] { job.cut(one, other, true); });
        job.at(when + choose() % (kT / 4), [&job, one, other] { job.cut(one, other, false); });
        break;
      case 1:
        job.at(when, [&job, one] { job.stop(one); });
        job.at(when + choose() % (kT / 4), [&job, one] { job.resume(one); });
        break;
      default:
        job.at(when, [&job, one, other] { job.reset_connections(one, other); });
    }
  }
  job.run(4 * kT);
  EXPECT_EQ(job.violation(), "");
  EXPECT_TRUE(nobody_died(job));
  for (int from = 0; from < size; ++from) {
    for (int to = from + 1; to < size; ++to) {
      EXPECT_TRUE(job.has_profile(from, to)) << from << " " << to;
      EXPECT_TRUE(job.has_profile(to, from)) << to << " " << from;
    }
  }
  job.run(3 * kT);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_LE(job.connections(rank), 16U);
    EXPECT_LE(job.active_peers(rank), 12U);
  }
}

TEST(LivenessSimulation, IntroducedRanksHaveEachOthersProfiles) { for_seeds(60, introductions); }

// All ranks talk to one rank at once, and that rank to all.
TEST(LivenessSimulation, ManyIntroductionsLeaveFewConnections) {
  const int size = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 4096 : 512 / kPart;
  std::vector<int> hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back(rank / 8);
  Simulation job(5, hosts, kT);
  job.start();
  ASSERT_TRUE(job.run_until_ready(2 * kT));
  const int middle = size / 2;
  for (int rank = 0; rank < size; ++rank) {
    if (rank < middle) job.introduce(rank, middle);
    if (rank > middle) job.introduce(middle, rank);
  }
  job.run(3 * kT);
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_TRUE(rank == middle || job.has_profile(rank, middle)) << rank;
  }
  EXPECT_LE(job.connections(middle), 16U);
  EXPECT_LE(job.active_peers(middle), 16U);
  EXPECT_EQ(job.violation(), "");
}

// Checks the limits for a large job: connections, frames while idle, and frames for a thousand
// deaths.
void large_job(int size) {
  std::vector<int> hosts;
  for (int rank = 0; rank < size; ++rank) hosts.push_back(rank / 8);
  Simulation job(5, hosts, kT);
  job.start();
  ASSERT_TRUE(job.run_until_ready(2 * kT));
  const uint64_t ready = job.frames();
  job.run(kT);
  const auto ranks = static_cast<uint64_t>(size);
  EXPECT_LT(job.frames() - ready, 60 * ranks) << "frames of a detection time";
  EXPECT_LE(job.most_connections(), 16U);
  for (int host = 0; host < size / 32; ++host) job.kill_host(3 * host);
  const uint64_t before = job.bytes();
  job.run(4 * kT);
  EXPECT_EQ(job.violation(), "");
  EXPECT_TRUE(all_know(job));
  const uint64_t dead = ranks / 4;
  EXPECT_LT((job.bytes() - before) / ranks, 20'000 + dead * 2'400) << "bytes of a rank";
  for (int rank = 1; rank < size; rank += 16) job.first_contact(rank, (rank * 7 + 3) % size);
  job.run(kT);
  EXPECT_LE(job.most_connections(), 64U);
}

TEST(LivenessSimulation, FramesAndConnectionsOfALargeJobAreBounded) {
  large_job(std::getenv("HETCOMM_TEST_LONG") != nullptr ? 4096 : 512 / kPart);
}

}  // namespace
}  // namespace hetcomm_test
