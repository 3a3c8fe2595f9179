// Reads the times of a stage from JSON. ../README.md describes them.
#pragma once

#include <cstdint>

#include "pipeline/simulate/times.h"
#include "src/present/json_fields.h"

namespace hetcomm::pipeline {

// The longest time of a step or a transfer in a question: 104 days.
inline constexpr uint64_t kMaxNs = uint64_t{1} << 53;

// Returns the times in an object. A step of which only the whole or only the parts are given
// follows from the others. Reports wrong entries by |fields|.
StageTime read_stage_time(present::Fields fields);

}  // namespace hetcomm::pipeline
