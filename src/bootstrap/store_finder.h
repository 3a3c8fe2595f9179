// Finds the job's store among several addresses. Any of them may be closed, silent, or used by
// another service.
#pragma once

#include "src/bootstrap/store.h"
#include "src/system/log.h"

namespace hetcomm {

struct FoundStore {
  StreamSocket socket;  // after the handshake; non-blocking
  StoreId id{};
};

// Returns a connection to the store, after the store has greeted this rank. Tries all addresses in
// parallel and repeatedly until |deadline_ns|: rank 0 may start later, and the store of an earlier
// job may still be running. Ports that refuse a connection are retried soon. Foreign services are
// retried rarely, so as not to disturb them.
//
// The search ends before the deadline
//  * if a store with another secret turns this rank away, and does so again at least 5 s later.
//    Every address must have given a result before the pause and again after it;
//  * if rank 0 reports that it has failed, and every address has given its results as above. Rank 0
//    need not answer again after the pause, since it may have exited;
//  * if |was_found|, once no process listens at any address. A store does not come back.
//
// The error text lists every address with its last error, and names |limit_ns| as the time limit
// (0: unknown). Its code is rank 0's if rank 0 has failed. Otherwise it is PERMISSION_DENIED if a
// store has turned this rank away, because of its secret or because another process has this rank.
// It is PERMISSION_DENIED too if the services at all addresses reject this rank, and
// BOOTSTRAP_FAILED in all other cases.
Result<FoundStore> find_store(Log& log, const StoreClient::Options& options, uint64_t deadline_ns,
                              uint64_t limit_ns = 0, bool was_found = false);

}  // namespace hetcomm
