// Sums made by devices, without a surrounding operation.
//
//   * any number of operands, on the host or on the device, give the same bits as on the host, even
//     if they do not fit into the scratch memory at once
//   * once both places have been measured, the faster one is used; the other one is tried
//     occasionally, and less often after each trial without effect
//   * if a device fails before writing anything, the host makes the sum
//   * nothing is allocated while a user's stream is held back
#include "src/core/memory/device_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/datatype.h>

#include "devices/registry.h"
#include "src/reduce/reduce.h"

namespace hetcomm {
namespace {

using Mode = DeviceSums::Mode;

class DeviceSumsTest : public ::testing::Test, protected CopyHandler {
 protected:
  void SetUp() override {
    for (const char* const kind : {"sim-address", "sim-handle"}) {
      Result<Device> device = create_sim_device(kind, "memory=64M");
      ASSERT_TRUE(device.ok());
      ASSERT_TRUE(devices_.add(*device).ok());
    }
  }
  void on_copied(const Status& status) override {
    ended_ = true;
    status_ = status;
  }
  std::string copy_purpose() const override { return "a test"; }
  void run(DeviceSums& sums, const DeviceSum& sum) {
    CopyJob job;
    ended_ = false;
    ASSERT_TRUE(sums.start(job, sum, *this));
    while (!ended_) staging_.progress();
    EXPECT_TRUE(status_.ok()) << status_.text();
  }
  // Returns a sum of two operands in host memory, with |bytes| each.
  DeviceSum plain_sum(uint64_t bytes) {
    first_.resize(bytes);
    second_.resize(bytes);
    out_.resize(bytes);
    operands_[0] = {.host = first_.data()};
    operands_[1] = {.host = second_.data()};
    return {.device = kReduces,
            .datatype = HETCOMM_UINT8,
            .reduction = HETCOMM_REDUCE_SUM,
            .operands = operands_,
            .out = out_.data(),
            .elements = bytes};
  }

  static constexpr size_t kReduces = 0;
  static constexpr size_t kDoesNot = 1;
  static constexpr uint64_t kLong = 1u << 20;
  DeviceSet devices_;
  Staging staging_{devices_, {}};
  bool ended_ = false;
  Status status_;
  std::vector<std::byte> first_;
  std::vector<std::byte> second_;
  std::vector<std::byte> out_;
  std::array<SumOperand, 2> operands_;
};

// Occupies all memory of a device.
class FullMemory {
 public:
  explicit FullMemory(const Device& device) : device_(device) {
    void* address = nullptr;
    for (const uint64_t size : {uint64_t{8} << 20, uint64_t{1} << 20}) {
      while (device_.table->allocate(device_.instance, size, &address) == HETCOMM_OK) {
        all_.push_back(address);
      }
    }
  }
  ~FullMemory() {
    for (void* const each : all_) device_.table->free(device_.instance, each);
  }
  FullMemory(const FullMemory&) = delete;
  FullMemory& operator=(const FullMemory&) = delete;

 private:
  const Device device_;
  std::vector<void*> all_;
};

// Numbers whose sums need rounding, so that the place and order of the rounding show.
float number(size_t operand, uint64_t element) {
  const uint64_t mixed = (element + 1) * (2 * operand + 0x9e3779b97f4a7c15);
  return static_cast<float>(mixed >> 40) / 1024;
}

TEST_F(DeviceSumsTest, DeviceSumsEqualHostSumsBitForBit) {
  DeviceSums sums(devices_, staging_, Mode::kDevice);
  struct Shape {
    int32_t datatype;
    uint32_t divisor;
    bool first_is_wide;
    bool out_is_wide;
  };
  constexpr Shape kShapes[] = {
      {HETCOMM_FLOAT32, 1, false, false},   {HETCOMM_BFLOAT16, 1, false, false},
      {HETCOMM_BFLOAT16, 5, false, false},  {HETCOMM_BFLOAT16, 3, true, false},
      {HETCOMM_BFLOAT16, 1, false, true},   {HETCOMM_BFLOAT16, 1, true, true},
      {HETCOMM_FLOAT8_E5M2, 2, true, false}};
  for (const Shape& shape : kShapes) {
    const auto type = static_cast<reduce::Type>(shape.datatype);
    const bool rounds = reduce::rounds(type, reduce::Operator::kSum);
    for (const size_t count : {2u, 3u, 5u}) {
      // The largest size exceeds the scratch memory.
      for (const uint64_t elements : {uint64_t{1}, uint64_t{5000}, uint64_t{1'500'000}}) {
        SCOPED_TRACE(std::to_string(shape.datatype) + ", " + std::to_string(count) +
                     " operands of " + std::to_string(elements) + " elements");
        const auto width = [&](bool wide) { return wide ? sizeof(float) : reduce::size_of(type); };
        std::vector<std::vector<std::byte>> host(count);
        for (size_t i = 0; i < count; ++i) {
          const bool wide = rounds && i == 0 && shape.first_is_wide;
          std::vector<float> numbers(elements);
          for (uint64_t e = 0; e < elements; ++e) numbers[e] = number(i, e);
          host[i].resize(elements * width(wide));
          if (wide || !rounds) {
            std::memcpy(host[i].data(), numbers.data(), host[i].size());
          } else {
            reduce::narrow(type, host[i].data(), numbers.data(), elements);
          }
        }
        // One operand is on the device, after other data.
        constexpr uint64_t kBefore = 64;
        const size_t there = count - 1;
        const Device& device = devices_.device(kReduces);
        void* address = nullptr;
        ASSERT_EQ(device.table->allocate(device.instance, kBefore + host[there].size(), &address),
                  HETCOMM_OK);
        Memory memory(devices_, kReduces, address, kBefore + host[there].size(), true);
        ASSERT_TRUE(memory.write(kBefore, host[there].data(), host[there].size()).ok());
        std::vector<SumOperand> operands;
        for (const auto& each : host) operands.push_back({.host = each.data()});
        operands[there] = {.memory = &memory, .offset = kBefore};

        const size_t out_width = width(rounds && shape.out_is_wide);
        std::vector<std::byte> out((elements + 1) * out_width, std::byte{0x5c});
        const std::vector<std::byte> before(out.end() - static_cast<ptrdiff_t>(out_width),
                                            out.end());
        const DeviceSum sum{.device = kReduces,
                            .datatype = shape.datatype,
                            .reduction = HETCOMM_REDUCE_SUM,
                            .divisor = shape.divisor,
                            .rounds = rounds,
                            .first_is_wide = rounds && shape.first_is_wide,
                            .out_is_wide = rounds && shape.out_is_wide,
                            .operands = operands,
                            .out = out.data(),
                            .elements = elements};
        ASSERT_TRUE(sums.takes(sum));
        run(sums, sum);

        std::vector<std::byte> expected(elements * out_width);
        std::vector<const std::byte*> inputs;
        for (size_t i = sum.first_is_wide ? 1 : 0; i < count; ++i) inputs.push_back(host[i].data());
        const auto* const wide_first =
            sum.first_is_wide ? reinterpret_cast<const float*>(host[0].data()) : nullptr;
        const reduce::Reduction reduction{
            .type = type,
            .op = shape.divisor > 1 ? reduce::Operator::kAverage : reduce::Operator::kSum,
            .ranks = shape.divisor};
        if (sum.out_is_wide) {
          reduce::reduce_wide(reduction, reinterpret_cast<float*>(expected.data()), inputs.data(),
                              inputs.size(), elements, wide_first);
        } else {
          reduce::reduce(reduction, expected.data(), inputs.data(), inputs.size(), elements,
                         wide_first);
        }
        EXPECT_EQ(std::memcmp(out.data(), expected.data(), expected.size()), 0);
        EXPECT_TRUE(
            std::equal(before.begin(), before.end(), out.end() - static_cast<ptrdiff_t>(out_width)))
            << "behind the last element";
      }
    }
  }
}

TEST_F(DeviceSumsTest, DevicesWithoutReductionAreNotUsed) {
  DeviceSums sums(devices_, staging_, Mode::kDevice);
  DeviceSum sum = plain_sum(1000);
  EXPECT_TRUE(sums.takes(sum));
  sum.device = kDoesNot;
  EXPECT_FALSE(sums.takes(sum));
  sum.device = kReduces;
  sum.datatype = HETCOMM_COMPLEX64;
  sum.elements = 100;
  sum.reduction = HETCOMM_REDUCE_MAX;
  EXPECT_FALSE(sums.takes(sum)) << "there is no such reduction";
  DeviceSums none(devices_, staging_, Mode::kHost);
  EXPECT_FALSE(none.takes(plain_sum(1000)));
}

TEST_F(DeviceSumsTest, FasterSideIsUsedOnceBothAreMeasured) {
  DeviceSums sums(devices_, staging_, Mode::kMeasured);
  const DeviceSum sum = plain_sum(kLong);
  const DeviceSum brief = plain_sum(DeviceSums::kMinBytes - 1);
  EXPECT_FALSE(sums.takes(sum)) << "the host is measured first";
  sums.note(sum, /*on_device=*/false, 100'000);
  EXPECT_FALSE(sums.takes(brief));
  // The device's first run does not count, because it creates streams and loads kernels.
  for (const uint64_t ns : {uint64_t{900'000'000}, uint64_t{50'000}}) {
    ASSERT_TRUE(sums.takes(sum)) << "then the device";
    sums.note(sum, /*on_device=*/true, ns);
  }
  // Returns how many of the next thousand sums a device makes.
  const auto taken = [&] {
    int count = 0;
    for (int i = 0; i < 1000; ++i) count += sums.takes(sum) ? 1 : 0;
    return count;
  };
  const int most = taken();
  EXPECT_GT(most, 980);
  EXPECT_LT(most, 1000) << "the host is tried again";
  for (int i = 0; i < 20; ++i) sums.note(sum, /*on_device=*/true, 400'000);
  EXPECT_FALSE(sums.takes(sum));
  const int few = taken();
  EXPECT_LT(few, 20);
  EXPECT_GT(few, 0) << "the device is tried again";
  EXPECT_FALSE(sums.takes(brief));
  // A trial's result takes effect immediately.
  sums.note(sum, /*on_device=*/true, 20'000);
  EXPECT_TRUE(sums.takes(sum));
}

// A trial without effect delays the next one, up to a limit. After one with an effect, the next
// trial is early again.
TEST_F(DeviceSumsTest, TrialsWithoutEffectBecomeRare) {
  constexpr uint32_t kMin = DeviceSums::kMinTrialDistance;
  constexpr uint32_t kMax = DeviceSums::kMaxTrialDistance;
  DeviceSums sums(devices_, staging_, Mode::kMeasured);
  const DeviceSum sum = plain_sum(kLong);
  uint64_t device_ns = 1'000'000;
  // Returns the number of sums until the next sum in the given place.
  const auto distance_to = [&](bool on_device) {
    for (uint32_t count = 1; count < 4 * kMax; ++count) {
      const bool there = sums.takes(sum);
      sums.note(sum, there, there ? device_ns : 100'000);
      if (there == on_device) return count;
    }
    return UINT32_MAX;
  };
  distance_to(true);  // the first sum, which does not count
  EXPECT_EQ(distance_to(true), 1U) << "then it is measured";
  for (uint32_t distance = kMin; distance < kMax; distance *= 2) {
    EXPECT_EQ(distance_to(true), distance);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(distance_to(true), kMax);
  device_ns = 10'000;
  EXPECT_EQ(distance_to(true), kMax);
  EXPECT_EQ(distance_to(false), kMin) << "the device is quicker now";
}

// The entries of a device's table that fail, starting with their next calls.
struct Failures {
  bool reduce = false;
  bool copy_to_host = false;
  bool event_record = false;
};
Failures failures;

const DeviceTable& failing_table(const DeviceTable& given) {
  static const DeviceTable real = given;
  static const DeviceTable made = [] {
    DeviceTable table = real;
    table.reduce = [](void* device, void* stream, const DeviceReduction* what) {
      return failures.reduce && what->elements > 0 ? hetcomm_status_t{HETCOMM_OUT_OF_MEMORY}
                                                   : real.reduce(device, stream, what);
    };
    table.copy_to_host = [](void* device, void* stream, void* host, const void* address,
                            uint64_t offset, uint64_t size) {
      return failures.copy_to_host ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                   : real.copy_to_host(device, stream, host, address, offset, size);
    };
    table.event_record = [](void* device, void* stream, void** out_event) {
      return failures.event_record ? hetcomm_status_t{HETCOMM_DEVICE_LOST}
                                   : real.event_record(device, stream, out_event);
    };
    return table;
  }();
  return made;
}

// The host can make a sum if the device wrote nothing. Otherwise the operands may be overwritten.
TEST_F(DeviceSumsTest, HostTakesOverOnlyIfTheDeviceWroteNothing) {
  const Device real = create_sim_device("sim-address", "memory=64M").value();
  const size_t index = devices_.add({&failing_table(*real.table), real.instance}).value();
  DeviceSums sums(devices_, staging_, Mode::kDevice);
  DeviceSum sum = plain_sum(1000);
  sum.device = index;
  CopyJob job;
  ASSERT_TRUE(sums.takes(sum));
  failures = {.reduce = true};
  EXPECT_FALSE(sums.start(job, sum, *this));
  EXPECT_EQ(staging_.progress(), 0);
  for (const bool at_copy : {true, false}) {
    failures = {.copy_to_host = at_copy, .event_record = !at_copy};
    ended_ = false;
    ASSERT_TRUE(sums.start(job, sum, *this));
    EXPECT_EQ(staging_.progress(), 1);
    EXPECT_TRUE(ended_);
    EXPECT_EQ(status_.code(), Code::kDeviceLost);
  }
  failures = {};
  run(sums, sum);
}

TEST_F(DeviceSumsTest, FailedDeviceIsRarelyRetried) {
  const Device real = create_sim_device("sim-address", "memory=64M").value();
  const size_t index = devices_.add({&failing_table(*real.table), real.instance}).value();
  DeviceSums sums(devices_, staging_, Mode::kMeasured);
  DeviceSum sum = plain_sum(kLong);
  sum.device = index;
  sums.note(sum, /*on_device=*/false, 100'000);
  ASSERT_TRUE(sums.takes(sum));
  failures = {.reduce = true};
  CopyJob job;
  EXPECT_FALSE(sums.start(job, sum, *this));
  failures = {};
  EXPECT_FALSE(sums.takes(sum));
  int later = 0;
  for (int i = 0; i < 1000; ++i) later += sums.takes(sum) ? 1 : 0;
  EXPECT_GT(later, 0) << "it is tried again";
  EXPECT_LT(later, 20);
}

TEST_F(DeviceSumsTest, UnpreparedDeviceIsNotUsedWhileAStreamIsHeldBack) {
  DeviceSums sums(devices_, staging_, Mode::kDevice);
  const DeviceSum sum = plain_sum(1000);
  devices_.calls().add_hold();
  EXPECT_FALSE(sums.takes(sum));
  devices_.calls().drop_hold();
  {
    const std::scoped_lock lock(devices_.calls().holding());
    std::thread([&] { EXPECT_FALSE(sums.takes(sum)); }).join();
  }
  sums.prepare_for_holds(kDoesNot);
  sums.prepare_for_holds(kReduces);
  devices_.calls().add_hold();
  EXPECT_FALSE(sums.takes(sum)) << "a first question may wait for the stream that is held";
  devices_.calls().drop_hold();
  EXPECT_TRUE(sums.takes(sum));
  devices_.calls().add_hold();
  EXPECT_TRUE(sums.takes(sum));
  devices_.calls().drop_hold();
}

// An allocation would fail and never be tried again.
TEST_F(DeviceSumsTest, FullMemoryDuringAHoldDoesNotExcludeTheDevice) {
  DeviceSums sums(devices_, staging_, Mode::kDevice);
  const DeviceSum sum = plain_sum(1000);
  {
    const FullMemory full(devices_.device(kReduces));
    devices_.calls().add_hold();
    EXPECT_FALSE(sums.takes(sum));
    devices_.calls().drop_hold();
  }
  EXPECT_TRUE(sums.takes(sum));
}

TEST_F(DeviceSumsTest, HostSumsIfDeviceMemoryIsExhausted) {
  const FullMemory full(devices_.device(kReduces));
  DeviceSums sums(devices_, staging_, Mode::kDevice);
  EXPECT_FALSE(sums.takes(plain_sum(1000)));
}

}  // namespace
}  // namespace hetcomm
