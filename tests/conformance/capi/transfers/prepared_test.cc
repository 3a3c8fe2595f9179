// Operations that are started later.
//
// Prepared requests, started again after each kind of end:
//
//   * the record of a run shows nothing from an earlier run: no status, text, source, tag or length
//   * each start sets the deadline anew, however long ago the request was prepared
//
// Groups:
//
//   * operations, both receives and sends, start in the order in which they were collected
#include <algorithm>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kLimit = 200 * kMs;

class Prepared : public CapiTest {};

// The record of a run in which no message arrived.
void expect_no_message(hetcomm_request_t* request) {
  const uint64_t start = clock_ns();
  ASSERT_EQ(hetcomm_request_start(request), HETCOMM_OK) << hetcomm_last_error();
  const Outcome outcome = finish(request);
  EXPECT_EQ(outcome.status, HETCOMM_TIMED_OUT);
  EXPECT_EQ(outcome.source, -1) << "that of an earlier message";
  EXPECT_EQ(outcome.bytes_sent, 0u);
  EXPECT_EQ(outcome.bytes_received, 0u);
  EXPECT_GE(clock_ns() - start, kLimit - 2 * kMs) << "ended before its deadline";
  EXPECT_LT(clock_ns() - start, kLimit + 5 * kSec) << "another deadline than its own";
}

TEST_P(Prepared, EachStartResetsTheCompletionAndDeadline) {
  run_two([](Member& me) {
    // Only the first rank receives. In a job of one rank, that rank also sends.
    std::vector<std::byte> in(100);
    const hetcomm_buffer_t to = hetcomm_buffer_host(in.data(), in.size());
    const hetcomm_operation_options_t options = with_timeout(kLimit);
    hetcomm_request_t* receive = nullptr;
    const auto send = [&](uint64_t tag, uint64_t size) {
      const std::vector<std::byte> out = pattern(size, tag);
      EXPECT_EQ(finish(me.send(0, tag, out.data(), size)).status, HETCOMM_OK);
    };
    // The message has arrived when the receive is started.
    const auto receive_one = [&](uint64_t tag, uint64_t size) {
      me.meet();  // the previous run has ended
      if (me.rank() == me.size() - 1) send(tag, size);
      me.meet();
      if (me.rank() == 0) {
        hetcomm_completion_t message{};
        ASSERT_EQ(hetcomm_probe(me.communicator(), HETCOMM_ANY_SOURCE, 0, HETCOMM_ANY_TAG,
                                kPatienceNs, &message),
                  HETCOMM_OK);
        ASSERT_EQ(hetcomm_request_start(receive), HETCOMM_OK) << hetcomm_last_error();
        const Outcome outcome = finish(receive);
        EXPECT_EQ(outcome.status, size > in.size() ? HETCOMM_TRUNCATED : HETCOMM_OK)
            << outcome.text;
        EXPECT_EQ(outcome.source, me.size() - 1);
        EXPECT_EQ(outcome.tag, tag);
        EXPECT_EQ(outcome.bytes_sent, size);
        EXPECT_EQ(outcome.bytes_received, std::min<uint64_t>(size, in.size()));
      }
      me.meet();
    };
    if (me.rank() == 0) {
      ASSERT_EQ(hetcomm_recv_prepare(me.communicator(), HETCOMM_ANY_SOURCE, 0, HETCOMM_ANY_TAG, &to,
                                     1, &options, &receive),
                HETCOMM_OK);
      // This wait is as long as the deadline of the receive, which has not been started.
      (void)me.until([] { return false; }, kLimit);
    }
    receive_one(7, 60);
    if (me.rank() == 0) expect_no_message(receive);
    receive_one(8, 50);    // after a run that timed out
    receive_one(9, 150);   // the message is too long
    receive_one(10, 100);  // after a truncated message
    if (me.rank() == 0) {
      ASSERT_EQ(hetcomm_request_start(receive), HETCOMM_OK);
      EXPECT_EQ(hetcomm_request_cancel(receive), HETCOMM_OK);
      EXPECT_EQ(finish(receive).status, HETCOMM_CANCELLED);
    }
    receive_one(11, 1);  // after a cancelled run
    if (me.rank() == 0) {
      expect_no_message(receive);
      EXPECT_EQ(hetcomm_request_destroy(receive), HETCOMM_OK);
    }
    me.meet();
  });
}

TEST_P(Prepared, GroupStartsOperationsInTheOrderAdded) {
  run_two([](Member& me) {
    constexpr uint64_t kCount = 20;
    std::vector<uint64_t> out(kCount);
    std::vector<uint64_t> in(kCount, ~uint64_t{0});
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.group = group;
    // All messages have one tag, so only the order distinguishes them. One round has receives, the
    // other has sends.
    for (const bool receives : {true, false}) {
      std::vector<hetcomm_request_t*> requests;
      const auto receive_all = [&](const hetcomm_operation_options_t* how) {
        for (uint64_t i = 0; i < kCount; ++i) {
          requests.push_back(me.recv(me.partner(), 3, &in[i], 8, HETCOMM_EXACT_TAG, how));
        }
      };
      const auto send_all = [&](const hetcomm_operation_options_t* how) {
        for (uint64_t i = 0; i < kCount; ++i) {
          out[i] = i;
          requests.push_back(me.send(me.partner(), 3, &out[i], 8, how));
        }
      };
      if (receives) {
        receive_all(&options);
      } else {
        send_all(&options);
      }
      EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK);
      if (receives) {
        send_all(nullptr);
      } else {
        receive_all(nullptr);
      }
      finish_all(requests);
      for (uint64_t i = 0; i < kCount; ++i) {
        EXPECT_EQ(in[i], i) << (receives ? "receives" : "sends") << " of a group";
      }
      std::fill(in.begin(), in.end(), ~uint64_t{0});
    }
    hetcomm_group_destroy(group);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, Prepared,
    ::testing::Values(CapiCase{.name = "self", .transports = "self", .settings = ""},
                      CapiCase{.name = "shm", .transports = "shm", .settings = ""},
                      CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
