// CopyTurns spreads the tensors of a list over the copies of their sources. It serves the
// strategies whose receivers read from the copies in turn (redistribute.h).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "reshard/layout.h"

namespace hetcomm::reshard {

class CopyTurns {
 public:
  // Returns the |turn| for moves_between() that makes the receivers begin with the copy that has
  // sent least so far. Adds the bytes of |count| such tensors to the counters. Two sources share
  // their counters if the first parts of their copies are on the same ranks.
  uint64_t take(const Layout& source, const Layout& destination, uint64_t element_bytes,
                uint64_t count = 1);

 private:
  // The bytes that each copy has sent, keyed by the first rank of each copy.
  std::map<std::vector<int>, std::vector<uint64_t>> sent_;
};

}  // namespace hetcomm::reshard
