// Finds the job's store among addresses, any of which may be closed, silent, or foreign.
#pragma once

#include "src/bootstrap/store.h"
#include "src/system/log.h"

namespace hetcomm {

struct FoundStore {
  StreamSocket socket;  // proved and non-blocking
  StoreId id{};
};

// Returns a connection to the store, after the store has greeted this rank. Tries all addresses in
// parallel and repeatedly until |deadline_ns|: rank 0 may start later, and the store of an earlier
// job may still be there. Refused ports are retried soon. Services that turned out to be foreign
// are retried seldom, so that they are not disturbed.
//
// The search ends before the deadline
//  * if a store with another secret turns this rank away, and does so again at least 5 s later.
//    Every address must have given a result before the pause and again after it;
//  * if rank 0 says that it has failed, and every address has given its results as above. Rank 0
//    need not answer again after the pause, since it may have ended;
//  * if |was_found|, once no process listens at any address. A store does not come back.
//
// The failure lists every address with its last error, and names |limit_ns| as the time limit (0:
// unknown). Its code is rank 0's if rank 0 has failed. Otherwise it is PERMISSION_DENIED if a store
// has turned this rank away, because of its secret or because another process is this rank, or if
// the services at all addresses refuse this rank.
Result<FoundStore> find_store(Log& log, const StoreClient::Options& options, uint64_t deadline_ns,
                              uint64_t limit_ns = 0, bool was_found = false);

}  // namespace hetcomm
