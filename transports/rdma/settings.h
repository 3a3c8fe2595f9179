// Settings is this transport's configuration: checked, clamped, and fitted to the port.
#pragma once

#include <cstdint>

#include "src/system/config.h"
#include "transports/rdma/nic.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

// The part of the configuration that queue pairs use.
struct ConnectionSettings {
  uint8_t traffic_class = 0;
  uint8_t timeout = 14;  // exponent: the device waits 4.096 us * 2^timeout
  uint8_t retries = 7;
};

struct Settings {
  ConnectionSettings connection;
  uint32_t credits = 0;              // receives per peer
  uint32_t slot_bytes = 0;           // size of each receive
  uint64_t fragment_bytes = 0;       // largest work request of a bulk
  uint64_t max_in_flight_bytes = 0;  // limit for bulks on one connection
  uint64_t cache_bytes = 0;
  bool strict_keys = false;  // do not cache memory regions whose keys peers have
  uint32_t connections = 0;
  Capabilities capabilities;
};
Settings read_settings(const Config& config);
// Applies the limits of the chosen port to |settings|.
void fit_to(const Nic& nic, Settings& settings);
// Returns whether rdma_cm establishes the connections.
bool by_cm(const Config& config);

}  // namespace hetcomm::rdma
