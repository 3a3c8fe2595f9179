// Rendezvous: a message whose data waits for its receive. A SendTransfer also stands for a message
// that is pulled (kPull). It waits for kDone, or gives the operation back to be pushed.
//
//   sender                                 receiver
//     kAnnounce (length, readable key) -->    matched with a receive
//       either                        <--  kGrant (chunk, key), one for each of several chunks
//     put into the chunk              -->    counts what arrives
//       or
//     kOffer (where the bytes lie)    -->    copies them out of the sender's memory, into its own
//                                     <--  kTaken
//       or                                   get by itself, chunk by chunk
//                                     <--  kDone
//
// A run of a track (track.h) has no announcement, and its grants may arrive before it starts.
//
// The receiver drives. It cuts the message into chunks. For each chunk it chooses where the data
// lands (the user's memory, or a staging chunk of a device message) and which connection carries
// it. Chunks whose connection broke are granted again on the next one. The sender stages device
// memory piece by piece. If a grant allows it, the sender offers staged data that is in memory
// which the receiver can map. Of the two remaining copies through the host, each side then makes
// one. Host bytes are offered, too, if they go to a device. The memory of the grant is then unused,
// but the sender may still put any part there instead. Both ends can end early (kStop, kWithdraw).
// An operation completes only when no connection and no device copy touches its memory any more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/baton_role.h"
#include "src/core/memory/staging.h"
#include "src/core/peer/matching/match.h"
#include "src/core/peer/matching/track.h"
#include "src/core/peer/transfer/transfer_table.h"
#include "src/core/peer/wire/reason.h"
#include "src/core/progress/block_pool.h"
#include "src/core/progress/graveyard.h"

namespace hetcomm {

// From the announcement on it owns itself. It retires itself when its operation has completed.
class SendTransfer final : public Mortal {
 public:
  SendTransfer(TransferTable& table, Operation& send);
  ~SendTransfer();

  // The body of the announcement; exposes the source if the rail can be read from.
  AnnounceBody make_announcement() HETCOMM_UNDER_BATON;
  // Sends |header| and |body|, which holds the result of make_announcement(). They announce
  // |transfer|'s operation. kOk: the transfer is in progress. Other codes: nothing has left, and
  // the caller still owns the transfer.
  template <typename Body>
  static Code announce(PoolPtr<SendTransfer>& transfer, const WireHeader& header,
                       const Body& body) HETCOMM_UNDER_BATON {
    return announce(transfer, header, &body, sizeof(body));
  }
  void announcement_sent() HETCOMM_UNDER_BATON { announced_ = true; }
  // Used instead of an announcement: the receiver was told at |now_ns| to read the message.
  void pull_sent(uint64_t now_ns) HETCOMM_UNDER_BATON { pulled_since_ns_ = now_ns; }
  // The receiver has not read the message, as far as this side knows.
  bool is_pulled() const HETCOMM_UNDER_BATON {
    return pulled_since_ns_ != 0 && !received_ && !ending_;
  }
  uint64_t pulled_since_ns() const HETCOMM_UNDER_BATON { return pulled_since_ns_; }
  // The connection over which it could be read is gone.
  bool lost_source() const HETCOMM_UNDER_BATON { return source_rail_ == nullptr; }
  uint64_t id() const HETCOMM_UNDER_BATON { return id_; }
  uint64_t length() const HETCOMM_UNDER_BATON { return send_->length; }
  // Some of its data has left, or may have.
  bool has_moved() const HETCOMM_UNDER_BATON {
    return put_bytes_ > 0 || !pieces_.empty() || received_;
  }
  bool is_high() const HETCOMM_UNDER_BATON {
    return send_ != nullptr && send_->options.high_priority;
  }
  // Takes a pulled message back: the receiver no longer reads it, and this object ends. Returns the
  // operation.
  Operation& take_back() HETCOMM_UNDER_BATON;

  void granted(const Grant& grant) HETCOMM_UNDER_BATON;
  // The receiver has read offer |number|, or has |refused| to.
  void offer_answered(uint32_t number, bool refused) HETCOMM_UNDER_BATON;
  void done() HETCOMM_UNDER_BATON;                          // the receiver has everything
  void stopped(const PeerReason& why) HETCOMM_UNDER_BATON;  // the receiver ended it
  // Its track has ended, and the receiver knows it.
  void closed(const Status& why) HETCOMM_UNDER_BATON;
  void end(Code code,
           std::string text) HETCOMM_UNDER_BATON;  // this side ends it; tells the receiver
  // The connection broke: nothing is in flight on it, and other grants will come.
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  // Continues after a connection failed or opened, or when its queue's turn has come. Grants may
  // have waited for pieces that have ended.
  void go_on() HETCOMM_UNDER_BATON { start_pieces(); }
  // The transfer has something in flight on |rail|, or will have.
  bool uses(const Rail& rail) const HETCOMM_UNDER_BATON;

 private:
  class Piece;  // one put, from user memory or through a staging chunk; or one offer, in a chunk
  struct OpenGrant {
    Grant body;
    uint64_t started = 0;
    bool direct = false;  // it started directly
  };
  static constexpr size_t kMaxPieces = 16;  // most pieces in flight
  static_assert(ChunkPools::kMaxDepth <= kMaxPieces);
  static constexpr size_t kMaxGrants = 64;  // most that wait; a receiver grants few at a time

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

  TransferTable& table_;
  Association& association_;
  Operation* send_;
  Track* const track_;  // null: it belongs to no track
  uint64_t id_;
  uint64_t wire_id_;  // the receiver's id of it
  RemoteKey source_key_;
  Rail* source_rail_ = nullptr;    // where the source was exposed
  FarWays::Choice far_;            // made when a rail lies beyond the device's root complex
  std::vector<OpenGrant> grants_;  // not completely turned into pieces yet
  ChunkPools::Share chunks_;
  FewPooled<Piece, kMaxPieces> pieces_;
  uint64_t accepted_ = UINT64_MAX;  // known once a grant has come
  uint64_t put_bytes_ = 0;
  bool may_lose_ = false;   // a piece went over a rail that may lose it
  bool announced_ = false;  // the announcement has left
  uint64_t pulled_since_ns_ = 0;
  bool answered_ = false;
  bool granted_ = false;
  bool peer_knows_ = false;   // the peer knows that it has ended early
  bool told_length_ = false;  // the receiver of a run was told the length
  bool received_ = false;     // the peer has received all of it
  bool ending_ = false;
  Code code_ = Code::kOk;
  std::string text_;
};

class ReceiveTransfer final : public Mortal {
 public:
  // Takes over |receive| for the message that |message| announces.
  ReceiveTransfer(TransferTable& table, Operation& receive, const Incoming& message);
  ~ReceiveTransfer();

  IdLink<ReceiveTransfer> id_link;  // by sender_id(), in the TransferTable

  void start() HETCOMM_UNDER_BATON;
  uint64_t sender_id() const HETCOMM_UNDER_BATON { return sender_id_; }
  void withdrawn(const PeerReason& why) HETCOMM_UNDER_BATON;  // the sender ended it
  // This side ends it, and tells the sender unless everything has come.
  void end(Code code, std::string text) HETCOMM_UNDER_BATON;
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  bool uses(const Rail& rail) const HETCOMM_UNDER_BATON;
  void rail_ready() HETCOMM_UNDER_BATON { start_chunks(); }
  // The peer's memory has been mapped, or cannot be mapped.
  void take_offers() HETCOMM_UNDER_BATON;
  // A run's message has only |length| bytes. False: it cannot be that short.
  bool shorten(uint64_t length) HETCOMM_UNDER_BATON;
  // Its track has ended, and the sender knows it.
  void closed(const Status& why) HETCOMM_UNDER_BATON;

 private:
  class Chunk;
  static constexpr size_t kMaxGranted = 16;  // most chunks in flight
  static_assert(ChunkPools::kMaxDepth <= kMaxGranted);
  static constexpr uint64_t kRegrantBytes =
      8u << 20;  // what a broken connection costs at most, per chunk
  // These apply when several connections share the load.
  static constexpr uint64_t kMinShare = 128u << 10;
  static constexpr size_t kChunksPerRail = 2;

  struct Range {
    uint64_t offset;
    uint64_t length;
  };
  // The place where the sender's memory can be read; without a key there is none.
  struct Source {
    uint64_t rail;
    RemoteKey key;
  };

  // The kind of transfer: a message, or a run of a track, which the sender may hold to a rate.
  enum class Origin : uint8_t { kMessage, kRun, kRunWithRate };
  static Origin origin_of(const Operation& receive) HETCOMM_UNDER_BATON;
  bool of_track() const HETCOMM_UNDER_BATON { return origin_ != Origin::kMessage; }

  void start_chunks() HETCOMM_UNDER_BATON;
  bool start_waiting_chunks() HETCOMM_UNDER_BATON;
  bool add_chunk() HETCOMM_UNDER_BATON;
  void cut_again(size_t index) HETCOMM_UNDER_BATON;
  bool want_get() HETCOMM_UNDER_BATON;
  Rail* pick_rail() const HETCOMM_UNDER_BATON;
  uint64_t next_length(const Range& rest, bool staged) const HETCOMM_UNDER_BATON;
  void chunk_finished(Chunk& chunk) HETCOMM_UNDER_BATON;
  void chunk_is_quiet() HETCOMM_UNDER_BATON;
  void chunk_failed(Code code, std::string_view why) HETCOMM_UNDER_BATON;
  void finish_as(Code code, std::string text) HETCOMM_UNDER_BATON;
  void finish_told(const Status& why) HETCOMM_UNDER_BATON;
  void maybe_finish() HETCOMM_UNDER_BATON;
  bool only_copies_are_left() const HETCOMM_UNDER_BATON;
  bool message_is_complete() const HETCOMM_UNDER_BATON { return finished_ == accepted_; }

  TransferTable& table_;
  Association& association_;
  Operation* receive_;
  uint64_t id_;
  uint64_t sender_id_;
  Source source_;
  const RailMasks near_;  // it uses connections between these while there are some
  uint64_t tag_;
  uint64_t length_;
  uint64_t accepted_;
  uint64_t cut_ = 0;          // bytes turned into chunks so far
  std::vector<Range> uncut_;  // ranges before |cut_| whose chunks could not go as they were
  uint64_t finished_ = 0;     // bytes that are in place
  bool by_get_ = false;
  FarWays::Choice far_;  // made when a rail lies beyond the device's root complex
  bool chosen_ = false;  // the table's chooser has decided, and nothing else since
  bool source_gone_ = false;
  const Origin origin_;
  bool wrote_to_device_;  // network interfaces wrote to the device
  bool sender_knows_;     // all grants went over rails on which the sender itself sees the end
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
