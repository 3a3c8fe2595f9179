// Checks a schedule: every step is there once, every dependency can be met, no rank waits for ever,
// and no rank keeps more than it may.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/schedule/memory.h"
#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct CheckOptions {
  // The most items in flight in each direction of a boundary: they have left the sender, and no
  // step of the receiver has taken them. The sender keeps as many more that have not left. By the
  // stage before the boundary; empty: 1 for all.
  std::vector<uint32_t> in_flight;
  std::vector<StepMemory> memory;  // by stage; empty: the defaults for all
  std::vector<int64_t> limits;     // by rank; empty: none
};

struct CheckResult {
  std::vector<int64_t> peaks;  // by rank
};

// Checks |schedule|, which may be of any level. At every level a computation itself waits for its
// data. Wait actions let a rank wait earlier. UNSHARD and RESHARD are not checked against the steps
// between them. Fails with kInvalidArgument and a text that names the rank and the action. Fails
// with kOutOfRange if only a limit is exceeded.
//
// A schedule either has no backward steps, or has for every stage and micro-batch B, or I and W. At
// level 1 the items of a boundary go in the order of its sender. At the higher levels they are told
// apart by micro-batch, and |in_flight| does not count: receives are posted by actions.
Result<CheckResult> check(const Schedule& schedule, const CheckOptions& options = {});

// Checks |schedule| without limits: any number of items may be under way.
Status check_unlimited(const Schedule& schedule);

// Returns values of CheckOptions::in_flight with which a schedule of level 1 can go on. They are
// enough, and not always the fewest: they start with 1 for all, and one boundary is raised at a
// time while no rank can go on. Looped schedules need more than 1 where their last rank sends to
// the first. Values of |given|, by the stage before the boundary, that are not 0 stay as they are.
Result<std::vector<uint32_t>> needed_in_flight(const Schedule& schedule,
                                               const std::vector<uint32_t>& given = {});

}  // namespace hetcomm::pipeline
