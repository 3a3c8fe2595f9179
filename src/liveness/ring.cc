#include "src/liveness/ring.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace hetcomm::liveness {
namespace {

// The search for a rank on another host skips at most this many live ranks.
constexpr int kMaxPassed = 4;

}  // namespace

Ring::Ring(const std::vector<uint32_t>& hosts) : position_(hosts.size()), host_(hosts.size()) {
  std::map<uint32_t, int> numbers;
  std::vector<int> index(hosts.size());  // index of a rank on its host
  std::vector<int> count;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [found, added] = numbers.emplace(hosts[rank], static_cast<int>(numbers.size()));
    if (added) count.push_back(0);
    host_[rank] = found->second;
    index[rank] = count[static_cast<size_t>(found->second)]++;
    order_.push_back(static_cast<int>(rank));
  }
  // The ring begins with the first rank of each host, then the second rank of each, and so on.
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return index[static_cast<size_t>(a)] < index[static_cast<size_t>(b)];
  });
  for (int position = 0; position < size(); ++position) {
    position_[static_cast<size_t>(at(position))] = position;
  }
  stride_ = std::max(1, static_cast<int>(std::lround(std::sqrt(static_cast<double>(size())))));
  // A stride that is a multiple of the number of hosts would lead to the same host again.
  const int host_count = static_cast<int>(count.size());
  if (host_count > 1 && stride_ > 1 && stride_ % host_count == 0) ++stride_;
}

int Ring::nearest(int position, int distance, int direction, const std::vector<int>& taken,
                  const std::function<bool(int)>& gone) const {
  const int self = at(position);
  int first = -1;
  int passed = 0;
  for (int step = distance; step < distance + size() && passed < kMaxPassed; ++step) {
    const int offset = direction * (step % size());
    const int rank = at((position + offset + size()) % size());
    if (rank == self || gone(rank)) continue;
    if (std::find(taken.begin(), taken.end(), rank) != taken.end()) continue;
    if (!same_host(self, rank)) return rank;
    if (first < 0) first = rank;
    ++passed;
  }
  return first;
}

std::vector<int> Ring::neighbours(int rank, const std::function<bool(int)>& gone) const {
  std::vector<int> result;
  const int position = position_[static_cast<size_t>(rank)];
  for (const int distance : {1, stride_}) {
    for (const int direction : {1, -1}) {
      const int found = nearest(position, distance, direction, result, gone);
      if (found >= 0) result.push_back(found);
    }
  }
  return result;
}

int Ring::after(int rank, int n) const {
  return at((position_[static_cast<size_t>(rank)] + n) % size());
}

}  // namespace hetcomm::liveness
