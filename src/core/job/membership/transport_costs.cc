#include "src/core/job/membership/transport_costs.h"

#include <map>
#include <optional>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "src/present/json_nesting.h"

namespace hetcomm {
namespace {

constexpr int kMaxNesting = 16;

// The values taken from the rows of one transport.
struct Seen {
  std::optional<uint64_t> shortest;  // message size, in bytes, to which |latency_us| applies
  double latency_us = 0;
  double megabytes_per_s = 0;
};

bool is_number(const nlohmann::json& row, const char* name) {
  const auto found = row.find(name);
  return found != row.end() && found->is_number() && found->get<double>() > 0;
}

bool says(const nlohmann::json& row, const char* name, std::string_view wanted) {
  const auto found = row.find(name);
  return found != row.end() && found->is_string() && found->get<std::string>() == wanted;
}

// Returns whether |row| describes this library's messages between two ranks in host memory.
bool counts(const nlohmann::json& row) {
  const auto impl = row.find("impl");
  return row.is_object() && impl != row.end() && impl->is_string() &&
         impl->get<std::string>().starts_with("hetcomm") && says(row, "memory", "host") &&
         row.contains("bytes") && row["bytes"].is_number_unsigned() && row.contains("transport") &&
         row["transport"].is_string();
}

void note(const nlohmann::json& row, Seen& seen) {
  const auto bytes = row["bytes"].get<uint64_t>();
  if (says(row, "test", "latency") && is_number(row, "avg_us") &&
      (!seen.shortest || bytes < *seen.shortest)) {
    seen.shortest = bytes;
    seen.latency_us = row["avg_us"].get<double>();
  }
  if (says(row, "test", "bandwidth") && is_number(row, "bandwidth_MBps")) {
    seen.megabytes_per_s = std::max(seen.megabytes_per_s, row["bandwidth_MBps"].get<double>());
  }
}

}  // namespace

Result<TransportCosts> TransportCosts::parse(std::string_view json) {
  if (present::nests_deeper_than(kMaxNesting, json)) {
    return Status(
        Code::kInvalidArgument,
        fmt::format(
            "nests brackets more than {} deep: use what `hetcomm_bench --format json` prints",
            kMaxNesting));
  }
  const nlohmann::json document = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || !document.contains("rows") || !document["rows"].is_array()) {
    return Status(Code::kInvalidArgument, "is not what `hetcomm_bench --format json` prints");
  }
  std::map<std::string, Seen> by_kind;
  for (const nlohmann::json& row : document["rows"]) {
    if (counts(row)) note(row, by_kind[row["transport"].get<std::string>()]);
  }
  TransportCosts costs;
  for (const auto& [kind, seen] : by_kind) {
    if (!seen.shortest || seen.megabytes_per_s <= 0) continue;
    const double latency = std::min(seen.latency_us * 1e3, double{LinkCost::kMaxLatencyNs});
    const double rate = std::min(seen.megabytes_per_s * 1e6, double{LinkCost::kMaxBytesPerS});
    costs.set(kind, LinkCost::bounded(static_cast<uint64_t>(latency), static_cast<uint64_t>(rate)));
  }
  if (costs.entries_.empty()) {
    return Status(Code::kInvalidArgument,
                  "has no transport with both latency and bandwidth of host memory: make it by "
                  "`hetcomm_bench latency,bandwidth --format json`");
  }
  return costs;
}

const LinkCost* TransportCosts::find(std::string_view kind) const {
  for (const Entry& entry : entries_) {
    if (entry.kind == kind) return &entry.link;
  }
  return nullptr;
}

void TransportCosts::set(std::string_view kind, const LinkCost& link) {
  for (Entry& entry : entries_) {
    if (entry.kind != kind) continue;
    entry.link = link;
    return;
  }
  entries_.push_back({std::string(kind), link});
}

}  // namespace hetcomm
