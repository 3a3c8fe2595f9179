// Defines the loops over memory, which are compiled once for each SIMD target.
//
// A codec decodes a vector of bytes to vectors of the lane type used in calculations, and encodes
// the results. A type that needs no conversion gives one vector, and a narrow type gives several.
// The decoded lanes can be in any order. The loops read a block completely before they write any of
// it, so the output may be one of the inputs. They access no memory outside the given arrays.
#if defined(HETCOMM_REDUCE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HETCOMM_REDUCE_LOOPS_INL_H_
#undef HETCOMM_REDUCE_LOOPS_INL_H_
#else
#define HETCOMM_REDUCE_LOOPS_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <hwy/highway.h>

#include "src/reduce/reduce.h"

HWY_BEFORE_NAMESPACE();
namespace hetcomm::reduce::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

static_assert(std::endian::native == std::endian::little);

using Bytes = hn::ScalableTag<uint8_t>;
using SmallBytes = hn::CappedTag<uint8_t, 16>;
template <class T, class D>
using Lanes = hn::Repartition<T, D>;

template <class V, size_t kCount>
struct Parts {
  V part[kCount];
};

// The codec of types that need no conversion for calculations.
template <class T>
struct Native {
  static constexpr size_t kParts = 1;
  using Lane = T;
  template <class D>
  static HWY_INLINE auto decode(D, hn::Vec<D> raw) {
    return Parts<hn::Vec<Lanes<T, D>>, 1>{{hn::BitCast(Lanes<T, D>(), raw)}};
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> encode(D d, const Parts<hn::Vec<Lanes<T, D>>, 1>& value) {
    return hn::BitCast(d, value.part[0]);
  }
};

struct Sum;  // defined below with the other operators

template <class Codec, class D>
using Decoded = Parts<hn::Vec<Lanes<typename Codec::Lane, D>>, Codec::kParts>;

template <class T>
HWY_INLINE T load_scalar(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
HWY_INLINE void store_scalar(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

// Loads fewer than eight bytes into the low bytes of a word. The other bytes are 0.
HWY_INLINE uint64_t load_few(const std::byte* from, size_t bytes) {
  if (bytes >= 4) {
    return load_scalar<uint32_t>(from) | uint64_t{load_scalar<uint32_t>(from + bytes - 4)}
                                             << (8 * (bytes - 4));
  }
  uint64_t value = 0;
  if (bytes & 2) value = load_scalar<uint16_t>(from);
  if (bytes & 1) value |= uint64_t{load_scalar<uint8_t>(from + bytes - 1)} << (8 * (bytes - 1));
  return value;
}
HWY_INLINE void store_few(std::byte* to, uint64_t value, size_t bytes) {
  if (bytes & 4) {
    store_scalar(to, static_cast<uint32_t>(value));
    to += 4;
    value >>= 32;
  }
  if (bytes & 2) {
    store_scalar(to, static_cast<uint16_t>(value));
    to += 2;
    value >>= 16;
  }
  if (bytes & 1) store_scalar(to, static_cast<uint8_t>(value));
}

using Words = hn::Repartition<uint64_t, SmallBytes>;

// Loads fewer than 16 bytes into the low bytes of a vector. The other bytes are 0.
HWY_INLINE hn::Vec<SmallBytes> load_partial(const std::byte* from, size_t bytes) {
  uint64_t low = 0;
  uint64_t high = 0;
  if (bytes >= 8) {
    low = load_scalar<uint64_t>(from);
    high = load_few(from + 8, bytes - 8);
  } else {
    low = load_few(from, bytes);
  }
  return hn::BitCast(SmallBytes(),
                     hn::InterleaveLower(Words(), hn::Set(Words(), low), hn::Set(Words(), high)));
}
HWY_INLINE void store_partial(hn::Vec<SmallBytes> vector, std::byte* to, size_t bytes) {
  const hn::Vec<Words> words = hn::BitCast(Words(), vector);
  if (bytes >= 8) {
    store_scalar(to, hn::GetLane(words));
    store_few(to + 8, hn::ExtractLane(words, 1), bytes - 8);
  } else {
    store_few(to, hn::GetLane(words), bytes);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const std::byte* from) {
  return hn::LoadU(d, reinterpret_cast<const uint8_t*>(from));
}
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> vector, std::byte* to) {
  hn::StoreU(vector, d, reinterpret_cast<uint8_t*>(to));
}

// Divides |bytes| bytes into blocks of kVectors vectors, then blocks of one vector, then blocks of
// 16 bytes, and a remainder. Calls body.block<vectors>(d, offset) for each block and
// body.rest(offset, bytes) for the remainder.
template <size_t kVectors, class Body>
HWY_INLINE void for_each_block(size_t bytes, const Body& body) {
  constexpr size_t kVector = hn::MaxLanes(Bytes());
  size_t offset = 0;
  if (bytes >= kVector) {
    for (; offset + kVectors * kVector <= bytes; offset += kVectors * kVector) {
      body.template block<kVectors>(Bytes(), offset);
    }
    if constexpr (kVectors > 1) {
      for (; offset + kVector <= bytes; offset += kVector) body.template block<1>(Bytes(), offset);
    }
  }
  if constexpr (kVector > 16) {
    for (; offset + 16 <= bytes; offset += 16) body.template block<1>(SmallBytes(), offset);
  }
  if (offset < bytes) body.rest(offset, bytes - offset);
}

// Function objects that are applied to a sum before it is stored. Undivided leaves the sum
// unchanged, and DividedBy divides it.
struct Undivided {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> sum) const {
    return sum;
  }
};
struct DividedBy {
  float divisor;
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> sum) const {
    return hn::Div(sum, hn::Set(d, divisor));
  }
};

template <class Codec, class Op, class Finish = Undivided>
class Combination {
 public:
  HWY_INLINE Combination(std::byte* out, const std::byte* const* in, size_t inputs,
                         Finish finish = {})
      : out_(out), in_(in), inputs_(inputs), finish_(finish) {}

  template <size_t kVectors, class D>
  HWY_INLINE void block(D d, size_t offset) const {
    constexpr size_t kStep = hn::MaxLanes(D());
    Decoded<Codec, D> sum[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      sum[v] = Codec::decode(d, load(d, in_[0] + offset + v * kStep));
    }
    for (size_t k = 1; k < inputs_; ++k) {
      const std::byte* const from = in_[k] + offset;
      for (size_t v = 0; v < kVectors; ++v) {
        add(d, sum[v], Codec::decode(d, load(d, from + v * kStep)));
      }
    }
    for (size_t v = 0; v < kVectors; ++v) {
      store(d, Codec::encode(d, finished(d, sum[v])), out_ + offset + v * kStep);
    }
  }

  HWY_INLINE void rest(size_t offset, size_t bytes) const {
    const SmallBytes d;
    Decoded<Codec, SmallBytes> sum = Codec::decode(d, load_partial(in_[0] + offset, bytes));
    for (size_t k = 1; k < inputs_; ++k) {
      add(d, sum, Codec::decode(d, load_partial(in_[k] + offset, bytes)));
    }
    store_partial(Codec::encode(d, finished(d, sum)), out_ + offset, bytes);
  }

 private:
  template <class D>
  static HWY_INLINE void add(D, Decoded<Codec, D>& sum, const Decoded<Codec, D>& value) {
    for (size_t p = 0; p < Codec::kParts; ++p) {
      sum.part[p] = Op::apply(Lanes<typename Codec::Lane, D>(), sum.part[p], value.part[p]);
    }
  }

  template <class D>
  HWY_INLINE Decoded<Codec, D> finished(D, Decoded<Codec, D> sum) const {
    for (size_t p = 0; p < Codec::kParts; ++p) {
      sum.part[p] = finish_(Lanes<typename Codec::Lane, D>(), sum.part[p]);
    }
    return sum;
  }

  std::byte* out_;
  const std::byte* const* in_;
  size_t inputs_;
  Finish finish_;
};

// Implements Kernels::Combine.
template <class Codec, class Op>
void combine(std::byte* out, const std::byte* const* in, size_t inputs, size_t bytes) {
  for_each_block<(Codec::kParts < 4 ? 4 / Codec::kParts : 1)>(
      bytes, Combination<Codec, Op>(out, in, inputs));
}

// Implements Kernels::Average.
template <class Codec>
void average(std::byte* out, const std::byte* const* in, size_t inputs, size_t bytes, float ranks) {
  for_each_block<(Codec::kParts < 4 ? 4 / Codec::kParts : 1)>(
      bytes, Combination<Codec, Sum, DividedBy>(out, in, inputs, {ranks}));
}

template <class Codec, class Op>
class Mapping {
 public:
  using Lane = typename Codec::Lane;
  HWY_INLINE Mapping(std::byte* out, const std::byte* in, Lane operand)
      : out_(out), in_(in), operand_(operand) {}

  template <size_t kVectors, class D>
  HWY_INLINE void block(D d, size_t offset) const {
    static_assert(kVectors == 1);
    store(d, apply(d, load(d, in_ + offset)), out_ + offset);
  }
  HWY_INLINE void rest(size_t offset, size_t bytes) const {
    store_partial(apply(SmallBytes(), load_partial(in_ + offset, bytes)), out_ + offset, bytes);
  }

 private:
  template <class D>
  HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> raw) const {
    const Lanes<Lane, D> lanes;
    Decoded<Codec, D> value = Codec::decode(d, raw);
    for (size_t p = 0; p < Codec::kParts; ++p) {
      value.part[p] = Op::apply(lanes, value.part[p], hn::Set(lanes, operand_));
    }
    return Codec::encode(d, value);
  }

  std::byte* out_;
  const std::byte* in_;
  Lane operand_;
};

// Implements Kernels::Map.
template <class Codec, class Op>
void map(std::byte* out, const std::byte* in, size_t bytes, double operand) {
  const auto lane = static_cast<typename Codec::Lane>(operand);
  for_each_block<1>(bytes, Mapping<Codec, Op>(out, in, lane));
}

// --- operators -------------------------------------------------------------------------------

struct Sum {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Add(a, b);
  }
};
struct Product {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Mul(a, b);
  }
};
struct Quotient {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::Div(a, b);
  }
};
// FloatMin and FloatMax return |a| if it is a NaN, and |b| if |b| is a NaN or both are zeros.
struct FloatMin {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  }
};
struct FloatMax {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D, hn::Vec<D> a, hn::Vec<D> b) {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  }
};

constexpr size_t at(Type type) { return static_cast<size_t>(type); }
constexpr size_t at(Operator op) { return static_cast<size_t>(op); }

}  // namespace hetcomm::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
