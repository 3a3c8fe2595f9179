// The transports of this build, for capi: registration is explicit.
#pragma once

#include <memory>
#include <vector>

#include "transports/self/factory.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"
#include "transports/transport.h"

namespace hetcomm {

inline std::vector<std::unique_ptr<TransportFactory>> all_transports() {
  std::vector<std::unique_ptr<TransportFactory>> factories;
  factories.push_back(make_self_factory());
  factories.push_back(make_shm_factory());
  factories.push_back(make_tcp_factory());
  return factories;
}

}  // namespace hetcomm
