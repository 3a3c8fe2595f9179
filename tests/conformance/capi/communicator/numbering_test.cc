// Communicators whose rank numbers differ from their parent's, and the properties that a rebuild
// keeps:
//
//   * everything that names a rank (a message, a probe, a notification, a remote memory, counters,
//     the list for a collective operation) uses its number in the communicator
//   * memory of a rank outside of a communicator cannot be imported there, and a communicator
//     cannot be destroyed while a remote memory or a split from it exists
//   * a communicator that is rebuilt without options keeps its transports and gets the next epoch;
//     with a later epoch in the options, it gets the epoch after that one
#include <cstring>

#include "tests/conformance/capi/collective/collective.h"

namespace hetcomm_test {
namespace {

constexpr int32_t kRanks = 3;
constexpr uint64_t kTag = 5;

class Numbering : public CapiTest {};

// Rank numbers are those in |c|, where this rank is |own|.
void exchange_messages(hetcomm_communicator_t* c, int32_t own) {
  hetcomm_request_t* send = nullptr;
  const int64_t out = own;
  const int32_t next = (own + 1) % kRanks;
  const int32_t before = (own + kRanks - 1) % kRanks;
  ASSERT_EQ(hetcomm_send(c, next, kTag, hetcomm_buffer_host(&out, 8), nullptr, &send), HETCOMM_OK);
  for (const int32_t source : {HETCOMM_ANY_SOURCE, before}) {
    hetcomm_completion_t message{};
    ASSERT_EQ(hetcomm_probe(c, source, kTag, 0, kPatienceNs, &message), HETCOMM_OK)
        << hetcomm_last_error();
    EXPECT_EQ(message.source, before);
  }
  hetcomm_completion_t none{};
  EXPECT_EQ(hetcomm_probe(c, next, kTag, 0, HETCOMM_TIMEOUT_POLL, &none), HETCOMM_TIMED_OUT);
  int64_t in = -1;
  hetcomm_request_t* receive = nullptr;
  ASSERT_EQ(
      hetcomm_recv(c, HETCOMM_ANY_SOURCE, kTag, 0, hetcomm_buffer_host(&in, 8), nullptr, &receive),
      HETCOMM_OK);
  const Outcome outcome = finish(receive);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  EXPECT_EQ(outcome.source, before);
  EXPECT_EQ(in, before);
  EXPECT_EQ(finish(send).source, own);
}

void use_memory(Member& me, hetcomm_communicator_t* c, int32_t own) {
  hetcomm_memory_t* memory = nullptr;
  ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, 1000, &memory), HETCOMM_OK);
  ASSERT_EQ(
      hetcomm_memory_register(memory, c, HETCOMM_ACCESS_ALL, HETCOMM_REGISTER_CALLER_PROGRESS),
      HETCOMM_OK);
  std::vector<std::byte> mine(HETCOMM_EXPORT_MAX_BYTES);
  std::vector<std::byte> all(mine.size() * kRanks);
  size_t size = 0;
  ASSERT_EQ(hetcomm_memory_export(memory, mine.size(), mine.data(), &size), HETCOMM_OK);
  hetcomm_request_t* request = nullptr;
  hetcomm_status_t call =
      hetcomm_allgather(c, buffer(mine), buffer(all), HETCOMM_UINT8, nullptr, &request);
  expect_ok(call, request, "allgather");
  const int32_t next = (own + 1) % kRanks;
  hetcomm_remote_memory_t* remote = nullptr;
  // All exports have the same length.
  ASSERT_EQ(hetcomm_memory_import(c, &all[static_cast<size_t>(next) * mine.size()], size, &remote),
            HETCOMM_OK)
      << hetcomm_last_error();
  hetcomm_remote_memory_info_t info{};
  info.struct_size = sizeof(info);
  EXPECT_EQ(hetcomm_remote_memory_info(remote, &info), HETCOMM_OK);
  EXPECT_EQ(info.rank, next);
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.flags = HETCOMM_OPERATION_NOTIFY;
  const int64_t word = own;
  call = hetcomm_put(remote, 8, hetcomm_buffer_host(&word, 8), &options, &request);
  expect_ok(call, request, "put");
  hetcomm_notification_t notification{};
  EXPECT_EQ(hetcomm_memory_wait_notification(memory, kPatienceNs, &notification), HETCOMM_OK);
  EXPECT_EQ(notification.source, (own + kRanks - 1) % kRanks);
  call = hetcomm_flush(c, next, nullptr, &request);
  expect_ok(call, request, "flush");
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    hetcomm_counters_t counters[4] = {{.struct_size = sizeof(counters[0])}};
    size_t count = 0;
    EXPECT_EQ(hetcomm_communicator_counters(c, rank, 4, counters, &count), HETCOMM_OK);
    uint64_t puts = 0;
    for (size_t i = 0; i < count; ++i) puts += counters[i].puts;
    EXPECT_EQ(puts, rank == next ? 1u : 0u) << "to rank " << rank;
  }
  ASSERT_TRUE(me.meet());
  EXPECT_EQ(hetcomm_memory_unregister(memory, kPatienceNs), HETCOMM_OK);
  EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
  EXPECT_EQ(hetcomm_communicator_destroy(c), HETCOMM_BUSY) << "it has a remote memory";
  EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
}

// The list has the last two ranks, the last one first. Roots and parts are numbered within the
// list.
void use_list(hetcomm_communicator_t* c, int32_t own) {
  if (own == 0) return;
  const int32_t list[] = {2, 1};
  hetcomm_collective_options_t options = no_options();
  options.ranks = list;
  options.rank_count = 2;
  hetcomm_request_t* request = nullptr;
  std::vector<int64_t> word{own};
  hetcomm_status_t call = hetcomm_broadcast(c, 0, buffer(word), HETCOMM_INT64, &options, &request);
  expect_ok(call, request, "broadcast");
  EXPECT_EQ(word[0], 2);
  word[0] = own;
  std::vector<int64_t> both(2);
  call = hetcomm_allgather(c, buffer(word), buffer(both), HETCOMM_INT64, &options, &request);
  expect_ok(call, request, "allgather");
  EXPECT_EQ(both, (std::vector<int64_t>{2, 1}));
}

TEST_P(Numbering, CallsUseTheRankNumbersOfTheirCommunicator) {
  run(kRanks, [](Member& me) {
    hetcomm_communicator_t* backwards = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, -me.rank(), &backwards), HETCOMM_OK)
        << hetcomm_last_error();
    int32_t own = -1;
    int32_t size = -1;
    ASSERT_EQ(hetcomm_communicator_rank(backwards, &own, &size), HETCOMM_OK);
    ASSERT_EQ(own, kRanks - 1 - me.rank());
    ASSERT_EQ(size, kRanks);
    exchange_messages(backwards, own);
    use_memory(me, backwards, own);
    use_list(backwards, own);
    hetcomm_communicator_t* again = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(backwards, 0, 0, &again), HETCOMM_OK);
    ASSERT_TRUE(me.meet());
    EXPECT_EQ(hetcomm_communicator_destroy(me.communicator()), HETCOMM_BUSY) << "split of it";
    EXPECT_EQ(hetcomm_communicator_destroy(backwards), HETCOMM_BUSY) << "split of a split one";
    EXPECT_EQ(hetcomm_communicator_destroy(again), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_communicator_destroy(backwards), HETCOMM_OK) << hetcomm_last_error();
  });
}

// The owner, rank 0 of the parent, is not in the communicator of the other two.
TEST_P(Numbering, MemoryOfANonMemberCannotBeImported) {
  run(kRanks, [](Member& me) {
    hetcomm_communicator_t* part = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), me.rank() == 0 ? 0 : 1, 0, &part),
              HETCOMM_OK);
    std::vector<std::byte> bytes(HETCOMM_EXPORT_MAX_BYTES);
    if (me.rank() == 0) {
      hetcomm_memory_t* memory = nullptr;
      ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, 1000, &memory), HETCOMM_OK);
      ASSERT_EQ(hetcomm_memory_register(memory, me.communicator(), HETCOMM_ACCESS_ALL,
                                        HETCOMM_REGISTER_CALLER_PROGRESS),
                HETCOMM_OK);
      size_t size = 0;
      ASSERT_EQ(hetcomm_memory_export(memory, bytes.size(), bytes.data(), &size), HETCOMM_OK);
      for (const int32_t rank : {1, 2}) {
        EXPECT_EQ(finish(me.send(rank, kTag, bytes.data(), size)).status, HETCOMM_OK);
      }
      ASSERT_TRUE(me.meet());
      EXPECT_EQ(hetcomm_memory_unregister(memory, kPatienceNs), HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
    } else {
      const Outcome got = finish(me.recv(0, kTag, bytes.data(), bytes.size()));
      hetcomm_remote_memory_t* remote = nullptr;
      EXPECT_EQ(hetcomm_memory_import(part, bytes.data(), got.bytes_received, &remote),
                HETCOMM_OUT_OF_RANGE);
      EXPECT_EQ(remote, nullptr);
      EXPECT_EQ(hetcomm_memory_import(me.communicator(), bytes.data(), got.bytes_received, &remote),
                HETCOMM_OK)
          << hetcomm_last_error();
      EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
      ASSERT_TRUE(me.meet());
    }
    EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
  });
}

TEST_P(Numbering, RebuildIncrementsTheEpochAndKeepsTransports) {
  run(2, [](Member& me) {
    hetcomm_communicator_t* before = me.communicator();
    for (uint32_t round = 0; round < 3; ++round) {
      hetcomm_bootstrap_t* bootstrap =
          me.make_bootstrap("epoch" + std::to_string(round), me.rank(), me.size());
      hetcomm_communicator_options_t options{};
      options.struct_size = sizeof(options);
      options.epoch = round == 1 ? 9 : 0;
      hetcomm_communicator_t* fresh = nullptr;
      ASSERT_EQ(
          hetcomm_communicator_rebuild(before, bootstrap, round == 0 ? nullptr : &options, &fresh),
          HETCOMM_OK)
          << hetcomm_last_error();
      hetcomm_bootstrap_destroy(bootstrap);
      uint32_t epoch = 0;
      EXPECT_EQ(hetcomm_communicator_epoch(fresh, &epoch), HETCOMM_OK);
      EXPECT_EQ(epoch, round == 0 ? 1u : round == 1 ? 10u : 11u);
      ring(fresh, 4);
      hetcomm_counters_t counters[4] = {{.struct_size = sizeof(counters[0])}};
      size_t count = 0;
      EXPECT_EQ(hetcomm_communicator_counters(fresh, me.partner(), 4, counters, &count),
                HETCOMM_OK);
      ASSERT_EQ(count, 1u);
      EXPECT_EQ(counters[0].transport, me.test_case().transports);
      ASSERT_TRUE(me.meet());
      if (round > 0) {
        EXPECT_EQ(hetcomm_communicator_destroy(before), HETCOMM_OK) << hetcomm_last_error();
      }
      before = fresh;
    }
    EXPECT_EQ(hetcomm_communicator_destroy(before), HETCOMM_OK) << hetcomm_last_error();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, Numbering,
    ::testing::Values(CapiCase{.name = "shm", .transports = "shm", .settings = ""},
                      CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
