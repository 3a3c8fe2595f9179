#include "src/core/collectives/estimate.h"

#include <algorithm>
#include <bit>
#include <span>

namespace hetcomm::collectives {
namespace {

// The rate of reducing each additional input.
constexpr LinkCost kCombining{.latency_ns = 0, .bytes_per_s = 20'000'000'000};
// The rate of copies into and out of a message that contains blocks of several ranks.
constexpr LinkCost kPacking{.latency_ns = 0, .bytes_per_s = 5'000'000'000};

uint32_t rounds_for(uint32_t count) {
  return static_cast<uint32_t>(std::bit_width(count > 0 ? count - 1 : 0));
}

// Estimates the duration of algorithms. A message between clusters shares the uplink of its cluster
// with the messages that other ranks of the cluster send at the same time.
class Estimate {
 public:
  explicit Estimate(const Problem& problem)
      : placement_(*problem.placement),
        kind_(problem.kind),
        n_(problem.ranks),
        bytes_(longest_block(problem)),
        wide_bytes_(bytes_ / problem.element_bytes * problem.wide_bytes) {}

  // Returns the time of a reduction that rounds, which uses different steps.
  uint64_t rounding(Algorithm algorithm) const {
    const bool scatters = kind_ == Kind::kReduceScatter || kind_ == Kind::kReduceScatterv;
    switch (algorithm) {
      case Algorithm::kRing:
        return scatters ? at_once() : kind_ == Kind::kScan ? wide_ring() : by_owners();
      case Algorithm::kTwoLevel:
        if (scatters) return scatter_chained();
        return kind_ == Kind::kAllreduce ? std::min(gathered_by_cluster(), chained()) : chained();
      default:
        return scatters ? at_once() : gathered();
    }
  }

  uint64_t of(Algorithm algorithm) const {
    switch (algorithm) {
      case Algorithm::kBinomial:
      case Algorithm::kDissemination:
      case Algorithm::kRecursiveDoubling:
        return tree();
      case Algorithm::kRing:
        return ring();
      case Algorithm::kTwoLevel:
        return two_level();
      default:
        return at_once();
    }
  }

 private:
  // Returns the number of other ranks that a rank reaches over the slowest links.
  uint64_t far_ranks() const { return clusters() > 1 ? n_ - placement_.smallest : n_ - 1; }
  uint64_t posting(uint64_t messages) const { return messages * placement_.across.latency_ns / 4; }
  // Returns the time if all inputs are sent to each rank, or to the root.
  uint64_t gathered() const {
    const uint64_t messages =
        kind_ == Kind::kAllreduce ? (rounds_for(n_) - 1) * across(0, 1) : posting(far_ranks());
    return across(far_ranks() * bytes_, senders()) + messages + combining((n_ - 1) * bytes_);
  }
  uint64_t gathered_by_cluster() const {
    return across(placement_.largest * bytes_, 1) + posting(clusters()) + inside(n_ * bytes_) +
           combining((n_ - 1) * bytes_);
  }
  // Returns the time if each rank combines a share, and all shares are sent to all ranks or to the
  // root.
  uint64_t by_owners() const {
    const uint64_t share = bytes_ / n_;
    const uint64_t collecting =
        kind_ == Kind::kReduce ? across(far_ranks() * share, 1) : (n_ - 1) * across(share, 1);
    return across(far_ranks() * share, placement_.largest) + posting(far_ranks()) +
           combining((n_ - 1) * share) + collecting;
  }
  // Returns the time for |bytes|, divided into segments that cross |hops| links one after another.
  uint64_t along(uint64_t hops, uint64_t bytes) const {
    return (hops - 1) * across(std::min(bytes, kSegmentBytes), 1) + across(bytes, 1);
  }
  uint64_t wide_ring() const { return along(n_ - 1, wide_bytes_) + 2 * combining(wide_bytes_); }
  // Returns the time if sums of wide elements are sent from cluster to cluster up to the last one,
  // which sends back the rounded result.
  uint64_t chained() const {
    if (!placement_.contiguous) return by_owners();
    if (kind_ == Kind::kScan) return wide_ring();
    const bool all = kind_ == Kind::kAllreduce;
    const uint64_t near = all ? 2 * bytes_ : placement_.largest * bytes_;
    const uint64_t back = all ? rounds_for(clusters()) : 1;
    return inside(near) + combining(near) + along(clusters() - 1 + back, wide_bytes_);
  }
  uint64_t scatter_chained() const {
    if (!placement_.contiguous) return at_once();
    return inside(n_ * bytes_) + combining(n_ * bytes_) + along(clusters(), n_ * wide_bytes_);
  }
  uint32_t clusters() const { return placement_.cluster_count(); }
  uint64_t inside(uint64_t bytes) const { return placement_.inside.time_ns(bytes); }
  // Returns the time if |senders| ranks of a cluster each send |bytes| at the same time.
  uint64_t across(uint64_t bytes, uint64_t senders) const {
    // With a single cluster, each rank has its own path.
    return placement_.across.time_ns(clusters() > 1 ? bytes * senders : bytes);
  }
  uint64_t combining(uint64_t bytes) const {
    return reduces(kind_) ? kCombining.time_ns(bytes) : 0;
  }
  // Returns the number of ranks of a cluster that send to other clusters at the same time, if the
  // algorithm ignores clusters.
  uint64_t senders() const { return has_root(kind_) ? 1 : placement_.largest; }

  // Returns the time of a tree, in which every round moves all the data.
  uint64_t tree() const {
    uint64_t rounds = rounds_for(n_);
    if (kind_ == Kind::kAllreduce && !std::has_single_bit(n_)) ++rounds;
    uint64_t far =
        std::min<uint64_t>(rounds, placement_.contiguous ? rounds_for(clusters()) : rounds);
    if (clusters() == 1) far = rounds;
    return far * across(bytes_, senders()) + (rounds - far) * inside(bytes_) +
           rounds * combining(bytes_);
  }
  uint64_t ring() const {
    const uint64_t steps = n_ - 1;
    switch (kind_) {
      case Kind::kAllreduce:
        return 2 * steps * across(bytes_ / n_, 1) + combining(bytes_);
      case Kind::kBroadcast:
      case Kind::kReduce:
      case Kind::kScan: {
        const uint64_t segment = std::min(bytes_, kSegmentBytes);
        return (steps - 1) * (across(segment, 1) + combining(segment)) + across(bytes_, 1) +
               combining(bytes_);
      }
      default:
        return steps * (across(bytes_, 1) + combining(bytes_));
    }
  }
  // Returns the time if a message is sent to every other rank. Each further message costs less than
  // the first.
  uint64_t at_once() const {
    const uint64_t far = clusters() > 1 ? n_ - placement_.smallest : n_ - 1;
    return across(far * bytes_, senders()) + far * placement_.across.latency_ns / 4 +
           (n_ - 1) * combining(bytes_);
  }
  uint64_t two_level() const {
    const uint64_t largest = placement_.largest;
    const uint64_t far_rounds = rounds_for(clusters());
    switch (kind_) {
      case Kind::kBarrier:
        return 2 * inside(0) + far_rounds * across(0, 1);
      case Kind::kAllreduce: {
        const uint64_t shares = placement_.smallest;
        const uint64_t share = bytes_ / shares;
        const uint64_t by_doubling = far_rounds * across(share, shares);
        const uint64_t by_ring =
            uint64_t{2} * (clusters() - 1) * across(share / clusters(), shares);
        return 2 * inside(share * (largest - 1)) + combining(share * largest) +
               std::min(by_doubling, by_ring);
      }
      case Kind::kBroadcast:
      case Kind::kReduce:
        return far_rounds * (across(bytes_, 1) + combining(bytes_)) +
               rounds_for(placement_.largest) * (inside(bytes_) + combining(bytes_));
      case Kind::kGather:
      case Kind::kScatter: {
        const uint64_t far = n_ - placement_.smallest;
        return inside(largest * bytes_) + across(far * bytes_, 1) +
               clusters() * placement_.across.latency_ns / 4 +
               largest * placement_.inside.latency_ns / 4 + 2 * kPacking.time_ns(far * bytes_);
      }
      case Kind::kAlltoall: {
        const uint64_t far = n_ - placement_.smallest;
        return inside(far * bytes_) + across(far * bytes_, largest) +
               clusters() * placement_.across.latency_ns / 4 +
               largest * placement_.inside.latency_ns / 2 + 3 * kPacking.time_ns(far * bytes_);
      }
      case Kind::kScan:
        return rounds_for(placement_.largest) * (inside(bytes_) + combining(bytes_)) +
               far_rounds * (across(bytes_, 1) + combining(bytes_)) + inside(bytes_) +
               combining(bytes_);
      default: {
        const uint64_t far = n_ - placement_.smallest;
        return inside(far * bytes_) + across((clusters() - 1) * bytes_, largest) +
               clusters() * placement_.across.latency_ns / 4 +
               far * placement_.inside.latency_ns / 4 + (largest + clusters()) * combining(bytes_);
      }
    }
  }

  const RankPlacement& placement_;
  const Kind kind_;
  const uint32_t n_;
  const uint64_t bytes_;
  const uint64_t wide_bytes_;
};

}  // namespace

Algorithm choose(const Problem& problem) {
  if (problem.algorithm != Algorithm::kChosen) return problem.algorithm;
  const std::span<const Algorithm> algorithms = algorithms_of(problem.kind);
  // Not all ranks know the block lengths of an alltoallv, so they cannot base a common choice on
  // them.
  if (problem.kind == Kind::kAlltoallv) return Algorithm::kLinear;
  const RankPlacement& placement = *problem.placement;
  const bool has_levels =
      placement.has_levels() && (problem.kind != Kind::kScan || placement.contiguous);
  Algorithm best = algorithms[0];
  uint64_t least = UINT64_MAX;
  for (const Algorithm algorithm : algorithms) {
    if (algorithm == Algorithm::kTwoLevel && !has_levels) continue;
    // Long messages that many ranks send at once slow each other down. The estimates do not model
    // this.
    const bool at_once = problem.bytes <= kShortBytes;
    if (problem.kind == Kind::kAlltoall &&
        algorithm == (at_once ? Algorithm::kPairwise : Algorithm::kLinear)) {
      continue;
    }
    const uint64_t time = algorithms.size() == 1 ? 0 : estimate_ns(problem, algorithm);
    if (time >= least) continue;
    best = algorithm;
    least = time;
  }
  return best;
}

uint64_t estimate_ns(const Problem& problem, Algorithm algorithm) {
  if (problem.ranks < 2) return 0;
  const Estimate estimate(problem);
  return problem.rounds ? estimate.rounding(algorithm) : estimate.of(algorithm);
}

}  // namespace hetcomm::collectives
