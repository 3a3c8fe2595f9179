#include "reshard/memory_rule.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/core.h>

#include "reshard/faults.h"

namespace hetcomm::reshard {
namespace {

// Returns the addresses, in elements, of |box|, which begins where |part| begins.
StridedAddresses addresses_of(const Part& part, const Box& box) {
  StridedAddresses addresses;
  addresses.offset = part.offset;
  addresses.dimensions = box.dimensions;
  for (size_t d = 0; d < box.dimensions; ++d) {
    addresses.extents[d] = box.extent(d);
    addresses.strides[d] = part.strides[d];
  }
  return addresses;
}

// A part of a destination, and its box without the padding.
struct Held {
  const Part* part = nullptr;
  Box box;
};

// Returns whether all of |held| are non-overlapping pieces of one array: they have the same
// strides, and their offsets correspond to indices of the array. Meshes produce many such parts.
bool are_pieces_of_one_array(const std::vector<Held>& held) {
  const Part& first = *held.front().part;
  const size_t dimensions = first.box.dimensions;
  uint64_t base = first.offset;
  for (const Held& each : held) {
    if (each.part->strides != first.strides) return false;
    base = std::min(base, each.part->offset);
  }
  std::vector<size_t> order;  // longest stride first
  for (size_t d = 0; d < dimensions; ++d) {
    if (first.strides[d] > 0) order.push_back(d);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t one, size_t other) { return first.strides[one] > first.strides[other]; });
  StridedAddresses array;
  array.dimensions = dimensions;
  array.extents.fill(1);
  std::copy(first.strides.begin(), first.strides.end(), array.strides.begin());
  std::vector<Box> pieces;
  pieces.reserve(held.size());
  for (const Held& each : held) {
    uint64_t rest = each.part->offset - base;
    Box piece;
    piece.dimensions = dimensions;
    for (const size_t d : order) {
      piece.begin[d] = rest / first.strides[d];
      rest %= first.strides[d];
    }
    if (rest != 0) return false;
    for (size_t d = 0; d < dimensions; ++d) {
      piece.end[d] = piece.begin[d] + each.box.extent(d);
      array.extents[d] = std::max(array.extents[d], piece.end[d]);
    }
    pieces.push_back(piece);
  }
  return find_repeat(array) == Meeting::kApart && !find_overlap(pieces);
}

// Sweeps through the memory, and compares each box with the boxes that have not ended before it.
Status check_addresses(std::vector<Held> held) {
  std::stable_sort(held.begin(), held.end(), [](const Held& one, const Held& other) {
    return one.part->offset < other.part->offset;
  });
  struct Open {
    const Held* held;
    StridedAddresses addresses;
  };
  std::vector<Open> open;
  for (const Held& each : held) {
    const StridedAddresses addresses = addresses_of(*each.part, each.box);
    std::erase_if(open,
                  [&](const Open& other) { return other.addresses.end() <= addresses.offset; });
    for (const Open& other : open) {
      const Meeting meeting = find_meeting(other.addresses, addresses);
      if (meeting == Meeting::kApart) continue;
      // The error names the box that is listed later.
      const bool in_order = other.held->part < each.part;
      const Part& later = in_order ? *each.part : *other.held->part;
      const Part& before = in_order ? *other.held->part : *each.part;
      return invalid(
          meeting == Meeting::kMeet
              ? fmt::format("{} lies over box {} in the rank's memory, and no element of a "
                            "destination is written twice: look at its offset and strides",
                            name_of(later), to_text(before.box))
              : fmt::format("{}: it cannot be told in time whether it lies over box {} in the "
                            "rank's memory",
                            name_of(later), to_text(before.box)));
    }
    open.push_back({&each, addresses});
  }
  return {};
}

// Returns whether the elements that both boxes contain are at the same addresses, and no two
// different elements share an address.
bool stays(const PlacedBox& one, const PlacedBox& other, int64_t distance) {
  if (one.term != other.term) return false;
  StridedAddresses both;
  both.dimensions = one.addresses.dimensions;
  int64_t apart = 0;  // expected distance of the first elements if both boxes are in one array
  for (size_t d = 0; d < one.box.dimensions; ++d) {
    const bool is_single = one.box.extent(d) == 1 && other.box.extent(d) == 1;
    if (is_single && one.box.begin[d] == other.box.begin[d]) {
      both.extents[d] = 1;
      continue;
    }
    if (one.addresses.strides[d] != other.addresses.strides[d]) return false;
    const auto stride = static_cast<int64_t>(one.addresses.strides[d]);
    apart += (static_cast<int64_t>(other.box.begin[d]) - static_cast<int64_t>(one.box.begin[d])) *
             stride;
    both.strides[d] = one.addresses.strides[d];
    both.extents[d] =
        std::max(one.box.end[d], other.box.end[d]) - std::min(one.box.begin[d], other.box.begin[d]);
  }
  // The innermost extent is the size of an element in bytes.
  both.extents[one.box.dimensions] = one.addresses.extents[one.box.dimensions];
  both.strides[one.box.dimensions] = 1;
  const int64_t offsets = static_cast<int64_t>(other.addresses.offset) + distance -
                          static_cast<int64_t>(one.addresses.offset);
  return apart == offsets && find_repeat(both) == Meeting::kApart;
}

}  // namespace

Status check_destination(const Layout& layout) {
  std::map<int, std::vector<Held>> ranks;
  for (const Part& part : layout.parts) {
    const Box box = clip(layout, part);
    if (!box.is_empty()) ranks[part.rank].push_back({&part, box});
  }
  for (auto& [rank, held] : ranks) {
    if (held.size() < 2 || are_pieces_of_one_array(held)) continue;
    HETCOMM_RETURN_IF_ERROR(check_addresses(std::move(held)));
  }
  return {};
}

Footprint footprint_of(const Layout& layout, int rank, uint64_t element_bytes) {
  Footprint footprint;
  for (const Part& part : layout.parts) {
    if (part.rank != rank) continue;
    PlacedBox placed;
    placed.box = clip(layout, part);
    if (placed.box.is_empty()) continue;
    placed.term = part.term;
    placed.addresses = addresses_of(part, placed.box);
    StridedAddresses& addresses = placed.addresses;
    addresses.offset *= element_bytes;
    for (size_t d = 0; d < addresses.dimensions; ++d) addresses.strides[d] *= element_bytes;
    addresses.extents[addresses.dimensions] = element_bytes;
    addresses.strides[addresses.dimensions++] = 1;
    placed.begin = addresses.offset;
    placed.end = addresses.end();
    footprint.boxes.push_back(placed);
  }
  std::sort(footprint.boxes.begin(), footprint.boxes.end(),
            [](const PlacedBox& one, const PlacedBox& other) { return one.begin < other.begin; });
  for (PlacedBox& box : footprint.boxes) {
    footprint.end = std::max(footprint.end, box.end);
    box.furthest = footprint.end;
  }
  if (!footprint.boxes.empty()) footprint.begin = footprint.boxes.front().begin;
  return footprint;
}

Meeting find_meeting(const Footprint& one, const Footprint& other, int64_t distance,
                     bool may_stay) {
  const auto at = [](uint64_t address) { return static_cast<int64_t>(address); };
  for (const PlacedBox& box : one.boxes) {
    // Iterates backwards over the boxes of |other| that begin before |box| ends.
    auto next = std::partition_point(
        other.boxes.begin(), other.boxes.end(),
        [&](const PlacedBox& each) { return at(each.begin) + distance < at(box.end); });
    while (next != other.boxes.begin()) {
      --next;
      if (at(next->furthest) + distance <= at(box.begin)) break;
      if (at(next->end) + distance <= at(box.begin)) continue;
      if (may_stay && stays(box, *next, distance)) continue;
      const Meeting meeting = find_meeting(box.addresses, next->addresses, distance);
      if (meeting != Meeting::kApart) return meeting;
    }
  }
  return Meeting::kApart;
}

}  // namespace hetcomm::reshard
