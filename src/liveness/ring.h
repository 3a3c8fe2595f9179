// Who watches whom: a sparse graph over the ranks that are still there, the same for everybody who
// knows the same facts.
//
// The ranks stand in a fixed ring, in which those of different hosts alternate. A rank is watched
// by four others: its nearest live neighbours at distance 1 and about sqrt(n), both ways. A
// neighbour on another host is preferred where one is within a few steps. The graph stays connected
// when any single rank goes, and two ranks are a few times sqrt(n) connections apart at most.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "src/base/host_id.h"

namespace hetcomm::liveness {

class Ring {
 public:
  explicit Ring(const std::vector<HostId>& hosts);

  int size() const { return static_cast<int>(order_.size()); }
  bool same_host(int one, int other) const {
    return host_[static_cast<size_t>(one)] == host_[static_cast<size_t>(other)];
  }

  // Ranks that |rank| watches, and that watch it; without those for which |gone| is true.
  std::vector<int> neighbours(int rank, const std::function<bool(int)>& gone) const;
  // The |n|-th rank after |rank|; n from 1 to size() - 1.
  int after(int rank, int n) const;

 private:
  int at(int position) const { return order_[static_cast<size_t>(position)]; }
  // The first rank at |distance| from |position| or beyond it that is there and not |taken|; -1:
  // there is none.
  int nearest(int position, int distance, int direction, const std::vector<int>& taken,
              const std::function<bool(int)>& gone) const;

  std::vector<int> order_;     // rank at a position
  std::vector<int> position_;  // of a rank
  std::vector<int> host_;      // number of a rank's host
  int stride_ = 1;
};

}  // namespace hetcomm::liveness
