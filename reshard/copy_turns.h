// CopyTurns spreads the tensors of a list over the copies of their sources, for strategies whose
// receivers take the copies in turn (redistribute.h).
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "reshard/layout.h"

namespace hetcomm::reshard {

class CopyTurns {
 public:
  // Returns the turn with which the receivers of a tensor begin: that of the copy that has sent
  // least so far. Counts the bytes of |count| such tensors. Copies of two sources are the same
  // senders if the same ranks hold the beginning of them.
  uint64_t take(const Layout& source, const Layout& destination, uint64_t element_bytes,
                uint64_t count = 1);

 private:
  std::map<std::vector<int>, std::vector<uint64_t>> sent_;  // by first ranks of copies: by copy
};

}  // namespace hetcomm::reshard
