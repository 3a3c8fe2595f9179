// Implements the kernels for integers and bool.
#include "src/reduce/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/reduce/integers.cc"
#include <cmath>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <limits>
#include <type_traits>

#include "src/reduce/kernels.h"
#include "src/reduce/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hetcomm::reduce::HWY_NAMESPACE {

struct And {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::And(a, b);
  }
};
struct Or {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Or(a, b);
  }
};
struct Xor {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Xor(a, b);
  }
};
struct Min {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Min(a, b);
  }
};
struct Max {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Max(a, b);
  }
};
// x86 has no instruction that multiplies vectors of bytes, so ByteProduct multiplies even and odd
// bytes separately, in 16-bit lanes.
struct ByteProduct {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> a, hn::Vec<D> b) {
    const Lanes<uint16_t, D> pairs;
    const auto x = hn::BitCast(pairs, a);
    const auto y = hn::BitCast(pairs, b);
    const auto even = hn::And(hn::Mul(x, y), hn::Set(pairs, uint16_t{0x00ff}));
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(x), hn::ShiftRight<8>(y)));
    return hn::BitCast(d, hn::Or(even, odd));
  }
};

// The codec of bool. It decodes any nonzero byte as 1.
struct Bool : Native<uint8_t> {
  template <class D>
  static HWY_INLINE Parts<hn::Vec<D>, 1> decode(D d, hn::Vec<D> raw) {
    return {{hn::Min(raw, hn::Set(d, uint8_t{1}))}};
  }
};

template <class T>
T saturate(double value) {
  // |kLow| is 0 or minus a power of two, and |end| is a power of two. float64 represents both
  // exactly, even if it cannot represent the maximum of T.
  constexpr double kLow = static_cast<double>(std::numeric_limits<T>::min());
  const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (!(value > kLow)) return value <= kLow ? std::numeric_limits<T>::min() : T{0};
  return value >= end ? std::numeric_limits<T>::max() : static_cast<T>(value);
}

template <class T>
void scale(std::byte* out, const std::byte* in, size_t bytes, double factor) {
  if (factor == std::trunc(factor) && std::abs(factor) < 0x1p63) {
    // Products of unsigned numbers of at least 32 bits wrap around. Narrower numbers would be
    // promoted to int, whose overflow is undefined.
    using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    const auto whole = static_cast<Wide>(static_cast<int64_t>(factor));
    for (size_t offset = 0; offset < bytes; offset += sizeof(T)) {
      const auto value = static_cast<Wide>(load_scalar<T>(in + offset));
      store_scalar(out + offset, static_cast<T>(value * whole));
    }
    return;
  }
  for (size_t offset = 0; offset < bytes; offset += sizeof(T)) {
    const T value = load_scalar<T>(in + offset);
    store_scalar(out + offset, saturate<T>(static_cast<double>(value) * factor));
  }
}

// Integers of up to 32 bits are divided as float64, which represents both operands exactly. The
// quotient is never rounded up to the next whole number, so its truncation is exact.
template <class T>
void divide(std::byte* out, const std::byte* in, size_t bytes, double divisor) {
  using Wide =
      std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                         double>;
  const auto by = static_cast<Wide>(divisor);
  for (size_t offset = 0; offset < bytes; offset += sizeof(T)) {
    const auto value = static_cast<Wide>(load_scalar<T>(in + offset));
    store_scalar(out + offset, static_cast<T>(value / by));
  }
}

template <class T>
void add_type(Kernels& kernels, Type type) {
  using Unsigned = std::make_unsigned_t<T>;
  auto& combines = kernels.combine[at(type)];
  for (const Operator op : {Operator::kSum, Operator::kAverage, Operator::kPremulSum}) {
    combines[at(op)] = combine<Native<Unsigned>, Sum>;
  }
  using Multiply = std::conditional_t<sizeof(T) == 1, ByteProduct, Product>;
  combines[at(Operator::kProduct)] = combine<Native<Unsigned>, Multiply>;
  combines[at(Operator::kMin)] = combine<Native<T>, Min>;
  combines[at(Operator::kMax)] = combine<Native<T>, Max>;
  combines[at(Operator::kAnd)] = combine<Native<uint8_t>, And>;
  combines[at(Operator::kOr)] = combine<Native<uint8_t>, Or>;
  combines[at(Operator::kXor)] = combine<Native<uint8_t>, Xor>;
  kernels.scale[at(type)] = scale<T>;
  kernels.divide[at(type)] = divide<T>;
}

void add_integers_of_target(Kernels& kernels) {
  add_type<int8_t>(kernels, Type::kInt8);
  add_type<uint8_t>(kernels, Type::kUint8);
  add_type<int16_t>(kernels, Type::kInt16);
  add_type<uint16_t>(kernels, Type::kUint16);
  add_type<int32_t>(kernels, Type::kInt32);
  add_type<uint32_t>(kernels, Type::kUint32);
  add_type<int64_t>(kernels, Type::kInt64);
  add_type<uint64_t>(kernels, Type::kUint64);

  auto& combines = kernels.combine[at(Type::kBool)];
  for (const Operator op : {Operator::kSum, Operator::kMax, Operator::kOr}) {
    combines[at(op)] = combine<Bool, Or>;
  }
  for (const Operator op : {Operator::kProduct, Operator::kMin, Operator::kAnd}) {
    combines[at(op)] = combine<Bool, And>;
  }
  combines[at(Operator::kXor)] = combine<Bool, Xor>;
}

}  // namespace hetcomm::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hetcomm::reduce {

HWY_EXPORT(add_integers_of_target);
void add_integers(Kernels& kernels) { HWY_DYNAMIC_DISPATCH(add_integers_of_target)(kernels); }

}  // namespace hetcomm::reduce
#endif
