#include "reshard/layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/faults.h"
#include "reshard/strided_addresses.h"

namespace hetcomm::reshard {
namespace {

// Checks the shape and the padded shape.
Status check_shape(const Layout& layout) {
  const size_t dimensions = layout.shape.size();
  if (dimensions == 0 || dimensions > kMaxDimensions) {
    return invalid(
        fmt::format("a tensor of {} dimensions: it must have 1 to {}", dimensions, kMaxDimensions));
  }
  if (!layout.padded_shape.empty() && layout.padded_shape.size() != dimensions) {
    return invalid(fmt::format("the shape has {} dimensions, the padded shape {}", dimensions,
                               layout.padded_shape.size()));
  }
  uint64_t elements = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    const uint64_t padded = layout.outer_shape()[i];
    if (padded < layout.shape[i]) {
      return invalid(
          fmt::format("dimension {} has {} elements, {} with padding", i, layout.shape[i], padded));
    }
    if (padded > kMaxElements / elements) {
      return invalid(fmt::format("the shape [{}] has more than 2^48 elements",
                                 fmt::join(layout.outer_shape(), ", ")));
    }
    elements *= std::max<uint64_t>(padded, 1);
  }
  return {};
}

// Returns whether two elements of |part| share an address in memory. Also returns kMeet if the part
// extends beyond kMaxElements.
Meeting find_repeat(const Part& part) {
  StridedAddresses addresses;
  addresses.dimensions = part.box.dimensions;
  uint64_t reach = 0;
  for (size_t i = 0; i < part.box.dimensions; ++i) {
    addresses.extents[i] = part.box.extent(i);
    addresses.strides[i] = part.strides[i];
    const uint64_t count = part.box.extent(i) - 1;
    if (count == 0) continue;
    if (part.strides[i] > (kMaxElements - reach) / count) return Meeting::kMeet;
    reach += part.strides[i] * count;
  }
  return find_repeat(addresses);
}

Status check_part(const Layout& layout, const Part& part) {
  if (part.rank < 0) return invalid(fmt::format("{}: ranks start at 0", name_of(part)));
  if (static_cast<size_t>(part.rank) >= kMaxParts) {
    return invalid(fmt::format("{}: there are not so many ranks", name_of(part)));
  }
  if (part.box.dimensions != layout.shape.size()) {
    return invalid(fmt::format("{}: the box has {} dimensions, the tensor {}", name_of(part),
                               part.box.dimensions, layout.shape.size()));
  }
  // A tensor without elements has only empty boxes.
  const bool is_empty = part.box.is_empty();
  if (is_empty && !layout.whole().is_empty()) {
    return invalid(fmt::format("{}: the box is empty", name_of(part)));
  }
  if (!whole_of(layout.outer_shape()).contains(part.box)) {
    return invalid(fmt::format("{}: the box is not inside of the shape [{}]", name_of(part),
                               fmt::join(layout.outer_shape(), ", ")));
  }
  if (part.term >= layout.terms) {
    return invalid(
        fmt::format("{}: term {} of a sum of {}", name_of(part), part.term, layout.terms));
  }
  if (part.offset > kMaxElements) {
    return invalid(fmt::format("{}: offset {} is beyond 2^48", name_of(part), part.offset));
  }
  const Meeting meeting = is_empty ? Meeting::kApart : find_repeat(part);
  if (meeting == Meeting::kApart) return {};
  return invalid(fmt::format(
      "{}: with the strides [{}] several elements {} lie at one place", name_of(part),
      fmt::join(part.strides.begin(), part.strides.begin() + part.box.dimensions, ", "),
      meeting == Meeting::kMeet ? "would" : "might, for all that can be told in time,"));
}

// Returns the boxes of |parts|.
std::vector<Box> boxes_of(const std::vector<const Part*>& parts) {
  std::vector<Box> boxes;
  boxes.reserve(parts.size());
  for (const Part* part : parts) boxes.push_back(part->box);
  return boxes;
}

// Returns the first region of |where|, in index order, that no box covers, or nullopt if the boxes
// cover all of it.
std::optional<Box> find_hole(Box where, const std::vector<Box>& boxes, size_t dimension = 0) {
  if (boxes.empty()) return where;
  if (dimension == where.dimensions) return std::nullopt;
  std::vector<uint64_t> cuts = {where.begin[dimension], where.end[dimension]};
  for (const Box& box : boxes) {
    for (const uint64_t cut : {box.begin[dimension], box.end[dimension]}) {
      if (cut > where.begin[dimension] && cut < where.end[dimension]) cuts.push_back(cut);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    Box slab = where;
    slab.begin[dimension] = cuts[i];
    slab.end[dimension] = cuts[i + 1];
    std::vector<Box> inside;
    for (const Box& box : boxes) {
      if (box.begin[dimension] <= cuts[i] && box.end[dimension] > cuts[i]) inside.push_back(box);
    }
    if (std::optional<Box> hole = find_hole(slab, inside, dimension + 1)) return hole;
  }
  return std::nullopt;
}

// Checks the parts of one copy of one term.
Status check_copy(const Layout& layout, const std::vector<const Part*>& parts) {
  if (const auto overlap = find_overlap(boxes_of(parts))) {
    return invalid(
        fmt::format("{} overlaps {}: where ranks shall hold the same elements, give "
                    "their boxes different copy numbers",
                    name_of(*parts[overlap->second]), name_of(*parts[overlap->first])));
  }
  if (parts.front()->copy != 0) return {};
  uint64_t elements = 0;
  std::vector<Box> boxes;
  for (const Part* part : parts) {
    boxes.push_back(clip(layout, *part));
    elements += boxes.back().elements();
  }
  if (elements == layout.whole().elements()) return {};
  const std::optional<Box> hole = find_hole(layout.whole(), boxes);
  const std::string of =
      layout.terms > 1 ? fmt::format("term {} of the sum: ", parts.front()->term) : std::string();
  return invalid(fmt::format("{}no rank holds {}", of, to_text(hole.value_or(layout.whole()))));
}

}  // namespace

std::string name_of(const Part& part) {
  return fmt::format("rank {}, box {}", part.rank, to_text(part.box));
}

Numbers dense_strides(const Box& box) {
  Numbers strides{};
  uint64_t step = 1;
  for (size_t i = box.dimensions; i-- > 0;) {
    strides[i] = step;
    step *= box.extent(i);
  }
  return strides;
}

uint64_t count_copies(const Layout& layout) {
  std::set<uint32_t> copies;
  for (const Part& part : layout.parts) copies.insert(part.copy);
  return std::max<uint64_t>(copies.size(), 1);
}

Box clip(const Layout& layout, const Part& part) { return intersection(part.box, layout.whole()); }

Status check(const Layout& layout) {
  HETCOMM_RETURN_IF_ERROR(check_shape(layout));
  if (layout.terms == 0) return invalid("a sum of 0 terms");
  if (layout.divisor == 0) return invalid("a sum divided by 0");
  if (layout.terms == 1 && layout.divisor != 1) {
    return invalid(fmt::format("one term divided by {}: only sums are divided", layout.divisor));
  }
  if (layout.parts.size() > kMaxParts) {
    return invalid(fmt::format("{} boxes: at most {} are allowed", layout.parts.size(), kMaxParts));
  }
  std::map<std::pair<uint32_t, uint32_t>, std::vector<const Part*>> copies;  // by term and copy
  std::map<int, std::vector<const Part*>> ranks;
  for (const Part& part : layout.parts) {
    HETCOMM_RETURN_IF_ERROR(check_part(layout, part));
    copies[{part.term, part.copy}].push_back(&part);
    ranks[part.rank].push_back(&part);
  }
  for (uint32_t term = 0; term < layout.terms && !layout.whole().is_empty(); ++term) {
    if (copies.count({term, 0}) != 0) continue;
    return layout.terms == 1 ? invalid(fmt::format("no rank holds {}", to_text(layout.whole())))
                             : invalid(fmt::format("no rank holds term {} of the sum", term));
  }
  for (const auto& [which, parts] : copies) HETCOMM_RETURN_IF_ERROR(check_copy(layout, parts));
  for (const auto& [rank, parts] : ranks) {
    if (const auto overlap = find_overlap(boxes_of(parts))) {
      const Box both = intersection(parts[overlap->first]->box, parts[overlap->second]->box);
      return invalid(
          fmt::format("rank {} holds {} twice: it is in two places", rank, to_text(both)));
    }
  }
  return {};
}

uint64_t elements_needed(const Layout& layout, int rank) {
  uint64_t end = 0;
  for (const Part& part : layout.parts) {
    if (part.rank != rank) continue;
    const Box box = clip(layout, part);
    if (box.is_empty()) continue;
    uint64_t last = part.offset;
    for (size_t d = 0; d < box.dimensions; ++d) {
      last += (box.end[d] - 1 - part.box.begin[d]) * part.strides[d];
    }
    end = std::max(end, last + 1);
  }
  return end;
}

std::string to_table(const Layout& layout) {
  std::string text = fmt::format("shape [{}]", fmt::join(layout.shape, ", "));
  if (!layout.padded_shape.empty()) {
    text += fmt::format(", padded to [{}]", fmt::join(layout.padded_shape, ", "));
  }
  const bool has_copies = std::any_of(layout.parts.begin(), layout.parts.end(),
                                      [](const Part& part) { return part.copy != 0; });
  if (layout.terms > 1) text += fmt::format(", a sum of {} terms", layout.terms);
  if (layout.divisor > 1) text += fmt::format(" divided by {}", layout.divisor);
  text += fmt::format("\n{:>6}  {}{}{:<32}  {}\n", "rank", has_copies ? "copy  " : "",
                      layout.terms > 1 ? "term  " : "", "box", "memory");
  for (const Part& part : layout.parts) {
    text += fmt::format("{:>6}  ", part.rank);
    if (has_copies) text += fmt::format("{:>4}  ", part.copy);
    if (layout.terms > 1) text += fmt::format("{:>4}  ", part.term);
    const bool is_dense = part.offset == 0 && part.strides == dense_strides(part.box);
    text += fmt::format(
        "{:<32}  {}\n", to_text(part.box),
        is_dense ? std::string("dense")
                 : fmt::format(
                       "offset {}, strides [{}]", part.offset,
                       fmt::join(part.strides.begin(),
                                 part.strides.begin() + static_cast<ptrdiff_t>(part.box.dimensions),
                                 ", ")));
  }
  return text;
}

}  // namespace hetcomm::reshard
