// Formats the properties of a checked pipeline plan as text and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan.h"

namespace hetcomm::pipeline {

// Returns a string such as "3", "0-3" or "0,2,4".
std::string ranks_text(const std::vector<uint32_t>& ranks);
// Returns the hash of |plan|, and two tables for each pipeline: its stages with their maximum
// numbers of live activations, and its boundaries with the bytes of a micro-batch. |views| is the
// result of check_plan().
std::string outline_text(const PipelinePlan& plan, const std::vector<PipelineView>& views);
// Returns a JSON document with the hash of |plan|, and for each pipeline its groups of ranks,
// actions, maximum numbers of live activations, and numbers of items in flight at its boundaries.
// ../README.md describes the format.
std::string outline_json(const PipelinePlan& plan, const std::vector<PipelineView>& views);

}  // namespace hetcomm::pipeline
