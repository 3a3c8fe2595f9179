// BlockedPaths detects paths to one peer that accept connections but carry nothing after the
// opening. The usual cause is a network that drops only long packets. Callers hold the baton.
//
// A path is blocked after kMaxBreaks of its connections have broken with data in flight, if the
// peer's host acknowledged nothing of that data. A break of a connection whose data was
// acknowledged, on any path, clears these counts. A break of a connection without data does not
// count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/rails/rail_ends.h"
#include "transports/types.h"

namespace hetcomm {

class BlockedPaths {
 public:
  static constexpr uint32_t kMaxBreaks = 3;

  // Records that a connection between |ends| has opened.
  void opened(const RailEnds& ends) HETCOMM_UNDER_BATON { at(ends).missed = 0; }
  // Records that a connection between |ends| has broken. |passage| says whether its data reached
  // the peer. Returns whether the break counts.
  bool broke(const RailEnds& ends, Passage passage) HETCOMM_UNDER_BATON {
    if (passage == Passage::kPassed) {
      for (Path& each : paths_) each.breaks = 0;
    }
    if (passage != Passage::kBlocked) return false;
    for (Path& each : paths_) ++each.missed;
    Path& own = at(ends);
    own.missed = 0;
    ++own.breaks;
    return true;
  }
  // Returns whether every path is blocked. A path is ignored if it has no open connection, and none
  // of its connections has opened or broken during the last kMaxBreaks counted breaks of other
  // paths. |is_open(ends)| returns whether a connection is open.
  template <typename IsOpen>
  bool all_blocked(IsOpen&& is_open) const HETCOMM_UNDER_BATON {
    bool some = false;
    for (const Path& each : paths_) {
      const bool blocked = each.breaks >= kMaxBreaks;
      some = some || blocked;
      if (!blocked && (each.missed < kMaxBreaks || is_open(each.ends))) return false;
    }
    return some;
  }

 private:
  struct Path {
    RailEnds ends;
    uint32_t breaks = 0;  // counted breaks
    uint32_t missed = 0;  // counted breaks of other paths since this one opened or broke
  };

  Path& at(const RailEnds& ends) HETCOMM_UNDER_BATON {
    const auto known = std::find_if(paths_.begin(), paths_.end(),
                                    [&](const Path& each) { return each.ends == ends; });
    return known != paths_.end() ? *known : paths_.emplace_back(Path{.ends = ends});
  }

  std::vector<Path> paths_;
};

}  // namespace hetcomm
