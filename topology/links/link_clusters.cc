#include "topology/links/link_clusters.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

namespace hetcomm::topology {
namespace {

// The smallest ratio of two successive shares that counts as a jump.
constexpr uint64_t kJump = 2;

// Disjoint sets of hosts (union-find). A set is represented by its lowest host.
class Sets {
 public:
  explicit Sets(size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
  }
  size_t find(size_t member) {
    while (parent_[member] != member) member = parent_[member] = parent_[parent_[member]];
    return member;
  }
  // Joins the sets that contain the two hosts.
  void join(size_t one, size_t other) {
    one = find(one);
    other = find(other);
    parent_[std::max(one, other)] = std::min(one, other);
  }

 private:
  std::vector<size_t> parent_;
};

struct PairShare {
  uint32_t share;
  size_t one;
  size_t other;
};

// Joins the hosts of each pair whose share is at least |least|. Returns the cluster of each host,
// or an empty list if a known pair within a cluster has a lower share.
std::vector<int> joined_at(size_t hosts, const std::vector<PairShare>& pairs, uint32_t least) {
  Sets sets(hosts);
  for (const PairShare& pair : pairs) {
    if (pair.share >= least) sets.join(pair.one, pair.other);
  }
  for (const PairShare& pair : pairs) {
    if (pair.share < least && sets.find(pair.one) == sets.find(pair.other)) return {};
  }
  std::vector<int> clusters(hosts);
  int count = 0;
  for (size_t host = 0; host < hosts; ++host) {
    const size_t first = sets.find(host);
    clusters[host] = first == host ? count++ : clusters[first];
  }
  return clusters;
}

int count_of(const std::vector<int>& clusters) {
  return *std::max_element(clusters.begin(), clusters.end()) + 1;
}

}  // namespace

std::vector<int> find_clusters(size_t hosts, const PairShares& shares) {
  std::vector<PairShare> pairs;
  for (size_t i = 0; i < hosts; ++i) {
    for (size_t j = i + 1; j < hosts; ++j) {
      const uint32_t there = shares[i * hosts + j];
      const uint32_t back = shares[j * hosts + i];
      // If both directions are known, the slower one is used.
      const uint32_t share =
          there == 0 || back == 0 ? std::max(there, back) : std::min(there, back);
      if (share > 0) pairs.push_back({share, i, j});
    }
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const PairShare& a, const PairShare& b) { return a.share > b.share; });
  std::vector<int> best(hosts, 0);
  uint64_t best_high = 1;
  uint64_t best_low = 1;
  for (size_t i = 1; i < pairs.size(); ++i) {
    const uint64_t high = pairs[i - 1].share;
    const uint64_t low = pairs[i].share;
    // Among equal jumps the last one is used, since it leaves the fewest clusters.
    if (high < kJump * low || high * best_low < best_high * low) continue;
    std::vector<int> clusters = joined_at(hosts, pairs, pairs[i - 1].share);
    if (clusters.empty() || count_of(clusters) < 2) continue;
    best = std::move(clusters);
    best_high = high;
    best_low = low;
  }
  return best;
}

}  // namespace hetcomm::topology
