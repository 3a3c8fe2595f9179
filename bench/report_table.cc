#include <algorithm>
#include <functional>

#include <fmt/core.h>

#include "bench/report.h"
#include "src/present/statistics.h"

namespace bench {
namespace {

struct Column {
  const char* title;
  std::function<std::string(const Row&)> text;
};

std::string count_text(int64_t value) { return value < 0 ? "-" : fmt::format("{}", value); }

Column time_column(const char* title, double Measurement::*member) {
  return {title, [member](const Row& row) { return number_text(row.measured.*member); }};
}

std::vector<Column> latency_columns() {
  return {time_column("t_min[usec]", &Measurement::min_us),
          time_column("t_max[usec]", &Measurement::max_us),
          time_column("t_typical[usec]", &Measurement::p50_us),
          {"t_avg[usec]", [](const Row& row) { return number_text(row.avg_us); }},
          time_column("t_stdev[usec]", &Measurement::stdev_us),
          time_column("99%[usec]", &Measurement::p99_us),
          time_column("99.9%[usec]", &Measurement::p999_us)};
}

std::vector<Column> rate_columns() {
  return {{"window", [](const Row& row) { return fmt::format("{}", row.measured.point.window); }},
          {"BW peak[MB/s]",
           [](const Row& row) {
             // min_us is the time of the fastest window per message of one sender. All senders
             // send at the same time.
             const double senders = static_cast<double>(row.measured.messages) /
                                    static_cast<double>(row.measured.iterations);
             return number_text(senders * static_cast<double>(row.measured.point.bytes) /
                                row.measured.min_us);
           }},
          {"BW average[MB/s]", [](const Row& row) { return number_text(row.bandwidth_mbps); }},
          {"MsgRate[Mpps]", [](const Row& row) { return number_text(row.messages_per_s * 1e-6); }},
          {"t_avg[usec]", [](const Row& row) { return number_text(row.avg_us); }},
          time_column("99%[usec]", &Measurement::p99_us)};
}

std::vector<Column> overlap_columns() {
  return {
      {"progress", [](const Row& row) { return row.progress.empty() ? "-" : row.progress; }},
      time_column("idle peer[usec]", &Measurement::idle_us),
      time_column("computing peer[usec]", &Measurement::p50_us),
      {"ratio",
       [](const Row& row) { return number_text(row.measured.p50_us / row.measured.idle_us); }},
      time_column("compute[usec]", &Measurement::compute_us),
      time_column("overall[usec]", &Measurement::overall_us),
      {"overlap(%)", [](const Row& row) { return number_text(overlap_percent(row.measured)); }}};
}

Column rate_column(const char* title, double Measurement::*time) {
  return {title, [time](const Row& row) {
            return number_text(static_cast<double>(row.measured.point.bytes) / row.measured.*time);
          }};
}

std::vector<Column> staging_columns() {
  return {
      {"window", [](const Row& row) { return fmt::format("{}", row.measured.point.window); }},
      {"chunk",
       [](const Row& row) {
         return row.staging_chunk == 0 ? "auto" : size_text(row.staging_chunk);
       }},
      {"depth",
       [](const Row& row) {
         return row.staging_depth == 0 ? "auto" : fmt::format("{}", row.staging_depth);
       }},
      rate_column("copy[MB/s]", &Measurement::copy_us),
      rate_column("wire[MB/s]", &Measurement::wire_us),
      {"both[MB/s]", [](const Row& row) { return number_text(row.bandwidth_mbps); }},
      {"forecast[MB/s]", [](const Row& row) { return number_text(staging_forecast_mbps(row)); }},
      {"of slower(%)", [](const Row& row) { return number_text(staging_percent(row)); }},
      {"of cores(%)", [](const Row& row) { return number_text(staging_processor_percent(row)); }}};
}

// Returns a bandwidth of nccl-tests in GB/s: "algbw", the size over the time, or with |bus|
// "busbw", the bytes that cross the busiest link over the time.
double collective_gbps(const Row& row, double us, bool bus) {
  const double factor = bus ? bus_factor(find_collective(row.test)->operation, row.ranks) : 1;
  return factor * static_cast<double>(row.measured.point.bytes) / us * 1e-3;
}

std::vector<Column> collective_columns(const CollectiveInfo& info) {
  std::vector<Column> columns = {
      {"count",
       [parts = info.has_parts](const Row& row) {
         const auto ranks = static_cast<uint64_t>(parts ? row.ranks : 1);
         return fmt::format("{}", row.measured.point.bytes / sizeof(float) / ranks);
       }},
      {"type", [](const Row&) { return "float"; }},
      {"redop", [sums = info.sums](const Row&) { return sums ? "sum" : "none"; }},
      {"root", [root = info.has_root](const Row&) { return root ? "0" : "-1"; }},
      {"time[usec]", [](const Row& row) { return number_text(row.avg_us); }},
      {"algbw[GB/s]",
       [](const Row& row) { return number_text(collective_gbps(row, row.avg_us, false)); }},
      {"busbw[GB/s]",
       [](const Row& row) { return number_text(collective_gbps(row, row.avg_us, true)); }},
      {"#wrong", [](const Row& row) { return count_text(row.measured.wrong); }}};
  if (!info.in_place) return columns;
  const auto in_place = [](const Row& row) { return row.measured.in_place_us; };
  columns.push_back(
      {"in place[usec]", [in_place](const Row& row) { return number_text(in_place(row)); }});
  columns.push_back({"algbw[GB/s]", [in_place](const Row& row) {
                       return number_text(collective_gbps(row, in_place(row), false));
                     }});
  columns.push_back({"busbw[GB/s]", [in_place](const Row& row) {
                       return number_text(collective_gbps(row, in_place(row), true));
                     }});
  columns.push_back({"#wrong", [](const Row& row) {
                       return count_text(static_cast<int64_t>(row.measured.in_place_wrong));
                     }});
  return columns;
}

std::vector<Column> columns_for(const std::vector<Row>& rows) {
  const std::string& test = rows.front().test;
  std::vector<Column> columns = {
      {"#bytes", [](const Row& row) { return fmt::format("{}", row.measured.point.bytes); }},
      {"#iterations", [](const Row& row) { return fmt::format("{}", row.measured.iterations); }}};
  const CollectiveInfo* collective = find_collective(test);
  const std::vector<Column> own = collective != nullptr ? collective_columns(*collective)
                                  : is_latency(test)    ? latency_columns()
                                  : test == "overlap"   ? overlap_columns()
                                  : is_staging(test)    ? staging_columns()
                                                        : rate_columns();
  columns.insert(columns.end(), own.begin(), own.end());
  if (collective != nullptr) return columns;
  columns.push_back({"transport", [](const Row& row) { return row.transport; }});
  columns.push_back({"path", [](const Row& row) { return row.path.empty() ? "-" : row.path; }});
  if (std::any_of(rows.begin(), rows.end(), [](const Row& r) { return r.measured.wrong >= 0; })) {
    columns.push_back({"#wrong", [](const Row& row) { return count_text(row.measured.wrong); }});
  }
  return columns;
}

std::string align(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths(lines.front().size());
  for (const std::vector<std::string>& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      text += i == 0 ? fmt::format("{:<{}}", line[i], widths[i])
                     : fmt::format("  {:>{}}", line[i], widths[i]);
    }
    text += '\n';
  }
  return text;
}

std::string render_group(const std::vector<Row>& rows) {
  const Row& first = rows.front();
  const std::string rails = first.rails == 0 ? "" : fmt::format(", at most {} rails", first.rails);
  const std::string algorithm = first.algorithm.empty() ? "" : ", " + first.algorithm;
  const std::string pin =
      (first.pin.empty() ? "" : fmt::format(", staged through {} memory", first.pin)) +
      (first.stream ? ", in the order of a stream" : "");
  std::string text =
      fmt::format("\n# {} {}: {}, {} memory, {} ranks{}{}{}\n", first.impl, first.test,
                  first.transport, first.memory, first.ranks, rails, algorithm, pin);
  const std::vector<Column> columns = columns_for(rows);
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : columns) lines[0].emplace_back(column.title);
  for (const Row& row : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const Column& column : columns) line.push_back(column.text(row));
  }
  return text + align(lines);
}

// --- ratios --------------------------------------------------------------------------------------

bool same_table(const Ratio& a, const Ratio& b) {
  return a.peer == b.peer && a.test == b.test && a.transport == b.transport &&
         a.progress == b.progress && a.placement == b.placement;
}

// The summary of a table of ratios.
struct Summary {
  double mean = kUnknown;
  const Ratio* worst = nullptr;
  int fewest_rounds = 0;
};

Summary summarize(const std::vector<Ratio>& ratios) {
  Summary summary{kUnknown, &ratios.front(), ratios.front().rounds};
  std::vector<double> medians;
  for (const Ratio& ratio : ratios) {
    medians.push_back(ratio.median);
    if (ratio.median < summary.worst->median) summary.worst = &ratio;
    summary.fewest_rounds = std::min(summary.fewest_rounds, ratio.rounds);
  }
  summary.mean = hetcomm::present::geometric_mean(medians);
  return summary;
}

std::string with_progress(const Ratio& ratio) {
  return ratio.progress.empty() ? ratio.transport
                                : ratio.transport + ", progress " + ratio.progress;
}

std::string render_ratio_table(const std::vector<Ratio>& ratios) {
  const Ratio& first = ratios.front();
  const char* unit = smaller_is_better(first.test) ? "usec" : "MB/s";
  std::string text = fmt::format("\n# {} over {}: hetcomm against {}; cores {}\n", first.test,
                                 with_progress(first), first.peer, first.placement);
  std::vector<std::vector<std::string>> lines = {
      {"#bytes", "window", fmt::format("hetcomm[{}]", unit),
       fmt::format("{}[{}]", first.peer, unit), "ratio", "smallest", "largest", "rounds"}};
  for (const Ratio& ratio : ratios) {
    lines.push_back({fmt::format("{}", ratio.point.bytes), fmt::format("{}", ratio.point.window),
                     number_text(ratio.ours), number_text(ratio.theirs), number_text(ratio.median),
                     number_text(ratio.smallest), number_text(ratio.largest),
                     fmt::format("{}", ratio.rounds)});
  }
  const Summary summary = summarize(ratios);
  return text + align(lines) +
         fmt::format("# geometric mean {}; worst {} at {}\n", number_text(summary.mean),
                     number_text(summary.worst->median), size_text(summary.worst->point.bytes));
}

std::string render_summary(const std::vector<std::vector<Ratio>>& tables) {
  std::vector<std::vector<std::string>> lines = {
      {"#test", "transport", "peer", "cores", "geometric mean", "worst", "at", "rounds"}};
  for (const std::vector<Ratio>& ratios : tables) {
    const Ratio& first = ratios.front();
    const Summary summary = summarize(ratios);
    lines.push_back({first.test, with_progress(first), first.peer, first.placement,
                     number_text(summary.mean), number_text(summary.worst->median),
                     size_text(summary.worst->point.bytes),
                     fmt::format("{}", summary.fewest_rounds)});
  }
  return "\n# summary; a ratio above 1: hetcomm is better\n" + align(lines);
}

}  // namespace

std::string render_ratios(const Report& report) {
  if (report.rounds == 0) return "";
  std::string text = fmt::format(
      "\n# comparison over {} rounds, interleaved; a ratio above 1: hetcomm is better\n",
      report.rounds);
  if (!report.placements.empty()) text += "# launches by placement of the cores:";
  for (const PlacementCount& count : report.placements) {
    text += fmt::format(" {} {} ({} usec)", count.launches, count.placement,
                        number_text(count.hand_over_us));
  }
  if (!report.placements.empty()) text += "; ratios are of one round and one placement\n";
  std::vector<std::vector<Ratio>> tables;
  for (const Ratio& ratio : report.ratios) {
    const auto table = std::find_if(tables.begin(), tables.end(), [&](const auto& candidate) {
      return same_table(candidate.front(), ratio);
    });
    if (table == tables.end()) {
      tables.push_back({ratio});
    } else {
      table->push_back(ratio);
    }
  }
  for (const std::vector<Ratio>& table : tables) text += render_ratio_table(table);
  return tables.empty() ? text + "# no round had both sides in one placement: use more rounds\n"
                        : text + render_summary(tables);
}

std::string render_table(const Report& report) {
  std::string text;
  for (const std::string& line : header_lines(report)) text += "# " + line + "\n";
  for (const std::vector<Row>& rows : group_rows(report.rows)) {
    // The tables of ratios already show the peers' figures.
    if (report.rounds == 0 || rows.front().impl == "hetcomm") text += render_group(rows);
  }
  return text + render_ratios(report);
}

}  // namespace bench
