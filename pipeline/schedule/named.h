// Makes schedules by name, from counts and times.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule/boundary_time.h"
#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct ScheduleParameters {
  uint32_t ranks = 0;
  uint32_t chunks = 0;  // stages on each rank; 0: as required, or the default if any number will do
  uint32_t micro_batches = 0;
  // Virtual-1F1B: the stages before its slow boundaries.
  std::vector<uint32_t> slow_boundaries;
  // H-1F1B: the forward and backward time of each stage, the time of each boundary, and the epsilon
  // (warmups.h).
  std::vector<uint64_t> stage_ns;
  std::vector<BoundaryTime> boundaries;
  uint32_t epsilon_ppm = 0;
  // Four-phase: the stages that recompute.
  std::vector<uint32_t> recomputed_stages;
  // The number of forward steps before the first backward step, indexed by stage. If given, it
  // replaces the counts of the schedule's rule. Only schedules with one stage on each rank have
  // such counts.
  std::vector<uint32_t> warmups;
  bool operator==(const ScheduleParameters&) const = default;
};

// Returns the names in the order used in help texts and errors.
const std::vector<std::string>& schedule_names();

struct NamedSchedule {
  Schedule schedule;
  std::vector<uint32_t> exposed;  // H-1F1B: boundaries that no schedule can hide (warmups.h)
};
// Makes the schedule with |name|: one of schedule_names(), or the name of its PyTorch class, in
// upper or lower case. Fails with kNotFound for another name, and with kInvalidArgument for
// parameters that the schedule does not have or that are inconsistent.
Result<NamedSchedule> make_schedule(std::string_view name, const ScheduleParameters& parameters);

}  // namespace hetcomm::pipeline
