// Checks a schedule: every step occurs exactly once, every dependency can be met, no rank waits
// forever, and no rank exceeds its memory limit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/schedule/memory.h"
#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

struct CheckOptions {
  // The maximum number of items in flight in each direction of a boundary. An item is in flight if
  // it has left the sender, and no step of the receiver has taken it. The sender can keep the same
  // number of further items that have not left. Indexed by the stage before the boundary. Empty: 1
  // for all.
  std::vector<uint32_t> in_flight;
  std::vector<StepMemory> memory;  // indexed by stage; empty: the defaults for all
  std::vector<int64_t> limits;     // indexed by rank; empty: no limits
};

struct CheckResult {
  std::vector<int64_t> peaks;  // indexed by rank
};

// Checks |schedule|, which may be of any level. At every level, a computation waits for its data by
// itself. Wait actions only make a rank wait earlier. UNSHARD and RESHARD are not checked against
// the steps between them. Fails with kInvalidArgument and an error text that names the rank and the
// action. Fails with kOutOfRange if only a limit is exceeded.
//
// A schedule either has no backward steps, or it has B, or I and W, for every stage and
// micro-batch. At level 1, the items of a boundary are transferred in the order in which the sender
// produces them. At the higher levels they are identified by micro-batch, and |in_flight| has no
// effect, because receives are posted by actions.
Result<CheckResult> check(const Schedule& schedule, const CheckOptions& options = {});

// Checks |schedule| without limits: any number of items may be in flight.
Status check_unlimited(const Schedule& schedule);

// Returns values of CheckOptions::in_flight with which a schedule of level 1 does not deadlock.
// They are sufficient, but not always minimal. All start at 1, and whenever no rank can continue,
// one boundary is raised. Looped schedules need more than 1 where their last rank sends to the
// first. Nonzero values of |given|, which is indexed by the stage before the boundary, are kept.
Result<std::vector<uint32_t>> needed_in_flight(const Schedule& schedule,
                                               const std::vector<uint32_t>& given = {});

}  // namespace hetcomm::pipeline
