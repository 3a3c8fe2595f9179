// Defines the wire format of core: the 32-byte header in front of every message, and the payloads
// with a fixed layout. All values are little endian: the handshake refuses peers with another byte
// order. The code that uses a value checks it against local tables, since no value from the wire is
// trusted.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "src/base/span.h"
#include "transports/transport.h"

namespace hetcomm {

enum class MessageKind : uint8_t {
  // The first message on every connection, in both directions. tag = rail id, value = last sequence
  // received, channel = number of the sender's transport.
  kOpen = 1,
  kEager,       // a whole message; value: addressee_value()
  kEagerFirst,  // the beginning of a message; value: addressee_value(), with the total length
  kEagerMore,   // the next part of a message; value = offset; tag = id of the kPull whose message
                // is now sent as a copy, or 0 for the message of the last kEagerFirst
  kPull,        // an eager message that the receiver reads from the sender's memory; value:
                // addressee_value(), payload PullBody
  kPush,        // the receiver cannot read a kPull; tag = sender's transfer id
  kPullPause,  // says which messages the receiver wants to pull (pull_chooser.h); tag = size class,
               // value = pause
  kAnnounce,   // requests a rendezvous; value: addressee_value(), payload AnnounceBody
  kGrant,  // receiver lets the sender put a chunk; payload GrantBody; tag = cookie for offers of
           // parts of the chunk, 0: no offers; value = 1: the receiver prefers offers
  kDone,   // receiver has received all of a transfer; tag = sender's transfer id
  kStop,   // receiver ends a transfer early; tag = sender's transfer id, value = code, payload: the
           // reason (reason.h). kAborted without payload: the communicator was aborted
  kWithdraw,  // sender ends a message early; tag = sender's transfer id, or 0 for the eager message
              // that arrives in parts; value and payload as in kStop
  kUpdate,    // carries only |acknowledged| and |credit|; has no sequence number
  kWake,      // empty: wakes a sleeping receiver, which then checks memory that it shares with the
              // sender; after kMayClose, keeps the connection
  kRailDown,  // tag = rail that the sender has abandoned; it was fenced before any later message
  // One-sided operations; tag = the id that the initiator gave the operation.
  kPut,          // payload AccessBody and the bytes; value = the notification's value
  kAnnouncePut,  // payload AnnouncePutBody; value as in kPut
  kGet,          // payload AccessBody
  kGetData,      // all bytes of a get; value = their number
  kAnnounceGet,  // like kAnnounce, for a get
  kAtomic,       // payload AtomicBody
  kAtomicDone,   // value = the word before the operation
  kRefused,      // the owner has not performed the operation: value = code
  // These messages close a rail that is no longer useful; tag = rail.
  kRailUnused,  // the sender no longer uses the rail, and asks the peer to close it
  kRailClosed,  // answers kRailUnused: the sender had nothing in flight on the rail and closed it
  // These messages close the connection of an idle pair.
  kCloseIdle,  // the sender has nothing in flight, and asks whether it can close the connection
  kMayClose,   // answers kCloseIdle; tag = the connection that carries it; value = 0: no; 1: yes,
               // the sender has nothing in flight and sends nothing until the end of the connection
               // or kWake
  // Tells the lower rank, which makes connections, that data is sent between its transports |tag|
  // and the sender's transports |value|. Both are masks like AnnounceBody::transports.
  kRailsWanted,
  // Messages about tracks (track.h).
  // Reports that the sending end is open; tag = TrackTerms::tag, value = TrackTerms::plan, payload
  // TrackOpenBody.
  kTrackOpen,
  kTrackLength,  // tag = run_id(); value = length of a message that is shorter than its receive
  kTrackAt,      // tag = number of the track, value = number of the sending end's next run
  kTrackClosed,  // tag = closed_end(), value = code, payload TrackClosedBody and reason (reason.h)
  kOffer,  // a part of a granted chunk is in memory of the sender that the receiver can map; tag as
           // in the grant, value = sender's transfer id, payload OfferBody
  kTaken,  // the receiver has read or refused an offer; tag = sender's transfer id, value =
           // taken_value()
  // Notes about reshard plans (reshard_board.h).
  kReshardText,  // a piece of the text of the kReshardNote that follows
  kReshardNote,  // tag = the plan's tag, value = ReshardAction, payload ReshardNoteBody
  // Messages about a registered memory that operations are waiting to use; tag = the registration's
  // id.
  kAskMemory,  // asks the owner whether the memory is registered
  kNoMemory,   // answers kAskMemory if the memory is not registered; value = code
  kPastLast,   // not a message; the fuzzer tries all kinds before it
};

// The credit that an eager message costs in addition to its length, to account for the receiver's
// record of it. The notification of a put also costs this credit. Both sides use the same value.
inline constexpr uint64_t kMessageCost = 272;
// The maximum number of announced messages that the receiver has not matched yet. Further sends
// wait at the sender. An announcement costs no credit, so messages that are received out of order
// cannot block each other. It costs the receiver an Incoming of at most 256 bytes, so a peer can
// make the receiver hold at most 2 MiB of them.
inline constexpr uint64_t kMaxAnnounced = 8192;

// The maximum number of one-sided operations that an initiator has requested from one owner and
// that are not known to have finished. Further operations wait at the initiator.
inline constexpr uint32_t kMaxAsked = 1024;
// The maximum number of one-sided operations that an owner holds for one initiator. An initiator
// that requests more violates the protocol. The limit is above kMaxAsked, since the owner may still
// hold operations that the initiator no longer counts:
//   - a get that the owner has withdrawn and the initiator has ended at the same time, until the
//     initiator acknowledges the withdrawal: at most kMaxAsked;
//   - a transfer that the initiator has ended, until the connection or the device here has
//     released the memory: these are few, and 2 * kMaxAsked are allowed.
// Each is an Operation of 512 bytes with a transfer of at most 16 KiB, or an answer that waits to
// be sent or acknowledged. A peer can make the owner hold at most 66 MiB of operations, and
// kMaxKeptAnswers bytes that were read for its gets.
inline constexpr uint32_t kMaxHeld = 4 * kMaxAsked;
// A get is answered immediately only while at most this many bytes wait for the peer's
// acknowledgement, on a connection that may lose messages. Beyond this limit, the bytes of the get
// stay in place until the initiator fetches them.
inline constexpr uint64_t kMaxKeptAnswers = 4 << 20;

// Bits of WireHeader::flags.
inline constexpr uint8_t kFlagCollective = 1;
inline constexpr uint8_t kFlagAnswer = 2;  // kUpdate: the receiver answers with a kUpdate
inline constexpr uint8_t kFlagNotify = 4;  // puts: the owner's user is notified
inline constexpr uint8_t kFlagPlaced = 8;  // kPut: the bytes are already in place

struct WireHeader {
  MessageKind kind;
  uint8_t flags = 0;
  uint16_t channel = 0;   // low half of the receiver's channel number
  uint32_t sequence = 0;  // counts the messages of one direction; kOpen and kUpdate have none
  uint64_t tag = 0;
  uint32_t acknowledged = 0;  // last sequence received and handled
  uint32_t credit = 0;        // bytes of credit returned so far, modulo 2^32
  uint64_t value = 0;
};
static_assert(sizeof(WireHeader) == kHeaderBytes);

// The header of a message for a communicator holds the receiver's channel number (32 bits) and the
// length of the message (48 bits). |channel| is the lower half of the channel number. |value| holds
// the length, and above it the upper half of the channel number.
inline constexpr unsigned kLengthBits = 48;
inline constexpr uint64_t kMaxMessageBytes = (uint64_t{1} << kLengthBits) - 1;
inline uint64_t addressee_value(uint32_t channel, uint64_t length) {
  return uint64_t{channel >> 16} << kLengthBits | length;
}
inline uint32_t channel_of(const WireHeader& header) {
  return static_cast<uint32_t>(header.value >> kLengthBits) << 16 | header.channel;
}
inline uint64_t length_of(const WireHeader& header) { return header.value & kMaxMessageBytes; }

inline WireHeader decode_header(const MessageHeader& bytes) {
  WireHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return header;
}
inline MessageHeader encode_header(const WireHeader& header) {
  MessageHeader bytes;
  if constexpr (std::endian::native == std::endian::little) {
    store_two_words(bytes.data(),
                    uint64_t{static_cast<uint8_t>(header.kind)} | uint64_t{header.flags} << 8 |
                        uint64_t{header.channel} << 16 | uint64_t{header.sequence} << 32,
                    header.tag);
    store_two_words(bytes.data() + 16,
                    uint64_t{header.acknowledged} | uint64_t{header.credit} << 32, header.value);
  } else {
    std::memcpy(bytes.data(), &header, sizeof(header));
  }
  return bytes;
}

struct AnnounceBody {
  uint64_t sender_id;  // id of the sender's transfer
  uint64_t rail;       // rail on which |source| was exposed; unused if |source| is all-zero
  RemoteKey source;    // all-zero: the receiver cannot read the data itself
  // The sender's transports that are near the data, one bit per transport number. The data is sent
  // over the connections of these transports while any of them works.
  uint64_t transports = ~uint64_t{0};
};

struct PullBody {
  uint64_t sender_id;        // like AnnounceBody::sender_id
  uint64_t rail;             // like AnnounceBody::rail
  RemoteKey source;          // like AnnounceBody::source
  uint64_t copy_ns_per_mib;  // sender's cost of copying messages of this size class; 0: unknown
};

struct GrantBody {
  uint64_t sender_id;
  uint64_t rail;
  uint64_t offset;  // offset of the chunk in the message
  uint64_t length;
  uint64_t accepted;  // bytes of the whole message that the receiver accepts
  RemoteKey target;
};

// A grant as received.
struct Grant : GrantBody {
  uint64_t offers_to = 0;     // the grant's tag; 0: the sender cannot offer anything
  bool wants_offers = false;  // the receiver prefers offers
};

struct OfferBody {
  RemoteKey region;  // a region of the sender
  uint64_t offset;   // offset in the chunk
  uint32_t length;
  uint32_t region_offset;
  uint32_t region_bytes;
  uint32_t number;  // the sender's number for the offer
};

// Returns the value of a kTaken. |refused|: the receiver cannot map the region, so the sender puts
// the bytes instead.
inline uint64_t taken_value(uint32_t number, bool refused) {
  return number | static_cast<uint64_t>(refused) << 32;
}

// Messages about a run of a track carry a run_id(), made of the track's number and the run's
// number, in place of a sender's transfer id. The top bit distinguishes the two: it is 0 in the ids
// of a SlotTable.
inline constexpr unsigned kRunBits = 40;
inline constexpr uint32_t kMaxTrackNumber = (1u << (63 - kRunBits)) - 1;
inline uint64_t run_id(uint32_t track, uint64_t run) {
  return uint64_t{1} << 63 | uint64_t{track} << kRunBits | run;
}
inline bool is_run_id(uint64_t id) { return id >> 63 != 0; }
inline uint32_t track_of(uint64_t id) {
  return static_cast<uint32_t>(id >> kRunBits) & kMaxTrackNumber;
}
inline uint64_t run_of(uint64_t id) { return id & ((uint64_t{1} << kRunBits) - 1); }

// Returns the tag of a kTrackClosed. |receiving|: the closed end is the receiving one.
inline uint64_t closed_end(uint32_t track, bool receiving) {
  return uint64_t{track} << 1 | static_cast<uint64_t>(receiving);
}

struct TrackClosedBody {
  uint64_t runs;       // runs that the closing rank had started; they complete separately
  uint64_t unmatched;  // 1: no end of the peer matches the closed one, since plans differ
};

// The kind of a note about a reshard plan. A note is about the sender's plan or, if it is an
// answer, about the receiver's.
enum class ReshardAction : uint64_t {
  kStarted = 1,  // the sender has started the plan
  kDiffers,      // answer: the sender's corresponding plan has hash |content|
  kLacks,        // answer: the sender has no such plan; the text lists its plans
  kHas,          // later answer: the sender has now made the plan
  kGone,         // the sender has destroyed the plan
  kGivenUp,      // no data of |execution| moves: |code| and the text say why
  kLabelled,     // |execution| has the label |step|, |micro_batch|
  kPastLast
};
struct ReshardNoteBody {
  uint32_t channel;        // number of the receiver's channel
  uint32_t reply_channel;  // number of the sender's channel
  uint32_t number;         // the plan's number on its rank, among plans with one tag and peer
  int32_t origin;          // kGivenUp: rank, in the communicator, where the execution ended
  uint64_t content;        // hash of everything that the ranks must agree on
  uint64_t execution;      // index of the execution within the plan
  uint64_t step;
  uint64_t micro_batch;
  int32_t code;
  uint16_t confirmed;  // kDiffers: nonzero if the note answers a kDiffers of the receiver
  uint16_t older;      // result of ReshardBoard::note_told()
};

struct TrackOpenBody {
  uint32_t channel;     // number of the receiver's channel
  uint32_t number;      // the sender's number for the track
  uint16_t depth;       // most transfers in flight at a time
  uint16_t has_rate;    // 1: the sender limits the data to a rate
  uint32_t use;         // TrackTerms::use
  uint64_t content;     // TrackTerms::content
  uint64_t most_bytes;  // most bytes of a message
  uint64_t transports;  // like AnnounceBody::transports
};

// A range of a registered memory.
struct AccessBody {
  uint64_t region;  // id of the registration
  uint64_t offset;
  uint64_t length;
};

struct AnnouncePutBody {
  AccessBody range;
  uint64_t ahead;  // bytes of the put before this range that are already in place
  AnnounceBody announcement;
};

enum class AtomicAction : uint64_t { kAdd = 1, kCompareSwap };
struct AtomicBody {
  AccessBody range;
  AtomicAction action;
  uint64_t operand;
  uint64_t compare;
};

// Copies a body from an untrusted payload. Returns false if the size is wrong.
template <typename Body>
bool decode_body(ConstByteSpan payload, Body* body) {
  if (payload.size() != sizeof(Body)) return false;
  std::memcpy(body, payload.data(), sizeof(Body));
  return true;
}

}  // namespace hetcomm
