#include "reshard/element_types.h"

namespace hetcomm::reshard {

bool is_narrow(ElementType type) {
  return type == ElementType::kFloat16 || type == ElementType::kBfloat16 ||
         type == ElementType::kFloat8E4M3fn || type == ElementType::kFloat8E5M2;
}

bool can_convert(ElementType from, ElementType to) {
  if (from == to) return true;
  const auto is_float = [](ElementType type) {
    return type == ElementType::kFloat32 || is_narrow(type);
  };
  if (is_float(from) && is_float(to)) return true;
  return (from == ElementType::kFloat32 && to == ElementType::kFloat64) ||
         (from == ElementType::kFloat64 && to == ElementType::kFloat32);
}

ElementType sum_type_of(ElementType source, ElementType destination) {
  const auto either = [&](ElementType type) { return source == type || destination == type; };
  if (either(ElementType::kFloat64)) return ElementType::kFloat64;
  const bool is_float = source == ElementType::kFloat32 || is_narrow(source);
  return is_float ? ElementType::kFloat32 : destination;
}

}  // namespace hetcomm::reshard
