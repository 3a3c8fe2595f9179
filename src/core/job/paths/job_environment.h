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
  uint64_t devices = UINT64_MAX;  // devices whose memory uses it, as bits by number in the context
  uint64_t far_devices = 0;       // devices beyond its root complex, as bits
};

// NUMA nodes near which memory of this rank lies, as the kernel numbers them.
struct MemoryPlaces {
  int inside = kAnyNumaNode;  // what the rank reads of others on its host
  std::vector<int> devices;   // chunks that stage each device's data, by index in the DeviceSet
};

// The places that a job uses on its host.
struct HostPlaces {
  std::vector<RankNic> nics;  // best first; none: transports choose on their own
  MemoryPlaces memory;
  topology::HostLinks links;  // what this rank tells others about its host's links
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
  std::span<const RankNic> nics;          // best first; none: transports choose on their own
  Status nics_failure;                    // why the NICs that the user has named cannot be had
  const topology::HostLinks& host_links;  // what this rank tells about its host
  // Devices on this host that its other ranks do not know of on their own.
  std::vector<topology::PciAddress> hidden_devices;
};

}  // namespace hetcomm
