#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/core.h>

#include "bench/plot.h"

namespace bench {
namespace {

// Colours that most colour-blind readers can also distinguish.
struct NamedColour {
  const char* implementation;
  const char* colour;
};
constexpr NamedColour kColours[] = {
    {"hetcomm", "#c1272d"}, {"ucx", "#0072b2"},      {"openmpi", "#e69f00"},
    {"mpich", "#009e73"},   {"intelmpi", "#56b4e9"}, {"gloo", "#7a3e9d"},
    {"iperf3", "#8c564b"},  {"memcpy", "#444444"},   {"perftest", "#b0a000"},
};
constexpr const char* kOtherColours[] = {"#d65f9e", "#5f7f00", "#00798c", "#a05a2c"};
// Settings of the only implementation. The first is the implementation's own colour.
constexpr const char* kSettingColours[] = {"#0072b2", "#e69f00", "#009e73", "#7a3e9d",
                                           "#56b4e9", "#8c564b", "#444444", "#b0a000"};

// Returns "openmpi" for "openmpi-5.0.11/no-cma".
std::string implementation_of(const std::string& name) {
  const std::string base = name.substr(0, name.find('/'));
  for (size_t dash = base.find('-'); dash != std::string::npos; dash = base.find('-', dash + 1)) {
    const bool version = dash + 1 < base.size() && base[dash + 1] >= '0' && base[dash + 1] <= '9';
    if (version) return base.substr(0, dash);
  }
  return base;
}

std::string setting_of(const Row& row) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (const size_t slash = row.impl.find('/'); slash != std::string::npos) {
    if (row.impl.substr(slash + 1) != row.transport) add(row.impl.substr(slash + 1));
  }
  if (!row.progress.empty()) add("progress " + row.progress);
  if (row.impl == "hetcomm" && row.rails > 0) add(fmt::format("{} rails", row.rails));
  if (row.impl == "hetcomm" && !row.algorithm.empty()) add(row.algorithm);
  if (row.impl == "hetcomm" && !row.pin.empty()) add(row.pin);
  if (row.staging_chunk > 0) add("chunk " + size_text(row.staging_chunk));
  if (row.staging_depth > 0) add(fmt::format("depth {}", row.staging_depth));
  if (row.memory != "host") add(row.memory);
  return text;
}

std::string name_of(const Row& row) {
  const std::string setting = setting_of(row);
  // "openmpi-5.0.11/no-cma": the setting shows the rest.
  std::string name = row.impl.substr(0, row.impl.find('/'));
  if (row.impl.find(row.transport) == std::string::npos ||
      row.impl.find('/') != std::string::npos) {
    name += " " + row.transport;
  }
  return setting.empty() ? name : name + ", " + setting;
}

double median_of_messages(const Row& row) {
  const Measurement& measured = row.measured;
  if (smaller_is_better(row.test)) return measured.p50_us;
  // A message's share of the median window, over all senders.
  const double senders =
      static_cast<double>(measured.messages) / static_cast<double>(measured.iterations);
  const double per_us = senders / measured.p50_us;
  return is_rate(row.test) ? per_us : per_us * static_cast<double>(measured.point.bytes);
}

double average(const Row& row) {
  return is_rate(row.test) ? row.messages_per_s * 1e-6 : figure(row);
}

std::string unit_of(const std::string& test, int rounds) {
  const char* unit = smaller_is_better(test) ? "microseconds"
                     : is_rate(test)         ? "millions per second"
                                             : "MB/s (10^6 bytes)";
  if (rounds > 0) return fmt::format("{}, median of {} rounds", unit, rounds);
  return fmt::format("{}, median of {}", unit,
                     smaller_is_better(test) ? "single messages" : "windows");
}

// Makes a series of rows with one test, implementation, transport and setting.
Series make_series(const std::vector<const Row*>& rows, bool of_rounds) {
  const Row& first = *rows.front();
  Series series{
      name_of(first), implementation_of(first.impl), setting_of(first), first.transport, {}};
  const bool has_medians = std::all_of(rows.begin(), rows.end(), [](const Row* row) {
    return std::isfinite(median_of_messages(*row));
  });
  // The rows of a comparison are from the median round.
  const bool averages = of_rounds || !has_medians;
  if (!of_rounds && !has_medians) series.name += " (average)";
  for (const Row* row : rows) {
    const double value = averages ? average(*row) : median_of_messages(*row);
    // Zero has no logarithm.
    if (row->measured.point.bytes == 0 || !(value > 0) || !std::isfinite(value)) continue;
    series.spots.push_back({static_cast<double>(row->measured.point.bytes), value});
  }
  return series;
}

}  // namespace

std::vector<Panel> panels_of(const Report& report) {
  std::vector<Panel> panels;
  std::vector<std::string> tests;
  std::vector<std::pair<std::string, std::vector<const Row*>>> lines;  // by test and name
  for (const Row& row : report.rows) {
    const std::string key = row.test + " " + row.impl + " " + name_of(row);
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const auto& entry) { return entry.first == key; });
    if (line == lines.end()) line = lines.insert(lines.end(), {key, {}});
    line->second.push_back(&row);
  }
  for (const auto& [key, rows] : lines) {
    const std::string& test = rows.front()->test;
    auto at = std::find(tests.begin(), tests.end(), test);
    if (at == tests.end()) {
      at = tests.insert(tests.end(), test);
      panels.push_back({titles_of(test).plot, unit_of(test, report.rounds), {}});
    }
    Series series = make_series(rows, report.rounds > 0);
    if (!series.spots.empty()) {
      panels[static_cast<size_t>(at - tests.begin())].series.push_back(std::move(series));
    }
  }
  std::erase_if(panels, [](const Panel& panel) { return panel.series.empty(); });
  return panels;
}

std::string colour_of(const Series& series, const std::vector<Panel>& panels) {
  std::vector<std::string> settings;
  std::vector<std::string> others;
  bool alone = true;
  const auto note = [](std::vector<std::string>* list, const std::string& word) {
    if (std::find(list->begin(), list->end(), word) == list->end()) list->push_back(word);
  };
  const auto named = [](const std::string& implementation) {
    return std::find_if(std::begin(kColours), std::end(kColours), [&](const NamedColour& entry) {
      return implementation == entry.implementation;
    });
  };
  for (const Panel& panel : panels) {
    for (const Series& each : panel.series) {
      alone = alone && each.implementation == series.implementation;
      note(&settings, each.setting);
      if (named(each.implementation) == std::end(kColours)) note(&others, each.implementation);
    }
  }
  const auto index = [](const std::vector<std::string>& list, const std::string& word) {
    return static_cast<size_t>(std::find(list.begin(), list.end(), word) - list.begin());
  };
  const size_t setting = index(settings, series.setting);
  if (alone && setting > 0) return kSettingColours[(setting - 1) % std::size(kSettingColours)];
  if (const auto* const known = named(series.implementation); known != std::end(kColours)) {
    return known->colour;
  }
  return kOtherColours[index(others, series.implementation) % std::size(kOtherColours)];
}

}  // namespace bench
