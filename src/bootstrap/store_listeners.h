// Creates the sockets that listen where ranks look for rank 0's store. The sockets are created
// before the store, so that rank 0 can report to the other ranks why it fails (failure_answer.h).
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/status.h"
#include "src/net/address.h"
#include "src/system/unique_fd.h"

namespace hetcomm {

// One socket for each host, all of them on the same port.
struct StoreListeners {
  std::vector<UniqueFd> sockets;
};

// Listens on all |hosts| at the first of |ports| that is free on all of them. Fails with
// PERMISSION_DENIED if this process has no permission for any of the ports. Otherwise fails with
// the last error that was not PERMISSION_DENIED.
Result<StoreListeners> listen_for_store(const std::vector<Address>& hosts,
                                        const std::vector<uint16_t>& ports);

}  // namespace hetcomm
