// Which of put and get moves bulk data faster to this rank from one peer. What is faster depends on
// the machine, the size and the load, so both are tried on the first transfers of a size class and
// the loser is tried again from time to time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hetcomm {

class BulkChooser {
 public:
  // For the next transfer of |bytes| where both are possible.
  bool prefer_get(uint64_t bytes);
  // A transfer took |elapsed_ns| of the pair's time.
  void measured(uint64_t bytes, bool by_get, uint64_t elapsed_ns);
  // ns per byte so far, 0 when not measured.
  double cost(uint64_t bytes, bool by_get) const;

 private:
  static constexpr size_t kClasses = 4;  // up to 256 KiB, 2 MiB, 16 MiB, more
  static constexpr uint32_t kTrials = 3;
  static constexpr uint32_t kFirstRetry = 256;
  static constexpr uint32_t kLastRetry = 8192;
  struct Mode {
    double ns_per_byte = 0;
    uint32_t samples = 0;
    uint32_t started = 0;
  };
  struct Class {
    std::array<Mode, 2> modes;  // put, get
    uint32_t since_retry = 0;
    uint32_t retry_interval = kFirstRetry;
  };
  static size_t class_of(uint64_t bytes) {
    return bytes <= (256u << 10) ? 0 : bytes <= (2u << 20) ? 1 : bytes <= (16u << 20) ? 2 : 3;
  }
  // A read has to be clearly faster: it keeps the receiver busy alone.
  static bool get_wins(const Class& c) {
    return c.modes[1].ns_per_byte < 0.9 * c.modes[0].ns_per_byte;
  }

  std::array<Class, kClasses> classes_;
};

inline bool BulkChooser::prefer_get(uint64_t bytes) {
  Class& c = classes_[class_of(bytes)];
  for (const size_t mode : {size_t{0}, size_t{1}}) {
    if (c.modes[mode].started < kTrials) {
      ++c.modes[mode].started;
      return mode == 1;
    }
  }
  if (c.modes[0].samples == 0 || c.modes[1].samples == 0) return false;
  const bool get = get_wins(c);
  if (++c.since_retry < c.retry_interval) return get;
  c.since_retry = 0;
  c.retry_interval = c.retry_interval * 2 > kLastRetry ? kLastRetry : c.retry_interval * 2;
  return !get;
}

inline void BulkChooser::measured(uint64_t bytes, bool by_get, uint64_t elapsed_ns) {
  if (bytes == 0) return;
  Mode& mode = classes_[class_of(bytes)].modes[by_get ? 1 : 0];
  const double sample = static_cast<double>(elapsed_ns) / static_cast<double>(bytes);
  // The best of the trials, then a slow average: the first use of memory is not typical.
  if (mode.samples < kTrials) {
    mode.ns_per_byte = mode.samples == 0 || sample < mode.ns_per_byte ? sample : mode.ns_per_byte;
  } else {
    mode.ns_per_byte += 0.1 * (sample - mode.ns_per_byte);
  }
  ++mode.samples;
}

inline double BulkChooser::cost(uint64_t bytes, bool by_get) const {
  return classes_[class_of(bytes)].modes[by_get ? 1 : 0].ns_per_byte;
}

}  // namespace hetcomm
