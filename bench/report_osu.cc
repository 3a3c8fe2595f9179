#include <algorithm>

#include <fmt/core.h>

#include "bench/report.h"

namespace bench {
namespace {

bool was_checked(const std::vector<Row>& rows) {
  return std::any_of(rows.begin(), rows.end(),
                     [](const Row& row) { return row.measured.wrong >= 0; });
}

std::string columns_of(const std::string& test) {
  if (is_latency(test)) return fmt::format("{:<10}{:>18}", "# Size", "Latency (us)");
  if (test == "overlap") {
    return fmt::format("{:<10}{:>15}{:>15}{:>17}{:>13}", "# Size", "Overall(us)", "Compute(us)",
                       "Pure Comm.(us)", "Overlap(%)");
  }
  if (is_rate(test)) return fmt::format("{:<10}{:>18}{:>18}", "# Size", "MB/s", "Messages/s");
  return fmt::format("{:<10}{:>18}", "# Size", "Bandwidth (MB/s)");
}

std::string figures_of(const Row& row) {
  const Measurement& measured = row.measured;
  if (is_latency(row.test)) return fmt::format("{:<10}{:>18.2f}", measured.point.bytes, row.avg_us);
  if (row.test == "overlap") {
    return fmt::format("{:<10}{:>15.2f}{:>15.2f}{:>17.2f}{:>13.2f}", measured.point.bytes,
                       measured.overall_us, measured.compute_us, measured.idle_us,
                       overlap_percent(measured));
  }
  if (is_rate(row.test)) {
    return fmt::format("{:<10}{:>18.2f}{:>18.2f}", measured.point.bytes, row.bandwidth_mbps,
                       row.messages_per_s);
  }
  return fmt::format("{:<10}{:>18.2f}", measured.point.bytes, row.bandwidth_mbps);
}

}  // namespace

std::string render_osu(const Report& report) {
  std::string text;
  for (const std::string& line : header_lines(report)) text += "# " + line + "\n";
  for (const std::vector<Row>& rows : group_rows(report.rows)) {
    const Row& first = rows.front();
    const bool checked = was_checked(rows);
    text += fmt::format("\n# {} {} Test: {}, {} memory{}\n", first.impl, title_of(first.test),
                        first.transport, first.memory,
                        first.progress.empty() ? "" : ", progress " + first.progress);
    text += columns_of(first.test) + (checked ? "     Validation" : "") + "\n";
    for (const Row& row : rows) {
      text += figures_of(row);
      if (checked) text += row.measured.wrong == 0 ? "           Pass" : "           Fail";
      text += '\n';
    }
  }
  return text + render_ratios(report);
}

}  // namespace bench
