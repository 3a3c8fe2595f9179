// Draws a report: one panel for each test, size and figure both logarithmic, one line for each
// implementation and transport. hetcomm's lines are heavy; TCP's are dashed.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "bench/report.h"

namespace bench {
namespace {

constexpr double kPanelWidth = 460;
constexpr double kPanelHeight = 340;
constexpr double kLeft = 74;
constexpr double kTop = 64;
constexpr double kGap = 88;
constexpr double kBottom = 62;
constexpr double kLegendLine = 19;
constexpr double kLegendEntryWidth = 254;

// Colours that stay apart for most colour-blind readers too; the first is hetcomm's.
constexpr const char* kColours[] = {"#c1272d", "#0072b2", "#e69f00", "#009e73",
                                    "#7a3e9d", "#56b4e9", "#8c564b", "#444444",
                                    "#b0a000", "#d65f9e", "#5f7f00", "#00798c"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

struct Spot {
  double bytes;
  double value;
};

struct Series {
  std::string name;
  bool ours = false;
  bool dashed = false;
  std::vector<Spot> spots;
};

struct Panel {
  std::string title;
  std::string unit;
  std::vector<Series> series;
};

double plotted(const Row& row) {
  return is_rate(row.test) ? row.messages_per_s * 1e-6 : figure(row);
}

std::string unit_of(const std::string& test) {
  if (smaller_is_better(test)) return "microseconds";
  return is_rate(test) ? "millions per second" : "MB/s (10^6 bytes)";
}

std::vector<Panel> panels_of(const Report& report) {
  std::vector<Panel> panels;
  std::vector<std::string> tests;
  for (const std::vector<Row>& rows : group_rows(report.rows)) {
    const Row& first = rows.front();
    auto test = std::find(tests.begin(), tests.end(), first.test);
    if (test == tests.end()) {
      tests.push_back(first.test);
      panels.push_back({titles_of(first.test).plot, unit_of(first.test), {}});
      test = tests.end() - 1;
    }
    Series series;
    series.name = first.impl;
    if (first.impl.find(first.transport) == std::string::npos) series.name += " " + first.transport;
    if (!first.progress.empty()) series.name += " " + first.progress;
    if (first.rails > 0 && first.impl == "hetcomm")
      series.name += fmt::format(", {} rails", first.rails);
    if (!first.algorithm.empty()) series.name += ", " + first.algorithm;
    if (first.memory != "host") series.name += " " + first.memory;
    series.ours = first.impl == "hetcomm";
    series.dashed = first.transport == "tcp";
    for (const Row& row : rows) {
      // A logarithm has no zero.
      if (row.measured.point.bytes == 0 || !(plotted(row) > 0)) continue;
      series.spots.push_back({static_cast<double>(row.measured.point.bytes), plotted(row)});
    }
    if (!series.spots.empty())
      panels[static_cast<size_t>(test - tests.begin())].series.push_back(series);
  }
  std::erase_if(panels, [](const Panel& panel) { return panel.series.empty(); });
  return panels;
}

// A logarithmic axis onto a stretch of the drawing.
struct Axis {
  double low = 1;
  double high = 10;
  double from = 0;
  double to = 1;
  double at(double value) const {
    return from +
           (to - from) * (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  }
};

std::string tick_text(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value * 1e-6);
  return value >= 1e4 ? fmt::format("{:g}k", value * 1e-3) : fmt::format("{:g}", value);
}

class Drawing {
 public:
  explicit Drawing(const Report& report) : report_(report), panels_(panels_of(report)) {
    for (const Panel& panel : panels_) {
      for (const Series& series : panel.series) assign_colour(series);
    }
  }

  std::string draw() {
    const double count = static_cast<double>(std::max<size_t>(panels_.size(), 1));
    width_ = kLeft + count * kPanelWidth + (count - 1) * kGap + 24;
    const size_t per_line =
        std::max<size_t>(static_cast<size_t>((width_ - kLeft) / kLegendEntryWidth), 1);
    const double legend_lines =
        std::ceil(static_cast<double>(legend_.size()) / static_cast<double>(per_line));
    height_ = kTop + kPanelHeight + kBottom + legend_lines * kLegendLine + 14;
    open();
    for (size_t i = 0; i < panels_.size(); ++i) {
      draw_panel(panels_[i], kLeft + static_cast<double>(i) * (kPanelWidth + kGap));
    }
    for (size_t i = 0; i < legend_.size(); ++i) {
      draw_legend_entry(
          legend_[i], kLeft + static_cast<double>(i % per_line) * kLegendEntryWidth,
          kTop + kPanelHeight + kBottom + static_cast<double>(i / per_line) * kLegendLine);
    }
    return text_ + "</svg>\n";
  }

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += fmt::format(format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }

  // A series has one colour and one legend entry in all panels.
  void assign_colour(const Series& series) {
    if (colours_.contains(series.name)) return;
    constexpr size_t kCount = sizeof kColours / sizeof kColours[0];
    const size_t index = series.ours ? 0 : 1 + others_++ % (kCount - 1);
    colours_[series.name] = kColours[index];
    legend_.push_back(series);
  }

  void open() {
    add(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" )"
        R"(viewBox="0 0 {0:.0f} {1:.0f}" font-size="12" fill="#222" )"
        R"(font-family="Helvetica, Arial, DejaVu Sans, sans-serif">)",
        width_, height_);
    add(R"(<title>hetcomm_bench {}</title>)", escaped(report_.version));
    add(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
    add(R"(<text x="{:.0f}" y="22" font-size="13" fill="#555">{}</text>)", kLeft,
        escaped(fmt::format("hetcomm_bench {} on {}", report_.version, report_.host)));
  }

  void draw_panel(const Panel& panel, double left) {
    Axis x{1e300, 0, left, left + kPanelWidth};
    Axis y{1e300, 0, kTop + kPanelHeight, kTop};
    for (const Series& series : panel.series) {
      for (const Spot& spot : series.spots) {
        x.low = std::min(x.low, spot.bytes);
        x.high = std::max(x.high, spot.bytes);
        y.low = std::min(y.low, spot.value);
        y.high = std::max(y.high, spot.value);
      }
    }
    if (x.high <= x.low) x.high = x.low * 2;
    y.low = std::pow(10, std::floor(std::log10(y.low * 0.98)));
    y.high = std::pow(10, std::ceil(std::log10(y.high * 1.02)));
    add(R"(<text x="{:.1f}" y="{:.1f}" font-size="15" font-weight="bold">{}</text>)", left,
        kTop - 14, escaped(panel.title));
    draw_x_axis(x, left);
    draw_y_axis(y, left, panel.unit);
    add(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="none" stroke="#888"/>)",
        left, kTop, kPanelWidth, kPanelHeight);
    // hetcomm last, on top.
    for (const bool ours : {false, true}) {
      for (const Series& series : panel.series) {
        if (series.ours == ours) draw_series(series, x, y);
      }
    }
  }

  void draw_x_axis(const Axis& x, double left) {
    const double doublings = std::log2(x.high / x.low);
    const int step = std::max(1, static_cast<int>(std::ceil(doublings / 9)));
    for (int i = 0; i <= static_cast<int>(doublings + 0.001); i += step) {
      const double bytes = x.low * std::pow(2, i);
      add(R"(<line x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}" stroke="#e3e3e3"/>)",
          x.at(bytes), kTop, kTop + kPanelHeight);
      add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)", x.at(bytes),
          kTop + kPanelHeight + 17, size_text(static_cast<uint64_t>(bytes)));
    }
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle" fill="#555">)"
        "message size, bytes</text>",
        left + kPanelWidth / 2, kTop + kPanelHeight + 35);
  }

  void draw_y_axis(const Axis& y, double left, const std::string& unit) {
    for (double decade = y.low; decade <= y.high * 1.001; decade *= 10) {
      for (int digit = 1; digit < 10 && decade * digit <= y.high * 1.001; ++digit) {
        const double value = decade * digit;
        add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}"/>)", left,
            y.at(value), left + kPanelWidth, y.at(value), digit == 1 ? "#d2d2d2" : "#f0f0f0");
        if (digit != 1) continue;
        add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)", left - 7, y.at(value) + 4,
            tick_text(value));
      }
    }
    const double middle = kTop + kPanelHeight / 2;
    add(R"svg(<text x="{0:.1f}" y="{1:.1f}" text-anchor="middle" fill="#555" )svg"
        R"svg(transform="rotate(-90 {0:.1f} {1:.1f})">{2}</text>)svg",
        left - 50, middle, escaped(unit));
  }

  std::string stroke_of(const Series& series) const {
    return fmt::format(R"(stroke="{}" stroke-width="{}"{})", colours_.at(series.name),
                       series.ours ? 3 : 1.6, series.dashed ? R"( stroke-dasharray="6 3")" : "");
  }

  void draw_series(const Series& series, const Axis& x, const Axis& y) {
    std::string points;
    for (const Spot& spot : series.spots) {
      points += fmt::format("{:.1f},{:.1f} ", x.at(spot.bytes), y.at(spot.value));
    }
    add(R"(<polyline points="{}" fill="none" stroke-linejoin="round" {}/>)", points,
        stroke_of(series));
    for (const Spot& spot : series.spots) {
      add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}"/>)", x.at(spot.bytes),
          y.at(spot.value), series.ours ? 3 : 2.2, colours_.at(series.name));
    }
  }

  void draw_legend_entry(const Series& series, double left, double top) {
    add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" {}/>)", left, top - 4, left + 30,
        top - 4, stroke_of(series));
    add(R"(<text x="{:.1f}" y="{:.1f}"{}>{}</text>)", left + 37, top,
        series.ours ? R"( font-weight="bold")" : "", escaped(series.name));
  }

  const Report& report_;
  std::vector<Panel> panels_;
  std::map<std::string, std::string> colours_;
  std::vector<Series> legend_;
  size_t others_ = 0;
  double width_ = 0;
  double height_ = 0;
  std::string text_;
};

}  // namespace

std::string render_svg(const Report& report) { return Drawing(report).draw(); }

}  // namespace bench
