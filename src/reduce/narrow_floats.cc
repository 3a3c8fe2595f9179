// Implements the kernels for float16, bfloat16 and float8. All calculations are in float32.
#include "src/reduce/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/reduce/narrow_floats.cc"
#include <algorithm>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <type_traits>

#include "src/reduce/kernels.h"
#include "src/reduce/loops-inl.h"

// AVX2 and later targets have instructions that convert float16.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define HETCOMM_REDUCE_HALF_INSTRUCTIONS 1
#else
#define HETCOMM_REDUCE_HALF_INSTRUCTIONS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace hetcomm::reduce::HWY_NAMESPACE {

constexpr int32_t kSign = INT32_MIN;
constexpr int32_t kMagnitude = INT32_MAX;
constexpr int32_t kFloatInfinity = 0x7f800000;
constexpr int32_t kFloatNan = 0x7fc00000;

// A format with a sign, an exponent of |kE| bits and a mantissa of |kM| bits. With kIeee, all bit
// patterns with the largest exponent are infinities and NaNs. Otherwise the only NaN is the pattern
// with the largest exponent and mantissa. expand() reads a number from the high bits of a lane, and
// compress() returns it in the low bits.
template <int kE, int kM, bool kIeee>
struct Format {
  static constexpr int kBits = 1 + kE + kM;
  static constexpr int kBias = (1 << (kE - 1)) - 1;
  static constexpr int32_t kInfinity = ((1 << kE) - 1) << kM;
  static constexpr int32_t kNan =
      kIeee ? kInfinity | (kM > 2 ? 1 << (kM - 1) : (1 << kM) - 1) : (1 << (kE + kM)) - 1;

  // Shifts the exponent and mantissa to their positions in a float32. Because the exponent biases
  // differ, the result is too small by a power of two, which a multiplication corrects. This is
  // also right for subnormal numbers.
  template <class D>
  static HWY_INLINE hn::Vec<D> expand(D d, hn::Vec<hn::RebindToSigned<D>> high) {
    const hn::RebindToSigned<D> di;
    constexpr int kShift = 8 - kE;
    const auto sign = hn::And(high, hn::Set(di, kSign));
    const auto magnitude = hn::ShiftRight<kShift>(hn::And(high, hn::Set(di, kMagnitude)));
    const auto power = hn::BitCast(d, hn::Set(di, (127 - kBias + 127) << 23));
    auto value = hn::BitCast(di, hn::Mul(hn::BitCast(d, magnitude), power));
    constexpr int32_t kLast = (kIeee ? kInfinity : kNan) << (23 - kM);
    const auto special = hn::Gt(magnitude, hn::Set(di, kLast - 1));
    value =
        hn::Or(value, hn::IfThenElseZero(special, hn::Set(di, kIeee ? kFloatInfinity : kFloatNan)));
    return hn::BitCast(d, hn::Or(value, sign));
  }

  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToSigned<D>> compress(D d, hn::Vec<D> value) {
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    constexpr int kShift = 23 - kM;
    constexpr int32_t kRebias = (127 - kBias) << 23;
    const auto bits = hn::BitCast(di, value);
    const auto magnitude = hn::And(bits, hn::Set(di, kMagnitude));
    // Changes the exponent's bias, and adds half a unit in the last place, minus one if the last
    // kept bit is 0, so that ties round to even.
    const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(di, 1));
    const auto half = hn::Set(di, (1 << (kShift - 1)) - 1 - kRebias);
    const auto normal = hn::ShiftRight<kShift>(hn::Add(magnitude, hn::Add(half, odd)));
    // Adds a number whose unit in the last place is the smallest subnormal of the format, so that
    // the processor rounds at that bit.
    const auto magic = hn::Set(di, (127 + 1 - kBias + 23 - kM) << 23);
    const auto rounded = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic));
    const auto subnormal = hn::Sub(hn::BitCast(di, rounded), magic);
    auto result =
        hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, kRebias + (1 << 23))), subnormal, normal);
    result = hn::Min(result, hn::Set(di, kIeee ? kInfinity : kNan));
    const auto sign = hn::BitCast(
        di, hn::ShiftRight<32 - kBits>(hn::BitCast(du, hn::And(bits, hn::Set(di, kSign)))));
    const auto is_nan = hn::Gt(magnitude, hn::Set(di, kFloatInfinity));
    return hn::IfThenElse(is_nan, hn::Set(di, kNan), hn::Or(result, sign));
  }
};

// The format of bfloat16, which is the upper half of a float32.
struct BrainFormat {
  static constexpr int kBits = 16;
  template <class D>
  static HWY_INLINE hn::Vec<D> expand(D d, hn::Vec<hn::RebindToSigned<D>> high) {
    return hn::BitCast(d, high);
  }
  template <class D>
  static HWY_INLINE hn::Vec<hn::RebindToSigned<D>> compress(D, hn::Vec<D> value) {
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto sum = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
    const auto nan = hn::Set(du, static_cast<uint32_t>(kFloatNan));
    return hn::BitCast(di, hn::ShiftRight<16>(hn::IfThenElse(is_nan, nan, sum)));
  }
};

// The codec of a narrow format |F|. Each part holds every second or fourth value, so that no value
// moves to another lane.
template <class F>
struct Interleaved {
  static constexpr size_t kParts = 32 / F::kBits;
  using Lane = float;
  using Format = F;

  template <class D>
  static HWY_INLINE Parts<hn::Vec<Lanes<float, D>>, kParts> decode(D, hn::Vec<D> raw) {
    const Lanes<float, D> df;
    const Lanes<int32_t, D> di;
    const auto lanes = hn::BitCast(di, raw);
    if constexpr (kParts == 2) {
      return {{F::expand(df, hn::ShiftLeft<16>(lanes)), F::expand(df, high_bits(di, lanes))}};
    } else {
      return {{F::expand(df, hn::ShiftLeft<24>(lanes)),
               F::expand(df, high_bits(di, hn::ShiftLeft<16>(lanes))),
               F::expand(df, high_bits(di, hn::ShiftLeft<8>(lanes))),
               F::expand(df, high_bits(di, lanes))}};
    }
  }

  template <class D>
  static HWY_INLINE hn::Vec<D> encode(D d, const Parts<hn::Vec<Lanes<float, D>>, kParts>& value) {
    const Lanes<float, D> df;
    const auto low = F::compress(df, value.part[0]);
    const auto next = hn::ShiftLeft<F::kBits>(F::compress(df, value.part[1]));
    auto lanes = hn::Or(low, next);
    if constexpr (kParts == 4) {
      const auto third = hn::ShiftLeft<16>(F::compress(df, value.part[2]));
      const auto fourth = hn::ShiftLeft<24>(F::compress(df, value.part[3]));
      lanes = hn::Or(lanes, hn::Or(third, fourth));
    }
    return hn::BitCast(d, lanes);
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<D> high_bits(D d, hn::Vec<D> lanes) {
    return hn::And(lanes, hn::Set(d, static_cast<int32_t>(~uint32_t{0} << (32 - F::kBits))));
  }
};

#if HETCOMM_REDUCE_HALF_INSTRUCTIONS
// The codec of float16 that uses the processor's conversion instructions. Each part holds one half
// of the vector's values.
struct Half {
  static constexpr size_t kParts = 2;
  using Lane = float;
  using Format = reduce::HWY_NAMESPACE::Format<5, 10, true>;

  template <class D>
  static HWY_INLINE Parts<hn::Vec<Lanes<float, D>>, kParts> decode(D, hn::Vec<D> raw) {
    const Lanes<float, D> df;
    const hn::Half<D> half;
    const hn::Repartition<hwy::float16_t, hn::Half<D>> dh;
    return {{hn::PromoteTo(df, hn::BitCast(dh, hn::LowerHalf(half, raw))),
             hn::PromoteTo(df, hn::BitCast(dh, hn::UpperHalf(half, raw)))}};
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> encode(D d, const Parts<hn::Vec<Lanes<float, D>>, kParts>& value) {
    return hn::Combine(d, compress(d, value.part[1]), compress(d, value.part[0]));
  }

 private:
  template <class D>
  static HWY_INLINE hn::Vec<hn::Half<D>> compress(D, hn::Vec<Lanes<float, D>> value) {
    const Lanes<float, D> df;
    const hn::Repartition<hwy::float16_t, hn::Half<D>> dh;
    const auto nan = hn::BitCast(df, hn::Set(Lanes<int32_t, D>(), kFloatNan));
    return hn::BitCast(hn::Half<D>(),
                       hn::DemoteTo(dh, hn::IfThenElse(hn::IsNaN(value), nan, value)));
  }
};
#else
using Half = Interleaved<Format<5, 10, true>>;
#endif

// Converts exactly as many values as fit in one vector of float32, and accesses no others.
template <class F>
class Conversion {
 public:
  using Floats = hn::ScalableTag<float>;
  using Narrow = std::conditional_t<F::kBits == 16, uint16_t, uint8_t>;
  static constexpr size_t kLanes = hn::MaxLanes(Floats());

  static HWY_INLINE void widen(float* out, const std::byte* in) {
    const hn::RebindToSigned<Floats> di;
    const hn::Rebind<Narrow, Floats> dn;
    const auto narrow = hn::LoadU(dn, reinterpret_cast<const Narrow*>(in));
    const auto high = hn::ShiftLeft<32 - F::kBits>(hn::PromoteTo(di, narrow));
    hn::StoreU(F::expand(Floats(), high), Floats(), out);
  }
  static HWY_INLINE void narrow(std::byte* out, const float* in) {
    const hn::Rebind<Narrow, Floats> dn;
    const auto low = F::compress(Floats(), hn::LoadU(Floats(), in));
    hn::StoreU(hn::DemoteTo(dn, low), dn, reinterpret_cast<Narrow*>(out));
  }
};

// Implements Kernels::Widen.
template <class F>
void widen(float* out, const std::byte* in, size_t elements) {
  constexpr size_t kLanes = Conversion<F>::kLanes;
  constexpr size_t kBytes = F::kBits / 8;
  size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) Conversion<F>::widen(out + i, in + i * kBytes);
  if (i == elements) return;
  std::byte narrow[kLanes * kBytes] = {};
  float wide[kLanes];
  std::memcpy(narrow, in + i * kBytes, (elements - i) * kBytes);
  Conversion<F>::widen(wide, narrow);
  std::memcpy(out + i, wide, (elements - i) * sizeof(float));
}

// Implements Kernels::Narrow.
template <class F>
void narrow(std::byte* out, const float* in, size_t elements) {
  constexpr size_t kLanes = Conversion<F>::kLanes;
  constexpr size_t kBytes = F::kBits / 8;
  size_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) Conversion<F>::narrow(out + i * kBytes, in + i);
  if (i == elements) return;
  float wide[kLanes] = {};
  std::byte narrow[kLanes * kBytes];
  std::memcpy(wide, in + i, (elements - i) * sizeof(float));
  Conversion<F>::narrow(narrow, wide);
  std::memcpy(out + i * kBytes, narrow, (elements - i) * kBytes);
}

template <class Codec>
void add_type(Kernels& kernels, Type type) {
  auto& combines = kernels.combine[at(type)];
  for (const Operator op : {Operator::kSum, Operator::kAverage, Operator::kPremulSum}) {
    combines[at(op)] = combine<Codec, Sum>;
  }
  combines[at(Operator::kProduct)] = combine<Codec, Product>;
  combines[at(Operator::kMin)] = combine<Codec, FloatMin>;
  combines[at(Operator::kMax)] = combine<Codec, FloatMax>;
  kernels.average[at(type)] = average<Codec>;
  kernels.scale[at(type)] = map<Codec, Product>;
  kernels.divide[at(type)] = map<Codec, Quotient>;
  kernels.widen[at(type)] = widen<typename Codec::Format>;
  kernels.narrow[at(type)] = narrow<typename Codec::Format>;
}

void add_narrow_floats_of_target(Kernels& kernels) {
  add_type<Half>(kernels, Type::kFloat16);
  add_type<Interleaved<BrainFormat>>(kernels, Type::kBfloat16);
  add_type<Interleaved<Format<4, 3, false>>>(kernels, Type::kFloat8E4M3fn);
  add_type<Interleaved<Format<5, 2, true>>>(kernels, Type::kFloat8E5M2);
}

}  // namespace hetcomm::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#undef HETCOMM_REDUCE_HALF_INSTRUCTIONS

#if HWY_ONCE
namespace hetcomm::reduce {

HWY_EXPORT(add_narrow_floats_of_target);
void add_narrow_floats(Kernels& kernels) {
  HWY_DYNAMIC_DISPATCH(add_narrow_floats_of_target)(kernels);
}

}  // namespace hetcomm::reduce
#endif
