// Runs the post_latency test, which measures the duration of a call that posts a message behind
// pending work of a device's stream. The pending work should not lengthen the call.
#pragma once

#include <functional>

#include "bench/loops/workload.h"
#include "bench/work.h"
#include "tools/common/session.h"

namespace bench {

// Measures all points of |work|. |report| receives rank 0's measurements.
void run_post(const tools::Session& session, hetcomm_communicator_t* communicator, const Work& work,
              const std::function<void(const Measurement&)>& report);

}  // namespace bench
