// Reads and writes pipeline plans as JSON documents. ../README.md describes the format.
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

// Parses a plan of at most kMaxPlanBytes. Fails with kInvalidArgument for a malformed document. The
// error text names the line of a syntax error, or the path of a wrong entry. Fails with
// kUnsupported if the version of the document is not supported. The plan is not checked
// (check_plan.h).
Result<PipelinePlan> parse_plan(std::string_view json);

// Returns a document with all fields, sorted by name. Equal plans have equal documents.
std::string to_json(const PipelinePlan& plan);

// Returns a hash of |plan| without its provenance, which ranks compare. It is not
// collision-resistant against an attacker.
using PlanHash = std::array<uint64_t, 2>;
PlanHash hash_of(const PipelinePlan& plan);
// Returns the hash as 32 hexadecimal digits.
std::string to_text(const PlanHash& hash);

}  // namespace hetcomm::pipeline
