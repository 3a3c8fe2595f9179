// Runs the pointer_latency test, which measures how long it takes to find the memory that a plain
// pointer refers to.
#pragma once

#include <functional>

#include "bench/loops/workload.h"
#include "bench/work.h"
#include "tools/common/session.h"

namespace bench {

// Measures all points of |work| on rank 0. Each time covers 1000 calls of hetcomm_buffer_pointer.
void run_pointer(const tools::Session& session, const Work& work,
                 const std::function<void(const Measurement&)>& report);

}  // namespace bench
