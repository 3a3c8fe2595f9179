// The ring decides which ranks watch each other. Its result is a sparse graph over the live ranks,
// which is the same on all ranks that know the same facts.
//
// The ranks form a fixed ring, in which ranks of different hosts alternate. A rank is watched by
// four others: its nearest live neighbours at distance 1 and about sqrt(n), in both directions. A
// neighbour on another host is preferred if one is within a few steps. The graph stays connected
// when any single rank is lost, and any two ranks are at most a few times sqrt(n) connections
// apart.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace hetcomm::liveness {

class Ring {
 public:
  // |hosts| has the number of each rank's host.
  explicit Ring(const std::vector<uint32_t>& hosts);

  int size() const { return static_cast<int>(order_.size()); }
  bool same_host(int one, int other) const {
    return host_[static_cast<size_t>(one)] == host_[static_cast<size_t>(other)];
  }

  // Returns the ranks with which |rank| keeps a connection, so that the two watch each other. Skips
  // ranks for which |gone| returns true.
  std::vector<int> neighbours(int rank, const std::function<bool(int)>& gone) const;
  // Returns the |n|-th rank after |rank| in the ring. |n| is from 1 to size() - 1.
  int after(int rank, int n) const;

 private:
  int at(int position) const { return order_[static_cast<size_t>(position)]; }
  // Searches in |direction| for a live rank that is not in |taken|, starting |distance| steps from
  // |position|. Prefers a rank on another host if one is close. Otherwise returns the first rank
  // found on this host, or -1 if there is none.
  int nearest(int position, int distance, int direction, const std::vector<int>& taken,
              const std::function<bool(int)>& gone) const;

  std::vector<int> order_;     // rank at a position
  std::vector<int> position_;  // position of a rank
  std::vector<int> host_;      // number of a rank's host
  int stride_ = 1;
};

}  // namespace hetcomm::liveness
