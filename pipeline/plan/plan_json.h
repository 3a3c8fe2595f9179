// Pipeline plans as JSON documents. ../README.md describes the document.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "pipeline/plan/plan.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

inline constexpr size_t kMaxPlanBytes = size_t{1} << 28;

// Reads a plan of at most kMaxPlanBytes. Fails with kInvalidArgument for a wrong document; the text
// names the line of a syntax error, or the path of a wrong entry. Fails with kUnsupported for a
// document of another version. The plan is not checked (check_plan.h).
Result<PipelinePlan> parse_plan(std::string_view json);

// Returns the document: all fields, sorted by name. Equal plans have equal documents.
std::string to_json(const PipelinePlan& plan);

// Returns a hash of |plan| without its provenance. Ranks compare the hash. It does not withstand
// somebody who looks for plans with the same hash.
using PlanHash = std::array<uint64_t, 2>;
PlanHash hash_of(const PipelinePlan& plan);
// Returns the hash in 32 hexadecimal digits.
std::string to_text(const PlanHash& hash);

}  // namespace hetcomm::pipeline
