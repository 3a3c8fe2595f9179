// Runs the staging tests, in which device memory that the transport cannot access passes through
// chunks of host memory. They measure copying alone, the same message from host to host, and both
// together, which should take no longer than the slower of the two. Collective operations are
// measured in the same way.
#pragma once

#include <functional>

#include "bench/loops/workload.h"
#include "bench/work.h"
#include "tools/common/session.h"

namespace bench {

// Measures all points of |work|. |report| receives rank 0's measurements.
void run_staging(const tools::Session& session, hetcomm_communicator_t* communicator,
                 const Work& work, const std::function<void(const Measurement&)>& report);

}  // namespace bench
