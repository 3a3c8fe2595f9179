// TrackEnd: one end of a member's track, and runs over it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "src/core/peer/transfer/track.h"
#include "tests/support/core_job.h"

namespace hetcomm::test {

class TrackEnd {
 public:
  TrackEnd(CoreMember& me, Track::End end, int peer, const TrackTerms& terms,
           const TrackShare& share = {})
      : me_(me),
        peer_(peer),
        kind_(end == Track::End::kSending ? OperationKind::kSend : OperationKind::kReceive),
        track_(end, me.communicator(), me.communicator().ranks()[static_cast<size_t>(peer)],
               end == Track::End::kSending
                   ? me.communicator().poster().filler().member(peer).channel
                   : me.communicator().id(),
               terms, share) {
    me.communicator().poster().open_track(track_);
  }
  TrackEnd(const TrackEnd&) = delete;
  TrackEnd& operator=(const TrackEnd&) = delete;
  ~TrackEnd() {
    if (!closed_) close();
  }
  // Closes the end. No run may be in progress.
  void close() {
    EXPECT_EQ(me_.communicator().poster().close_track(track_), Code::kOk);
    closed_ = true;
  }

  // Starts a run. Returns null if too many runs are in progress. A |timeout_ns| of 0 means the
  // default.
  Operation* start(const hetcomm_buffer_t& buffer, uint64_t timeout_ns = 0) {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = timeout_ns;
    Operation* operation = nullptr;
    std::string text;
    const Code code = me_.communicator().poster().post(
        {kind_, peer_, track_.terms().tag, 0, &buffer, 1, &options, false, nullptr, &track_},
        &operation, &text);
    if (code == Code::kBusy) return nullptr;
    if (code != Code::kOk) throw std::runtime_error(text);
    return operation;
  }
  Operation* start(void* data, uint64_t size, uint64_t timeout_ns = 0) {
    return start(hetcomm_buffer_host(data, size), timeout_ns);
  }
  void cancel(Operation* operation) {
    const Engine::Baton baton(me_.context().engine());
    if (operation->state() == OperationState::kPending) me_.communicator().cancel(*operation);
  }
  Track& track() { return track_; }

 private:
  CoreMember& me_;
  const int peer_;
  const OperationKind kind_;
  Track track_;
  bool closed_ = false;
};

}  // namespace hetcomm::test
