// Configuration as this transport uses it: checked, clamped, and fitted to the port.
#pragma once

#include <cstdint>

#include "src/system/config.h"
#include "transports/rdma/nic.h"
#include "transports/rdma/queue_pair.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

struct Settings {
  ConnectionSettings connection;
  uint32_t credits = 0;              // receives for each peer
  uint32_t slot_bytes = 0;           // of each
  uint64_t fragment_bytes = 0;       // largest work request of a bulk
  uint64_t max_in_flight_bytes = 0;  // of bulks, on one connection
  uint64_t cache_bytes = 0;
  bool strict_keys = false;  // memory regions that peers have keys of are not kept
  uint32_t connections = 0;
  Capabilities capabilities;
};
Settings read_settings(const Config& config);
// Applies the limits of the port that was chosen.
void fit_to(const Nic& nic, Settings& settings);
// True: rdma_cm makes the connections.
bool by_cm(const Config& config);

}  // namespace hetcomm::rdma
