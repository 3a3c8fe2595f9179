// Loss of peers, which are processes:
//
//   * a rank that is killed, at any point, ends every operation that names it with PEER_LOST and a
//     text, in bounded time;
//   * operations among the other ranks are not affected; an any-source receive continues while a
//     live sender is left, or fails immediately with FAIL_ON_ANY_LOSS;
//   * messages that had arrived before the loss are still received whole;
//   * a rank that leaves cleanly delivers all messages that it had sent, and is then reported as
//     gone;
//   * a rank that only stalls is not lost;
//   * the survivors rebuild and continue; barrier, split and wait do not hang on any rank, neither
//     when a rank has died nor when a rank can make no connection;
//   * a forked child may not use its parent's handles, and its exit has no effect on the job.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

class PeerLoss : public CapiTest {};

TEST_P(PeerLoss, KilledRankFailsPendingOperationsThatNameIt) {
  run(3, [](Member& me) {
    uint64_t value = 0;
    uint64_t never = 0;
    const std::vector<std::byte> large(4'000'000);
    std::vector<std::byte> room(4'000'000);
    if (me.rank() == 2) {
      // All ranks are connected, and an operation is in progress.
      hetcomm_request_t* send = me.send(0, 9, &value, 8);
      EXPECT_EQ(finish(send).status, HETCOMM_OK);
      (void)me.send(0, 2, large.data(), large.size());
      me.meet();
      (void)me.until([] { return false; }, 5 * kMs);
      me.die();
    }
    if (me.rank() == 0) {
      EXPECT_EQ(finish(me.recv(2, 9, &value, 8)).status, HETCOMM_OK);
    }
    std::vector<hetcomm_request_t*> doomed = {
        me.recv(2, 1, &never, 8),
        me.recv(2, 7, room.data(), room.size()),
        me.send(2, 3, large.data(), large.size()),
    };
    hetcomm_request_t* anybody = me.recv(HETCOMM_ANY_SOURCE, 5, &value, 8);
    hetcomm_operation_options_t strict = with_timeout(0);
    strict.flags = HETCOMM_OPERATION_FAIL_ON_ANY_LOSS;
    uint64_t unused = 0;
    doomed.push_back(me.recv(HETCOMM_ANY_SOURCE, 6, &unused, 8, HETCOMM_EXACT_TAG, &strict));
    me.meet();
    const uint64_t start = clock_ns();
    for (size_t i = 0; i < doomed.size(); ++i) {
      const Outcome outcome = finish(doomed[i]);
      EXPECT_EQ(outcome.status, HETCOMM_PEER_LOST)
          << "rank " << me.rank() << ", operation " << i << ": " << outcome.text;
    }
    EXPECT_LT(clock_ns() - start, 10 * kSec);
    // A strict receive posted after the loss fails like the one posted before it.
    EXPECT_EQ(finish(me.recv(HETCOMM_ANY_SOURCE, 8, &unused, 8, HETCOMM_EXACT_TAG, &strict)).status,
              HETCOMM_PEER_LOST);
    EXPECT_EQ(hetcomm_communicator_peer_status(me.communicator(), 2), HETCOMM_PEER_LOST);
    EXPECT_STRNE(hetcomm_last_error(), "");
    EXPECT_EQ(hetcomm_communicator_peer_status(me.communicator(), me.partner()), HETCOMM_OK);
    expect_rejected(me.communicator(), 2, HETCOMM_PEER_LOST);
    // The living ranks still communicate.
    const uint64_t word = 42;
    hetcomm_request_t* send = me.send(me.partner(), 5, &word, 8);
    const Outcome outcome = finish(anybody);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    EXPECT_EQ(outcome.source, me.partner());
    EXPECT_EQ(value, 42u);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    // The dead rank does not join any later meeting.
    me.store().word(9).fetch_add(1);
    EXPECT_TRUE(me.until([&] { return me.store().word(9).load() == 2; }));
  });
}

// A data loader forked from a trainer outlives it for a while, with all its descriptors.
TEST_P(PeerLoss, DeathIsDetectedDespiteASurvivingForkedChild) {
  run(2, [](Member& me) {
    uint64_t word = 1;
    uint64_t got = 0;
    if (me.rank() == 1) {
      EXPECT_EQ(finish(me.recv(0, 1, &got, 8)).status, HETCOMM_OK);
      me.meet();
      if (fork() == 0) {
        usleep(6'000'000);
        _exit(0);
      }
      me.die();
    }
    EXPECT_EQ(finish(me.send(1, 1, &word, 8)).status, HETCOMM_OK);
    me.meet();
    const uint64_t start = clock_ns();
    const Outcome outcome = finish(me.recv(1, 2, &got, 8));
    EXPECT_EQ(outcome.status, HETCOMM_PEER_LOST) << outcome.text;
    EXPECT_LT(clock_ns() - start, 3 * kSec);
  });
}

TEST_P(PeerLoss, DeathDuringHeavyTrafficFailsPendingOperations) {
  Random random(17);
  for (int round = 0; round < 6; ++round) {
    const uint64_t life = random.below(30 * kMs);
    run(2, [&](Member& me) {
      me.meet();
      const uint64_t start = clock_ns();
      std::vector<std::byte> in(700'000);
      bool lost = false;
      for (uint64_t i = 0; !lost; ++i) {
        const uint64_t size = i * 7919 % 700'000;
        const std::vector<std::byte> out = pattern(size, i);
        hetcomm_request_t* receive = nullptr;
        hetcomm_request_t* send = nullptr;
        const hetcomm_status_t received =
            hetcomm_recv(me.communicator(), me.partner(), 1, 0,
                         hetcomm_buffer_host(in.data(), in.size()), nullptr, &receive);
        const hetcomm_status_t sent =
            hetcomm_send(me.communicator(), me.partner(), 1, hetcomm_buffer_host(out.data(), size),
                         nullptr, &send);
        if (me.rank() == 1 && clock_ns() - start > life) me.die();
        lost = received != HETCOMM_OK || sent != HETCOMM_OK;
        EXPECT_TRUE(received == HETCOMM_OK || received == HETCOMM_PEER_LOST) << received;
        EXPECT_TRUE(sent == HETCOMM_OK || sent == HETCOMM_PEER_LOST) << sent;
        if (receive != nullptr) {
          const Outcome outcome = finish(receive);
          if (outcome.status == HETCOMM_OK) {
            EXPECT_EQ(outcome.bytes_received, size);
            EXPECT_EQ(find_mismatch(hetcomm::ConstByteSpan(in).first(size), i), std::nullopt);
          } else {
            EXPECT_EQ(outcome.status, HETCOMM_PEER_LOST) << outcome.text;
            lost = true;
          }
        }
        if (send != nullptr) {
          const Outcome outcome = finish(send);
          EXPECT_TRUE(outcome.status == HETCOMM_OK || outcome.status == HETCOMM_PEER_LOST)
              << outcome.text;
        }
      }
      EXPECT_LT(clock_ns() - start, 15 * kSec);
    });
  }
}

TEST_P(PeerLoss, CleanLeaveDeliversSentMessagesFirst) {
  run(2, [](Member& me) {
    constexpr uint64_t kCount = 50;
    std::vector<std::byte> memory(3000);
    if (me.rank() == 1) {
      std::vector<hetcomm_request_t*> sends;
      for (uint64_t i = 0; i < kCount; ++i) {
        sends.push_back(me.send(0, i, memory.data(), i * 7));
      }
      finish_all(sends);
      return;  // destroys the communicator, which sends goodbyes
    }
    for (uint64_t i = 0; i < kCount; ++i) {
      const Outcome outcome = finish(me.recv(1, i, memory.data(), memory.size()));
      EXPECT_EQ(outcome.status, HETCOMM_OK) << "message " << i << ": " << outcome.text;
      EXPECT_EQ(outcome.bytes_received, i * 7);
    }
    EXPECT_TRUE(me.until([&] {
      return hetcomm_communicator_peer_status(me.communicator(), 1) == HETCOMM_PEER_LOST;
    }));
    expect_rejected(me.communicator(), 1, HETCOMM_PEER_LOST);
  });
}

TEST_P(PeerLoss, BrieflyStoppedRankIsNotLost) {
  run(2, [](Member& me) {
    uint64_t value = 0;
    if (me.rank() == 1) {
      me.store().word(1).store(static_cast<uint64_t>(getpid()));
      me.meet();
      EXPECT_EQ(finish(me.recv(0, 1, &value, 8)).status, HETCOMM_OK);
      me.meet();
      return;
    }
    me.meet();
    const auto peer = static_cast<pid_t>(me.store().word(1).load());
    kill(peer, SIGSTOP);
    hetcomm_request_t* send = me.send(1, 1, &value, 8);
    (void)me.until([] { return false; }, 400 * kMs);
    EXPECT_EQ(hetcomm_communicator_peer_status(me.communicator(), 1), HETCOMM_OK);
    kill(peer, SIGCONT);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    me.meet();
  });
}

TEST_P(PeerLoss, DeathEndsABarrier) {
  run(3, [](Member& me) {
    ASSERT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
    me.meet();
    if (me.rank() == 1) me.die();
    const uint64_t start = clock_ns();
    EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_PEER_LOST)
        << hetcomm_last_error();
    EXPECT_LT(clock_ns() - start, 10 * kSec);
  });
}

// Most ranks wait for a rank that is itself waiting. The reason must reach all of them.
TEST_P(PeerLoss, DeathEndsABarrierOrSplitOnAllRanks) {
  for (const bool splits : {false, true}) {
    run(8, [splits](Member& me) {
      ASSERT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
      std::atomic<uint64_t>& entered = me.store().word(3);
      if (me.rank() == 4) {
        EXPECT_TRUE(me.until([&] { return entered.load() == 7; }));
        (void)me.until([] { return false; }, 20 * kMs);
        me.die();
      }
      entered.fetch_add(1);
      const uint64_t start = clock_ns();
      hetcomm_communicator_t* part = nullptr;
      const hetcomm_status_t status =
          splits ? hetcomm_communicator_split(me.communicator(), 0, 0, &part)
                 : hetcomm_communicator_barrier(me.communicator(), kPatienceNs);
      EXPECT_EQ(status, HETCOMM_PEER_LOST) << hetcomm_last_error();
      EXPECT_EQ(part, nullptr);
      EXPECT_LT(clock_ns() - start, 5 * kSec);
      // No rank leaves before all have learned of the death.
      std::atomic<uint64_t>& told = me.store().word(4);
      told.fetch_add(1);
      EXPECT_TRUE(me.until([&] { return told.load() == 7; }));
    });
  }
}

// The rank lacks descriptors and so cannot connect for longer than the detection time. No rank is
// lost because of that, and none waits forever.
TEST_P(PeerLoss, RankOutOfFileDescriptorsDoesNotHangASplit) {
  CapiCase impatient = GetParam();
  impatient.settings += "DETECTION_TIME=2s;";
  run_job(impatient, 4, [](Member& me) {
    me.meet();
    rlimit before{};
    if (me.rank() == 1) {
      getrlimit(RLIMIT_NOFILE, &before);
      rlimit none = before;
      const int next = dup(0);
      none.rlim_cur = static_cast<rlim_t>(next);
      close(next);
      setrlimit(RLIMIT_NOFILE, &none);
    }
    const uint64_t start = clock_ns();
    hetcomm_communicator_t* part = nullptr;
    const hetcomm_status_t status = hetcomm_communicator_split(me.communicator(), 0, 0, &part);
    // A rank that the others had reached before may have received messages from all ranks.
    if (status == HETCOMM_OK) {
      EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK);
    }
    EXPECT_NE(status, HETCOMM_TIMED_OUT) << hetcomm_last_error();
    EXPECT_LT(clock_ns() - start, 5 * kSec);
    if (me.rank() == 1) setrlimit(RLIMIT_NOFILE, &before);
    for (int32_t rank = 0; rank < me.size(); ++rank) {
      EXPECT_NE(hetcomm_communicator_peer_status(me.communicator(), rank), HETCOMM_PEER_LOST)
          << hetcomm_last_error();
    }
    me.expect_ruin();
    me.store().word(4).fetch_add(1);
    EXPECT_TRUE(me.until([&] { return me.store().word(4).load() == 4; }));
  });
}

TEST_P(PeerLoss, SurvivorsRebuildAndContinue) {
  run(3, [](Member& me) {
    ASSERT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
    me.meet();  // the barrier has ended on all ranks
    if (me.rank() == 0) me.die();
    // Repeats until the loss is known, or the other survivor has begun to rebuild.
    uint64_t value = 0;
    hetcomm_request_t* request = nullptr;
    hetcomm_status_t loss =
        hetcomm_recv(me.communicator(), 0, 1, 0, hetcomm_buffer_host(&value, 8), nullptr, &request);
    if (loss == HETCOMM_OK) loss = finish(request).status;
    EXPECT_TRUE(loss == HETCOMM_PEER_LOST || loss == HETCOMM_ABORTED) << loss;
    hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("survivors", me.rank() - 1, 2);
    hetcomm_communicator_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = kPatienceNs;
    const std::string& transports = me.test_case().transports;
    options.transports = transports.empty() ? nullptr : transports.c_str();
    hetcomm_communicator_t* fresh = nullptr;
    ASSERT_EQ(hetcomm_communicator_rebuild(me.communicator(), bootstrap, &options, &fresh),
              HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_bootstrap_destroy(bootstrap);
    const uint64_t out = 7 + static_cast<uint64_t>(me.rank());
    const int32_t other = 2 - me.rank();
    hetcomm_request_t* send = nullptr;
    hetcomm_request_t* receive = nullptr;
    EXPECT_EQ(hetcomm_send(fresh, other, 1, hetcomm_buffer_host(&out, 8), nullptr, &send),
              HETCOMM_OK);
    EXPECT_EQ(hetcomm_recv(fresh, other, 1, 0, hetcomm_buffer_host(&value, 8), nullptr, &receive),
              HETCOMM_OK);
    EXPECT_EQ(finish(receive).status, HETCOMM_OK);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    EXPECT_EQ(value, 7 + static_cast<uint64_t>(other + 1));
    EXPECT_EQ(hetcomm_communicator_barrier(fresh, kPatienceNs), HETCOMM_OK);
    EXPECT_EQ(hetcomm_communicator_destroy(fresh), HETCOMM_OK) << hetcomm_last_error();
  });
}

TEST_P(PeerLoss, ForkedChildHasNoEffectOnTheJob) {
  run(2, [](Member& me) {
    uint64_t value = 0;
    hetcomm_request_t* receive = me.recv(me.partner(), 1, &value, 8);
    me.meet();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      hetcomm_request_t* request = nullptr;
      const bool refused =
          hetcomm_send(me.communicator(), me.partner(), 1, hetcomm_buffer_host(&value, 8), nullptr,
                       &request) == HETCOMM_FORKED &&
          hetcomm_request_test(receive, nullptr) == HETCOMM_FORKED &&
          hetcomm_context_progress(me.context()) == HETCOMM_FORKED &&
          hetcomm_communicator_abort(me.communicator(), "child") == HETCOMM_FORKED;
      (void)hetcomm_communicator_destroy(me.communicator());
      (void)hetcomm_context_destroy(me.context());
      _exit(refused ? 0 : 1);
    }
    int status = 0;
    EXPECT_TRUE(me.until([&] { return waitpid(child, &status, WNOHANG) == child; }));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    me.meet();
    const uint64_t word = 3;
    hetcomm_request_t* send = me.send(me.partner(), 1, &word, 8);
    EXPECT_EQ(finish(receive).status, HETCOMM_OK);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    EXPECT_EQ(value, 3u);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, PeerLoss, ::testing::ValuesIn(process_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
