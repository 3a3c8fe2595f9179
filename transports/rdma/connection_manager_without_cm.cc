// Replaces connection_manager.cc when the librdmacm headers were not found at build time.
#include "transports/rdma/connection_manager.h"

namespace hetcomm::rdma {

Status ConnectionManager::probe() {
  return {Code::kUnsupported,
          "this build has no rdma_cm: the headers of librdmacm were missing (package "
          "librdmacm-dev)"};
}

Result<std::unique_ptr<ConnectionManager>> ConnectionManager::create(const Cm*, const Device&,
                                                                     const Config&, Poller&, Log&,
                                                                     CmListener&) {
  return probe();
}

}  // namespace hetcomm::rdma
