// Collective operations on device memory, whose copies run while the data moves. They are random
// operations of every kind, on different kinds of devices at each rank, including slow ones, with
// few or many slices. They give bit for bit the result of the same operation in host memory, and
// change nothing else. Long operations on devices that copy from any host memory use long chunks of
// the shared arena.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <hetcomm/collective.h>

#include "tests/conformance/capi/job.h"

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

// One operation, identical on all ranks.
struct Plan {
  Kind kind = Kind::kBroadcast;
  int32_t datatype = HETCOMM_FLOAT32;
  uint64_t element = 4;
  int32_t reduction = HETCOMM_REDUCE_SUM;
  int32_t root = 0;
  uint64_t block = 0;              // in bytes
  std::vector<uint64_t> blocks{};  // by rank, or by pair of ranks
  bool in_place = false;
  bool exclusive = false;           // scan
  const char* algorithm = nullptr;  // null: the default
};

bool can_be_in_place(Kind kind) {
  return kind != Kind::kBroadcast && kind != Kind::kAlltoall && kind <= Kind::kAllgatherv;
}

// Returns the size of a rank's buffers in blocks.
uint64_t blocks_of(Kind kind, uint64_t ranks) {
  switch (kind) {
    case Kind::kBroadcast:
      return 1;
    case Kind::kReduce:
    case Kind::kAllreduce:
    case Kind::kScan:
      return 2;
    case Kind::kAlltoall:
    case Kind::kAlltoallv:
      return 2 * ranks;
    default:
      return ranks + 1;
  }
}

Plan draw(Random& random, int32_t ranks, bool is_long) {
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
  const auto n = static_cast<size_t>(ranks);
  // Long operations are usually slightly longer than the minimum for long chunks, and seldom
  // shorter.
  const uint64_t bytes = (random.below(8) == 0 ? 11u << 20 : 13u << 20) + random.below(3 << 20);
  const uint64_t long_count = bytes / blocks_of(plan.kind, n) / type.bytes;
  const auto count = [&] {
    const uint64_t odd = random.below(3);
    if (!is_long) return kCounts[random.below(6)] + odd;
    // Arrays also have short or empty blocks.
    return random.below(8) == 0 && plan.kind >= Kind::kAllgatherv ? odd : long_count + odd;
  };
  plan.block = count() * type.bytes;
  const size_t drawn = plan.kind < Kind::kAllgatherv   ? 0
                       : plan.kind == Kind::kAlltoallv ? n * n
                                                       : n;
  for (size_t i = 0; i < drawn; ++i) plan.blocks.push_back(count() * type.bytes);
  plan.in_place = can_be_in_place(plan.kind) && random.below(2) == 0;
  plan.exclusive = plan.kind == Kind::kScan && random.below(2) == 0;
  constexpr const char* kAlgorithms[] = {nullptr, nullptr, "ring", "two_level"};
  plan.algorithm = is_long ? nullptr : kAlgorithms[random.below(4)];
  return plan;
}

// Memory between two guards that must not be written.
class Memory {
 public:
  Memory(Member& me, int32_t device, uint64_t size) : device_(device), bytes_(size + 2 * kGuard) {
    if (device == 0) return;
    EXPECT_EQ(hetcomm_memory_allocate(me.context(), device, bytes_.size(), &memory_), HETCOMM_OK)
        << hetcomm_last_error();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK); }
  void fill(const std::vector<std::byte>& bytes) {
    std::memset(bytes_.data(), 0x6b, bytes_.size());
    if (!bytes.empty()) std::memcpy(bytes_.data() + kGuard, bytes.data(), bytes.size());
    if (device_ == 0) return;
    EXPECT_EQ(hetcomm_memory_write(memory_, 0, bytes_.data(), bytes_.size()), HETCOMM_OK);
  }
  // Returns all bytes, including the guards.
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

// One side of an operation. Buffers of arrays alternate between two memories.
class Region {
 public:
  Region(Member& me, const int32_t (&devices)[2], uint64_t size, bool has_arrays)
      : has_arrays_(has_arrays),
        first_(me, devices[0], size),
        second_(me, devices[1], has_arrays ? size : 0) {}
  void fill(const std::vector<std::byte>& bytes) {
    first_.fill(bytes);
    second_.fill(has_arrays_ ? bytes : std::vector<std::byte>());
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
  const bool has_arrays_;
  Memory first_;
  Memory second_;
};

// Returns the lengths that this rank sends and receives.
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

hetcomm_status_t call(const Plan& plan, Member& me, hetcomm_communicator_t* c, Region& from,
                      Region& to, hetcomm_request_t** out) {
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
  // For an in-place operation, the region is the larger of the two.
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
  // Arrays have a separate buffer for each rank.
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
  if (plan.in_place && plan.kind == Kind::kAllgatherv) send = receives[own];
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

// Returns numbers whose sums must be rounded, so that the order of steps and the places of rounding
// show. They repeat with a period that differs from the length of every part.
std::vector<std::byte> numbers(const Plan& plan, uint64_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  constexpr uint64_t kPeriod = 40'008;
  const uint64_t drawn = std::min(size, kPeriod);
  uint64_t state = 2 * seed + 1;
  for (uint64_t at = 0; at + plan.element <= drawn; at += plan.element) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto value = static_cast<int64_t>(state >> 44);
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
  for (uint64_t at = drawn; at < size; at += kPeriod) {
    std::memcpy(bytes.data() + at, bytes.data(), std::min(kPeriod, size - at));
  }
  return bytes;
}

// Returns the regions after an operation.
struct After {
  std::vector<std::byte> from;
  std::vector<std::byte> to;
};

bool are_equal(const std::vector<std::byte>& one, const std::vector<std::byte>& other) {
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

After carry_out(Plan& plan, Member& me, hetcomm_communicator_t* communicator,
                const int32_t (&from_devices)[2], const int32_t (&to_devices)[2], uint64_t round) {
  const Lengths lengths = lengths_of(plan, me.rank(), me.size());
  const uint64_t seed = round * 100 + static_cast<uint64_t>(me.rank());
  const bool arrays = plan.kind >= Kind::kAllgatherv;
  Region from(me, from_devices, lengths.send, arrays);
  Region to(me, to_devices, lengths.receive, arrays);
  from.fill(numbers(plan, lengths.send, seed));
  to.fill(numbers(plan, lengths.receive, seed + 50));
  hetcomm_request_t* request = nullptr;
  hetcomm_status_t status = call(plan, me, communicator, from, to, &request);
  if (status == HETCOMM_UNSUPPORTED && plan.algorithm != nullptr) {
    plan.algorithm = nullptr;  // every rank gets the same refusal, so all fall back together
    status = call(plan, me, communicator, from, to, &request);
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
    // Uses messages, and sums on the device if it can make them.
    all.push_back({.name = std::string(transport) + "_device_sums",
                   .transports = transport,
                   .settings = "COLLECTIVE_SHARED=0;DEVICE_SUMS=on;"
                               "DEVICES=sim-address:bandwidth=200M:latency=20us,sim-handle;",
                   .thread_progress = true});
  }
  return all;
}

class DeviceCollectives : public CapiTest {};

// Runs random operations on devices 0 (the host) to |devices| - 1.
void compare_with_host(Member& me, uint64_t rounds, uint64_t devices, bool is_long) {
  Random common(static_cast<uint64_t>(me.size()));
  Random own(1000 + static_cast<uint64_t>(me.rank()));
  for (uint64_t round = 0; round < rounds; ++round) {
    Plan plan = draw(common, me.size(), is_long);
    SCOPED_TRACE("round " + std::to_string(round) + ", kind " +
                 std::to_string(static_cast<int>(plan.kind)) + ", " + std::to_string(plan.block) +
                 " bytes, type " + std::to_string(plan.datatype) + ", operator " +
                 std::to_string(plan.reduction) + (plan.in_place ? ", in place" : ""));
    const int32_t host[2] = {0, 0};
    const auto device = [&] { return static_cast<int32_t>(own.below(devices)); };
    const int32_t from_devices[2] = {device(), device()};
    const int32_t to_devices[2] = {device(), device()};
    const After on_host = carry_out(plan, me, me.communicator(), host, host, round);
    const After on_device = carry_out(plan, me, me.communicator(), from_devices, to_devices, round);
    EXPECT_TRUE(are_equal(on_host.from, on_device.from));
    EXPECT_TRUE(are_equal(on_host.to, on_device.to));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(DeviceCollectives, ResultsEqualThoseInHostMemory) {
  for (const int32_t ranks : {2, 3, 5}) {
    run(ranks, [](Member& me) { compare_with_host(me, 40, 3, false); });
  }
}

// Devices 1 and 2 copy from any host memory, and device 3 does not.
class LongDeviceCollectives : public CapiTest {};

TEST_P(LongDeviceCollectives, ResultsEqualThoseInHostMemory) {
  for (const int32_t ranks : {2, 5}) {
    run(ranks, [](Member& me) { compare_with_host(me, 8, 4, true); });
  }
}

constexpr int32_t kRanks = 3;

// Runs every kind that uses long chunks, with both ways of writing, which a new team tries in turn,
// on two devices of each rank.
void compare_both_ways(Member& me, const int32_t (&all_devices)[kRanks][2]) {
  const auto& devices = all_devices[me.rank()];
  Random random(7);
  uint64_t round = 0;
  for (const Kind kind :
       {Kind::kBroadcast, Kind::kReduce, Kind::kAllreduce, Kind::kAllgather, Kind::kReduceScatter,
        Kind::kAlltoall, Kind::kGather, Kind::kScatter, Kind::kAllgatherv, Kind::kReduceScatterv}) {
    for (int form = 0; form < (can_be_in_place(kind) ? 2 : 1); ++form, ++round) {
      Plan plan = draw(random, kRanks, true);
      while (plan.kind != kind || plan.reduction == HETCOMM_REDUCE_PREMUL_SUM) {
        plan = draw(random, kRanks, true);
      }
      plan.in_place = form == 1;
      plan.root = plan.in_place ? 0 : kRanks - 1;
      SCOPED_TRACE("kind " + std::to_string(static_cast<int>(kind)) +
                   (plan.in_place ? ", in place" : ""));
      hetcomm_communicator_t* part = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &part), HETCOMM_OK);
      const int32_t host[2] = {0, 0};
      const After expected = carry_out(plan, me, part, host, host, round);
      for (int way = 0; way < 2; ++way) {
        const After after = carry_out(plan, me, part, devices, devices, round);
        EXPECT_TRUE(are_equal(expected.from, after.from)) << "way " << way;
        EXPECT_TRUE(are_equal(expected.to, after.to)) << "way " << way;
      }
      EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Devices 1 and 2 copy from any host memory; 0 (the host) and 3 do not.
TEST_P(LongDeviceCollectives, BothWriteMethodsGiveTheSameResult) {
  run(kRanks, [](Member& me) { compare_both_ways(me, {{1, 2}, {2, 1}, {1, 1}}); });
}
TEST_P(LongDeviceCollectives, BothWriteMethodsAgreeIfOneRankUsesHostMemory) {
  run(kRanks, [](Member& me) { compare_both_ways(me, {{0, 0}, {1, 2}, {2, 2}}); });
}
TEST_P(LongDeviceCollectives, BothWriteMethodsAgreeIfOneRankNeedsPinnedMemory) {
  run(kRanks, [](Member& me) { compare_both_ways(me, {{3, 3}, {2, 1}, {1, 3}}); });
}

// One rank has never used device memory.
TEST_P(LongDeviceCollectives, RankUsingOnlyHostMemoryTakesPart) {
  run(2, [](Member& me) {
    Plan plan;
    plan.block = 16'000'000;
    const int32_t device = me.rank() == 0 ? 0 : 1;
    const int32_t devices[2] = {device, device};
    for (uint64_t round = 0; round < 6; ++round) {
      plan.root = static_cast<int32_t>(round % 2);
      plan.kind = round % 3 == 0 ? Kind::kAllreduce : Kind::kBroadcast;
      const After after = carry_out(plan, me, me.communicator(), devices, devices, round);
      ASSERT_FALSE(after.to.empty());
    }
  });
}

// Returns the number of resident bytes in this process's arenas.
uint64_t arena_bytes() {
  std::ifstream maps("/proc/self/smaps");
  uint64_t kilobytes = 0;
  bool is_arena = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("hetcomm-collective") != std::string::npos) {
      is_arena = true;
    } else if (is_arena && line.rfind("Rss:", 0) == 0) {
      kilobytes += std::strtoull(line.c_str() + 4, nullptr, 10);
      is_arena = false;
    }
  }
  return kilobytes << 10;
}

// Every rank's buffers are on devices that copy from any host memory. Successive operations try
// both ways of writing.
TEST_P(LongDeviceCollectives, SuccessiveAllreducesGiveCorrectResults) {
  run(2, [](Member& me) {
    constexpr uint64_t kSize = 7'000'004;
    const int32_t devices[2] = {1, 2};
    Region from(me, devices, kSize, false);
    Region to(me, devices, kSize, false);
    for (uint64_t round = 0; round < 40; ++round) {
      const auto value = static_cast<uint32_t>(1000 * round + static_cast<uint64_t>(me.rank()));
      std::vector<std::byte> bytes(kSize);
      for (uint64_t at = 0; at < kSize; at += sizeof(value)) {
        const auto element = value + static_cast<uint32_t>(at);
        std::memcpy(bytes.data() + at, &element, sizeof(element));
      }
      from.fill(bytes);
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_allreduce(me.communicator(), from.part(0, kSize), to.part(0, kSize),
                                  HETCOMM_UINT32, HETCOMM_REDUCE_SUM, nullptr, &request),
                HETCOMM_OK)
          << hetcomm_last_error();
      const Outcome outcome = finish(request);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      const std::vector<std::byte> result = to.contents();
      for (uint64_t at = 0; at < kSize; at += sizeof(value)) {
        uint32_t element = 0;
        std::memcpy(&element, result.data() + kGuard + at, sizeof(element));
        ASSERT_EQ(element, 2 * static_cast<uint32_t>(1000 * round + at) + 1)
            << "round " << round << ", byte " << at;
      }
    }
    // Short chunks of two ranks take 2 MiB in each rank's mapping.
    EXPECT_GT(arena_bytes(), uint64_t{8} << 20) << "no long chunks were used";
    me.meet();
  });
}

// Slices are in progress when the operation ends. Their memory stays valid until they have ended,
// and the process continues.
void end_in_the_middle(Member& me, uint64_t size) {
  const int32_t devices[2] = {1, 2};
  int ended_early = 0;
  for (int round = 0; round < 8; ++round) {
    Region from(me, devices, size, false);
    Region to(me, devices, size, false);
    hetcomm_communicator_t* part = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &part), HETCOMM_OK);
    hetcomm_collective_options_t options{};
    options.struct_size = sizeof(options);
    // A team's second operation uses another way of writing than its first.
    if (round >= 4) {
      hetcomm_request_t* whole = nullptr;
      ASSERT_EQ(hetcomm_allreduce(part, from.part(0, size), to.part(0, size), HETCOMM_INT64,
                                  HETCOMM_REDUCE_SUM, nullptr, &whole),
                HETCOMM_OK)
          << hetcomm_last_error();
      EXPECT_EQ(finish(whole).status, HETCOMM_OK);
      me.meet();
    }
    if (round % 2 == 0 && me.rank() == 0) options.timeout_ns = 3 * kMs;
    const uint64_t start = clock_ns();
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_allreduce(part, from.part(0, size), to.part(0, size), HETCOMM_INT64,
                                HETCOMM_REDUCE_SUM, &options, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    if (round % 2 == 1 && me.rank() == 1) {
      (void)me.until([] { return false; }, 2 * kMs);
      EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
    }
    const Outcome outcome = finish(request);
    if (outcome.status == HETCOMM_OK) {
      // A busy machine may end the operation later than its copies.
      EXPECT_GE(clock_ns() - start, 8 * kMs) << "the time of a device of 500 MB/s, or less";
    } else {
      ++ended_early;
    }
    const bool here = outcome.status == HETCOMM_TIMED_OUT || outcome.status == HETCOMM_CANCELLED;
    const std::string own = "waits for rank " + std::to_string(me.rank());
    EXPECT_TRUE(!here || outcome.text.find(own) == std::string::npos) << outcome.text;
    me.meet();
    EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
  }
  EXPECT_GT(ended_early, 0);
}

TEST_P(DeviceCollectives, OperationCanEndWhileItsCopiesRun) {
  run(2, [](Member& me) { end_in_the_middle(me, 4'000'000); });
}
TEST_P(LongDeviceCollectives, OperationCanEndWhileItsCopiesRun) {
  run(2, [](Member& me) { end_in_the_middle(me, 16'000'000); });
}

std::vector<CapiCase> long_cases() {
  std::vector<CapiCase> all;
  for (const bool thread : {false, true}) {
    all.push_back({.name = thread ? "shm_thread" : "shm",
                   .transports = "shm",
                   .settings = "DEVICES=sim-handle:bandwidth=1500M:latency=20us:unified=1,"
                               "sim-address:bandwidth=3G:unified=1,sim-handle;",
                   .thread_progress = thread});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Over, LongDeviceCollectives, ::testing::ValuesIn(long_cases()),
                         capi_case_name);
INSTANTIATE_TEST_SUITE_P(Over, DeviceCollectives, ::testing::ValuesIn(cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
