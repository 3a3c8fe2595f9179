#include "bench/traffic.h"

#include <algorithm>
#include <cstring>

#include <fmt/core.h>

namespace bench {
namespace {

constexpr size_t kMaxTransports = 8;

}  // namespace

uint64_t Traffic::direct_operations() const {
  uint64_t count = 0;
  for (const hetcomm_counters_t& entry : counters()) count += entry.direct;
  return count;
}

std::vector<hetcomm_counters_t> Traffic::counters() const {
  std::vector<hetcomm_counters_t> entries(kMaxTransports,
                                          {.struct_size = sizeof(hetcomm_counters_t)});
  size_t count = 0;
  if (session_.ranks() < 2) return {};
  tools::require(hetcomm_communicator_counters(communicator_, session_.rank() == 0 ? 1 : 0,
                                               entries.size(), entries.data(), &count),
                 "reading the counters");
  entries.resize(std::min(count, entries.size()));
  return entries;
}

hetcomm_counters_t Traffic::since_marked(const hetcomm_counters_t& now) const {
  hetcomm_counters_t since = now;
  for (const hetcomm_counters_t& before : marked_) {
    if (std::strcmp(before.transport, now.transport) != 0) continue;
    since.messages_received -= before.messages_received;
    since.bytes_sent -= before.bytes_sent;
    since.eager_sent -= before.eager_sent;
    since.rendezvous_sent -= before.rendezvous_sent;
    since.bulk_by_get -= before.bulk_by_get;
    since.puts -= before.puts;
    since.gets -= before.gets;
    since.atomics -= before.atomics;
    since.direct -= before.direct;
    since.bytes_received -= before.bytes_received;
    since.staged_chunks -= before.staged_chunks;
    since.device_bytes_direct -= before.device_bytes_direct;
    since.device_bytes_staged -= before.device_bytes_staged;
    since.mapped_chunks -= before.mapped_chunks;
  }
  return since;
}

double Traffic::staged_chunk_bytes() const {
  uint64_t bytes = 0;
  uint64_t chunks = 0;
  for (const hetcomm_counters_t& now : counters()) {
    const hetcomm_counters_t since = since_marked(now);
    bytes += session_.rank() == 0 ? since.bytes_sent : since.bytes_received;
    chunks += since.staged_chunks;
  }
  return chunks == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(chunks);
}

std::string Traffic::path(bool one_sided) const {
  std::string text;
  uint64_t most = 0;
  for (const hetcomm_counters_t& now : counters()) {
    const hetcomm_counters_t since = since_marked(now);
    const uint64_t operations = since.puts + since.gets + since.atomics;
    const uint64_t work = one_sided ? operations : since.bytes_sent + 1;
    if (work <= most) continue;
    most = work;
    const char* mixed = "";
    const char* how = "eager";
    if (one_sided) {
      how = since.direct > 0 ? "direct" : "message";
      if (since.direct > 0 && since.direct < operations) mixed = "message+";
    } else if (since.rendezvous_sent > 0) {
      how = since.mapped_chunks > 0 ? "map" : since.bulk_by_get > 0 ? "get" : "put";
      // The loops' words are always eager, up to one per message. The path counts as mixed only if
      // there are many more eager messages.
      if (since.rendezvous_sent * 8 < since.eager_sent) mixed = "eager+";
    } else if (since.bulk_by_get * 2 > since.messages_received) {
      how = "pull";
    }
    // Appends how device memory was accessed. The path of one-sided operations already says
    // "direct".
    const char* device = since.device_bytes_staged > 0                 ? "+staged"
                         : since.device_bytes_direct > 0 && !one_sided ? "+direct"
                                                                       : "";
    text = fmt::format("{}/{}{}{}", now.transport, mixed, how, device);
  }
  return text;
}

}  // namespace bench
