// Draws a report: one panel for each test, both axes logarithmic, one line for each implementation,
// transport and setting. The colour says which implementation, the dashes which transport, the
// shape of the spots which setting. hetcomm's lines are heavy.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "bench/plot.h"
#include "src/present/svg_text.h"

namespace bench {
namespace {

using hetcomm::present::escaped;

constexpr double kPanelWidth = 460;
constexpr double kPanelHeight = 340;
constexpr double kLeft = 74;
constexpr double kTop = 64;
constexpr double kGap = 88;
constexpr double kBottom = 62;
constexpr double kLegendLine = 19;
constexpr double kLegendMargin = 60;  // of an entry, beside its text
constexpr double kLetterWidth = 7.6;

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
      for (const Series& series : panel.series) add_to_legend(series);
    }
  }

  std::string draw() {
    const double count = static_cast<double>(std::max<size_t>(panels_.size(), 1));
    width_ = kLeft + count * kPanelWidth + (count - 1) * kGap + 24;
    double entry_width = 0;
    for (const Series& series : legend_) {
      entry_width = std::max(
          entry_width, kLegendMargin + kLetterWidth * static_cast<double>(series.name.size()));
    }
    const size_t per_line =
        std::max<size_t>(static_cast<size_t>((width_ - kLeft) / std::max(entry_width, 1.0)), 1);
    const double legend_lines =
        std::ceil(static_cast<double>(legend_.size()) / static_cast<double>(per_line));
    height_ = kTop + kPanelHeight + kBottom + legend_lines * kLegendLine + 14;
    open();
    for (size_t i = 0; i < panels_.size(); ++i) {
      draw_panel(panels_[i], kLeft + static_cast<double>(i) * (kPanelWidth + kGap));
    }
    for (size_t i = 0; i < legend_.size(); ++i) {
      draw_legend_entry(
          legend_[i], kLeft + static_cast<double>(i % per_line) * entry_width,
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

  // A series has one look and one legend entry in all panels.
  void add_to_legend(const Series& series) {
    if (looks_.contains(series.name)) return;
    Look look;
    look.colour = colour_of(series, panels_);
    look.dashes = series.transport == "tcp" ? "6 3" : series.transport == "rdma" ? "1.5 3" : "";
    // Beside those of the same colour and dashes.
    for (const Series& other : legend_) {
      const Look& taken = looks_.at(other.name);
      if (taken.colour == look.colour && taken.dashes == look.dashes) ++look.shape;
    }
    looks_[series.name] = look;
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
        if (series.ours() == ours) draw_series(series, x, y);
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
    const Look& look = looks_.at(series.name);
    const std::string dashes =
        look.dashes.empty() ? "" : fmt::format(R"( stroke-dasharray="{}")", look.dashes);
    return fmt::format(R"(stroke="{}" stroke-width="{}"{})", look.colour, series.ours() ? 3 : 1.6,
                       dashes);
  }

  // A filled circle, then a ring, a square, a triangle.
  void draw_spot(const Series& series, double x, double y) {
    const Look& look = looks_.at(series.name);
    const double size = series.ours() ? 3.4 : 2.6;
    const char* const hollow = look.shape % 4 == 1 ? "#ffffff" : look.colour.c_str();
    if (look.shape % 4 < 2) {
      add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}" stroke="{}"/>)", x, y, size, hollow,
          look.colour);
    } else if (look.shape % 4 == 2) {
      add(R"(<rect x="{:.1f}" y="{:.1f}" width="{}" height="{}" fill="{}"/>)", x - size, y - size,
          2 * size, 2 * size, look.colour);
    } else {
      add(R"(<polygon points="{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}" fill="{}"/>)", x,
          y - 1.4 * size, x - 1.3 * size, y + size, x + 1.3 * size, y + size, look.colour);
    }
  }

  void draw_series(const Series& series, const Axis& x, const Axis& y) {
    std::string points;
    for (const Spot& spot : series.spots) {
      points += fmt::format("{:.1f},{:.1f} ", x.at(spot.bytes), y.at(spot.value));
    }
    add(R"(<polyline points="{}" fill="none" stroke-linejoin="round" {}/>)", points,
        stroke_of(series));
    for (const Spot& spot : series.spots) draw_spot(series, x.at(spot.bytes), y.at(spot.value));
  }

  void draw_legend_entry(const Series& series, double left, double top) {
    add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" {}/>)", left, top - 4, left + 30,
        top - 4, stroke_of(series));
    draw_spot(series, left + 15, top - 4);
    add(R"(<text x="{:.1f}" y="{:.1f}"{}>{}</text>)", left + 37, top,
        series.ours() ? R"( font-weight="bold")" : "", escaped(series.name));
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
  double width_ = 0;
  double height_ = 0;
  std::string text_;
};

}  // namespace

std::string render_svg(const Report& report) { return Drawing(report).draw(); }

}  // namespace bench
