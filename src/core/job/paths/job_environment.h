// JobEnvironment holds the parts of the context that a job uses.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "src/core/device/memory.h"
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
  uint64_t devices = UINT64_MAX;  // devices whose memory uses it, as bits by device number
  uint64_t far_devices = 0;       // devices beyond its root complex, as bits by device number
};

// NUMA nodes near which this rank's memory is placed, by their kernel numbers.
struct MemoryNodes {
  int inside = kAnyNumaNode;  // for memory that other ranks on the host write for this rank
  std::vector<int> devices;   // for each device's staging chunks, by index in the DeviceSet
};

// The NICs, NUMA nodes and links that a job uses on its host.
struct HostResources {
  // Best first, last-resort NICs at the end. If there are none, transports choose their own
  // interfaces.
  std::vector<RankNic> nics;
  MemoryNodes memory;
  topology::HostLinks links;  // this rank's report on its host's links
};

struct JobEnvironment {
  Engine& engine;
  DeviceSet& devices;
  const Config& config;
  Log& log;
  OverlapGuard& overlaps;
  std::span<const std::unique_ptr<TransportFactory>> factories;
  liveness::ControlThread* control;  // null in jobs of one rank
  const MemoryNodes& memory_nodes;
  // Best first, last-resort NICs at the end. If there are none, transports choose their own
  // interfaces.
  std::span<const RankNic> nics;
  Status nics_failure;                    // why the NICs that the user set are unavailable
  const topology::HostLinks& host_links;  // this rank's report on its host's links
  // Devices on this host that other ranks of the host cannot see.
  std::vector<topology::PciAddress> hidden_devices;
};

}  // namespace hetcomm
