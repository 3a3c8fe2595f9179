#include "bench/row.h"

#include <algorithm>

namespace bench {

Row make_row(const Work& work, const std::string& impl, const Measurement& measured) {
  Row row;
  row.test = work.plan.test;
  row.impl = impl;
  row.transport = work.transport;
  row.memory = memory_text(work);
  row.progress = work.progress;
  row.ranks = work.ranks;
  row.measured = measured;
  // "shm/eager": the transport that was used in the end, and how.
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

}  // namespace bench
