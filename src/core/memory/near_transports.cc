#include "src/core/memory/near_transports.h"

#include <algorithm>

namespace hetcomm {

void NearTransports::set(const std::vector<Served>& transports) {
  const size_t count = std::min<size_t>(transports.size(), 64);
  for (size_t device = 0; device < masks_.size(); ++device) {
    const auto serves = [&](const Served& each) { return (each.devices >> device & 1) != 0; };
    masks_[device] = ~uint64_t{0};
    for (size_t i = 0; i < count; ++i) {
      const bool some = std::any_of(transports.begin(), transports.end(), [&](const Served& each) {
        return each.kind == transports[i].kind && serves(each);
      });
      if (some && !serves(transports[i])) masks_[device] &= ~(uint64_t{1} << i);
    }
  }
}

}  // namespace hetcomm
