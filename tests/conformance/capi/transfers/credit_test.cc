// Messages that are sent but not received:
//
//   * a rank that receives nothing holds at most HETCOMM_CREDIT_BYTES from one peer, and at most
//     HETCOMM_UNEXPECTED_BYTES from all peers; the rest waits at the senders, and everything
//     arrives in order once it is received
//   * a communicator that closes returns the credit of its unreceived messages, whether they arrive
//     before or after; so does unregistering memory that has pending notifications
#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kBytes = 1000;
constexpr uint64_t kCost = 272;  // cost of a message, in addition to its bytes

// Counts of messages to |rank|: those sent without waiting for a receive, and those that waited.
struct Sent {
  uint64_t eager = 0;
  uint64_t rendezvous = 0;
};
Sent sent_to(Member& me, int32_t rank) {
  hetcomm_counters_t counters[4] = {{.struct_size = sizeof(counters[0])}};
  size_t count = 0;
  EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), rank, 4, counters, &count),
            HETCOMM_OK);
  Sent sent;
  for (size_t i = 0; i < count; ++i) {
    sent.eager += counters[i].eager_sent;
    sent.rendezvous += counters[i].rendezvous_sent;
  }
  return sent;
}

class Credit : public CapiTest {};

// All ranks send to rank 0. Rank 0 drives communication and receives nothing until they have sent
// as much as they can.
void flood(Member& me, uint64_t most_bytes_of_one) {
  constexpr uint64_t kCount = 120;
  if (me.rank() > 0) {
    std::vector<std::vector<std::byte>> out;
    std::vector<hetcomm_request_t*> requests;
    for (uint64_t i = 0; i < kCount; ++i) {
      out.push_back(pattern(kBytes, i * 100 + static_cast<uint64_t>(me.rank())));
      requests.push_back(me.send(0, i, out.back().data(), kBytes));
    }
    const uint64_t granted = most_bytes_of_one / (kBytes + kCost);
    EXPECT_TRUE(me.until([&] { return sent_to(me, 0).eager >= granted; }, 10 * kSec))
        << "less than was granted is used";
    // No more leave in a while.
    (void)me.until([] { return false; }, 50 * kMs);
    EXPECT_EQ(sent_to(me, 0).eager, granted);
    me.meet();
    finish_all(requests);
  } else {
    me.meet();
    for (uint64_t i = 0; i < kCount; ++i) {
      for (int32_t from = 1; from < me.size(); ++from) {
        std::vector<std::byte> in(kBytes);
        const Outcome outcome = finish(me.recv(from, 0, in.data(), kBytes, HETCOMM_ANY_TAG));
        ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        ASSERT_EQ(outcome.tag, i) << "of rank " << from;
        EXPECT_TRUE(holds(in, i * 100 + static_cast<uint64_t>(from), kBytes));
      }
    }
  }
  me.meet();
}

TEST_P(Credit, UnreceivedBytesOfOnePeerAreBounded) {
  CapiCase little = GetParam();
  little.settings += "CREDIT_BYTES=20K;";
  run_job(little, 3, [](Member& me) { flood(me, 20 << 10); });
}

TEST_P(Credit, UnreceivedBytesOfAllPeersAreBounded) {
  CapiCase little = GetParam();
  little.settings += "UNEXPECTED_BYTES=64K;";
  run_job(little, 5, [](Member& me) { flood(me, 16 << 10); });
}

// Sends |count| messages to |peer| on |communicator|, which are never received. Together they use
// most of the credit. Returns true if all of them have left.
bool send_some(hetcomm_communicator_t* communicator, int32_t peer, uint64_t first) {
  constexpr uint64_t kCount = 12;
  std::vector<std::vector<std::byte>> out;
  std::vector<hetcomm_request_t*> requests;
  bool good = true;
  for (uint64_t i = 0; i < kCount; ++i) {
    out.push_back(pattern(kBytes, first + i));
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_send(communicator, peer, first + i,
                           hetcomm_buffer_host(out.back().data(), kBytes), nullptr, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    requests.push_back(request);
  }
  for (hetcomm_request_t* const request : requests) {
    const hetcomm_status_t ended = hetcomm_request_wait(request, 3 * kSec, nullptr);
    good = good && ended == HETCOMM_OK;
    if (ended == HETCOMM_OK) continue;
    EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
    EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
  }
  return good;
}

void receive_some(Member& me, uint64_t first) {
  for (uint64_t i = 0; i < 12; ++i) {
    std::vector<std::byte> in(kBytes);
    const Outcome outcome = finish(me.recv(0, first + i, in.data(), kBytes));
    ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    EXPECT_TRUE(holds(in, first + i, kBytes));
  }
}

// Sends a word from rank 1 to rank 0. It carries the credit that rank 1 has returned.
void tell(Member& me) {
  char letter = 'a';
  hetcomm_request_t* const request =
      me.rank() == 1 ? me.send(0, 999'999, &letter, 1) : me.recv(1, 999'999, &letter, 1);
  EXPECT_EQ(finish(request).status, HETCOMM_OK);
}

TEST_P(Credit, ClosingACommunicatorReturnsCredit) {
  CapiCase little = GetParam();
  little.settings += "CREDIT_BYTES=16K;";  // enough for 12 messages
  run_job(little, 2, [](Member& me) {
    for (uint64_t round = 0; round < 6; ++round) {
      SCOPED_TRACE(round);
      const bool late = round % 2 != 0;  // the messages arrive after it is closed
      hetcomm_communicator_t* sub = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &sub), HETCOMM_OK)
          << hetcomm_last_error();
      ASSERT_TRUE(me.meet());
      if (me.rank() == 1 && late) {
        EXPECT_EQ(hetcomm_communicator_destroy(sub), HETCOMM_OK) << hetcomm_last_error();
      }
      ASSERT_TRUE(me.meet());
      if (me.rank() == 0) {
        EXPECT_TRUE(send_some(sub, 1, 0)) << "on the communicator that closes";
        // This message follows the others on the same connection.
        char letter = 'b';
        EXPECT_EQ(finish(me.send(1, 888'888, &letter, 1)).status, HETCOMM_OK);
      } else {
        char letter = 0;
        EXPECT_EQ(finish(me.recv(0, 888'888, &letter, 1)).status, HETCOMM_OK);
      }
      if (me.rank() == 0 || !late) {
        EXPECT_EQ(hetcomm_communicator_destroy(sub), HETCOMM_OK) << hetcomm_last_error();
      }
      tell(me);
      if (me.rank() == 0) {
        EXPECT_TRUE(send_some(me.communicator(), 1, 100)) << "on the one that stays";
        me.meet();
      } else {
        me.meet();  // all messages have left before any is received
        receive_some(me, 100);
      }
      tell(me);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

// The notified puts of all rounds together exceed the credit many times.
TEST_P(Credit, UnregisteringMemoryReturnsNotificationCredit) {
  CapiCase little = GetParam();
  little.settings += "CREDIT_BYTES=16K;";
  run_job(little, 2, [](Member& me) {
    constexpr uint64_t kPuts = 40;
    for (int round = 0; round < 5; ++round) {
      SCOPED_TRACE(round);
      hetcomm_memory_t* memory = nullptr;
      std::vector<std::byte> bytes(HETCOMM_EXPORT_MAX_BYTES);
      ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, 1000, &memory), HETCOMM_OK);
      if (me.rank() == 1) {
        ASSERT_EQ(hetcomm_memory_register(memory, me.communicator(), HETCOMM_ACCESS_ALL,
                                          HETCOMM_REGISTER_CALLER_PROGRESS),
                  HETCOMM_OK);
        size_t size = 0;
        ASSERT_EQ(hetcomm_memory_export(memory, bytes.size(), bytes.data(), &size), HETCOMM_OK);
        EXPECT_EQ(finish(me.send(0, 1, bytes.data(), size)).status, HETCOMM_OK);
        ASSERT_TRUE(me.meet());
        EXPECT_EQ(hetcomm_memory_unregister(memory, kPatienceNs), HETCOMM_OK);
      } else {
        const Outcome got = finish(me.recv(1, 1, bytes.data(), bytes.size()));
        hetcomm_remote_memory_t* remote = nullptr;
        ASSERT_EQ(
            hetcomm_memory_import(me.communicator(), bytes.data(), got.bytes_received, &remote),
            HETCOMM_OK);
        hetcomm_operation_options_t options = with_timeout(3 * kSec);
        options.flags = HETCOMM_OPERATION_NOTIFY;
        const uint64_t word = 7;
        for (uint64_t i = 0; i < kPuts; ++i) {
          hetcomm_request_t* request = nullptr;
          ASSERT_EQ(hetcomm_put(remote, 0, hetcomm_buffer_host(&word, 8), &options, &request),
                    HETCOMM_OK);
          const Outcome put = finish(request);
          ASSERT_EQ(put.status, HETCOMM_OK) << "put " << i << ": " << put.text;
        }
        EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
        ASSERT_TRUE(me.meet());
      }
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK) << hetcomm_last_error();
      tell(me);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, Credit,
    ::testing::Values(CapiCase{.name = "shm", .transports = "shm", .settings = ""},
                      CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
