// A forked child: every call on the parent's handles returns FORKED. The child's end, by _exit or
// by exit, does not affect the parent's connections, memory or peers.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/hetcomm.h>

#include "tests/support/local_bootstrap.h"

#if defined(HETCOMM_ASAN)
// In a child that calls exit(), memory referenced only by another thread of the parent appears
// leaked.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

namespace hetcomm_test {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{20};

struct Case {
  const char* transport;
  bool by_exit;
  int32_t progress;
};

// Two ranks, both on this thread, so that a child lacks no state from another thread.
class Fork : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::vector<std::thread> threads;
    for (int32_t index = 0; index < 2; ++index) {
      threads.emplace_back([this, index] {
        ranks_[index] = std::make_unique<Rank>(store_, index, 2, "DEVICES=sim-address:memory=1M",
                                               GetParam().transport, GetParam().progress);
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(ranks_[0]->ok() && ranks_[1]->ok());
  }
  void TearDown() override {
    // Both sides have to leave concurrently.
    std::thread other([this] { ranks_[1].reset(); });
    ranks_[0].reset();
    other.join();
  }

  hetcomm_communicator_t* communicator(size_t index) { return ranks_[index]->communicator(); }

  // Sends a message of |size| bytes from rank 0 to rank 1 and one back.
  void exchange(size_t size) {
    for (int32_t from = 0; from < 2; ++from) {
      std::string sent(size, static_cast<char>('a' + from));
      std::string received(size, '\0');
      hetcomm_request_t* requests[2] = {};
      ASSERT_EQ(
          hetcomm_recv(communicator(static_cast<size_t>(1 - from)), from, 3, HETCOMM_EXACT_TAG,
                       hetcomm_buffer_host(received.data(), size), nullptr, &requests[0]),
          HETCOMM_OK)
          << hetcomm_last_error();
      ASSERT_EQ(hetcomm_send(communicator(static_cast<size_t>(from)), 1 - from, 3,
                             hetcomm_buffer_host(sent.data(), size), nullptr, &requests[1]),
                HETCOMM_OK)
          << hetcomm_last_error();
      finish(requests[0], requests[1]);
      EXPECT_EQ(received, sent);
    }
  }

  // Drives both requests until both have ended.
  static void finish(hetcomm_request_t* first, hetcomm_request_t* second) {
    const auto deadline = steady_clock::now() + kPatience;
    hetcomm_request_t* requests[2] = {first, second};
    while ((requests[0] != nullptr || requests[1] != nullptr) && steady_clock::now() < deadline) {
      for (hetcomm_request_t*& request : requests) {
        if (request == nullptr) continue;
        hetcomm_completion_t completion{};
        const hetcomm_status_t status = hetcomm_request_test(request, &completion);
        if (status == HETCOMM_PENDING) continue;
        ASSERT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
        ASSERT_EQ(completion.status, HETCOMM_OK) << completion.text;
        request = nullptr;
      }
    }
    ASSERT_TRUE(requests[0] == nullptr && requests[1] == nullptr) << "not finished";
  }

  // Runs |body| in a child, which exits with its result, and expects 0.
  void in_child(const std::function<int()>& body) {
    std::fflush(nullptr);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);  // a hanging child ends by a signal
      const int result = body();
      if (GetParam().by_exit) std::exit(result);
      _exit(result);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "see the line above";
  }

  LocalStore store_;
  std::unique_ptr<Rank> ranks_[2];
};

// Returns 0 if |status| is FORKED. Otherwise prints the call, because GoogleTest cannot report from
// a child.
int check(const char* call, hetcomm_status_t status) {
  if (status == HETCOMM_FORKED && *hetcomm_last_error() != '\0') return 0;
  const std::string line = std::string(call) + " in the child: " + hetcomm_status_name(status) +
                           ": " + hetcomm_last_error() + "\n";
  return write(STDERR_FILENO, line.data(), line.size()) < 0 ? 2 : 1;
}

#define HETCOMM_TEST_CHECK_FORKED(call) failed |= check(#call, call)

TEST_P(Fork, CallsInAChildAreRefusedAndItsExitIsHarmless) {
  exchange(100);
  exchange(1 << 20);
  hetcomm_communicator_t* const mine = communicator(0);
  hetcomm_context_t* const context = ranks_[0]->context();
  hetcomm_bootstrap_t* const bootstrap = ranks_[0]->bootstrap();
  hetcomm_memory_t* memory = nullptr;
  ASSERT_EQ(hetcomm_memory_allocate(context, 1, 64, &memory), HETCOMM_OK);
  // The message is in flight while the child runs and ends.
  char inbox[32] = {};
  hetcomm_request_t* request = nullptr;
  ASSERT_EQ(hetcomm_recv(mine, 1, 9, HETCOMM_EXACT_TAG, hetcomm_buffer_host(inbox, sizeof(inbox)),
                         nullptr, &request),
            HETCOMM_OK);

  in_child([&] {
    int failed = 0;
    char bytes[8] = {};
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes, sizeof(bytes));
    hetcomm_request_t* new_request = nullptr;
    hetcomm_memory_t* new_memory = nullptr;
    hetcomm_communicator_t* new_communicator = nullptr;
    hetcomm_group_t* group = nullptr;
    hetcomm_completion_t completion{};
    int32_t count = 0;
    HETCOMM_TEST_CHECK_FORKED(hetcomm_send(mine, 1, 1, buffer, nullptr, &new_request));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_recv(mine, 1, 1, 0, buffer, nullptr, &new_request));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_sendv(mine, 1, 1, &buffer, 1, nullptr, &new_request));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_recvv(mine, 1, 1, 0, &buffer, 1, nullptr, &new_request));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_send_prepare(mine, 1, 1, &buffer, 1, nullptr, &new_request));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_probe(mine, 1, 1, 0, HETCOMM_TIMEOUT_POLL, &completion));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_group_create(mine, &group));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_request_test(request, &completion));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_request_wait(request, HETCOMM_TIMEOUT_INFINITE, &completion));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_request_cancel(request));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_request_destroy(request));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_communicator_barrier(mine, HETCOMM_TIMEOUT_INFINITE));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_communicator_split(mine, 0, 0, &new_communicator));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_communicator_abort(mine, "by the child"));
    HETCOMM_TEST_CHECK_FORKED(
        hetcomm_communicator_create(context, bootstrap, nullptr, &new_communicator));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_communicator_destroy(mine));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_device_count(context, &count));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_memory_allocate(context, 1, 8, &new_memory));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_memory_write(memory, 0, bytes, sizeof(bytes)));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_memory_destroy(memory));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_context_progress(context));
    HETCOMM_TEST_CHECK_FORKED(hetcomm_context_destroy(context));
    hetcomm_bootstrap_destroy(bootstrap);  // does nothing here
    return failed;
  });

  EXPECT_EQ(hetcomm_request_test(request, nullptr), HETCOMM_PENDING) << hetcomm_last_error();
  for (int32_t index = 0; index < 2; ++index) {
    EXPECT_EQ(hetcomm_communicator_peer_status(communicator(static_cast<size_t>(index)), 1 - index),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  exchange(100);
  exchange(1 << 20);
  hetcomm_request_t* sent = nullptr;
  ASSERT_EQ(hetcomm_send(communicator(1), 0, 9, hetcomm_buffer_host("after the fork", 15), nullptr,
                         &sent),
            HETCOMM_OK);
  finish(request, sent);
  EXPECT_STREQ(inbox, "after the fork");
  EXPECT_EQ(hetcomm_memory_write(memory, 0, inbox, sizeof(inbox)), HETCOMM_OK);
  EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
}

// Several children never call the library and are killed, like a data loader's workers.
TEST_P(Fork, KilledChildrenDoNotAffectTheParent) {
  exchange(100);
  for (int round = 0; round < 5; ++round) {
    in_child([] { return 0; });
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      pause();
      _exit(1);
    }
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    exchange(100);
  }
  exchange(1 << 20);
}

// The child holds copies of the parent's descriptors; the parent still leaves cleanly.
TEST_P(Fork, ParentLeavesCleanlyWhileAChildIsAlive) {
  exchange(100);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pause();
    _exit(1);
  }
  const auto start = steady_clock::now();
  TearDown();
  // Destroy did not need the five seconds for which it may wait for the peer's acknowledgement.
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(3));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

std::string case_name(const testing::TestParamInfo<Case>& tested) {
  return std::string(tested.param.transport) + (tested.param.by_exit ? "_exit" : "__exit") +
         (tested.param.progress == HETCOMM_PROGRESS_THREAD ? "_thread" : "_caller");
}

INSTANTIATE_TEST_SUITE_P(Cases, Fork,
                         testing::Values(Case{"shm", false, HETCOMM_PROGRESS_CALLER},
                                         Case{"shm", true, HETCOMM_PROGRESS_THREAD},
                                         Case{"tcp", false, HETCOMM_PROGRESS_THREAD},
                                         Case{"tcp", true, HETCOMM_PROGRESS_CALLER}),
                         case_name);

}  // namespace
}  // namespace hetcomm_test
