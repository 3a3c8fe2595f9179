// Tracks manages the tracks between this rank and one peer (track.h). It opens and closes them,
// starts their runs, and handles the peer's messages about them. All callers hold the baton.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/transfer/track.h"
#include "src/core/peer/transfer/track_ends.h"
#include "src/core/peer/transfer/transfer.h"

namespace hetcomm {

class Tracks {
 public:
  Tracks(Association& association, TransferTable& transfers, PairTurns& turns, LinkShares& links)
      : association_(association),
        transfers_(transfers),
        pacer_(turns, links, association.pair()) {}
  Tracks(const Tracks&) = delete;
  Tracks& operator=(const Tracks&) = delete;

  // Opens |track|, which must stay valid until close(). |lost| is the reason why the association is
  // lost, or kOk. If it is lost, no run can start. May throw std::bad_alloc.
  void open(Track& track, const Status& lost) HETCOMM_UNDER_BATON;
  // Undoes open(). If the peer was already notified of the track, the peer's runs wait until the
  // peer closes its end.
  void forget(Track& track) HETCOMM_UNDER_BATON;
  // Closes |track|, which has no run in flight, and sends the reason |why| to the peer unless the
  // peer is notified otherwise. |unmatched| is true if no end of the peer matches |track|, since
  // the plans differ.
  void close(Track& track, const Status& why, bool unmatched) HETCOMM_UNDER_BATON;
  // Starts |run|, which is pending, and gives it the next run number.
  void start(Operation& run) HETCOMM_UNDER_BATON;
  // Skips the next |runs| runs of |track|. Both ends know that these runs do not take place.
  // Returns false if too many runs are held. The caller then has to try again when a run has ended.
  bool skip(Track& track, uint64_t runs) HETCOMM_UNDER_BATON;
  // Records that |runs| runs starting at |from| do not take place, as far as they have started
  // here. The peer knows this, so it is not notified when they end. The caller ends them
  // afterwards.
  void give_up(Track& track, uint64_t from, uint64_t runs) HETCOMM_UNDER_BATON;
  // Moves the data of runs that were deferred to the end of the pass, or that wait for the pacer.
  void go_on() HETCOMM_UNDER_BATON {
    if (!left_.empty()) [[unlikely]]
      move_left();
    if (pacer_.any_waits()) [[unlikely]]
      move_paced();
  }
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return pacer_.next_timer_ns(); }
  // Completes a run in phase kUnopened with |code|.
  void end_unopened(Operation& run, Code code, std::string text) HETCOMM_UNDER_BATON;

  // --- messages that arrive on Association::receiving_on() ---
  void receive_open(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_length(const WireHeader& header) HETCOMM_UNDER_BATON;
  void receive_at(const WireHeader& header) HETCOMM_UNDER_BATON;
  void receive_closed(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  // Handles a grant for run |grant.sender_id|.
  void granted(const Grant& grant) HETCOMM_UNDER_BATON;
  void stopped(uint64_t id, const PeerReason& why) HETCOMM_UNDER_BATON;
  // Returns the transfer of run |id|, or null if it has none here.
  SendTransfer* find_send(uint64_t id) HETCOMM_UNDER_BATON;

  // --- connections ---
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  // Returns whether |rail| has grants for runs that have not started.
  bool uses(const Rail& rail) HETCOMM_UNDER_BATON;
  // Closes all tracks because the peer is lost, so no more runs start. Transfers are ended
  // separately.
  void fail_everything(const Status& why) HETCOMM_UNDER_BATON;

 private:
  static TrackKey key_of(const Track& track) {
    return {track.channel(), track.terms().use, track.terms().tag};
  }
  static uint64_t name_of(const Track& track) { return reinterpret_cast<uintptr_t>(&track); }

  // An end that the peer has opened and this rank has not. The peer may already have closed it.
  struct Opening {
    uint64_t tag;
    uint64_t plan;
    TrackOpenBody body;
    Status closed;
    uint64_t at = 0;  // the sending end has passed all runs before this one

    TrackKey key() const { return {body.channel, body.use, tag}; }
    uint64_t name() const { return body.number; }
    uint64_t content() const { return body.content; }
    bool is_gone() const { return !closed.ok(); }
  };
  // A receiving end that waits for the peer's end. If this rank closes it first, the peer is
  // notified when it opens the matching end.
  struct Unopened {
    uint32_t channel;
    uint32_t use;
    uint64_t tag;
    uint64_t plan;
    uint64_t wanted;  // TrackTerms::content that the peer's end must match
    Track* track;     // null: the track was closed
    Status why;       // why it was closed

    TrackKey key() const { return {channel, use, tag}; }
    uint64_t name() const { return name_of(*track); }
    uint64_t content() const { return wanted; }
    bool is_gone() const { return track == nullptr; }
  };
  static constexpr size_t kMaxOpenings = 1u << 16;
  // The data of longer runs is moved at the end of the pass, not in the call that starts them. The
  // caller can thus continue its computation while the progress thread copies the data.
  static constexpr uint64_t kMaxAtOnce = 32u << 10;

  DataServices& data() HETCOMM_UNDER_BATON { return transfers_.data(); }
  void open_sending(Track& track) HETCOMM_UNDER_BATON;
  void open_receiving(Track& track) HETCOMM_UNDER_BATON;
  void bind(Track& track, const TrackOpenBody& body) HETCOMM_UNDER_BATON;
  void start_send(Track& track, Operation& run) HETCOMM_UNDER_BATON;
  void take_grants(Track& track, uint64_t number) HETCOMM_UNDER_BATON;
  void move_left() HETCOMM_UNDER_BATON;
  void move_paced() HETCOMM_UNDER_BATON;
  void tell_at(Track& track) HETCOMM_UNDER_BATON;
  void start_waiting(Track& track) HETCOMM_UNDER_BATON;
  void refuse_far(Track& track, Operation& run, std::string_view other,
                  uint64_t items) HETCOMM_UNDER_BATON;
  void start_receive(Track& track, Operation& run) HETCOMM_UNDER_BATON;
  void begin_receive(Track& track, Operation& run) HETCOMM_UNDER_BATON;
  void refuse(Operation& run, Code code, std::string text) HETCOMM_UNDER_BATON;
  void refuse(Operation& run, const Status& why) HETCOMM_UNDER_BATON;
  Status misfit(const Track& track, const TrackOpenBody& theirs) HETCOMM_UNDER_BATON;
  void break_off(Track& track, const Status& why) HETCOMM_UNDER_BATON;
  void end_runs(Track& track, uint64_t from, const Status& why) HETCOMM_UNDER_BATON;
  void drop_gone() HETCOMM_UNDER_BATON;
  void tell_given_up(Track& track) HETCOMM_UNDER_BATON;
  Status closed_here() HETCOMM_UNDER_BATON;
  void end_waiting(Track& track, const Status& why) HETCOMM_UNDER_BATON;
  void tell_closed(uint64_t end, const Status& why,
                   const TrackClosedBody& body) HETCOMM_UNDER_BATON;
  Track* find(const std::unordered_map<uint32_t, Track*>& tracks,
              uint32_t number) HETCOMM_UNDER_BATON;
  template <typename Use>
  void for_each(Use&& use) HETCOMM_UNDER_BATON;

  Association& association_;
  TransferTable& transfers_;
  Pacer pacer_;
  uint32_t next_number_ = 0;
  // Numbers of tracks with started runs whose grants have not been handled. The capacity is large
  // enough for all open tracks.
  std::vector<uint32_t> left_;
  std::unordered_map<uint32_t, Track*> sending_;    // indexed by number
  std::unordered_map<uint32_t, Track*> receiving_;  // indexed by the peer's number
  TrackEnds<Unopened> unopened_;
  TrackEnds<Opening> openings_;
};

}  // namespace hetcomm
