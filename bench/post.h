// The post_latency test: how long does a call take that posts a message behind what a stream of a
// device still does? It should not be longer for what the stream does.
#pragma once

#include <functional>

#include "bench/loops/workload.h"
#include "bench/session.h"
#include "bench/work.h"

namespace bench {

// All points of |work|; |report| gets rank 0's measurements.
void run_post(const Session& session, hetcomm_communicator_t* communicator, const Work& work,
              const std::function<void(const Measurement&)>& report);

}  // namespace bench
