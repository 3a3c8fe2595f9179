// Tells the other ranks why rank 0 failed before it could run its store. It answers at the
// addresses where these ranks look for the store.
#pragma once

#include <cstdint>

#include "src/base/status.h"
#include "src/bootstrap/store_listeners.h"
#include "src/net/credentials.h"

namespace hetcomm {

// Answers all peers that have connected to |listeners|, or connect within |time_ns|, with |why|
// (encode_end in net/handshake.h). Blocks for that time, or until |ranks| different ranks of
// |identity| have received the answer. Needs one free descriptor, and waits for one within that
// time.
void answer_with_failure(const StoreListeners& listeners, const Identity& identity,
                         const Status& why, int ranks, uint64_t time_ns);

}  // namespace hetcomm
