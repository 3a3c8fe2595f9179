// Split: makes communicators from subsets of a communicator's ranks. It is a collective operation
// that the caller waits for.
#pragma once

#include <cstdint>
#include <memory>

#include "src/base/status.h"
#include "src/core/communicator/communicator.h"

namespace hetcomm {

// Makes the communicator of the ranks with |color|, ordered by |key|. Returns null for a rank
// without a color. |refused| says why this rank's arguments are invalid, or is OK. A refused rank
// takes part nevertheless, so that the other ranks learn of it.
Result<std::unique_ptr<Communicator>> split(Communicator& parent, int32_t color, int32_t key,
                                            const Status& refused);

}  // namespace hetcomm
