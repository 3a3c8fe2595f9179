#include "src/core/collectives/call.h"

#include <fmt/core.h>

#include <hetcomm/collective.h>

namespace hetcomm::collectives {
namespace {

const char* datatype_name(int32_t datatype) {
  switch (datatype) {
#define HETCOMM_CASE(name, value, bytes) \
  case value:                            \
    return #name;
    HETCOMM_DATATYPE_MAP(HETCOMM_CASE)
#undef HETCOMM_CASE
    default:
      return "no type";
  }
}

const char* reduction_name(int32_t reduction) {
  switch (reduction) {
#define HETCOMM_CASE(name, value) \
  case value:                     \
    return #name;
    HETCOMM_REDUCTION_MAP(HETCOMM_CASE)
#undef HETCOMM_CASE
    default:
      return "no operator";
  }
}

const char* operation_name(const Call& call) {
  return call.variant == Variant::kSplit ? "split" : name_of(call.kind);
}

}  // namespace

std::string describe(const Call& call) {
  std::string text = operation_name(call);
  if (call.kind == Kind::kBarrier || call.variant == Variant::kSplit) return text;
  if (has_root(call.kind)) text += fmt::format(" with root {}", call.root);
  if (call.bytes > 0) text += fmt::format(" of {} bytes", call.bytes);
  text += fmt::format(", {}", datatype_name(call.datatype));
  if (reduces(call.kind)) text += fmt::format(", {}", reduction_name(call.reduction));
  return text;
}

std::string difference(const Call& one, const Call& other) {
  const bool alike = (one.variant == Variant::kSplit) == (other.variant == Variant::kSplit);
  if (one.kind != other.kind || !alike) {
    return fmt::format("operation ({}, {})", operation_name(one), operation_name(other));
  }
  if (one.bytes != other.bytes) {
    return fmt::format("size ({} bytes, {} bytes)", one.bytes, other.bytes);
  }
  if (one.datatype != other.datatype) {
    return fmt::format("type ({}, {})", datatype_name(one.datatype), datatype_name(other.datatype));
  }
  if (one.reduction != other.reduction) {
    return fmt::format("operator ({}, {})", reduction_name(one.reduction),
                       reduction_name(other.reduction));
  }
  if (one.root != other.root) return fmt::format("root ({}, {})", one.root, other.root);
  if (one.blocks != other.blocks) return "lengths of the parts";
  if (one.algorithm != other.algorithm) {
    return fmt::format("algorithm ({}, {})", name_of(one.algorithm), name_of(other.algorithm));
  }
  if (one.links != other.links) {
    return fmt::format("link model ({:016x}, {:016x})", one.links, other.links);
  }
  if (one.factor != other.factor) return fmt::format("factor ({}, {})", one.factor, other.factor);
  return "flags";
}

}  // namespace hetcomm::collectives
