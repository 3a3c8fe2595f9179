// Draws a report: one panel for each test, with logarithmic axes, and one line for each
// implementation, transport and setting. The colour shows the implementation, the dashes the
// transport, and the shape of the spots the setting. hetcomm's lines are thick.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "bench/plot.h"
#include "src/present/svg.h"

namespace bench {
namespace {

using hetcomm::present::pixels;
using hetcomm::present::Svg;

constexpr double kPanelWidth = 460;
constexpr double kPanelHeight = 340;
constexpr double kLeft = 74;
constexpr double kTop = 64;
constexpr double kGap = 88;
constexpr double kBottom = 62;
constexpr double kLegendLine = 19;
constexpr double kLegendMargin = 60;  // of an entry, in addition to its text
constexpr double kLetterWidth = 7.6;

// Maps a logarithmic axis to an interval of the drawing.
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
      for (const Series& series : panel.series) add_to_legend(series);
    }
  }

  std::string draw() const {
    const double count = static_cast<double>(std::max<size_t>(panels_.size(), 1));
    const double width = kLeft + count * kPanelWidth + (count - 1) * kGap + 24;
    double entry_width = 0;
    for (const Series& series : legend_) {
      entry_width = std::max(
          entry_width, kLegendMargin + kLetterWidth * static_cast<double>(series.name.size()));
    }
    const size_t per_line =
        std::max<size_t>(static_cast<size_t>((width - kLeft) / std::max(entry_width, 1.0)), 1);
    const double legend_lines =
        std::ceil(static_cast<double>(legend_.size()) / static_cast<double>(per_line));
    const std::string title = "hetcomm_bench " + report_.version;
    Svg svg(width, kTop + kPanelHeight + kBottom + legend_lines * kLegendLine + 14, 12, title);
    svg.text(kLeft, 22, title + " on " + report_.host, R"(font-size="13" fill="#555")");
    for (size_t i = 0; i < panels_.size(); ++i) {
      draw_panel(svg, panels_[i], kLeft + static_cast<double>(i) * (kPanelWidth + kGap));
    }
    for (size_t i = 0; i < legend_.size(); ++i) {
      draw_legend_entry(
          svg, legend_[i], kLeft + static_cast<double>(i % per_line) * entry_width,
          kTop + kPanelHeight + kBottom + static_cast<double>(i / per_line) * kLegendLine);
    }
    return std::move(svg).take();
  }

 private:
  // A series has one look and one legend entry in all panels.
  void add_to_legend(const Series& series) {
    if (looks_.contains(series.name)) return;
    Look look;
    look.colour = colour_of(series, panels_);
    look.dashes = series.transport == "tcp" ? "6 3" : series.transport == "rdma" ? "1.5 3" : "";
    // Entries with the same colour and dashes get different shapes.
    for (const Series& other : legend_) {
      const Look& taken = looks_.at(other.name);
      if (taken.colour == look.colour && taken.dashes == look.dashes) ++look.shape;
    }
    looks_[series.name] = look;
    legend_.push_back(series);
  }

  void draw_panel(Svg& svg, const Panel& panel, double left) const {
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
    svg.text(left, kTop - 14, panel.title, R"(font-size="15" font-weight="bold")");
    draw_x_axis(svg, x, left);
    draw_y_axis(svg, y, left, panel.unit);
    svg.rectangle(left, kTop, kPanelWidth, kPanelHeight, R"(fill="none" stroke="#888")");
    // hetcomm is drawn last, on top.
    for (const bool ours : {false, true}) {
      for (const Series& series : panel.series) {
        if (series.ours() == ours) draw_series(svg, series, x, y);
      }
    }
  }

  static void draw_x_axis(Svg& svg, const Axis& x, double left) {
    const double doublings = std::log2(x.high / x.low);
    const int step = std::max(1, static_cast<int>(std::ceil(doublings / 9)));
    for (int i = 0; i <= static_cast<int>(doublings + 0.001); i += step) {
      const double bytes = x.low * std::pow(2, i);
      svg.line(x.at(bytes), kTop, x.at(bytes), kTop + kPanelHeight, R"(stroke="#e3e3e3")");
      svg.text(x.at(bytes), kTop + kPanelHeight + 17, size_text(static_cast<uint64_t>(bytes)),
               R"(text-anchor="middle")");
    }
    svg.text(left + kPanelWidth / 2, kTop + kPanelHeight + 35, "message size, bytes",
             R"(text-anchor="middle" fill="#555")");
  }

  static void draw_y_axis(Svg& svg, const Axis& y, double left, const std::string& unit) {
    for (double decade = y.low; decade <= y.high * 1.001; decade *= 10) {
      for (int digit = 1; digit < 10 && decade * digit <= y.high * 1.001; ++digit) {
        const double value = decade * digit;
        svg.line(left, y.at(value), left + kPanelWidth, y.at(value),
                 digit == 1 ? R"(stroke="#d2d2d2")" : R"(stroke="#f0f0f0")");
        if (digit != 1) continue;
        svg.text(left - 7, y.at(value) + 4, tick_text(value), R"(text-anchor="end")");
      }
    }
    svg.upright_text(left - 50, kTop + kPanelHeight / 2, unit,
                     R"(text-anchor="middle" fill="#555")");
  }

  std::string stroke_of(const Series& series) const {
    const Look& look = looks_.at(series.name);
    const std::string dashes =
        look.dashes.empty() ? "" : fmt::format(R"( stroke-dasharray="{}")", look.dashes);
    return fmt::format(R"(stroke="{}" stroke-width="{}"{})", look.colour, series.ours() ? 3 : 1.6,
                       dashes);
  }

  // The shapes are a filled circle, then a ring, a square, a triangle.
  void draw_spot(Svg& svg, const Series& series, double x, double y) const {
    const Look& look = looks_.at(series.name);
    const double size = series.ours() ? 3.4 : 2.6;
    const char* const hollow = look.shape % 4 == 1 ? "#ffffff" : look.colour.c_str();
    if (look.shape % 4 < 2) {
      svg.shape("circle", fmt::format(R"(cx="{}" cy="{}" r="{}" fill="{}" stroke="{}")", pixels(x),
                                      pixels(y), size, hollow, look.colour));
    } else if (look.shape % 4 == 2) {
      svg.rectangle(x - size, y - size, 2 * size, 2 * size,
                    fmt::format(R"(fill="{}")", look.colour));
    } else {
      svg.shape("polygon",
                fmt::format(R"(points="{},{} {},{} {},{}" fill="{}")", pixels(x),
                            pixels(y - 1.4 * size), pixels(x - 1.3 * size), pixels(y + size),
                            pixels(x + 1.3 * size), pixels(y + size), look.colour));
    }
  }

  void draw_series(Svg& svg, const Series& series, const Axis& x, const Axis& y) const {
    std::string points;
    for (const Spot& spot : series.spots) {
      points += fmt::format("{},{} ", pixels(x.at(spot.bytes)), pixels(y.at(spot.value)));
    }
    svg.shape("polyline", fmt::format(R"(points="{}" fill="none" stroke-linejoin="round" {})",
                                      points, stroke_of(series)));
    for (const Spot& spot : series.spots) {
      draw_spot(svg, series, x.at(spot.bytes), y.at(spot.value));
    }
  }

  void draw_legend_entry(Svg& svg, const Series& series, double left, double top) const {
    svg.line(left, top - 4, left + 30, top - 4, stroke_of(series));
    draw_spot(svg, series, left + 15, top - 4);
    svg.text(left + 37, top, series.name, series.ours() ? R"(font-weight="bold")" : "");
  }

  struct Look {
    std::string colour;
    std::string dashes;
    int shape = 0;
  };

  const Report& report_;
  std::vector<Panel> panels_;
  std::map<std::string, Look> looks_;  // by name of the series
  std::vector<Series> legend_;
};

}  // namespace

std::string render_svg(const Report& report) { return Drawing(report).draw(); }

}  // namespace bench
