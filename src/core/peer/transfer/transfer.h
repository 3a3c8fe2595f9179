// SendTransfer and ReceiveTransfer are the two sides of a rendezvous: a message whose data waits
// for its receive. A SendTransfer also represents a pulled message (kPull). It then waits for
// kDone, or returns the operation to MessageSender, which pushes the message.
//
//   sender                                 receiver
//     kAnnounce (length, readable key) -->    matched with a receive
//       either                        <--  kGrant (chunk, key), one for each of several chunks
//     put into the chunk              -->    counts what arrives
//       or
//     kOffer (location of the bytes)  -->    copies them out of the sender's memory, into its own
//                                     <--  kTaken
//       or                                   gets the data, chunk by chunk
//                                     <--  kDone
//
// A run of a track (track.h) has no announcement, and its grants may arrive before it starts.
//
// The receiver divides the message into chunks. For each chunk it chooses the memory that receives
// the data (the user's memory, or a staging chunk for device memory) and the connection that
// carries it. A chunk whose connection broke is granted again on the next one. The sender stages
// device memory piece by piece. If a grant allows it, the sender stages data in memory that the
// receiver can map, and offers it there. Each side then makes one of the two copies through the
// host. Host memory is also offered if the data is for a device. The memory of the grant is then
// used only for parts that the sender puts there instead of offering them. Either side can end the
// transfer early (kStop, kWithdraw). An operation completes only when no connection and no device
// copy accesses its memory any longer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/memory/staging.h"
#include "src/core/peer/matching/match.h"
#include "src/core/peer/transfer/track.h"
#include "src/core/peer/transfer/transfer_table.h"
#include "src/core/peer/wire/reason.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/graveyard.h"

namespace hetcomm {

// A SendTransfer owns itself from the announcement on, and retires when its operation has
// completed.
class SendTransfer final : public Mortal {
 public:
  SendTransfer(TransferTable& table, Operation& send);
  ~SendTransfer();

  // Returns the body of the announcement. Exposes the source if the receiver can read it over the
  // current rail.
  AnnounceBody make_announcement() HETCOMM_UNDER_BATON;
  // Sends |header| and |body|, which contains the result of make_announcement(), to announce
  // |transfer|'s operation. Returns kOk if the transfer is in progress. Otherwise nothing was sent,
  // and the caller still owns the transfer.
  template <typename Body>
  static Code announce(PoolPtr<SendTransfer>& transfer, const WireHeader& header,
                       const Body& body) HETCOMM_UNDER_BATON {
    return announce(transfer, header, &body, sizeof(body));
  }
  void announcement_sent() HETCOMM_UNDER_BATON { announced_ = true; }
  // Records that a kPull was sent at |now_ns| instead of an announcement.
  void pull_sent(uint64_t now_ns) HETCOMM_UNDER_BATON { pulled_since_ns_ = now_ns; }
  // Returns whether this is a pulled message that, as far as this rank knows, the receiver has not
  // read.
  bool is_pulled() const HETCOMM_UNDER_BATON {
    return pulled_since_ns_ != 0 && !received_ && !ending_;
  }
  uint64_t pulled_since_ns() const HETCOMM_UNDER_BATON { return pulled_since_ns_; }
  // Returns whether the connection over which the source could be read is gone.
  bool lost_source() const HETCOMM_UNDER_BATON { return source_rail_ == nullptr; }
  uint64_t id() const HETCOMM_UNDER_BATON { return id_; }
  uint64_t length() const HETCOMM_UNDER_BATON { return send_->length; }
  // Returns whether some of the data was sent or read, or may have been.
  bool has_moved() const HETCOMM_UNDER_BATON {
    return put_bytes_ > 0 || !pieces_.empty() || received_;
  }
  bool is_high() const HETCOMM_UNDER_BATON {
    return send_ != nullptr && send_->options.high_priority;
  }
  // Takes back a pulled message. From now on the receiver cannot read it. Returns the operation,
  // and retires this object.
  Operation& take_back() HETCOMM_UNDER_BATON;

  void granted(const Grant& grant) HETCOMM_UNDER_BATON;
  // Handles the receiver's answer to offer |number|: it has read the offer, or has |refused| it.
  void offer_answered(uint32_t number, bool refused) HETCOMM_UNDER_BATON;
  void done() HETCOMM_UNDER_BATON;                          // the receiver has everything
  void stopped(const PeerReason& why) HETCOMM_UNDER_BATON;  // the receiver has ended the transfer
  // Ends the transfer because its track was closed. The receiver already knows.
  void closed(const Status& why) HETCOMM_UNDER_BATON;
  // Ends the transfer early by a decision of this rank, and notifies the receiver. The receiver of
  // a run is notified only after it has granted something.
  void end(Code code, std::string text) HETCOMM_UNDER_BATON;
  // Stops everything in flight on the broken |rail|. The receiver will send new grants.
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  // Resumes after a connection has failed or opened, or when the pacer allows the transfer's queue
  // to send. Grants may have been waiting for pieces that have ended.
  void go_on() HETCOMM_UNDER_BATON { start_pieces(); }
  // Returns whether the transfer has, or will have, anything in flight on |rail|.
  bool uses(const Rail& rail) const HETCOMM_UNDER_BATON;

 private:
  class Piece;  // one put, from user memory or through a staging chunk; or one offer, in a chunk
  struct OpenGrant {
    Grant body;
    uint64_t started = 0;
    bool direct = false;  // a piece was sent directly, so the rest is, too
  };
  static constexpr size_t kMaxPieces = 16;  // most pieces in flight
  static_assert(ChunkPools::kMaxDepth <= kMaxPieces);
  static constexpr size_t kMaxGrants = 64;  // most waiting grants; a receiver makes few at a time

  bool of_track() const HETCOMM_UNDER_BATON { return track_ != nullptr; }
  bool fits(const GrantBody& grant) HETCOMM_UNDER_BATON;
  void note_answer() HETCOMM_UNDER_BATON;
  void start_pieces() HETCOMM_UNDER_BATON;
  bool start_grant(OpenGrant& grant) HETCOMM_UNDER_BATON;
  bool start_staged(OpenGrant& grant, Rail& rail) HETCOMM_UNDER_BATON;
  bool start_direct(OpenGrant& grant, Rail& rail) HETCOMM_UNDER_BATON;
  uint64_t allowed(const Rail& rail, uint64_t bytes) HETCOMM_UNDER_BATON;
  void bury(size_t piece) HETCOMM_UNDER_BATON;
  void piece_finished(Piece& piece, const Status& status) HETCOMM_UNDER_BATON;
  void finish_as(Code code, std::string text) HETCOMM_UNDER_BATON;
  void finish_told(const Status& why) HETCOMM_UNDER_BATON;
  void quiesce() HETCOMM_UNDER_BATON;
  void maybe_finish() HETCOMM_UNDER_BATON;

  static Code announce(PoolPtr<SendTransfer>& transfer, const WireHeader& header, const void* body,
                       size_t size) HETCOMM_UNDER_BATON;
  void revoke_source() HETCOMM_UNDER_BATON;

  DataServices& data() HETCOMM_UNDER_BATON { return table_.data(); }

  TransferTable& table_;
  Association& association_;
  Operation* send_;
  Track* const track_;  // null: the transfer belongs to no track
  uint64_t id_;
  uint64_t wire_id_;  // id of the transfer in messages to the receiver
  RemoteKey source_key_;
  Rail* source_rail_ = nullptr;    // where the source was exposed
  FarWays::Choice far_;            // made when a rail is beyond the device's root complex
  std::vector<OpenGrant> grants_;  // grants that are not completely divided into pieces yet
  ChunkPools::Share chunks_;
  FewPooled<Piece, kMaxPieces> pieces_;
  uint64_t accepted_ = UINT64_MAX;  // bytes that the receiver accepts; UINT64_MAX before a grant
  uint64_t put_bytes_ = 0;
  bool may_lose_ = false;   // a grant was for a rail that may lose data
  bool announced_ = false;  // the announcement was sent
  uint64_t pulled_since_ns_ = 0;
  bool answered_ = false;
  bool granted_ = false;
  bool peer_knows_ = false;   // the peer knows that the transfer has ended early
  bool told_length_ = false;  // the receiver of a run was sent the length
  bool received_ = false;     // the peer has received the whole message
  bool ending_ = false;
  Code code_ = Code::kOk;
  std::string text_;
};

class ReceiveTransfer final : public Mortal {
 public:
  // Carries out |receive|, which was matched with the announced |message|.
  ReceiveTransfer(TransferTable& table, Operation& receive, const Incoming& message);
  ~ReceiveTransfer();

  IdLink<ReceiveTransfer> id_link;  // links the transfers in a TransferTable by sender_id()

  void start() HETCOMM_UNDER_BATON;
  uint64_t sender_id() const HETCOMM_UNDER_BATON { return sender_id_; }
  void withdrawn(const PeerReason& why) HETCOMM_UNDER_BATON;  // the sender has ended the message
  // Ends the transfer early by a decision of this rank, and notifies the sender. Does nothing if
  // only device copies remain. The sender of a message is not notified of an abort here.
  void end(Code code, std::string text) HETCOMM_UNDER_BATON;
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  bool uses(const Rail& rail) const HETCOMM_UNDER_BATON;
  void rail_ready() HETCOMM_UNDER_BATON { start_chunks(); }
  // Continues with offers after a request to map the peer's memory has succeeded or failed.
  void take_offers() HETCOMM_UNDER_BATON;
  // Shortens a run's message to |length| bytes. Returns false if it cannot be that short.
  bool shorten(uint64_t length) HETCOMM_UNDER_BATON;
  // Ends the transfer because its track was closed. The sender already knows.
  void closed(const Status& why) HETCOMM_UNDER_BATON;

 private:
  class Chunk;
  static constexpr size_t kMaxGranted = 16;  // most chunks in flight
  static_assert(ChunkPools::kMaxDepth <= kMaxGranted);
  // The longest chunk on a connection that may lose data. If the connection breaks, at most this
  // many bytes of a chunk are sent again.
  static constexpr uint64_t kRegrantBytes = 8u << 20;
  // The next two constants apply when several connections share the load: the unit of a chunk's
  // length, and the most chunks in flight on a connection.
  static constexpr uint64_t kMinShare = 128u << 10;
  static constexpr size_t kChunksPerRail = 2;
  // The most bytes in flight on a connection whose rate is not measured yet, and on every
  // connection while further ones are expected. Each message may nevertheless have one chunk in
  // flight.
  static constexpr uint64_t kMaxEarlyBytes = 256u << 10;

  struct Range {
    uint64_t offset;
    uint64_t length;
  };
  // The location where the sender's memory can be read. Without a key it cannot be read.
  struct Source {
    uint64_t rail;
    RemoteKey key;
  };

  // The kind of transfer: a message, or a run of a track, which the sender may limit to a rate.
  enum class Origin : uint8_t { kMessage, kRun, kRunWithRate };
  static Origin origin_of(const Operation& receive) HETCOMM_UNDER_BATON;
  bool of_track() const HETCOMM_UNDER_BATON { return origin_ != Origin::kMessage; }

  void start_chunks() HETCOMM_UNDER_BATON;
  bool start_waiting_chunks() HETCOMM_UNDER_BATON;
  bool add_chunk() HETCOMM_UNDER_BATON;
  void cut_again(size_t index) HETCOMM_UNDER_BATON;
  bool want_get() HETCOMM_UNDER_BATON;
  Rail* pick_rail() const HETCOMM_UNDER_BATON;
  size_t chunks_on(const Rail& rail) const HETCOMM_UNDER_BATON;
  uint64_t next_length(const Range& rest, bool staged, const Rail& rail) const HETCOMM_UNDER_BATON;
  uint64_t share_of(const Rail& rail, double sum, uint64_t rest) const HETCOMM_UNDER_BATON;
  bool knows_rate(const Rail& rail) const HETCOMM_UNDER_BATON;
  bool is_untried(const Rail& rail) const HETCOMM_UNDER_BATON;
  double rate_of(const Rail& rail) const HETCOMM_UNDER_BATON;
  double sum_of_rates() const HETCOMM_UNDER_BATON;
  bool is_any_under_way() const HETCOMM_UNDER_BATON;
  uint64_t bytes_on(const Rail& rail) const HETCOMM_UNDER_BATON;
  void chunk_finished(Chunk& chunk) HETCOMM_UNDER_BATON;
  void chunk_is_quiet() HETCOMM_UNDER_BATON;
  void chunk_failed(Code code, std::string_view why) HETCOMM_UNDER_BATON;
  void finish_as(Code code, std::string text) HETCOMM_UNDER_BATON;
  void finish_told(const Status& why) HETCOMM_UNDER_BATON;
  void maybe_finish() HETCOMM_UNDER_BATON;
  bool only_copies_are_left() const HETCOMM_UNDER_BATON;
  bool message_is_complete() const HETCOMM_UNDER_BATON { return finished_ == accepted_; }

  DataServices& data() HETCOMM_UNDER_BATON { return table_.data(); }

  TransferTable& table_;
  Association& association_;
  Operation* receive_;
  uint64_t id_;
  uint64_t sender_id_;
  Source source_;
  const RailMasks near_;  // while these transports have connections, only those are used
  uint64_t tag_;
  uint64_t length_;
  uint64_t accepted_;
  uint64_t cut_ = 0;          // bytes divided into chunks so far
  std::vector<Range> uncut_;  // ranges before |cut_| that must be divided again
  uint64_t finished_ = 0;     // bytes that are in the receive's memory
  bool by_get_ = false;
  FarWays::Choice far_;  // made when a rail is beyond the device's root complex
  bool chosen_ = false;  // chooser() has chosen put or get for host memory, and the choice holds
  bool source_gone_ = false;
  const Origin origin_;
  bool wrote_to_device_;  // network interfaces wrote to the device
  bool sender_knows_;     // all grants went over rails on which the sender needs no kDone
  bool ending_ = false;
  struct {
    Code code = Code::kOk;
    std::string text;
  } outcome_;
  uint64_t started_ns_;
  ChunkPools::Share staging_;
  FewPooled<Chunk, kMaxGranted> chunks_;
};

}  // namespace hetcomm
