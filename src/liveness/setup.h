// A rank's place in its job, as its control plane has to know it.
#pragma once

#include <cstdint>

#include "src/net/address.h"
#include "src/net/credentials.h"

namespace hetcomm::liveness {

struct Setup {
  int rank = 0;
  int size = 0;
  uint64_t detection_ns = 0;
  Credentials credentials;  // complete in start() only
  int doorbell = -1;        // an eventfd; rung when something is in the mailbox
  Address route{};          // of this host, leads to the other ranks; none where that is not known
};

}  // namespace hetcomm::liveness
