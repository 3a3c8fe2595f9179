#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pipeline/outlook/outlook.h"
#include "pipeline/schedule/text.h"
#include "src/present/svg.h"

namespace hetcomm::pipeline {
namespace {

constexpr size_t kMaxDrawn = 40'000;
constexpr uint32_t kMaxRanks = 128;
constexpr size_t kMaxReductions = 256;
constexpr double kWidth = 1160;  // width of the time axis
constexpr double kLeft = 70;
constexpr double kBar = 22;
constexpr double kGap = 8;  // space below a rank with two bars
constexpr double kTop = 44;
constexpr const char* kSumFill = "#9aa5b1";
constexpr double kFontSize = 11;

struct Colour {
  ActionKind kind;
  const char* fill;
  const char* name;
};
constexpr Colour kColours[] = {
    {ActionKind::kForward, "#7fb2e5", "F, forward"},
    {ActionKind::kBackward, "#f2a65a", "B, backward"},
    {ActionKind::kInputGrad, "#e88080", "I, input gradient"},
    {ActionKind::kWeightGrad, "#8fc98f", "W, weight gradient"},
    {ActionKind::kRecompute, "#c9b6e4", "R, recomputation"},
};

const Colour* colour_of(ActionKind kind) {
  const auto* const found = std::find_if(std::begin(kColours), std::end(kColours),
                                         [&](const Colour& each) { return each.kind == kind; });
  return found == std::end(kColours) ? nullptr : found;
}

class Chart {
 public:
  // |run| is null, or a run of the schedule.
  Chart(const Outlook& outlook, const MeasuredRun* run)
      : outlook_(outlook),
        run_(run),
        total_ns_(end_of(outlook, run)),
        row_(run == nullptr ? kBar : 2 * kBar + kGap),
        scale_(kWidth / static_cast<double>(std::max<uint64_t>(1, total_ns_))),
        sums_top_(kTop + row_ * outlook.schedule.ranks()),
        axis_top_(sums_top_ + kBar * static_cast<double>(outlook.reductions.size()) + 4),
        svg_(kLeft + kWidth + 20, axis_top_ + 36, static_cast<int>(kFontSize),
             "pipeline schedule") {
    for (const std::vector<uint32_t>& stages : stages_by_rank(outlook.schedule)) {
      most_chunks_ = std::max(most_chunks_, stages.size());
    }
    // Later chunks of a rank are drawn paler.
    opacity_.resize(outlook.schedule.stages(), 1.0);
    for (const std::vector<uint32_t>& stages : stages_by_rank(outlook.schedule)) {
      for (size_t i = 1; i < stages.size(); ++i) {
        opacity_[stages[i]] =
            1.0 - 0.5 * static_cast<double>(i) / static_cast<double>(most_chunks_ - 1);
      }
    }
  }

  std::string draw() && {
    draw_legend();
    for (uint32_t rank = 0; rank < outlook_.schedule.ranks(); ++rank) draw_rank(rank);
    for (size_t i = 0; i < outlook_.reductions.size(); ++i) draw_sum(i);
    draw_axis();
    return std::move(svg_).take();
  }

 private:
  // Returns the end of the time axis.
  static uint64_t end_of(const Outlook& outlook, const MeasuredRun* run) {
    uint64_t end_ns = outlook.forecast.total_ns;
    if (run == nullptr) return end_ns;
    for (const std::vector<Span>& spans : run->spans) {
      for (const Span& each : spans) end_ns = std::max(end_ns, each.end_ns);
    }
    return end_ns;
  }

  double x_of(uint64_t ns) const { return kLeft + static_cast<double>(ns) * scale_; }
  std::string time_text(uint64_t ns) const {
    if (!outlook_.has_times) return std::to_string(ns);
    return fmt::format("{:.6g} ms", static_cast<double>(ns) / 1e6);
  }

  void draw_legend() {
    double x = kLeft;
    for (const Colour& each : kColours) {
      const bool is_used = std::any_of(
          outlook_.schedule.actions.begin(), outlook_.schedule.actions.end(),
          [&](const auto& list) {
            return std::any_of(list.begin(), list.end(),
                               [&](const Action& action) { return action.kind == each.kind; });
          });
      if (!is_used) continue;
      svg_.rectangle(x, 14, 12, 12, fmt::format(R"(fill="{}")", each.fill));
      svg_.text(x + 17, 24, each.name);
      x += 150;
    }
    if (!outlook_.reductions.empty()) {
      svg_.rectangle(x, 14, 12, 12, fmt::format(R"(fill="{}")", kSumFill));
      svg_.text(x + 17, 24, "reduction of gradients");
      x += 160;
    }
    if (most_chunks_ > 1) {
      svg_.text(x, 24, "paler: a rank's later stages");
      x += 190;
    }
    svg_.text(
        x, 24,
        fmt::format("bubble {:.1f} %", static_cast<double>(outlook_.forecast.bubble_ppm()) / 1e4));
  }

  void draw_rank(uint32_t rank) {
    const double y = kTop + row_ * rank;
    svg_.text(8, y + 15, fmt::format("rank {}", outlook_.rank_name(rank)));
    draw_bar(rank, y, outlook_.forecast.actions[rank]);
    if (run_ == nullptr) return;
    svg_.text(20, y + kBar + 15, "as run", R"(fill="#777")");
    draw_bar(rank, y + kBar, run_->spans[rank]);
  }

  // Draws the reduction of the gradients of some stages.
  void draw_sum(size_t number) {
    const Outlook::Reduction& sum = outlook_.reductions[number];
    const double y = sums_top_ + kBar * static_cast<double>(number);
    const std::string stages = fmt::format("{}", fmt::join(sum.stages, " "));
    svg_.text(8, y + 15, sum.stages.size() > 2 ? "sum" : "sum " + stages);
    svg_.rectangle(kLeft, y + 1, kWidth, kBar - 3, R"(fill="#f1f1f1")");
    const double x = x_of(sum.span.start_ns);
    svg_.rectangle(x, y + 1, x_of(sum.span.end_ns) - x, kBar - 3,
                   fmt::format(R"(fill="{}")", kSumFill),
                   fmt::format("reduction of stages {}: {} to {}", stages,
                               time_text(sum.span.start_ns), time_text(sum.span.end_ns)));
  }

  void draw_bar(uint32_t rank, double y, const std::vector<Span>& spans) {
    svg_.rectangle(kLeft, y + 1, kWidth, kBar - 3, R"(fill="#f1f1f1")");
    const std::vector<Action>& actions = outlook_.schedule.actions[rank];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Colour* const colour = colour_of(actions[i].kind);
      if (colour == nullptr) continue;
      // The two steps of a pair are drawn as half bars, one above the other.
      const bool is_second = i > 0 && actions[i - 1].overlaps_next;
      const bool is_half = actions[i].overlaps_next || is_second;
      draw_step(actions[i], spans[i], colour->fill, y + 1 + (is_second ? (kBar - 3) / 2 : 0),
                is_half ? (kBar - 3) / 2 : kBar - 3, rank);
    }
  }

  void draw_step(const Action& action, const Span& span, const char* fill, double y, double height,
                 uint32_t rank) {
    const double x = x_of(span.start_ns);
    const double width = x_of(span.end_ns) - x;
    svg_.rectangle(
        x, y, width, height,
        fmt::format(R"(fill="{}" fill-opacity="{:.2f}" stroke="#fff" stroke-width="0.5")", fill,
                    opacity_[action.stage]),
        fmt::format("{} on rank {}: {} to {}", to_text(action), outlook_.rank_name(rank),
                    time_text(span.start_ns), time_text(span.end_ns)));
    const std::string number = std::to_string(action.micro_batch);
    const bool is_half = height < kBar - 3;
    const double letter = is_half ? 5 : 7;
    if (width < letter * static_cast<double>(number.size()) + 2) return;
    svg_.text(x + width / 2, y + (is_half ? 8 : 14), number,
              is_half ? R"(text-anchor="middle" font-size="8")" : R"(text-anchor="middle")");
  }

  void draw_axis() {
    const double y = axis_top_;
    svg_.line(kLeft, y, kLeft + kWidth, y, R"(stroke="#555")");
    for (int i = 0; i <= 4; ++i) {
      const uint64_t ns = total_ns_ / 4 * static_cast<uint64_t>(i);
      const uint64_t at = i == 4 ? total_ns_ : ns;
      svg_.line(x_of(at), y, x_of(at), y + 4, R"(stroke="#555")");
      svg_.text(x_of(at), y + 17, time_text(at),
                i == 0   ? R"(text-anchor="start")"
                : i == 4 ? R"(text-anchor="end")"
                         : R"(text-anchor="middle")");
    }
  }

  const Outlook& outlook_;
  const MeasuredRun* const run_;
  const uint64_t total_ns_;
  const double row_;  // height of a rank's row
  const double scale_;
  const double sums_top_;
  const double axis_top_;
  present::Svg svg_;
  size_t most_chunks_ = 1;
  std::vector<double> opacity_;  // indexed by stage
};

Result<std::string> draw(const Outlook& outlook, const MeasuredRun* run) {
  size_t steps = 0;
  for (const std::vector<Action>& actions : outlook.schedule.actions) steps += actions.size();
  if (outlook.reductions.size() > kMaxReductions) {
    return Status(Code::kUnsupported, fmt::format("a picture has at most {} reductions, not {}",
                                                  kMaxReductions, outlook.reductions.size()));
  }
  if (steps > kMaxDrawn || outlook.schedule.ranks() > kMaxRanks) {
    return Status(Code::kUnsupported,
                  fmt::format("a picture has at most {} actions of {} ranks, not {} of {}",
                              kMaxDrawn, kMaxRanks, steps, outlook.schedule.ranks()));
  }
  return Chart(outlook, run).draw();
}

}  // namespace

Result<std::string> to_svg(const Outlook& outlook) { return draw(outlook, nullptr); }

Result<std::string> to_svg(const Outlook& outlook, const MeasuredRun& run) {
  return draw(outlook, &run);
}

}  // namespace hetcomm::pipeline
