#include "topology/machine/draw.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "src/present/svg.h"
#include "topology/machine/labels.h"
#include "topology/machine/tree.h"

namespace hetcomm::topology {
namespace {

// --- text ------------------------------------------------------------------------------------

void draw_items(const std::vector<TreeItem>& items, const std::string& indent, std::string& out) {
  for (size_t i = 0; i < items.size(); ++i) {
    const bool is_last = i + 1 == items.size();
    out += fmt::format("{}{} {}\n", indent, is_last ? "└─" : "├─", items[i].text);
    draw_items(items[i].children, indent + (is_last ? "   " : "│  "), out);
  }
}

using Row = std::vector<std::string>;

Row matrix_row(const Machine& machine, std::string label, const Location& location,
               const NicOrder& order) {
  Row row{std::move(label)};
  for (size_t i = 0; i < machine.nics.size(); ++i) {
    const auto chosen = std::find_if(order.begin(), order.end(), [i](const NicChoice& choice) {
      return choice.nic == static_cast<int>(i);
    });
    std::string cell = matrix_word(machine, location, machine.nics[i]);
    if (chosen == order.end()) cell = "-";
    if (chosen == order.begin() && !order.empty()) cell += "*";
    row.push_back(std::move(cell));
  }
  return row;
}

std::string draw_matrix(const Machine& machine, const Affinity& affinity) {
  std::vector<Row> rows{{""}};
  for (size_t i = 0; i < machine.nics.size(); ++i) rows[0].push_back(nic_label(i));
  for (size_t i = 0; i < machine.accelerators.size(); ++i) {
    rows.push_back(matrix_row(machine, accelerator_label(i), location_of(machine.accelerators[i]),
                              affinity.accelerators[i]));
  }
  for (size_t i = 0; i < machine.numa_nodes.size(); ++i) {
    rows.push_back(matrix_row(machine, fmt::format("numa{}", machine.numa_nodes[i].number),
                              location_of_memory(static_cast<int>(i)), affinity.numa_nodes[i]));
  }
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

constexpr const char* kLegend =
    "PIX   the same PCIe switch, or one port\n"
    "PXB   several PCIe switches in a row\n"
    "PHB   the same root complex\n"
    "NODE  the same NUMA node\n"
    "SYS   another NUMA node, or not known\n"
    "*     used first    -  not used: it is down, a bridge, excluded, or there are 64 better "
    "ones\n";

// --- picture ---------------------------------------------------------------------------------

constexpr int kLeafWidth = 190;
constexpr int kLeafHeight = 46;
constexpr int kGap = 10;
constexpr int kTitle = 22;

// The position and size of an item in the picture, in pixels.
struct Box {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
};

bool is_leaf(const TreeItem& item) {
  return item.kind == TreeKind::kAccelerator || item.kind == TreeKind::kNic;
}

const char* fill_of(TreeKind kind) {
  switch (kind) {
    case TreeKind::kHost:
      return "#ffffff";
    case TreeKind::kNumaNode:
      return "#f4f6f8";
    case TreeKind::kRootComplex:
      return "#e8edf2";
    case TreeKind::kSwitch:
      return "#dbe4ee";
    case TreeKind::kAccelerator:
      return "#bfe3c0";
    case TreeKind::kNic:
      break;
  }
  return "#ffd9a8";
}

class Picture {
 public:
  Picture(const Machine& machine, const Affinity& affinity)
      : accelerators_(machine.accelerators.size()),
        nics_(machine.nics.size()),
        affinity_(affinity) {}

  std::string draw(const TreeItem& host) {
    const Box box = place(host, kGap, kGap);
    present::Svg svg(box.width + 2 * kGap, box.height + 2 * kGap, 11,
                     "network interfaces and accelerators of a machine");
    for (const auto& [item, where] : frames_) draw_frame(svg, *item, where);
    for (size_t i = 0; i < accelerators_.size(); ++i) join(svg, i);
    return std::move(svg).take();
  }

 private:
  // Determines the boxes of an item and its children. The children of the host and of NUMA nodes
  // are arranged side by side, and those of root complexes and switches are stacked vertically.
  Box place(const TreeItem& item, int x, int y) {
    Box box{x, y, kLeafWidth, kLeafHeight};
    const size_t at = frames_.size();
    if (!is_leaf(item)) {
      const bool is_row = item.kind == TreeKind::kHost || item.kind == TreeKind::kNumaNode;
      int next_x = x + kGap;
      int next_y = y + kTitle;
      int right = x + kGap + kLeafWidth;
      int bottom = next_y;
      for (const TreeItem& child : item.children) {
        const Box inner = place(child, next_x, next_y);
        right = std::max(right, inner.x + inner.width);
        bottom = std::max(bottom, inner.y + inner.height);
        (is_row ? next_x : next_y) = (is_row ? right : bottom) + kGap;
      }
      box.width = right + kGap - x;
      box.height = bottom + kGap - y;
    }
    // Frames are drawn in the order of |frames_|. The item's frame precedes those of its children,
    // which are drawn on top of it.
    frames_.insert(frames_.begin() + static_cast<std::ptrdiff_t>(at), {&item, box});
    remember(item, box);
    return box;
  }

  // Draws the box and the text of an item. In a leaf, the label is above the details. A tooltip
  // shows the complete text.
  static void draw_frame(present::Svg& svg, const TreeItem& item, const Box& box) {
    svg.rectangle(box.x, box.y, box.width, box.height,
                  fmt::format(R"(rx="4" fill="{}" stroke="#667788")", fill_of(item.kind)),
                  item.text);
    const size_t space = item.text.find(' ');
    const bool two_lines = is_leaf(item) && space != std::string::npos;
    svg.text(box.x + 6, box.y + 15,
             two_lines ? item.text.substr(0, space) : shortened(item.text, box),
             is_leaf(item) ? R"(font-weight="bold")" : "");
    if (two_lines) svg.text(box.x + 6, box.y + 32, shortened(item.text.substr(space + 1), box));
  }

  static std::string shortened(std::string_view text, const Box& box) {
    constexpr int kCharacter = 6;
    const auto most = static_cast<size_t>(std::max(4, box.width / kCharacter));
    if (text.size() <= most) return std::string(text);
    size_t end = most - 3;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    return std::string(text.substr(0, end)) + "...";
  }

  void remember(const TreeItem& item, const Box& box) {
    if (item.kind == TreeKind::kAccelerator) accelerators_[static_cast<size_t>(item.index)] = box;
    if (item.kind == TreeKind::kNic) nics_[static_cast<size_t>(item.index)] = box;
  }

  void join(present::Svg& svg, size_t accelerator) const {
    const NicOrder& order = affinity_.accelerators[accelerator];
    if (order.empty()) return;
    const Box& from = accelerators_[accelerator];
    const Box& to = nics_[static_cast<size_t>(order.front().nic)];
    const int from_x = from.x + from.width;
    const int to_x = to.x + to.width;
    const int bend = std::max(from_x, to_x) + 28;
    svg.shape("path", fmt::format(R"(d="M{} {} C{} {} {} {} {} {}" fill="none" stroke="#b05000" )"
                                  R"(stroke-width="1.5")",
                                  from_x, from.y + from.height / 2, bend, from.y + from.height / 2,
                                  bend, to.y + to.height / 2, to_x, to.y + to.height / 2));
  }

  std::vector<Box> accelerators_;
  std::vector<Box> nics_;
  const Affinity& affinity_;
  std::vector<std::pair<const TreeItem*, Box>> frames_;
};

}  // namespace

std::string draw_text(const Machine& machine, const Affinity& affinity) {
  const TreeItem host = make_tree(machine);
  std::string out = host.text + "\n";
  draw_items(host.children, "", out);
  if (machine.nics.empty()) return out + "\nno network interface\n";
  return out + "\n" + draw_matrix(machine, affinity) + "\n" + kLegend;
}

std::string draw_svg(const Machine& machine, const Affinity& affinity) {
  return Picture(machine, affinity).draw(make_tree(machine));
}

}  // namespace hetcomm::topology
