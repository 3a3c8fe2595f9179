// WayTrials chooses the WriteWay of whole operations, based on the duration of earlier ones.
//
// Operations of similar length share their measurements, but reductions have separate ones. From
// time to time an operation uses the slower way, to measure it again. All ranks count operations
// identically, so they make these trials in the same operations.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "src/core/collectives/write_way.h"

namespace hetcomm::collectives {

class WayTrials {
 public:
  // Chooses the way of an operation of |bytes| bytes.
  WriteWay next(bool sums, uint64_t bytes) {
    const auto length = static_cast<size_t>(std::bit_width(bytes));
    now_ = &alike_[sums ? 1 : 0][std::min(length, kLengths - 1)];
    bytes_ = std::max<uint64_t>(bytes, 1);
    const uint32_t count = now_->count++;
    if (count < kFirst) return count % 2 == 0 ? WriteWay::kCached : WriteWay::kStreamed;
    const double streamed = cost(WriteWay::kStreamed);
    const bool streams = streamed > 0 && streamed < cost(WriteWay::kCached);
    const bool tries = count % kTryOther == 0;
    return streams != tries ? WriteWay::kStreamed : WriteWay::kCached;
  }
  // Records that the operation used |way| and took |took_ns|.
  void note(WriteWay way, uint64_t took_ns) {
    if (now_->count <= kUnsettled) return;  // the first operations allocate pages
    double& known = cost(way);
    const double sample = static_cast<double>(took_ns) / static_cast<double>(bytes_);
    // A sample is too high if the rank was suspended during the measurement. Therefore only the
    // lowest of the first samples is used, and later samples count for at most twice the known
    // cost.
    if (known == 0 || now_->count <= kFirst) {
      known = known == 0 ? sample : std::min(known, sample);
    } else {
      known = known * 0.75 + std::min(sample, 2 * known) * 0.25;
    }
  }

 private:
  static constexpr size_t kLengths = 48;
  static constexpr uint32_t kUnsettled = 2;
  static constexpr uint32_t kFirst = 6;  // the first operations use both ways in turn
  static constexpr uint32_t kTryOther = 32;
  struct Alike {
    uint32_t count = 0;
    std::array<double, 2> cost{};  // ns per byte, by way; 0: unknown
  };

  double& cost(WriteWay way) { return now_->cost[static_cast<size_t>(way)]; }

  std::array<std::array<Alike, kLengths>, 2> alike_;
  Alike* now_ = nullptr;
  uint64_t bytes_ = 1;
};

}  // namespace hetcomm::collectives
