// Collective operations on memory of devices, whose copies run while the data moves: random ones of
// every kind, on devices of other kinds at each rank, slow ones, cut into many slices or few, give
// bit by bit what the same operation gives in host memory, and touch nothing else.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <hetcomm/collective.h>

#include "tests/conformance/capi_job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kGuard = 64;

enum class Kind {
  kBroadcast,
  kReduce,
  kAllreduce,
  kScan,
  kAllgather,
  kReduceScatter,
  kAlltoall,
  kGather,
  kScatter,
  kAllgatherv,
  kGatherv,
  kScatterv,
  kReduceScatterv,
  kAlltoallv,
  kCount
};

// One operation, the same on all ranks.
struct Plan {
  Kind kind = Kind::kBroadcast;
  int32_t datatype = HETCOMM_FLOAT32;
  uint64_t element = 4;
  int32_t reduction = HETCOMM_REDUCE_SUM;
  int32_t root = 0;
  uint64_t block = 0;              // bytes
  std::vector<uint64_t> blocks{};  // of each rank, or of each pair of ranks
  bool in_place = false;
  bool exclusive = false;           // scan
  const char* algorithm = nullptr;  // where the operation has it
};

Plan draw(Random& random, int32_t ranks) {
  struct Type {
    int32_t datatype;
    uint64_t bytes;
  };
  constexpr Type kTypes[] = {{HETCOMM_FLOAT32, 4}, {HETCOMM_INT64, 8}, {HETCOMM_BFLOAT16, 2}};
  constexpr int32_t kReductions[] = {HETCOMM_REDUCE_SUM, HETCOMM_REDUCE_AVERAGE,
                                     HETCOMM_REDUCE_PREMUL_SUM, HETCOMM_REDUCE_MAX};
  constexpr uint64_t kCounts[] = {0, 1, 700, 5000, 60'000, 300'000};
  Plan plan;
  plan.kind = static_cast<Kind>(random.below(static_cast<uint64_t>(Kind::kCount)));
  const Type type = kTypes[random.below(3)];
  plan.datatype = type.datatype;
  plan.element = type.bytes;
  plan.reduction = kReductions[random.below(4)];
  plan.root = static_cast<int32_t>(random.below(static_cast<uint64_t>(ranks)));
  const auto count = [&] { return kCounts[random.below(6)] + random.below(3); };
  plan.block = count() * type.bytes;
  const auto n = static_cast<size_t>(ranks);
  const size_t drawn = plan.kind < Kind::kAllgatherv   ? 0
                       : plan.kind == Kind::kAlltoallv ? n * n
                                                       : n;
  for (size_t i = 0; i < drawn; ++i) plan.blocks.push_back(count() * type.bytes);
  const bool can = plan.kind != Kind::kBroadcast && plan.kind < Kind::kAllgatherv &&
                   plan.kind != Kind::kAlltoall;
  plan.in_place = can && random.below(2) == 0;
  plan.exclusive = plan.kind == Kind::kScan && random.below(2) == 0;
  constexpr const char* kAlgorithms[] = {nullptr, nullptr, "ring", "two_level"};
  plan.algorithm = kAlgorithms[random.below(4)];
  return plan;
}

// Memory with room on both sides that nobody may touch.
class Memory {
 public:
  Memory(Member& me, int32_t device, uint64_t size) : device_(device), bytes_(size + 2 * kGuard) {
    if (device == 0) return;
    EXPECT_EQ(hetcomm_memory_allocate(me.context(), device, bytes_.size(), &memory_), HETCOMM_OK)
        << hetcomm_last_error();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { EXPECT_EQ(hetcomm_memory_free(memory_), HETCOMM_OK); }
  void fill(const std::vector<std::byte>& bytes) {
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0x6b});
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + kGuard);
    if (device_ == 0) return;
    EXPECT_EQ(hetcomm_memory_write(memory_, 0, bytes_.data(), bytes_.size()), HETCOMM_OK);
  }
  // All bytes, with the guards.
  const std::vector<std::byte>& contents() {
    if (device_ != 0) {
      EXPECT_EQ(hetcomm_memory_read(memory_, 0, bytes_.data(), bytes_.size()), HETCOMM_OK);
    }
    return bytes_;
  }
  hetcomm_buffer_t part(uint64_t offset, uint64_t length) {
    return device_ == 0 ? hetcomm_buffer_host(bytes_.data() + kGuard + offset, length)
                        : hetcomm_buffer_memory(memory_, kGuard + offset, length);
  }

 private:
  const int32_t device_;
  std::vector<std::byte> bytes_;
  hetcomm_memory_t* memory_ = nullptr;
};

// One side: buffers of arrays lie in turn in one memory and in another.
class Region {
 public:
  Region(Member& me, const int32_t (&devices)[2], uint64_t size)
      : first_(me, devices[0], size), second_(me, devices[1], size) {}
  void fill(const std::vector<std::byte>& bytes) {
    first_.fill(bytes);
    second_.fill(bytes);
  }
  std::vector<std::byte> contents() {
    std::vector<std::byte> both = first_.contents();
    const std::vector<std::byte>& second = second_.contents();
    both.insert(both.end(), second.begin(), second.end());
    return both;
  }
  hetcomm_buffer_t part(uint64_t offset, uint64_t length, uint64_t index = 0) {
    return (index % 2 == 0 ? first_ : second_).part(offset, length);
  }

 private:
  Memory first_;
  Memory second_;
};

// What this rank sends and receives.
struct Lengths {
  uint64_t send = 0;
  uint64_t receive = 0;
};

Lengths lengths_of(const Plan& plan, int32_t rank, int32_t ranks) {
  const auto n = static_cast<uint64_t>(ranks);
  const bool at_root = rank == plan.root;
  switch (plan.kind) {
    case Kind::kBroadcast:
      return {0, plan.block};
    case Kind::kReduce:
      return {plan.block, at_root ? plan.block : 0};
    case Kind::kAllreduce:
    case Kind::kScan:
      return {plan.block, plan.block};
    case Kind::kAllgather:
      return {plan.block, n * plan.block};
    case Kind::kReduceScatter:
      return {n * plan.block, plan.block};
    case Kind::kAlltoall:
      return {n * plan.block, n * plan.block};
    case Kind::kGather:
      return {plan.block, at_root ? n * plan.block : 0};
    case Kind::kScatter:
      return {at_root ? n * plan.block : 0, plan.block};
    case Kind::kAllgatherv:
    case Kind::kGatherv:
    case Kind::kScatterv:
    case Kind::kReduceScatterv: {
      uint64_t all = 0;
      for (const uint64_t each : plan.blocks) all += each;
      const uint64_t own = plan.blocks[static_cast<size_t>(rank)];
      if (plan.kind == Kind::kAllgatherv) return {own, all};
      if (plan.kind == Kind::kReduceScatterv) return {all, own};
      if (plan.kind == Kind::kGatherv) return {own, at_root ? all : 0};
      return {at_root ? all : 0, own};
    }
    default: {
      Lengths all;
      for (uint64_t peer = 0; peer < n; ++peer) {
        all.send += plan.blocks[static_cast<uint64_t>(rank) * n + peer];
        all.receive += plan.blocks[peer * n + static_cast<uint64_t>(rank)];
      }
      return all;
    }
  }
}

hetcomm_status_t call(const Plan& plan, Member& me, Region& from, Region& to,
                      hetcomm_request_t** out) {
  hetcomm_communicator_t* const c = me.communicator();
  const auto n = static_cast<uint64_t>(me.size());
  const auto own = static_cast<uint64_t>(me.rank());
  const uint64_t block = plan.block;
  const Lengths lengths = lengths_of(plan, me.rank(), me.size());
  const bool at_root = me.rank() == plan.root;
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.factor = 0.5;
  options.algorithm = plan.algorithm;
  if (plan.exclusive) options.flags = HETCOMM_COLLECTIVE_EXCLUSIVE;
  // In place the larger one of the two is the region.
  hetcomm_buffer_t send = from.part(0, lengths.send);
  hetcomm_buffer_t recv = to.part(0, lengths.receive);
  if (plan.in_place) {
    const bool gathers = plan.kind == Kind::kAllgather || (plan.kind == Kind::kGather && at_root);
    const bool scatters =
        plan.kind == Kind::kReduceScatter || (plan.kind == Kind::kScatter && at_root);
    if (gathers) send = to.part(own * block, block);
    if (scatters) recv = from.part(own * block, block);
    if (plan.kind == Kind::kAllreduce || plan.kind == Kind::kScan ||
        (plan.kind == Kind::kReduce && at_root)) {
      recv = send;
    }
  }
  // Arrays have a buffer for each rank.
  std::vector<hetcomm_buffer_t> sends;
  std::vector<hetcomm_buffer_t> receives;
  uint64_t sent = 0;
  uint64_t received = 0;
  const bool pairs = plan.kind == Kind::kAlltoallv;
  const bool arrays = plan.kind >= Kind::kAllgatherv;
  for (uint64_t peer = 0; peer < n && arrays; ++peer) {
    const uint64_t away = plan.blocks[pairs ? own * n + peer : peer];
    const uint64_t in = plan.blocks[pairs ? peer * n + own : peer];
    if (sent + away <= lengths.send) sends.push_back(from.part(sent, away, peer));
    if (received + in <= lengths.receive) receives.push_back(to.part(received, in, peer));
    sent += away;
    received += in;
  }
  switch (plan.kind) {
    case Kind::kBroadcast:
      return hetcomm_broadcast(c, plan.root, recv, plan.datatype, &options, out);
    case Kind::kReduce:
      return hetcomm_reduce(c, plan.root, send, recv, plan.datatype, plan.reduction, &options, out);
    case Kind::kAllreduce:
      return hetcomm_allreduce(c, send, recv, plan.datatype, plan.reduction, &options, out);
    case Kind::kScan:
      return hetcomm_scan(c, send, recv, plan.datatype, plan.reduction, &options, out);
    case Kind::kAllgather:
      return hetcomm_allgather(c, send, recv, plan.datatype, &options, out);
    case Kind::kReduceScatter:
      return hetcomm_reduce_scatter(c, send, recv, plan.datatype, plan.reduction, &options, out);
    case Kind::kAlltoall:
      return hetcomm_alltoall(c, send, recv, plan.datatype, &options, out);
    case Kind::kGather:
      return hetcomm_gather(c, plan.root, send, recv, plan.datatype, &options, out);
    case Kind::kScatter:
      return hetcomm_scatter(c, plan.root, send, recv, plan.datatype, &options, out);
    case Kind::kAllgatherv:
      return hetcomm_allgatherv(c, send, receives.data(), plan.datatype, &options, out);
    case Kind::kGatherv:
      return hetcomm_gatherv(c, plan.root, send, receives.data(), plan.datatype, &options, out);
    case Kind::kScatterv:
      return hetcomm_scatterv(c, plan.root, sends.data(), recv, plan.datatype, &options, out);
    case Kind::kReduceScatterv:
      return hetcomm_reduce_scatterv(c, sends.data(), recv, plan.datatype, plan.reduction, &options,
                                     out);
    default:
      return hetcomm_alltoallv(c, sends.data(), receives.data(), plan.datatype, &options, out);
  }
}

// Numbers whose sums have to be rounded: the order of steps, and where they round, can be seen.
std::vector<std::byte> numbers(const Plan& plan, uint64_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  Random random(seed);
  for (uint64_t at = 0; at + plan.element <= size; at += plan.element) {
    const auto value = static_cast<int64_t>(random.below(uint64_t{1} << 20));
    if (plan.datatype == HETCOMM_INT64) {
      std::memcpy(bytes.data() + at, &value, sizeof(value));
      continue;
    }
    const float real = static_cast<float>(value) / 1000;
    uint32_t bits = 0;
    std::memcpy(&bits, &real, sizeof(bits));
    const auto upper = static_cast<uint16_t>(bits >> 16);
    if (plan.element == 2) {
      std::memcpy(bytes.data() + at, &upper, sizeof(upper));
    } else {
      std::memcpy(bytes.data() + at, &real, sizeof(real));
    }
  }
  return bytes;
}

// The regions afterwards.
struct After {
  std::vector<std::byte> from;
  std::vector<std::byte> to;
};

After carry_out(Plan& plan, Member& me, const int32_t (&from_devices)[2],
                const int32_t (&to_devices)[2], uint64_t round) {
  const Lengths lengths = lengths_of(plan, me.rank(), me.size());
  const uint64_t seed = round * 100 + static_cast<uint64_t>(me.rank());
  Region from(me, from_devices, lengths.send);
  Region to(me, to_devices, lengths.receive);
  from.fill(numbers(plan, lengths.send, seed));
  to.fill(numbers(plan, lengths.receive, seed + 50));
  hetcomm_request_t* request = nullptr;
  hetcomm_status_t status = call(plan, me, from, to, &request);
  if (status == HETCOMM_UNSUPPORTED && plan.algorithm != nullptr) {
    plan.algorithm = nullptr;  // on all ranks
    status = call(plan, me, from, to, &request);
  }
  EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
  if (status != HETCOMM_OK) return {};
  const Outcome outcome = finish(request);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  return {from.contents(), to.contents()};
}

std::vector<CapiCase> cases() {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp"}) {
    for (const char* chunk : {"4096", "65536", "0"}) {
      all.push_back(
          {.name = std::string(transport) + "_chunk_" + chunk,
           .transports = transport,
           .settings = std::string("STAGING_CHUNK=") + chunk +
                       ";DEVICES=sim-handle:bandwidth=500M:latency=20us,sim-address:bandwidth=2G;",
           .thread_progress = chunk[0] != '6'});
    }
    // By messages, and sums on the device that can.
    all.push_back({.name = std::string(transport) + "_device_sums",
                   .transports = transport,
                   .settings = "COLLECTIVE_SHARED=0;DEVICE_SUMS=on;"
                               "DEVICES=sim-address:bandwidth=200M:latency=20us,sim-handle;",
                   .thread_progress = true});
  }
  return all;
}

class DeviceCollectives : public CapiTest {};

TEST_P(DeviceCollectives, GiveWhatTheHostGives) {
  for (const int32_t ranks : {2, 3, 5}) {
    run(ranks, [](Member& me) {
      Random common(static_cast<uint64_t>(me.size()));
      Random own(1000 + static_cast<uint64_t>(me.rank()));
      for (uint64_t round = 0; round < 40; ++round) {
        Plan plan = draw(common, me.size());
        SCOPED_TRACE("round " + std::to_string(round) + ", kind " +
                     std::to_string(static_cast<int>(plan.kind)) + ", " +
                     std::to_string(plan.block) + " bytes, type " + std::to_string(plan.datatype) +
                     ", operator " + std::to_string(plan.reduction) +
                     (plan.in_place ? ", in place" : ""));
        const int32_t host[2] = {0, 0};
        const auto device = [&] { return static_cast<int32_t>(own.below(3)); };
        const int32_t from_devices[2] = {device(), device()};
        const int32_t to_devices[2] = {device(), device()};
        const After on_host = carry_out(plan, me, host, host, round);
        const After on_device = carry_out(plan, me, from_devices, to_devices, round);
        EXPECT_TRUE(on_host.from == on_device.from);
        EXPECT_TRUE(on_host.to == on_device.to);
        if (::testing::Test::HasFailure()) return;
      }
    });
  }
}

// Slices under way when the operation ends: their memory stays until they are over, and the process
// goes on.
TEST_P(DeviceCollectives, EndInTheMiddle) {
  run(2, [](Member& me) {
    constexpr uint64_t kSize = 4'000'000;
    const int32_t devices[2] = {1, 2};
    for (int round = 0; round < 6; ++round) {
      Region from(me, devices, kSize);
      Region to(me, devices, kSize);
      hetcomm_communicator_t* part = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &part), HETCOMM_OK);
      hetcomm_collective_options_t options{};
      options.struct_size = sizeof(options);
      if (round % 2 == 0 && me.rank() == 0) options.timeout_ns = 3 * kMs;
      hetcomm_request_t* request = nullptr;
      EXPECT_EQ(hetcomm_allreduce(part, from.part(0, kSize), to.part(0, kSize), HETCOMM_INT64,
                                  HETCOMM_REDUCE_SUM, &options, &request),
                HETCOMM_OK)
          << hetcomm_last_error();
      if (round % 2 == 1 && me.rank() == 1) {
        (void)me.until([] { return false; }, 2 * kMs);
        EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
      }
      const Outcome outcome = finish(request);
      EXPECT_NE(outcome.status, HETCOMM_OK)
          << "a device of 500 MB/s, or less, takes 8 ms; round " << round << ", rank " << me.rank();
      const bool here = outcome.status == HETCOMM_TIMED_OUT || outcome.status == HETCOMM_CANCELLED;
      const std::string own = "waits for rank " + std::to_string(me.rank());
      EXPECT_TRUE(!here || outcome.text.find(own) == std::string::npos) << outcome.text;
      me.meet();
      EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Over, DeviceCollectives, ::testing::ValuesIn(cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
