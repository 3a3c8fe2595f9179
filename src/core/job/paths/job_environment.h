// The parts of the context that a job works with.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "src/core/memory/memory.h"
#include "src/core/memory/overlap_guard.h"
#include "src/core/progress/engine.h"
#include "src/liveness/control_thread.h"
#include "src/system/config.h"
#include "src/system/log.h"
#include "src/system/numa_memory.h"
#include "topology/machine/host_links.h"
#include "topology/machine/pairing.h"
#include "transports/transport.h"

namespace hetcomm {

// A network interface that this rank's transports may use.
struct RankNic {
  BoundNic name;
  topology::Port port;
  static constexpr size_t kMaxDevices = 64;
  uint64_t devices = UINT64_MAX;  // whose memory uses it, as bits by their numbers in the context
  uint64_t far_devices = 0;       // beyond its root complex, as bits
};

// NUMA nodes near which memory of this rank lies, as the kernel numbers them.
struct MemoryPlaces {
  int inside = kAnyNumaNode;  // what the rank reads of others on its host
  std::vector<int> devices;   // chunks that stage each device's data, by index in the DeviceSet
};

// A job goes by this on its host.
struct HostPlaces {
  std::vector<RankNic> nics;  // best first; none: transports choose by themselves
  MemoryPlaces memory;
  topology::HostLinks links;  // what this rank tells others of the links of its host
};

struct JobEnvironment {
  Engine& engine;
  DeviceSet& devices;
  const Config& config;
  Log& log;
  OverlapGuard& overlaps;
  std::span<const std::unique_ptr<TransportFactory>> factories;
  liveness::ControlThread* control;  // null: for jobs of one rank only
  const MemoryPlaces& places;
  std::span<const RankNic> nics;          // best first; none: transports choose by themselves
  Status nics_failure;                    // why the NICs that the user has named cannot be had
  const topology::HostLinks& host_links;  // what this rank tells of its host
  // These are on this host, and its other ranks do not know of them by themselves.
  std::vector<topology::PciAddress> hidden_devices;
};

}  // namespace hetcomm
