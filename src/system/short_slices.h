// Sets the scheduling of the library's own threads.
#pragma once

namespace hetcomm {

// Asks for a higher priority where that is allowed, and for short time slices. The calling thread
// works in short bursts, and computing threads must not make a peer wait. Best effort: older
// kernels ignore the slice of ordinary threads.
void ask_for_short_slices();

}  // namespace hetcomm
