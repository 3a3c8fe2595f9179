// Operations in the order of a user's stream (hetcomm/stream.h), here OpenCL queues that the test
// creates, in-order and out-of-order, from two vendors:
//
//   * an operation runs between the queue's earlier and later work, without a waiting host thread
//   * a group starts as one; collective operations, with or without a stream, keep their order
//   * executions of one redistribution keep their order; executions of several, and collective
//     operations, are unordered among each other
//   * an operation that is cancelled, late, or fails releases the stream
//   * thousands of waiting operations all succeed
//   * an object that is not a stream is refused, and a stream in use is not released
//
// A gate represents a long-running kernel: the queue waits there until the test opens the gate.
#include <time.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tests/conformance/capi/device/opencl.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kShort = 50 * kMs;

// Makes a queue wait until open().
class Gate {
 public:
  Gate(const Framework& framework, cl_command_queue queue) : api_(framework.api()) {
    cl_int status = CL_SUCCESS;
    event_ = api_.CreateUserEvent(framework.context(), &status);
    EXPECT_EQ(status, CL_SUCCESS);
    EXPECT_EQ(api_.EnqueueBarrierWithWaitList(queue, 1, &event_, nullptr), CL_SUCCESS);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() {
    open();
    api_.ReleaseEvent(event_);
  }
  void open() {
    if (std::exchange(is_open_, true)) return;
    EXPECT_EQ(api_.SetUserEventStatus(event_, CL_COMPLETE), CL_SUCCESS);
  }

 private:
  const OpenCl& api_;
  cl_event event_ = nullptr;
  bool is_open_ = false;
};

// A queue, its stream, and a buffer in the same context.
class Rig {
 public:
  Rig(Member& me, Framework& framework, uint64_t size, bool out_of_order = false)
      : me_(me), framework_(framework), api_(framework.api()), size_(size) {
    device_ = add_device(me, framework);
    queue_ = framework.queue(out_of_order);
    EXPECT_EQ(hetcomm_stream_wrap(me.context(), device_, queue_, 0, &stream_), HETCOMM_OK)
        << hetcomm_last_error();
    buffer_ = framework.buffer(std::vector<std::byte>(size, std::byte{0}));
    EXPECT_EQ(hetcomm_memory_wrap(me.context(), device_, buffer_, size, &memory_), HETCOMM_OK)
        << hetcomm_last_error();
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  ~Rig() {
    EXPECT_EQ(api_.Finish(queue_), CL_SUCCESS);
    // The library may check the queue a moment after the queue is done.
    EXPECT_TRUE(me_.until([&] { return hetcomm_stream_destroy(stream_) != HETCOMM_BUSY; }));
    EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK) << hetcomm_last_error();
    framework_.release(buffer_);
    EXPECT_EQ(api_.ReleaseCommandQueue(queue_), CL_SUCCESS);
  }
  int32_t device() const { return device_; }
  cl_command_queue queue() const { return queue_; }
  hetcomm_stream_t* stream() const { return stream_; }
  hetcomm_memory_t* memory() const { return memory_; }
  hetcomm_buffer_t all() const { return hetcomm_buffer_memory(memory_, 0, size_); }
  hetcomm_buffer_t part(uint64_t at, uint64_t size) const {
    return hetcomm_buffer_memory(memory_, at, size);
  }
  hetcomm_operation_options_t options(uint64_t timeout_ns = 0,
                                      hetcomm_group_t* group = nullptr) const {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns;
    options.group = group;
    options.stream = stream_;
    return options;
  }
  hetcomm_request_t* send(int32_t to, uint64_t tag, const hetcomm_buffer_t& buffer,
                          const hetcomm_operation_options_t& options) const {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_send(me_.communicator(), to, tag, buffer, &options, &request), HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  hetcomm_request_t* recv(int32_t from, uint64_t tag, const hetcomm_buffer_t& buffer,
                          const hetcomm_operation_options_t& options) const {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_recv(me_.communicator(), from, tag, 0, buffer, &options, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  // Enqueues a write. The bytes remain valid until it has run. A barrier follows each command, for
  // out-of-order queues.
  void write(const std::vector<std::byte>& bytes) {
    EXPECT_EQ(api_.EnqueueWriteBuffer(queue_, buffer_, CL_FALSE, 0, bytes.size(), bytes.data(), 0,
                                      nullptr, nullptr),
              CL_SUCCESS);
    barrier();
  }
  void read(std::vector<std::byte>& bytes) {
    EXPECT_EQ(api_.EnqueueReadBuffer(queue_, buffer_, CL_FALSE, 0, bytes.size(), bytes.data(), 0,
                                     nullptr, nullptr),
              CL_SUCCESS);
    barrier();
  }
  // Returns whether the queue has done all its work within |within_ns|.
  bool is_done(uint64_t within_ns) {
    cl_event event = nullptr;
    EXPECT_EQ(api_.EnqueueMarkerWithWaitList(queue_, 0, nullptr, &event), CL_SUCCESS);
    EXPECT_EQ(api_.Flush(queue_), CL_SUCCESS);
    const bool done = me_.until(
        [&] {
          cl_int state = CL_QUEUED;
          EXPECT_EQ(api_.GetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state),
                                      &state, nullptr),
                    CL_SUCCESS);
          return state == CL_COMPLETE;
        },
        within_ns);
    EXPECT_EQ(api_.ReleaseEvent(event), CL_SUCCESS);
    return done;
  }

 private:
  void barrier() {
    EXPECT_EQ(api_.EnqueueBarrierWithWaitList(queue_, 0, nullptr, nullptr), CL_SUCCESS);
  }

  Member& me_;
  Framework& framework_;
  const OpenCl& api_;
  const uint64_t size_;
  int32_t device_ = -1;
  cl_command_queue queue_ = nullptr;
  hetcomm_stream_t* stream_ = nullptr;
  cl_mem buffer_ = nullptr;
  hetcomm_memory_t* memory_ = nullptr;
};

hetcomm_collective_options_t collective_options(hetcomm_stream_t* stream) {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.stream = stream;
  return options;
}

bool is_pending(hetcomm_request_t* request) {
  return hetcomm_request_test(request, nullptr) == HETCOMM_PENDING;
}

void expect_ok(hetcomm_request_t* request) {
  const Outcome outcome = finish(request);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
}

class Streams : public OpenClTest {};

// Rank 0's queue produces the data, sends it, and overwrites it. Rank 1's queue receives and reads
// it.
void pass_one(Member& me, Framework& framework, uint64_t size, bool out_of_order) {
  Rig rig(me, framework, size, out_of_order);
  const std::vector<std::byte> sent = pattern(size, size);
  const std::vector<std::byte> later(size, std::byte{0x55});
  std::vector<std::byte> got(size);
  std::optional<Gate> gate;
  if (me.rank() == 0) gate.emplace(framework, rig.queue());
  if (me.rank() == 0) rig.write(sent);
  hetcomm_request_t* const request = me.rank() == 0 ? rig.send(1, 1, rig.all(), rig.options())
                                                    : rig.recv(0, 1, rig.all(), rig.options());
  if (me.rank() == 0) {
    rig.write(later);
  } else {
    rig.read(got);
  }
  EXPECT_FALSE(rig.is_done(kShort));
  EXPECT_TRUE(is_pending(request));
  EXPECT_EQ(hetcomm_stream_destroy(rig.stream()), HETCOMM_BUSY);
  me.meet();
  if (gate) gate->open();
  expect_ok(request);
  EXPECT_TRUE(rig.is_done(kPatienceNs));
  if (me.rank() == 1) {
    EXPECT_TRUE(holds(got, size, size)) << size;
  }
  me.meet();
}

TEST_P(Streams, MessageRunsBetweenEarlierAndLaterWork) {
  run(2, [](Member& me) {
    for (const bool out_of_order : {false, true}) {
      Framework framework(me.rank() + (out_of_order ? 1 : 0));
      for (const uint64_t size : std::vector<uint64_t>{8, 5000, 300'000, 5'000'000}) {
        pass_one(me, framework, size, out_of_order);
      }
    }
  });
}

TEST_P(Streams, OperationsOfAGroupStartTogether) {
  run(2, [](Member& me) {
    constexpr uint64_t kHalf = 4'000'000;
    Framework framework(me.rank());
    Rig rig(me, framework, 2 * kHalf);
    const std::vector<std::byte> own = pattern(kHalf, 10 + static_cast<uint64_t>(me.rank()));
    std::vector<std::byte> got(2 * kHalf);
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
    Gate gate(framework, rig.queue());
    rig.write(own);
    // If run in sequence, these operations would wait for each other forever.
    const hetcomm_operation_options_t options = rig.options(0, group);
    hetcomm_request_t* const out = rig.send(me.partner(), 1, rig.part(0, kHalf), options);
    hetcomm_request_t* const in = rig.recv(me.partner(), 1, rig.part(kHalf, kHalf), options);
    // An operation that names no stream waits for the group's stream.
    uint64_t there = me.rank() == 0 ? 4711 : 0;
    hetcomm_operation_options_t plain = rig.options(0, group);
    plain.stream = nullptr;
    const hetcomm_buffer_t word = hetcomm_buffer_host(&there, sizeof(there));
    hetcomm_request_t* const third =
        me.rank() == 0 ? rig.send(1, 2, word, plain) : rig.recv(0, 2, word, plain);
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK) << hetcomm_last_error();
    rig.read(got);
    EXPECT_FALSE(rig.is_done(kShort));
    for (hetcomm_request_t* const each : {out, in, third}) EXPECT_TRUE(is_pending(each));
    me.meet();
    gate.open();
    for (hetcomm_request_t* const each : {out, in, third}) expect_ok(each);
    EXPECT_EQ(there, 4711u);
    EXPECT_TRUE(rig.is_done(kPatienceNs));
    const std::vector<std::byte> theirs(got.begin() + kHalf, got.end());
    EXPECT_TRUE(holds(theirs, 10 + static_cast<uint64_t>(me.partner()), kHalf));
    hetcomm_group_destroy(group);
    me.meet();
  });
}

TEST_P(Streams, CollectiveOperationsKeepTheirOrder) {
  run(3, [](Member& me) {
    constexpr size_t kCount = 100'000;
    Framework framework(me.rank());
    Rig rig(me, framework, kCount * sizeof(float));
    std::vector<float> values(kCount, static_cast<float>(me.rank() + 1));
    std::vector<std::byte> bytes(kCount * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    std::vector<std::byte> got(bytes.size());
    std::optional<Gate> gate;
    // Rank 0's stream is reached last, and only some ranks name streams.
    if (me.rank() == 0) gate.emplace(framework, rig.queue());
    rig.write(bytes);
    hetcomm_collective_options_t options = collective_options(rig.stream());
    std::array<hetcomm_request_t*, 3> requests{};
    std::array<uint64_t, 2> words{static_cast<uint64_t>(me.rank()) + 1, 0};
    const auto sum_words = [&](const hetcomm_collective_options_t* with, uint64_t& word,
                               hetcomm_request_t** out) {
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(&word, sizeof(word));
      EXPECT_EQ(hetcomm_allreduce(me.communicator(), buffer, buffer, HETCOMM_UINT64,
                                  HETCOMM_REDUCE_SUM, with, out),
                HETCOMM_OK)
          << hetcomm_last_error();
    };
    words[1] = 100 * words[0];
    EXPECT_EQ(hetcomm_allreduce(me.communicator(), rig.all(), rig.all(), HETCOMM_FLOAT32,
                                HETCOMM_REDUCE_SUM, &options, requests.data()),
              HETCOMM_OK)
        << hetcomm_last_error();
    sum_words(nullptr, words[0], &requests[1]);
    sum_words(me.rank() == 1 ? &options : nullptr, words[1], &requests[2]);
    rig.read(got);
    EXPECT_FALSE(rig.is_done(kShort));
    for (hetcomm_request_t* const each : requests) EXPECT_TRUE(is_pending(each));
    me.meet();
    if (gate) gate->open();
    for (hetcomm_request_t* const each : requests) expect_ok(each);
    EXPECT_EQ(words[0], 6u);
    EXPECT_EQ(words[1], 600u);
    EXPECT_TRUE(rig.is_done(kPatienceNs));
    std::memcpy(values.data(), got.data(), got.size());
    EXPECT_EQ(std::count(values.begin(), values.end(), 6.0F), static_cast<ptrdiff_t>(kCount));
    me.meet();
  });
}

// Moves |elements| words, in equal parts on the |from| ranks, to the |to| ranks.
hetcomm_reshard_t* make_plan(Member& me, uint64_t elements, const std::vector<int32_t>& from,
                             const std::vector<int32_t>& to, uint64_t tag = 0) {
  const hetcomm_placement_t parts{HETCOMM_PLACEMENT_SHARD, 0, 0, nullptr};
  hetcomm_layout_t* layouts[2] = {};
  for (int i = 0; i < 2; ++i) {
    const std::vector<int32_t>& ranks = i == 0 ? from : to;
    const uint64_t axis = ranks.size();
    EXPECT_EQ(hetcomm_layout_from_mesh(1, &elements, 1, &axis, ranks.data(), &parts, nullptr,
                                       &layouts[i]),
              HETCOMM_OK);
  }
  const hetcomm_reshard_tensor_t tensor{layouts[0], layouts[1], HETCOMM_UINT32, HETCOMM_UINT32};
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.in_flight = 4;
  options.tag = tag;
  hetcomm_reshard_t* plan = nullptr;
  EXPECT_EQ(hetcomm_reshard_create(me.communicator(), &tensor, 1, &options, &plan), HETCOMM_OK)
      << hetcomm_last_error();
  for (hetcomm_layout_t* const layout : layouts) {
    EXPECT_EQ(hetcomm_layout_destroy(layout), HETCOMM_OK);
  }
  return plan;
}

// Starts an execution on all |words|, which are both sources and destinations.
hetcomm_request_t* start_plan(hetcomm_reshard_t* plan, std::vector<uint32_t>& words,
                              const hetcomm_operation_options_t& options) {
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(words.data(), words.size() * 4);
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_reshard_start(plan, &buffer, &buffer, &options, &request), HETCOMM_OK)
      << hetcomm_last_error();
  return request;
}

// A plan that moves |elements| words from rank |from| to the other of two ranks.
class Redistribution {
 public:
  Redistribution(Member& me, int32_t from, uint64_t elements, uint64_t tag = 0)
      : plan_(make_plan(me, elements, {from}, {1 - from}, tag)) {}
  Redistribution(const Redistribution&) = delete;
  Redistribution& operator=(const Redistribution&) = delete;
  ~Redistribution() { EXPECT_EQ(hetcomm_reshard_destroy(plan_), HETCOMM_OK); }
  hetcomm_request_t* start(std::vector<uint32_t>& words,
                           const hetcomm_operation_options_t& options) const {
    return start_plan(plan_, words, options);
  }

 private:
  hetcomm_reshard_t* plan_ = nullptr;
};

// Rank 0's stream does not reach an execution. An execution of another plan, a collective operation
// and a message continue, all of which rank 1 has called before.
TEST_P(Streams, WaitingRedistributionDoesNotBlockOthers) {
  run(2, [](Member& me) {
    constexpr uint64_t kWords = 50'000;
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    std::optional<Gate> gate;
    if (me.rank() == 0) gate.emplace(framework, rig.queue());
    const Redistribution one(me, 0, kWords, 1);
    const Redistribution two(me, 1, kWords, 2);
    std::vector<uint32_t> first(kWords, me.rank() == 0 ? 11 : 0);
    std::vector<uint32_t> second(kWords, me.rank() == 1 ? 22 : 0);
    uint64_t word = 1;
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&word, sizeof(word));
    hetcomm_request_t* held = nullptr;
    hetcomm_request_t* sum = nullptr;
    if (me.rank() == 0) held = one.start(first, rig.options());
    const auto start_sum = [&] {
      EXPECT_EQ(hetcomm_allreduce(me.communicator(), buffer, buffer, HETCOMM_UINT64,
                                  HETCOMM_REDUCE_SUM, nullptr, &sum),
                HETCOMM_OK);
    };
    if (me.rank() == 1) start_sum();
    hetcomm_request_t* const other = two.start(second, with_timeout(0));
    if (me.rank() == 0) start_sum();
    if (me.rank() == 1) held = one.start(first, rig.options());
    expect_ok(other);
    expect_ok(sum);
    EXPECT_EQ(word, 2u);
    EXPECT_TRUE(
        std::all_of(second.begin(), second.end(), [](uint32_t each) { return each == 22; }));
    EXPECT_TRUE(is_pending(held));
    me.meet();
    if (gate) gate->open();
    expect_ok(held);
    EXPECT_TRUE(std::all_of(first.begin(), first.end(), [](uint32_t each) { return each == 11; }));
    me.meet();
  });
}

// The first execution waits for rank 0's stream, and rank 1's second one for its own.
TEST_P(Streams, ExecutionsOfOneRedistributionKeepTheirOrder) {
  run(2, [](Member& me) {
    constexpr uint64_t kWords = 50'000;
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    Gate gate(framework, rig.queue());
    const Redistribution plan(me, 0, kWords);
    std::vector<std::vector<uint32_t>> words;
    for (uint32_t i = 0; i < 3; ++i) words.emplace_back(kWords, me.rank() == 0 ? 100 + i : 0);
    hetcomm_request_t* requests[3] = {};
    for (int i = 0; i < 3; ++i) {
      requests[i] = plan.start(words[static_cast<size_t>(i)],
                               i == me.rank() ? rig.options() : with_timeout(0));
    }
    EXPECT_FALSE(rig.is_done(kShort));
    for (hetcomm_request_t* const each : requests) EXPECT_TRUE(is_pending(each));
    me.meet();
    gate.open();
    for (hetcomm_request_t* const each : requests) expect_ok(each);
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(words[i], std::vector<uint32_t>(kWords, 100 + i)) << i;
    }
    me.meet();
  });
}

// In one stream, each rank's sends precede its receives.
TEST_P(Streams, RedistributionsOfAGroupStartTogether) {
  run(2, [](Member& me) {
    constexpr uint64_t kWords = 50'000;
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    const Redistribution forward(me, 0, kWords, 1);
    const Redistribution backward(me, 1, kWords, 2);
    std::vector<uint32_t> first(kWords, me.rank() == 0 ? 11 : 0);
    std::vector<uint32_t> second(kWords, me.rank() == 1 ? 22 : 0);
    const auto start_both = [&](hetcomm_group_t* in) {
      std::array<hetcomm_request_t*, 2> requests{};
      if (me.rank() == 0) requests[0] = forward.start(first, rig.options(0, in));
      requests[1] = backward.start(second, rig.options(0, in));
      if (me.rank() == 1) requests[0] = forward.start(first, rig.options(0, in));
      return requests;
    };
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
    std::array<hetcomm_request_t*, 2> requests = start_both(group);
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK) << hetcomm_last_error();
    for (hetcomm_request_t* const each : requests) expect_ok(each);
    EXPECT_EQ(first, std::vector<uint32_t>(kWords, 11));
    EXPECT_EQ(second, std::vector<uint32_t>(kWords, 22));
    me.meet();
    // Without a group the stream's order applies, and the two ranks wait for each other.
    requests = start_both(nullptr);
    EXPECT_FALSE(rig.is_done(kShort));
    for (hetcomm_request_t* const each : requests) EXPECT_TRUE(is_pending(each));
    me.meet();
    // Once rank 0 cancels the second execution, rank 1's stream reaches the execution that rank 0
    // waits for.
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_request_cancel(requests[1]), HETCOMM_OK);
    }
    expect_ok(requests[0]);
    EXPECT_EQ(finish(requests[1]).status, me.rank() == 0 ? HETCOMM_CANCELLED : HETCOMM_ABORTED);
    me.meet();
    // No data of the cancelled execution had moved, so its plan survives.
    requests = start_both(group);
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK) << hetcomm_last_error();
    for (hetcomm_request_t* const each : requests) expect_ok(each);
    hetcomm_group_destroy(group);
    me.meet();
  });
}

// While the streams of both ranks are held back, one execution is cancelled, late, or abandoned by
// the other rank.
TEST_P(Streams, ExecutionEndedWhileItsStreamIsHeldDoesNotAffectOthers) {
  run(2, [](Member& me) {
    constexpr uint64_t kWords = 50'000;
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    const Redistribution plan(me, 0, kWords);
    for (const int32_t ends : {0, 1}) {
      std::vector<std::vector<uint32_t>> words;
      for (uint32_t i = 0; i < 3; ++i) words.emplace_back(kWords, me.rank() == 0 ? 100 + i : 0);
      std::vector<hetcomm_request_t*> requests;
      {
        Gate gate(framework, rig.queue());
        requests.push_back(plan.start(words[0], rig.options()));
        requests.push_back(
            plan.start(words[1], rig.options(me.rank() == ends ? kShort : kPatienceNs)));
        requests.push_back(plan.start(words[2], rig.options()));
        const Outcome outcome = finish(requests[1]);
        EXPECT_EQ(outcome.status, me.rank() == ends ? HETCOMM_TIMED_OUT : HETCOMM_ABORTED)
            << outcome.text;
        EXPECT_TRUE(is_pending(requests[0]));
        EXPECT_TRUE(is_pending(requests[2]));
        me.meet();
      }
      for (const uint32_t i : {0U, 2U}) {
        expect_ok(requests[i]);
        EXPECT_EQ(words[i], std::vector<uint32_t>(kWords, 100 + i)) << i;
      }
      me.meet();
    }
  });
}

// An execution by ranks 0, 1 and 2 waits for a stream on rank 0 that is held back. Rank 1 destroys
// its plan. Rank 2 learns of it, tells rank 0 and leaves, before or after rank 0 starts.
TEST_P(Streams, ExecutionWaitingForAStreamEndsWithTheFirstReason) {
  for (const bool is_late : {false, true}) {
    SCOPED_TRACE(is_late);
    run(3, [is_late](Member& me) {
      me.expect_ruin();
      Framework framework(me.rank());
      Rig rig(me, framework, 1000);
      std::vector<uint32_t> words(50'000, 1);
      hetcomm_reshard_t* const plan = make_plan(me, words.size(), {0, 1}, {2});
      const hetcomm_operation_options_t at_once = with_timeout(kPatienceNs);
      expect_ok(start_plan(plan, words, at_once));
      me.meet();
      std::optional<Gate> gate;
      if (me.rank() == 0) {
        gate.emplace(framework, rig.queue());
        hetcomm_request_t* behind = nullptr;
        if (!is_late) behind = start_plan(plan, words, rig.options());
        me.meet();
        if (is_late) {
          EXPECT_TRUE(me.until([&] {
            return hetcomm_communicator_peer_status(me.communicator(), 2) == HETCOMM_PEER_LOST;
          }));
          behind = start_plan(plan, words, rig.options());
        }
        const Outcome outcome = finish(behind);
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
        EXPECT_NE(outcome.text.find("rank 1"), std::string::npos) << outcome.text;
        EXPECT_EQ(outcome.text.find("rank 2 left"), std::string::npos) << outcome.text;
        gate.reset();
      } else {
        me.meet();
        if (me.rank() == 2) {
          const Outcome outcome = finish(start_plan(plan, words, at_once));
          EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
        }
      }
      EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
    });
  }
}

// Rank 1 refuses an execution and destroys its plan, as it may. Rank 0 calls that execution on a
// stream that is held back, before or after the refusal.
TEST_P(Streams, ExecutionWaitingForAStreamEndsWithAnEarlierRefusal) {
  for (const bool is_late : {false, true}) {
    SCOPED_TRACE(is_late);
    run(2, [is_late](Member& me) {
      Framework framework(me.rank());
      Rig rig(me, framework, 1000);
      std::vector<uint32_t> words(50'000, 1);
      hetcomm_reshard_t* const plan = make_plan(me, words.size(), {0}, {1});
      expect_ok(start_plan(plan, words, with_timeout(kPatienceNs)));
      me.meet();
      std::optional<Gate> gate;
      hetcomm_request_t* behind = nullptr;
      if (me.rank() == 0) {
        gate.emplace(framework, rig.queue());
        if (!is_late) behind = start_plan(plan, words, rig.options());
      } else {
        EXPECT_EQ(hetcomm_reshard_refuse(plan, "no"), HETCOMM_OK) << hetcomm_last_error();
        EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
      }
      me.meet();
      if (me.rank() == 0) {
        if (is_late) behind = start_plan(plan, words, rig.options());
        const Outcome outcome = finish(behind);
        EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
        EXPECT_NE(outcome.text.find("rank 1 has refused"), std::string::npos) << outcome.text;
        gate.reset();
        EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
      }
      me.meet();
    });
  }
}

TEST_P(Streams, OperationThatEndsBeforeItsTurnReleasesTheStream) {
  run(2, [](Member& me) {
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    std::vector<std::byte> got(1000);
    {
      Gate gate(framework, rig.queue());
      hetcomm_request_t* const late = rig.recv(me.partner(), 1, rig.all(), rig.options(kShort));
      hetcomm_request_t* const unwanted = rig.recv(me.partner(), 2, rig.all(), rig.options());
      hetcomm_request_t* const forgotten = rig.recv(me.partner(), 3, rig.all(), rig.options(kSec));
      rig.read(got);
      EXPECT_EQ(hetcomm_request_cancel(unwanted), HETCOMM_OK);
      EXPECT_EQ(finish(unwanted).status, HETCOMM_CANCELLED);
      EXPECT_EQ(hetcomm_request_destroy(forgotten), HETCOMM_OK);
      const Outcome outcome = finish(late);
      EXPECT_EQ(outcome.status, HETCOMM_TIMED_OUT);
      EXPECT_NE(outcome.text.find("stream"), std::string::npos) << outcome.text;
      EXPECT_FALSE(rig.is_done(kShort)) << "the gate is closed";
    }
    EXPECT_TRUE(rig.is_done(kPatienceNs));
    // None of these operations starts later and receives a message.
    me.meet();
    for (uint64_t tag = 1; tag <= 3; ++tag) {
      uint64_t in = 0;
      hetcomm_request_t* const receive = me.recv(me.partner(), tag, &in, sizeof(in));
      expect_ok(me.send(me.partner(), tag, &tag, sizeof(tag)));
      expect_ok(receive);
      EXPECT_EQ(in, tag);
    }
    // An operation that fails in its turn also releases the stream.
    hetcomm_request_t* const alone = rig.recv(me.partner(), 4, rig.all(), rig.options(kShort));
    rig.read(got);
    EXPECT_TRUE(rig.is_done(kPatienceNs));
    EXPECT_EQ(finish(alone).status, HETCOMM_TIMED_OUT);
    me.meet();
  });
}

TEST_P(Streams, LateCollectiveOperationFailsOnAllRanks) {
  run(2, [](Member& me) {
    me.expect_ruin();
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    std::optional<Gate> gate;
    if (me.rank() == 0) gate.emplace(framework, rig.queue());
    hetcomm_collective_options_t options = collective_options(rig.stream());
    if (me.rank() == 0) options.timeout_ns = 200 * kMs;
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_allreduce(me.communicator(), rig.all(), rig.all(), HETCOMM_UINT8,
                                HETCOMM_REDUCE_SUM, &options, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    const Outcome outcome = finish(request);
    EXPECT_EQ(outcome.status, me.rank() == 0 ? HETCOMM_TIMED_OUT : HETCOMM_ABORTED) << outcome.text;
    EXPECT_NE(outcome.text.find("stream"), std::string::npos) << outcome.text;
    me.meet();
  });
}

// An operation that was cancelled before its turn does not hold back any other, on this
// communicator or on a later one.
TEST_P(Streams, CancelledCollectiveOperationDoesNotBlockLaterOnes) {
  run(2, [](Member& me) {
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    Gate gate(framework, rig.queue());
    for (int round = 0; round < 3; ++round) {
      hetcomm_communicator_t* part = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &part), HETCOMM_OK);
      const auto barrier = [&](hetcomm_stream_t* stream) {
        const hetcomm_collective_options_t options = collective_options(stream);
        hetcomm_request_t* request = nullptr;
        EXPECT_EQ(hetcomm_barrier(part, &options, &request), HETCOMM_OK) << hetcomm_last_error();
        return request;
      };
      expect_ok(barrier(nullptr));
      hetcomm_request_t* const waiting = barrier(rig.stream());
      hetcomm_request_t* const behind_it = barrier(nullptr);
      me.meet();
      EXPECT_EQ(hetcomm_request_cancel(waiting), HETCOMM_OK);
      const hetcomm_status_t ended = finish(waiting).status;
      EXPECT_TRUE(ended == HETCOMM_CANCELLED || ended == HETCOMM_ABORTED) << ended;
      // The operations end immediately with the failure, although the queue is still held back.
      for (hetcomm_request_t* const each : {behind_it, barrier(nullptr)}) {
        const Outcome outcome = finish(each, 5 * kSec);
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
      }
      me.meet();
      EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
    }
    gate.open();
    EXPECT_TRUE(rig.is_done(kPatienceNs));
    me.meet();
  });
}

// The group's messages waited only for its turn among the collective operations.
TEST_P(Streams, MessagesStartIfTheCollectiveOperationOfTheirGroupIsCancelled) {
  run(2, [](Member& me) {
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    Rig open(me, framework, 1000);
    Gate gate(framework, rig.queue());
    hetcomm_communicator_t* part = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &part), HETCOMM_OK);
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(part, &group), HETCOMM_OK);
    const auto barrier = [&](hetcomm_stream_t* stream, hetcomm_group_t* of) {
      hetcomm_collective_options_t options = collective_options(stream);
      options.group = of;
      hetcomm_request_t* request = nullptr;
      EXPECT_EQ(hetcomm_barrier(part, &options, &request), HETCOMM_OK) << hetcomm_last_error();
      return request;
    };
    hetcomm_request_t* const first = barrier(rig.stream(), nullptr);
    hetcomm_request_t* const second = barrier(open.stream(), group);
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.group = group;
    uint64_t value = me.rank() == 0 ? 7 : 0;
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&value, sizeof(value));
    hetcomm_request_t* message = nullptr;
    EXPECT_EQ(me.rank() == 0 ? hetcomm_send(part, 1, 5, buffer, &options, &message)
                             : hetcomm_recv(part, 0, 5, 0, buffer, &options, &message),
              HETCOMM_OK)
        << hetcomm_last_error();
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK) << hetcomm_last_error();
    // This rank's own queue has reached the group by now.
    EXPECT_FALSE(me.until([&] { return !is_pending(message); }, kShort));
    me.meet();
    EXPECT_EQ(hetcomm_request_cancel(second), HETCOMM_OK);
    for (hetcomm_request_t* const each : {first, second}) {
      const hetcomm_status_t ended = finish(each).status;
      EXPECT_TRUE(ended == HETCOMM_CANCELLED || ended == HETCOMM_ABORTED) << ended;
    }
    // The other queue is still held back.
    const Outcome outcome = finish(message, 5 * kSec);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    EXPECT_EQ(value, 7U);
    hetcomm_group_destroy(group);
    me.meet();
    EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
    gate.open();
    EXPECT_TRUE(rig.is_done(kPatienceNs));
    me.meet();
  });
}

TEST_P(Streams, AbortEndsAGroup) {
  run(2, [](Member& me) {
    me.expect_ruin();
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    Gate gate(framework, rig.queue());
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
    hetcomm_request_t* const before = rig.recv(me.partner(), 1, rig.all(), rig.options());
    me.meet();
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "enough"), HETCOMM_OK);
    }
    EXPECT_EQ(finish(before).status, HETCOMM_ABORTED);
    hetcomm_request_t* const grouped = rig.recv(me.partner(), 1, rig.all(), rig.options(0, group));
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK);
    EXPECT_EQ(finish(grouped, 5 * kSec).status, HETCOMM_ABORTED);
    hetcomm_request_t* const single = rig.recv(me.partner(), 1, rig.all(), rig.options());
    EXPECT_EQ(finish(single, 5 * kSec).status, HETCOMM_ABORTED);
    hetcomm_group_destroy(group);
    gate.open();
    EXPECT_TRUE(rig.is_done(kPatienceNs));
  });
}

TEST_P(Streams, AbortEndsWaitingOperations) {
  run(2, [](Member& me) {
    me.expect_ruin();
    Framework framework(me.rank());
    Rig rig(me, framework, 1000);
    Gate gate(framework, rig.queue());
    hetcomm_request_t* const waiting = rig.recv(me.partner(), 1, rig.all(), rig.options());
    me.meet();
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "enough"), HETCOMM_OK);
    }
    EXPECT_EQ(finish(waiting).status, HETCOMM_ABORTED);
    gate.open();
    EXPECT_TRUE(rig.is_done(kPatienceNs));
  });
}

TEST_P(Streams, PreparedOperationRunsAtEachStart) {
  run(2, [](Member& me) {
    constexpr uint64_t kSize = 40'000;
    Framework framework(me.rank());
    Rig rig(me, framework, kSize);
    const hetcomm_operation_options_t options = rig.options();
    const hetcomm_buffer_t all = rig.all();
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(me.rank() == 0
                  ? hetcomm_send_prepare(me.communicator(), 1, 1, &all, 1, &options, &request)
                  : hetcomm_recv_prepare(me.communicator(), 0, 1, 0, &all, 1, &options, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    std::vector<std::byte> got(kSize);
    for (uint64_t round = 1; round <= 5; ++round) {
      const std::vector<std::byte> sent = pattern(kSize, round);
      Gate gate(framework, rig.queue());
      if (me.rank() == 0) rig.write(sent);
      EXPECT_EQ(hetcomm_request_start(request), HETCOMM_OK) << hetcomm_last_error();
      rig.read(got);
      gate.open();
      expect_ok(request);
      EXPECT_TRUE(rig.is_done(kPatienceNs));
      EXPECT_TRUE(holds(got, round, kSize)) << round;
    }
    EXPECT_EQ(hetcomm_stream_destroy(rig.stream()), HETCOMM_BUSY) << "the request names it";
    EXPECT_EQ(hetcomm_request_destroy(request), HETCOMM_OK);
    me.meet();
  });
}

TEST_P(Streams, OneSidedOperationsFollowTheStream) {
  run(2, [](Member& me) {
    constexpr uint64_t kSize = 600'000;
    Framework framework(me.rank());
    Rig rig(me, framework, kSize);
    hetcomm_memory_t* window = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, kSize, &window), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_register(window, me.communicator(), HETCOMM_ACCESS_ALL, 0),
              HETCOMM_OK);
    std::vector<std::byte> mine(HETCOMM_EXPORT_MAX_BYTES);
    std::vector<std::byte> theirs(HETCOMM_EXPORT_MAX_BYTES);
    size_t size = 0;
    ASSERT_EQ(hetcomm_memory_export(window, mine.size(), mine.data(), &size), HETCOMM_OK);
    hetcomm_request_t* const in = me.recv(me.partner(), 9, theirs.data(), theirs.size());
    expect_ok(me.send(me.partner(), 9, mine.data(), size));
    expect_ok(in);
    hetcomm_remote_memory_t* remote = nullptr;
    ASSERT_EQ(hetcomm_memory_import(me.communicator(), theirs.data(), size, &remote), HETCOMM_OK)
        << hetcomm_last_error();
    if (me.rank() == 0) {
      const std::vector<std::byte> sent = pattern(kSize, 3);
      std::vector<std::byte> back(kSize);
      const hetcomm_operation_options_t options = rig.options();
      Gate gate(framework, rig.queue());
      rig.write(sent);
      std::array<hetcomm_request_t*, 3> requests{};
      EXPECT_EQ(hetcomm_put(remote, 0, rig.all(), &options, requests.data()), HETCOMM_OK)
          << hetcomm_last_error();
      rig.write(std::vector<std::byte>(kSize, std::byte{0}));
      EXPECT_EQ(hetcomm_get(remote, 0, rig.all(), &options, &requests[1]), HETCOMM_OK)
          << hetcomm_last_error();
      uint64_t previous = 0;
      EXPECT_EQ(hetcomm_fetch_add(remote, 0, 1, &previous, &options, &requests[2]), HETCOMM_OK)
          << hetcomm_last_error();
      rig.read(back);
      EXPECT_FALSE(rig.is_done(kShort));
      gate.open();
      for (hetcomm_request_t* const each : requests) expect_ok(each);
      EXPECT_TRUE(rig.is_done(kPatienceNs));
      EXPECT_TRUE(holds(back, 3, kSize));
      uint64_t first = 0;
      std::memcpy(&first, sent.data(), sizeof(first));
      EXPECT_EQ(previous, first);
    }
    me.meet();
    EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
    me.meet();
    EXPECT_EQ(hetcomm_memory_unregister(window, 0), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(window), HETCOMM_OK);
  });
}

TEST_P(Streams, QueueItemsFollowTheStream) {
  run(2, [](Member& me) {
    constexpr uint64_t kSize = 200'000;
    Framework framework(me.rank());
    Rig rig(me, framework, kSize);
    hetcomm_queue_options_t queue_options{};
    queue_options.struct_size = sizeof(queue_options);
    queue_options.max_item_bytes = kSize;
    hetcomm_queue_t* queue = nullptr;
    ASSERT_EQ(hetcomm_queue_create(me.communicator(), me.partner(),
                                   me.rank() == 0 ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
                                   &queue_options, &queue),
              HETCOMM_OK);
    const hetcomm_operation_options_t options = rig.options();
    for (uint64_t item = 0; item < 6; ++item) {
      const std::vector<std::byte> sent = pattern(kSize, item);
      std::vector<std::byte> got(kSize);
      Gate gate(framework, rig.queue());
      if (me.rank() == 0) rig.write(sent);
      hetcomm_request_t* request = nullptr;
      EXPECT_EQ(me.rank() == 0 ? hetcomm_queue_push(queue, rig.all(), &options, &request)
                               : hetcomm_queue_pull(queue, rig.all(), &options, &request),
                HETCOMM_OK)
          << hetcomm_last_error();
      rig.read(got);
      gate.open();
      expect_ok(request);
      EXPECT_TRUE(rig.is_done(kPatienceNs));
      EXPECT_TRUE(holds(got, item, kSize));
    }
    me.meet();
    EXPECT_EQ(hetcomm_queue_destroy(queue), HETCOMM_OK);
  });
}

TEST_P(Streams, ThousandsOfWaitingOperationsSucceed) {
  run(2, [](Member& me) {
    constexpr size_t kStreams = 4;
    constexpr uint64_t kSize = 64;
    Framework framework(me.rank());
    // NVIDIA's OpenCL is a hundred times as slow for each user event once 1,000 of them wait.
    const uint64_t count = framework.knows_its_objects() ? 2500 : 100;
    std::vector<std::unique_ptr<Rig>> rigs;
    std::vector<std::unique_ptr<Gate>> gates;
    std::vector<std::vector<std::byte>> words(kStreams * count, std::vector<std::byte>(kSize));
    for (size_t i = 0; i < kStreams; ++i) {
      rigs.push_back(std::make_unique<Rig>(me, framework, count * kSize));
      gates.push_back(std::make_unique<Gate>(framework, rigs.back()->queue()));
      if (me.rank() == 0) {
        words[i] = pattern(count * kSize, i);
        rigs.back()->write(words[i]);
      }
    }
    std::vector<hetcomm_request_t*> requests;
    for (uint64_t n = 0; n < count; ++n) {
      for (size_t i = 0; i < kStreams; ++i) {
        const Rig& rig = *rigs[i];
        const hetcomm_buffer_t part = rig.part(n * kSize, kSize);
        requests.push_back(me.rank() == 0 ? rig.send(1, i, part, rig.options(60 * kSec))
                                          : rig.recv(0, i, part, rig.options(60 * kSec)));
      }
    }
    me.meet();
    for (const auto& gate : gates) gate->open();
    finish_all(requests);
    for (size_t i = 0; i < kStreams; ++i) {
      std::vector<std::byte> got(count * kSize);
      rigs[i]->read(got);
      EXPECT_TRUE(rigs[i]->is_done(kPatienceNs));
      EXPECT_TRUE(holds(got, i, got.size())) << i;
    }
    me.meet();
  });
}

TEST_P(Streams, ObjectThatIsNotAStreamIsRefused) {
  run(2, [](Member& me) {
    Framework framework(me.rank());
    Framework other(me.rank() + 1);
    Rig rig(me, framework, 1000);
    Rig elsewhere(me, other, 1000);
    hetcomm_stream_t* stream = nullptr;
    uint64_t word = 0;
    std::vector<std::pair<int32_t, void*>> wrong = {{rig.device(), &word},
                                                    {rig.device(), reinterpret_cast<void*>(8)},
                                                    {rig.device(), reinterpret_cast<void*>(3)},
                                                    {rig.device(), elsewhere.queue()},
                                                    {elsewhere.device(), rig.queue()}};
    if (framework.knows_its_objects()) wrong.emplace_back(rig.device(), framework.context());
    for (const auto& [device, native] : wrong) {
      EXPECT_EQ(hetcomm_stream_wrap(me.context(), device, native, 0, &stream),
                HETCOMM_INVALID_ARGUMENT);
      EXPECT_NE(std::string(hetcomm_last_error()).find("no stream of device"), std::string::npos)
          << hetcomm_last_error();
    }
    EXPECT_EQ(hetcomm_stream_wrap(me.context(), 0, rig.queue(), 0, &stream), HETCOMM_UNSUPPORTED);
    EXPECT_EQ(hetcomm_stream_wrap(me.context(), 99, rig.queue(), 0, &stream), HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(stream, nullptr);
    // A context without a thread has no streams, and those from this context do not work there.
    hetcomm_context_t* second = nullptr;
    hetcomm_context_options_t options{};
    options.struct_size = sizeof(options);
    options.progress = HETCOMM_PROGRESS_CALLER;
    ASSERT_EQ(hetcomm_context_create(&options, &second), HETCOMM_OK);
    int32_t device = -1;
    ASSERT_EQ(hetcomm_device_from_native(second, "opencl", framework.context(), &device),
              HETCOMM_OK);
    EXPECT_EQ(hetcomm_stream_wrap(second, device, rig.queue(), 0, &stream), HETCOMM_UNSUPPORTED);
    EXPECT_NE(std::string(hetcomm_last_error()).find("HETCOMM_PROGRESS"), std::string::npos);
    EXPECT_EQ(hetcomm_context_destroy(second), HETCOMM_OK) << hetcomm_last_error();
    options.progress = HETCOMM_PROGRESS_THREAD;
    ASSERT_EQ(hetcomm_context_create(&options, &second), HETCOMM_OK);
    ASSERT_EQ(hetcomm_device_from_native(second, "opencl", framework.context(), &device),
              HETCOMM_OK);
    ASSERT_EQ(hetcomm_stream_wrap(second, device, rig.queue(), 0, &stream), HETCOMM_OK);
    hetcomm_operation_options_t with = rig.options();
    with.stream = stream;
    hetcomm_request_t* request = nullptr;
    const auto refused = [&] {
      EXPECT_EQ(hetcomm_recv(me.communicator(), me.partner(), 1, 0, rig.all(), &with, &request),
                HETCOMM_INVALID_ARGUMENT);
      const hetcomm_collective_options_t collective = collective_options(with.stream);
      EXPECT_EQ(hetcomm_barrier(me.communicator(), &collective, &request),
                HETCOMM_INVALID_ARGUMENT);
    };
    refused();
    EXPECT_EQ(hetcomm_context_destroy(second), HETCOMM_BUSY);
    EXPECT_EQ(hetcomm_stream_destroy(stream), HETCOMM_OK);
    refused();
    EXPECT_EQ(hetcomm_stream_destroy(nullptr), HETCOMM_OK);
    EXPECT_EQ(hetcomm_context_destroy(second), HETCOMM_OK) << hetcomm_last_error();
    // A rejected call leaves nothing in the stream.
    EXPECT_EQ(
        hetcomm_recv(me.communicator(), me.partner(), 1, 0, rig.part(900, 200), &with, &request),
        HETCOMM_INVALID_ARGUMENT);
    with.stream = rig.stream();
    EXPECT_EQ(
        hetcomm_recv(me.communicator(), me.partner(), 1, 0, rig.part(900, 200), &with, &request),
        HETCOMM_OUT_OF_RANGE);
    EXPECT_TRUE(rig.is_done(kPatienceNs));
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Streams, ::testing::ValuesIn(stream_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
