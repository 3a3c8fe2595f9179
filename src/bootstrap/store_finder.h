// Finds the job's store among addresses of which any may be closed, silent, or somebody else's.
#pragma once

#include "src/base/log.h"
#include "src/bootstrap/store.h"

namespace hetcomm {

// A proved, non-blocking connection to the store. Tries all addresses side by side and again and
// again until |deadline_ns|: rank 0 may start later. Refused ports are retried soon; services that
// turned out to be foreign seldom, so that they are not disturbed. The failure lists every address
// with its last error, and |limit_ns| as the time that it took (0: unknown).
Result<StreamSocket> find_store(Log& log, const StoreClient::Options& options, uint64_t deadline_ns,
                                uint64_t limit_ns = 0);

}  // namespace hetcomm
