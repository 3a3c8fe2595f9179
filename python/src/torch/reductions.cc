#include "python/src/torch/reductions.h"

#include <array>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <cmath>
#include <exception>
#include <new>
#include <utility>

#include <hetcomm/datatype.h>

#include "python/src/torch/quiet_thread.h"
#include "python/src/torch/streams.h"

namespace hetcomm::torch_backend {

at::ScalarType scalar_type_of(int32_t datatype) {
  switch (datatype) {
    case HETCOMM_INT8:
      return at::kChar;
    case HETCOMM_UINT8:
      return at::kByte;
    case HETCOMM_INT16:
      return at::kShort;
    case HETCOMM_INT32:
      return at::kInt;
    case HETCOMM_INT64:
      return at::kLong;
    case HETCOMM_FLOAT16:
      return at::kHalf;
    case HETCOMM_BFLOAT16:
      return at::kBFloat16;
    case HETCOMM_FLOAT32:
      return at::kFloat;
    case HETCOMM_FLOAT64:
      return at::kDouble;
    default:
      return at::ScalarType::Undefined;
  }
}

bool is_well_formed(const hetcomm_device_reduction_t& what) {
  const bool is_type = what.datatype >= HETCOMM_BOOL && what.datatype <= HETCOMM_COMPLEX128;
  const bool is_operator =
      what.reduction >= HETCOMM_REDUCE_SUM && what.reduction <= HETCOMM_REDUCE_XOR;
  const bool is_sum = what.reduction == HETCOMM_REDUCE_SUM;
  const bool is_narrow = what.datatype >= HETCOMM_FLOAT16 && what.datatype <= HETCOMM_FLOAT8_E5M2;
  const bool widens = is_narrow && (is_sum || what.reduction == HETCOMM_REDUCE_PRODUCT);
  const auto may_be = [&](int32_t type) {
    return type == what.datatype || (widens && type == HETCOMM_FLOAT32);
  };
  const bool divides = widens && is_sum && what.out_datatype == what.datatype;
  return is_type && is_operator && may_be(what.first_datatype) && may_be(what.out_datatype) &&
         (what.divisor == 1 || (what.divisor > 1 && divides)) && what.reserved == 0;
}

namespace {

bool is_real(int32_t datatype) { return at::isFloatingType(scalar_type_of(datatype)); }

// Returns whether PyTorch has the operator for the type with the library's semantics.
bool has_operator(int32_t reduction, int32_t datatype) {
  if (scalar_type_of(datatype) == at::ScalarType::Undefined) return false;
  const bool adds = reduction == HETCOMM_REDUCE_SUM || reduction == HETCOMM_REDUCE_PRODUCT;
  const bool compares = reduction == HETCOMM_REDUCE_MIN || reduction == HETCOMM_REDUCE_MAX;
  return adds || (compares && !is_real(datatype));
}

void apply(int32_t reduction, at::Tensor& out, const at::Tensor& first, const at::Tensor& second) {
  switch (reduction) {
    case HETCOMM_REDUCE_SUM:
      at::add_out(out, first, second);
      return;
    case HETCOMM_REDUCE_PRODUCT:
      at::mul_out(out, first, second);
      return;
    case HETCOMM_REDUCE_MIN:
      at::minimum_out(out, first, second);
      return;
    default:
      at::maximum_out(out, first, second);
  }
}

// Returns |count| elements with arbitrary bits.
at::Tensor any_bits(at::ScalarType type, int64_t count, uint64_t seed) {
  const auto size = static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor bytes = at::empty({count * size}, at::kByte);
  auto* const data = bytes.data_ptr<uint8_t>();
  uint64_t state = seed;
  for (int64_t i = 0; i < count * size; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<uint8_t>(state >> 56);
  }
  return bytes.view(type);
}

// Returns |count| numbers with arbitrary mantissas, between -|bound| and |bound|.
at::Tensor any_numbers(at::ScalarType type, int64_t count, double bound, uint64_t seed) {
  constexpr double kIntegers = 2147483648.0;
  return any_bits(at::kInt, count, seed).to(at::kDouble).mul_(bound / kIntegers).to(type);
}

// Returns operands for a trial: arbitrary bits, numbers of similar magnitude whose sums need
// rounding, and numbers so small that sums or products are subnormal. For integers, only
// arbitrary bits.
std::vector<std::array<at::Tensor, 2>> operands_of(at::ScalarType first, at::ScalarType second) {
  constexpr int64_t kCount = 4096;
  std::vector<std::array<at::Tensor, 2>> all = {
      {any_bits(first, kCount, 1), any_bits(second, kCount, 2)}};
  if (!at::isFloatingType(second)) return all;
  const double least = second == at::kHalf     ? std::ldexp(1.0, -14)
                       : second == at::kDouble ? std::ldexp(1.0, -1022)
                                               : std::ldexp(1.0, -126);
  for (const double bound : {8.0, 3 * least, std::sqrt(least)}) {
    all.push_back({any_numbers(first, kCount, bound, 3), any_numbers(second, kCount, bound, 4)});
  }
  return all;
}

// Divides by a tensor, since PyTorch may replace division by a number with multiplication by its
// inverse.
void divide(at::Tensor& wide, uint32_t divisor) {
  wide.div_(at::full({1}, static_cast<double>(divisor), wide.options()));
}

bool have_same_bits(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor same = one.view(at::kByte).view({one.numel(), -1}) ==
                          other.view(at::kByte).view({other.numel(), -1});
  at::Tensor alike = same.all(1);
  if (at::isFloatingType(one.scalar_type())) alike = alike | (one.isnan() & other.isnan());
  return alike.all().item<bool>();
}

}  // namespace

// Reduces the tensors. An average of elements narrower than float32 is computed in float32 and
// rounded once.
void Reductions::reduce(const hetcomm_device_reduction_t& what, const at::Tensor& first,
                        const at::Tensor& second, const at::Tensor& out) {
  at::Tensor result = out;
  if (what.divisor > 1) {
    at::Tensor wide =
        first.scalar_type() == at::kFloat ? first.add(second) : first.to(at::kFloat).add_(second);
    divide(wide, what.divisor);
    result.copy_(wide, /*non_blocking=*/true);
  } else if (what.out_datatype != what.datatype && what.first_datatype == what.datatype) {
    result.copy_(first, /*non_blocking=*/true);
    apply(what.reduction, result, result, second);
  } else {
    apply(what.reduction, result, first, second);
  }
}

Reductions::~Reductions() {
  {
    const std::scoped_lock lock(mutex_);
    wanted_.clear();
  }
  if (thread_.joinable()) thread_.join();
}

bool Reductions::are_exact(const hetcomm_device_reduction_t& what) {
  const Variant variant{what.reduction, what.datatype, what.first_datatype, what.out_datatype,
                        what.divisor};
  if (!has_operator(what.reduction, what.datatype)) return false;
  const std::scoped_lock lock(mutex_);
  const auto known = verdicts_.find(variant);
  if (known != verdicts_.end()) return known->second == Verdict::kExact;
  wanted_.reserve(wanted_.size() + 1);
  verdicts_.emplace(variant, Verdict::kTrying);
  wanted_.push_back(variant);
  if (running_) return false;
  if (thread_.joinable()) thread_.join();  // it has no work left, so this does not take long
  try {
    thread_ = start_without_signals([this] { run(); });
    running_ = true;
  } catch (const std::exception&) {  // no thread could be started, or memory ran out
    wanted_.pop_back();
    verdicts_.erase(variant);
  }
  return false;
}

void Reductions::run() {
  std::unique_lock lock(mutex_);
  while (!wanted_.empty()) {
    const Variant variant = wanted_.back();
    wanted_.pop_back();
    lock.unlock();
    Verdict verdict = Verdict::kOther;
    bool has_room = true;
    try {
      verdict = try_out(variant);
    } catch (const c10::OutOfMemoryError&) {
      has_room = false;
    } catch (const std::bad_alloc&) {
      has_room = false;
    } catch (...) {
      verdict = Verdict::kOther;  // the back-end lacks a feature
    }
    lock.lock();
    if (has_room) {
      verdicts_.at(variant) = verdict;
    } else {
      verdicts_.erase(variant);  // the next call starts another trial
    }
  }
  running_ = false;
}

// Tests a variant on operands_of(). For averages, also compares the float32 quotient, which differs
// more often than the rounded result.
Reductions::Verdict Reductions::try_out(const Variant& variant) const {
  const c10::InferenceMode mode;
  hetcomm_device_reduction_t what{};
  std::tie(what.reduction, what.datatype, what.first_datatype, what.out_datatype, what.divisor) =
      variant;
  const c10::StreamGuard there(make_stream(device_));
  for (const auto& [first, second] :
       operands_of(scalar_type_of(what.first_datatype), scalar_type_of(what.datatype))) {
    const at::Tensor expected =
        at::empty_like(first, at::TensorOptions().dtype(scalar_type_of(what.out_datatype)));
    reduce(what, first, second, expected);
    const at::Tensor result = at::empty_like(expected, at::TensorOptions().device(device_));
    reduce(what, first.to(device_), second.to(device_), result);
    if (!have_same_bits(result.cpu(), expected)) return Verdict::kOther;
    if (what.divisor <= 1) continue;
    const at::Tensor wide = first.to(at::kFloat);
    at::Tensor quotient = wide.to(device_);
    divide(quotient, what.divisor);
    at::Tensor exact = wide.clone();
    divide(exact, what.divisor);
    if (!have_same_bits(quotient.cpu(), exact)) return Verdict::kOther;
  }
  return Verdict::kExact;
}

}  // namespace hetcomm::torch_backend
