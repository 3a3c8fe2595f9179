#include "reshard/move_plan_draw.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/present/svg_text.h"

namespace hetcomm::reshard {
namespace {

using present::escaped;

// The elements that one rank sends another in a hop.
struct Flow {
  uint64_t elements = 0;
  std::vector<const Move*> moves;
};
using Flows = std::map<std::pair<int, int>, Flow>;

Flows flows_of(const MovePlan& plan, size_t hop) {
  Flows flows;
  for (const Move& move : plan.hops[hop].moves) {
    Flow& flow =
        flows[{plan.from(hop).parts[move.from].rank, plan.hops[hop].to.parts[move.to].rank}];
    flow.elements += move.box.elements();
    flow.moves.push_back(&move);
  }
  return flows;
}

std::string bytes_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string name_of(const MovePlan& plan, size_t layout) {
  if (layout == 0) return "source";
  return layout == plan.hops.size() ? "destination" : fmt::format("stage {}", layout);
}

// --- picture ---------------------------------------------------------------------------------

constexpr size_t kMaxRanks = 128;
constexpr int kMargin = 24;
constexpr int kTop = 76;
constexpr int kRow = 22;
constexpr int kColumn = 260;
constexpr int kBoxWidth = 64;
constexpr int kBoxHeight = 16;

class Picture {
 public:
  Picture(const MovePlan& plan, uint64_t element_bytes)
      : plan_(plan), element_bytes_(element_bytes) {
    for (size_t i = 0; i <= plan.hops.size(); ++i) {
      std::set<int> ranks;
      for (const Part& part : layout(i).parts) ranks.insert(part.rank);
      std::map<int, int>& rows = rows_.emplace_back();
      for (const int rank : ranks) {
        if (rows.size() == kMaxRanks) break;
        rows.emplace(rank, static_cast<int>(rows.size()));
      }
      rows_left_out_.push_back(ranks.size() - rows.size());
      most_rows_ = std::max(most_rows_, rows.size() + (rows_left_out_.back() > 0 ? 1 : 0));
    }
  }

  std::string draw() {
    const int width = 2 * kMargin + kBoxWidth + kColumn * static_cast<int>(plan_.hops.size());
    const int height = kTop + kRow * static_cast<int>(most_rows_) + kMargin;
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" )"
        R"(viewBox="0 0 {0} {1}" font-family="sans-serif" font-size="11">)",
        width, height);
    add("<title>plan of strategy {}</title>", escaped(plan_.strategy));
    add(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
    add(R"(<text x="{}" y="24" font-size="15" font-weight="bold">{}: [{}], {}</text>)", kMargin,
        escaped(plan_.strategy), fmt::join(plan_.source.shape, ", "),
        bytes_text(plan_.source.whole().elements() * element_bytes_));
    for (size_t i = 0; i < plan_.hops.size(); ++i) draw_messages(i);
    for (size_t i = 0; i <= plan_.hops.size(); ++i) draw_ranks(i);
    return text_ + "</svg>\n";
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
  }

  const Layout& layout(size_t index) const {
    return index == 0 ? plan_.source : plan_.hops[index - 1].to;
  }
  int left(size_t column) const { return kMargin + kColumn * static_cast<int>(column); }
  int middle(size_t column, int rank) const {
    return kTop + kRow * rows_[column].at(rank) + kBoxHeight / 2;
  }

  void draw_messages(size_t hop) {
    const Flows flows = flows_of(plan_, hop);
    uint64_t most = 1;
    uint64_t sum = 0;
    size_t count = 0;
    for (const auto& [ends, flow] : flows) {
      if (ends.first == ends.second) continue;
      most = std::max(most, flow.elements);
      sum += flow.elements;
      ++count;
    }
    add(R"(<text x="{}" y="46" fill="#555">{} messages, {}</text>)", left(hop) + kBoxWidth + 12,
        count, bytes_text(sum * element_bytes_));
    for (const auto& [ends, flow] : flows) {
      if (rows_[hop].count(ends.first) == 0 || rows_[hop + 1].count(ends.second) == 0) continue;
      const bool is_local = ends.first == ends.second;
      const double share = static_cast<double>(flow.elements) / static_cast<double>(most);
      add(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" stroke="{}" stroke-width="{:.1f}" )"
          R"(stroke-opacity="0.6"><title>rank {} to rank {}: {}</title></line>)",
          left(hop) + kBoxWidth, middle(hop, ends.first), left(hop + 1),
          middle(hop + 1, ends.second), is_local ? "#999999" : "#1d64a8",
          is_local ? 1.0 : 1 + 5 * share, ends.first, ends.second,
          bytes_text(flow.elements * element_bytes_));
    }
  }

  void draw_ranks(size_t column) {
    add(R"(<text x="{}" y="66" font-weight="bold">{}</text>)", left(column),
        name_of(plan_, column));
    std::map<int, std::vector<std::string>> held;
    for (const Part& part : layout(column).parts) held[part.rank].push_back(to_text(part.box));
    for (const auto& [rank, row] : rows_[column]) {
      const int y = kTop + kRow * row;
      add(R"(<g><title>rank {} holds {}</title><rect x="{}" y="{}" width="{}" height="{}" rx="3" )"
          R"(fill="#eef3f8" stroke="#1d64a8"/><text x="{}" y="{}">rank {}</text></g>)",
          rank, fmt::join(held[rank], ", "), left(column), y, kBoxWidth, kBoxHeight,
          left(column) + 8, y + 12, rank);
    }
    if (rows_left_out_[column] > 0) {
      add(R"(<text x="{}" y="{}" fill="#555">and {} more</text>)", left(column),
          kTop + kRow * static_cast<int>(rows_[column].size()) + 12, rows_left_out_[column]);
    }
  }

  const MovePlan& plan_;
  const uint64_t element_bytes_;
  std::vector<std::map<int, int>> rows_;  // by column: the row of each rank
  std::vector<size_t> rows_left_out_;
  size_t most_rows_ = 0;
  std::string text_;
};

}  // namespace

std::string to_text(const MovePlan& plan, uint64_t element_bytes, size_t most_lines) {
  std::string text = fmt::format("strategy {}, shape [{}], {} stage{}\n", plan.strategy,
                                 fmt::join(plan.source.shape, ", "), plan.hops.size(),
                                 plan.hops.size() == 1 ? "" : "s");
  for (size_t i = 0; i < plan.hops.size(); ++i) {
    const Flows flows = flows_of(plan, i);
    text +=
        fmt::format("{} to {}: {} messages\n{:>6} {:>6} {:>12}  {}\n", name_of(plan, i),
                    name_of(plan, i + 1), count_messages(plan, i), "from", "to", "bytes", "boxes");
    size_t lines = 0;
    for (const auto& [ends, flow] : flows) {
      if (lines++ == most_lines) {
        text += fmt::format("{:>6} and {} more\n", "", flows.size() - most_lines);
        break;
      }
      const Move& first = *flow.moves.front();
      text += fmt::format(
          "{:>6} {:>6} {:>12}  {}{}{}\n", ends.first, ends.second, flow.elements * element_bytes,
          to_text(first.box), first.adds ? ", added" : "",
          flow.moves.size() > 1 ? fmt::format(" and {} more", flow.moves.size() - 1) : "");
    }
  }
  return text;
}

std::string to_svg(const MovePlan& plan, uint64_t element_bytes) {
  return Picture(plan, element_bytes).draw();
}

}  // namespace hetcomm::reshard
