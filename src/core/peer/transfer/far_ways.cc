#include "src/core/peer/transfer/far_ways.h"

#include <fmt/core.h>

namespace hetcomm {

std::string FarWays::explain() const {
  std::string text;
  constexpr uint64_t kSizes[] = {128u << 10, 1u << 20, 8u << 20, 64u << 20};
  for (const auto& [user, choice] : users_) {
    for (const uint64_t bytes : kSizes) {
      const double direct = choice.chooser.cost(bytes, kDirect);
      const double staged = choice.chooser.cost(bytes, kStaged);
      if (direct == 0 || staged == 0) continue;
      text +=
          fmt::format("  device {}, {} {} KiB: direct {:.3f} ns/B, staged {:.3f} ns/B\n",
                      user.first, user.second == StreamDirection::kToHost ? "sending" : "receiving",
                      bytes >> 10, direct, staged);
    }
  }
  return text;
}

}  // namespace hetcomm
