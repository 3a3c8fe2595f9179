// Sets the scheduling of the library's own threads.
#pragma once

namespace hetcomm {

// Requests short time slices, precise timers and, where this is allowed, a higher priority for the
// calling thread. The calling thread works in short bursts. If a computing thread delayed it, a
// peer would have to wait. Failures are ignored, and older kernels ignore the slice of ordinary
// threads.
void ask_for_short_slices();

}  // namespace hetcomm
