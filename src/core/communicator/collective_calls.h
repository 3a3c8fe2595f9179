// Posts collective calls on a communicator as operations, which the communicator's teams carry out.
//
// All functions are [any-thread].
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"
#include "src/core/collectives/task.h"
#include "src/core/communicator/communicator.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// Starts a collective operation, unless it belongs to a group, which then starts it. If the call is
// rejected, |*text| says why.
Code post_collective(Communicator& communicator, const collectives::Arguments& arguments,
                     Operation** out, std::string* text);
// Starts a collective operation of all ranks and waits for its end. If this rank cannot take part,
// the operation fails on the other ranks too, so that they do not wait for this rank.
Status run_collective(Communicator& communicator, const collectives::Arguments& arguments);
Status barrier(Communicator& communicator, uint64_t timeout_ns);
// Announces that this rank will not make the next collective call of all ranks, because of |why|.
// The call fails on the other ranks.
void refuse_collective(Communicator& communicator, std::string_view why);

}  // namespace hetcomm
