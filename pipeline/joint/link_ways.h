// LinkWays computes the routes of transfers over the resources of a link model, for the event
// simulator.
//
// Each resource is a separate hop, so a fast resource becomes free for others while a slow one is
// still busy. Bytes flow over all resources of a transfer at once, in slices so small that only the
// slowest resource determines the time. That resource is the first hop, since the sender's memory
// is free when it has finished.
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

  // Returns the route of a transfer that performs |hops| one after the other, in |slices|. Each hop
  // occupies a resource for the time that all its bytes take there. If the limited rate of a single
  // transfer determines the time of a hop, the hop also occupies a separate resource, named after
  // |name| and the number of the hop. Data that is not moved between ranks takes no time.
  Route way_of(const std::vector<reshard::Messages>& hops, uint32_t slices,
               const std::string& name);

  // Returns the names of the resources, indexed by number.
  const std::vector<std::string>& resources() const { return names_; }

 private:
  void add_hop(Route& route, const reshard::Messages& messages, const std::string& name);
  uint32_t number_of(const std::string& name);

  const reshard::Links& links_;
  std::vector<std::string> names_;  // the resources of the model come first, in its order
  std::map<std::string, uint32_t> streams_;
};

}  // namespace hetcomm::pipeline
