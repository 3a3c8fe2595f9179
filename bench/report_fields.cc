// Renders reports as CSV and JSON. Both take the names of their fields from one list. CSV contains
// numbers as printed in the table, and JSON contains them as measured.
#include <cmath>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "bench/report.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

// Returns null if |value| was not measured, since JSON has neither NaN nor infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json word(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json row_object(const Row& row) {
  const Measurement& measured = row.measured;
  Json object;
  object["test"] = row.test;
  object["impl"] = row.impl;
  object["transport"] = row.transport;
  object["path"] = row.path;
  object["memory"] = row.memory;
  object["progress"] = word(row.progress);
  object["ranks"] = row.ranks;
  object["rails"] = row.rails == 0 ? Json(nullptr) : Json(row.rails);
  object["algorithm"] = word(row.algorithm);
  object["staging_memory"] = word(row.pin);
  object["stream"] = row.stream;
  object["window"] = measured.point.window;
  object["bytes"] = measured.point.bytes;
  object["iterations"] = measured.iterations;
  object["min_us"] = number(measured.min_us);
  object["p50_us"] = number(measured.p50_us);
  object["avg_us"] = number(row.avg_us);
  object["p99_us"] = number(measured.p99_us);
  object["p999_us"] = number(measured.p999_us);
  object["max_us"] = number(measured.max_us);
  object["stdev_us"] = number(measured.stdev_us);
  object["bandwidth_MBps"] = number(row.bandwidth_mbps);
  object["messages_per_s"] = number(row.messages_per_s);
  object["idle_us"] = number(measured.idle_us);
  object["compute_us"] = number(measured.compute_us);
  object["overall_us"] = number(measured.overall_us);
  object["chunk"] = row.staging_chunk == 0 ? Json(nullptr) : Json(row.staging_chunk);
  object["depth"] = row.staging_depth == 0 ? Json(nullptr) : Json(row.staging_depth);
  object["chunk_bytes"] = number(measured.chunk_bytes);
  object["copy_us"] = number(measured.copy_us);
  object["wire_us"] = number(measured.wire_us);
  object["forecast_MBps"] = number(staging_forecast_mbps(row));
  object["of_slower_percent"] = number(staging_percent(row));
  object["processor_us"] = number(measured.processor_us);
  object["of_cores_percent"] = number(staging_processor_percent(row));
  object["in_place_us"] = number(measured.in_place_us);
  object["in_place_wrong"] = number(measured.in_place_wrong);
  object["wrong"] = measured.wrong < 0 ? Json(nullptr) : Json(measured.wrong);
  return object;
}

Json ratio_object(const Ratio& ratio) {
  Json object;
  object["peer"] = ratio.peer;
  object["test"] = ratio.test;
  object["transport"] = ratio.transport;
  object["progress"] = word(ratio.progress);
  object["placement"] = ratio.placement;
  object["window"] = ratio.point.window;
  object["bytes"] = ratio.point.bytes;
  object["rounds"] = ratio.rounds;
  object["hetcomm"] = number(ratio.ours);
  object["peer_value"] = number(ratio.theirs);
  object["ratio"] = number(ratio.median);
  object["smallest"] = number(ratio.smallest);
  object["largest"] = number(ratio.largest);
  return object;
}

Json comparison_object(const Report& report) {
  Json comparison;
  comparison["rounds"] = report.rounds;
  comparison["placements"] = Json::array();
  for (const PlacementCount& count : report.placements) {
    comparison["placements"].push_back({{"placement", count.placement},
                                        {"launches", count.launches},
                                        {"hand_over_us", number(count.hand_over_us)}});
  }
  comparison["ratios"] = Json::array();
  for (const Ratio& ratio : report.ratios) comparison["ratios"].push_back(ratio_object(ratio));
  return comparison;
}

// Returns |value| as a CSV field. No value contains a quote or a line break.
std::string field_text(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_number_float()) return number_text(value.get<double>());
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  return text.find(',') == std::string::npos ? text : "\"" + text + "\"";
}

}  // namespace

std::string render_csv(const Report& report) {
  std::string text;
  const Json names = row_object(Row{});
  for (const auto& [name, value] : names.items()) text += text.empty() ? name : "," + name;
  text += '\n';
  for (const Row& row : report.rows) {
    std::string line;
    const Json object = row_object(row);
    for (const auto& [name, value] : object.items()) {
      if (name != "test") line += ',';
      line += field_text(value);
    }
    text += line + '\n';
  }
  return text;
}

std::string render_json(const Report& report) {
  Json meta;
  meta["version"] = report.version;
  meta["build"] = report.build;
  meta["host"] = report.host;
  meta["command"] = report.command;
  meta["notes"] = report.notes;
  meta["peers"] = Json::array();
  for (const PeerInfo& peer : report.peers) {
    meta["peers"].push_back(
        {{"name", peer.name}, {"version", peer.version}, {"origin", peer.origin}});
  }
  if (report.rounds > 0) meta["comparison"] = comparison_object(report);
  Json document;
  document["meta"] = std::move(meta);
  document["rows"] = Json::array();
  for (const Row& row : report.rows) document["rows"].push_back(row_object(row));
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bench
