// Reads the times of a stage from JSON. ../README.md describes their format.
#pragma once

#include <cstdint>

#include "pipeline/simulate/times.h"
#include "src/present/json_fields.h"

namespace hetcomm::pipeline {

// The maximum time of a step or a transfer in a question: 104 days.
inline constexpr uint64_t kMaxNs = uint64_t{1} << 53;

// Reads the times of a stage. If only the whole backward step or only its parts are given, the
// others are derived from them. Reports wrong entries through |fields|.
StageTime read_stage_time(present::Fields fields);

}  // namespace hetcomm::pipeline
