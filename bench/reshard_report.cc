// Formats resharding rows as a table and JSON.
#include <algorithm>
#include <map>
#include <utility>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include "bench/reshard.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

std::string case_of(const ReshardRow& row) {
  return row.scenario.empty() ? row.layouts : row.scenario + ", " + row.layouts;
}

// Returns the smallest median in case |name| among the strategies that auto may choose, or 0 if
// there is none.
double best_us(const std::vector<ReshardRow>& rows, const std::string& name) {
  double best = 0;
  for (const ReshardRow& row : rows) {
    if (case_of(row) != name || !row.refused.empty() || row.strategy == "auto" ||
        !row.barred.empty()) {
      continue;
    }
    if (best == 0 || row.median_us < best) best = row.median_us;
  }
  return best;
}

std::vector<std::string> cases_of(const std::vector<ReshardRow>& rows) {
  std::vector<std::string> cases;
  for (const ReshardRow& row : rows) {
    const std::string name = case_of(row);
    if (std::find(cases.begin(), cases.end(), name) == cases.end()) cases.push_back(name);
  }
  return cases;
}

}  // namespace

std::string reshard_table(const std::vector<ReshardRow>& rows) {
  std::string text =
      "# Times in us until the last rank is done: median, quartiles, and forecast over median\n"
      "# best: the median over that of the best strategy that auto may choose; GB/s: bytes of the "
      "tensor\n"
      "# *: auto may not choose it: it sends more than one copy between clusters\n";
  for (const std::string& name : cases_of(rows)) {
    text += fmt::format("{}\n  {:<20} {:>11} {:>11} {:>11} {:>9} {:>8} {:>8}\n", name, "strategy",
                        "median", "low", "high", "forecast", "best", "GB/s");
    const double best = best_us(rows, name);
    for (const ReshardRow& row : rows) {
      if (case_of(row) != name) continue;
      const std::string strategy = row.chosen.empty() || row.chosen == row.strategy
                                       ? row.strategy
                                       : fmt::format("auto: {}", row.chosen);
      if (!row.refused.empty()) {
        text += fmt::format("  {:<20} {}\n", strategy, row.refused);
        continue;
      }
      text += fmt::format(
          "{}{:<20} {:>11.1f} {:>11.1f} {:>11.1f} {:>9.2f} {:>8.2f} {:>8.3f}\n",
          row.barred.empty() ? "  " : "* ", strategy, row.median_us, row.low_us, row.high_us,
          row.median_us > 0 ? row.forecast_us / row.median_us : 0,
          best > 0 ? row.median_us / best : 0,
          row.median_us > 0 ? static_cast<double>(row.bytes) * 1e-3 / row.median_us : 0);
    }
  }
  return text;
}

std::string reshard_json(const std::vector<ReshardRow>& rows) {
  Json list = Json::array();
  for (const ReshardRow& row : rows) {
    Json json = {{"test", "reshard"}};
    if (!row.scenario.empty()) json["scenario"] = row.scenario;
    json["layouts"] = row.layouts;
    json["strategy"] = row.strategy;
    if (!row.memory.empty()) json["memory"] = row.memory;
    json["bytes"] = row.bytes;
    if (!row.refused.empty()) {
      json["refused"] = row.refused;
    } else {
      json["plan"] = row.chosen;
      if (!row.barred.empty()) json["barred"] = row.barred;
      json["forecast_us"] = row.forecast_us;
      json["runs"] = row.runs;
      json["fastest_us"] = row.fastest_us;
      json["low_us"] = row.low_us;
      json["median_us"] = row.median_us;
      json["high_us"] = row.high_us;
      json["slowest_us"] = row.slowest_us;
      json["times_us"] = row.times_us;
    }
    list.push_back(std::move(json));
  }
  return list.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bench
