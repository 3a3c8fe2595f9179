// Devices that fail at each kind of call that the library makes to them:
//
//   * one call fails, at many points, or a rank's device is lost from that point
//   * the operations that need the device end on all ranks, and report the failure; none hangs
//   * operations that succeed have the right data
//   * all other operations continue, and so does the device once it works again
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "reshard/mesh.h"
#include "src/core/communicator/split.h"
#include "src/reduce/reduce.h"
#include "src/reshard/preparation.h"
#include "tests/support/core_job.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

constexpr int kRanks = 3;
constexpr uint64_t kBytes = 384 * 1024;               // spans several chunks
constexpr uint64_t kLongBytes = (6 << 20) + 100'000;  // a sum for which devices copy on their own
constexpr uint64_t kLimitNs = 10'000'000'000;
constexpr const char* kWords = "the simulation was told to fail";
constexpr hetcomm_status_t kLost = HETCOMM_DEVICE_LOST;

struct Faults {
  std::atomic<int64_t> calls_left{INT64_MAX};  // number of calls until one fails
  std::atomic<bool> lasts{false};              // the device fails from that point
  std::atomic<const void*> lost{nullptr};
  std::atomic<int64_t> seen{0};
  std::atomic<int64_t> made{0};  // number of calls in the latest round
  std::atomic<int64_t> reductions{0};
  // The number of reductions that are not made, which their events report later.
  std::atomic<int64_t> late{0};
  std::atomic<const void*> late_stream{nullptr};
  std::atomic<const void*> late_event{nullptr};
  std::atomic<bool> holds{false};  // reductions stay in progress
  std::atomic<int> held{0};        // number of those reductions
};
Faults faults;

// A thread-safe set of objects from any devices.
class Set {
 public:
  void insert(const void* one) {
    const std::scoped_lock lock(mutex_);
    all_.insert(one);
  }
  bool has(const void* one) {
    const std::scoped_lock lock(mutex_);
    return all_.count(one) != 0;
  }
  bool take(const void* one) {
    const std::scoped_lock lock(mutex_);
    return all_.erase(one) != 0;
  }

 private:
  std::mutex mutex_;
  std::set<const void*> all_;
};
Set held_streams;
Set held_events;

bool fails(const void* device) {
  ++faults.seen;
  const bool now = faults.calls_left.fetch_sub(1) == 0;
  if (now && faults.lasts) faults.lost = device;
  return now || faults.lost == device;
}

// Returns the table. The first rank that calls creates it. Each |kIndex| has its own table.
template <int kIndex>
const DeviceTable& failing_table(const DeviceTable& given) {
  static const DeviceTable real = given;
  static const DeviceTable made = [] {
    DeviceTable table = real;
    table.allocate = [](void* device, uint64_t size, void** out) {
      return fails(device) ? kLost : real.allocate(device, size, out);
    };
    table.stream_create = [](void* device, void** out) {
      return fails(device) ? kLost : real.stream_create(device, out);
    };
    table.copy_to_host = [](void* device, void* stream, void* host, const void* address,
                            uint64_t offset, uint64_t size) {
      return fails(device) ? kLost : real.copy_to_host(device, stream, host, address, offset, size);
    };
    table.copy_from_host = [](void* device, void* stream, void* address, uint64_t offset,
                              const void* host, uint64_t size) {
      return fails(device) ? kLost
                           : real.copy_from_host(device, stream, address, offset, host, size);
    };
    if (real.copy_rows_to_host != nullptr) {
      table.copy_rows_to_host = [](void* device, void* stream, void* host, const void* address,
                                   const DeviceRows* rows) {
        return fails(device) ? kLost : real.copy_rows_to_host(device, stream, host, address, rows);
      };
      table.copy_rows_from_host = [](void* device, void* stream, void* address,
                                     const DeviceRows* rows, const void* host) {
        return fails(device) ? kLost
                             : real.copy_rows_from_host(device, stream, address, rows, host);
      };
    }
    if (real.copy_rows_between != nullptr) {
      table.copy_rows_between = [](void* device, void* stream, const void* from,
                                   const DeviceRows* from_rows, void* to_device, void* to,
                                   const DeviceRows* to_rows) {
        return fails(device) ? kLost
                             : real.copy_rows_between(device, stream, from, from_rows, to_device,
                                                      to, to_rows);
      };
    }
    if (real.reduce != nullptr) {
      table.reduce = [](void* device, void* stream, const DeviceReduction* what) {
        if (what->elements > 0) ++faults.reductions;
        if (what->elements > 0 && faults.holds) held_streams.insert(stream);
        if (what->elements > 0 && faults.late.fetch_sub(1) > 0) {
          faults.late_stream = stream;
          return hetcomm_status_t{HETCOMM_OK};
        }
        return fails(device) ? kLost : real.reduce(device, stream, what);
      };
    }
    table.event_record = [](void* device, void* stream, void** out) {
      const hetcomm_status_t status =
          fails(device) ? kLost : real.event_record(device, stream, out);
      if (status == HETCOMM_OK && held_streams.take(stream)) {
        held_events.insert(*out);
        ++faults.held;
      }
      const void* late = stream;
      if (status == HETCOMM_OK && faults.late_stream.compare_exchange_strong(late, nullptr)) {
        faults.late_event = *out;
      }
      return status;
    };
    // An event that is still pending may be queried any number of times.
    table.event_query = [](void* device, void* event) {
      if (held_events.has(event) && faults.holds) return hetcomm_status_t{HETCOMM_PENDING};
      const hetcomm_status_t status = real.event_query(device, event);
      const void* late = event;
      if (status != HETCOMM_PENDING && faults.late_event.compare_exchange_strong(late, nullptr)) {
        return kLost;
      }
      return status != HETCOMM_PENDING && fails(device) ? kLost : status;
    };
    table.event_wait = [](void* device, void* event) {
      const hetcomm_status_t status = real.event_wait(device, event);
      return fails(device) ? kLost : status;
    };
    table.event_release = [](void* device, void* event) {
      held_events.take(event);
      real.event_release(device, event);
    };
    // Held events do not notify their end.
    table.event_notify = [](void* device, void* event, int file) {
      if (held_events.has(event)) return hetcomm_status_t{HETCOMM_UNSUPPORTED};
      return fails(device) ? kLost : real.event_notify(device, event, file);
    };
    // A device has either pin_host or allocate_host.
    if (real.pin_host != nullptr) {
      table.pin_host = [](void* device, void* host, uint64_t size) {
        return fails(device) ? kLost : real.pin_host(device, host, size);
      };
    }
    if (real.allocate_host != nullptr) {
      table.allocate_host = [](void* device, uint64_t size, void** out) {
        return fails(device) ? kLost : real.allocate_host(device, size, out);
      };
    }
    table.error_text = [](void*, char* text, uint64_t size) {
      text[std::string(kWords).copy(text, size - 1)] = '\0';
    };
    return table;
  }();
  return made;
}

std::vector<Device> make_devices(const std::string& kind, bool unified) {
  const Device device =
      create_sim_device(kind, unified ? "memory=64M:unified=1" : "memory=64M").value();
  const DeviceTable& table =
      kind == "sim-handle" ? failing_table<0>(*device.table) : failing_table<1>(*device.table);
  return {{&table, device.instance}};
}

// A rank's buffers on its device.
struct Buffers {
  explicit Buffers(CoreMember& me)
      : sent(me, kBytes), received(me, kBytes), sum(me, kLongBytes), all(me, kBytes * kRanks) {}
  OnDevice sent;
  OnDevice received;
  OnDevice sum;
  OnDevice all;
};

Operation* post_collective_of(Communicator& communicator, collectives::Kind kind,
                              const hetcomm_buffer_t& send, const hetcomm_buffer_t& receive,
                              uint64_t timeout_ns = 0) {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  Operation* operation = nullptr;
  std::string text;
  const Code code = post_collective(communicator,
                                    {.kind = kind,
                                     .datatype = HETCOMM_UINT8,
                                     .reduction = HETCOMM_REDUCE_MAX,
                                     .sends = &send,
                                     .send_count = 1,
                                     .receives = &receive,
                                     .receive_count = 1,
                                     .options = &options},
                                    &operation, &text);
  EXPECT_EQ(code, Code::kOk) << text;
  return operation;
}

enum class What : uint8_t { kMessages, kCollectives, kResharding, kLongSum };

struct Setting {
  const char* transport;
  const char* device;
  bool sums = false;     // collective operations, by messages, make their sums there
  bool unified = false;  // it copies from any host memory
  What what = What::kMessages;
  bool lasts = false;  // a device that has failed once keeps failing
};

// A matrix of bytes. Each rank has kBytes of it: some of its rows, or some of its columns.
constexpr uint64_t kColumns = 1536;
constexpr uint64_t kLines = kBytes * kRanks / kColumns;

std::shared_ptr<const reshard::Layout> layout_by(size_t dimension) {
  const reshard::Mesh mesh{.axes = {kRanks}, .ranks = {0, 1, 2}};
  return std::make_shared<reshard::Layout>(
      reshard::layout_of({kLines, kColumns}, mesh, {reshard::shard(dimension)}).value());
}

// Moves the sent data, some rows of the matrix, to the received data, some columns.
class Resharding {
 public:
  explicit Resharding(Communicator& communicator) {
    constexpr auto kType = reduce::Type::kUint8;
    std::vector<reshard::TensorOrder> tensors = {
        {.source = layout_by(0), .destination = layout_by(1), .types = {kType, kType}}};
    order_ = reshard::Order::create(communicator, std::move(tensors), {}).value();
    redistribution_ = order_->prepare();
  }
  Resharding(const Resharding&) = delete;
  Resharding& operator=(const Resharding&) = delete;
  ~Resharding() {
    // The execution may still be ended by executions on other ranks.
    const uint64_t until_ns = now_ns() + kLimitNs;
    while (redistribution_->close().code() == Code::kBusy && now_ns() < until_ns) {
      std::this_thread::yield();
    }
  }

  Operation* post(Buffers& buffers) {
    const hetcomm_buffer_t from = buffers.sent.part(0, kBytes);
    const hetcomm_buffer_t to = buffers.received.part(0, kBytes);
    Operation* operation = nullptr;
    std::string text;
    EXPECT_EQ(redistribution_->start(&from, &to, {}, &operation, &text), Code::kOk) << text;
    return operation;
  }
  // Returns the data that |rank| has received if rank r has sent pattern |first_seed| + r.
  static std::vector<std::byte> expected(uint64_t rank, uint64_t first_seed) {
    constexpr uint64_t kMine = kColumns / kRanks;
    std::vector<std::byte> all;
    std::vector<std::byte> sent(kBytes);
    for (uint64_t from = 0; from < kRanks; ++from) {
      fill_pattern(sent, first_seed + from);
      for (uint64_t line = 0; line < kLines / kRanks; ++line) {
        const std::byte* const begin = sent.data() + line * kColumns + rank * kMine;
        all.insert(all.end(), begin, begin + kMine);
      }
    }
    return all;
  }

 private:
  std::unique_ptr<reshard::Order> order_;
  std::unique_ptr<reshard::Redistribution> redistribution_;
};

// Concurrent operations: a message to the next rank, a reduction in place and an allgather, a
// redistribution, or a long reduction in place.
class Round {
 public:
  // Collective operations use |collective|.
  Round(CoreMember& me, Communicator& collective, Buffers& buffers, What what, uint64_t tag)
      : me_(me), collective_(collective), buffers_(buffers), what_(what), tag_(tag) {
    buffers.sent.fill(tag * kRanks + rank());
    buffers.sum.fill(tag * kRanks + rank());
    if (what == What::kResharding) resharding_.emplace(collective);
  }

  std::vector<Status> run() {
    const int next = (me_.rank() + 1) % kRanks;
    const int previous = (me_.rank() + kRanks - 1) % kRanks;
    const hetcomm_buffer_t sent = buffers_.sent.part(0, kBytes);
    const hetcomm_buffer_t sum = buffers_.sum.part(0, kBytes);
    std::vector<Operation*> operations;
    if (what_ == What::kMessages) {
      operations = {
          me_.post(OperationKind::kReceive, previous, tag_, buffers_.received.part(0, kBytes)),
          me_.post(OperationKind::kSend, next, tag_, sent)};
    } else if (what_ == What::kResharding) {
      operations = {resharding_->post(buffers_)};
    } else if (what_ == What::kLongSum) {
      const hetcomm_buffer_t all = buffers_.sum.part(0, kLongBytes);
      operations = {post_collective_of(collective_, collectives::Kind::kAllreduce, all, all)};
    } else {
      operations = {post_collective_of(collective_, collectives::Kind::kAllreduce, sum, sum),
                    post_collective_of(collective_, collectives::Kind::kAllgather, sent,
                                       buffers_.all.part(0, kBytes * kRanks))};
    }
    std::vector<Status> outcomes;
    for (Operation* const each : operations) outcomes.push_back(me_.finish(each));
    return outcomes;
  }
  // Expects that successful operations have delivered the right data.
  void check(const std::vector<Status>& outcomes) {
    if (what_ == What::kMessages) {
      const uint64_t previous = (rank() + kRanks - 1) % kRanks;
      if (outcomes[0].ok()) expect(buffers_.received, 0, tag_ * kRanks + previous);
      return;
    }
    if (what_ == What::kResharding) {
      if (!outcomes[0].ok()) return;
      EXPECT_TRUE(same_bytes(buffers_.received.contents(0, kBytes),
                             Resharding::expected(rank(), tag_ * kRanks)));
      return;
    }
    const uint64_t summed = what_ == What::kLongSum ? kLongBytes : kBytes;
    if (outcomes[0].ok()) {
      EXPECT_TRUE(same_bytes(buffers_.sum.contents(0, summed), greatest(tag_ * kRanks, summed)));
    }
    if (what_ == What::kLongSum) return;
    for (uint64_t from = 0; outcomes[1].ok() && from < kRanks; ++from) {
      expect(buffers_.all, from * kBytes, tag_ * kRanks + from);
    }
  }

 private:
  static void expect(OnDevice& memory, uint64_t offset, uint64_t seed) {
    EXPECT_EQ(find_mismatch(memory.contents(offset, kBytes), seed), std::nullopt);
  }
  // Returns the maximum over all ranks in each byte, if rank r has pattern |first_seed| + r.
  static std::vector<std::byte> greatest(uint64_t first_seed, uint64_t bytes) {
    std::vector<std::byte> all(bytes);
    std::vector<std::byte> one(bytes);
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      fill_pattern(one, first_seed + rank);
      keep_greatest(all, one);
    }
    return all;
  }
  uint64_t rank() const { return static_cast<uint64_t>(me_.rank()); }
  CoreMember& me_;
  Communicator& collective_;
  Buffers& buffers_;
  const What what_;
  const uint64_t tag_;
  std::optional<Resharding> resharding_;
};

// The ranks of one job, which run rounds together.
class Rounds {
 public:
  Rounds(CoreMember& me, std::barrier<>& together) : me_(me), together_(together), buffers_(me) {}

  // Runs a round in which device call |fails_at| fails, or the device from that point. Returns the
  // number of calls made.
  int64_t run(What what, int64_t fails_at, bool lasts, std::atomic<int>* words) {
    // A failed operation ends all later collective operations on its communicator.
    Result<std::unique_ptr<Communicator>> part = split(me_.communicator(), 0, 0, {});
    EXPECT_TRUE(part.ok()) << part.status().text();
    if (!part.ok()) return 0;
    // A team's second long operation uses another way of writing than its first.
    if (what == What::kLongSum && ++long_sums_ % 2 == 0) {
      for (const Status& each : Round(me_, **part, buffers_, what, ++tag_).run()) {
        EXPECT_TRUE(each.ok()) << each.text();
      }
    }
    Round one(me_, **part, buffers_, what, ++tag_);
    first_rank([&] {
      faults.seen = 0;
      faults.lasts = lasts;
      faults.calls_left = fails_at;
    });
    const uint64_t begin_ns = now_ns();
    const std::vector<Status> outcomes = one.run();
    EXPECT_LT(now_ns() - begin_ns, kLimitNs);
    first_rank([] {
      faults.calls_left = INT64_MAX;
      faults.lost = nullptr;
      faults.made = faults.seen.load();  // one value for all ranks, even if some continue
    });
    one.check(outcomes);
    for (const Status& each : outcomes) {
      if (each.text().find(kWords) != std::string::npos) ++*words;
      const bool in_time = each.code() != Code::kTimedOut && each.code() != Code::kInternal;
      EXPECT_TRUE(fails_at == INT64_MAX ? each.ok() : in_time) << each.text();
    }
    const int64_t made = faults.made;
    together_.arrive_and_wait();
    return made;
  }
  // An operation that is cancelled while devices compute its sums ends when the sums have ended.
  void cancel_beside_sums() {
    Result<std::unique_ptr<Communicator>> part = split(me_.communicator(), 0, 0, {});
    ASSERT_TRUE(part.ok()) << part.status().text();
    first_rank([] {
      faults.held = 0;
      faults.holds = true;
    });
    const hetcomm_buffer_t sum = buffers_.sum.part(0, kBytes);
    Operation* const operation =
        post_collective_of(**part, collectives::Kind::kAllreduce, sum, sum);
    const uint64_t until_ns = now_ns() + kLimitNs;
    while (faults.held < kRanks && now_ns() < until_ns) std::this_thread::yield();
    EXPECT_EQ(faults.held, kRanks) << "each rank's device makes a sum";
    together_.arrive_and_wait();
    if (me_.rank() == 0) {
      const Engine::Baton baton(me_.context().engine());
      (*part)->cancel(*operation);
    }
    std::thread releases([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (me_.rank() == 0) faults.holds = false;
    });
    const Status outcome = me_.finish(operation);
    EXPECT_FALSE(faults.holds) << "it has ended while the device uses its memory";
    EXPECT_FALSE(outcome.ok());
    releases.join();
    together_.arrive_and_wait();
  }
  template <typename Step>
  void first_rank(Step&& step) {
    together_.arrive_and_wait();
    if (me_.rank() == 0) step();
    together_.arrive_and_wait();
  }

 private:
  CoreMember& me_;
  std::barrier<>& together_;
  Buffers buffers_;
  uint64_t tag_ = 0;
  int long_sums_ = 0;
};

class DeviceFaults : public testing::TestWithParam<Setting> {
 protected:
  void run_job(const std::function<void(Rounds&)>& body) {
    faults.calls_left = INT64_MAX;
    faults.lost = nullptr;
    std::barrier<> together(kRanks);
    run_core_job(
        kRanks,
        std::string("HETCOMM_TIMEOUT=20s;HETCOMM_PROGRESS=thread") +
            (GetParam().sums ? ";HETCOMM_COLLECTIVE_SHARED=0;HETCOMM_DEVICE_SUMS=on" : ""),
        [](int) {
          Factories factories;
          const bool shm = GetParam().transport == std::string("shm");
          factories.push_back(shm ? make_shm_factory() : make_tcp_factory());
          return factories;
        },
        [&](CoreMember& me) {
          Rounds rounds(me, together);
          body(rounds);
        },
        [] { return make_devices(GetParam().device, GetParam().unified); });
  }
  std::atomic<int> words_{0};
};

TEST_P(DeviceFaults, FailingDeviceCallEndsOperationsWithTheReason) {
  std::atomic<bool> stops{false};
  const What what = GetParam().what;
  const bool lasts = GetParam().lasts;
  run_job([&](Rounds& rounds) {
    int64_t calls = 0;
    for (int warm_up = 0; warm_up < 2; ++warm_up) {
      calls = rounds.run(what, INT64_MAX, false, &words_);
    }
    EXPECT_GT(calls, 10);
    EXPECT_TRUE(!GetParam().sums || faults.reductions > 0);
    // If there are many calls, only some of them fail: a round takes long under a sanitizer.
    for (int64_t at = 0; at < calls && !stops; at += 1 + calls / 25) {
      SCOPED_TRACE("call " + std::to_string(at));
      rounds.run(what, at, lasts, &words_);
      // All devices work again.
      rounds.run(What::kMessages, INT64_MAX, false, &words_);
      rounds.run(What::kCollectives, INT64_MAX, false, &words_);
      rounds.run(What::kResharding, INT64_MAX, false, &words_);
      rounds.first_rank([&] { stops = HasFailure(); });
    }
  });
  EXPECT_GT(words_, 5);
}

class DeviceSumFaults : public DeviceFaults {};

TEST_P(DeviceSumFaults, CancelledSumEndsWithItsDeviceCall) {
  run_job([&](Rounds& rounds) {
    rounds.run(What::kCollectives, INT64_MAX, false, &words_);
    for (int round = 0; round < 3; ++round) rounds.cancel_beside_sums();
    rounds.run(What::kCollectives, INT64_MAX, false, &words_);
  });
}

// The device reports only later that it has not made a sum.
TEST_P(DeviceSumFaults, LateFailureOfASumIsReported) {
  run_job([&](Rounds& rounds) {
    rounds.run(What::kCollectives, INT64_MAX, false, &words_);
    for (int round = 0; round < 4; ++round) {
      rounds.first_rank([] { faults.late = 1; });
      rounds.run(What::kCollectives, INT64_MAX - 1, false, &words_);
      EXPECT_LE(faults.late, 0) << "no device was asked for a sum";
      rounds.first_rank([] { faults.late = 0; });
      rounds.run(What::kCollectives, INT64_MAX, false, &words_);
    }
  });
  EXPECT_GE(words_, 4) << "an operation each tells what the device says";
}

INSTANTIATE_TEST_SUITE_P(Over, DeviceSumFaults,
                         testing::Values(Setting{"tcp", "sim-address", true}),
                         [](const auto&) { return std::string("tcp_sim_address"); });

// Each operation has its own test, because each needs a job that is slow under a sanitizer.
std::vector<Setting> all_settings() {
  std::vector<Setting> all;
  for (const bool lasts : {false, true}) {
    for (const What what : {What::kMessages, What::kCollectives, What::kResharding}) {
      all.push_back({"shm", "sim-address", false, false, what, lasts});
      all.push_back({"tcp", "sim-address", false, false, what, lasts});
      all.push_back({"shm", "sim-handle", false, false, what, lasts});
    }
    all.push_back({"shm", "sim-handle", false, true, What::kLongSum, lasts});
    all.push_back({"tcp", "sim-address", true, false, What::kCollectives, lasts});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Setting>& setting) {
  static const char* const kOperations[] = {"messages", "collectives", "resharding", "long_sum"};
  std::string name = std::string(setting.param.transport) + "_" + setting.param.device +
                     (setting.param.sums ? "_sums" : "") +
                     (setting.param.unified ? "_unified" : "") + "_" +
                     kOperations[static_cast<size_t>(setting.param.what)] +
                     (setting.param.lasts ? "_for_good" : "");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Over, DeviceFaults, testing::ValuesIn(all_settings()), name_of);

}  // namespace
}  // namespace hetcomm::test
