// An Implementation is one library in one configuration: hetcomm itself or a peer. Each measurement
// launches its own processes, so that measurements share nothing but the machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/row.h"
#include "bench/work.h"
#include "tools/common/launch.h"

namespace bench {

struct Implementation {
  // A Launcher creates the tools::Launch that runs one work with the implementation.
  struct Launcher {
    std::string refusal;  // why it cannot run the work, or ""
    std::function<tools::Launch()> launch;
  };

  PeerInfo info;
  // The only transport that the library supports ("tcp" for Gloo), or "" if it uses the requested
  // one.
  std::string only_transport;
  std::vector<Launcher> works;  // one for each work to measure, in the same order
};

using RowFunction = std::function<void(const Row& row)>;

// Runs |work|, whose index among the works to measure is |number|. Calls |on_row| after each point.
// Returns "", or the error.
std::string measure(const Implementation& implementation, size_t number, const Work& work,
                    double silence_seconds, const RowFunction& on_row);

// Returns hetcomm as an implementation that launches this program again, once for each rank.
Implementation make_hetcomm(const std::vector<Work>& works);

}  // namespace bench
