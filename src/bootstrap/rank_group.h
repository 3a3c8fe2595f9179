// A group is a set of evenly spaced ranks of a bootstrap: a block of consecutive ranks, or every
// b-th rank.
#pragma once

namespace hetcomm {

struct RankGroup {
  int first = 0;
  int step = 1;
  int count = 0;

  int rank(int index) const { return first + index * step; }
  // Returns the index within the group of |rank|, which must be a member.
  int index_of(int rank) const { return (rank - first) / step; }
  bool has(int rank) const {
    return rank >= first && (rank - first) % step == 0 && index_of(rank) < count;
  }
  bool operator==(const RankGroup&) const = default;
};

}  // namespace hetcomm
