#include "tools/info/print.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

namespace hetcomm_info {
namespace {

constexpr size_t kCellWidth = 24;
constexpr size_t kGap = 2;
// The last column is never narrower, even on a small terminal.
constexpr size_t kMinLastColumn = 20;

using Rows = std::vector<std::vector<std::string>>;
using Json = nlohmann::ordered_json;

// Returns |value|, or "-" if it is empty, since an empty cell would make a column look shifted.
std::string shown(const std::string& value) { return value.empty() ? "-" : value; }

Rows variable_rows(const Report& report) {
  Rows rows = {{"NAME", "DEFAULT", "VALUE", "MEANING"}};
  for (const VariableRow& row : report.variables) {
    rows.push_back({row.name, shown(row.default_value), shown(row.value), row.meaning});
  }
  return rows;
}

Rows device_rows(const Report& report) {
  Rows rows = {{"INDEX", "KIND", "CPU ACCESS", "PCI ADDRESS", "NUMA NODE", "NAME"}};
  for (const DeviceRow& row : report.devices) {
    rows.push_back({std::to_string(row.index), row.kind, row.host_accessible ? "yes" : "no",
                    shown(row.pci_address),
                    row.numa_node >= 0 ? std::to_string(row.numa_node) : "-", row.name});
  }
  return rows;
}

Rows transport_rows(const Report& report) {
  Rows rows = {{"NAME", "USABLE", "WHAT WAS FOUND"}};
  for (const TransportRow& row : report.transports) {
    // The reason of an error begins with the transport's name, which the row already shows.
    std::string_view reason = row.reason;
    if (reason.starts_with(row.name + ": ")) reason.remove_prefix(row.name.size() + 2);
    rows.push_back({row.name, row.usable ? "yes" : "no", std::string(reason)});
  }
  return rows;
}

std::string settings_text(const Report& report, size_t width) {
  Rows rows = {{"NAME", "DEFAULT", "VALUE"}};
  for (const VariableRow& row : report.variables) {
    if (row.value == row.default_value) continue;
    rows.push_back({row.name, shown(row.default_value), shown(row.value)});
  }
  return rows.size() == 1 ? std::string(kGap, ' ') + "none\n" : table(rows, width);
}

std::string library_text(const Report& report, size_t width) {
  const std::string build =
      fmt::format("hetcomm {}, ABI {}; {}", report.version, report.abi_version, report.build);
  std::string text;
  for (const std::string& line : wrap(build, width - kGap)) {
    text += std::string(kGap, ' ') + line + "\n";
  }
  return text;
}

std::vector<size_t> column_widths(const Rows& rows, size_t width) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  size_t used = kGap;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    // The first column names the row and is not wrapped.
    if (i > 0) widths[i] = std::min(widths[i], kCellWidth);
    used += widths[i] + kGap;
  }
  widths.back() = width > used + kMinLastColumn ? width - used : kMinLastColumn;
  return widths;
}

std::string table_row(const std::vector<std::string>& row, const std::vector<size_t>& widths) {
  std::vector<std::vector<std::string>> cells;
  size_t height = 1;
  for (size_t i = 0; i < row.size(); ++i) {
    cells.push_back(wrap(row[i], widths[i]));
    height = std::max(height, cells.back().size());
  }
  std::string text;
  for (size_t line = 0; line < height; ++line) {
    std::string columns(kGap, ' ');
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string_view cell = line < cells[i].size() ? cells[i][line] : std::string_view();
      columns += fmt::format("{:<{}}", cell, widths[i] + kGap);
    }
    columns.erase(columns.find_last_not_of(' ') + 1);
    text += columns + "\n";
  }
  return text;
}

Json variables_json(const Report& report) {
  auto list = Json::array();
  for (const VariableRow& row : report.variables) {
    list.push_back({{"name", row.name},
                    {"default", row.default_value},
                    {"value", row.value},
                    {"meaning", row.meaning}});
  }
  return list;
}

Json devices_json(const Report& report) {
  auto list = Json::array();
  for (const DeviceRow& row : report.devices) {
    list.push_back({{"index", row.index},
                    {"kind", row.kind},
                    {"name", row.name},
                    {"host_accessible", row.host_accessible},
                    {"pci_address", row.pci_address},
                    {"numa_node", row.numa_node}});
  }
  return list;
}

Json transports_json(const Report& report) {
  auto list = Json::array();
  for (const TransportRow& row : report.transports) {
    list.push_back({{"name", row.name}, {"usable", row.usable}, {"reason", row.reason}});
  }
  return list;
}

}  // namespace

size_t output_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 60) return size.ws_col;
  return 100;
}

std::vector<std::string> wrap(std::string_view text, size_t width) {
  std::vector<std::string> lines;
  while (text.size() > width) {
    size_t end = text.rfind(' ', width);
    if (end == std::string_view::npos || end == 0) end = width;
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  lines.emplace_back(text);
  return lines;
}

std::string table(const Rows& rows, size_t width) {
  const std::vector<size_t> widths = column_widths(rows, width);
  std::string text;
  for (const auto& row : rows) text += table_row(row, widths);
  return text;
}

std::string as_text(const Report& report, const Sections& sections, size_t width) {
  std::string text;
  const bool all = sections.all();
  const auto section = [&](bool wanted, std::string_view title, const std::string& body) {
    if (!wanted) return;
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", title, body);
  };
  section(all || sections.transports, "transports", table(transport_rows(report), width));
  section(all || sections.devices, "devices", table(device_rows(report), width));
  section(sections.variables, "variables", table(variable_rows(report), width));
  section(all, "variables that are not at their default", settings_text(report, width));
  section(all, "library", library_text(report, width));
  if (all) {
    text +=
        "\nmore: hetcomm_info --variables (every variable), explain (the path between two ranks), "
        "--help\n";
  }
  return text;
}

std::string as_json(const Report& report, const Sections& sections) {
  Json json;
  const bool all = sections.all();
  json["version"] = report.version;
  json["abi_version"] = report.abi_version;
  json["build"] = report.build;
  if (all || sections.variables) json["variables"] = variables_json(report);
  if (all || sections.devices) json["devices"] = devices_json(report);
  if (all || sections.transports) json["transports"] = transports_json(report);
  // The environment may contain any bytes, but JSON may not.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hetcomm_info
