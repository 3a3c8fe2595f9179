// Sets the scheduling of the library's own threads.
#pragma once

namespace hetcomm {

// Requests short time slices and, where this is allowed, a higher priority for the calling thread.
// This thread works in short bursts, and a peer would have to wait if threads that compute delayed
// it. This is best effort: older kernels ignore the slice of ordinary threads.
void ask_for_short_slices();

}  // namespace hetcomm
