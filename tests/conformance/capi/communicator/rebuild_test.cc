// Rebuilding with the surviving ranks, in jobs that were launched by variables (RANK, WORLD_SIZE,
// MASTER_ADDR), as processes that are killed:
//
//   * any ranks but rank 0 may die, one after the other: the others continue with one bootstrap,
//     and are numbered in their old order;
//   * ranks may learn of the loss at different times: a rank may start to rebuild before another
//     one dies;
//   * a communicator made by a split can be rebuilt in the same way;
//   * a living rank that does not call fails the call on all ranks, which name its number; the next
//     call works;
//   * redistribution plans are made again if copies of the lost data are left;
//   * if the store died with rank 0, every rank learns that immediately and is told what to do,
//     which then works.
//
// The jobs run with a secret, and without one, in which case connections to the store are bounded.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <numeric>
#include <set>
#include <utility>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

// The limit for "immediately": a rank looks for a lost store for three seconds.
constexpr uint64_t kSoonNs = 8 * kSec;

// Counters shared by all processes of a job.
class Board {
 public:
  Board()
      : words_(static_cast<std::atomic<int>*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  ~Board() { munmap(words_, 4096); }

  // Returns when |count| ranks have reached |place|.
  void meet(int place, int count) {
    ++words_[place];
    const uint64_t end = clock_ns() + kPatienceNs;
    while (words_[place] < count && clock_ns() < end) usleep(1000);
    EXPECT_GE(words_[place], count);
  }

 private:
  std::atomic<int>* words_;
};

hetcomm_communicator_options_t shrinking(uint32_t shrink = 1) {
  hetcomm_communicator_options_t options{};
  options.struct_size = sizeof(options);
  options.shrink = shrink;
  return options;
}

// One rank of a job, in its process.
class Launched {
 public:
  Launched(Board& board, int rank, int size, const std::string& settings)
      : board_(board), rank_(rank), size_(size) {
    set_place(rank, size);
    hetcomm_context_options_t options{};
    options.struct_size = sizeof(options);
    options.settings = settings.c_str();
    EXPECT_EQ(hetcomm_context_create(&options, &context_), HETCOMM_OK) << hetcomm_last_error();
    make_bootstrap();
    EXPECT_EQ(hetcomm_communicator_create(context_, bootstrap_, nullptr, &communicator_),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;
  ~Launched() {
    EXPECT_EQ(hetcomm_communicator_destroy(communicator_), HETCOMM_OK) << hetcomm_last_error();
    hetcomm_bootstrap_destroy(bootstrap_);
    EXPECT_EQ(hetcomm_context_destroy(context_), HETCOMM_OK) << hetcomm_last_error();
  }

  int rank() const { return rank_; }  // number at launch
  int size() const { return size_; }
  Board& board() { return board_; }
  hetcomm_communicator_t* communicator() { return communicator_; }

  // Sets the variables that a launcher would set.
  static void set_place(int rank, int size) {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  }
  // Replaces the bootstrap by one made from the current environment.
  void make_bootstrap() {
    hetcomm_bootstrap_destroy(bootstrap_);
    bootstrap_ = nullptr;
    EXPECT_EQ(hetcomm_bootstrap_create_from_environment(context_, &bootstrap_), HETCOMM_OK)
        << hetcomm_last_error();
  }

  hetcomm_status_t try_rebuild(const hetcomm_communicator_options_t& options,
                               hetcomm_communicator_t* from, hetcomm_communicator_t** fresh) {
    return hetcomm_communicator_rebuild(from, bootstrap_, &options, fresh);
  }
  // Replaces the old communicator by the new one.
  void rebuild(const hetcomm_communicator_options_t& options) {
    hetcomm_communicator_t* fresh = nullptr;
    ASSERT_EQ(try_rebuild(options, communicator_, &fresh), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_communicator_destroy(communicator_), HETCOMM_OK) << hetcomm_last_error();
    communicator_ = fresh;
  }
  // Replaces the old communicator by |fresh|. Returns the old one, which the caller then owns.
  hetcomm_communicator_t* replace(hetcomm_communicator_t* fresh) {
    return std::exchange(communicator_, fresh);
  }
  // Expects that this rank has its position among |left| in the communicator and the bootstrap, and
  // that messages pass.
  void expect_ranks(const std::vector<int>& left) {
    const auto own =
        static_cast<int32_t>(std::find(left.begin(), left.end(), rank_) - left.begin());
    int32_t rank = -1;
    int32_t size = -1;
    EXPECT_EQ(hetcomm_communicator_rank(communicator_, &rank, &size), HETCOMM_OK);
    EXPECT_EQ(rank, own);
    EXPECT_EQ(size, static_cast<int32_t>(left.size()));
    EXPECT_EQ(hetcomm_bootstrap_rank(bootstrap_, &rank, &size), HETCOMM_OK);
    EXPECT_EQ(rank, own);
    EXPECT_EQ(size, static_cast<int32_t>(left.size()));
    std::vector<int32_t> all(left.size(), -1);
    const int32_t mine = rank_;
    hetcomm_request_t* request = nullptr;
    ASSERT_EQ(hetcomm_allgather(communicator_, hetcomm_buffer_host(&mine, sizeof(mine)),
                                hetcomm_buffer_host(all.data(), all.size() * sizeof(mine)),
                                HETCOMM_INT32, nullptr, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    const Outcome outcome = finish(request);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    EXPECT_EQ(all, std::vector<int32_t>(left.begin(), left.end()));
  }

 private:
  Board& board_;
  const int rank_;
  const int size_;
  hetcomm_context_t* context_ = nullptr;
  hetcomm_bootstrap_t* bootstrap_ = nullptr;
  hetcomm_communicator_t* communicator_ = nullptr;
};

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  std::abort();
}

class Rebuild : public ::testing::TestWithParam<std::pair<std::string, bool>> {
 protected:
  // Runs |body| in each of |size| processes. The |victims| must be killed in it.
  static void run(int size, const std::set<int>& victims,
                  const std::function<void(Launched&)>& body) {
    const auto& [transport, has_secret] = GetParam();
    const std::string settings = "TRANSPORTS=" + transport +
                                 ";INTERFACE=lo;TIMEOUT=10s;BOOTSTRAP_TIMEOUT=60s;LOG=error;" +
                                 (has_secret ? "SECRET=of this job;" : "");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
    Board board;
    fflush(nullptr);
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; ++rank) {
      children.push_back(fork());
      ASSERT_GE(children.back(), 0);
      if (children.back() != 0) continue;
      alarm(60);
      {
        Launched me(board, rank, size, settings);
        if (!::testing::Test::HasFailure()) body(me);
      }
      fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    for (int rank = 0; rank < size; ++rank) {
      int status = 0;
      ASSERT_EQ(waitpid(children[static_cast<size_t>(rank)], &status, 0),
                children[static_cast<size_t>(rank)]);
      if (victims.contains(rank)) {
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << rank << ": " << status;
      } else {
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << rank << ": " << status;
      }
    }
  }
};

TEST_P(Rebuild, ExcludesADeadRank) {
  for (const int victim : {1, 2, 3}) {
    run(4, {victim}, [victim](Launched& me) {
      std::vector<int> left = {0, 1, 2, 3};
      me.expect_ranks(left);
      me.board().meet(0, 4);
      if (me.rank() == victim) die();
      std::erase(left, victim);
      me.rebuild(shrinking());
      me.expect_ranks(left);
    });
  }
}

TEST_P(Rebuild, ExcludesRanksThatDieOneAfterAnother) {
  run(4, {1, 2, 3}, [](Launched& me) {
    std::vector<int> left = {0, 1, 2, 3};
    int round = 0;
    for (const int victim : {2, 3, 1}) {
      me.board().meet(round++, static_cast<int>(left.size()));
      if (me.rank() == victim) die();
      std::erase(left, victim);
      me.rebuild(shrinking());
      me.expect_ranks(left);
    }
  });
}

TEST_P(Rebuild, ExcludesRanksThatDieTogether) {
  run(5, {1, 4}, [](Launched& me) {
    me.board().meet(0, 5);
    if (me.rank() == 1 || me.rank() == 4) die();
    me.rebuild(shrinking());
    me.expect_ranks({0, 2, 3});
  });
}

TEST_P(Rebuild, SucceedsIfARankDiesWhileOthersWait) {
  run(4, {3}, [](Launched& me) {
    me.board().meet(0, 4);
    // The other ranks have aborted the communicator by now, and wait.
    if (me.rank() == 3) {
      usleep(500'000);
      die();
    }
    me.rebuild(shrinking());
    me.expect_ranks({0, 1, 2});
  });
}

TEST_P(Rebuild, KeepsAllRanksIfNoneDied) {
  run(3, {}, [](Launched& me) {
    me.rebuild(shrinking());
    me.expect_ranks({0, 1, 2});
    uint32_t epoch = 0;
    EXPECT_EQ(hetcomm_communicator_epoch(me.communicator(), &epoch), HETCOMM_OK);
    EXPECT_EQ(epoch, 1u);
  });
}

// Returns the new number of each old rank; -1: lost.
std::vector<int32_t> ranks_now(Launched& me) {
  int32_t rank = 0;
  int32_t size = 0;
  EXPECT_EQ(hetcomm_communicator_rank(me.communicator(), &rank, &size), HETCOMM_OK);
  std::vector<int32_t> old(static_cast<size_t>(size));
  const int32_t own = me.rank();
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_allgather(me.communicator(), hetcomm_buffer_host(&own, sizeof(own)),
                              hetcomm_buffer_host(old.data(), old.size() * sizeof(own)),
                              HETCOMM_INT32, nullptr, &request),
            HETCOMM_OK);
  EXPECT_EQ(finish(request).status, HETCOMM_OK);
  std::vector<int32_t> now(static_cast<size_t>(me.size()), -1);
  for (int32_t i = 0; i < size; ++i) now[static_cast<size_t>(old[static_cast<size_t>(i)])] = i;
  return now;
}

// Rank 3 needs [8], of which ranks 0 and 1 hold halves and rank 2 holds everything.
hetcomm_reshard_t* make_plan(hetcomm_communicator_t* communicator, bool has_copy) {
  const uint64_t shape[] = {8};
  hetcomm_part_t held[3] = {};
  for (int32_t i = 0; i < 3; ++i) {
    held[i].rank = i;
    held[i].begin[0] = i == 1 ? 4 : 0;
    held[i].end[0] = i == 0 ? 4 : 8;
    held[i].copy = i == 2;
  }
  hetcomm_part_t wanted{};
  wanted.rank = 3;
  wanted.end[0] = 8;
  hetcomm_layout_t* layouts[2] = {};
  EXPECT_EQ(hetcomm_layout_from_parts(1, shape, held, has_copy ? 3 : 2, nullptr, &layouts[0]),
            HETCOMM_OK);
  EXPECT_EQ(hetcomm_layout_from_parts(1, shape, &wanted, 1, nullptr, &layouts[1]), HETCOMM_OK);
  const hetcomm_reshard_tensor_t tensor{layouts[0], layouts[1], HETCOMM_INT32, HETCOMM_INT32};
  hetcomm_reshard_t* plan = nullptr;
  EXPECT_EQ(hetcomm_reshard_create(communicator, &tensor, 1, nullptr, &plan), HETCOMM_OK)
      << hetcomm_last_error();
  for (hetcomm_layout_t* layout : layouts) EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  return plan;
}

// Element i of the tensor is i.
Outcome execute(Launched& me, hetcomm_reshard_t* plan) {
  std::vector<int32_t> from(8);
  std::iota(from.begin(), from.end(), me.rank() == 1 ? 4 : 0);
  std::vector<int32_t> to(8, -1);
  const hetcomm_buffer_t source = hetcomm_buffer_host(from.data(), from.size() * 4);
  const hetcomm_buffer_t destination = hetcomm_buffer_host(to.data(), to.size() * 4);
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_reshard_start(plan, &source, &destination, nullptr, &request), HETCOMM_OK)
      << hetcomm_last_error();
  Outcome outcome = finish(request);
  if (outcome.status == HETCOMM_OK && me.rank() == 3) {
    EXPECT_EQ(to, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  return outcome;
}

TEST_P(Rebuild, RebuildsPlansIfACopyOfTheLostDataSurvives) {
  for (const int victim : {1, 2}) {
    run(4, {victim}, [victim](Launched& me) {
      hetcomm_reshard_t* plan = make_plan(me.communicator(), true);
      hetcomm_reshard_t* without_copy = make_plan(me.communicator(), false);
      EXPECT_EQ(execute(me, plan).status, HETCOMM_OK);
      me.board().meet(0, 4);
      if (me.rank() == victim) die();
      hetcomm_communicator_t* fresh = nullptr;
      ASSERT_EQ(me.try_rebuild(shrinking(), me.communicator(), &fresh), HETCOMM_OK)
          << hetcomm_last_error();
      hetcomm_communicator_t* const old = me.replace(fresh);
      const std::vector<int32_t> now = ranks_now(me);
      hetcomm_reshard_t* again = nullptr;
      ASSERT_EQ(hetcomm_reshard_rebuild(plan, fresh, now.data(), now.size(), &again), HETCOMM_OK)
          << hetcomm_last_error();
      for (int i = 0; i < 3; ++i) {
        const Outcome outcome = execute(me, again);
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      }
      hetcomm_reshard_t* refused = nullptr;
      const hetcomm_status_t status =
          hetcomm_reshard_rebuild(without_copy, fresh, now.data(), now.size(), &refused);
      if (victim == 1) {
        EXPECT_EQ(status, HETCOMM_PEER_LOST);
        EXPECT_STREQ(hetcomm_last_error(),
                     "source: rank 1 was lost with [4:8], which no other holds");
      } else {
        EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
      }
      for (hetcomm_reshard_t* each : {plan, without_copy, again, refused}) {
        EXPECT_EQ(hetcomm_reshard_destroy(each), HETCOMM_OK) << hetcomm_last_error();
      }
      EXPECT_EQ(hetcomm_communicator_destroy(old), HETCOMM_OK) << hetcomm_last_error();
    });
  }
}

TEST_P(Rebuild, WorksOnASplitCommunicator) {
  run(4, {2}, [](Launched& me) {
    hetcomm_communicator_t* half = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), me.rank() % 2, -me.rank(), &half),
              HETCOMM_OK)
        << hetcomm_last_error();
    me.board().meet(0, 4);
    if (me.rank() == 2) die();
    hetcomm_communicator_options_t options = shrinking();
    options.name = "again";
    options.epoch = 6;
    hetcomm_communicator_t* fresh = nullptr;
    ASSERT_EQ(me.try_rebuild(options, half, &fresh), HETCOMM_OK) << hetcomm_last_error();
    int32_t rank = -1;
    int32_t size = -1;
    EXPECT_EQ(hetcomm_communicator_rank(fresh, &rank, &size), HETCOMM_OK);
    EXPECT_EQ(rank, me.rank() == 3 ? 2 : me.rank());
    EXPECT_EQ(size, 3);
    ring(fresh, 5);
    EXPECT_EQ(hetcomm_communicator_barrier(fresh, kPatienceNs), HETCOMM_OK) << hetcomm_last_error();
    // The bootstrap's ranks now differ from those of the old communicator.
    hetcomm_communicator_t* none = nullptr;
    EXPECT_EQ(me.try_rebuild(options, half, &none), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(hetcomm_communicator_destroy(fresh), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_communicator_destroy(half), HETCOMM_OK) << hetcomm_last_error();
  });
}

TEST_P(Rebuild, NamesTheLiveRankThatDoesNotRebuild) {
  run(4, {2}, [](Launched& me) {
    me.board().meet(0, 4);
    if (me.rank() == 2) die();
    hetcomm_communicator_options_t options = shrinking();
    options.timeout_ns = 1500 * kMs;
    if (me.rank() == 3) me.board().meet(1, 3);
    const uint64_t start = clock_ns();
    hetcomm_communicator_t* fresh = nullptr;
    EXPECT_EQ(me.try_rebuild(options, me.communicator(), &fresh), HETCOMM_BOOTSTRAP_FAILED);
    EXPECT_NE(std::string(hetcomm_last_error()).find("rank 3 of 4"), std::string::npos)
        << hetcomm_last_error();
    EXPECT_LT(clock_ns() - start, kSoonNs);
    if (me.rank() != 3) me.board().meet(1, 3);
    me.rebuild(shrinking());
    me.expect_ranks({0, 1, 3});
  });
}

TEST_P(Rebuild, ReportsADeadStoreAtOnceAndWorksWithANewOne) {
  run(4, {0, 2}, [](Launched& me) {
    me.board().meet(0, 4);
    if (me.rank() == 0) die();
    for (const uint32_t shrink : {1u, 1u, 0u, 0u}) {
      const uint64_t start = clock_ns();
      hetcomm_communicator_t* fresh = nullptr;
      EXPECT_EQ(me.try_rebuild(shrinking(shrink), me.communicator(), &fresh),
                HETCOMM_BOOTSTRAP_FAILED);
      const std::string text = hetcomm_last_error();
      EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
      EXPECT_NE(text.find("a new bootstrap"), std::string::npos) << text;
      EXPECT_LT(clock_ns() - start, kSoonNs) << text;
    }
    me.board().meet(1, 3);
    Launched::set_place(me.rank() - 1, 3);
    me.make_bootstrap();
    me.rebuild(shrinking(0));
    me.expect_ranks({1, 2, 3});
    // Rebuilding works again with the new store.
    me.board().meet(2, 3);
    if (me.rank() == 2) die();
    me.rebuild(shrinking());
    me.expect_ranks({1, 3});
  });
}

INSTANTIATE_TEST_SUITE_P(Launched, Rebuild,
                         ::testing::Values(std::pair("shm", false), std::pair("tcp", true)),
                         [](const auto& instance) {
                           return std::string("over_") + instance.param.first;
                         });

}  // namespace
}  // namespace hetcomm_test
