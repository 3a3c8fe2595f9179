// Returns the parameters of a named schedule in the JSON format of a pipeline plan.
#pragma once

#include <utility>

#include "pipeline/schedule/named.h"
#include "src/present/json_fields.h"

namespace hetcomm::pipeline {

inline present::Json json_of(const ScheduleParameters& given) {
  present::Json boundaries = present::Json::array();
  for (const BoundaryTime& each : given.boundaries) {
    boundaries.push_back({{"busy_ns", each.busy_ns}, {"latency_ns", each.latency_ns}});
  }
  return {{"warmups", given.warmups},
          {"slow_boundaries", given.slow_boundaries},
          {"recomputed_stages", given.recomputed_stages},
          {"epsilon_ppm", given.epsilon_ppm},
          {"stage_ns", given.stage_ns},
          {"boundaries", std::move(boundaries)}};
}

}  // namespace hetcomm::pipeline
