// Arithmetic in redistributions:
//
//   * a sum is formed in float32 (float64), in term order, divided, and rounded once, for every
//     type. It equals the sum that the test computes, for every strategy, in slices or whole, with
//     little or much memory, from host or device memory, identically on each rank
//   * a sum may have another type than its terms, wider or narrower
//   * numbers out of the range of float8_e4m3fn become its largest number, or NaN; a sum that keeps
//     its type overflows as in collective operations
//   * a sum of truth values is true if any term is
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "tests/conformance/capi/device/device.h"
#include "tests/conformance/capi/job.h"
#include "tests/conformance/capi/reshard/layouts.h"

namespace hetcomm_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint64_t kRows = 60;
constexpr uint64_t kColumns = 50;
constexpr uint64_t kElements = kRows * kColumns;
constexpr uint32_t kTerms = 4;

class ReshardingSums : public CapiTest {};

hetcomm_part_t rows_of(int32_t rank, uint64_t begin, uint64_t end, uint32_t copy = 0,
                       uint32_t term = 0) {
  hetcomm_part_t part{};
  part.rank = rank;
  part.copy = copy;
  part.term = term;
  part.begin[0] = begin;
  part.end[0] = end;
  part.end[1] = kColumns;
  part.strides[0] = kColumns;
  part.strides[1] = 1;
  part.offset = begin * kColumns;
  return part;
}

// Term t is on rank t. Every second term is split in two.
Grid terms_on_all(uint32_t divisor = 1) {
  Grid grid{.shape = {kRows, kColumns}, .parts = {}, .terms = kTerms, .divisor = divisor};
  for (uint32_t term = 0; term < kTerms; ++term) {
    const auto rank = static_cast<int32_t>(term);
    const uint64_t cut = term % 2 == 0 ? kRows : 7 * (term + 1);
    grid.parts.push_back(rows_of(rank, 0, cut, 0, term));
    if (cut < kRows) grid.parts.push_back(rows_of(rank, cut, kRows, 0, term));
  }
  return grid;
}

// One copy is on ranks 0 and 1, and one on rank 2.
Grid sums_on_some() {
  Grid grid{.shape = {kRows, kColumns}, .parts = {}, .terms = 1};
  grid.parts = {rows_of(0, 0, 20), rows_of(1, 20, kRows), rows_of(2, 0, kRows, 1)};
  return grid;
}

struct Way {
  int32_t strategy = HETCOMM_STRATEGY_AUTO;
  uint64_t slice_bytes = 0;
  uint64_t landing_bytes = 0;
  int32_t device = 0;
  int32_t overflow = HETCOMM_OVERFLOW_SATURATE;
};

struct Types {
  hetcomm_datatype_t source;
  hetcomm_datatype_t destination;
};

size_t size_of(hetcomm_datatype_t type) {
  size_t size = 0;
  EXPECT_EQ(hetcomm_datatype_size(type, &size), HETCOMM_OK);
  return size;
}

// Moves |held|, this rank's memory. Sets |out| to the bytes that arrive in its rows. Returns false
// if the strategy does not support the case.
bool move(Member& me, const Grid& from, const Grid& to, Types types, const Way& way,
          const Bytes& held, Bytes* out) {
  const Made source(from);
  const Made destination(to);
  const hetcomm_reshard_tensor_t tensor{source.get(), destination.get(), types.source,
                                        types.destination};
  hetcomm_reshard_options_t options{};
  options.struct_size = sizeof(options);
  options.strategy = way.strategy;
  options.slice_bytes = way.slice_bytes;
  options.landing_bytes = way.landing_bytes;
  options.overflow = way.overflow;
  options.prove = 1;
  hetcomm_reshard_t* plan = nullptr;
  const hetcomm_status_t status =
      hetcomm_reshard_create(me.communicator(), &tensor, 1, &options, &plan);
  if (status == HETCOMM_UNSUPPORTED) return false;
  EXPECT_EQ(status, HETCOMM_OK) << hetcomm_last_error();
  if (status != HETCOMM_OK) return false;
  DeviceMemory own(me, way.device, held.size() + 1);
  DeviceMemory target(me, way.device, kElements * size_of(types.destination));
  own.fill(held);
  target.fill(Bytes(kElements * size_of(types.destination), std::byte{0x5a}));
  const hetcomm_buffer_t in = own.part(0, held.size());
  const hetcomm_buffer_t into = target.part(0, kElements * size_of(types.destination));
  for (int again = 0; again < 2; ++again) {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_reshard_start(plan, &in, &into, nullptr, &request), HETCOMM_OK)
        << hetcomm_last_error();
    const Outcome outcome = finish(request);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  }
  *out = target.contents();
  EXPECT_TRUE(me.meet());
  EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_TRUE(me.meet());
  return true;
}

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <typename T>
T value_at(const Bytes& bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

uint16_t bfloat_of(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float float_of(uint16_t bfloat) {
  const uint32_t bits = uint32_t{bfloat} << 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Terms have very different magnitudes, so that each rounding and each order of additions shows.
uint16_t bfloat_term(uint32_t term, uint64_t index) {
  Random random(index * kTerms + term + 1);
  const auto mantissa = static_cast<float>(random.below(512)) - 256;
  return bfloat_of(std::ldexp(mantissa, static_cast<int>(random.below(14)) - 7));
}

std::vector<uint16_t> bfloats(uint32_t term) {
  std::vector<uint16_t> values(kElements);
  for (uint64_t i = 0; i < kElements; ++i) values[i] = bfloat_term(term, i);
  return values;
}

std::vector<float> sums_of_bfloats() {
  std::vector<float> sums(kElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    sums[i] = float_of(bfloat_term(0, i));
    for (uint32_t term = 1; term < kTerms; ++term) sums[i] += float_of(bfloat_term(term, i));
  }
  return sums;
}

// Returns whether this rank receives element |index|.
bool has(int32_t rank, uint64_t index) {
  const uint64_t row = index / kColumns;
  return rank == 2 || (rank == 0 && row < 20) || (rank == 1 && row >= 20);
}

std::vector<Way> ways(bool devices) {
  std::vector<Way> all;
  for (const int32_t strategy : {HETCOMM_STRATEGY_AUTO, HETCOMM_STRATEGY_DIRECT,
                                 HETCOMM_STRATEGY_LEADER, HETCOMM_STRATEGY_SENDRECV_ALLGATHER}) {
    all.push_back({.strategy = strategy});
    all.push_back({.strategy = strategy, .slice_bytes = 300, .landing_bytes = 1});
    all.push_back({.strategy = strategy, .slice_bytes = 1000, .landing_bytes = 5000});
  }
  const size_t count = devices ? all.size() : 0;
  for (size_t i = 0; i < count; ++i) {
    all.push_back(all[i]);
    all.back().device = 1 + static_cast<int32_t>(i % 2);
  }
  return all;
}

TEST_P(ReshardingSums, SumsOfEveryStrategyAreRoundedOnce) {
  CapiCase with_devices = GetParam();
  with_devices.settings += "DEVICES=sim-handle,sim-address;";
  run_job(with_devices, 4, [](Member& me) {
    const Bytes held = bytes_of(bfloats(static_cast<uint32_t>(me.rank())));
    const std::vector<float> sums = sums_of_bfloats();
    size_t covered = 0;
    for (const Way& way : ways(true)) {
      for (const uint32_t divisor : {1u, 3u, 4u}) {
        Bytes narrow;
        Bytes wide;
        const Grid from = terms_on_all(divisor);
        if (!move(me, from, sums_on_some(), {HETCOMM_BFLOAT16, HETCOMM_BFLOAT16}, way, held,
                  &narrow)) {
          continue;
        }
        ASSERT_TRUE(
            move(me, from, sums_on_some(), {HETCOMM_BFLOAT16, HETCOMM_FLOAT32}, way, held, &wide));
        ++covered;
        for (uint64_t i = 0; i < kElements; ++i) {
          if (!has(me.rank(), i)) {
            ASSERT_EQ(value_at<uint16_t>(narrow, i), 0x5a5a);
            continue;
          }
          const float right = sums[i] / static_cast<float>(divisor);
          ASSERT_EQ(value_at<float>(wide, i), right) << i << ", strategy " << way.strategy;
          ASSERT_EQ(value_at<uint16_t>(narrow, i), bfloat_of(right))
              << i << ", strategy " << way.strategy;
        }
      }
    }
    EXPECT_GT(covered, 30u);
    me.meet();
  });
}

// float32 terms give a narrower or a wider sum.
TEST_P(ReshardingSums, SumTypeCanDifferFromTermType) {
  run_job(GetParam(), 4, [](Member& me) {
    const auto term_at = [](uint32_t term, uint64_t index) {
      Random random(index * kTerms + term + 1);
      return std::ldexp(static_cast<float>(random.below(1u << 24)), -static_cast<int>(term) * 5);
    };
    std::vector<float> held(kElements);
    for (uint64_t i = 0; i < kElements; ++i) held[i] = term_at(static_cast<uint32_t>(me.rank()), i);
    for (const Way& way : ways(false)) {
      Bytes same;
      Bytes narrow;
      Bytes wide;
      const auto to = [&](hetcomm_datatype_t type, Bytes* out) {
        return move(me, terms_on_all(), sums_on_some(), {HETCOMM_FLOAT32, type}, way,
                    bytes_of(held), out);
      };
      if (!to(HETCOMM_FLOAT32, &same)) continue;
      ASSERT_TRUE(to(HETCOMM_BFLOAT16, &narrow));
      ASSERT_TRUE(to(HETCOMM_FLOAT64, &wide));
      for (uint64_t i = 0; i < kElements; ++i) {
        if (!has(me.rank(), i)) continue;
        float sum = 0;
        double exact = 0;
        for (uint32_t term = 0; term < kTerms; ++term) {
          sum += term_at(term, i);
          exact += static_cast<double>(term_at(term, i));
        }
        ASSERT_EQ(value_at<float>(same, i), sum) << i;
        ASSERT_EQ(value_at<uint16_t>(narrow, i), bfloat_of(sum)) << i;
        ASSERT_EQ(value_at<double>(wide, i), exact) << i;
      }
    }
    me.meet();
  });
}

// Sums and conversions round identically: the sum in a type is the converted float32 sum.
TEST_P(ReshardingSums, SumsOfNarrowTypesEqualConvertedFloat32Sums) {
  run_job(GetParam(), 4, [](Member& me) {
    const auto rank = static_cast<uint64_t>(me.rank());
    const Grid from = terms_on_all();
    const Grid to = sums_on_some();
    Grid one = to;  // describes the sums, as a source
    for (const hetcomm_datatype_t type :
         {HETCOMM_FLOAT16, HETCOMM_BFLOAT16, HETCOMM_FLOAT8_E4M3FN, HETCOMM_FLOAT8_E5M2}) {
      Random random(rank * 100 + static_cast<uint64_t>(type));
      Bytes held(kElements * size_of(type));
      for (std::byte& each : held) each = static_cast<std::byte>(random.below(256));
      Bytes sums;
      Bytes wide;
      Bytes converted;
      ASSERT_TRUE(move(me, from, to, {type, type}, {.slice_bytes = 500}, held, &sums));
      ASSERT_TRUE(move(me, from, to, {type, HETCOMM_FLOAT32}, {}, held, &wide));
      ASSERT_TRUE(move(me, one, to, {HETCOMM_FLOAT32, type}, {.overflow = HETCOMM_OVERFLOW_NAN},
                       wide, &converted));
      EXPECT_EQ(sums, converted) << "type " << type;
    }
    me.meet();
  });
}

TEST_P(ReshardingSums, OverflowFollowsTheOptionUnlessTheTypeHasAnInfinity) {
  run_job(GetParam(), 2, [](Member& me) {
    const float infinity = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    struct Case {
      float from;
      uint8_t saturated;
      uint8_t nan;
    };
    const std::vector<Case> all = {
        {448, 0x7e, 0x7e},       {-448, 0xfe, 0xfe}, {460, 0x7e, 0x7e},
        {500, 0x7e, 0x7f},       {-500, 0xfe, 0xff}, {infinity, 0x7e, 0x7f},
        {-infinity, 0xfe, 0xff}, {nan, 0x7f, 0x7f},  {1.5f, 0x3c, 0x3c}};
    Grid whole{.shape = {kRows, kColumns}, .parts = {rows_of(0, 0, kRows)}, .terms = 1};
    Grid other = whole;
    other.parts = {rows_of(1, 0, kRows)};
    std::vector<float> held(kElements);
    for (uint64_t i = 0; i < kElements; ++i) held[i] = all[i % all.size()].from;
    for (const int32_t overflow : {HETCOMM_OVERFLOW_SATURATE, HETCOMM_OVERFLOW_NAN}) {
      Bytes out;
      ASSERT_TRUE(move(me, whole, other, {HETCOMM_FLOAT32, HETCOMM_FLOAT8_E4M3FN},
                       {.overflow = overflow}, bytes_of(held), &out));
      for (uint64_t i = 0; i < kElements && me.rank() == 1; ++i) {
        const Case& each = all[i % all.size()];
        ASSERT_EQ(static_cast<uint8_t>(out[i]),
                  overflow == HETCOMM_OVERFLOW_NAN ? each.nan : each.saturated)
            << each.from;
      }
      // Types with an infinity produce it either way.
      ASSERT_TRUE(move(me, whole, other, {HETCOMM_FLOAT32, HETCOMM_FLOAT8_E5M2},
                       {.overflow = overflow}, bytes_of(std::vector<float>(kElements, 1e9f)),
                       &out));
      if (me.rank() == 1) {
        EXPECT_EQ(static_cast<uint8_t>(out[5]), 0x7c);
      }
    }
    me.meet();
  });
}

TEST_P(ReshardingSums, IntegerSumsWrapAndBoolSumsAreLogicalOr) {
  run_job(GetParam(), 4, [](Member& me) {
    const auto term = static_cast<int32_t>(me.rank());
    const Bytes numbers = bytes_of(std::vector<int32_t>(kElements, 1'000'000'007 * (term + 1)));
    Bytes truths(kElements, std::byte{0});
    for (uint64_t i = 0; i < kElements; ++i) truths[i] = static_cast<std::byte>(i >> term & 1);
    Bytes sums;
    Bytes averages;
    Bytes either;
    ASSERT_TRUE(move(me, terms_on_all(), sums_on_some(), {HETCOMM_INT32, HETCOMM_INT32},
                     {.slice_bytes = 700}, numbers, &sums));
    ASSERT_TRUE(move(me, terms_on_all(4), sums_on_some(), {HETCOMM_INT32, HETCOMM_INT32}, {},
                     bytes_of(std::vector<int32_t>(kElements, -5 * (term + 1))), &averages));
    ASSERT_TRUE(move(me, terms_on_all(), sums_on_some(), {HETCOMM_BOOL, HETCOMM_BOOL}, {}, truths,
                     &either));
    for (uint64_t i = 0; i < kElements; ++i) {
      if (!has(me.rank(), i)) continue;
      ASSERT_EQ(value_at<int32_t>(sums, i), static_cast<int32_t>(10'000'000'070 & 0xffffffff));
      ASSERT_EQ(value_at<int32_t>(averages, i), -12);  // rounded towards zero
      ASSERT_EQ(static_cast<int>(either[i]), (i & 15) != 0 ? 1 : 0) << i;
    }
    // Truth values have no average.
    Bytes none;
    EXPECT_FALSE(
        move(me, terms_on_all(4), sums_on_some(), {HETCOMM_BOOL, HETCOMM_BOOL}, {}, truths, &none));
    EXPECT_NE(std::string(hetcomm_last_error()).find("truth values"), std::string::npos);
    me.meet();
  });
}

std::vector<CapiCase> several_ranks() {
  std::vector<CapiCase> few;
  for (CapiCase& each : plain_cases()) {
    if (!each.alone()) few.push_back(std::move(each));
  }
  return few;
}

INSTANTIATE_TEST_SUITE_P(Over, ReshardingSums, ::testing::ValuesIn(several_ranks()),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
