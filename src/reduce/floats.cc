// Implements the kernels for float32, float64, and complex numbers of these types.
#include "src/reduce/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/reduce/floats.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/reduce/kernels.h"
#include "src/reduce/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hetcomm::reduce::HWY_NAMESPACE {

// Multiplies complex numbers. Each number occupies a pair of lanes: (a + bi)(c + di) = (ac - bd) +
// (ad + bc)i.
struct ComplexProduct {
  template <class D>
  static HWY_INLINE hn::Vec<D> apply(D d, hn::Vec<D> x, hn::Vec<D> y) {
    const hn::Vec<D> real = hn::Mul(hn::DupEven(x), y);                       // ac, ad
    const hn::Vec<D> imaginary = hn::Mul(hn::DupOdd(x), hn::Reverse2(d, y));  // bd, bc
    return hn::OddEven(hn::Add(real, imaginary), hn::Sub(real, imaginary));
  }
};

template <class T>
void add_type(Kernels& kernels, Type real, Type complex) {
  for (const Type type : {real, complex}) {
    auto& combines = kernels.combine[at(type)];
    for (const Operator op : {Operator::kSum, Operator::kAverage, Operator::kPremulSum}) {
      combines[at(op)] = combine<Native<T>, Sum>;
    }
    kernels.scale[at(type)] = map<Native<T>, Product>;
    kernels.divide[at(type)] = map<Native<T>, Quotient>;
  }
  auto& combines = kernels.combine[at(real)];
  combines[at(Operator::kProduct)] = combine<Native<T>, Product>;
  combines[at(Operator::kMin)] = combine<Native<T>, FloatMin>;
  combines[at(Operator::kMax)] = combine<Native<T>, FloatMax>;
  kernels.combine[at(complex)][at(Operator::kProduct)] = combine<Native<T>, ComplexProduct>;
}

void add_floats_of_target(Kernels& kernels) {
  kernels.target = hwy::TargetName(HWY_TARGET);
  add_type<float>(kernels, Type::kFloat32, Type::kComplex64);
  add_type<double>(kernels, Type::kFloat64, Type::kComplex128);
}

}  // namespace hetcomm::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hetcomm::reduce {

HWY_EXPORT(add_floats_of_target);
void add_floats(Kernels& kernels) { HWY_DYNAMIC_DISPATCH(add_floats_of_target)(kernels); }

}  // namespace hetcomm::reduce
#endif
