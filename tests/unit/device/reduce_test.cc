// Devices that reduce give the same bits as the host, for any input bits. Offsets may be any
// multiples of an element. Wrong arguments are refused.
#include "src/reduce/reduce.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/datatype.h>

#include "tests/unit/device/fixture.h"

namespace hetcomm {
namespace {

using reduce::Operator;
using reduce::Type;

constexpr uint64_t kElements = 3000;
constexpr uint64_t kMaxBytes = (kElements + 16) * 16;

uint64_t bytes_of(int32_t type) { return reduce::size_of(static_cast<Type>(type)); }

// One case: type, operator and divisor.
struct Case {
  int32_t type;
  int32_t reduction;
  bool first_is_wide = false;
  bool out_is_wide = false;
  uint32_t divisor = 1;

  int32_t first_type() const { return first_is_wide ? HETCOMM_FLOAT32 : type; }
  int32_t out_type() const { return out_is_wide ? HETCOMM_FLOAT32 : type; }
  std::string text() const {
    return "type " + std::to_string(type) + " reduction " + std::to_string(reduction) + " first " +
           std::to_string(first_is_wide) + " out " + std::to_string(out_is_wide) + " divisor " +
           std::to_string(divisor);
  }
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int32_t type = HETCOMM_BOOL; type <= HETCOMM_COMPLEX128; ++type) {
    for (int32_t reduction = HETCOMM_REDUCE_SUM; reduction <= HETCOMM_REDUCE_XOR; ++reduction) {
      if (!reduce::is_defined(static_cast<Type>(type), static_cast<Operator>(reduction))) continue;
      const bool rounds = reduce::rounds(static_cast<Type>(type), static_cast<Operator>(reduction));
      for (const bool first : {false, true}) {
        for (const bool out : {false, true}) {
          if (!rounds && (first || out)) continue;
          cases.push_back({type, reduction, first, out, 1});
          if (!rounds || out || reduction != HETCOMM_REDUCE_SUM) continue;
          for (const uint32_t divisor : {2u, 3u, 7u}) {
            cases.push_back({type, reduction, first, out, divisor});
          }
        }
      }
    }
  }
  return cases;
}

// Returns whether every device of this |kind| must support the case: integers, and sums of hardware
// floats.
bool is_needed(const std::string& kind, const Case& which) {
  bool is_integer = which.type >= HETCOMM_INT8 && which.type <= HETCOMM_UINT64;
  if (kind.starts_with("torch")) {
    const bool is_unsigned = which.type == HETCOMM_UINT16 || which.type == HETCOMM_UINT32 ||
                             which.type == HETCOMM_UINT64;
    is_integer = is_integer && !is_unsigned && which.reduction <= HETCOMM_REDUCE_MAX;
  }
  const bool is_float = which.type == HETCOMM_FLOAT16 || which.type == HETCOMM_BFLOAT16 ||
                        which.type == HETCOMM_FLOAT32;
  return is_integer || (is_float && which.reduction == HETCOMM_REDUCE_SUM && which.divisor <= 2);
}

// Returns the host's result.
std::vector<std::byte> expected(const Case& which, const std::byte* first,
                                const std::byte* second) {
  const auto type = static_cast<Type>(which.type);
  const auto op = which.divisor > 1 ? Operator::kAverage : static_cast<Operator>(which.reduction);
  std::vector<std::byte> out(kElements * bytes_of(which.out_type()));
  const std::byte* const both[] = {first, second};
  if (!reduce::rounds(type, op)) {
    reduce::combine(type, op, out.data(), both, 2, kElements);
    return out;
  }
  // Computed in float32, element by element, and rounded once.
  std::vector<float> a(kElements);
  std::vector<float> b(kElements);
  if (which.first_is_wide) {
    std::memcpy(a.data(), first, kElements * sizeof(float));
  } else {
    reduce::widen(type, a.data(), first, kElements);
  }
  reduce::widen(type, b.data(), second, kElements);
  for (size_t i = 0; i < kElements; ++i) {
    volatile float result = which.reduction == HETCOMM_REDUCE_PRODUCT ? a[i] * b[i] : a[i] + b[i];
    if (which.divisor > 1) result = result / static_cast<float>(which.divisor);
    a[i] = result;
  }
  if (which.out_is_wide) {
    std::memcpy(out.data(), a.data(), out.size());
  } else {
    reduce::narrow(type, out.data(), a.data(), kElements);
  }
  return out;
}

template <typename Real>
bool both_nan(const std::byte* one, const std::byte* other) {
  Real a;
  Real b;
  std::memcpy(&a, one, sizeof(a));
  std::memcpy(&b, other, sizeof(b));
  return std::isnan(a) && std::isnan(b);
}

// Returns whether two elements have the same bits, or both are NaN.
bool are_alike(int32_t type, const std::byte* one, const std::byte* other) {
  if (std::memcmp(one, other, bytes_of(type)) == 0) return true;
  switch (type) {
    case HETCOMM_FLOAT32:
      return both_nan<float>(one, other);
    case HETCOMM_FLOAT64:
      return both_nan<double>(one, other);
    case HETCOMM_COMPLEX64:
      return are_alike(HETCOMM_FLOAT32, one, other) &&
             are_alike(HETCOMM_FLOAT32, one + 4, other + 4);
    case HETCOMM_COMPLEX128:
      return are_alike(HETCOMM_FLOAT64, one, other) &&
             are_alike(HETCOMM_FLOAT64, one + 8, other + 8);
    default:
      break;
  }
  if (type < HETCOMM_FLOAT16 || type > HETCOMM_FLOAT8_E5M2) return false;
  float a = 0;
  float b = 0;
  reduce::widen(static_cast<Type>(type), &a, one, 1);
  reduce::widen(static_cast<Type>(type), &b, other, 1);
  return std::isnan(a) && std::isnan(b);
}

class DevicesThatReduce : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    stream_ = device_.stream();
    for (void*& memory : memories_) memory = device_.allocate(kMaxBytes);
  }
  void TearDown() override {
    for (void* const memory : memories_) device_.free(memory);
    device_.destroy_stream(stream_);
  }
  DeviceReduction what(const Case& which) const {
    DeviceReduction what{};
    what.first = memories_[0];
    what.first_offset = 3 * bytes_of(which.first_type());
    what.second = memories_[1];
    what.second_offset = 5 * bytes_of(which.type);
    what.out = memories_[2];
    what.out_offset = bytes_of(which.out_type());
    what.elements = kElements;
    what.reduction = which.reduction;
    what.datatype = which.type;
    what.first_datatype = which.first_type();
    what.out_datatype = which.out_type();
    what.divisor = which.divisor;
    return what;
  }
  hetcomm_status_t reduce(void* stream, const DeviceReduction& what) {
    return device_.table().reduce(device_.instance(), stream, &what);
  }
  hetcomm_status_t ask(const Case& which) {
    DeviceReduction nothing = what(which);
    nothing.elements = 0;
    return reduce(nullptr, nothing);
  }
  // Waits until the device supports all required cases. A device may compile its kernels one after
  // the other, which takes a minute in total under load, so each kernel gets a minute.
  void prepare(const std::vector<Case>& cases) {
    auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    size_t most = 0;
    for (bool all = false; !all && std::chrono::steady_clock::now() < end;) {
      all = true;
      size_t ready = 0;
      for (const Case& which : cases) {
        const hetcomm_status_t status = ask(which);
        ASSERT_TRUE(status == HETCOMM_OK || status == HETCOMM_UNSUPPORTED) << status;
        ready += status == HETCOMM_OK ? 1 : 0;
        all = all && (status == HETCOMM_OK || !is_needed(GetParam(), which));
      }
      if (ready > most) {
        most = ready;
        end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      }
      if (!all) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (const Case& which : cases) {
      if (!is_needed(GetParam(), which)) continue;
      EXPECT_EQ(ask(which), HETCOMM_OK) << which.text();
    }
  }

  TestDevice device_{GetParam()};
  void* stream_ = nullptr;
  std::array<void*, 3> memories_{};
};

TEST_P(DevicesThatReduce, ResultsEqualTheHostBitForBit) {
  const std::vector<Case> cases = all_cases();
  prepare(cases);
  unsigned seed = 1;
  size_t reduced = 0;
  for (const Case& which : cases) {
    if (ask(which) != HETCOMM_OK) continue;
    ++reduced;
    SCOPED_TRACE(which.text());
    const DeviceReduction whole = what(which);
    // The inputs include all kinds of bits: subnormal numbers, infinities, NaN.
    const std::vector<std::byte> first =
        random_bytes(kElements * bytes_of(which.first_type()), ++seed);
    const std::vector<std::byte> second = random_bytes(kElements * bytes_of(which.type), ++seed);
    const std::vector<std::byte> out = expected(which, first.data(), second.data());
    std::vector<std::byte> result(out.size() + 2 * bytes_of(which.out_type()), std::byte{0x55});
    std::vector<std::byte> around(result);
    ASSERT_EQ(device_.write(stream_, memories_[2], 0, around.data(), around.size()), HETCOMM_OK);
    ASSERT_EQ(device_.write(stream_, memories_[0], whole.first_offset, first.data(), first.size()),
              HETCOMM_OK);
    ASSERT_EQ(
        device_.write(stream_, memories_[1], whole.second_offset, second.data(), second.size()),
        HETCOMM_OK);
    // The stream orders the reduction after the copies, so no wait is needed.
    ASSERT_EQ(reduce(stream_, whole), HETCOMM_OK);
    ASSERT_EQ(device_.read(stream_, result.data(), memories_[2], 0, result.size()), HETCOMM_OK);
    device_.finish(stream_);
    const size_t size = bytes_of(which.out_type());
    for (size_t i = 0; i < kElements; ++i) {
      ASSERT_TRUE(are_alike(which.out_type(), &result[(i + 1) * size], &out[i * size]))
          << "element " << i;
    }
    EXPECT_EQ(std::memcmp(result.data(), around.data(), size), 0) << "before the first element";
    EXPECT_EQ(std::memcmp(&result[(kElements + 1) * size], around.data(), size), 0)
        << "behind the last element";
  }
  RecordProperty("reduced", static_cast<int>(reduced));  // number of supported reductions
  EXPECT_GE(reduced, GetParam().starts_with("torch") ? 50u : 60u);
}

// The result may replace an operand, and be an operand in the next reduction.
TEST_P(DevicesThatReduce, OutputMayBeAnOperand) {
  const Case which{HETCOMM_FLOAT32, HETCOMM_REDUCE_SUM};
  prepare({which});
  std::vector<float> numbers(kElements);
  for (size_t i = 0; i < kElements; ++i) numbers[i] = static_cast<float>(i);
  const uint64_t size = kElements * sizeof(float);
  for (void* const memory : memories_) {
    ASSERT_EQ(device_.write(stream_, memory, 0, numbers.data(), size), HETCOMM_OK);
  }
  DeviceReduction sum = what(which);
  sum.first_offset = sum.second_offset = sum.out_offset = 0;
  sum.out = memories_[0];
  ASSERT_EQ(reduce(stream_, sum), HETCOMM_OK);  // first = 2 x
  ASSERT_EQ(reduce(stream_, sum), HETCOMM_OK);  // first = 3 x
  sum.out = memories_[1];
  ASSERT_EQ(reduce(stream_, sum), HETCOMM_OK);  // second = 4 x
  std::vector<float> result(kElements);
  ASSERT_EQ(device_.read(stream_, result.data(), memories_[1], 0, size), HETCOMM_OK);
  device_.finish(stream_);
  for (size_t i = 0; i < kElements; ++i) ASSERT_EQ(result[i], 4 * numbers[i]) << i;
}

TEST_P(DevicesThatReduce, InvalidArgumentsAreRefused) {
  const Case right{HETCOMM_BFLOAT16, HETCOMM_REDUCE_SUM};
  prepare({right});
  const auto after = [&](auto&& change) {
    DeviceReduction wrong = what(right);
    change(wrong);
    return reduce(stream_, wrong);
  };
  int here = 0;
  EXPECT_EQ(device_.table().reduce(device_.instance(), stream_, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(reduce(nullptr, what(right)), HETCOMM_INVALID_ARGUMENT);
  for (const void* DeviceReduction::*place : {&DeviceReduction::first, &DeviceReduction::second}) {
    EXPECT_EQ(after([&](DeviceReduction& wrong) { wrong.*place = &here; }),
              HETCOMM_INVALID_ARGUMENT);
  }
  EXPECT_EQ(after([&](DeviceReduction& wrong) { wrong.out = &here; }), HETCOMM_INVALID_ARGUMENT);
  for (uint64_t DeviceReduction::*offset :
       {&DeviceReduction::first_offset, &DeviceReduction::second_offset,
        &DeviceReduction::out_offset}) {
    for (const uint64_t value : {kMaxBytes - 2, ~uint64_t{0} - 1}) {
      EXPECT_EQ(after([&](DeviceReduction& wrong) { wrong.*offset = value; }),
                HETCOMM_OUT_OF_RANGE);
    }
  }
  for (const uint64_t elements : {kMaxBytes, ~uint64_t{0}}) {
    EXPECT_EQ(after([&](DeviceReduction& wrong) { wrong.elements = elements; }),
              HETCOMM_OUT_OF_RANGE);
  }
  const auto refuses = [&](int32_t DeviceReduction::*field, int32_t value) {
    EXPECT_EQ(after([&](DeviceReduction& wrong) { wrong.*field = value; }),
              HETCOMM_INVALID_ARGUMENT)
        << value;
  };
  for (const int32_t type : {-1, HETCOMM_COMPLEX128 + 1}) refuses(&DeviceReduction::datatype, type);
  for (const int32_t type : {-1, int{HETCOMM_FLOAT16}, int{HETCOMM_FLOAT64}}) {
    refuses(&DeviceReduction::first_datatype, type);
    refuses(&DeviceReduction::out_datatype, type);
  }
  for (const int32_t reduction : {-1, int{HETCOMM_REDUCE_AVERAGE}, 99}) {
    refuses(&DeviceReduction::reduction, reduction);
  }
  refuses(&DeviceReduction::reserved, 1);
  EXPECT_EQ(after([](DeviceReduction& wrong) { wrong.divisor = 0; }), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(after([](DeviceReduction& wrong) {
              wrong.divisor = 2;
              wrong.out_datatype = HETCOMM_FLOAT32;
            }),
            HETCOMM_INVALID_ARGUMENT);
  // None of the refused calls has run.
  device_.finish(stream_);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DevicesThatReduce,
                         testing::ValuesIn(kinds_with(&DeviceTable::reduce)), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicesThatReduce);

}  // namespace
}  // namespace hetcomm
