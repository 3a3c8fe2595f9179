// Operations in the order of users' streams, over simulated devices. These behave like many
// vendors' devices while a stream is held back: a call that pins or frees host memory waits for the
// stream. All tests also run with a vendor whose calls wait wherever they may (waiting_devices.h).
//
//   * transfers that need more than the pinned memory continue while a stream is held back
//   * if a vendor's call fails, the library call is rejected or the operation ends with the reason,
//     and the stream continues
//   * a stream that is not held back continues, and its operations run at the same time
//   * redistributions of several plans follow each other, while the user frees memory and ends
//     streams
//   * operations that a stream holds back end soon when the network to their peer becomes a black
//     hole, and the stream continues: queue items, redistributions and collective operations
//   * the progress thread sleeps while streams run
#include <time.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "reshard/mesh.h"
#include "src/core/device/user_stream.h"
#include "src/queue/queue.h"
#include "src/reduce/reduce.h"
#include "src/reshard/preparation.h"
#include "tests/support/core_job.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "tests/support/waiting_devices.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

enum class Call : uint8_t { kNone, kRecord, kHold, kQuery };
std::atomic<Call> next_failure{Call::kNone};

bool fails(Call call) {
  Call expected = call;
  return next_failure.compare_exchange_strong(expected, Call::kNone);
}

// Returns the table. The first rank that calls creates it. Each |kIndex| has its own table.
template <int kIndex>
const DeviceTable& failing_table(const DeviceTable& real_table) {
  static const DeviceTable real = real_table;
  static const DeviceTable made = [] {
    DeviceTable table = real;
    table.user_stream_record = [](void* device, void* stream, void** out) {
      return fails(Call::kRecord) ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                  : real.user_stream_record(device, stream, out);
    };
    table.user_stream_hold = [](void* device, void* stream, void** out) {
      return fails(Call::kHold) ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                : real.user_stream_hold(device, stream, out);
    };
    table.event_query = [](void* device, void* event) {
      const hetcomm_status_t status = real.event_query(device, event);
      return status != HETCOMM_PENDING && fails(Call::kQuery)
                 ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                 : status;
    };
    return table;
  }();
  return made;
}

const DeviceTable& table_without_holds(const DeviceTable& real) {
  static const DeviceTable made = [&real] {
    DeviceTable table = real;
    table.user_stream_hold = nullptr;
    table.hold_end = nullptr;
    return table;
  }();
  return made;
}

// The last device cannot hold streams back.
std::vector<Device> make_devices() {
  const Device first = create_sim_device("sim-address", "memory=512M:bandwidth=2G").value();
  const Device second = create_sim_device("sim-handle", "memory=512M:bandwidth=2G").value();
  const Device third = create_sim_device("sim-address", "memory=16M:bandwidth=2G").value();
  return {{&failing_table<0>(*first.table), first.instance},
          {&failing_table<1>(*second.table), second.instance},
          {&table_without_holds(*third.table), third.instance}};
}

// A user's stream, which can be held back by a gate.
class Stream {
 public:
  Stream(CoreMember& me, size_t device, bool held = true)
      : device_(me.context().devices().device(device)) {
    EXPECT_EQ(device_.table->stream_create(device_.instance, &native_), HETCOMM_OK);
    DeviceSet& devices = me.context().devices();
    stream_ = std::make_unique<UserStream>(
        devices, device, UserStream::open(devices, device, native_, held).value());
    if (!held) return;
    devices.note_user_streams(device);
    const Engine::Baton baton(me.context().engine());
    me.communicator().job().prepare_for_holds();
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    while (!gates_.empty()) open();
    device_.table->stream_destroy(device_.instance, native_);
    for (int i = 0; i < 1000 && stream_->in_use(); ++i) sleep_a_while();
    EXPECT_FALSE(stream_->in_use());
  }
  hetcomm_stream_t* get() const { return reinterpret_cast<hetcomm_stream_t*>(stream_.get()); }
  UserStream* user() const { return stream_.get(); }
  void* native() const { return native_; }
  // Puts a gate at the end of the stream; open() opens the first one that is closed.
  void close() {
    void* gate = nullptr;
    // The gate acts like a long-running kernel: the library does not hold the stream back.
    EXPECT_EQ(real_table(device_).user_stream_hold(device_.instance, native_, &gate), HETCOMM_OK);
    gates_.push_back(gate);
  }
  void open() {
    if (gates_.empty()) return;
    real_table(device_).hold_end(device_.instance, gates_.front());
    gates_.pop_front();
  }
  bool is_done() const {
    void* event = nullptr;
    const DeviceTable& table = real_table(device_);
    EXPECT_EQ(table.event_record(device_.instance, native_, &event), HETCOMM_OK);
    hetcomm_status_t status = HETCOMM_PENDING;
    for (int i = 0; i < 1000 && status == HETCOMM_PENDING; ++i) {
      sleep_a_while();
      status = table.event_query(device_.instance, event);
    }
    table.event_release(device_.instance, event);
    return status == HETCOMM_OK;
  }
  static void sleep_a_while() {
    const timespec time = {.tv_sec = 0, .tv_nsec = 10'000'000};
    nanosleep(&time, nullptr);
  }

 private:
  const Device device_;
  void* native_ = nullptr;
  std::deque<void*> gates_;
  std::unique_ptr<UserStream> stream_;
};

hetcomm_operation_options_t in_order_of(const Stream& stream) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.stream = stream.get();
  return options;
}

Code try_post(CoreMember& me, uint64_t tag, const hetcomm_buffer_t& buffer,
              const hetcomm_operation_options_t& options, Operation** out, std::string* text) {
  const OperationKind kind = me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive;
  return me.communicator().poster().post({kind, 1 - me.rank(), tag, 0, &buffer, 1, &options}, out,
                                         text);
}

void expect_ok(CoreMember& me, Operation* operation) {
  const Status status = me.finish(operation);
  EXPECT_TRUE(status.ok()) << status.text();
}

// Waits for the end without driving the library. Returns the time that this took.
uint64_t watch(const Operation& operation) {
  const uint64_t begin_ns = now_ns();
  while (operation.state() == OperationState::kPending && now_ns() - begin_ns < 20'000'000'000) {
    const timespec time = {.tv_sec = 0, .tv_nsec = 500'000};
    nanosleep(&time, nullptr);
  }
  return now_ns() - begin_ns;
}

struct StreamCase {
  std::string transport;
  bool waits = false;  // the vendor's calls wait
};

class CoreStreams : public ::testing::TestWithParam<StreamCase> {
 protected:
  void run(const std::function<void(CoreMember&)>& body) {
    run_core_job(
        2, "HETCOMM_TIMEOUT=20s;HETCOMM_PROGRESS=thread",
        [](int) {
          Factories factories;
          factories.push_back(GetParam().transport == "shm" ? make_shm_factory()
                                                            : make_tcp_factory());
          return factories;
        },
        body, [] { return GetParam().waits ? waiting(make_devices()) : make_devices(); });
  }
};

// All messages in a group are in progress while the stream is held back, and need more memory than
// was pinned before.
TEST_P(CoreStreams, NothingIsPinnedWhileAStreamIsHeldBack) {
  run([](CoreMember& me) {
    constexpr uint64_t kSize = 3'000'000;
    constexpr size_t kMessages = 24;
    for (const size_t device : {size_t{1}, size_t{2}}) {
      Stream stream(me, device);
      std::vector<std::unique_ptr<OnDevice>> memories;
      std::vector<OperationRef> entries;
      hetcomm_operation_options_t options = in_order_of(stream);
      // Only the group's address is used, to find the group.
      options.group = reinterpret_cast<hetcomm_group_t*>(&entries);
      for (size_t i = 0; i < kMessages; ++i) {
        memories.push_back(std::make_unique<OnDevice>(me, kSize, device));
        memories.back()->fill(me.rank() == 0 ? i : 1000);
        Operation* operation = nullptr;
        std::string text;
        EXPECT_EQ(try_post(me, i, memories.back()->part(0, kSize), options, &operation, &text),
                  Code::kOk)
            << text;
        entries.push_back({operation, operation->generation()});
      }
      me.communicator().poster().start_group(entries);
      for (const OperationRef& entry : entries) expect_ok(me, entry.operation);
      EXPECT_TRUE(stream.is_done());
      for (size_t i = 0; i < kMessages && me.rank() == 1; ++i) {
        EXPECT_EQ(find_mismatch(memories[i]->contents(0, kSize), i), std::nullopt) << i;
      }
    }
  });
}

TEST_P(CoreStreams, GroupWaitsForAllItsStreams) {
  run([](CoreMember& me) {
    constexpr uint64_t kSize = 5000;
    OnDevice first(me, kSize, 1);
    OnDevice second(me, kSize, 2);
    first.fill(me.rank() == 0 ? 1 : 0);
    second.fill(me.rank() == 0 ? 2 : 0);
    Stream late(me, 1);
    Stream ready(me, 2);
    late.close();
    std::vector<OperationRef> entries;
    const auto collect = [&](uint64_t tag, const hetcomm_buffer_t& buffer, const Stream& stream) {
      hetcomm_operation_options_t options = in_order_of(stream);
      options.group = reinterpret_cast<hetcomm_group_t*>(&entries);
      Operation* operation = nullptr;
      std::string text;
      EXPECT_EQ(try_post(me, tag, buffer, options, &operation, &text), Code::kOk) << text;
      entries.push_back({operation, operation->generation()});
    };
    collect(1, first.part(0, kSize), late);
    collect(2, second.part(0, kSize), ready);
    me.communicator().poster().start_group(entries);
    Stream::sleep_a_while();
    for (const OperationRef& entry : entries) {
      EXPECT_EQ(entry.operation->state(), OperationState::kPending);
    }
    late.open();
    for (const OperationRef& entry : entries) expect_ok(me, entry.operation);
    EXPECT_TRUE(late.is_done());
    EXPECT_TRUE(ready.is_done());
    EXPECT_EQ(find_mismatch(first.contents(0, kSize), 1), std::nullopt);
    EXPECT_EQ(find_mismatch(second.contents(0, kSize), 2), std::nullopt);
  });
}

// The second operation's stream is reached first. There are two streams and two threads, and
// neither waits for an operation that the other one holds back.
TEST_P(CoreStreams, ThreadsThatPostConcurrentlyDoNotDeadlock) {
  run([](CoreMember& me) {
    constexpr uint64_t kRounds = 300;
    Stream one(me, 1);
    Stream two(me, 1);
    uint64_t words[2][2] = {};
    std::vector<std::thread> threads;
    for (uint64_t thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&, thread] {
        for (uint64_t round = 0; round < kRounds; ++round) {
          // First come single operations in one stream, then groups from both streams, in both
          // orders.
          std::vector<OperationRef> entries;
          const Stream* const streams[2] = {thread == 0 ? &one : &two, thread == 0 ? &two : &one};
          const size_t count = round % 2 == 0 ? 1 : 2;
          for (size_t i = 0; i < count; ++i) {
            // Rank 0's sends are short enough not to wait for their receives.
            hetcomm_operation_options_t options = in_order_of(count == 1 ? one : *streams[i]);
            if (me.rank() == 1) options.stream = nullptr;
            uint64_t& word = words[thread][i];
            const hetcomm_buffer_t buffer = hetcomm_buffer_host(&word, sizeof(word));
            if (count == 2) options.group = reinterpret_cast<hetcomm_group_t*>(&entries);
            Operation* operation = nullptr;
            std::string text;
            const uint64_t tag = thread << 32 | round << 1 | i;
            EXPECT_EQ(try_post(me, tag, buffer, options, &operation, &text), Code::kOk) << text;
            entries.push_back({operation, operation->generation()});
          }
          if (count == 2) me.communicator().poster().start_group(entries);
          for (const OperationRef& entry : entries) expect_ok(me, entry.operation);
          if (::testing::Test::HasFailure()) return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// Starts a collective operation on host memory, in the order of |stream| unless it is null.
Operation* post_in_order(CoreMember& me, collectives::Arguments call, const Stream* stream) {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  if (stream != nullptr) options.stream = stream->get();
  call.options = &options;
  Operation* operation = nullptr;
  std::string text;
  EXPECT_EQ(post_collective(me.communicator(), call, &operation, &text), Code::kOk) << text;
  return operation;
}

// Starts to sum |value| over all ranks.
Operation* post_sum(CoreMember& me, uint64_t& value, const Stream* stream) {
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(&value, sizeof(value));
  return post_in_order(me,
                       {.kind = collectives::Kind::kAllreduce,
                        .datatype = HETCOMM_UINT64,
                        .reduction = HETCOMM_REDUCE_SUM,
                        .sends = &buffer,
                        .send_count = 1,
                        .receives = &buffer,
                        .receive_count = 1},
                       stream);
}

// A refusal keeps its place after a call that waits for its stream.
TEST_P(CoreStreams, RefusalKeepsItsPositionInTheOrder) {
  run([](CoreMember& me) {
    Stream late(me, 1);
    if (me.rank() == 0) late.close();
    uint64_t value = 1;
    Operation* const operation = post_sum(me, value, &late);
    // All ranks refuse the next call, so the refusal is not an error.
    refuse_collective(me.communicator(), "not now");
    Stream::sleep_a_while();
    late.open();
    expect_ok(me, operation);
    EXPECT_EQ(value, 2u);
    EXPECT_TRUE(barrier(me.communicator(), 10'000'000'000).ok());
  });
}

TEST_P(CoreStreams, CollectiveOperationsKeepTheirOrder) {
  run([](CoreMember& me) {
    Stream late(me, 1);
    Stream ready(me, 2);
    late.close();
    uint64_t values[2] = {static_cast<uint64_t>(me.rank()) + 1, 10};
    Operation* operations[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      // Only one rank names streams.
      const Stream* const own = i == 0 ? &late : &ready;
      operations[i] = post_sum(me, values[i], me.rank() == 0 ? own : nullptr);
    }
    Stream::sleep_a_while();
    for (Operation* const each : operations) {
      EXPECT_TRUE(me.rank() == 1 || each->state() == OperationState::kPending);
    }
    late.open();
    for (Operation* const each : operations) expect_ok(me, each);
    EXPECT_EQ(values[0], 3u);
    EXPECT_EQ(values[1], 20u);
  });
}

// Sums of device memory, computed by the host or the devices, after streams that are held back all
// the time.
TEST_P(CoreStreams, SumsOfDeviceMemoryFollowHeldStreams) {
  run([](CoreMember& me) {
    constexpr uint64_t kCount = 500'000;
    for (const size_t device : {size_t{1}, size_t{2}}) {
      OnDevice memory(me, kCount * sizeof(float), device);
      Stream stream(me, device);
      std::vector<float> values(kCount, static_cast<float>(me.rank() + 1));
      EXPECT_TRUE((*memory).write(0, values.data(), kCount * sizeof(float)).ok());
      const hetcomm_buffer_t buffer = memory.part(0, kCount * sizeof(float));
      hetcomm_collective_options_t options{};
      options.struct_size = sizeof(options);
      options.stream = stream.get();
      std::vector<Operation*> operations;
      stream.close();
      for (int round = 0; round < 5; ++round) {
        std::string text;
        operations.emplace_back();
        ASSERT_EQ(post_collective(me.communicator(),
                                  {.kind = collectives::Kind::kAllreduce,
                                   .datatype = HETCOMM_FLOAT32,
                                   .reduction = HETCOMM_REDUCE_SUM,
                                   .sends = &buffer,
                                   .send_count = 1,
                                   .receives = &buffer,
                                   .receive_count = 1,
                                   .options = &options},
                                  &operations.back(), &text),
                  Code::kOk)
            << text;
      }
      stream.open();
      for (Operation* const each : operations) expect_ok(me, each);
      EXPECT_TRUE(stream.is_done());
      EXPECT_TRUE((*memory).read(0, values.data(), kCount * sizeof(float)).ok());
      // Postponed calls are made soon.
      for (int i = 0; i < 1000 && me.context().devices().calls().may_make(); ++i) {
        Stream::sleep_a_while();
      }
      EXPECT_FALSE(me.context().devices().calls().may_make());
      // Each sum doubles the previous result.
      EXPECT_EQ(std::count(values.begin(), values.end(), 48.0F), static_cast<ptrdiff_t>(kCount));
    }
  });
}

// A matrix of bytes. Each of two ranks has one half: some rows, or some columns.
constexpr uint64_t kColumns = 1536;
constexpr uint64_t kLines = 512;
constexpr uint64_t kHalf = kLines * kColumns / 2;

// Moves the matrix: data that was split along one dimension is then split along the other one.
class Plan {
 public:
  Plan(Communicator& communicator, size_t from, size_t to) {
    constexpr auto kType = reduce::Type::kUint8;
    std::vector<reshard::TensorOrder> tensors = {
        {.source = cut_by(from), .destination = cut_by(to), .types = {kType, kType}}};
    order_ = reshard::Order::create(communicator, std::move(tensors), {.tag = from, .in_flight = 2})
                 .value();
    redistribution_ = order_->prepare();
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (int i = 0; i < 1000 && redistribution_->close().code() == Code::kBusy; ++i) {
      Stream::sleep_a_while();
    }
  }
  // Posts an execution in the order of |stream|, unless it is null.
  Operation* post(OnDevice& from, OnDevice& to, const Stream* stream) {
    const hetcomm_buffer_t source = from.part(0, kHalf);
    const hetcomm_buffer_t destination = to.part(0, kHalf);
    Operation* operation = nullptr;
    std::string text;
    EXPECT_EQ(redistribution_->start(&source, &destination,
                                     {.stream = stream != nullptr ? stream->user() : nullptr},
                                     &operation, &text),
              Code::kOk)
        << text;
    return operation;
  }
  // Returns |rank|'s columns if rank r has pattern |first_seed| + r as its rows.
  static std::vector<std::byte> columns_of(uint64_t rank, uint64_t first_seed) {
    constexpr uint64_t kMine = kColumns / 2;
    std::vector<std::byte> all;
    std::vector<std::byte> lines(kHalf);
    for (const uint64_t from : {uint64_t{0}, uint64_t{1}}) {
      fill_pattern(lines, first_seed + from);
      for (uint64_t line = 0; line < kLines / 2; ++line) {
        const std::byte* const begin = lines.data() + line * kColumns + rank * kMine;
        all.insert(all.end(), begin, begin + kMine);
      }
    }
    return all;
  }

 private:
  static std::shared_ptr<const reshard::Layout> cut_by(size_t dimension) {
    const reshard::Mesh mesh{.axes = {2}, .ranks = {0, 1}};
    return std::make_shared<reshard::Layout>(
        reshard::layout_of({kLines, kColumns}, mesh, {reshard::shard(dimension)}).value());
  }

  std::unique_ptr<reshard::Order> order_;
  std::unique_ptr<reshard::Redistribution> redistribution_;
};

// Each execution uses the data that the previous one has delivered. A user thread makes calls that
// may wait for the stream.
TEST_P(CoreStreams, ChainedRedistributionsSeeEachOthersData) {
  run([](CoreMember& me) {
    const auto rank = static_cast<uint64_t>(me.rank());
    Plan there(me.communicator(), 0, 1);
    Plan back(me.communicator(), 1, 0);
    for (uint64_t round = 0; round < 3; ++round) {
      OnDevice first(me, kHalf, 1);
      OnDevice columns(me, kHalf, 2);
      OnDevice second(me, kHalf, 1);
      auto freed = std::make_unique<OnDevice>(me, kHalf, 2);
      auto ended = std::make_unique<Stream>(me, 2);
      const uint64_t seed = 2 * round;
      first.fill(seed + rank);
      columns.fill(1000);
      second.fill(1000);
      Stream late(me, 1);
      late.close();
      Operation* const operations[] = {
          there.post(first, columns, &late), back.post(columns, second, &late),
          there.post(second, columns, &late), back.post(columns, first, &late)};
      std::thread user([&] {
        freed.reset();
        ended.reset();
      });
      Stream::sleep_a_while();
      for (Operation* const each : operations) {
        EXPECT_EQ(each->state(), OperationState::kPending);
      }
      late.open();
      for (Operation* const each : operations) expect_ok(me, each);
      user.join();
      EXPECT_TRUE(late.is_done());
      EXPECT_TRUE(columns.contents(0, kHalf) == Plan::columns_of(rank, seed));
      EXPECT_EQ(find_mismatch(second.contents(0, kHalf), seed + rank), std::nullopt);
      EXPECT_EQ(find_mismatch(first.contents(0, kHalf), seed + rank), std::nullopt);
      // Postponed calls are made soon.
      for (int i = 0; i < 1000 && me.context().devices().calls().may_make(); ++i) {
        Stream::sleep_a_while();
      }
      EXPECT_FALSE(me.context().devices().calls().may_make());
    }
  });
}

// The progress threads are asleep before the stream reaches an operation, and no other thread
// polls. A busy machine may delay some ends, but not all.
TEST_P(CoreStreams, OperationReachedByItsStreamWakesASleeper) {
  run([](CoreMember& me) {
    OnDevice memory(me, 100);
    Stream stream(me, 1);
    uint64_t first_ns = UINT64_MAX;
    uint64_t second_ns = UINT64_MAX;
    for (int round = 0; round < 5; ++round) {
      Operation* first = nullptr;
      Operation* second = nullptr;
      std::string text;
      const hetcomm_operation_options_t options = in_order_of(stream);
      stream.close();
      ASSERT_EQ(try_post(me, 1, memory.part(0, 100), options, &first, &text), Code::kOk);
      stream.close();
      ASSERT_EQ(try_post(me, 2, memory.part(0, 100), options, &second, &text), Code::kOk);
      for (int i = 0; i < 10; ++i) Stream::sleep_a_while();
      stream.open();
      first_ns = std::min(first_ns, watch(*first));
      expect_ok(me, first);
      for (int i = 0; i < 10; ++i) Stream::sleep_a_while();
      stream.open();
      second_ns = std::min(second_ns, watch(*second));
      expect_ok(me, second);
    }
    // The other rank may release its own stream some ms later.
    EXPECT_LT(first_ns, 250'000'000u);
    EXPECT_LT(second_ns, 250'000'000u);
  });
}

TEST_P(CoreStreams, FailingVendorCallEndsTheOperationAndReleasesTheStream) {
  run([](CoreMember& me) {
    constexpr uint64_t kSize = 100'000;
    constexpr uint64_t kPatience = 20'000'000'000;
    OnDevice memory(me, kSize);
    Stream stream(me, 1);
    const hetcomm_operation_options_t options = in_order_of(stream);
    Operation* operation = nullptr;
    std::string text;
    for (const Call call : {Call::kRecord, Call::kHold}) {
      if (me.rank() == 1) continue;
      next_failure = call;
      EXPECT_EQ(try_post(me, 1, memory.part(0, kSize), options, &operation, &text),
                Code::kDeviceLost);
      EXPECT_NE(text.find("sim-address"), std::string::npos) << text;
      EXPECT_TRUE(stream.is_done());
      // A failed group ends its operations with the reason.
      hetcomm_operation_options_t grouped = options;
      grouped.group = reinterpret_cast<hetcomm_group_t*>(&grouped);
      ASSERT_EQ(try_post(me, 1, memory.part(0, kSize), grouped, &operation, &text), Code::kOk);
      next_failure = call;
      const OperationRef entry{operation, operation->generation()};
      me.communicator().poster().start_group({&entry, 1});
      const Status status = me.finish(operation);
      EXPECT_EQ(status.code(), Code::kDeviceLost) << status.text();
      EXPECT_NE(status.text().find("sim-address"), std::string::npos) << status.text();
      EXPECT_TRUE(stream.is_done());
    }
    if (me.rank() == 0) {
      stream.close();
      ASSERT_EQ(try_post(me, 1, memory.part(0, kSize), options, &operation, &text), Code::kOk);
      Operation* following = nullptr;
      next_failure = Call::kQuery;
      stream.open();
      const Status status = me.finish(operation);
      EXPECT_EQ(status.code(), Code::kDeviceLost) << status.text();
      EXPECT_NE(status.text().find("what the stream held"), std::string::npos) << status.text();
      EXPECT_TRUE(barrier(me.communicator(), kPatience).ok());
      memory.fill(3);
      ASSERT_EQ(try_post(me, 2, memory.part(0, kSize), options, &following, &text), Code::kOk);
      expect_ok(me, following);
      EXPECT_TRUE(stream.is_done());
    } else {
      // Before, this rank's calls could meet the failures that are meant for the other's.
      EXPECT_TRUE(barrier(me.communicator(), kPatience).ok());
      ASSERT_EQ(try_post(me, 2, memory.part(0, kSize), options, &operation, &text), Code::kOk);
      expect_ok(me, operation);
      EXPECT_EQ(find_mismatch(memory.contents(0, kSize), 3), std::nullopt);
    }
  });
}

// Both receives wait for the stream's work at the time they were posted, and then only for their
// messages, which arrive in reverse order.
TEST_P(CoreStreams, StreamThatIsNotHeldContinues) {
  run([](CoreMember& me) {
    constexpr uint64_t kSize = 100'000;
    for (const size_t device : {size_t{1}, size_t{2}}) {
      OnDevice memories[2] = {{me, kSize, device}, {me, kSize, device}};
      if (me.rank() == 0) {
        for (const uint64_t tag : {uint64_t{2}, uint64_t{1}}) {
          memories[tag - 1].fill(tag);
          Operation* operation = nullptr;
          std::string text;
          ASSERT_EQ(try_post(me, tag, memories[tag - 1].part(0, kSize), {}, &operation, &text),
                    Code::kOk);
          expect_ok(me, operation);
          EXPECT_TRUE(barrier(me.communicator(), 10'000'000'000).ok());
        }
        continue;
      }
      Stream stream(me, device, false);
      stream.close();
      Operation* operations[2] = {};
      for (const uint64_t tag : {uint64_t{1}, uint64_t{2}}) {
        std::string text;
        ASSERT_EQ(try_post(me, tag, memories[tag - 1].part(0, kSize), in_order_of(stream),
                           &operations[tag - 1], &text),
                  Code::kOk)
            << text;
      }
      Stream::sleep_a_while();
      EXPECT_EQ(operations[1]->state(), OperationState::kPending);
      stream.open();
      EXPECT_TRUE(stream.is_done());
      EXPECT_EQ(operations[0]->state(), OperationState::kPending);
      expect_ok(me, operations[1]);
      EXPECT_EQ(find_mismatch(memories[1].contents(0, kSize), 2), std::nullopt);
      EXPECT_EQ(operations[0]->state(), OperationState::kPending);
      EXPECT_FALSE(me.context().devices().calls().has_holds());
      EXPECT_TRUE(barrier(me.communicator(), 10'000'000'000).ok());
      expect_ok(me, operations[0]);
      EXPECT_EQ(find_mismatch(memories[0].contents(0, kSize), 1), std::nullopt);
      EXPECT_TRUE(barrier(me.communicator(), 10'000'000'000).ok());
    }
  });
}

TEST_P(CoreStreams, HeldStreamOnADeviceThatCannotHoldIsUnsupported) {
  run([](CoreMember& me) {
    const DeviceSet& devices = me.context().devices();
    const Stream stream(me, 3, false);
    for (const bool own : {false, true}) {
      const auto open = [&](bool held) {
        return own ? UserStream::create(devices, 3, held)
                   : UserStream::open(devices, 3, stream.native(), held);
      };
      const Result<UserStream::Opened> refused = open(true);
      EXPECT_EQ(refused.status().code(), Code::kUnsupported);
      EXPECT_NE(refused.status().text().find("HETCOMM_STREAM_NOT_HELD"), std::string::npos)
          << refused.status().text();
      const Result<UserStream::Opened> opened = open(false);
      ASSERT_TRUE(opened.ok()) << opened.status().text();
      UserStream::close(devices.device(3), opened.value());
    }
  });
}

// --- a network that becomes a black hole
// ----------------------------------------------------------

constexpr uint64_t kCarried = 1000;  // length that always gets through
constexpr uint64_t kTooLong = 3000;  // length of a message that leaves immediately
constexpr uint64_t kItem = 500;

// One end of a queue, with its items.
class End {
 public:
  End(CoreMember& me, bool pushes, uint64_t tag)
      : me_(me),
        queue_(Queue::create(me.communicator(), 1 - me.rank(),
                             pushes ? Track::End::kSending : Track::End::kReceiving,
                             {.tag = tag, .most_bytes = kItem, .depth = 2},
                             {.weight = 0, .bytes_per_second = 0})
                   .value()),
        bytes_(kItem) {}
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ~End() { EXPECT_TRUE(queue_->close().ok()); }
  // Pushes or pulls the next item, in the order of |stream| unless it is null.
  Operation* post(const Stream* stream) {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    if (stream != nullptr) options.stream = stream->get();
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes_.data(), bytes_.size());
    Operation* operation = nullptr;
    std::string text;
    const auto kind = queue_->pushes() ? OperationKind::kSend : OperationKind::kReceive;
    EXPECT_EQ(me_.communicator().poster().post({.kind = kind,
                                                .peer = queue_->peer(),
                                                .tag = queue_->track().terms().tag,
                                                .ignore = 0,
                                                .buffers = &buffer,
                                                .count = 1,
                                                .options = &options,
                                                .track = &queue_->track()},
                                               &operation, &text),
              Code::kOk)
        << text;
    return operation;
  }

 private:
  CoreMember& me_;
  std::unique_ptr<Queue> queue_;
  std::vector<std::byte> bytes_;
};

// Starts to sum |value| over all ranks, or to broadcast it from rank 1.
Operation* post_word(CoreMember& me, uint64_t& value, bool sums, const Stream* stream) {
  if (sums) return post_sum(me, value, stream);
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(&value, sizeof(value));
  return post_in_order(me,
                       {.kind = collectives::Kind::kBroadcast,
                        .root = 1,
                        .datatype = HETCOMM_UINT64,
                        .receives = &buffer,
                        .receive_count = 1},
                       stream);
}

// Rank 0 has operations after its stream when |hole| opens. Rank 1 makes none of them, and keeps
// the objects that they need, so that only the network ends them. The ranks meet outside of the
// network, at |both|.
void wait_behind_a_black_hole(CoreMember& me, bool sums, std::atomic<bool>& hole,
                              std::barrier<>& both) {
  End out(me, me.rank() == 0, 1);
  End in(me, me.rank() == 1, 2);
  Plan plan(me.communicator(), 0, 1);
  OnDevice source(me, kHalf);
  OnDevice destination(me, kHalf);
  uint64_t word = 1;
  // All operations succeed while the network works.
  for (Operation* const each :
       {out.post(nullptr), in.post(nullptr), plan.post(source, destination, nullptr),
        post_word(me, word, sums, nullptr)}) {
    expect_ok(me, each);
  }
  EXPECT_TRUE(barrier(me.communicator(), 10'000'000'000).ok());
  std::byte byte{};
  if (me.rank() == 1) {
    both.arrive_and_wait();
    // This tells rank 0 that everything has arrived. Data that is resent later was lost by the
    // network.
    expect_ok(me, me.post(OperationKind::kSend, 0, 8, &byte, 1));
    both.arrive_and_wait();
    return;
  }
  Stream stream(me, 1);
  stream.close();
  Operation* const operations[] = {out.post(&stream), in.post(&stream),
                                   plan.post(source, destination, &stream),
                                   post_word(me, word, sums, &stream)};
  both.arrive_and_wait();
  expect_ok(me, me.post(OperationKind::kReceive, 1, 8, &byte, 1));
  for (Operation* const each : operations) EXPECT_EQ(each->state(), OperationState::kPending);
  Operation* const plain = me.post(OperationKind::kReceive, 1, 9, &byte, 1);
  std::vector<std::byte> lost(kTooLong);
  hole = true;
  const uint64_t begin_ns = now_ns();
  Operation* const sent = me.post(OperationKind::kSend, 1, 10, lost.data(), lost.size());
  const Status status = me.finish(plain);
  EXPECT_EQ(status.code(), Code::kUnreachable) << status.text();
  const uint64_t plain_ns = now_ns() - begin_ns;
  for (size_t i = 0; i < std::size(operations); ++i) {
    const Status outcome = me.finish(operations[i]);
    EXPECT_EQ(outcome.code(), Code::kUnreachable) << i << ": " << outcome.text();
    EXPECT_NE(outcome.text().find("the path is gone"), std::string::npos)
        << i << ": " << outcome.text();
  }
  EXPECT_LT(now_ns() - begin_ns, plain_ns + 1'000'000'000);
  // The message counted as sent once it had left.
  static_cast<void>(me.finish(sent));
  stream.open();
  EXPECT_TRUE(stream.is_done());
  both.arrive_and_wait();
}

TEST(StreamsOverABlackHole, HeldOperationsSoonEndAsUnreachable) {
  for (const bool sums : {true, false}) {
    std::atomic<bool> hole{false};
    FaultPlan plan;
    plan.carried_bytes = kCarried;
    plan.hole = &hole;
    hetcomm_test::LocalStore store;
    std::barrier both(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          Factories factories;
          factories.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
          CoreMember me(store, rank, 2,
                        "HETCOMM_TIMEOUT=20s;HETCOMM_PROGRESS=thread;HETCOMM_LOG=error;"
                        "HETCOMM_COOL_DOWN=10ms",
                        std::move(factories), make_devices());
          wait_behind_a_black_hole(me, sums, hole, both);
        } catch (const std::exception& exception) {
          ADD_FAILURE() << "rank " << rank << ": " << exception.what();
          both.arrive_and_drop();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

uint64_t processor_ns() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

class TimedStreams : public CoreStreams {};

// The time includes both ranks and their devices.
TEST_P(TimedStreams, ProgressThreadSleepsWhileStreamsRun) {
  run([](CoreMember& me) {
    OnDevice memory(me, 1000);
    Stream stream(me, 1);
    stream.close();
    Operation* operation = nullptr;
    std::string text;
    ASSERT_EQ(try_post(me, 1, memory.part(0, 1000), in_order_of(stream), &operation, &text),
              Code::kOk);
    const timespec settle = {.tv_sec = 0, .tv_nsec = 100'000'000};
    nanosleep(&settle, nullptr);
    const uint64_t before = processor_ns();
    const timespec run = {.tv_sec = 0, .tv_nsec = 500'000'000};
    nanosleep(&run, nullptr);
    EXPECT_LT(processor_ns() - before, 50'000'000u);
    stream.open();
    expect_ok(me, operation);
  });
}

const auto kAllCases = ::testing::Values(StreamCase{"shm"}, StreamCase{"tcp"},
                                         StreamCase{"shm", true}, StreamCase{"tcp", true});
std::string case_name(const ::testing::TestParamInfo<StreamCase>& kind) {
  return kind.param.transport + (kind.param.waits ? "_waits" : "");
}
INSTANTIATE_TEST_SUITE_P(Over, CoreStreams, kAllCases, case_name);
INSTANTIATE_TEST_SUITE_P(Over, TimedStreams, kAllCases, case_name);

}  // namespace
}  // namespace hetcomm::test
