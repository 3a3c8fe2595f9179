// Options of a simulated device: the text after its name in HETCOMM_DEVICES.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "src/base/status.h"

namespace hetcomm {

struct SimOptions {
  uint64_t bandwidth_bytes_per_s = 0;  // of each direction; 0: as fast as the copy runs
  uint64_t latency_ns = 0;             // of each copy
  uint64_t memory_bytes = uint64_t{4} << 30;
  std::string pci_address;  // the address that it reports; empty: none
  static constexpr uint64_t kNoNode = UINT64_MAX;
  uint64_t numa_node = kNoNode;  // the NUMA node that it reports
  uint64_t unified = 0;          // 1: it reports that any host memory suffices
};

// "bandwidth=10G:latency=2us:memory=1G:pci=0000:3b:00.0:node=1:unified=1", each at most once, in
// any order; "" is all defaults. Fails with INVALID_ARGUMENT and a text that names the option and,
// where it has one, its limit.
Result<SimOptions> parse_sim_options(std::string_view text);

}  // namespace hetcomm
