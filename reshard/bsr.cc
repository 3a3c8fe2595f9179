#include "reshard/bsr.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/faults.h"

namespace hetcomm::reshard {
namespace {

// The boundaries of all boxes, per dimension.
using Cuts = std::vector<std::vector<uint64_t>>;

Cuts cuts_of(const Layout& source, const Layout& destination) {
  Cuts cuts(source.shape.size());
  for (const Layout* layout : {&source, &destination}) {
    for (const Part& part : layout->parts) {
      const Box box = clip(*layout, part);
      if (box.is_empty()) continue;
      for (size_t d = 0; d < cuts.size(); ++d) {
        cuts[d].push_back(box.begin[d]);
        cuts[d].push_back(box.end[d]);
      }
    }
  }
  for (std::vector<uint64_t>& each : cuts) {
    std::sort(each.begin(), each.end());
    each.erase(std::unique(each.begin(), each.end()), each.end());
  }
  return cuts;
}

// Calls |use| with every piece of |box|, in the order of indices.
template <typename Use>
void for_each_piece(const Box& box, const Cuts& cuts, size_t dimension, Box& piece, Use& use) {
  if (dimension == cuts.size()) {
    use(piece);
    return;
  }
  const std::vector<uint64_t>& along = cuts[dimension];
  auto at = std::lower_bound(along.begin(), along.end(), box.begin[dimension]);
  for (; *at < box.end[dimension]; ++at) {
    piece.begin[dimension] = *at;
    piece.end[dimension] = *(at + 1);
    for_each_piece(box, cuts, dimension + 1, piece, use);
  }
}

// Merges |other| into |one| if they form one box. Returns whether they do.
bool join(Box& one, const Box& other) {
  size_t along = one.dimensions;
  for (size_t d = 0; d < one.dimensions; ++d) {
    if (one.begin[d] == other.begin[d] && one.end[d] == other.end[d]) continue;
    if (along != one.dimensions || one.end[d] != other.begin[d]) return false;
    along = d;
  }
  if (along == one.dimensions) return false;
  one.end[along] = other.end[along];
  return true;
}

// Joins pieces between the same parts, along the last dimensions first. |boxes| are sorted by
// index.
void join_all(std::vector<Box>& boxes) {
  for (bool joined = true; joined;) {
    joined = false;
    std::vector<Box> left;
    for (const Box& box : boxes) {
      if (!left.empty() && join(left.back(), box)) {
        joined = true;
      } else {
        left.push_back(box);
      }
    }
    boxes = std::move(left);
  }
}

class SenderChoice {
 public:
  SenderChoice(const Layout& source, const Layout& destination, uint64_t element_bytes,
               const Links* links, SendLoads& loads)
      : source_(source),
        destination_(destination),
        element_bytes_(element_bytes),
        links_(links),
        loads_(loads) {
    int last = 0;
    for (const Part& part : source.parts) {
      last = std::max(last, part.rank);
      clipped_.push_back(clip(source, part));
    }
    const auto ranks = static_cast<size_t>(last) + 1;
    if (loads.bytes.size() < ranks) loads.bytes.resize(ranks);
  }

  std::vector<Move> moves() {
    const Cuts cuts = cuts_of(source_, destination_);
    struct Need {
      Box piece;
      uint32_t to;
    };
    std::vector<Need> needs;
    for (uint32_t to = 0; to < destination_.parts.size(); ++to) {
      const Box box = clip(destination_, destination_.parts[to]);
      if (box.is_empty()) continue;
      Box piece;
      piece.dimensions = box.dimensions;
      const auto add = [&](const Box& each) { needs.push_back({each, to}); };
      for_each_piece(box, cuts, 0, piece, add);
    }
    std::stable_sort(needs.begin(), needs.end(), [](const Need& one, const Need& other) {
      return one.piece.begin < other.piece.begin;
    });
    std::map<std::pair<uint32_t, uint32_t>, std::vector<Box>> chosen;  // by receiving, sending part
    std::vector<uint32_t> owners;                                      // holders of |looked_at|
    const Box* looked_at = nullptr;
    for (const Need& need : needs) {
      if (looked_at == nullptr || looked_at->begin != need.piece.begin) {
        owners.clear();
        for (uint32_t from = 0; from < clipped_.size(); ++from) {
          if (clipped_[from].contains(need.piece)) owners.push_back(from);
        }
        looked_at = &need.piece;
      }
      chosen[{need.to, choose(owners, destination_.parts[need.to].rank, need.piece)}].push_back(
          need.piece);
    }
    std::vector<Move> moves;
    for (auto& [ends, boxes] : chosen) {
      join_all(boxes);
      for (const Box& box : boxes) moves.push_back({ends.second, ends.first, box, false});
    }
    return moves;
  }

 private:
  uint32_t choose(const std::vector<uint32_t>& owners, int needer, const Box& piece) {
    // Smaller is better; owners are in the order of |source|.
    using Key = std::tuple<bool, uint64_t, uint64_t>;  // remote, slowness, load
    uint32_t best = owners.front();
    Key least{true, UINT64_MAX, UINT64_MAX};
    for (const uint32_t from : owners) {
      const int rank = source_.parts[from].rank;
      const uint64_t slowness =
          links_ == nullptr || rank == needer ? 0 : UINT64_MAX - links_->bytes_per_s(rank, needer);
      const Key key(rank != needer, slowness, loads_.bytes[static_cast<size_t>(rank)]);
      if (key < least) {
        least = key;
        best = from;
      }
    }
    const int rank = source_.parts[best].rank;
    if (rank != needer) {
      loads_.bytes[static_cast<size_t>(rank)] += piece.elements() * element_bytes_;
    }
    return best;
  }

  const Layout& source_;
  const Layout& destination_;
  const uint64_t element_bytes_;
  const Links* const links_;
  SendLoads& loads_;
  std::vector<Box> clipped_;  // by part of |source_|
};

}  // namespace

Result<MovePlan> plan_bsr(const Layout& source, const Layout& destination, uint64_t element_bytes,
                          const Links* links, SendLoads& loads, std::optional<int> rank) {
  if (source.shape != destination.shape) {
    return invalid(fmt::format("the source has shape [{}], the destination [{}]",
                               fmt::join(source.shape, ", "), fmt::join(destination.shape, ", ")));
  }
  if (source.terms != 1 || destination.terms != 1) {
    return unsupported(fmt::format("a sum of {} terms: batched send-receive does not add",
                                   std::max(source.terms, destination.terms)));
  }
  for (const Layout* layout : {&source, &destination}) {
    for (const Part& part : layout->parts) {
      if (links == nullptr || static_cast<size_t>(part.rank) < links->ranks()) continue;
      return invalid(fmt::format("rank {} holds a part, and its links are not known", part.rank));
    }
  }
  MovePlan plan;
  plan.strategy = "bsr";
  plan.source = source;
  Hop& hop = plan.hops.emplace_back();
  hop.to = destination;
  for (const Move& move : SenderChoice(source, destination, element_bytes, links, loads).moves()) {
    if (rank && source.parts[move.from].rank != *rank && destination.parts[move.to].rank != *rank) {
      continue;
    }
    hop.moves.push_back(move);
  }
  return plan;
}

}  // namespace hetcomm::reshard
