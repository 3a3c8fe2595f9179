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
//  * when a store with another secret has turned this rank away, every address has given its
//    result, and 5 s later each has given one again without a match, and that store the same one;
//  * when rank 0 has said that it has failed, and the addresses are as above. Rank 0 need not
//    answer a second time: it may have ended;
//  * when |was_found|, once no process listens at any address: the store does not come back.
//
// The failure lists every address with its last error, and |limit_ns| as the time that it took (0:
// unknown). It is PERMISSION_DENIED if a store has turned this rank away for its secret or because
// another process is this rank, whatever the other addresses say. It is rank 0's code if rank 0 has
// failed.
Result<FoundStore> find_store(Log& log, const StoreClient::Options& options, uint64_t deadline_ns,
                              uint64_t limit_ns = 0, bool was_found = false);

}  // namespace hetcomm
