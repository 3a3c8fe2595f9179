// The tests of staging: device memory that the transport cannot reach goes through chunks of host
// memory. How long does copying take alone, how long the same message from host to host, and how
// long both together, which should be no longer than the slower of the two? The same of collective
// operations.
#pragma once

#include <functional>

#include "bench/loops/workload.h"
#include "bench/session.h"
#include "bench/work.h"

namespace bench {

// All points of |work|; |report| gets rank 0's measurements.
void run_staging(const Session& session, hetcomm_communicator_t* communicator, const Work& work,
                 const std::function<void(const Measurement&)>& report);

}  // namespace bench
