#include "src/core/collectives/segment_buffers.h"

#include "src/core/collectives/estimate.h"
#include "src/core/collectives/runner.h"

namespace hetcomm::collectives {
namespace {

// The minimum length of a share. Segments are made long enough for it.
constexpr uint64_t kMinShareBytes = 64u << 10;
// The preferred length of a ring's share. To reach it, a segment can be up to 2 * kSegmentBytes
// long. Longer shares are better because each share needs a few short messages, whatever its
// length.
constexpr uint64_t kGoodShareBytes = 512u << 10;
// The minimum length of a packed block in a segment. It is short because a segment needs memory for
// several times the blocks of all ranks.
constexpr uint64_t kMinPackedBytes = 4u << 10;

// The maximum length of each block in a segment of data that is only moved. Such data is divided so
// that device copies overlap with messages. Ranks with host memory use the same segments. The
// segments in progress together cover a whole block, unless it is long. Segments of the maximum
// length keep even a link with a high latency busy.
constexpr uint64_t kMaxMovedBytes = 4 * kSegmentBytes;

// Returns whether the two-level algorithm combines blocks of several ranks in one message.
bool packs_blocks(Kind kind) {
  return kind == Kind::kAlltoall || kind == Kind::kGather || kind == Kind::kScatter;
}

}  // namespace

uint64_t bytes_per_segment(const Problem& problem) {
  const Algorithm algorithm = choose(problem);
  const bool two_level = algorithm == Algorithm::kTwoLevel;
  const bool cuts =
      algorithm == Algorithm::kRing || two_level || (reduces(problem.kind) && problem.ranks > 1);
  const bool packs = two_level && packs_blocks(problem.kind);
  const bool moves = !reduces(problem.kind) && problem.kind != Kind::kBroadcast;
  if (moves && !packs) {
    if (problem.kind == Kind::kBarrier || !blocks_are_known(problem.kind)) return UINT64_MAX;
    const uint64_t part = longest_block(problem) / Runner::kSegmentsAtOnce;
    const uint64_t slice = std::clamp(part, kSegmentBytes, kMaxMovedBytes);
    return slice / problem.element_bytes * problem.element_bytes;
  }
  if (!cuts) return UINT64_MAX;
  uint64_t slice = kSegmentBytes;
  if (packs) {
    slice = std::max(kSegmentBytes / problem.ranks, kMinPackedBytes);
  } else if (problem.kind == Kind::kAllreduce && (algorithm == Algorithm::kRing || two_level)) {
    const uint64_t shares = two_level ? problem.placement->smallest : problem.ranks;
    // A segment of a reduction that rounds needs memory for a share from each rank.
    const uint64_t most = problem.rounds ? kSegmentBytes : 2 * kSegmentBytes;
    if (!two_level) slice = std::clamp(shares * kGoodShareBytes, kSegmentBytes, most);
    slice = std::max(slice, shares * kMinShareBytes);
  } else if (problem.kind == Kind::kReduce && problem.rounds && two_level) {
    // The leader of a cluster holds the inputs of all its ranks.
    slice = std::max(kSegmentBytes / problem.placement->largest, kMinShareBytes);
  } else if (sends_blocks(problem.kind)) {
    slice = std::max(kSegmentBytes / problem.ranks, kMinShareBytes);
  }
  return slice / problem.element_bytes * problem.element_bytes;
}

SegmentBuffers::SegmentBuffers(const Problem& problem, uint64_t segment) : problem_(problem) {
  const uint64_t slice = bytes_per_segment(problem);
  begin_ = slice == UINT64_MAX ? 0 : segment * slice;
  end_ = slice == UINT64_MAX ? UINT64_MAX : begin_ + slice;
}

std::vector<Range> SegmentBuffers::received_blocks() const {
  std::vector<Range> blocks(problem_.ranks);
  for (uint32_t rank = 0; rank < problem_.ranks; ++rank) blocks[rank] = received(rank);
  return blocks;
}

Range SegmentBuffers::share(const Range& range, uint32_t index, uint32_t count) const {
  const uint64_t elements = range.length / problem_.element_bytes;
  const uint64_t from = elements / count * index + std::min<uint64_t>(index, elements % count);
  const uint64_t own = elements / count + (index < elements % count ? 1 : 0);
  return {range.buffer, range.block, range.offset + from * problem_.element_bytes,
          own * problem_.element_bytes};
}

}  // namespace hetcomm::collectives
