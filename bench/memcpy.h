// Measures "memcpy", a peer in comparisons: one core copies each message once between its own
// buffers. For puts and gets, one side is an in-memory file that another process has mapped and
// filled. The result is an upper bound for a library that copies with one core. A library that
// copies with two cores at the same time can exceed it.
#pragma once

#include "bench/loops/workload.h"

namespace bench {

// Runs the peer's process: copies, and prints measurement lines.
int run_memcpy(const Workload& workload);

}  // namespace bench
