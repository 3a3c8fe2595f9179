// Collective calls on a communicator. They become operations, which the communicator's teams carry
// out.
//
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/core/collectives/task.h"
#include "src/core/communicator/communicator.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Starts an operation; |*text| says why it was rejected.
Code post_collective(Communicator& communicator, const collectives::Arguments& arguments,
                     Operation** out, std::string* text);
// Starts a collective operation of all ranks and waits for its end. The other ranks wait for this
// one, so anything that keeps it from taking part ends the operation on them too.
Status run_collective(Communicator& communicator, const collectives::Arguments& arguments);
Status barrier(Communicator& communicator, uint64_t timeout_ns);
// This rank does not make the next collective call of all ranks, for the reason |why|. The call of
// the other ranks fails.
void refuse_collective(Communicator& communicator, std::string_view why);

}  // namespace hetcomm
