// The first reason for a failure is passed on. Operations of every kind fail on rank 0, in every
// way that makes them fail only there, with host and device memory, which rank 0 sends or receives.
// Afterwards
//   * rank 0 ends with its own status: CANCELLED, TIMED_OUT or DEVICE_LOST
//   * every other involved rank, one or two hops away, ends with ABORTED, and its text has "rank 0:
//     " and that status, once
//   * if a device of rank 0 has failed, the text on every rank contains that device's text
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "devices/registry.h"
#include "tests/conformance/capi/device/device.h"
#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kBytes = 3'000'000;
// At this rate all bytes take at least a tenth of a second.
constexpr const char* kSlow = "bandwidth=20M";
constexpr uint64_t kTag = 7;

enum class Cause : uint8_t { kCancel, kDeadline, kDevice };
// Device copies, by purpose.
enum class Copies : uint8_t { kNone, kSent, kReceived };
struct Kind {
  const char* name;
  int32_t ranks;
  // Starts the operation on this rank.
  hetcomm_request_t* (*start)(class Party& party, uint64_t timeout_ns);
  // The copies on rank 0's device that the operation needs.
  Copies copies;
  // This kind runs only with a failing device.
  bool by_device_only = false;
};

// The copies on rank 0's devices that fail.
std::atomic<Copies> g_failing{Copies::kNone};

// Returns the table of a simulated device with another name. |kFails|: its copies may fail.
template <bool kFails>
const hetcomm_device_table_t& slow_table(const hetcomm_device_table_t& real_table) {
  static hetcomm_device_table_t real;
  static hetcomm_device_table_t table;
  static const bool made = [&] {
    real = table = real_table;
    table.kind = kFails ? "failing" : "slow";
    table.copy_rows_to_host = nullptr;
    table.copy_rows_from_host = nullptr;
    table.copy_to_host = [](void* device, void* stream, void* host, const void* address,
                            uint64_t offset, uint64_t size) {
      return kFails && g_failing == Copies::kSent
                 ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                 : real.copy_to_host(device, stream, host, address, offset, size);
    };
    table.copy_from_host = [](void* device, void* stream, void* address, uint64_t offset,
                              const void* host, uint64_t size) {
      return kFails && g_failing == Copies::kReceived
                 ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                 : real.copy_from_host(device, stream, address, offset, host, size);
    };
    return true;
  }();
  static_cast<void>(made);
  return table;
}

int32_t add_device(Member& me, bool fails) {
  const hetcomm::Device made = hetcomm::create_sim_device("sim-address", kSlow).value();
  const hetcomm_device_t device{
      fails ? &slow_table<true>(*made.table) : &slow_table<false>(*made.table), made.instance};
  int32_t index = -1;
  EXPECT_EQ(hetcomm_device_add(me.context(), &device, &index), HETCOMM_OK) << hetcomm_last_error();
  return index;
}

// One rank, with its memory and the objects that it has made for the operation.
class Party {
 public:
  Party(Member& me, bool on_device)
      : me_(me),
        out_(me, on_device || me.rank() != 0 ? add_device(me, me.rank() == 0) : 0, kBytes),
        in_(me, on_device || me.rank() != 0 ? add_device(me, me.rank() == 0) : 0, kBytes) {}
  Member& me() { return me_; }
  hetcomm_buffer_t out() { return out_.part(0, kBytes); }
  hetcomm_buffer_t in() { return in_.part(0, kBytes); }

  hetcomm_queue_t* queue = nullptr;
  hetcomm_reshard_t* plan = nullptr;

 private:
  Member& me_;
  DeviceMemory out_;
  DeviceMemory in_;
};

hetcomm_request_t* start_message(Party& party, uint64_t timeout_ns) {
  const hetcomm_operation_options_t options = with_timeout(timeout_ns);
  hetcomm_communicator_t* const world = party.me().communicator();
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(party.me().rank() == 0
                ? hetcomm_send(world, 1, kTag, party.out(), &options, &request)
                : hetcomm_recv(world, 0, kTag, HETCOMM_EXACT_TAG, party.in(), &options, &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

hetcomm_request_t* start_received(Party& party, uint64_t timeout_ns) {
  const hetcomm_operation_options_t options = with_timeout(timeout_ns);
  hetcomm_communicator_t* const world = party.me().communicator();
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(party.me().rank() == 1
                ? hetcomm_send(world, 0, kTag, party.out(), &options, &request)
                : hetcomm_recv(world, 1, kTag, HETCOMM_EXACT_TAG, party.in(), &options, &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

hetcomm_request_t* start_item_of(Party& party, int32_t pusher, uint64_t timeout_ns) {
  const bool pushes = party.me().rank() == pusher;
  const hetcomm_queue_options_t terms{.struct_size = sizeof(terms),
                                      .tag = 0,
                                      .max_item_bytes = kBytes,
                                      .depth = 2,
                                      .weight = 0,
                                      .max_bytes_per_second = 0};
  EXPECT_EQ(
      hetcomm_queue_create(party.me().communicator(), 1 - party.me().rank(),
                           pushes ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL, &terms, &party.queue),
      HETCOMM_OK)
      << hetcomm_last_error();
  const hetcomm_operation_options_t options = with_timeout(timeout_ns);
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(pushes ? hetcomm_queue_push(party.queue, party.out(), &options, &request)
                   : hetcomm_queue_pull(party.queue, party.in(), &options, &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

hetcomm_request_t* start_item(Party& party, uint64_t timeout_ns) {
  return start_item_of(party, 0, timeout_ns);
}

hetcomm_request_t* start_pulled(Party& party, uint64_t timeout_ns) {
  return start_item_of(party, 1, timeout_ns);
}

hetcomm_layout_t* layout_on(int32_t rank) {
  const uint64_t shape = kBytes / 4;
  hetcomm_part_t part{};
  part.rank = rank;
  part.end[0] = shape;
  hetcomm_layout_t* layout = nullptr;
  EXPECT_EQ(hetcomm_layout_from_parts(1, &shape, &part, 1, nullptr, &layout), HETCOMM_OK)
      << hetcomm_last_error();
  return layout;
}

// Tensors move between ranks 0 and 1, and between 1 and 2. Rank 2 exchanges nothing with rank 0.
// They move away from rank 0, or towards it.
hetcomm_request_t* start_chain_of(Party& party, bool away, uint64_t timeout_ns) {
  const std::array<hetcomm_layout_t*, 3> on = {layout_on(0), layout_on(1), layout_on(2)};
  std::array<hetcomm_reshard_tensor_t, 2> tensors = {
      {{on[0], on[1], HETCOMM_UINT32, HETCOMM_UINT32},
       {on[1], on[2], HETCOMM_UINT32, HETCOMM_UINT32}}};
  for (hetcomm_reshard_tensor_t& each : tensors) {
    if (!away) std::swap(each.source, each.destination);
  }
  EXPECT_EQ(hetcomm_reshard_create(party.me().communicator(), tensors.data(), tensors.size(),
                                   nullptr, &party.plan),
            HETCOMM_OK)
      << hetcomm_last_error();
  for (hetcomm_layout_t* layout : on) EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  const std::array<hetcomm_buffer_t, 2> out = {party.out(), party.out()};
  const std::array<hetcomm_buffer_t, 2> in = {party.in(), party.in()};
  const hetcomm_operation_options_t options = with_timeout(timeout_ns);
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_reshard_start(party.plan, out.data(), in.data(), &options, &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

hetcomm_request_t* start_chain(Party& party, uint64_t timeout_ns) {
  return start_chain_of(party, true, timeout_ns);
}

hetcomm_request_t* start_chain_back(Party& party, uint64_t timeout_ns) {
  return start_chain_of(party, false, timeout_ns);
}

hetcomm_request_t* start_allreduce(Party& party, uint64_t timeout_ns) {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_allreduce(party.me().communicator(), party.out(), party.in(), HETCOMM_INT32,
                              HETCOMM_REDUCE_SUM, &options, &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

constexpr std::array<Kind, 8> kKinds = {
    {{"message", 2, start_message, Copies::kSent},
     {"received message", 2, start_received, Copies::kReceived},
     {"item of a queue", 2, start_item, Copies::kSent},
     {"item that is pulled", 2, start_pulled, Copies::kReceived, true},
     {"redistribution", 3, start_chain, Copies::kSent},
     {"redistribution to rank 0", 3, start_chain_back, Copies::kReceived, true},
     {"allreduce", 3, start_allreduce, Copies::kSent},
     {"result of an allreduce", 3, start_allreduce, Copies::kReceived, true}}};

bool is_redistribution(const Kind& kind) {
  return kind.start == start_chain || kind.start == start_chain_back;
}

size_t count_of(const std::string& what, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

void fail_at_rank_0(Member& me, const Kind& kind, Cause cause, bool on_device) {
  Party party(me, on_device);
  if (me.rank() == 0) g_failing = Copies::kNone;
  ASSERT_TRUE(me.meet());
  if (me.rank() == 0 && cause == Cause::kDevice) g_failing = kind.copies;
  ASSERT_TRUE(me.meet());
  const bool fails = me.rank() == 0;
  // If rank 0 gives up a message before the other rank has begun with it, only rank 0 knows.
  const bool is_message = kind.start == start_message || kind.start == start_received;
  if (is_message && fails) {
    ASSERT_TRUE(me.meet());
  }
  hetcomm_request_t* const request =
      kind.start(party, fails && cause == Cause::kDeadline ? 40 * kMs : 0);
  if (is_message && !fails) {
    ASSERT_TRUE(me.meet());
  }
  if (fails && cause == Cause::kCancel) {
    usleep(40'000);
    EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
  }
  const Outcome outcome = finish(request);
  const hetcomm_status_t own = cause == Cause::kCancel     ? HETCOMM_CANCELLED
                               : cause == Cause::kDeadline ? HETCOMM_TIMED_OUT
                                                           : HETCOMM_DEVICE_LOST;
  if (fails) {
    EXPECT_EQ(outcome.status, own) << outcome.text;
  } else {
    EXPECT_EQ(outcome.status, HETCOMM_ABORTED)
        << hetcomm_status_name(outcome.status) << " " << outcome.text;
    // On a busy machine the other ranks may start later, and then no data of the execution has
    // moved.
    const std::string given_up =
        std::string("rank 0 has given up redistribution #0 (") + hetcomm_status_name(own) + "): ";
    if (is_redistribution(kind) && count_of(given_up, outcome.text) == 1) {
      EXPECT_NE(cause, Cause::kDevice) << outcome.text;
      EXPECT_EQ(count_of("redistribution #", outcome.text), 2U) << outcome.text;
    } else {
      const std::string origin = std::string("rank 0: ") + hetcomm_status_name(own) + ": ";
      EXPECT_EQ(count_of(origin, outcome.text), 1U) << outcome.text;
      EXPECT_EQ(count_of("redistribution #", outcome.text), is_redistribution(kind) ? 1U : 0U)
          << outcome.text;
    }
  }
  if (cause == Cause::kDevice) {
    EXPECT_EQ(count_of("failing: a copy or a sum of the device failed", outcome.text), 1U)
        << outcome.text;
  }
  ASSERT_TRUE(me.meet());
  if (me.rank() == 0) g_failing = Copies::kNone;
  if (party.queue != nullptr) {
    EXPECT_EQ(hetcomm_queue_destroy(party.queue), HETCOMM_OK) << hetcomm_last_error();
  }
  if (party.plan != nullptr) {
    EXPECT_EQ(hetcomm_reshard_destroy(party.plan), HETCOMM_OK) << hetcomm_last_error();
  }
  ASSERT_TRUE(me.meet());
}

class Reasons : public CapiTest {};

TEST_P(Reasons, FirstFailureReasonReachesEveryRank) {
  CapiCase test_case = GetParam();
  test_case.thread_progress = true;
  for (const Kind& kind : kKinds) {
    for (const Cause cause : {Cause::kCancel, Cause::kDeadline, Cause::kDevice}) {
      for (const bool on_device : {false, true}) {
        // Rank 0 must use its device memory.
        if (cause == Cause::kDevice && !on_device) continue;
        if (cause != Cause::kDevice && kind.by_device_only) continue;
        SCOPED_TRACE(std::string(kind.name) + ", cause " + std::to_string(static_cast<int>(cause)) +
                     (on_device ? ", device" : ", host"));
        run_job(test_case, kind.ranks,
                [&](Member& me) { fail_at_rank_0(me, kind, cause, on_device); });
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Over, Reasons,
    ::testing::Values(CapiCase{.name = "tcp", .transports = "tcp", .settings = ""},
                      CapiCase{.name = "shm", .transports = "shm", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
