#include "reshard/bsr.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reshard/faults.h"

namespace hetcomm::reshard {
namespace {

// The boundaries of all boxes, indexed by dimension.
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

// Calls |use| with every piece of |box|, in index order.
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

// Merges |other| into |one| if it continues |one| along a single dimension, so that the two form
// one box. Returns whether it did.
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

// Merges consecutive entries of |boxes| that form one box, until there are none left to merge.
// |boxes| are sorted by index.
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

// A piece of the tensor, and the index of the destination part that needs it.
struct Need {
  Box piece;
  uint32_t to;
};

// A division of a piece into equal chunks along one dimension. Holders send chunks of a piece that
// they share.
struct Chunks {
  size_t dimension = 0;
  uint64_t count = 1;

  uint64_t begin(const Box& piece, uint64_t chunk) const {
    return piece.begin[dimension] + piece.extent(dimension) * chunk / count;
  }
};

// Divides |piece| into chunks of about |slice_bytes|, or into fewer and larger ones if the piece
// is too short in every dimension or would have more than kMaxChunks. Prefers outer dimensions,
// whose chunks are contiguous in most layouts.
Chunks chunks_of(const Box& piece, uint64_t bytes, uint64_t slice_bytes) {
  constexpr uint64_t kMaxChunks = 64;
  Chunks chunks;
  chunks.count = std::min((bytes + slice_bytes - 1) / slice_bytes, kMaxChunks);
  while (chunks.dimension + 1 < piece.dimensions && piece.extent(chunks.dimension) < chunks.count) {
    ++chunks.dimension;
  }
  if (piece.extent(chunks.dimension) >= chunks.count) return chunks;
  for (size_t d = 0; d < piece.dimensions; ++d) {
    if (piece.extent(d) > piece.extent(chunks.dimension)) chunks.dimension = d;
  }
  chunks.count = std::min(chunks.count, piece.extent(chunks.dimension));
  return chunks;
}

class SenderChoice {
 public:
  SenderChoice(const Layout& source, const Layout& destination, uint64_t element_bytes,
               uint64_t slice_bytes, SendLoads& loads)
      : source_(source),
        destination_(destination),
        element_bytes_(element_bytes),
        slice_bytes_(slice_bytes),
        loads_(loads) {
    for (const Part& part : source.parts) clipped_.push_back(clip(source, part));
  }

  std::vector<Move> moves() {
    std::vector<uint32_t> owners;  // parts of the source that contain |looked_at|
    const Box* looked_at = nullptr;
    const std::vector<Need> needs = all_needs();
    for (const Need& need : needs) {
      if (looked_at == nullptr || looked_at->begin != need.piece.begin) {
        owners.clear();
        for (uint32_t from = 0; from < clipped_.size(); ++from) {
          if (clipped_[from].contains(need.piece)) owners.push_back(from);
        }
        looked_at = &need.piece;
      }
      choose(owners, need);
    }
    std::vector<Move> moves;
    for (auto& [ends, boxes] : chosen_) {
      join_all(boxes);
      for (const Box& box : boxes) moves.push_back({ends.second, ends.first, box, false});
    }
    return moves;
  }
  // Returns the positions at which holders divide a piece, in ascending order.
  std::vector<Cut> cuts() const { return {cuts_.begin(), cuts_.end()}; }

 private:
  using Candidate = std::pair<SendLoads::Cost, uint32_t>;  // cost and index among the owners

  std::vector<Need> all_needs() const {
    const Cuts cuts = cuts_of(source_, destination_);
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
    return needs;
  }

  int rank_of(uint32_t owner) const { return source_.parts[owner].rank; }
  uint64_t bytes_of(const Box& box) const { return box.elements() * element_bytes_; }

  void choose(const std::vector<uint32_t>& owners, const Need& need) {
    if (owners.size() == 1) return send(owners.front(), need.to, need.piece);
    const int needer = destination_.parts[need.to].rank;
    const uint64_t bytes = bytes_of(need.piece);
    const bool is_long = slice_bytes_ != 0 && bytes > slice_bytes_;
    Candidate best{{Reach::kNetwork, UINT64_MAX, UINT64_MAX, UINT64_MAX}, 0};
    for (uint32_t i = 0; i < owners.size(); ++i) {
      const Candidate each{loads_.cost(rank_of(owners[i]), needer, bytes), i};
      best = std::min(best, each);
    }
    if (is_long && best.first.reach == Reach::kNetwork) {
      share(owners, need);
    } else {
      send(owners[best.second], need.to, need.piece);
    }
  }

  // Assigns each chunk of a piece to the holder that has the least cost at that point. The chunks
  // of one holder are contiguous.
  void share(const std::vector<uint32_t>& owners, const Need& need) {
    const Box& piece = need.piece;
    const Chunks chunks = chunks_of(piece, bytes_of(piece), slice_bytes_);
    const uint64_t rows = piece.extent(chunks.dimension);
    const uint64_t row_bytes = bytes_of(piece) / rows;
    // The lengths of chunks differ by at most one row. Every chunk is costed as the longest one, so
    // costs only grow, and a stored cost is a lower bound.
    const uint64_t chunk_bytes = (rows + chunks.count - 1) / chunks.count * row_bytes;
    const int needer = destination_.parts[need.to].rank;
    std::vector<Candidate> candidates;
    for (uint32_t i = 0; i < owners.size(); ++i) candidates.emplace_back(SendLoads::Cost(), i);
    const auto is_after = [](const Candidate& one, const Candidate& other) { return other < one; };
    std::make_heap(candidates.begin(), candidates.end(), is_after);
    std::vector<uint64_t> counts(owners.size());
    for (uint64_t chunk = 0; chunk < chunks.count; ++chunk) {
      for (;;) {
        std::pop_heap(candidates.begin(), candidates.end(), is_after);
        auto& [known, owner] = candidates.back();
        const SendLoads::Cost now = loads_.cost(rank_of(owners[owner]), needer, chunk_bytes);
        if (now == known) break;
        known = now;
        std::push_heap(candidates.begin(), candidates.end(), is_after);
      }
      const uint32_t owner = candidates.back().second;
      const uint64_t begin = chunks.begin(piece, chunk);
      loads_.add(rank_of(owners[owner]), needer,
                 (chunks.begin(piece, chunk + 1) - begin) * row_bytes);
      ++counts[owner];
      std::push_heap(candidates.begin(), candidates.end(), is_after);
    }
    uint64_t chunk = 0;
    for (size_t i = 0; i < owners.size(); ++i) {
      if (counts[i] == 0) continue;
      Box box = piece;
      box.begin[chunks.dimension] = chunks.begin(piece, chunk);
      chunk += counts[i];
      box.end[chunks.dimension] = chunks.begin(piece, chunk);
      if (chunk < chunks.count) cuts_.insert({chunks.dimension, box.end[chunks.dimension]});
      chosen_[{need.to, owners[i]}].push_back(box);
    }
  }

  void send(uint32_t owner, uint32_t to, const Box& piece) {
    loads_.add(rank_of(owner), destination_.parts[to].rank, bytes_of(piece));
    chosen_[{to, owner}].push_back(piece);
  }

  const Layout& source_;
  const Layout& destination_;
  const uint64_t element_bytes_;
  const uint64_t slice_bytes_;
  SendLoads& loads_;
  std::vector<Box> clipped_;                                          // indexed by source part
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Box>> chosen_;  // by receiver and sender
  std::set<Cut> cuts_;
};

}  // namespace

Result<MovePlan> plan_bsr(const Layout& source, const Layout& destination, uint64_t element_bytes,
                          SendLoads& loads, std::optional<int> rank, uint64_t slice_bytes) {
  if (source.shape != destination.shape) {
    return invalid(fmt::format("the source has shape [{}], the destination [{}]",
                               fmt::join(source.shape, ", "), fmt::join(destination.shape, ", ")));
  }
  if (source.terms != 1 || destination.terms != 1) {
    return unsupported(fmt::format("a sum of {} terms: batched send-receive does not add",
                                   std::max(source.terms, destination.terms)));
  }
  const Links* const links = loads.links();
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
  SenderChoice choice(source, destination, element_bytes, slice_bytes, loads);
  for (const Move& move : choice.moves()) {
    if (rank && source.parts[move.from].rank != *rank && destination.parts[move.to].rank != *rank) {
      continue;
    }
    hop.moves.push_back(move);
  }
  plan.cuts = choice.cuts();
  return plan;
}

}  // namespace hetcomm::reshard
