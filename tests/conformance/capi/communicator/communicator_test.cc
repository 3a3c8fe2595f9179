// Communicators:
//
//   * no rank leaves a barrier before all have entered; its time limit holds, and when it ends on
//     one rank it ends on all;
//   * a split that one rank cannot make, or that other ranks do not call, ends on all ranks;
//   * split makes disjoint communicators in the order of the keys, takes NO_COLOR, can be nested,
//     and keeps traffic apart;
//   * communicators can be split and destroyed any number of times without using up memory or
//     mixing traffic: neither messages for a destroyed one nor threads that split at once
//     interfere;
//   * news about a communicator reaches ranks that have not created it yet;
//   * several communicators of one context, and several of one name in successive epochs, do not
//     mix;
//   * abort, from any thread, ends every operation on every rank with ABORTED and the reason; later
//     calls fail at once;
//   * rebuild gives a communicator with a higher epoch, possibly with fewer ranks, that no old
//     traffic reaches;
//   * a rank that cannot create a communicator tells the other ranks why, and they do not wait for
//     it;
//   * two jobs with one secret do not mix, even if a rank finds a rank of the other job at the
//     address of its own peer;
//   * a communicator that its ranks leave as soon as they have it is created on all of them;
//   * destroy is BUSY while operations are pending or children exist, for communicators and
//     contexts;
//   * counters count user messages and bytes;
//   * the library's threads never run the application's signal handlers.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

class Communicators : public CapiTest {};

hetcomm_context_t* context_of(const hetcomm_communicator_t* communicator) {
  hetcomm_context_t* context = nullptr;
  EXPECT_EQ(hetcomm_communicator_context(communicator, &context), HETCOMM_OK);
  return context;
}

hetcomm_communicator_options_t named(const Member& me, const char* name, uint32_t epoch = 0) {
  hetcomm_communicator_options_t options{};
  options.struct_size = sizeof(options);
  options.name = name;
  options.epoch = epoch;
  options.transports =
      me.test_case().transports.empty() ? nullptr : me.test_case().transports.c_str();
  options.timeout_ns = kPatienceNs;
  return options;
}

// Returns the rest of the line that begins with |key|.
std::string read_line(const std::filesystem::path& file, const std::string& key) {
  std::ifstream lines(file);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.compare(0, key.size(), key) == 0) return line.substr(key.size());
  }
  return {};
}

TEST_P(Communicators, LibraryThreadsBlockSignals) {
  run_two([](Member& me) {
    ASSERT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
    size_t threads = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      const std::string name = read_line(task.path() / "comm", "");
      if (name.compare(0, 7, "hetcomm") != 0) continue;
      ++threads;
      const uint64_t blocked =
          std::stoull(read_line(task.path() / "status", "SigBlk:"), nullptr, 16);
      for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD}) {
        EXPECT_TRUE((blocked >> (signal - 1) & 1u) != 0) << name << " takes signal " << signal;
      }
    }
    if (!me.test_case().alone()) {
      EXPECT_GT(threads, 0U);
    }
    // A rank's threads end when the rank does.
    ASSERT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
  });
}

TEST_P(Communicators, BarrierWaitsForAllRanks) {
  const int32_t ranks = GetParam().alone() ? 1 : 4;
  run(ranks, [](Member& me) {
    std::atomic<uint64_t>& entered = me.store().word(0);
    for (uint64_t round = 1; round <= 100; ++round) {
      if (round % 20 == static_cast<uint64_t>(me.rank())) usleep(2000);
      entered.fetch_add(1);
      ASSERT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK)
          << hetcomm_last_error();
      EXPECT_GE(entered.load(), round * static_cast<uint64_t>(me.size()));
    }
    me.meet();
  });
}

TEST_P(Communicators, BarrierTimesOutWithoutBreakingTheCommunicator) {
  HETCOMM_NEEDS_RANKS();
  run(2, [](Member& me) {
    if (me.rank() == 0) {
      const uint64_t start = clock_ns();
      EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), 50 * kMs), HETCOMM_TIMED_OUT);
      EXPECT_GE(clock_ns() - start, 49 * kMs);
      EXPECT_LT(clock_ns() - start, 10 * kSec);
    }
    me.meet();
    // Point-to-point messages still work.
    ring(me.communicator(), 5);
    me.meet();
  });
}

// Rank 1 cannot create its transports. Rank 2 arrives late, and the other ranks wait only for it.
TEST_P(Communicators, FailedRankReportsItsReasonToTheOthers) {
  HETCOMM_NEEDS_RANKS();
  for (const int32_t odd : {0, 1}) {
    run(3, [odd](Member& me) {
      hetcomm_communicator_options_t options = named(me, "odd");
      if (me.rank() == odd) options.transports = "nothing";
      hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("odd", me.rank(), 3);
      if (me.rank() == 2) usleep(300'000);
      const uint64_t start = clock_ns();
      hetcomm_communicator_t* made = nullptr;
      EXPECT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &made),
                me.rank() == odd ? HETCOMM_UNSUPPORTED : HETCOMM_BOOTSTRAP_FAILED);
      EXPECT_LT(clock_ns() - start, 10 * kSec);
      const std::string text = hetcomm_last_error();
      EXPECT_NE(text.find("there is no transport 'nothing'"), std::string::npos) << text;
      if (me.rank() != odd) {
        EXPECT_NE(text.find("rank " + std::to_string(odd)), std::string::npos) << text;
      }
      hetcomm_bootstrap_destroy(bootstrap);
      // All ranks have met under this name, and can meet under another name.
      bootstrap = me.make_bootstrap("even", me.rank(), 3);
      options = named(me, "even");
      ASSERT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &made), HETCOMM_OK)
          << hetcomm_last_error();
      ring(made, 4);
      EXPECT_EQ(hetcomm_communicator_barrier(made, kPatienceNs), HETCOMM_OK);
      EXPECT_EQ(hetcomm_communicator_destroy(made), HETCOMM_OK) << hetcomm_last_error();
      hetcomm_bootstrap_destroy(bootstrap);
      me.meet();
    });
  }
}

TEST_P(Communicators, SplitGroupsByColorInKeyOrder) {
  HETCOMM_NEEDS_RANKS();
  run(5, [](Member& me) {
    // One color has ranks 0, 2, 4 in reverse order; the other has 1 and 3 by old rank.
    const int32_t color = me.rank() % 2;
    const int32_t key = color == 0 ? -me.rank() : 7;
    hetcomm_communicator_t* part = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), color, key, &part), HETCOMM_OK)
        << hetcomm_last_error();
    int32_t rank = -1;
    int32_t size = 0;
    ASSERT_EQ(hetcomm_communicator_rank(part, &rank, &size), HETCOMM_OK);
    EXPECT_EQ(size, color == 0 ? 3 : 2);
    EXPECT_EQ(rank, color == 0 ? 2 - me.rank() / 2 : me.rank() / 2);
    ring(part, static_cast<uint64_t>(color) + 50);
    EXPECT_EQ(hetcomm_communicator_barrier(part, kPatienceNs), HETCOMM_OK);
    // The same tag is used in both communicators at once.
    ring(me.communicator(), 99);
    EXPECT_EQ(hetcomm_communicator_destroy(me.communicator()), HETCOMM_BUSY) << "a child exists";
    EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
    me.meet();
  });
}

TEST_P(Communicators, SplitAcceptsNoColorAndCanBeNested) {
  HETCOMM_NEEDS_RANKS();
  run(4, [](Member& me) {
    hetcomm_communicator_t* part = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), me.rank() == 3 ? HETCOMM_NO_COLOR : 1,
                                         0, &part),
              HETCOMM_OK)
        << hetcomm_last_error();
    EXPECT_EQ(part == nullptr, me.rank() == 3);
    if (part != nullptr) {
      ring(part, 7);
      hetcomm_communicator_t* inner = nullptr;
      EXPECT_EQ(hetcomm_communicator_split(part, me.rank() == 0 ? 0 : 1, -me.rank(), &inner),
                HETCOMM_OK)
          << hetcomm_last_error();
      int32_t rank = -1;
      int32_t size = 0;
      EXPECT_EQ(hetcomm_communicator_rank(inner, &rank, &size), HETCOMM_OK);
      EXPECT_EQ(size, me.rank() == 0 ? 1 : 2);
      EXPECT_EQ(rank, me.rank() == 0 ? 0 : 2 - me.rank());
      ring(inner, 8);
      EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_BUSY);
      EXPECT_EQ(hetcomm_communicator_destroy(inner), HETCOMM_OK) << hetcomm_last_error();
      EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
    }
    ring(me.communicator(), 9);
    me.meet();
  });
}

// The number of splits exceeds 16 bits.
TEST_P(Communicators, SplitCountCanExceedSixteenBits) {
  const bool shm = GetParam().transports == "shm" && GetParam().processes;
  if (!GetParam().alone() && !shm) GTEST_SKIP() << "numbers are the same over all transports";
  run_two([](Member& me) {
    constexpr int kTimes = kSanitized ? 2000 : 70'000;
    uint64_t before = 0;
    for (int i = 0; i < kTimes; ++i) {
      hetcomm_communicator_t* part = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, 0, &part), HETCOMM_OK)
          << i << ": " << hetcomm_last_error();
      ASSERT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
      if (i == 1000) before = resident_bytes();
    }
    // Debug builds keep 40 bytes of each handle.
    if (!kSanitized) {
      EXPECT_LT(resident_bytes() - before, kTimes * uint64_t{150});
    }
    me.meet();
  });
}

// Each round leaves an unreceived message with the same tag as that of the next round.
TEST_P(Communicators, LeftoverMessagesDoNotMatchInLaterCommunicators) {
  run_two([](Member& me) {
    for (uint64_t round = 0; round < 200; ++round) {
      hetcomm_communicator_t* part = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, 0, &part), HETCOMM_OK)
          << hetcomm_last_error();
      uint64_t out[2] = {round, round + 1'000'000};
      for (uint64_t& value : out) {
        hetcomm_request_t* send = nullptr;
        ASSERT_EQ(
            hetcomm_send(part, me.partner(), 1, hetcomm_buffer_host(&value, 8), nullptr, &send),
            HETCOMM_OK);
        EXPECT_EQ(finish(send).status, HETCOMM_OK);
      }
      uint64_t in = 0;
      hetcomm_request_t* receive = nullptr;
      ASSERT_EQ(hetcomm_recv(part, HETCOMM_ANY_SOURCE, 1, 0, hetcomm_buffer_host(&in, 8), nullptr,
                             &receive),
                HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_OK);
      EXPECT_EQ(in, round);
      ASSERT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
    }
    me.meet();
  });
}

TEST_P(Communicators, ThreadsCanSplitDifferentCommunicatorsConcurrently) {
  run_two([](Member& me) {
    hetcomm_communicator_t* parents[2] = {};
    for (hetcomm_communicator_t*& parent : parents) {
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, 0, &parent), HETCOMM_OK);
    }
    const auto split = [&](uint64_t which) {
      for (uint64_t round = 0; round < 100; ++round) {
        hetcomm_communicator_t* part = nullptr;
        ASSERT_EQ(hetcomm_communicator_split(parents[which], 0, 0, &part), HETCOMM_OK)
            << hetcomm_last_error();
        ring(part, which * 1000 + round);
        ASSERT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
      }
    };
    std::thread other(split, 1);
    split(0);
    other.join();
    me.meet();
    for (hetcomm_communicator_t* parent : parents) {
      EXPECT_EQ(hetcomm_communicator_destroy(parent), HETCOMM_OK) << hetcomm_last_error();
    }
    me.meet();
  });
}

// Rank 0 has the new communicator first, because it tells the parent's other ranks about the split.
TEST_P(Communicators, AbortReachesARankStillInsideTheSplit) {
  HETCOMM_NEEDS_RANKS();
  run(3, [](Member& me) {
    for (int round = 0; round < 20; ++round) {
      hetcomm_communicator_t* part = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, 0, &part), HETCOMM_OK)
          << hetcomm_last_error();
      if (me.rank() == 0) {
        EXPECT_EQ(hetcomm_communicator_abort(part, "at once"), HETCOMM_OK);
      }
      uint64_t value = 0;
      hetcomm_request_t* receive = nullptr;
      ASSERT_EQ(hetcomm_recv(part, HETCOMM_ANY_SOURCE, 1, 0, hetcomm_buffer_host(&value, 8),
                             nullptr, &receive),
                HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_ABORTED);
      me.meet();
      ASSERT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
    }
    me.meet();
  });
}

TEST_P(Communicators, BarrierTimeoutOnOneRankEndsItOnAllRanks) {
  HETCOMM_NEEDS_RANKS();
  run(4, [](Member& me) {
    if (me.rank() > 0) {
      // Rank 0 does not call. Rank 3 has a shorter time limit than the other ranks.
      const bool brief = me.rank() == 3;
      const uint64_t start = clock_ns();
      EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), brief ? 50 * kMs : kPatienceNs),
                brief ? HETCOMM_TIMED_OUT : HETCOMM_ABORTED)
          << hetcomm_last_error();
      EXPECT_LT(clock_ns() - start, 5 * kSec);
    }
    me.meet();
    ring(me.communicator(), 5);
    me.meet();
  });
}

TEST_P(Communicators, InvalidArgumentOnOneRankFailsTheSplitOnAllRanks) {
  run_two([](Member& me) {
    const bool bad = me.rank() == 0;
    hetcomm_communicator_t* part = nullptr;
    const uint64_t start = clock_ns();
    const hetcomm_status_t wanted = bad ? HETCOMM_INVALID_ARGUMENT : HETCOMM_ABORTED;
    const auto expect_reason = [&] {
      if (bad) return;
      const std::string text = hetcomm_last_error();
      EXPECT_NE(text.find("rank 0: INVALID_ARGUMENT"), std::string::npos) << text;
    };
    EXPECT_EQ(hetcomm_communicator_split(me.communicator(), bad ? -5 : 1, 0, &part), wanted);
    expect_reason();
    EXPECT_EQ(hetcomm_communicator_split(me.communicator(), 1, 0, bad ? nullptr : &part), wanted);
    expect_reason();
    EXPECT_EQ(part, nullptr);
    EXPECT_LT(clock_ns() - start, 5 * kSec);
    // The communicator still works.
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 1, 0, &part), HETCOMM_OK)
        << hetcomm_last_error();
    ring(part, 8);
    EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
    me.meet();
  });
}

TEST_P(Communicators, SplitDoesNotMatchAnotherCollectiveCall) {
  HETCOMM_NEEDS_RANKS();
  for (const bool barrier : {true, false}) {
    run(3, [barrier](Member& me) {
      hetcomm_status_t status = HETCOMM_OK;
      const uint64_t start = clock_ns();
      if (me.rank() == 1) {
        hetcomm_communicator_t* part = nullptr;
        status = hetcomm_communicator_split(me.communicator(), 0, 0, &part);
        EXPECT_EQ(part, nullptr);
      } else if (barrier) {
        status = hetcomm_communicator_barrier(me.communicator(), kPatienceNs);
      } else {
        // A split exchanges as many bytes per rank as this gather.
        std::byte send[16] = {};
        std::byte receive[3 * sizeof(send)] = {};
        hetcomm_request_t* request = nullptr;
        ASSERT_EQ(hetcomm_allgather(me.communicator(), hetcomm_buffer_host(send, sizeof(send)),
                                    hetcomm_buffer_host(receive, sizeof(receive)), HETCOMM_UINT8,
                                    nullptr, &request),
                  HETCOMM_OK)
            << hetcomm_last_error();
        status = finish(request).status;
      }
      EXPECT_EQ(status, HETCOMM_MISMATCH) << hetcomm_last_error();
      EXPECT_LT(clock_ns() - start, 5 * kSec);
      me.meet();
    });
  }
}

TEST_P(Communicators, SeveralCommunicatorsDoNotMixTraffic) {
  run_two([](Member& me) {
    hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("more", me.rank(), me.size());
    std::vector<hetcomm_communicator_t*> communicators;
    for (const auto& [name, epoch] : {std::pair{"a", 0u}, std::pair{"b", 0u}, std::pair{"a", 5u}}) {
      const hetcomm_communicator_options_t options = named(me, name, epoch);
      hetcomm_communicator_t* communicator = nullptr;
      ASSERT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &communicator),
                HETCOMM_OK)
          << hetcomm_last_error();
      uint32_t got = 99;
      EXPECT_EQ(hetcomm_communicator_epoch(communicator, &got), HETCOMM_OK);
      EXPECT_EQ(got, epoch);
      EXPECT_EQ(context_of(communicator), me.context());
      communicators.push_back(communicator);
    }
    hetcomm_bootstrap_destroy(bootstrap);
    // All messages have the same tag. They are received in a different order than sent.
    std::vector<hetcomm_request_t*> sends;
    uint64_t values[3] = {10, 11, 12};
    for (size_t i = 0; i < 3; ++i) {
      hetcomm_request_t* send = nullptr;
      EXPECT_EQ(hetcomm_send(communicators[i], me.partner(), 1, hetcomm_buffer_host(&values[i], 8),
                             nullptr, &send),
                HETCOMM_OK);
      sends.push_back(send);
    }
    for (const size_t i : {size_t{2}, size_t{0}, size_t{1}}) {
      uint64_t got = 0;
      hetcomm_request_t* receive = nullptr;
      EXPECT_EQ(hetcomm_recv(communicators[i], me.partner(), 1, 0, hetcomm_buffer_host(&got, 8),
                             nullptr, &receive),
                HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_OK);
      EXPECT_EQ(got, values[i]);
    }
    finish_all(sends);
    me.meet();
    for (hetcomm_communicator_t* each : communicators) {
      EXPECT_EQ(hetcomm_communicator_destroy(each), HETCOMM_OK) << hetcomm_last_error();
    }
    me.meet();
  });
}

TEST_P(Communicators, DestroyReturnsBusyWhileOperationsArePending) {
  run_two([](Member& me) {
    uint64_t value = 0;
    hetcomm_request_t* receive = me.recv(me.partner(), 1, &value, 8);
    EXPECT_EQ(hetcomm_communicator_destroy(me.communicator()), HETCOMM_BUSY);
    EXPECT_EQ(hetcomm_context_destroy(me.context()), HETCOMM_BUSY);
    EXPECT_EQ(hetcomm_request_cancel(receive), HETCOMM_OK);
    EXPECT_EQ(finish(receive).status, HETCOMM_CANCELLED);
    me.meet();
  });
}

TEST_P(Communicators, AbortEndsPendingOperationsOnEveryRank) {
  const int32_t ranks = GetParam().alone() ? 1 : 3;
  run(ranks, [](Member& me) {
    uint64_t value = 0;
    const std::vector<std::byte> large(3'000'000);
    std::vector<std::byte> room(1000);
    std::vector<hetcomm_request_t*> requests = {
        me.recv(HETCOMM_ANY_SOURCE, 1, &value, 8),
        me.recv((me.rank() + 1) % me.size(), 2, room.data(), room.size()),
        me.send((me.rank() + 1) % me.size(), 3, large.data(), large.size()),
    };
    me.meet();
    EXPECT_EQ(hetcomm_communicator_status(me.communicator()), HETCOMM_OK) << hetcomm_last_error();
    std::thread aborter;
    if (me.rank() == 0) {
      aborter = std::thread([&] {
        usleep(20'000);
        EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "the test says so"), HETCOMM_OK);
      });
    }
    for (hetcomm_request_t* request : requests) {
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << "rank " << me.rank() << ": " << outcome.text;
      EXPECT_NE(outcome.text.find("the test says so"), std::string::npos) << outcome.text;
    }
    if (aborter.joinable()) aborter.join();
    EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "again"), HETCOMM_OK);
    EXPECT_EQ(hetcomm_communicator_status(me.communicator()), HETCOMM_ABORTED);
    EXPECT_STREQ(hetcomm_last_error(), "rank 0 aborted: the test says so");
    expect_rejected(me.communicator(), me.partner() % me.size(), HETCOMM_ABORTED);
    EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kSec), HETCOMM_ABORTED);
    me.meet();
  });
}

TEST_P(Communicators, AbortEndsABlockingProbe) {
  run_two([](Member& me) {
    std::thread aborter;
    if (me.rank() == 0) {
      aborter = std::thread([&] {
        usleep(20'000);
        EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "nothing will come"), HETCOMM_OK);
      });
    }
    const uint64_t start = clock_ns();
    hetcomm_completion_t seen{};
    for (const int32_t source : {HETCOMM_ANY_SOURCE, me.partner()}) {
      EXPECT_EQ(hetcomm_probe(me.communicator(), source, 1, HETCOMM_EXACT_TAG, kPatienceNs, &seen),
                HETCOMM_ABORTED);
    }
    EXPECT_LT(clock_ns() - start, 5 * kSec);
    if (aborter.joinable()) aborter.join();
    me.meet();
  });
}

TEST_P(Communicators, CommunicatorIsBusyWhileAGroupExists) {
  run_two([](Member& me) {
    hetcomm_communicator_t* own = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, 0, &own), HETCOMM_OK);
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(own, &group), HETCOMM_OK);
    hetcomm_operation_options_t options = with_timeout(0);
    options.group = group;
    uint64_t word = 0;
    hetcomm_request_t* request = nullptr;
    ASSERT_EQ(hetcomm_recv(own, me.partner(), 1, HETCOMM_EXACT_TAG, hetcomm_buffer_host(&word, 8),
                           &options, &request),
              HETCOMM_OK);
    EXPECT_EQ(hetcomm_communicator_destroy(own), HETCOMM_BUSY);
    hetcomm_group_destroy(group);
    EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
    me.meet();
    EXPECT_EQ(hetcomm_communicator_destroy(own), HETCOMM_OK) << hetcomm_last_error();
    me.meet();
  });
}

// Six ranks: some are not neighbours in the control graph, and authenticate each other when they
// first communicate. A rank that computes during that time, for longer than the detection time, is
// not lost.
TEST_P(Communicators, FirstMessageReachesARankBusyComputing) {
  HETCOMM_NEEDS_RANKS();
  if (GetParam().thread_progress) GTEST_SKIP() << "a thread of its own answers";
  CapiCase impatient = GetParam();
  impatient.settings += "DETECTION_TIME=1s;";
  run_job(impatient, 6, [](Member& me) {
    uint64_t word = 7;
    uint64_t got = 0;
    if (me.rank() == 3) {
      usleep(2'500'000);
      EXPECT_EQ(finish(me.recv(0, 1, &got, 8)).status, HETCOMM_OK);
      EXPECT_EQ(got, 7u);
    } else if (me.rank() == 0) {
      EXPECT_EQ(finish(me.send(3, 1, &word, 8)).status, HETCOMM_OK);
    }
    me.meet();
    EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK)
        << hetcomm_last_error();
    me.meet();
  });
}

// Each rank numbers its communicators independently, so many have equal numbers.
TEST_P(Communicators, AbortDoesNotAffectUnrelatedRanks) {
  HETCOMM_NEEDS_RANKS();
  run(4, [](Member& me) {
    const bool aborts = me.rank() < 2;
    hetcomm_communicator_t* half = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), aborts ? 0 : 1, 0, &half), HETCOMM_OK);
    hetcomm_communicator_t* early = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(half, 0, 0, &early), HETCOMM_OK);
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_communicator_abort(early, "only mine"), HETCOMM_OK);
    }
    if (aborts) {
      EXPECT_EQ(hetcomm_communicator_barrier(early, kPatienceNs), HETCOMM_ABORTED);
    }
    me.meet();
    if (!aborts) {
      EXPECT_EQ(hetcomm_communicator_barrier(early, kPatienceNs), HETCOMM_OK)
          << hetcomm_last_error();
    }
    // Ranks 2 and 3 create a communicator whose number equals that of one whose abort has already
    // reached all its ranks.
    hetcomm_communicator_t* late = nullptr;
    if (aborts) {
      ASSERT_EQ(hetcomm_communicator_split(half, 0, 0, &late), HETCOMM_OK);
      if (me.rank() == 1) {
        EXPECT_EQ(hetcomm_communicator_abort(late, "again"), HETCOMM_OK);
      }
      EXPECT_EQ(hetcomm_communicator_barrier(late, kPatienceNs), HETCOMM_ABORTED);
    }
    me.meet();
    if (!aborts) {
      ASSERT_EQ(hetcomm_communicator_split(half, 0, 0, &late), HETCOMM_OK);
      EXPECT_EQ(hetcomm_communicator_barrier(late, kPatienceNs), HETCOMM_OK)
          << hetcomm_last_error();
    }
    EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
    for (hetcomm_communicator_t* made : {late, early, half}) {
      EXPECT_EQ(hetcomm_communicator_destroy(made), HETCOMM_OK) << hetcomm_last_error();
    }
    me.meet();
  });
}

TEST_P(Communicators, AbortEndsABarrier) {
  HETCOMM_NEEDS_RANKS();
  run(3, [](Member& me) {
    if (me.rank() == 2) {
      usleep(20'000);
      EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "no barrier today"), HETCOMM_OK);
    } else {
      const uint64_t start = clock_ns();
      EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_ABORTED);
      EXPECT_LT(clock_ns() - start, 5 * kSec);
    }
    me.meet();
  });
}

TEST_P(Communicators, AbortEndsOperationsSubmittedConcurrently) {
  run_two([](Member& me) {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::byte> out(20'000);
        std::vector<std::byte> in(20'000);
        while (!stop.load()) {
          hetcomm_request_t* receive = nullptr;
          hetcomm_request_t* send = nullptr;
          const hetcomm_status_t received =
              hetcomm_recv(me.communicator(), me.partner(), t, 0,
                           hetcomm_buffer_host(in.data(), in.size()), nullptr, &receive);
          const hetcomm_status_t sent =
              hetcomm_send(me.communicator(), me.partner(), t,
                           hetcomm_buffer_host(out.data(), out.size()), nullptr, &send);
          for (const auto& [status, request] :
               {std::pair{received, receive}, std::pair{sent, send}}) {
            if (status != HETCOMM_OK) {
              EXPECT_EQ(status, HETCOMM_ABORTED);
              stop = true;
            } else {
              const Outcome outcome = finish(request);
              EXPECT_TRUE(outcome.status == HETCOMM_OK || outcome.status == HETCOMM_ABORTED)
                  << outcome.text;
              if (outcome.status == HETCOMM_ABORTED) stop = true;
            }
          }
        }
      });
    }
    usleep(30'000);
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "now"), HETCOMM_OK);
    }
    for (std::thread& thread : threads) thread.join();
    me.meet();
  });
}

TEST_P(Communicators, RebuildWithFewerRanksStartsANewEpoch) {
  HETCOMM_NEEDS_RANKS();
  run(3, [](Member& me) {
    uint64_t value = 0;
    hetcomm_request_t* old = me.recv(HETCOMM_ANY_SOURCE, 3, &value, 8);
    // No rank receives this message of the old epoch.
    const uint64_t stray = 666;
    hetcomm_request_t* send = me.send((me.rank() + 1) % 3, 3, &stray, 8);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    EXPECT_EQ(finish(old).status, HETCOMM_OK);
    hetcomm_request_t* second = me.send((me.rank() + 1) % 3, 3, &stray, 8);
    EXPECT_EQ(finish(second).status, HETCOMM_OK);
    me.meet();
    if (me.rank() == 2) return;  // the rank leaves
    hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("rebuilt", me.rank(), 2);
    const hetcomm_communicator_options_t options = named(me, nullptr);
    hetcomm_communicator_t* fresh = nullptr;
    ASSERT_EQ(hetcomm_communicator_rebuild(me.communicator(), bootstrap, &options, &fresh),
              HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_bootstrap_destroy(bootstrap);
    uint32_t epoch = 0;
    EXPECT_EQ(hetcomm_communicator_epoch(fresh, &epoch), HETCOMM_OK);
    EXPECT_EQ(epoch, 1u);
    EXPECT_EQ(context_of(fresh), me.context());
    int32_t rank = -1;
    int32_t size = 0;
    EXPECT_EQ(hetcomm_communicator_rank(fresh, &rank, &size), HETCOMM_OK);
    EXPECT_EQ(size, 2);
    EXPECT_EQ(rank, me.rank());
    ring(fresh, 4);
    EXPECT_EQ(hetcomm_communicator_barrier(fresh, kPatienceNs), HETCOMM_OK);
    expect_rejected(me.communicator(), me.partner(), HETCOMM_ABORTED);
    EXPECT_EQ(hetcomm_communicator_destroy(fresh), HETCOMM_OK) << hetcomm_last_error();
  });
}

TEST_P(Communicators, CountersCountUserMessagesAndBytes) {
  HETCOMM_NEEDS_RANKS();
  run(2, [](Member& me) {
    constexpr uint64_t kSmall = 20;
    constexpr uint64_t kLarge = 5;
    const std::vector<std::byte> out(2'000'000);
    std::vector<std::byte> in(2'000'000);
    for (uint64_t i = 0; i < kSmall + kLarge; ++i) {
      const uint64_t size = i < kSmall ? 10 : out.size();
      hetcomm_request_t* receive = me.recv(me.partner(), 1, in.data(), in.size());
      hetcomm_request_t* send = me.send(me.partner(), 1, out.data(), size);
      EXPECT_EQ(finish(receive).status, HETCOMM_OK);
      EXPECT_EQ(finish(send).status, HETCOMM_OK);
    }
    me.meet();
    size_t count = 0;
    EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), me.partner(), 0, nullptr, &count),
              HETCOMM_OK);
    ASSERT_GE(count, 1u);
    std::vector<hetcomm_counters_t> counters(count, {.struct_size = sizeof(hetcomm_counters_t)});
    EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), me.partner(), count, counters.data(),
                                            &count),
              HETCOMM_OK);
    hetcomm_counters_t sum{};
    for (const hetcomm_counters_t& each : counters) {
      EXPECT_STRNE(each.transport, "");
      sum.messages_sent += each.messages_sent;
      sum.messages_received += each.messages_received;
      sum.bytes_sent += each.bytes_sent;
      sum.bytes_received += each.bytes_received;
      sum.eager_sent += each.eager_sent;
      sum.rendezvous_sent += each.rendezvous_sent;
      sum.failures += each.failures;
    }
    const uint64_t bytes = kSmall * 10 + kLarge * out.size();
    EXPECT_EQ(sum.messages_sent, kSmall + kLarge);
    EXPECT_EQ(sum.messages_received, kSmall + kLarge);
    EXPECT_EQ(sum.bytes_sent, bytes);
    EXPECT_EQ(sum.bytes_received, bytes);
    EXPECT_EQ(sum.eager_sent + sum.rendezvous_sent, kSmall + kLarge);
    EXPECT_GE(sum.rendezvous_sent, kLarge);
    EXPECT_EQ(sum.failures, 0u);
    char text[4096];
    size_t needed = 0;
    EXPECT_EQ(
        hetcomm_communicator_explain(me.communicator(), me.partner(), sizeof(text), text, &needed),
        HETCOMM_OK);
    EXPECT_GT(needed, 1u);
    EXPECT_LE(needed, sizeof(text));
    EXPECT_EQ(std::char_traits<char>::length(text) + 1, needed);
    me.meet();
  });
}

TEST_P(Communicators, SameNameCanBeReusedInSuccessiveEpochs) {
  run_two([](Member& me) {
    hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("more", me.rank(), me.size());
    for (uint32_t epoch = 1; epoch <= 10; ++epoch) {
      const hetcomm_communicator_options_t options = named(me, "again", epoch);
      hetcomm_communicator_t* communicator = nullptr;
      ASSERT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &communicator),
                HETCOMM_OK)
          << hetcomm_last_error();
      ring(communicator, epoch);
      EXPECT_EQ(hetcomm_communicator_destroy(communicator), HETCOMM_OK) << hetcomm_last_error();
    }
    hetcomm_bootstrap_destroy(bootstrap);
    me.meet();
  });
}

// A rank may leave before its peers have noticed that all ranks are present.
TEST_P(Communicators, CreationSucceedsEvenIfAPeerLeavesImmediately) {
  run_two([](Member& me) {
    hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("more", me.rank(), me.size());
    for (uint32_t epoch = 1; epoch <= 50; ++epoch) {
      hetcomm_communicator_options_t options = named(me, "short", epoch);
      options.timeout_ns = 5 * kSec;
      hetcomm_communicator_t* communicator = nullptr;
      ASSERT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &communicator),
                HETCOMM_OK)
          << hetcomm_last_error();
      EXPECT_EQ(hetcomm_communicator_destroy(communicator), HETCOMM_OK) << hetcomm_last_error();
    }
    hetcomm_bootstrap_destroy(bootstrap);
    me.meet();
  });
}

TEST_P(Communicators, CreationFailureNamesTheMissingRank) {
  HETCOMM_NEEDS_RANKS();
  run(2, [](Member& me) {
    if (me.rank() == 0) {
      hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("missing", 0, 2);
      hetcomm_communicator_options_t options = named(me, "alone");
      options.timeout_ns = 200 * kMs;
      hetcomm_communicator_t* communicator = nullptr;
      const uint64_t start = clock_ns();
      EXPECT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &communicator),
                HETCOMM_BOOTSTRAP_FAILED);
      EXPECT_LT(clock_ns() - start, 5 * kSec);
      EXPECT_NE(std::string(hetcomm_last_error()).find('1'), std::string::npos)
          << hetcomm_last_error();
      EXPECT_EQ(communicator, nullptr);
      hetcomm_bootstrap_destroy(bootstrap);
    }
    me.meet();
  });
}

// A job's store, except that the address of rank 1 now belongs to rank 1 of another job.
struct OutdatedView {
  SharedStore& store;
  std::string own;
  std::string others;

  static hetcomm_status_t put(void* view, const char* key, const void* value, size_t size) {
    auto& self = *static_cast<OutdatedView*>(view);
    return self.store.put((self.own + key).c_str(), value, size);
  }
  static hetcomm_status_t get(void* view, const char* key, void* value, size_t* inout_size,
                              uint64_t timeout_ns) {
    auto& self = *static_cast<OutdatedView*>(view);
    const bool of_rank_1 = std::string(key).ends_with("/1");
    const std::string full = (of_rank_1 ? self.others : self.own) + key;
    return self.store.get(full.c_str(), value, inout_size, timeout_ns);
  }
};

TEST_P(Communicators, JobsThatShareASecretStaySeparate) {
  HETCOMM_NEEDS_RANKS();
  CapiCase one_secret = GetParam();
  one_secret.settings += "SECRET=that of the whole cluster;";
  run_job(one_secret, 3, [](Member& me) {
    hetcomm_communicator_options_t options = named(me, "world");
    hetcomm_communicator_t* communicator = nullptr;
    if (me.rank() < 2) {
      hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("B", me.rank(), 2);
      ASSERT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &communicator),
                HETCOMM_OK)
          << hetcomm_last_error();
      hetcomm_bootstrap_destroy(bootstrap);
    }
    me.meet();
    if (me.rank() == 2) {
      OutdatedView view{me.store(), "A:", "B:"};
      hetcomm_bootstrap_options_t from{};
      from.struct_size = sizeof(from);
      from.rank = 0;
      from.size = 2;
      from.put = OutdatedView::put;
      from.get = OutdatedView::get;
      from.user_data = &view;
      hetcomm_bootstrap_t* bootstrap = nullptr;
      ASSERT_EQ(hetcomm_bootstrap_create_from_callbacks(me.context(), &from, &bootstrap),
                HETCOMM_OK);
      options.timeout_ns = 2 * kSec;
      // With a secret, the other job's proof is for another exchange. Without one, its mesh
      // differs.
      const hetcomm_status_t status =
          hetcomm_communicator_create(me.context(), bootstrap, &options, &communicator);
      EXPECT_TRUE(status == HETCOMM_PERMISSION_DENIED || status == HETCOMM_BOOTSTRAP_FAILED)
          << hetcomm_status_name(status);
      EXPECT_EQ(communicator, nullptr);
      hetcomm_bootstrap_destroy(bootstrap);
    }
    me.meet();
    if (me.rank() == 2) return;
    ring(communicator, 6);
    EXPECT_EQ(hetcomm_communicator_destroy(communicator), HETCOMM_OK) << hetcomm_last_error();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Communicators, ::testing::ValuesIn(plain_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
