// A WriteWay is the way in which a rank writes data that others will read: through its cache, or
// past the cache to memory. WayChooser chooses the way for each chunk.
//
// If the cores share a cache, writing through the cache is faster, because readers find the lines
// in the shared cache. Otherwise, fetching a line from another core's cache takes several times as
// long as fetching it from memory. The machine does not report which case applies, so both ways are
// measured while operations run. Each rank measures its own write cost, and publishes its read
// cost. Each rank chooses for itself, and no result depends on the choice.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace hetcomm::collectives {

enum class WriteWay : uint8_t { kCached, kStreamed };

// A rank's read costs, by the way in which the data was written, in ticks for 64 KiB. 0 means
// unknown.
struct alignas(64) ReadCosts {
  std::array<std::atomic<uint32_t>, 2> by_way;
};

class WayChooser {
 public:
  // |published| holds this rank's read costs, which other ranks read.
  explicit WayChooser(ReadCosts& published) : published_(published) {}

  // Chooses the way for the next chunk. |of_readers(way)| returns the highest read cost of any
  // other rank.
  template <typename OfReaders>
  WriteWay next(OfReaders&& of_readers) {
    ++count_;
    if (count_ % kLookAgain == 0) choose(of_readers);
    const WriteWay other = best_ == WriteWay::kCached ? WriteWay::kStreamed : WriteWay::kCached;
    const bool unknown = write_[index(other)] == 0 && count_ % kLookAgain == kSettled;
    return unknown || count_ % kTryOther == 0 ? other : best_;
  }
  void wrote(WriteWay way, uint64_t bytes, uint64_t ticks) {
    note(write_[index(way)], bytes, ticks);
  }
  void read(WriteWay way, uint64_t bytes, uint64_t ticks) {
    uint32_t& own = read_[index(way)];
    note(own, bytes, ticks);
    std::atomic<uint32_t>& shown = published_.by_way[index(way)];
    const uint32_t last = shown.load(std::memory_order_relaxed);
    const uint32_t difference = last > own ? last - own : own - last;
    if (difference > last / 8) shown.store(own, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kSettled = 3;
  static constexpr uint32_t kLookAgain = 8;
  static constexpr uint32_t kTryOther = 32;

  static size_t index(WriteWay way) { return static_cast<size_t>(way); }
  // Records a sample. It counts for at most twice the known cost, since the kernel may have
  // suspended the rank during the measurement.
  static void note(uint32_t& known, uint64_t bytes, uint64_t ticks) {
    constexpr uint64_t kUnit = 64u << 10;
    const auto sample = static_cast<uint32_t>(
        std::clamp<uint64_t>(ticks * kUnit / std::max<uint64_t>(bytes, 1), 1, UINT32_MAX / 4));
    known = known == 0 ? sample : known - known / 4 + std::min(sample, 2 * known) / 4;
    known = std::max(known, 1u);
  }
  template <typename OfReaders>
  void choose(OfReaders&& of_readers) {
    std::array<uint64_t, 2> total{};
    for (const WriteWay way : {WriteWay::kCached, WriteWay::kStreamed}) {
      const uint64_t reading = of_readers(way);
      if (write_[index(way)] == 0 || reading == 0) return;
      total[index(way)] = write_[index(way)] + reading;
    }
    const size_t mine = index(best_);
    if (total[1 - mine] + total[1 - mine] / 8 < total[mine]) {
      best_ = static_cast<WriteWay>(1 - mine);
    }
  }

  ReadCosts& published_;
  WriteWay best_ = WriteWay::kCached;
  uint32_t count_ = 0;
  std::array<uint32_t, 2> write_{};
  std::array<uint32_t, 2> read_{};
};

}  // namespace hetcomm::collectives
