#include "bench/row.h"

#include <algorithm>
#include <cmath>

namespace bench {

Row make_row(const Work& work, const std::string& impl, const Measurement& measured) {
  Row row;
  row.test = work.workload.test;
  row.impl = impl;
  row.transport = work.transport;
  row.memory = memory_text(work);
  row.progress = work.progress;
  row.staging_chunk = work.staging_chunk;
  row.staging_depth = work.staging_depth;
  row.rails = work.rails;
  row.algorithm = work.algorithm;
  row.pin = work.pin;
  row.stream = work.stream;
  row.ranks = work.ranks;
  row.variant = work.variant;
  row.round = work.round;
  row.measured = measured;
  // A path such as "shm/eager" names the transport that carried the data, and how.
  const size_t slash = measured.path.find('/');
  if (!measured.path.empty()) row.transport = measured.path.substr(0, slash);
  if (slash != std::string::npos) row.path = measured.path.substr(slash + 1);
  const double messages = static_cast<double>(measured.messages);
  row.avg_us = measured.total_us / static_cast<double>(measured.iterations);
  row.bandwidth_mbps = messages * static_cast<double>(measured.point.bytes) / measured.total_us;
  row.messages_per_s = messages / measured.total_us * 1e6;
  return row;
}

double overlap_percent(const Measurement& measured) {
  const double exposed = measured.overall_us - measured.compute_us;
  return std::clamp(100 * (1 - exposed / measured.idle_us), 0.0, 100.0);
}

double staging_forecast_mbps(const Row& row) {
  if (row.test != "staging") return kUnknown;  // only messages have a forecast
  const Measurement& measured = row.measured;
  const double bytes = static_cast<double>(measured.point.bytes);
  const double chunk =
      row.staging_chunk > 0 ? static_cast<double>(row.staging_chunk) : measured.chunk_bytes;
  if (!(chunk > 0) || bytes == 0) return kUnknown;
  const double chunks = std::ceil(bytes / chunk);
  const double slower_us = std::max(measured.copy_us, measured.wire_us);
  const int copies = row.memory.find("host") == std::string::npos ? 2 : 1;
  // The first chunk passes through all stages in sequence. After it, the slowest stage completes
  // one chunk at a time.
  const double first_us = (copies * measured.copy_us + measured.wire_us) / chunks;
  const double all = chunks * measured.point.window;
  return bytes * measured.point.window / (first_us + (all - 1) * slower_us / chunks);
}

double staging_percent(const Row& row) {
  return 100 * std::max(row.measured.copy_us, row.measured.wire_us) / row.avg_us;
}

double staging_processor_percent(const Row& row) {
  constexpr double kProcessors = 2;
  return 100 * row.measured.processor_us / kProcessors / row.avg_us;
}

}  // namespace bench
