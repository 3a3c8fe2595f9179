// LinkWays finds the ways of transfers over the resources of a link model, for the simulator by
// events.
//
// Each resource is a hop of its own, so that a fast one is free for others while a slow one is
// busy. Bytes flow over all resources of a transfer at once, in slices so small that only the
// slowest resource counts. It is the first hop, since the memory of the sender is free when that
// ends.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "pipeline/simulate/route.h"
#include "reshard/forecast.h"
#include "reshard/links.h"

namespace hetcomm::pipeline {

class LinkWays {
 public:
  // |links| outlives this object.
  explicit LinkWays(const reshard::Links& links);

  // Returns the way of a transfer that moves each of |hops| after the one before it, in |slices|.
  // Each occupies a resource for as long as all its bytes take there. Where a single transfer is
  // limited, it also occupies a stream of its own, which is called |name| and has the number of the
  // hop. What is not moved between ranks takes no time.
  Route way_of(const std::vector<reshard::Messages>& hops, uint32_t slices,
               const std::string& name);

  // Returns the names of the resources, by number.
  const std::vector<std::string>& resources() const { return names_; }

 private:
  void add_hop(Route& route, const reshard::Messages& messages, const std::string& name);
  uint32_t number_of(const std::string& name);

  const reshard::Links& links_;
  std::vector<std::string> names_;  // those of the model come first, by its indices
  std::map<std::string, uint32_t> streams_;
};

}  // namespace hetcomm::pipeline
