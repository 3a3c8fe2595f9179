// Lanes: the lanes between this rank and one peer (lane.h): opening and closing them, starting
// their runs, and what the peer says of them. Under the baton.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/lane.h"
#include "src/core/peer/lane_ends.h"
#include "src/core/peer/transfer.h"

namespace hetcomm {

class Lanes {
 public:
  Lanes(Association& association, TransferTable& transfers)
      : association_(association),
        transfers_(transfers),
        pacer_(association.common().turns, association.common().links, association.pair()) {}
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // |lane| stays until close(). |lost|: why the association is, if it is; then no run can start.
  // May throw std::bad_alloc.
  void open(Lane& lane, const Status& lost) HETCOMM_UNDER_BATON;
  // Takes open() back. The peer, which may have heard of it, waits for runs that do not come, until
  // it closes its end.
  void forget(Lane& lane) HETCOMM_UNDER_BATON;
  // No run of |lane| is under way. The peer is told of |why|. |unmatched|: none of the peer's ends
  // belongs to it, even one with the same terms.
  void close(Lane& lane, const Status& why, bool unmatched) HETCOMM_UNDER_BATON;
  // Starts |run|, which is pending and has its place.
  void start(Operation& run) HETCOMM_UNDER_BATON;
  // Both ends know that the next |runs| runs of |lane| do not take place. False: the row is full, and
  // the caller asks again when a run has ended.
  bool skip(Lane& lane, uint64_t runs) HETCOMM_UNDER_BATON;
  // The other end knows that |runs| runs from |from| on end, as far as they have been started here.
  void give_up(Lane& lane, uint64_t from, uint64_t runs) HETCOMM_UNDER_BATON;
  // Starts to move the data of runs that were left to the end of the pass, or that wait for their
  // turn.
  void go_on() HETCOMM_UNDER_BATON {
    if (!left_.empty()) [[unlikely]]
      move_left();
    if (pacer_.any_waits()) [[unlikely]]
      move_paced();
  }
  uint64_t next_timer_ns() const HETCOMM_UNDER_BATON { return pacer_.next_timer_ns(); }
  // Ends a run of phase kUnopened.
  void end_unopened(Operation& run, Code code, std::string text) HETCOMM_UNDER_BATON;

  // --- what arrives on Association::receiving_on() ---
  void receive_open(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive_length(const WireHeader& header) HETCOMM_UNDER_BATON;
  void receive_at(const WireHeader& header) HETCOMM_UNDER_BATON;
  void receive_closed(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;
  // For a run, whose number is |grant.sender_id|.
  void granted(const Grant& grant) HETCOMM_UNDER_BATON;
  void stopped(uint64_t id, const PeerReason& why) HETCOMM_UNDER_BATON;
  // Null: it has no transfer here.
  SendTransfer* find_send(uint64_t id) HETCOMM_UNDER_BATON;

  // --- connections ---
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  // Grants of runs that have not been started name |rail|.
  bool uses(const Rail& rail) HETCOMM_UNDER_BATON;
  // The peer is lost: no run starts any more. Transfers end by themselves.
  void fail_everything(const Status& why) HETCOMM_UNDER_BATON;

 private:
  static LaneKey key_of(const Lane& lane) {
    return {lane.channel(), lane.terms().use, lane.terms().tag};
  }
  static uint64_t name_of(const Lane& lane) { return reinterpret_cast<uintptr_t>(&lane); }

  // An end that the peer has opened and this rank has not. The peer may have closed it since.
  struct Opening {
    uint64_t tag;
    uint64_t plan;
    LaneOpenBody body;
    Status closed;
    uint64_t at = 0;  // the sending end has passed all runs before it

    LaneKey key() const { return {body.channel, body.use, tag}; }
    uint64_t name() const { return body.number; }
    uint64_t content() const { return body.content; }
    bool is_gone() const { return !closed.ok(); }
  };
  // A receiving end that waits for the peer's. It may have been closed since: the peer's end that
  // belongs to it hears of it.
  struct Unopened {
    uint32_t channel;
    uint32_t use;
    uint64_t tag;
    uint64_t plan;
    uint64_t wanted;  // content
    Lane* lane;       // null: closed
    Status why;       // it was closed

    LaneKey key() const { return {channel, use, tag}; }
    uint64_t name() const { return name_of(*lane); }
    uint64_t content() const { return wanted; }
    bool is_gone() const { return lane == nullptr; }
  };
  static constexpr size_t kMaxOpenings = 1u << 16;
  static constexpr size_t kMaxGrants = 64;  // of one run, that come before its start
  // The data of longer runs does not move in the call that starts them: who pushes an item wants to
  // compute, and the progress thread copies.
  static constexpr uint64_t kMaxAtOnce = 32u << 10;

  PairCommons& common() HETCOMM_UNDER_BATON { return association_.common(); }
  void open_sending(Lane& lane) HETCOMM_UNDER_BATON;
  void open_receiving(Lane& lane) HETCOMM_UNDER_BATON;
  void bind(Lane& lane, const LaneOpenBody& body) HETCOMM_UNDER_BATON;
  void start_send(Lane& lane, Operation& run) HETCOMM_UNDER_BATON;
  void take_grants(Lane& lane, uint64_t number) HETCOMM_UNDER_BATON;
  void move_left() HETCOMM_UNDER_BATON;
  void move_paced() HETCOMM_UNDER_BATON;
  void tell_at(Lane& lane) HETCOMM_UNDER_BATON;
  void start_waiting(Lane& lane) HETCOMM_UNDER_BATON;
  void refuse_far(Lane& lane, Operation& run, std::string_view other,
                  uint64_t items) HETCOMM_UNDER_BATON;
  void start_receive(Lane& lane, Operation& run) HETCOMM_UNDER_BATON;
  void begin_receive(Lane& lane, Operation& run) HETCOMM_UNDER_BATON;
  void refuse(Operation& run, Code code, std::string text) HETCOMM_UNDER_BATON;
  void refuse(Operation& run, const Status& why) HETCOMM_UNDER_BATON;
  Status misfit(const Lane& lane, const LaneOpenBody& theirs) HETCOMM_UNDER_BATON;
  void break_off(Lane& lane, const Status& why) HETCOMM_UNDER_BATON;
  void end_runs(Lane& lane, uint64_t from, const Status& why) HETCOMM_UNDER_BATON;
  void drop_gone() HETCOMM_UNDER_BATON;
  static bool holds_too_many(Lane& lane, uint64_t run) HETCOMM_UNDER_BATON;
  void tell_given_up(Lane& lane) HETCOMM_UNDER_BATON;
  Status closed_here() HETCOMM_UNDER_BATON;
  void end_waiting(Lane& lane, const Status& why) HETCOMM_UNDER_BATON;
  void tell_closed(const Lane& lane, const Status& why,
                   const LaneClosedBody& body) HETCOMM_UNDER_BATON;
  void tell_closed(uint64_t end, const Status& why, const LaneClosedBody& body) HETCOMM_UNDER_BATON;
  Lane* find(const std::unordered_map<uint32_t, Lane*>& lanes, uint32_t number) HETCOMM_UNDER_BATON;
  template <typename Use>
  void for_each(Use&& use) HETCOMM_UNDER_BATON;

  Association& association_;
  TransferTable& transfers_;
  Pacer pacer_;
  uint32_t next_number_ = 0;
  // Numbers of lanes of which runs have started whose grants were not taken. There is room for all
  // that are open.
  std::vector<uint32_t> left_;
  std::unordered_map<uint32_t, Lane*> sending_;    // by number
  std::unordered_map<uint32_t, Lane*> receiving_;  // by the peer's number
  LaneEnds<Unopened> unopened_;
  LaneEnds<Opening> openings_;
};

}  // namespace hetcomm
