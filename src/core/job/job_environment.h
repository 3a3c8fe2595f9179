// The parts of the context that a job works with.
#pragma once

#include <memory>
#include <span>

#include "src/base/config.h"
#include "src/base/log.h"
#include "src/core/memory/memory.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/progress/engine.h"
#include "src/liveness/control_thread.h"
#include "topology/pairing.h"
#include "transports/transport.h"

namespace hetcomm {

// A network interface that this rank's transports may use.
struct RankNic {
  BoundNic name;
  topology::Port port;
};

struct JobEnvironment {
  Engine& engine;
  DeviceSet& devices;
  const Config& config;
  Log& log;
  OverlapGuard& overlaps;
  std::span<const std::unique_ptr<TransportFactory>> factories;
  liveness::ControlThread* control;  // null: for jobs of one rank only
  std::span<const RankNic> nics;     // best first; none: transports choose by themselves
  Status nics_failure;               // why the NICs that the user has named cannot be had
};

}  // namespace hetcomm
