#include "reshard/move_plan_draw.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/faults.h"
#include "src/present/svg.h"

namespace hetcomm::reshard {
namespace {

using present::Svg;

// The elements that one rank sends to another in a hop.
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

  std::string draw() const {
    const int width = 2 * kMargin + kBoxWidth + kColumn * static_cast<int>(plan_.hops.size());
    const int height = kTop + kRow * static_cast<int>(most_rows_) + kMargin;
    Svg svg(width, height, 11, fmt::format("plan of strategy {}", plan_.strategy));
    svg.text(kMargin, 24,
             fmt::format("{}: [{}], {}", plan_.strategy, fmt::join(plan_.source.shape, ", "),
                         bytes_text(plan_.source.whole().elements() * element_bytes_)),
             R"(font-size="15" font-weight="bold")");
    for (size_t i = 0; i < plan_.hops.size(); ++i) draw_messages(svg, i);
    for (size_t i = 0; i <= plan_.hops.size(); ++i) draw_ranks(svg, i);
    return std::move(svg).take();
  }

 private:
  const Layout& layout(size_t index) const {
    return index == 0 ? plan_.source : plan_.hops[index - 1].to;
  }
  int left(size_t column) const { return kMargin + kColumn * static_cast<int>(column); }
  int middle(size_t column, int rank) const {
    return kTop + kRow * rows_[column].at(rank) + kBoxHeight / 2;
  }

  void draw_messages(Svg& svg, size_t hop) const {
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
    svg.text(left(hop) + kBoxWidth + 12, 46,
             fmt::format("{} messages, {}", count, bytes_text(sum * element_bytes_)),
             R"(fill="#555")");
    for (const auto& [ends, flow] : flows) {
      if (rows_[hop].count(ends.first) == 0 || rows_[hop + 1].count(ends.second) == 0) continue;
      const bool is_local = ends.first == ends.second;
      const double share = static_cast<double>(flow.elements) / static_cast<double>(most);
      svg.line(left(hop) + kBoxWidth, middle(hop, ends.first), left(hop + 1),
               middle(hop + 1, ends.second),
               fmt::format(R"(stroke="{}" stroke-width="{:.1f}" stroke-opacity="0.6")",
                           is_local ? "#999999" : "#1d64a8", is_local ? 1.0 : 1 + 5 * share),
               fmt::format("rank {} to rank {}: {}", ends.first, ends.second,
                           bytes_text(flow.elements * element_bytes_)));
    }
  }

  void draw_ranks(Svg& svg, size_t column) const {
    svg.text(left(column), 66, name_of(plan_, column), R"(font-weight="bold")");
    std::map<int, std::vector<std::string>> held;
    for (const Part& part : layout(column).parts) held[part.rank].push_back(to_text(part.box));
    for (const auto& [rank, row] : rows_[column]) {
      const int y = kTop + kRow * row;
      svg.rectangle(left(column), y, kBoxWidth, kBoxHeight,
                    R"(rx="3" fill="#eef3f8" stroke="#1d64a8")",
                    fmt::format("rank {} holds {}", rank, fmt::join(held[rank], ", ")));
      svg.text(left(column) + 8, y + 12, fmt::format("rank {}", rank));
    }
    if (rows_left_out_[column] > 0) {
      svg.text(left(column), kTop + kRow * static_cast<int>(rows_[column].size()) + 12,
               fmt::format("and {} more", rows_left_out_[column]), R"(fill="#555")");
    }
  }

  const MovePlan& plan_;
  const uint64_t element_bytes_;
  std::vector<std::map<int, int>> rows_;  // indexed by column: the row of each rank
  std::vector<size_t> rows_left_out_;
  size_t most_rows_ = 0;
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

std::string to_text(const std::vector<SizedPlan>& plans) {
  std::string text;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans.size() != 1) text += fmt::format("tensor {}\n", i);
    text += to_text(*plans[i].plan, plans[i].element_bytes);
  }
  return text;
}

Result<std::string> to_svg(const std::vector<SizedPlan>& plans) {
  if (plans.size() == 1) return to_svg(*plans.front().plan, plans.front().element_bytes);
  return unsupported(fmt::format("a picture shows one tensor, and this moves {}", plans.size()));
}

}  // namespace hetcomm::reshard
