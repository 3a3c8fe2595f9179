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

struct Title {
  const char* test;
  const char* text;
};
constexpr Title kTitles[] = {
    {"latency", "Latency"},
    {"post_latency", "Post Latency"},
    {"pointer_latency", "Pointer Latency"},
    {"bandwidth", "Bandwidth"},
    {"bibandwidth", "Bi-Directional Bandwidth"},
    {"msgrate", "Multiple Pair Message Rate"},
    {"overlap", "Overlap Latency"},
    {"staging", "Staged Bandwidth"},
    {"staged_allreduce", "Staged Allreduce"},
    {"staged_allgather", "Staged Allgather"},
    {"put_latency", "One Sided Put Latency"},
    {"put_bandwidth", "One Sided Put Bandwidth"},
    {"put_notify_latency", "One Sided Notified Put Latency"},
    {"put_notify_bandwidth", "One Sided Notified Put Bandwidth"},
    {"get_latency", "One Sided Get Latency"},
    {"get_bandwidth", "One Sided Get Bandwidth"},
    {"fetch_add_latency", "One Sided Fetch and Add Latency"},
    {"allreduce", "Allreduce Latency"},
    {"reduce_scatter", "Reduce Scatter Latency"},
    {"allgather", "Allgather Latency"},
    {"alltoall", "All-to-All Latency"},
    {"broadcast", "Broadcast Latency"},
    {"reduce", "Reduce Latency"},
    {"barrier", "Barrier Latency"},
    {"fetch_add_rate", "One Sided Fetch and Add Rate"},
};

}  // namespace

const char* title_of(const std::string& test) {
  return std::find_if(std::begin(kTitles), std::end(kTitles) - 1,
                      [&](const Title& title) { return test == title.test; })
      ->text;
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
