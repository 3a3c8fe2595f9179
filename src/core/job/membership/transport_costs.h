// TransportCosts holds the costs of messages over the links of each transport. Choices that must be
// equal on all ranks depend on these costs, so no rank measures them by itself. All costs are
// integers, so processors of different vendors compute equal results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/status.h"

namespace hetcomm {

struct LinkCost {
  // Upper bounds of plausible figures. Sums of larger ones would overflow.
  static constexpr uint64_t kMaxLatencyNs = 3'600'000'000'000;
  static constexpr uint64_t kMaxBytesPerS = 1'000'000'000'000'000;

  uint64_t latency_ns = 0;
  uint64_t bytes_per_s = 1;

  static LinkCost bounded(uint64_t latency_ns, uint64_t bytes_per_s) {
    return {std::min(latency_ns, kMaxLatencyNs),
            std::clamp<uint64_t>(bytes_per_s, 1000, kMaxBytesPerS)};
  }
  // Returns the transfer time of |bytes| without the latency.
  uint64_t moving_ns(uint64_t bytes) const {
    constexpr uint64_t kSecond = 1'000'000'000;
    constexpr uint64_t kMax = UINT64_MAX / kSecond;
    const uint64_t rate = std::max<uint64_t>(bytes_per_s, 1);
    return bytes <= kMax ? bytes * kSecond / rate : bytes / rate * kSecond;
  }
  uint64_t time_ns(uint64_t bytes) const { return latency_ns + moving_ns(bytes); }
  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

// The link costs of each kind of transport.
class TransportCosts {
 public:
  // Reads the output of `hetcomm_bench --format json`. Uses the latency of the shortest message and
  // the best bandwidth of each transport. Fails if the text is not such output or describes no
  // link.
  static Result<TransportCosts> parse(std::string_view json);

  // Returns the costs of |kind|; null if unknown.
  const LinkCost* find(std::string_view kind) const;
  void set(std::string_view kind, const LinkCost& link);

 private:
  struct Entry {
    std::string kind;
    LinkCost link;
  };
  std::vector<Entry> entries_;
};

}  // namespace hetcomm
