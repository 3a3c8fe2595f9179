// split() makes communicators from subsets of a communicator's ranks. It is a collective operation
// and blocks the caller.
#pragma once

#include <cstdint>
#include <memory>

#include "src/base/status.h"
#include "src/core/communicator/communicator.h"

namespace hetcomm {

// Makes the communicator of the ranks with |color|, ordered by |key|. Returns null for a rank
// without a color. |refused| is OK, or says why this rank's arguments are invalid. A rank with
// invalid arguments still takes part, so that the other ranks are informed.
Result<std::unique_ptr<Communicator>> split(Communicator& parent, int32_t color, int32_t key,
                                            const Status& refused);

}  // namespace hetcomm
