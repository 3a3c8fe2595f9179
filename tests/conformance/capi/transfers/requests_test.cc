// Requests:
//
//   * every accepted operation ends exactly once; the call that reports the end releases the
//     request, and later use is STALE_HANDLE;
//   * test never waits; wait has its own limit, which does not affect the operation; wait_any skips
//     null entries and reports each request once;
//   * a cancelled send or receive, at any stage, ends with CANCELLED or with its normal outcome;
//     its memory is quiet from then on, and later messages are received as if it had not existed; a
//     receive that missed its message leaves it to the next receive;
//   * a deadline ends an operation with TIMED_OUT, neither early nor much late;
//   * priority changes no contents and no order; groups start together and may be refilled; the
//     operations of a dropped group end with CANCELLED;
//   * prepared operations run many times, and the memories that they name stay until their release;
//   * an operation in a group that is never started ends at its deadline;
//   * a running operation that is released continues and delivers;
//   * thousands may be outstanding, from many threads on one communicator.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <thread>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

class Requests : public CapiTest {};

TEST_P(Requests, TestReportsPendingThenDoneThenStale) {
  run_two([](Member& me) {
    uint64_t value = 0;
    hetcomm_request_t* receive = me.recv(me.partner(), 1, &value, 8);
    hetcomm_completion_t completion{};
    EXPECT_EQ(hetcomm_request_test(receive, &completion), HETCOMM_PENDING);
    EXPECT_EQ(hetcomm_request_wait(receive, 3 * kMs, &completion), HETCOMM_TIMED_OUT);
    EXPECT_EQ(hetcomm_request_wait(receive, HETCOMM_TIMEOUT_POLL, nullptr), HETCOMM_TIMED_OUT);
    me.meet();
    const uint64_t sent = 5;
    hetcomm_request_t* send = me.send(me.partner(), 1, &sent, 8);
    hetcomm_status_t status = HETCOMM_PENDING;
    EXPECT_TRUE(me.until(
        [&] { return (status = hetcomm_request_test(receive, &completion)) != HETCOMM_PENDING; }));
    EXPECT_EQ(status, HETCOMM_OK);
    EXPECT_EQ(completion.status, HETCOMM_OK);
    EXPECT_EQ(completion.bytes_received, 8u);
    EXPECT_EQ(value, 5u);
    EXPECT_EQ(hetcomm_request_test(receive, &completion), HETCOMM_STALE_HANDLE);
    EXPECT_EQ(hetcomm_request_wait(receive, kSec, nullptr), HETCOMM_STALE_HANDLE);
    EXPECT_EQ(hetcomm_request_cancel(receive), HETCOMM_STALE_HANDLE);
    EXPECT_EQ(hetcomm_request_destroy(receive), HETCOMM_STALE_HANDLE);
    EXPECT_EQ(hetcomm_request_start(receive), HETCOMM_STALE_HANDLE);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    EXPECT_EQ(hetcomm_request_destroy(nullptr), HETCOMM_OK);
    EXPECT_LT(hetcomm_request_test(nullptr, nullptr), 0);
    me.meet();
  });
}

TEST_P(Requests, StaleHandlesStayStaleWhenSlotsAreReused) {
  run_two([](Member& me) {
    std::vector<hetcomm_request_t*> old;
    uint64_t value = 0;
    for (int i = 0; i < 300; ++i) {
      hetcomm_request_t* receive = me.recv(me.partner(), 1, &value, 8);
      EXPECT_EQ(hetcomm_request_cancel(receive), HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_CANCELLED);
      for (hetcomm_request_t* each : old) {
        ASSERT_EQ(hetcomm_request_test(each, nullptr), HETCOMM_STALE_HANDLE);
      }
      if (old.size() < 20) old.push_back(receive);
    }
    me.meet();
  });
}

TEST_P(Requests, WaitAnyReportsEachRequestOnce) {
  run_two([](Member& me) {
    constexpr size_t kCount = 50;
    std::vector<std::vector<std::byte>> memory(kCount, std::vector<std::byte>(100'000));
    std::vector<hetcomm_request_t*> receives;
    for (size_t i = 0; i < kCount; ++i) {
      receives.push_back(me.recv(me.partner(), i, memory[i].data(), memory[i].size()));
    }
    size_t index = kCount;
    hetcomm_completion_t completion{};
    EXPECT_EQ(hetcomm_request_wait_any(kCount, receives.data(), 2 * kMs, &index, &completion),
              HETCOMM_TIMED_OUT);
    EXPECT_EQ(index, kCount) << "outputs are written on success only";
    me.meet();
    std::vector<std::vector<std::byte>> out;
    std::vector<hetcomm_request_t*> sends;
    for (size_t i = 0; i < kCount; ++i) {
      const size_t tag = i * 7 % kCount;
      out.push_back(pattern(tag * 1900 % 100'000, tag));
      sends.push_back(me.send(me.partner(), tag, out.back().data(), out.back().size()));
    }
    for (size_t i = 0; i < kCount; ++i) {
      const hetcomm_status_t status =
          hetcomm_request_wait_any(kCount, receives.data(), kPatienceNs, &index, &completion);
      ASSERT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
      ASSERT_LT(index, kCount);
      ASSERT_NE(receives[index], nullptr);
      EXPECT_EQ(completion.status, HETCOMM_OK);
      EXPECT_EQ(completion.tag, index);
      EXPECT_TRUE(holds(memory[index], index, index * 1900 % 100'000));
      receives[index] = nullptr;
    }
    EXPECT_EQ(hetcomm_request_wait_any(kCount, receives.data(), kSec, &index, nullptr),
              HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(hetcomm_request_wait_any(0, nullptr, kSec, &index, nullptr),
              HETCOMM_INVALID_ARGUMENT);
    finish_all(sends);
    me.meet();
  });
}

// Waits for |count| messages with tags from |first| on, 8 bytes each, using one list whose entries
// are refilled in another order. Every message arrives once, under its own index.
void receive_by_one_list(Member& me, uint64_t first, size_t count) {
  constexpr size_t kAtOnce = 1000;
  std::vector<uint64_t> memory(kAtOnce);
  std::vector<uint64_t> tags(kAtOnce);
  std::vector<hetcomm_request_t*> list(kAtOnce, nullptr);
  size_t posted = 0;
  const auto post = [&](size_t at) {
    tags[at] = first + posted++;
    memory[at] = ~uint64_t{0};
    list[at] = me.recv(me.partner(), tags[at], &memory[at], sizeof(memory[at]));
  };
  for (size_t at = kAtOnce; at-- > 0 && posted < count;) post(at);
  for (size_t i = 0; i < count; ++i) {
    size_t index = kAtOnce;
    hetcomm_completion_t completion{};
    const hetcomm_status_t status =
        hetcomm_request_wait_any(kAtOnce, list.data(), kPatienceNs, &index, &completion);
    ASSERT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
    ASSERT_LT(index, kAtOnce);
    ASSERT_NE(list[index], nullptr);
    ASSERT_EQ(completion.tag, tags[index]);
    ASSERT_EQ(memory[index], tags[index]);
    list[index] = nullptr;
    if (posted < count) post(index);
  }
}

// Sends the same numbers, in reverse order within each thousand.
void send_numbers(Member& me, uint64_t first, size_t count) {
  std::vector<uint64_t> memory(count);
  std::vector<hetcomm_request_t*> sends;
  for (size_t begin = 0; begin < count; begin += 1000) {
    for (size_t i = std::min(count, begin + 1000); i-- > begin;) {
      memory[i] = first + i;
      sends.push_back(me.send(me.partner(), memory[i], &memory[i], sizeof(memory[i])));
    }
  }
  finish_all(sends);
}

// The second rank receives from the first. A single rank receives from itself.
void send_and_receive_numbers(Member& me, uint64_t first, size_t count) {
  const bool alone = me.partner() == me.rank();
  std::thread sender;
  if (alone) sender = std::thread([&] { send_numbers(me, first, count); });
  if (!alone && me.rank() == 0) {
    send_numbers(me, first, count);
  } else {
    receive_by_one_list(me, first, count);
  }
  if (alone) sender.join();
}

TEST_P(Requests, WaitAnyReportsThousandsOfRequests) {
  run_two([](Member& me) {
    send_and_receive_numbers(me, 0, 6000);
    me.meet();
  });
}

TEST_P(Requests, WaitAnyWorksInSeveralThreads) {
  run_two([](Member& me) {
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&me, thread] { send_and_receive_numbers(me, thread << 32, 1500); });
    }
    for (std::thread& thread : threads) thread.join();
    me.meet();
  });
}

// No other operation ends during the wait.
TEST_P(Requests, WaitAnyReturnsIfARequestIsDestroyed) {
  run_two([](Member& me) {
    std::array<uint64_t, 2> memory{};
    std::array<hetcomm_request_t*, 2> list{me.recv(me.partner(), 1, &memory[0], 8),
                                           me.recv(me.partner(), 2, &memory[1], 8)};
    const std::array<hetcomm_request_t*, 2> own = list;
    std::thread other([&] {
      usleep(20'000);
      EXPECT_EQ(hetcomm_request_destroy(own[1]), HETCOMM_OK);
    });
    size_t index = 7;
    EXPECT_EQ(hetcomm_request_wait_any(2, list.data(), kPatienceNs, &index, nullptr),
              HETCOMM_STALE_HANDLE);
    EXPECT_EQ(index, 7u);
    other.join();
    EXPECT_EQ(hetcomm_request_cancel(own[0]), HETCOMM_OK);
    EXPECT_EQ(finish(own[0]).status, HETCOMM_CANCELLED);
    me.meet();
    // The released receive takes its message.
    uint64_t word = 3;
    EXPECT_EQ(finish(me.send(me.partner(), 2, &word, 8)).status, HETCOMM_OK);
    EXPECT_TRUE(me.until([&] {
      hetcomm_completion_t none{};
      EXPECT_EQ(hetcomm_probe(me.communicator(), me.partner(), 99, 0, kMs, &none),
                HETCOMM_TIMED_OUT);
      return *static_cast<volatile uint64_t*>(&memory[1]) == 3;
    }));
    me.meet();
  });
}

// Several threads wait for the same requests. Each request is reported once, and the other threads
// see that it is gone.
TEST_P(Requests, WaitAnyInTwoThreadsReportsEachRequestOnce) {
  run_two([](Member& me) {
    constexpr size_t kCount = 400;
    std::vector<uint64_t> memory(kCount);
    std::vector<hetcomm_request_t*> receives;
    for (size_t i = 0; i < kCount; ++i) {
      receives.push_back(me.recv(me.partner(), i, &memory[i], 8));
    }
    std::vector<std::atomic<int>> reported(kCount);
    std::atomic<size_t> total{0};
    std::vector<std::thread> waiters;
    for (int thread = 0; thread < 2; ++thread) {
      waiters.emplace_back([&, thread] {
        std::vector<hetcomm_request_t*> list = receives;
        if (thread == 1) std::reverse(list.begin(), list.end());
        while (total.load() < kCount) {
          size_t index = kCount;
          hetcomm_completion_t completion{};
          const hetcomm_status_t status =
              hetcomm_request_wait_any(kCount, list.data(), 5 * kMs, &index, &completion);
          if (status == HETCOMM_OK) {
            ASSERT_EQ(completion.tag, thread == 0 ? index : kCount - 1 - index);
            ++reported[completion.tag];
            ++total;
            list[index] = nullptr;
          } else if (status == HETCOMM_STALE_HANDLE) {
            // Skips requests that the other thread has reported.
            for (hetcomm_request_t*& each : list) {
              if (each == nullptr) continue;
              const auto at = static_cast<size_t>(
                  std::find(receives.begin(), receives.end(), each) - receives.begin());
              if (reported[at].load() != 0) each = nullptr;
            }
          } else if (status == HETCOMM_INVALID_ARGUMENT) {
            break;  // none is left
          } else {
            ASSERT_EQ(status, HETCOMM_TIMED_OUT) << hetcomm_last_error();
          }
        }
      });
    }
    std::vector<uint64_t> out(kCount, 5);
    std::vector<hetcomm_request_t*> sends;
    for (size_t i = 0; i < kCount; ++i) sends.push_back(me.send(me.partner(), i, &out[i], 8));
    finish_all(sends);
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(total.load(), kCount);
    for (const std::atomic<int>& each : reported) EXPECT_EQ(each.load(), 1);
    me.meet();
  });
}

// --- cancel ----------------------------------------------------------------------------------

TEST_P(Requests, CancelledReceiveLeavesItsMessageToTheNext) {
  run_two([](Member& me) {
    for (const uint64_t size : {uint64_t{0}, uint64_t{100}, uint64_t{300'000}}) {
      std::vector<std::byte> first(size);
      std::vector<std::byte> second(size);
      hetcomm_request_t* cancelled = me.recv(me.partner(), 1, first.data(), size);
      EXPECT_EQ(hetcomm_request_cancel(cancelled), HETCOMM_OK);
      const Outcome outcome = finish(cancelled);
      EXPECT_EQ(outcome.status, HETCOMM_CANCELLED);
      EXPECT_EQ(outcome.source, -1);
      me.meet();
      const std::vector<std::byte> out = pattern(size, 9);
      hetcomm_request_t* send = me.send(me.partner(), 1, out.data(), size);
      EXPECT_EQ(finish(me.recv(me.partner(), 1, second.data(), size)).status, HETCOMM_OK);
      EXPECT_TRUE(holds(second, 9, size));
      EXPECT_EQ(first, std::vector<std::byte>(size));
      EXPECT_EQ(finish(send).status, HETCOMM_OK);
      me.meet();
    }
  });
}

// Ends |receive| if it is still waiting. The bytes that it received are pattern |seed|.
void end_receive(hetcomm_request_t* receive, const std::vector<std::byte>& memory, uint64_t seed) {
  hetcomm_completion_t completion{};
  hetcomm_status_t status = hetcomm_request_wait(receive, 5 * kMs, &completion);
  if (status == HETCOMM_TIMED_OUT) {
    EXPECT_EQ(hetcomm_request_cancel(receive), HETCOMM_OK);
    status = hetcomm_request_wait(receive, kPatienceNs, &completion);
  }
  ASSERT_EQ(status, HETCOMM_OK) << "a receive does not end";
  if (completion.status == HETCOMM_OK) {
    EXPECT_EQ(completion.bytes_received, completion.bytes_sent);
    EXPECT_EQ(find_mismatch(hetcomm::ConstByteSpan(memory).first(completion.bytes_received), seed),
              std::nullopt);
  } else {
    EXPECT_TRUE(completion.status == HETCOMM_CANCELLED || completion.status == HETCOMM_ABORTED)
        << completion.text;
  }
}

// Receives messages that have arrived from the partner with |tag|. All of them are pattern |seed|.
void take_strays(Member& me, uint64_t tag, uint64_t seed) {
  hetcomm_completion_t seen{};
  while (hetcomm_probe(me.communicator(), me.partner(), tag, 0, HETCOMM_TIMEOUT_POLL, &seen) ==
         HETCOMM_OK) {
    std::vector<std::byte> rest(seen.bytes_sent);
    // The message may be withdrawn before the receive matches it.
    const hetcomm_operation_options_t options = with_timeout(300 * kMs);
    const Outcome outcome =
        finish(me.recv(me.partner(), tag, rest.data(), rest.size(), HETCOMM_EXACT_TAG, &options));
    EXPECT_TRUE(outcome.status == HETCOMM_OK || outcome.status == HETCOMM_ABORTED ||
                outcome.status == HETCOMM_TIMED_OUT)
        << outcome.text;
    if (outcome.status == HETCOMM_OK) {
      EXPECT_TRUE(holds(rest, seed, rest.size()));
    }
  }
}

TEST_P(Requests, CancelledSendIsWithdrawnOrComplete) {
  run_two([](Member& me) {
    Random random(static_cast<uint64_t>(me.rank()) + 3);
    for (uint64_t i = 0; i < 40; ++i) {
      // No receive is posted. Small messages may have left, and large ones wait.
      const uint64_t size = i % 2 == 0 ? random.between(1, 5000) : random.between(200'000, 900'000);
      std::vector<std::byte> out = pattern(size, i);
      hetcomm_request_t* send = me.send(me.partner(), i, out.data(), size);
      for (uint64_t steps = random.below(20); steps > 0; --steps) {
        (void)hetcomm_context_progress(me.context());
      }
      EXPECT_EQ(hetcomm_request_cancel(send), HETCOMM_OK);
      const Outcome outcome = finish(send);
      EXPECT_TRUE(outcome.status == HETCOMM_CANCELLED || outcome.status == HETCOMM_OK)
          << outcome.status << outcome.text;
      fill_bytes(out, std::byte{0xcc});
      me.store()
          .word(static_cast<size_t>(me.rank()))
          .store(outcome.status == HETCOMM_OK ? size : 0);
      me.meet();
      const uint64_t expected = me.store().word(static_cast<size_t>(me.partner())).load();
      std::vector<std::byte> in(1'000'000);
      hetcomm_request_t* receive = me.recv(me.partner(), i, in.data(), in.size());
      if (expected > 0) {
        const Outcome received = finish(receive);
        EXPECT_EQ(received.status, HETCOMM_OK) << received.text;
        EXPECT_TRUE(holds(in, i, expected));
      } else {
        // The receive may have matched the message before it was withdrawn, but it must never
        // receive bytes.
        hetcomm_completion_t completion{};
        if (hetcomm_request_wait(receive, 2 * kMs, &completion) == HETCOMM_TIMED_OUT) {
          EXPECT_EQ(hetcomm_request_cancel(receive), HETCOMM_OK);
          completion.status = finish(receive).status;
        }
        EXPECT_TRUE(completion.status == HETCOMM_CANCELLED || completion.status == HETCOMM_ABORTED)
            << completion.status;
      }
      me.meet();
    }
  });
}

// Cancels at random points of transfers in progress, on either or both sides. Afterwards the stream
// still works. Cancelling a matched receive also ends the send, and vice versa.
TEST_P(Requests, MemoryIsNotWrittenAfterACancelAtAnyPoint) {
  run_two([](Member& me) {
    Random mine(static_cast<uint64_t>(me.rank()) + 31);
    for (uint64_t i = 0; i < 40; ++i) {
      const uint64_t size = mine.chance(0.3) ? 3000 : 3'000'000;
      const uint64_t room = 3'000'000;
      std::vector<std::byte> out = pattern(size, i);
      std::vector<std::byte> in(room);
      hetcomm_request_t* receive = me.recv(me.partner(), 1, in.data(), room);
      hetcomm_request_t* send = me.send(me.partner(), 1, out.data(), size);
      for (uint64_t steps = mine.below(mine.chance(0.5) ? 10 : 100); steps > 0; --steps) {
        (void)hetcomm_context_progress(me.context());
      }
      if (mine.chance(0.5)) {
        EXPECT_EQ(hetcomm_request_cancel(receive), HETCOMM_OK);
      }
      if (mine.chance(0.5)) {
        EXPECT_EQ(hetcomm_request_cancel(send), HETCOMM_OK);
      }
      end_receive(receive, in, i);
      fill_bytes(in, std::byte{0xdd});
      // A send whose receive was cancelled before the match waits until the other side receives it
      // as a stray.
      hetcomm_completion_t completion{};
      bool ended = false;
      EXPECT_TRUE(me.until([&] {
        take_strays(me, 1, i);
        if (!ended && hetcomm_request_test(send, &completion) == HETCOMM_OK) {
          ended = true;
          me.store().word(static_cast<size_t>(me.rank())).store(i + 1);
        }
        return ended && me.store().word(static_cast<size_t>(me.partner())).load() == i + 1;
      }));
      EXPECT_TRUE(completion.status == HETCOMM_OK || completion.status == HETCOMM_CANCELLED ||
                  completion.status == HETCOMM_ABORTED);
      fill_bytes(out, std::byte{0xcc});
      // A small message may still be in flight when its send has ended. A barrier follows it.
      EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
      take_strays(me, 1, i);
      me.meet();
      EXPECT_TRUE(all_bytes(in, std::byte{0xdd})) << "memory of an ended receive was written";
      me.meet();
    }
  });
}

// One thread starts a prepared receive repeatedly, and another cancels it at random times. Every
// run ends once, and nothing is written into the buffer of a run that has ended.
TEST_P(Requests, CancelConcurrentWithStartEndsEachRunOnce) {
  run_two([](Member& me) {
    uint64_t room = 0;
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&room, 8);
    hetcomm_request_t* request = nullptr;
    ASSERT_EQ(hetcomm_recv_prepare(me.communicator(), me.partner(), 77, HETCOMM_EXACT_TAG, &buffer,
                                   1, nullptr, &request),
              HETCOMM_OK);
    std::atomic<bool> stop{false};
    std::thread canceller([&] {
      while (!stop.load()) EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
    });
    for (int i = 0; i < 300; ++i) {
      ASSERT_EQ(hetcomm_request_start(request), HETCOMM_OK) << hetcomm_last_error();
      EXPECT_NE(hetcomm_request_start(request), HETCOMM_INTERNAL);
      hetcomm_completion_t completion{};
      ASSERT_EQ(hetcomm_request_wait(request, kPatienceNs, &completion), HETCOMM_OK);
      EXPECT_EQ(completion.status, HETCOMM_CANCELLED);
    }
    stop = true;
    canceller.join();
    EXPECT_EQ(hetcomm_request_destroy(request), HETCOMM_OK);
    EXPECT_EQ(room, 0u);
    me.meet();
  });
}

// --- deadlines -------------------------------------------------------------------------------

TEST_P(Requests, DeadlineEndsAnUnmatchedOperation) {
  run_two([](Member& me) {
    uint64_t value = 0;
    uint64_t other = 0;
    const std::vector<std::byte> large(2'000'000);
    const hetcomm_operation_options_t options = with_timeout(60 * kMs);
    const uint64_t start = clock_ns();
    std::vector<hetcomm_request_t*> requests = {
        me.recv(me.partner(), 1, &value, 8, HETCOMM_EXACT_TAG, &options),
        me.recv(HETCOMM_ANY_SOURCE, 1, &other, 8, HETCOMM_EXACT_TAG, &options),
        me.send(me.partner(), 2, large.data(), large.size(), &options),
    };
    for (size_t i = 0; i < requests.size(); ++i) {
      const Outcome outcome = finish(requests[i]);
      EXPECT_EQ(outcome.status, HETCOMM_TIMED_OUT) << "request " << i << ": " << outcome.text;
      const uint64_t took = clock_ns() - start;
      EXPECT_GE(took, 59 * kMs);
      EXPECT_LT(took, 10 * kSec);
    }
    me.meet();
    // The message whose deadline passed is gone, and later messages still work.
    hetcomm_completion_t seen{};
    EXPECT_EQ(hetcomm_probe(me.communicator(), me.partner(), 2, 0, 2 * kMs, &seen),
              HETCOMM_TIMED_OUT);
    hetcomm_request_t* send = me.send(me.partner(), 3, &value, 8);
    EXPECT_EQ(finish(me.recv(me.partner(), 3, &value, 8)).status, HETCOMM_OK);
    EXPECT_EQ(finish(send).status, HETCOMM_OK);
    me.meet();
  });
}

// Returns whether the operation succeeded or ended by its own or the other side's deadline, which
// ends shared operations.
bool ended_by_deadline(const Outcome& outcome) {
  return outcome.status == HETCOMM_OK || outcome.status == HETCOMM_TIMED_OUT ||
         outcome.status == HETCOMM_ABORTED;
}

TEST_P(Requests, MemoryIsNotWrittenAfterTheDeadlineOfAMatchedReceive) {
  run_two([](Member& me) {
    for (uint64_t i = 0; i < 10; ++i) {
      const uint64_t size = 16 << 20;
      const std::vector<std::byte> out = pattern(size, i);
      std::vector<std::byte> in(size);
      const hetcomm_operation_options_t options = with_timeout((1 + i) * kMs / 2);
      hetcomm_request_t* receive =
          me.recv(me.partner(), 1, in.data(), size, HETCOMM_EXACT_TAG, &options);
      hetcomm_request_t* send = me.send(me.partner(), 1, out.data(), size, &options);
      const Outcome received = finish(receive);
      EXPECT_TRUE(ended_by_deadline(received)) << received.text;
      if (received.status == HETCOMM_OK) {
        EXPECT_TRUE(holds(in, i, size));
      }
      fill_bytes(in, std::byte{0xdd});
      const Outcome sent = finish(send);
      EXPECT_TRUE(ended_by_deadline(sent)) << sent.text;
      me.meet();
      (void)me.until([] { return false; }, 2 * kMs);
      EXPECT_TRUE(all_bytes(in, std::byte{0xdd}));
      hetcomm_completion_t seen{};
      while (hetcomm_probe(me.communicator(), me.partner(), 1, 0, 2 * kMs, &seen) == HETCOMM_OK) {
        const Outcome rest =
            finish(me.recv(me.partner(), 1, in.data(), size, HETCOMM_EXACT_TAG, &options));
        EXPECT_TRUE(ended_by_deadline(rest)) << rest.text;
        fill_bytes(in, std::byte{0xdd});
      }
      me.meet();
    }
  });
}

// --- priority, groups, prepared, released ----------------------------------------------------

TEST_P(Requests, PriorityChangesNeitherOrderNorContents) {
  run_two([](Member& me) {
    hetcomm_operation_options_t high = with_timeout(0);
    high.priority = HETCOMM_PRIORITY_HIGH;
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in(20, std::vector<std::byte>(400'000));
    std::vector<hetcomm_request_t*> requests;
    for (uint64_t i = 0; i < 20; ++i) {
      requests.push_back(me.recv(me.partner(), 1, in[i].data(), in[i].size(), HETCOMM_EXACT_TAG,
                                 i % 3 == 0 ? &high : nullptr));
    }
    for (uint64_t i = 0; i < 20; ++i) {
      out.push_back(pattern(i * 20'000, i));
      requests.push_back(
          me.send(me.partner(), 1, out[i].data(), out[i].size(), i % 2 == 0 ? &high : nullptr));
    }
    finish_all(requests);
    for (uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(holds(in[i], i, i * 20'000)) << i;
    me.meet();
  });
}

TEST_P(Requests, GroupStartsTogetherAndCanBeReused) {
  run_two([](Member& me) {
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
    hetcomm_operation_options_t options = with_timeout(0);
    options.group = group;
    for (uint64_t round = 0; round < 5; ++round) {
      std::vector<std::vector<std::byte>> out;
      std::vector<std::vector<std::byte>> in(10, std::vector<std::byte>(50'000));
      std::vector<hetcomm_request_t*> requests;
      for (uint64_t i = 0; i < 10; ++i) {
        out.push_back(pattern(i * 5000, i + round));
        requests.push_back(me.recv(me.partner(), 1, in[i].data(), in[i].size(), 0, &options));
        requests.push_back(me.send(me.partner(), 1, out[i].data(), out[i].size(), &options));
      }
      me.meet();
      (void)me.until([] { return false; }, 2 * kMs);
      for (hetcomm_request_t* request : requests) {
        EXPECT_EQ(hetcomm_request_test(request, nullptr), HETCOMM_PENDING)
            << "started before its group";
      }
      me.meet();
      EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK);
      finish_all(requests);
      for (uint64_t i = 0; i < 10; ++i) EXPECT_TRUE(holds(in[i], i + round, i * 5000));
    }
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK) << "an empty group starts nothing";
    uint64_t value = 0;
    hetcomm_request_t* dropped = me.recv(me.partner(), 1, &value, 8, 0, &options);
    hetcomm_group_destroy(group);
    EXPECT_EQ(finish(dropped).status, HETCOMM_CANCELLED);
    hetcomm_group_destroy(nullptr);
    me.meet();
  });
}

TEST_P(Requests, PreparedOperationsCanBeStartedManyTimes) {
  run_two([](Member& me) {
    for (const uint64_t size : {uint64_t{8}, uint64_t{150'000}}) {
      std::vector<std::byte> out(size);
      std::vector<std::byte> in(size);
      const hetcomm_buffer_t from = hetcomm_buffer_host(out.data(), size);
      const hetcomm_buffer_t to = hetcomm_buffer_host(in.data(), size);
      hetcomm_request_t* send = nullptr;
      hetcomm_request_t* receive = nullptr;
      ASSERT_EQ(hetcomm_send_prepare(me.communicator(), me.partner(), 4, &from, 1, nullptr, &send),
                HETCOMM_OK);
      ASSERT_EQ(
          hetcomm_recv_prepare(me.communicator(), me.partner(), 4, 0, &to, 1, nullptr, &receive),
          HETCOMM_OK);
      const uint64_t times = size < 100 ? 500 : 50;
      for (uint64_t i = 0; i < times; ++i) {
        fill_pattern(out, i);
        EXPECT_EQ(hetcomm_request_start(receive), HETCOMM_OK);
        if (i == 0) {
          EXPECT_EQ(hetcomm_request_start(receive), HETCOMM_BUSY);
        }
        EXPECT_EQ(hetcomm_request_start(send), HETCOMM_OK);
        EXPECT_EQ(finish(receive).status, HETCOMM_OK);
        EXPECT_TRUE(holds(in, i, size));
        EXPECT_EQ(finish(send).status, HETCOMM_OK);
      }
      // The request is cancelled once and then runs again.
      EXPECT_EQ(hetcomm_request_start(receive), HETCOMM_OK);
      EXPECT_EQ(hetcomm_request_cancel(receive), HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_CANCELLED);
      me.meet();
      EXPECT_EQ(hetcomm_request_start(receive), HETCOMM_OK);
      EXPECT_EQ(hetcomm_request_start(send), HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_OK);
      EXPECT_EQ(finish(send).status, HETCOMM_OK);
      EXPECT_EQ(hetcomm_request_destroy(send), HETCOMM_OK);
      EXPECT_EQ(hetcomm_request_destroy(receive), HETCOMM_OK);
      EXPECT_EQ(hetcomm_request_start(send), HETCOMM_STALE_HANDLE);
      me.meet();
    }
  });
}

TEST_P(Requests, MemoryIsBusyWhileAPreparedRequestNamesIt) {
  run_two([](Member& me) {
    hetcomm_memory_t* memory = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, 4096, &memory), HETCOMM_OK);
    const hetcomm_buffer_t to = hetcomm_buffer_memory(memory, 0, 4096);
    hetcomm_request_t* receive = nullptr;
    ASSERT_EQ(
        hetcomm_recv_prepare(me.communicator(), me.partner(), 4, 0, &to, 1, nullptr, &receive),
        HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_BUSY) << "idle, never started";
    const std::vector<std::byte> out = pattern(4096, 3);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(hetcomm_request_start(receive), HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_BUSY) << "running";
      hetcomm_request_t* send = me.send(me.partner(), 4, out.data(), out.size());
      EXPECT_EQ(finish(send).status, HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_BUSY) << "idle again";
    }
    EXPECT_EQ(hetcomm_request_destroy(receive), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK) << hetcomm_last_error();

    // A request that is released during a run keeps the memory until the run ends.
    ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, 4096, &memory), HETCOMM_OK);
    const hetcomm_buffer_t other = hetcomm_buffer_memory(memory, 0, 4096);
    ASSERT_EQ(
        hetcomm_recv_prepare(me.communicator(), me.partner(), 5, 0, &other, 1, nullptr, &receive),
        HETCOMM_OK);
    EXPECT_EQ(hetcomm_request_start(receive), HETCOMM_OK);
    EXPECT_EQ(hetcomm_request_destroy(receive), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_BUSY);
    me.meet();
    EXPECT_EQ(finish(me.send(me.partner(), 5, out.data(), out.size())).status, HETCOMM_OK);
    EXPECT_TRUE(me.until([&] { return hetcomm_memory_destroy(memory) == HETCOMM_OK; }));
    me.meet();
  });
}

TEST_P(Requests, OperationInAnUnstartedGroupEndsAtItsDeadline) {
  run_two([](Member& me) {
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
    uint64_t value = 0;
    hetcomm_operation_options_t options = with_timeout(50 * kMs);
    options.group = group;
    hetcomm_collective_options_t barrier{};
    barrier.struct_size = sizeof(barrier);
    barrier.timeout_ns = 50 * kMs;
    barrier.group = group;
    const uint64_t start = clock_ns();
    std::vector<hetcomm_request_t*> requests = {
        me.send(me.partner(), 1, &value, 8, &options),
        me.recv(me.partner(), 1, &value, 8, HETCOMM_EXACT_TAG, &options), nullptr};
    ASSERT_EQ(hetcomm_barrier(me.communicator(), &barrier, &requests[2]), HETCOMM_OK);
    for (hetcomm_request_t* request : requests) {
      EXPECT_EQ(finish(request).status, HETCOMM_TIMED_OUT);
    }
    EXPECT_GE(clock_ns() - start, 49 * kMs);
    EXPECT_LT(clock_ns() - start, 5 * kSec);
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK) << "nothing is left to be started";
    hetcomm_group_destroy(group);
    me.meet();
    // The group's operations do not count as collective operations.
    hetcomm_request_t* later = nullptr;
    ASSERT_EQ(hetcomm_barrier(me.communicator(), nullptr, &later), HETCOMM_OK);
    EXPECT_EQ(finish(later).status, HETCOMM_OK);
    me.meet();
  });
}

TEST_P(Requests, DestroyedRequestStillDeliversItsMessage) {
  run_two([](Member& me) {
    std::vector<std::vector<std::byte>> out;
    for (uint64_t i = 0; i < 10; ++i) {
      out.push_back(pattern(i * 30'000, i));
      hetcomm_request_t* send = me.send(me.partner(), i, out[i].data(), out[i].size());
      EXPECT_EQ(hetcomm_request_destroy(send), HETCOMM_OK);
      EXPECT_EQ(hetcomm_request_test(send, nullptr), HETCOMM_STALE_HANDLE);
    }
    for (uint64_t i = 0; i < 10; ++i) {
      std::vector<std::byte> in(300'000);
      EXPECT_EQ(finish(me.recv(me.partner(), i, in.data(), in.size())).status, HETCOMM_OK);
      EXPECT_TRUE(holds(in, i, i * 30'000));
    }
    // A rank that has passed the barrier knows that the other rank has received everything.
    EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
    // For a single rank the barrier shows nothing: its sends end in the next passes.
    for (int i = 0; i < 10 && me.partner() == me.rank(); ++i) {
      EXPECT_EQ(hetcomm_context_progress(me.context()), HETCOMM_OK);
    }
    me.meet();
  });
}

// --- many ------------------------------------------------------------------------------------

TEST_P(Requests, ThousandsOfOutstandingRequestsComplete) {
  run_two([](Member& me) {
    constexpr uint64_t kCount = 5000;
    std::vector<uint64_t> out(kCount);
    std::vector<uint64_t> in(kCount);
    std::vector<hetcomm_request_t*> receives;
    std::vector<hetcomm_request_t*> sends;
    for (uint64_t i = 0; i < kCount; ++i) {
      receives.push_back(me.recv(me.partner(), i % 100, &in[i], 8));
    }
    for (uint64_t i = 0; i < kCount; ++i) {
      out[i] = i;
      sends.push_back(me.send(me.partner(), i % 100, &out[i], 8));
    }
    finish_all(sends);
    finish_all(receives);
    for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(in[i], i);
    me.meet();
  });
}

TEST_P(Requests, ThousandsOfUnexpectedMessagesAreReceived) {
  run_two([](Member& me) {
    constexpr uint64_t kCount = 3000;
    std::vector<std::vector<std::byte>> out;
    std::vector<hetcomm_request_t*> sends;
    for (uint64_t i = 0; i < kCount; ++i) {
      out.push_back(pattern(i % 64, i));
      sends.push_back(me.send(me.partner(), i, out[i].data(), out[i].size()));
    }
    (void)me.until([] { return false; }, 20 * kMs);
    std::vector<std::byte> in(64);
    for (uint64_t i = kCount; i-- > 0;) {
      ASSERT_EQ(finish(me.recv(me.partner(), i, in.data(), in.size())).status, HETCOMM_OK);
      ASSERT_EQ(find_mismatch(hetcomm::ConstByteSpan(in).first(i % 64), i), std::nullopt);
    }
    finish_all(sends);
    me.meet();
  });
}

TEST_P(Requests, SeveralThreadsShareOneCommunicator) {
  run_two([](Member& me) {
    constexpr int kThreads = 6;
    const uint64_t count = me.size() == 1 ? 300 : 150;
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const uint64_t tag = static_cast<uint64_t>(t);
        Random random(tag);
        for (uint64_t i = 0; i < count; ++i) {
          const uint64_t size = random.size_up_to(60'000);
          const std::vector<std::byte> out = pattern(size, tag * 1000 + i);
          std::vector<std::byte> in(size);
          hetcomm_request_t* receive = me.recv(me.partner(), tag, in.data(), size);
          hetcomm_request_t* send = me.send(me.partner(), tag, out.data(), size);
          if (finish(receive).status != HETCOMM_OK) ++wrong;
          if (find_mismatch(in, tag * 1000 + i)) ++wrong;
          if (finish(send).status != HETCOMM_OK) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
    me.meet();
  });
}

TEST_P(Requests, RejectedCallsReportWhyAndWriteNoOutput) {
  run_two([](Member& me) {
    uint64_t value = 0;
    auto* const untouched = reinterpret_cast<hetcomm_request_t*>(&value);
    hetcomm_request_t* request = untouched;
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&value, 8);
    EXPECT_EQ(hetcomm_send(me.communicator(), me.size(), 1, buffer, nullptr, &request),
              HETCOMM_OUT_OF_RANGE);
    EXPECT_STRNE(hetcomm_last_error(), "");
    EXPECT_EQ(hetcomm_send(me.communicator(), -1, 1, buffer, nullptr, &request),
              HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(hetcomm_recv(me.communicator(), me.size(), 1, 0, buffer, nullptr, &request),
              HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(hetcomm_recv(me.communicator(), -2, 1, 0, buffer, nullptr, &request),
              HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(hetcomm_send(nullptr, 0, 1, buffer, nullptr, &request), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(hetcomm_send(me.communicator(), me.partner(), 1, buffer, nullptr, nullptr),
              HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(hetcomm_send(me.communicator(), me.partner(), 1, hetcomm_buffer_host(nullptr, 8),
                           nullptr, &request),
              HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(hetcomm_sendv(me.communicator(), me.partner(), 1, nullptr, 2, nullptr, &request),
              HETCOMM_INVALID_ARGUMENT);
    hetcomm_operation_options_t options = with_timeout(kSec);
    options.priority = 77;
    EXPECT_EQ(hetcomm_send(me.communicator(), me.partner(), 1, buffer, &options, &request),
              HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(request, untouched) << "outputs are written on success only";
    me.meet();
  });
}

// A second thread asks for the end of a request at the same moment as the first, which alone used
// the context until then. One of the two receives it. This moment occurs once in a context's life.
class TwoWaiters : public CapiTest {};

// Completions in untouched memory, each in its own huge page. The first thread that writes one
// waits until the page is cleared, so that the other thread finds it still reporting.
class SlowCompletions {
 public:
  explicit SlowCompletions(size_t count) : bytes_((count + 1) * kPage) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    madvise(memory_, bytes_, MADV_HUGEPAGE);
  }
  ~SlowCompletions() { munmap(memory_, bytes_); }
  SlowCompletions(const SlowCompletions&) = delete;
  SlowCompletions& operator=(const SlowCompletions&) = delete;
  hetcomm_completion_t* at(size_t index) const {
    const auto first = (reinterpret_cast<uintptr_t>(memory_) + kPage - 1) / kPage * kPage;
    return reinterpret_cast<hetcomm_completion_t*>(first + index * kPage);
  }

 private:
  static constexpr size_t kPage = 2 << 20;
  size_t bytes_;
  void* memory_ = nullptr;
};

TEST_P(TwoWaiters, ExactlyOneWaiterGetsTheResult) {
  constexpr int kLives = 50;
  constexpr size_t kRequests = 6;
  for (int life = 0; life < kLives && !HasFailure(); ++life) {
    run(1, [](Member& me) {
      std::vector<std::byte> memory(kRequests * 8);
      std::array<std::byte, 8> data{};
      std::vector<hetcomm_request_t*> requests;
      for (size_t i = 0; i < kRequests; ++i) {
        requests.push_back(me.recv(0, i, memory.data() + i * 8, 8));
        EXPECT_EQ(finish(me.send(0, i, data.data(), 8)).status, HETCOMM_OK);
      }
      finish(requests.back());  // so all requests have ended
      requests.pop_back();
      std::atomic<int> ready{0};
      const auto wait_for_all = [&](std::vector<hetcomm_status_t>& found) {
        const SlowCompletions completions(requests.size());
        ready.fetch_add(1);
        while (ready.load() < 2) {
        }
        for (size_t i = 0; i < requests.size(); ++i) {
          found.push_back(hetcomm_request_wait(requests[i], kPatienceNs, completions.at(i)));
        }
      };
      std::vector<hetcomm_status_t> mine;
      std::vector<hetcomm_status_t> others;
      std::thread other([&] { wait_for_all(others); });
      wait_for_all(mine);
      other.join();
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(std::min(mine[i], others[i]), HETCOMM_STALE_HANDLE) << "request " << i;
        EXPECT_EQ(std::max(mine[i], others[i]), HETCOMM_OK) << "request " << i;
      }
      hetcomm_request_t* receive = me.recv(0, 1, memory.data(), 8);
      EXPECT_EQ(finish(me.send(0, 1, data.data(), 8)).status, HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_OK);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Over, TwoWaiters,
                         ::testing::Values(CapiCase{
                             .name = "self_shared", .transports = "self", .settings = ""}),
                         capi_case_name);

// Waiting for the operation drives the engine. core/deadline_test.cc shows that no wait is needed,
// because it can inspect an operation without a call.
class Deadline : public CapiTest {};

TEST_P(Deadline, DefaultTimeoutEndsAnOperation) {
  run(1, [](Member& me) {
    std::array<std::byte, 8> memory{};
    hetcomm_request_t* request = me.recv(0, 2, memory.data(), memory.size());
    EXPECT_EQ(finish(me.send(0, 2, memory.data(), 0)).status, HETCOMM_OK);
    EXPECT_EQ(finish(request).status, HETCOMM_OK);
    usleep(300'000);  // the background thread has gone to sleep
    request = me.recv(0, 1, memory.data(), memory.size());
    usleep(900'000);
    EXPECT_EQ(finish(request, 50 * kMs).status, HETCOMM_TIMED_OUT);
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Deadline,
                         ::testing::Values(CapiCase{.name = "self_deadline",
                                                    .transports = "self",
                                                    .settings = "TIMEOUT=400ms",
                                                    .thread_progress = true}),
                         capi_case_name);

// A stall is logged once per operation, on one line, until another operation stalls.
class Stall : public CapiTest {};

TEST_P(Stall, StallIsReportedOnceWithThePendingOperations) {
  ::testing::internal::CaptureStderr();
  run(1, [](Member& me) {
    std::array<std::byte, 24> memory{};
    hetcomm_request_t* first = me.recv(0, 0x51, memory.data(), 8);
    hetcomm_request_t* second = me.recv(HETCOMM_ANY_SOURCE, 0x52, memory.data() + 8, 16);
    EXPECT_EQ(hetcomm_request_wait(first, 600 * kMs, nullptr), HETCOMM_TIMED_OUT);
    std::array<std::byte, 24> data{};
    EXPECT_EQ(finish(me.send(0, 0x51, data.data(), 8)).status, HETCOMM_OK);
    EXPECT_EQ(finish(me.send(0, 0x52, data.data(), 16)).status, HETCOMM_OK);
    EXPECT_EQ(finish(first).status, HETCOMM_OK);
    EXPECT_EQ(finish(second).status, HETCOMM_OK);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t report = log.find("no progress for");
  ASSERT_NE(report, std::string::npos) << log;
  EXPECT_EQ(log.find("no progress for", report + 1), std::string::npos) << log;
  EXPECT_NE(log.find("receive from rank 0, tag 0x51, 8 bytes"), std::string::npos) << log;
  EXPECT_NE(log.find("receive from any rank, tag 0x52, 16 bytes"), std::string::npos) << log;
}

// The report appears long before the operation's own deadline.
TEST_P(Stall, StallIsReportedBeforeTheOperationsOwnTimeout) {
  ::testing::internal::CaptureStderr();
  run(1, [](Member& me) {
    std::array<std::byte, 8> data{};
    const hetcomm_operation_options_t options = with_timeout(5 * kSec);
    hetcomm_request_t* receive =
        me.recv(0, 0x53, data.data(), data.size(), HETCOMM_EXACT_TAG, &options);
    hetcomm_completion_t completion{};
    EXPECT_EQ(hetcomm_request_wait(receive, 700 * kMs, &completion), HETCOMM_TIMED_OUT);
    EXPECT_EQ(finish(me.send(0, 0x53, data.data(), data.size())).status, HETCOMM_OK);
    EXPECT_EQ(finish(receive).status, HETCOMM_OK);
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("receive from rank 0, tag 0x53, 8 bytes"), std::string::npos) << log;
}

INSTANTIATE_TEST_SUITE_P(Over, Stall,
                         ::testing::Values(CapiCase{.name = "self_impatient",
                                                    .transports = "self",
                                                    .settings = "STALL_TIME=150ms;LOG=warn"}),
                         capi_case_name);
INSTANTIATE_TEST_SUITE_P(Over, Requests, ::testing::ValuesIn(all_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
