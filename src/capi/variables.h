// Lists all environment variables of the library, grouped by layer. hetcomm_info lists them in this
// order.
#pragma once

#include <array>
#include <cstddef>

#include "devices/variables.h"
#include "src/bootstrap/variables.h"
#include "src/core/collectives/variables.h"
#include "src/core/job/membership/variables.h"
#include "src/core/memory/variables.h"
#include "src/core/peer/variables.h"
#include "src/core/progress/variables.h"
#include "src/net/variables.h"
#include "src/system/variables.h"
#include "topology/read/variables.h"
#include "transports/rdma/variables.h"
#include "transports/shm/variables.h"
#include "transports/tcp/variables.h"
#include "transports/variables.h"

namespace hetcomm {

template <size_t... kCounts>
constexpr auto joined(const Variable* const (&... tables)[kCounts]) {
  std::array<const Variable*, (kCounts + ...)> all{};
  size_t count = 0;
  const auto add = [&](const auto& table) {
    for (const Variable* each : table) all[count++] = each;
  };
  (add(tables), ...);
  return all;
}

inline constexpr auto kVariables = joined(
    variable::kSystemVariables, variable::kNetVariables, variable::kBootstrapVariables,
    variable::kTopologyReadVariables, variable::kTransportsVariables,
    variable::kTransportsShmVariables, variable::kTransportsTcpVariables,
    variable::kTransportsRdmaVariables, variable::kDevicesVariables,
    variable::kCoreProgressVariables, variable::kCoreMemoryVariables, variable::kCorePeerVariables,
    variable::kCoreJobVariables, variable::kCoreCollectivesVariables);

}  // namespace hetcomm
