#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include <fmt/core.h>

namespace bench {
namespace {

auto key_of(const Row& row) {
  return std::tie(row.test, row.transport, row.memory, row.progress, row.impl, row.rails,
                  row.algorithm, row.pin, row.stream);
}

constexpr Titles kTitles[] = {
    {"latency", "Latency", "Latency, one way"},
    {"post_latency", "Post Latency", "Post behind a stream that is held back"},
    {"pointer_latency", "Pointer Latency", "Finding a plain pointer, 1000 times"},
    {"bandwidth", "Bandwidth", "Bandwidth"},
    {"bibandwidth", "Bi-Directional Bandwidth", "Bandwidth, both directions"},
    {"msgrate", "Multiple Pair Message Rate", "Message rate, all pairs"},
    {"overlap", "Overlap Latency", "Transfer to a computing receiver"},
    {"staging", "Staged Bandwidth", "Device memory, staged"},
    {"staged_allreduce", "Staged Allreduce", "Allreduce of device memory, staged"},
    {"staged_allgather", "Staged Allgather", "Allgather of device memory, staged"},
    {"put_latency", "One Sided Put Latency", "Put, polled in memory, one way"},
    {"put_bandwidth", "One Sided Put Bandwidth", "Put"},
    {"put_notify_latency", "One Sided Notified Put Latency", "Notified put, one way"},
    {"put_notify_bandwidth", "One Sided Notified Put Bandwidth", "Notified put"},
    {"get_latency", "One Sided Get Latency", "Get, whole operation"},
    {"get_bandwidth", "One Sided Get Bandwidth", "Get"},
    {"fetch_add_latency", "One Sided Fetch and Add Latency", "Fetch and add, whole operation"},
    {"allreduce", "Allreduce Latency", "Allreduce"},
    {"reduce_scatter", "Reduce Scatter Latency", "Reduce scatter"},
    {"allgather", "Allgather Latency", "Allgather"},
    {"alltoall", "All-to-All Latency", "All to all"},
    {"broadcast", "Broadcast Latency", "Broadcast"},
    {"reduce", "Reduce Latency", "Reduce"},
    {"barrier", "Barrier Latency", "Barrier"},
    {"fetch_add_rate", "One Sided Fetch and Add Rate", "Fetch and add, several at once"},
};

}  // namespace

const Titles& titles_of(const std::string& test) {
  return *std::find_if(std::begin(kTitles), std::end(kTitles) - 1,
                       [&](const Titles& titles) { return test == titles.test; });
}

std::vector<std::vector<Row>> group_rows(const std::vector<Row>& rows) {
  std::vector<std::vector<Row>> groups;
  for (const Row& row : rows) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const std::vector<Row>& g) {
      return key_of(g.front()) == key_of(row);
    });
    if (group == groups.end()) {
      groups.push_back({row});
    } else {
      group->push_back(row);
    }
  }
  return groups;
}

std::string size_text(uint64_t bytes) {
  constexpr uint64_t kKi = 1024;
  if (bytes >= kKi * kKi * kKi && bytes % (kKi * kKi * kKi) == 0) {
    return fmt::format("{}G", bytes / (kKi * kKi * kKi));
  }
  if (bytes >= kKi * kKi && bytes % (kKi * kKi) == 0)
    return fmt::format("{}M", bytes / (kKi * kKi));
  if (bytes >= kKi && bytes % kKi == 0) return fmt::format("{}K", bytes / kKi);
  return fmt::format("{}", bytes);
}

std::string number_text(double value) {
  if (std::isnan(value)) return "-";
  if (value == 0) return "0";
  const double magnitude = std::fabs(value);
  if (magnitude >= 1000) return fmt::format("{:.0f}", value);
  if (magnitude >= 100) return fmt::format("{:.1f}", value);
  return magnitude >= 1 ? fmt::format("{:.2f}", value) : fmt::format("{:.3f}", value);
}

std::vector<std::string> header_lines(const Report& report) {
  std::vector<std::string> lines = {
      fmt::format("hetcomm_bench {} ({})", report.version, report.build),
      fmt::format("host: {}", report.host), fmt::format("command: {}", report.command)};
  for (const PeerInfo& peer : report.peers) {
    lines.push_back(
        fmt::format("peer: {}: version {}, from {}", peer.name, peer.version, peer.origin));
  }
  lines.insert(lines.end(), report.notes.begin(), report.notes.end());
  lines.emplace_back(
      "latency is one way (round trip / 2), that of get and fetch_add the whole operation; MB/s "
      "are "
      "10^6 bytes per second");
  lines.emplace_back(
      "averages and bandwidth: total time over iterations, no clock inside the loop; other times: "
      "a pass of their own");
  return lines;
}

}  // namespace bench
