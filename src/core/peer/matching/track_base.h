// TrackBase limits how many runs of a track (transfer/track.h) are in flight, by permits. TrackRun
// is the state of an operation that is a run of a track.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/core/progress/operation.h"

namespace hetcomm {

// The part of a track that counts its runs in flight. Completer uses it when a run completes.
// [any-thread]
class TrackBase {
 public:
  TrackBase(const TrackBase&) = delete;
  TrackBase& operator=(const TrackBase&) = delete;

  // Takes a permit for a run that is about to start. Returns false if |depth| runs are in flight.
  bool take_permit() {
    uint32_t taken = taken_.load(std::memory_order_relaxed);
    while (taken < depth_) {
      if (taken_.compare_exchange_weak(taken, taken + 1, std::memory_order_relaxed)) return true;
    }
    return false;
  }
  // Releases the permit of a run that has completed or could not be started.
  void give_permit() { taken_.fetch_sub(1, std::memory_order_release); }
  // Returns the number of runs in flight.
  uint32_t taken() const { return taken_.load(std::memory_order_acquire); }

 protected:
  explicit TrackBase(uint32_t depth) : depth_(depth) {}
  ~TrackBase() = default;

 private:
  const uint32_t depth_;
  std::atomic<uint32_t> taken_{0};
};

// Identifies the track and the run of an operation. Ignored unless the operation's option
// |on_track| is set.
struct TrackRun {
  static constexpr auto kRoom = &Operation::Bodies::track;
  TrackBase* track = nullptr;
  uint64_t run = 0;  // index of the run in the track
};

inline TrackRun& track_run(Operation& operation) { return body_of<TrackRun>(operation); }
inline const TrackRun& track_run(const Operation& operation) {
  return body_of<TrackRun>(operation);
}

}  // namespace hetcomm
