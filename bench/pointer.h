// The pointer_latency test: how long does it take to find the memory that a plain pointer leads to?
#pragma once

#include <functional>

#include "bench/loops/workload.h"
#include "bench/session.h"
#include "bench/work.h"

namespace bench {

// All points of |work|, on rank 0; a time is that of 1000 calls of hetcomm_buffer_pointer.
void run_pointer(const Session& session, const Work& work,
                 const std::function<void(const Measurement&)>& report);

}  // namespace bench
