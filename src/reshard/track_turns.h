// TrackTurns holds the tracks of a redistribution, and decides which message is next on each track.
// All executions send their messages on a track in an order that both ends can compute: by
// execution, and by position within each execution. Both ends skip the messages of an abandoned
// execution. Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/job/job.h"
#include "src/core/peer/transfer/track.h"

namespace hetcomm::reshard {

class TrackTurns {
 public:
  explicit TrackTurns(Job& job) : job_(job) {}
  TrackTurns(const TrackTurns&) = delete;
  TrackTurns& operator=(const TrackTurns&) = delete;

  // Adds a track that carries |messages| in each execution. |arguments| are passed to the
  // constructor of Track.
  template <typename... Arguments>
  void add(uint32_t messages, Arguments&&... arguments) {
    tracks_.push_back(std::make_unique<Counted>(messages, std::forward<Arguments>(arguments)...));
  }
  size_t size() const { return tracks_.size(); }
  Track& track(size_t index) const { return tracks_[index]->track; }

  // Returns whether the message at |position| of |execution| is the next one on track |index|, and
  // the track can accept it now.
  bool has_turn(size_t index, uint64_t execution, uint32_t position) HETCOMM_UNDER_BATON {
    Counted& counted = *tracks_[index];
    if (!skipped_.empty()) [[unlikely]]
      settle(counted);  // skips messages that the track could not accept earlier
    return counted.started == execution * counted.messages + position && counted.track.has_room();
  }
  // Records that the next message of the track is about to start. Call settle() once that message
  // has a number.
  void started(size_t index) HETCOMM_UNDER_BATON { ++tracks_[index]->started; }
  void settle(size_t index) HETCOMM_UNDER_BATON {
    if (!skipped_.empty()) [[unlikely]]
      settle(*tracks_[index]);
  }
  // Returns whether |execution|, which was not abandoned, still has to start a message on track
  // |index|.
  bool has_yet_to_start(size_t index, uint64_t execution) const HETCOMM_UNDER_BATON {
    const Counted& counted = *tracks_[index];
    return counted.started < (execution + 1) * counted.messages;
  }
  // Records that track |index| is about to be closed. Returns false if that was already recorded.
  bool take_closing(size_t index) HETCOMM_UNDER_BATON {
    return !std::exchange(tracks_[index]->is_closed, true);
  }
  // Skips the remaining messages of |execution|. If it throws std::bad_alloc, nothing has changed.
  void skip(uint64_t execution) HETCOMM_UNDER_BATON;

 private:
  struct Counted {
    template <typename... Arguments>
    explicit Counted(uint32_t of_each, Arguments&&... arguments)
        : messages(of_each), track(std::forward<Arguments>(arguments)...) {}
    const uint32_t messages;  // number of messages in each execution
    uint64_t started = 0;     // number of messages started or skipped, in all executions
    bool is_closed = false;
    Track track;
  };
  void settle(Counted& counted) HETCOMM_UNDER_BATON;

  Job& job_;
  std::vector<std::unique_ptr<Counted>> tracks_;
  std::set<uint64_t> skipped_;  // abandoned executions that some track still has to skip
};

}  // namespace hetcomm::reshard
