// Measures the peer memcpy of a comparison: one core copies each message once between its own
// buffers. For puts and gets, one side is an in-memory file that another process has mapped and
// filled. The result bounds a library that copies with one core. A library that copies with two
// cores at the same time may exceed it.
#pragma once

#include "bench/loops/workload.h"

namespace bench {

// Runs the peer's process: copies, and prints measurement lines.
int run_memcpy(const Workload& workload);

}  // namespace bench
