#include "transports/tcp/settings.h"

#include <algorithm>

#include "src/net/socket_options.h"
#include "src/net/variables.h"
#include "transports/tcp/variables.h"
#include "transports/tcp/wire.h"

namespace hetcomm::tcp {
namespace {

constexpr uint32_t kMinChunk = 512;
constexpr uint64_t kMaxSocketBuffer = 1u << 30;
constexpr uint32_t kLatencyNs = 10'000;
constexpr uint64_t kBandwidth = 4'000'000'000;

}  // namespace

Settings read_settings(const Config& config, bool tls) {
  Settings settings;
  const uint64_t streams = config.number(variable::kTcpStreams);
  settings.auto_streams = streams == 0;
  settings.streams = std::clamp<size_t>(streams, 1, kMaxBulkStreams);
  settings.chunk = static_cast<uint32_t>(
      std::clamp<uint64_t>(config.number(variable::kTcpChunk), kMinChunk, kMaxPutBytes));
  settings.socket_buffer =
      static_cast<int>(std::min(config.number(variable::kTcpSocketBuffer), kMaxSocketBuffer));
  settings.detection_ns = std::max(config.number(variable::kDetectionTime), kMinDetectionNs);
  Capabilities& capabilities = settings.capabilities;
  capabilities.put = true;
  capabilities.target_sees_put = true;
  capabilities.protected_in_transit = tls;
  capabilities.max_payload_bytes = kMaxMessageBytes;
  capabilities.eager_limit_bytes = config.number(variable::kTcpEager);
  capabilities.chunk_bytes = settings.chunk;
  capabilities.latency_ns = kLatencyNs;
  capabilities.bandwidth_bytes_per_s = kBandwidth;
  return settings;
}

}  // namespace hetcomm::tcp
