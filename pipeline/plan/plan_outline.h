// Writes what follows from a checked pipeline plan, for people and for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/plan/check_plan.h"
#include "pipeline/plan/plan.h"

namespace hetcomm::pipeline {

// Returns "3", "0-3" or "0,2,4".
std::string ranks_text(const std::vector<uint32_t>& ranks);
// Returns the hash of |plan|, and two tables for each pipeline: its stages, with what they hold at
// a time, and its boundaries, with the bytes of a micro-batch. |views|: check_plan().
std::string outline_text(const PipelinePlan& plan, const std::vector<PipelineView>& views);
// Returns a JSON document with the hash, the groups of ranks, the actions, the peaks, and the items
// in flight. ../README.md describes it.
std::string outline_json(const PipelinePlan& plan, const std::vector<PipelineView>& views);

}  // namespace hetcomm::pipeline
