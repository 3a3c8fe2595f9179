// The post_latency test: measures how long a call takes that posts a message behind pending work of
// a device's stream. The pending work should not make it longer.
#pragma once

#include <functional>

#include "bench/loops/workload.h"
#include "bench/session.h"
#include "bench/work.h"

namespace bench {

// Measures all points of |work|. |report| gets rank 0's measurements.
void run_post(const Session& session, hetcomm_communicator_t* communicator, const Work& work,
              const std::function<void(const Measurement&)>& report);

}  // namespace bench
