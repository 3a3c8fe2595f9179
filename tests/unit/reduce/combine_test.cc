// Combining, scaling and dividing, on every SIMD target and by a scalar calculation: every type,
// operator and number of inputs, lengths around vector lengths, odd addresses, and in place of any
// input. All targets give the same bits, and nothing around the output is modified. Values include
// zeros of both signs, subnormals, infinities, NaNs and all byte patterns.
#include <array>
#include <complex>
#include <cstring>
#include <type_traits>

#include <gtest/gtest.h>

#include "tests/support/pattern.h"
#include "tests/unit/reduce/fixture.h"

namespace hetcomm::test {
namespace {

using reduce::Kernels;
using reduce::Operator;
using reduce::Type;
using Elements = std::vector<std::byte>;

constexpr auto kGuard = std::byte{0xa5};
constexpr size_t kLengths[] = {0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 300};
constexpr size_t kLongest = 300;

struct Truth {
  uint8_t byte;
};
template <Type kType>
struct Small {
  uint32_t pattern;
};

template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<std::complex<T>> : std::true_type {};

// Calls |body| with a value of the C++ type for |type|.
template <class Body>
void with(Type type, const Body& body) {
  switch (type) {
    case Type::kBool:
      return body(Truth{});
    case Type::kInt8:
      return body(int8_t{});
    case Type::kUint8:
      return body(uint8_t{});
    case Type::kInt16:
      return body(int16_t{});
    case Type::kUint16:
      return body(uint16_t{});
    case Type::kInt32:
      return body(int32_t{});
    case Type::kUint32:
      return body(uint32_t{});
    case Type::kInt64:
      return body(int64_t{});
    case Type::kUint64:
      return body(uint64_t{});
    case Type::kFloat16:
      return body(Small<Type::kFloat16>{});
    case Type::kBfloat16:
      return body(Small<Type::kBfloat16>{});
    case Type::kFloat8E4M3fn:
      return body(Small<Type::kFloat8E4M3fn>{});
    case Type::kFloat8E5M2:
      return body(Small<Type::kFloat8E5M2>{});
    case Type::kFloat32:
      return body(float{});
    case Type::kFloat64:
      return body(double{});
    case Type::kComplex64:
      return body(std::complex<float>{});
    case Type::kComplex128:
      return body(std::complex<double>{});
  }
}

// An element is calculated as a Value; read() and write() convert to and from it.
template <class T>
struct Element {
  using Value = T;
  static constexpr size_t kSize = sizeof(T);
  static Value read(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  static void write(std::byte* to, Value value) { std::memcpy(to, &value, sizeof(T)); }
};
template <>
struct Element<Truth> {
  using Value = bool;
  static constexpr size_t kSize = 1;
  static Value read(const std::byte* from) { return *from != std::byte{0}; }
  static void write(std::byte* to, Value value) { *to = value ? std::byte{1} : std::byte{0}; }
};
template <Type kType>
struct Element<Small<kType>> {
  using Value = float;
  static constexpr size_t kSize = kType == Type::kFloat16 || kType == Type::kBfloat16 ? 2 : 1;
  static Value read(const std::byte* from) {
    uint32_t pattern = 0;
    std::memcpy(&pattern, from, kSize);
    return static_cast<float>(format_of(kType).value(pattern));
  }
  static void write(std::byte* to, Value value) {
    const uint32_t pattern = format_of(kType).pattern(value);
    std::memcpy(to, &pattern, kSize);
  }
};

bool is_sum(Operator op) {
  return op == Operator::kSum || op == Operator::kAverage || op == Operator::kPremulSum;
}

bool expected(Operator op, bool a, bool b) {
  if (op == Operator::kXor) return a != b;
  const bool both = op == Operator::kProduct || op == Operator::kMin || op == Operator::kAnd;
  return both ? a && b : a || b;
}
template <class T>
requires std::is_floating_point_v<T> T expected(Operator op, T a, T b) {
  if (is_sum(op)) return a + b;
  if (op == Operator::kProduct) return a * b;
  if (std::isnan(a)) return a;
  if (std::isnan(b)) return b;
  return op == Operator::kMin ? (a < b ? a : b) : (a > b ? a : b);
}
template <class T>
std::complex<T> expected(Operator op, std::complex<T> a, std::complex<T> b) {
  if (is_sum(op)) return {a.real() + b.real(), a.imag() + b.imag()};
  // volatile keeps the compiler from fusing the product into the sum.
  volatile const T ac = a.real() * b.real();
  volatile const T bd = a.imag() * b.imag();
  volatile const T ad = a.real() * b.imag();
  volatile const T bc = a.imag() * b.real();
  return {ac - bd, ad + bc};
}
template <class T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) T expected(Operator op, T a, T b) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  if (is_sum(op)) return static_cast<T>(x + y);
  switch (op) {
    case Operator::kProduct:
      return static_cast<T>(x * y);
    case Operator::kMin:
      return std::min(a, b);
    case Operator::kMax:
      return std::max(a, b);
    case Operator::kAnd:
      return static_cast<T>(x & y);
    case Operator::kOr:
      return static_cast<T>(x | y);
    default:
      return static_cast<T>(x ^ y);
  }
}

template <class T>
bool same(T a, T b) {
  if constexpr (IsComplex<T>::value) {
    return same(a.real(), b.real()) && same(a.imag(), b.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, sizeof(T)) == 0;
  } else {
    return a == b;
  }
}

// Returns whether the two elements have the same bits, or both are NaN of float32 or wider.
template <class T>
bool same_bits(const std::byte* a, const std::byte* b) {
  using E = Element<T>;
  if constexpr (std::is_floating_point_v<T> || IsComplex<T>::value) {
    return same(E::read(a), E::read(b));
  } else {
    return std::memcmp(a, b, E::kSize) == 0;
  }
}

template <class T>
T hard_value(Random& random) {
  static const T kHard[] = {T(0),
                            T(-0.0),
                            T(1),
                            T(-1),
                            std::numeric_limits<T>::infinity(),
                            -std::numeric_limits<T>::infinity(),
                            std::numeric_limits<T>::quiet_NaN(),
                            std::numeric_limits<T>::max(),
                            std::numeric_limits<T>::denorm_min(),
                            std::numeric_limits<T>::min()};
  if (random.chance(0.3)) return kHard[random.below(std::size(kHard))];
  const double mantissa = static_cast<double>(random.next() >> 11) * 0x1.0p-53 - 0.5;
  return static_cast<T>(std::ldexp(mantissa, static_cast<int>(random.below(24)) - 12));
}

template <class T>
Elements random_elements(size_t count, Random& random) {
  using E = Element<T>;
  Elements bytes(count * E::kSize);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  if constexpr (std::is_same_v<T, Truth>) {
    for (std::byte& byte : bytes) byte = random.chance(0.4) ? std::byte{0} : byte;
  } else if constexpr (std::is_floating_point_v<T> || IsComplex<T>::value) {
    for (size_t i = 0; i < count; ++i) {
      if constexpr (IsComplex<T>::value) {
        using R = typename T::value_type;
        E::write(&bytes[i * E::kSize], {hard_value<R>(random), hard_value<R>(random)});
      } else {
        E::write(&bytes[i * E::kSize], hard_value<T>(random));
      }
    }
  }
  return bytes;
}

// |bytes| at an odd address, surrounded by guards.
class Placed {
 public:
  Placed(const std::byte* bytes, size_t size, size_t shift)
      : size_(size), storage_(size + 160, kGuard) {
    start_ = 64 + shift;
    if (size > 0) std::memcpy(data(), bytes, size);
  }
  std::byte* data() { return storage_.data() + start_; }
  bool guards_intact() const {
    for (size_t i = 0; i < storage_.size(); ++i) {
      if ((i < start_ || i >= start_ + size_) && storage_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  size_t size_;
  size_t start_;
  std::vector<std::byte> storage_;
};

class ReduceTypes : public testing::TestWithParam<int> {
 protected:
  Type type() const { return static_cast<Type>(GetParam()); }
};

template <class T>
void check_combine(Type type, Operator op) {
  using E = Element<T>;
  Random random(static_cast<uint64_t>(type) * 16 + static_cast<uint64_t>(op));
  std::vector<Elements> in;
  for (size_t k = 0; k < reduce::kMaxInputs; ++k)
    in.push_back(random_elements<T>(kLongest, random));
  std::vector<typename E::Value> sums(kLongest);
  for (size_t inputs = 1; inputs <= reduce::kMaxInputs; ++inputs) {
    Elements wanted(kLongest * E::kSize);
    for (size_t i = 0; i < kLongest; ++i) {
      const typename E::Value last = E::read(&in[inputs - 1][i * E::kSize]);
      sums[i] =
          inputs == 1
              ? last
              : static_cast<typename E::Value>(expected(op, typename E::Value(sums[i]), last));
      E::write(&wanted[i * E::kSize], sums[i]);
    }
    for (const Kernels& kernels : all_kernels()) {
      for (const size_t length : kLengths) {
        const size_t bytes = length * E::kSize;
        // The output replaces each input in turn, or none.
        const size_t replaced = length % (inputs + 1);
        std::vector<Placed> placed;
        for (size_t k = 0; k < inputs; ++k)
          placed.emplace_back(in[k].data(), bytes, (length + k) % 17);
        Placed separate(in[0].data(), bytes, length % 13);
        std::vector<const std::byte*> from;
        for (Placed& input : placed) from.push_back(input.data());
        Placed& out = replaced < inputs ? placed[replaced] : separate;
        kernels.combine[static_cast<size_t>(type)][static_cast<size_t>(op)](out.data(), from.data(),
                                                                            inputs, bytes);
        for (size_t i = 0; i < length; ++i) {
          ASSERT_TRUE(same_bits<T>(out.data() + i * E::kSize, &wanted[i * E::kSize]))
              << kernels.target << " op " << static_cast<int>(op) << " inputs " << inputs
              << " length " << length << " element " << i;
        }
        ASSERT_TRUE(separate.guards_intact());
        for (const Placed& input : placed) ASSERT_TRUE(input.guards_intact());
      }
    }
  }
}

TEST_P(ReduceTypes, CombineGivesTheSameBitsOnEveryTarget) {
  with(type(), [&]<class T>(T) {
    ASSERT_EQ(reduce::size_of(type()), Element<T>::kSize);
    for (size_t op = 0; op < reduce::kOperators; ++op) {
      if (!reduce::is_defined(type(), static_cast<Operator>(op))) continue;
      check_combine<T>(type(), static_cast<Operator>(op));
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

template <class T>
T expected_scale(T value, double factor) {
  if constexpr (std::is_floating_point_v<T>) {
    return value * static_cast<T>(factor);
  } else if constexpr (IsComplex<T>::value) {
    const auto by = static_cast<typename T::value_type>(factor);
    return {value.real() * by, value.imag() * by};
  } else if (factor == std::floor(factor)) {
    return static_cast<T>(static_cast<uint64_t>(value) *
                          static_cast<uint64_t>(static_cast<int64_t>(factor)));
  } else {
    const double product = std::trunc(static_cast<double>(value) * factor);
    if (product >= static_cast<double>(std::numeric_limits<T>::max()))
      return std::numeric_limits<T>::max();
    if (product <= static_cast<double>(std::numeric_limits<T>::min()))
      return std::numeric_limits<T>::min();
    return static_cast<T>(product);
  }
}
template <class T>
T expected_quotient(T value, uint32_t ranks) {
  if constexpr (std::is_floating_point_v<T>) {
    return value / static_cast<T>(ranks);
  } else if constexpr (IsComplex<T>::value) {
    const auto by = static_cast<typename T::value_type>(ranks);
    return {value.real() / by, value.imag() / by};
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(static_cast<int64_t>(value) / static_cast<int64_t>(ranks));
  } else {
    return static_cast<T>(value / uint64_t{ranks});
  }
}

// Checks |call(kernels, out, in, bytes)|, both in place and out of place.
template <class T, class Call, class Expected>
void check_map(Random& random, const Call& call, const Expected& expected_of) {
  using E = Element<T>;
  const Elements in = random_elements<T>(kLongest, random);
  for (const Kernels& kernels : all_kernels()) {
    for (const size_t length : kLengths) {
      Placed from(in.data(), length * E::kSize, length % 17);
      Placed separate(in.data(), length * E::kSize, length % 13);
      Placed& out = length % 2 == 0 ? from : separate;
      call(kernels, out.data(), from.data(), length * E::kSize);
      for (size_t i = 0; i < length; ++i) {
        std::byte wanted[16];
        E::write(wanted, expected_of(typename E::Value(E::read(&in[i * E::kSize]))));
        ASSERT_TRUE(same_bits<T>(out.data() + i * E::kSize, wanted))
            << kernels.target << " length " << length << " element " << i;
      }
      ASSERT_TRUE(from.guards_intact());
      ASSERT_TRUE(separate.guards_intact());
    }
  }
}

TEST_P(ReduceTypes, ScaleAndDivideGiveTheSameBitsOnEveryTarget) {
  if (type() == Type::kBool) GTEST_SKIP() << "neither is defined for bool";
  const auto index = static_cast<size_t>(type());
  Random random(index);
  with(type(), [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, Truth>) {
      for (const double factor : {0.0, 1.0, -3.0, 0.5, -0.37, 1e6, 2.5}) {
        check_map<T>(
            random,
            [&](const Kernels& kernels, std::byte* out, const std::byte* in, size_t bytes) {
              kernels.scale[index](out, in, bytes, factor);
            },
            [&](auto value) { return expected_scale(value, factor); });
        if (testing::Test::HasFatalFailure()) return;
      }
      for (const uint32_t ranks : {1u, 2u, 3u, 7u, 128u, 1000u, 4000000000u}) {
        check_map<T>(
            random,
            [&](const Kernels& kernels, std::byte* out, const std::byte* in, size_t bytes) {
              kernels.divide[index](out, in, bytes, ranks);
            },
            [&](auto value) { return expected_quotient(value, ranks); });
        if (testing::Test::HasFatalFailure()) return;
        // The public function, which has shortcuts.
        check_map<T>(
            random,
            [&](const Kernels&, std::byte* out, const std::byte* in, size_t bytes) {
              reduce::divide(type(), out, in, bytes / reduce::size_of(type()), ranks);
            },
            [&](auto value) { return expected_quotient(value, ranks); });
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, ReduceTypes, testing::Range(0, static_cast<int>(reduce::kTypes)));

TEST(Reduce, IsDefinedMatchesTheTableOfOperators) {
  const auto defined = [](Type type) {
    std::string answer;
    for (size_t op = 0; op < reduce::kOperators; ++op) {
      answer += reduce::is_defined(type, static_cast<Operator>(op)) ? '1' : '0';
    }
    return answer;
  };
  EXPECT_EQ(defined(Type::kBool), "111111100");
  EXPECT_EQ(defined(Type::kUint16), "111111111");
  EXPECT_EQ(defined(Type::kFloat8E4M3fn), "111100011");
  EXPECT_EQ(defined(Type::kFloat64), "111100011");
  EXPECT_EQ(defined(Type::kComplex128), "110000011");
}

TEST(Reduce, KernelsExistForAtLeastTwoTargets) {
  std::string names;
  for (const Kernels& kernels : all_kernels()) names += std::string(kernels.target) + " ";
#ifdef __x86_64__
  const bool is_plain = !__builtin_cpu_supports("avx2");
#else
  const bool is_plain = true;
#endif
  if (is_plain && all_kernels().size() == 1) {
    GTEST_SKIP() << "this processor has one target only: " << names;
  }
  EXPECT_GE(all_kernels().size(), 2u) << names;
  RecordProperty("targets", names);
}

TEST(Reduce, NarrowFloatsAreRoundedOnce) {
  // In float16, 2048 + 1 is rounded to 2048; 2048 + 1 + 1 with a single rounding is not.
  const uint16_t large = 0x6800;
  const uint16_t one = 0x3c00;
  uint16_t out = 0;
  const auto* const a = reinterpret_cast<const std::byte*>(&large);
  const auto* const b = reinterpret_cast<const std::byte*>(&one);
  const std::byte* const in[] = {a, b, b};
  reduce::combine(Type::kFloat16, Operator::kSum, reinterpret_cast<std::byte*>(&out), in, 3, 1);
  EXPECT_EQ(out, 0x6801);
}

// Any number of inputs gives one calculation in float32 with one rounding, also with wide
// intermediate parts, and in place of any input.
TEST_P(ReduceTypes, SumsOfManyInputsAreRoundedOnce) {
  const size_t size = reduce::size_of(type());
  constexpr size_t kElements = 2500;
  Random random(static_cast<uint64_t>(type()));
  for (const Operator op : {Operator::kSum, Operator::kProduct, Operator::kAverage,
                            Operator::kPremulSum, Operator::kMax}) {
    if (!reduce::is_defined(type(), op)) continue;
    for (const size_t inputs : {1u, 2u, 7u, 8u, 9u, 15u, 16u, 33u}) {
      std::vector<Elements> in;
      std::vector<const std::byte*> from;
      with(type(), [&]<class T>(T) {
        for (size_t k = 0; k < inputs; ++k) in.push_back(random_elements<T>(kElements, random));
      });
      for (const Elements& each : in) from.push_back(each.data());
      const reduce::Reduction reduction{
          .type = type(), .op = op, .ranks = static_cast<uint32_t>(inputs), .factor = 0.37};
      // Combines two at a time, using the basic functions.
      Elements wanted = in[0];
      if (reduce::rounds(type(), op)) {
        std::vector<float> sum(kElements);
        std::vector<float> next(kElements);
        for (size_t k = 0; k < inputs; ++k) {
          reduce::widen(type(), next.data(), from[k], kElements);
          for (size_t i = 0; i < kElements; ++i) {
            const float term = op == Operator::kPremulSum ? next[i] * 0.37F : next[i];
            sum[i] = k == 0 ? term : op == Operator::kProduct ? sum[i] * term : sum[i] + term;
          }
        }
        for (float& each : sum) {
          if (op == Operator::kAverage) each /= static_cast<float>(inputs);
        }
        reduce::narrow(type(), wanted.data(), sum.data(), kElements);
      } else {
        reduce::combine(type(), op, wanted.data(), from.data(), 1, kElements);
        for (size_t k = 1; k < inputs; ++k) {
          const std::byte* const two[] = {wanted.data(), from[k]};
          reduce::combine(type(), op, wanted.data(), two, 2, kElements);
        }
        if (op == Operator::kAverage) {
          reduce::divide(type(), wanted.data(), wanted.data(), kElements, reduction.ranks);
        }
      }
      const auto check = [&](const std::byte* got, const char* how) {
        with(type(), [&]<class T>(T) {
          for (size_t i = 0; i < kElements; ++i) {
            ASSERT_TRUE(same_bits<T>(got + i * size, &wanted[i * size]))
                << how << " op " << static_cast<int>(op) << " inputs " << inputs << " element "
                << i;
          }
        });
      };
      Elements out(kElements * size);
      reduce::reduce(reduction, out.data(), from.data(), inputs, kElements);
      ASSERT_NO_FATAL_FAILURE(check(out.data(), "out of place"));
      if (reduce::rounds(type(), op)) {
        const size_t first = inputs / 2;
        std::vector<float> before(kElements);
        if (first > 0) {
          reduce::reduce_wide(reduction, before.data(), from.data(), 1, kElements);
          reduce::reduce_wide(reduction, before.data(), from.data() + 1, first - 1, kElements,
                              before.data());
        }
        reduce::reduce(reduction, out.data(), from.data() + first, inputs - first, kElements,
                       first > 0 ? before.data() : nullptr);
        ASSERT_NO_FATAL_FAILURE(check(out.data(), "in two parts"));
        // The partial result may be at another place.
        std::vector<float> sum(kElements);
        const float* const so_far = first > 0 ? before.data() : nullptr;
        reduce::reduce_wide(reduction, sum.data(), from.data() + first, inputs - first, kElements,
                            so_far);
        if (first > 0) {
          std::vector<float> in_place = before;
          reduce::reduce_wide(reduction, in_place.data(), from.data() + first, inputs - first,
                              kElements, in_place.data());
          ASSERT_EQ(std::memcmp(sum.data(), in_place.data(), kElements * sizeof(float)), 0);
        }
      }
      const size_t replaced = random.below(inputs);
      reduce::reduce(reduction, in[replaced].data(), from.data(), inputs, kElements);
      ASSERT_NO_FATAL_FAILURE(check(in[replaced].data(), "in place"));
    }
  }
}

// Multiplication by the inverse gives the quotient only if that inverse is exact.
TEST(Reduce, AverageIsTheExactQuotientForUpToSeventyRanks) {
  constexpr size_t kElements = 100;
  const auto check = []<class T>(Type type, T unit) {
    for (uint32_t ranks = 1; ranks <= 70; ++ranks) {
      std::array<T, kElements> in;
      std::array<T, kElements> out;
      for (size_t i = 0; i < kElements; ++i) in[i] = unit + static_cast<T>(i * i);
      reduce::divide(type, reinterpret_cast<std::byte*>(out.data()),
                     reinterpret_cast<const std::byte*>(in.data()), kElements, ranks);
      for (size_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(out[i], in[i] / static_cast<T>(ranks)) << in[i] << " by " << ranks;
      }
    }
  };
  check(Type::kFloat32, 0.1F);
  check(Type::kFloat64, 0.1);
  check(Type::kInt32, int32_t{-1000});
  check(Type::kUint64, uint64_t{1} << 60);
}

TEST(Reduce, AverageIsDividedBeforeItIsRounded) {
  const uint16_t large = 0x7753;  // 30000 in float16, whose largest number is 65504
  uint16_t out = 0;
  const auto* const each = reinterpret_cast<const std::byte*>(&large);
  const std::byte* const in[] = {each, each, each, each};
  const reduce::Reduction average{.type = Type::kFloat16, .op = Operator::kAverage, .ranks = 4};
  reduce::reduce(average, reinterpret_cast<std::byte*>(&out), in, 4, 1);
  EXPECT_EQ(out, large);
}

}  // namespace
}  // namespace hetcomm::test
