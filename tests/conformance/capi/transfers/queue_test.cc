// Queues, over every transport:
//
//   * each item arrives whole and in order, while both ranks push to each other
//   * at most |depth| items are in flight; drain and cancel
//   * a rank's items move while it computes
//   * a rank that dies, or destroys its end, ends the other rank's items
//   * calls from many threads
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

// Every case has a progress thread, because a queue needs one.
class Queues : public CapiTest {
 protected:
  void SetUp() override {
    CapiTest::SetUp();
    case_ = GetParam();
    case_.thread_progress = true;
  }
  void run_both(const std::function<void(Member&)>& body) {
    run_job(case_, GetParam().alone() ? 1 : 2, body);
  }

  CapiCase case_;
};

hetcomm_queue_options_t terms(uint64_t size, uint32_t depth = 0, uint64_t tag = 0) {
  return {.struct_size = sizeof(hetcomm_queue_options_t),
          .tag = tag,
          .max_item_bytes = size,
          .depth = depth,
          .weight = 0,
          .max_bytes_per_second = 0};
}

// One end of a queue.
class End {
 public:
  End(Member& me, int32_t peer, int32_t end, const hetcomm_queue_options_t& options)
      : pushes_(end == HETCOMM_QUEUE_PUSH) {
    EXPECT_EQ(hetcomm_queue_create(me.communicator(), peer, end, &options, &queue_), HETCOMM_OK)
        << hetcomm_last_error();
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() { EXPECT_EQ(hetcomm_queue_destroy(queue_), HETCOMM_OK) << hetcomm_last_error(); }
  // Returns null if too many items are in flight.
  hetcomm_request_t* start(void* data, uint64_t size, uint64_t timeout_ns = 0) {
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(data, size);
    const hetcomm_operation_options_t options = with_timeout(timeout_ns);
    hetcomm_request_t* request = nullptr;
    const hetcomm_status_t status = pushes_
                                        ? hetcomm_queue_push(queue_, buffer, &options, &request)
                                        : hetcomm_queue_pull(queue_, buffer, &options, &request);
    if (status == HETCOMM_BUSY) return nullptr;
    EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
    return request;
  }
  hetcomm_queue_t* get() { return queue_; }

 private:
  const bool pushes_;
  hetcomm_queue_t* queue_ = nullptr;
};

uint64_t size_of(uint64_t item, uint64_t most) {
  Random random(item * 77 + most);
  return random.chance(0.3) ? most : random.below(most + 1);
}

// Pushes or pulls |count| items, |depth| at a time.
void stream(Member& me, int32_t peer, int32_t end, uint64_t most, uint32_t depth, uint64_t count,
            uint64_t tag) {
  struct Item {
    uint64_t number;
    std::vector<std::byte> bytes;
    hetcomm_request_t* request;
  };
  End queue(me, peer, end, terms(most, depth, tag));
  std::deque<Item> running;
  const auto finish_oldest = [&] {
    Item item = std::move(running.front());
    running.pop_front();
    const Outcome outcome = finish(item.request);
    ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    EXPECT_EQ(outcome.tag, tag);
    EXPECT_EQ(outcome.bytes_received, size_of(item.number, most));
    if (end == HETCOMM_QUEUE_PUSH) return;
    EXPECT_EQ(outcome.source, peer);
    item.bytes.resize(outcome.bytes_received);
    EXPECT_FALSE(find_mismatch(item.bytes, item.number + tag).has_value())
        << "item " << item.number;
  };
  for (uint64_t i = 0; i < count; ++i) {
    if (running.size() == depth) {
      ASSERT_NO_FATAL_FAILURE(finish_oldest());
    }
    std::vector<std::byte> bytes(end == HETCOMM_QUEUE_PUSH ? size_of(i, most) : most);
    if (end == HETCOMM_QUEUE_PUSH) fill_pattern(bytes, i + tag);
    std::byte empty{};
    hetcomm_request_t* request = queue.start(bytes.empty() ? &empty : bytes.data(), bytes.size());
    ASSERT_NE(request, nullptr);
    running.push_back({i, std::move(bytes), request});
  }
  while (!running.empty()) ASSERT_NO_FATAL_FAILURE(finish_oldest());
  EXPECT_EQ(hetcomm_queue_drain(queue.get(), kPatienceNs), HETCOMM_OK);
}

TEST_P(Queues, ItemsArriveIntactAndInOrder) {
  run_both([](Member& me) {
    const int32_t peer = me.partner();
    std::vector<std::thread> threads;
    for (const uint64_t most : {uint64_t{1}, uint64_t{3000}, uint64_t{700'000}}) {
      for (const int32_t end : {HETCOMM_QUEUE_PUSH, HETCOMM_QUEUE_PULL}) {
        threads.emplace_back([&me, peer, most, end] { stream(me, peer, end, most, 3, 60, most); });
      }
    }
    for (std::thread& thread : threads) thread.join();
    me.meet();
  });
}

TEST_P(Queues, ItemsInFlightNeverExceedTheDepth) {
  run_both([](Member& me) {
    const bool pushes = me.rank() == 0;
    const int32_t peer = me.partner();
    std::vector<std::byte> bytes(100'000);
    std::vector<std::byte> own(100'000);
    End queue(me, peer, pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL, terms(100'000, 5));
    std::unique_ptr<End> other;
    if (me.size() == 1) {
      other = std::make_unique<End>(me, 0, HETCOMM_QUEUE_PULL, terms(100'000, 5));
    }
    if (pushes) {
      std::vector<hetcomm_request_t*> requests;
      for (int i = 0; i < 5; ++i) requests.push_back(queue.start(bytes.data(), bytes.size()));
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes.data(), 1);
      hetcomm_request_t* more = nullptr;
      EXPECT_EQ(hetcomm_queue_push(queue.get(), buffer, nullptr, &more), HETCOMM_BUSY);
      EXPECT_NE(std::string(hetcomm_last_error()).find("5 items"), std::string::npos);
      EXPECT_EQ(hetcomm_queue_drain(queue.get(), 20 * kMs), HETCOMM_TIMED_OUT);
      EXPECT_EQ(hetcomm_queue_destroy(queue.get()), HETCOMM_BUSY);
      uint32_t pending = 0;
      EXPECT_EQ(hetcomm_queue_pending(queue.get(), &pending), HETCOMM_OK);
      EXPECT_EQ(pending, 5u);
      EXPECT_EQ(hetcomm_queue_cancel(queue.get()), HETCOMM_OK);
      EXPECT_EQ(hetcomm_queue_drain(queue.get(), kPatienceNs), HETCOMM_OK);
      for (hetcomm_request_t* request : requests) {
        EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
      }
      me.meet();
      EXPECT_EQ(finish(queue.start(bytes.data(), 17, me.size() == 1 ? 50 * kMs : 0)).status,
                me.size() == 1 ? HETCOMM_TIMED_OUT : HETCOMM_OK)
          << hetcomm_last_error();
    } else {
      me.meet();
      for (int i = 0; i < 5; ++i) {
        const Outcome outcome = finish(queue.start(own.data(), own.size()));
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED);
        EXPECT_NE(outcome.text.find("rank 0: CANCELLED: "), std::string::npos) << outcome.text;
      }
      const Outcome outcome = finish(queue.start(own.data(), own.size()));
      EXPECT_EQ(outcome.status, HETCOMM_OK);
      EXPECT_EQ(outcome.bytes_received, 17u);
    }
    me.meet();
  });
}

// Neither rank calls the library between its pushes or pulls. Items still move.
TEST_P(Queues, ItemsMoveWhileBothRanksCompute) {
  HETCOMM_NEEDS_RANKS();
  run_both([](Member& me) {
    const bool pushes = me.rank() == 0;
    std::vector<std::byte> bytes(2'000'000);
    End queue(me, 1 - me.rank(), pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
              terms(bytes.size(), 2));
    me.meet();
    if (pushes) fill_pattern(bytes, 5);
    hetcomm_request_t* request = queue.start(bytes.data(), bytes.size());
    bool moved = false;
    for (int i = 0; i < 500 && !moved; ++i) {  // only reads memory
      usleep(10'000);
      uint32_t pending = 1;
      EXPECT_EQ(hetcomm_queue_pending(queue.get(), &pending), HETCOMM_OK);
      moved = pending == 0;
    }
    EXPECT_TRUE(moved);
    EXPECT_EQ(finish(request).status, HETCOMM_OK);
    if (!pushes) {
      EXPECT_FALSE(find_mismatch(bytes, 5).has_value());
    }
    me.meet();
  });
}

TEST_P(Queues, DestroyingOneEndEndsTheItemsOfTheOther) {
  HETCOMM_NEEDS_RANKS();
  run_both([](Member& me) {
    for (const int32_t goes : {0, 1}) {
      const bool pushes = me.rank() == 0;
      std::vector<std::byte> bytes(5000);
      End queue(me, 1 - me.rank(), pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL, terms(5000));
      me.meet();
      if (me.rank() == goes) continue;
      const Outcome outcome = finish(queue.start(bytes.data(), bytes.size()));
      EXPECT_EQ(outcome.status, HETCOMM_ABORTED);
      EXPECT_NE(outcome.text.find("closed its end"), std::string::npos) << outcome.text;
    }
    me.meet();
  });
}

// The end of the queue could come to the other rank before the news of the abort. It has room for
// a part of the reason only.
TEST_P(Queues, AbortReasonReachesItemsIntactDespiteQueueDestruction) {
  HETCOMM_NEEDS_RANKS();
  const std::string reason = std::string(300, 'x') + " the end";
  run_both([&](Member& me) {
    for (int round = 0; round < 20; ++round) {
      hetcomm_communicator_t* on = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &on), HETCOMM_OK);
      const bool aborts = me.rank() == 0;
      const hetcomm_queue_options_t options = terms(1000);
      hetcomm_queue_t* queue = nullptr;
      ASSERT_EQ(
          hetcomm_queue_create(on, me.partner(), aborts ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
                               &options, &queue),
          HETCOMM_OK);
      std::vector<std::byte> item(1000);
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(item.data(), item.size());
      hetcomm_request_t* request = nullptr;
      for (int i = 0; i < 2; ++i) {
        if (aborts && i == 1) break;
        EXPECT_EQ(aborts ? hetcomm_queue_push(queue, buffer, nullptr, &request)
                         : hetcomm_queue_pull(queue, buffer, nullptr, &request),
                  HETCOMM_OK)
            << hetcomm_last_error();
        if (i == 0) {
          EXPECT_EQ(finish(request).status, HETCOMM_OK);
        }
      }
      me.meet();
      if (aborts) {
        EXPECT_EQ(hetcomm_communicator_abort(on, reason.c_str()), HETCOMM_OK);
      } else {
        const Outcome outcome = finish(request);
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED);
        EXPECT_TRUE(outcome.text.ends_with(" the end")) << outcome.text;
      }
      EXPECT_EQ(hetcomm_queue_destroy(queue), HETCOMM_OK) << hetcomm_last_error();
      me.meet();
      EXPECT_EQ(hetcomm_communicator_destroy(on), HETCOMM_OK) << hetcomm_last_error();
    }
  });
}

TEST_P(Queues, DifferingQueueOptionsAreReportedAsAMismatch) {
  HETCOMM_NEEDS_RANKS();
  run_both([](Member& me) {
    const bool pushes = me.rank() == 0;
    std::vector<std::byte> bytes(5000);
    End queue(me, 1 - me.rank(), pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
              terms(5000, pushes ? 3 : 4));
    const Outcome outcome = finish(queue.start(bytes.data(), bytes.size()));
    EXPECT_EQ(outcome.status, HETCOMM_MISMATCH);
    EXPECT_NE(outcome.text.find("4 at a time"), std::string::npos) << outcome.text;
    me.meet();
  });
}

TEST_P(Queues, SeveralThreadsCanUseOneQueue) {
  HETCOMM_NEEDS_RANKS();
  run_both([](Member& me) {
    constexpr uint64_t kItems = 200;
    const bool pushes = me.rank() == 0;
    End queue(me, 1 - me.rank(), pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL, terms(1000, 6));
    std::atomic<uint64_t> next{0};
    std::atomic<uint64_t> sum{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        std::vector<std::byte> bytes(1000);
        uint64_t number = 0;
        while ((number = next++) < kItems) {
          std::memcpy(bytes.data(), &number, sizeof(number));
          hetcomm_request_t* request = nullptr;
          while ((request = queue.start(bytes.data(), bytes.size())) == nullptr) usleep(50);
          ASSERT_EQ(finish(request).status, HETCOMM_OK);
          std::memcpy(&number, bytes.data(), sizeof(number));
          sum += number;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(sum.load(), kItems * (kItems - 1) / 2);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Queues, ::testing::ValuesIn(all_cases()), capi_case_name);

// A rank dies while items are in flight.
class QueuePeerDeath : public Queues {};

TEST_P(QueuePeerDeath, DeadRankEndsTheItemsOfItsQueues) {
  for (const int32_t dies : {0, 1}) {
    run_both([dies](Member& me) {
      const bool pushes = me.rank() == 0;
      std::vector<std::byte> bytes(8 << 20);
      const hetcomm_queue_options_t options = terms(bytes.size(), 3);
      hetcomm_queue_t* queue = nullptr;
      ASSERT_EQ(
          hetcomm_queue_create(me.communicator(), 1 - me.rank(),
                               pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL, &options, &queue),
          HETCOMM_OK);
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes.data(), bytes.size());
      me.meet();
      if (me.rank() == dies) {
        hetcomm_request_t* request = nullptr;
        (void)hetcomm_queue_push(queue, buffer, nullptr, &request);
        (void)hetcomm_queue_pull(queue, buffer, nullptr, &request);
        me.die();
      }
      std::vector<std::vector<std::byte>> items(3, std::vector<std::byte>(8 << 20));
      std::vector<hetcomm_request_t*> requests(3);
      for (size_t i = 0; i < 3; ++i) {
        const hetcomm_buffer_t own = hetcomm_buffer_host(items[i].data(), items[i].size());
        ASSERT_EQ(pushes ? hetcomm_queue_push(queue, own, nullptr, &requests[i])
                         : hetcomm_queue_pull(queue, own, nullptr, &requests[i]),
                  HETCOMM_OK);
      }
      for (hetcomm_request_t* request : requests) {
        const Outcome outcome = finish(request);
        EXPECT_TRUE(outcome.status == HETCOMM_PEER_LOST || outcome.status == HETCOMM_OK)
            << outcome.text;
      }
      hetcomm_request_t* after = nullptr;
      EXPECT_EQ(pushes ? hetcomm_queue_push(queue, buffer, nullptr, &after)
                       : hetcomm_queue_pull(queue, buffer, nullptr, &after),
                HETCOMM_OK);
      EXPECT_EQ(finish(after).status, HETCOMM_PEER_LOST);
      EXPECT_EQ(hetcomm_queue_destroy(queue), HETCOMM_OK);
      me.expect_ruin();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Over, QueuePeerDeath, ::testing::ValuesIn(process_cases()),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
