#include "topology/links/link_model_draw.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/base/text.h"
#include "src/present/rates.h"
#include "src/present/svg.h"

namespace hetcomm::topology {
namespace {

constexpr size_t kMaxInTable = 16;
constexpr size_t kMaxInPicture = 256;

// --- hosts and rates -------------------------------------------------------------------------

// Sorts the hosts by cluster, and returns the first |most| of them, or all if there are fewer.
std::vector<int> in_clusters(const LinkModel& model, size_t most) {
  std::vector<int> hosts;
  for (size_t i = 0; i < model.hosts.size(); ++i) hosts.push_back(static_cast<int>(i));
  std::stable_sort(hosts.begin(), hosts.end(), [&](int a, int b) {
    return model.hosts[static_cast<size_t>(a)].cluster <
           model.hosts[static_cast<size_t>(b)].cluster;
  });
  if (hosts.size() > most) hosts.resize(most);
  return hosts;
}

const LinkHost& host_of(const LinkModel& model, int index) {
  return model.hosts[static_cast<size_t>(index)];
}

// Returns the rate between two hosts when no other pair sends, in bytes per second. 0: unknown.
uint64_t pair_rate(const LinkModel& model, int from, int to) {
  const Result<Route> found =
      route(model, {host_of(model, from).label, ""}, {host_of(model, to).label, ""});
  if (!found.ok()) return 0;
  const uint64_t rate = rate_alone(model, found.value());
  return rate == kMaxBytesPerS ? 0 : rate;
}

std::string latency_text(uint64_t ns) {
  return ns == 0 ? "unknown" : fmt::format("{:.4g} us", static_cast<double>(ns) / 1000);
}

std::string crossed_text(const LinkModel& model, const std::vector<int>& crossed) {
  std::vector<std::string> parts;
  for (const int index : crossed) {
    const LinkResource& resource = model.resources[static_cast<size_t>(index)];
    parts.push_back(
        fmt::format("{} ({})", resource.name, present::byte_rate_text(resource.bytes_per_s)));
  }
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

std::string matrix(const LinkModel& model) {
  std::vector<int> shown = in_clusters(model, kMaxInTable + 1);
  std::string title = "rate of each pair alone, MB/s, from row to column";
  if (shown.size() > kMaxInTable) {
    title += ", of the first host of each cluster";
    shown.clear();
    for (size_t i = 0; i < model.clusters.size() && shown.size() < kMaxInTable; ++i) {
      const auto first =
          std::find_if(model.hosts.begin(), model.hosts.end(),
                       [i](const LinkHost& host) { return host.cluster == static_cast<int>(i); });
      shown.push_back(static_cast<int>(first - model.hosts.begin()));
    }
  }
  size_t width = 9;
  for (const int host : shown) width = std::max(width, host_of(model, host).label.size() + 1);
  std::string out = title + "\n" + std::string(width, ' ');
  for (const int to : shown) out += fmt::format("{:>{}}", host_of(model, to).label, width);
  out += "\n";
  for (const int from : shown) {
    out += fmt::format("{:<{}}", host_of(model, from).label, width);
    for (const int to : shown) {
      const uint64_t rate = pair_rate(model, from, to);
      out += fmt::format("{:>{}}",
                         rate == 0 ? "-" : fmt::format("{:.1f}", static_cast<double>(rate) / 1e6),
                         width);
    }
    out += "\n";
  }
  return out;
}

// --- picture ---------------------------------------------------------------------------------

constexpr int kMargin = 20;
constexpr int kTop = 64;
constexpr int kLetter = 7;
constexpr int kScaleWidth = 220;

struct Scale {
  double low = 0;
  double high = 0;

  void add(uint64_t rate) {
    if (rate == 0) return;
    const double value = std::log(static_cast<double>(rate));
    low = low == 0 ? value : std::min(low, value);
    high = std::max(high, value);
  }
  // Returns a colour between light yellow (slow) and dark blue (fast), or grey for an unknown rate.
  std::string colour(uint64_t rate) const {
    if (rate == 0) return "#eeeeee";
    const double at = high > low ? (std::log(static_cast<double>(rate)) - low) / (high - low) : 1;
    constexpr double kStops[][3] = {{255, 247, 188}, {127, 205, 187}, {29, 100, 168}, {8, 29, 88}};
    const double position = std::clamp(at, 0.0, 1.0) * (std::size(kStops) - 1);
    const size_t below = std::min(static_cast<size_t>(position), std::size(kStops) - 2);
    const double part = position - static_cast<double>(below);
    const auto channel = [&](int i) {
      return static_cast<int>(
          std::lround(kStops[below][i] * (1 - part) + kStops[below + 1][i] * part));
    };
    return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(1), channel(2));
  }
};

std::string fill_of(const std::string& colour) { return fmt::format(R"(fill="{}")", colour); }

// A heat map with the names of hosts, lines between clusters, and a scale of colours.
class HeatMap {
 public:
  explicit HeatMap(const LinkModel& model)
      : model_(model),
        hosts_(in_clusters(model, kMaxInPicture)),
        cell_(std::clamp(640 / static_cast<int>(hosts_.size()), 3, 44)) {
    size_t longest = 1;
    for (const int host : hosts_) longest = std::max(longest, host_of(model, host).label.size());
    left_ = kMargin + (named() ? static_cast<int>(longest) * kLetter + 8 : 0);
    top_ = kTop + (named() ? static_cast<int>(longest) * kLetter + 8 : 0);
  }

  std::string draw() {
    for (const int from : hosts_) {
      for (const int to : hosts_) rates_.push_back(pair_rate(model_, from, to));
    }
    for (const uint64_t rate : rates_) scale_.add(rate);
    const int side = cell_ * static_cast<int>(hosts_.size());
    const int width = std::max(left_ + side, kScaleWidth + 160) + kMargin;
    const int height = top_ + side + 60;
    present::Svg svg(width, height, 12,
                     fmt::format("rates of the links between {} hosts", model_.hosts.size()));
    svg.text(kMargin, 24, "Rate of each pair of hosts alone, from row to column",
             R"(font-size="15" font-weight="bold")");
    svg.text(kMargin, 44, subtitle(), R"(fill="#555")");
    draw_names(svg);
    draw_cells(svg);
    draw_borders(svg, side);
    draw_scale(svg, top_ + side + 24);
    return std::move(svg).take();
  }

 private:
  bool named() const { return cell_ >= 11; }

  std::string subtitle() const {
    std::string text = fmt::format("{} hosts in {} cluster{}", model_.hosts.size(),
                                   model_.clusters.size(), model_.clusters.size() == 1 ? "" : "s");
    if (hosts_.size() < model_.hosts.size()) {
      text += fmt::format(", the first {} of them", hosts_.size());
    }
    return model_.source.empty() ? text : text + "; " + model_.source;
  }

  void draw_names(present::Svg& svg) const {
    if (!named()) return;
    for (size_t i = 0; i < hosts_.size(); ++i) {
      const int middle = static_cast<int>(i) * cell_ + cell_ / 2 + 4;
      const std::string& label = host_of(model_, hosts_[i]).label;
      svg.text(left_ - 6, top_ + middle, label, R"(text-anchor="end")");
      svg.upright_text(left_ + middle, top_ - 6, label);
    }
  }

  void draw_cells(present::Svg& svg) const {
    const size_t count = hosts_.size();
    for (size_t i = 0; i < rates_.size(); ++i) {
      const LinkHost& from = host_of(model_, hosts_[i / count]);
      const LinkHost& to = host_of(model_, hosts_[i % count]);
      const int x = left_ + static_cast<int>(i % count) * cell_;
      const int y = top_ + static_cast<int>(i / count) * cell_;
      const std::string rate = rates_[i] == 0 ? "unknown" : present::byte_rate_text(rates_[i]);
      svg.rectangle(x, y, cell_, cell_, fill_of(scale_.colour(rates_[i])),
                    fmt::format("{} to {}: {}", from.label, to.label, rate));
    }
  }

  void draw_borders(present::Svg& svg, int side) const {
    for (size_t i = 0; i + 1 < hosts_.size(); ++i) {
      if (host_of(model_, hosts_[i]).cluster == host_of(model_, hosts_[i + 1]).cluster) continue;
      const int at = static_cast<int>(i + 1) * cell_;
      constexpr const char* kBorder = R"(stroke="#d62728" stroke-width="2")";
      svg.line(left_ + at, top_, left_ + at, top_ + side, kBorder);
      svg.line(left_, top_ + at, left_ + side, top_ + at, kBorder);
    }
    svg.rectangle(left_, top_, side, side, R"(fill="none" stroke="#888")");
  }

  void draw_scale(present::Svg& svg, int y) const {
    constexpr int kSteps = 44;
    if (scale_.high == 0) return;
    for (int i = 0; i < kSteps; ++i) {
      const double value = scale_.low + (scale_.high - scale_.low) * i / (kSteps - 1);
      svg.rectangle(kMargin + i * kScaleWidth / kSteps, y, kScaleWidth / kSteps, 10,
                    fill_of(scale_.colour(static_cast<uint64_t>(std::lround(std::exp(value))))));
    }
    const auto ends = [](double value) {
      return present::byte_rate_text(static_cast<uint64_t>(std::lround(std::exp(value))));
    };
    svg.text(kMargin, y + 24, ends(scale_.low));
    svg.text(kMargin + kScaleWidth, y + 24, ends(scale_.high), R"(text-anchor="end")");
    svg.text(kMargin + kScaleWidth + 14, y + 10, "red: between clusters", R"(fill="#d62728")");
  }

  const LinkModel& model_;
  const std::vector<int> hosts_;
  const int cell_;
  int left_ = 0;
  int top_ = 0;
  std::vector<uint64_t> rates_;
  Scale scale_;
};

}  // namespace

std::string draw_text(const LinkModel& model) {
  std::string out;
  if (!model.source.empty()) out += fmt::format("{}\n", printable(model.source));
  for (size_t i = 0; i < model.clusters.size(); ++i) {
    std::vector<std::string> labels;
    for (const LinkHost& host : model.hosts) {
      if (host.cluster == static_cast<int>(i)) labels.push_back(host.label);
    }
    out += fmt::format("{}: {}\n", model.clusters[i], fmt::join(labels, " "));
  }
  out += "\nhosts: what they send through, what they receive through\n";
  for (const LinkHost& host : model.hosts) {
    for (const LinkNic& nic : host.nics) {
      out += fmt::format("  {}{}{}: {}; {}\n", host.label, nic.name.empty() ? "" : " ", nic.name,
                         crossed_text(model, nic.out), crossed_text(model, nic.in));
    }
    if (host.inside.empty() && host.latency_ns == 0) continue;
    out += fmt::format("  {} inside: latency {}, {}\n", host.label, latency_text(host.latency_ns),
                       crossed_text(model, host.inside));
  }
  out += "\nbetween hosts: latency, and what all pairs share\n";
  for (size_t i = 0; i < model.paths.size(); ++i) {
    const ClusterPath& path = model.paths[i];
    if (!path.exists) continue;
    out += fmt::format("  {} to {}: {}, {}", model.clusters[i / model.clusters.size()],
                       model.clusters[i % model.clusters.size()], latency_text(path.latency_ns),
                       crossed_text(model, path.resources));
    if (path.single_bytes_per_s != 0) {
      out += fmt::format("; one transfer alone gets {}",
                         present::byte_rate_text(path.single_bytes_per_s));
    }
    out += "\n";
  }
  return out + "\n" + matrix(model);
}

std::string draw_svg(const LinkModel& model) { return HeatMap(model).draw(); }

}  // namespace hetcomm::topology
