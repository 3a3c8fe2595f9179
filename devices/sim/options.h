// Parses the options of a simulated device, the text after its name in HETCOMM_DEVICES.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace hetcomm {

struct SimOptions {
  // Bandwidth of each direction between host and device. 0: as fast as the CPU copies.
  uint64_t bandwidth_bytes_per_s = 0;
  uint64_t latency_ns = 0;  // per copy
  uint64_t memory_bytes = uint64_t{4} << 30;
  std::string pci_address;  // reported PCI address; empty: none
  static constexpr uint64_t kNoNode = UINT64_MAX;
  uint64_t numa_node = kNoNode;  // reported NUMA node
  uint64_t unified = 0;          // 1: reports that any host memory suffices
};

// Parses "bandwidth=10G:latency=2us:memory=1G:pci=0000:3b:00.0:node=1:unified=1", each at most
// once, in any order; "" gives all defaults. Fails with INVALID_ARGUMENT and a text that names the
// option and its limit, if any.
Result<SimOptions> parse_sim_options(std::string_view text);

}  // namespace hetcomm
