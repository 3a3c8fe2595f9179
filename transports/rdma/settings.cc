#include "transports/rdma/settings.h"

#include <algorithm>
#include <bit>

#include "transports/rdma/variables.h"

namespace hetcomm::rdma {
namespace {

constexpr uint32_t kCredits = 32;
constexpr uint32_t kPayloadBytes = 8192;
constexpr uint64_t kMinFragment = 4096;
constexpr uint64_t kMaxFragment = 16u << 20;
constexpr uint64_t kFragmentsInFlight = 4;
constexpr uint64_t kChunkBytes = 1u << 20;
constexpr uint32_t kLatencyNs = 3'000;
constexpr uint64_t kBandwidth = 8'000'000'000;

constexpr uint8_t kLongestTimeout = 31;  // the hardware's maximum

// Returns the exponent n of the hardware's timeout: 4.096 us * 2^n.
uint8_t timeout_exponent(uint64_t duration_ns) {
  uint8_t exponent = 1;
  while (exponent < kLongestTimeout && (uint64_t{4096} << exponent) < duration_ns) ++exponent;
  return exponent;
}

// After a retransmission Soft-RoCE may behave arbitrarily (README.md, "Soft-RoCE"), so the time for
// all attempts is allotted to the first one.
void forbid_retries(ConnectionSettings& settings) {
  const unsigned longer = settings.timeout + std::bit_width(unsigned{settings.retries});
  settings.timeout = static_cast<uint8_t>(std::min<unsigned>(longer, kLongestTimeout));
  settings.retries = 0;
}

}  // namespace

Settings read_settings(const Config& config) {
  Settings settings;
  settings.connection.traffic_class =
      static_cast<uint8_t>(std::min<uint64_t>(config.number(variable::kRdmaTrafficClass), 255));
  settings.connection.timeout = timeout_exponent(config.number(variable::kRdmaTimeout));
  settings.connection.retries =
      static_cast<uint8_t>(std::min<uint64_t>(config.number(variable::kRdmaRetries), 7));
  settings.credits = kCredits;
  settings.slot_bytes = kPayloadBytes + 64;
  settings.fragment_bytes =
      std::clamp(config.number(variable::kRdmaSlice), kMinFragment, kMaxFragment);
  settings.cache_bytes = config.number(variable::kRdmaCacheBytes);
  settings.strict_keys = config.is_on(variable::kRdmaStrictKeys);
  settings.connections = static_cast<uint32_t>(
      std::clamp<uint64_t>(config.number(variable::kRdmaQueuePairs), 1, 1u << 20));
  Capabilities& capabilities = settings.capabilities;
  capabilities.put = true;
  capabilities.get = true;
  capabilities.target_sees_put = true;
  capabilities.regions = true;
  capabilities.waits_for_addresses = true;
  capabilities.device_memory = true;
  capabilities.max_exposed_extents = 1;
  capabilities.max_payload_bytes = kPayloadBytes;
  capabilities.eager_limit_bytes = config.number(variable::kRdmaEager);
  capabilities.chunk_bytes = kChunkBytes;
  capabilities.latency_ns = kLatencyNs;
  capabilities.bandwidth_bytes_per_s = kBandwidth;
  return settings;
}

void fit_to(const Nic& nic, Settings& settings) {
  if (nic.max_message_bytes > 0) {
    settings.fragment_bytes = std::min<uint64_t>(settings.fragment_bytes, nic.max_message_bytes);
  }
  settings.max_in_flight_bytes = kFragmentsInFlight * settings.fragment_bytes;
  if (nic.is_soft_roce()) forbid_retries(settings.connection);
}

bool by_cm(const Config& config) { return config.text(variable::kRdmaConnect) == "cm"; }

}  // namespace hetcomm::rdma
