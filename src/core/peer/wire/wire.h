// The wire format of core: the 32-byte header in front of every message, and the fixed payloads of
// the rendezvous protocol. Little endian (the handshake refuses peers of another byte order). The
// user of each value checks it against local tables: nothing is trusted because it arrived.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "src/base/span.h"
#include "transports/transport.h"

namespace hetcomm {

enum class MessageKind : uint8_t {
  // First on every connection, both ways: tag = rail id, value = last sequence received, channel =
  // number of the sender's transport.
  kOpen = 1,
  kEager,       // a whole message; value: addressee_value()
  kEagerFirst,  // the beginning of one; value: addressee_value(), with the total length
  kEagerMore,   // the next part of a message; value = offset; tag = 0: of the last kEagerFirst;
                // else of the kPull with this id, whose bytes the sender copies after all
  kPull,       // a whole eager message, which the receiver reads; value: addressee_value(), payload
               // PullBody
  kPush,       // the receiver cannot read a kPull; tag = sender's transfer id
  kPullPause,  // tag = class of messages, value = pause between those that the sender of this wants
               // to pull (pull_chooser.h)
  kAnnounce,   // asks for a rendezvous; value: addressee_value(), payload AnnounceBody
  kGrant,      // receiver lets the sender put a chunk; payload GrantBody; tag: where the sender may
               // offer parts of it instead, 0: nowhere; value = 1: the receiver prefers offers
  kDone,       // receiver has received all of a transfer; tag = sender's transfer id
  kStop,  // receiver ends a transfer early; tag = sender's transfer id, value = code, payload: why
          // (reason.h). kAborted without payload: the communicator was aborted
  kWithdraw,  // sender ends a message early; tag = sender's transfer id, or 0 for the eager one;
              // value and payload as in kStop
  kUpdate,    // only acknowledged and credit; not sequenced
  kWake,      // empty: wakes a sleeping receiver to look at the memory it shares with the sender
  kRailDown,  // tag = rail that the sender has abandoned and fenced before later messages
  // One-sided; tag = the initiator's id.
  kPut,          // payload AccessBody and the bytes; value = the notification's value
  kAnnouncePut,  // payload AnnouncePutBody; value as kPut
  kGet,          // payload AccessBody
  kGetData,      // all of a get; value = its length
  kAnnounceGet,  // as kAnnounce, for a get
  kAtomic,       // payload AtomicBody
  kAtomicDone,   // value = the word before
  kRefused,      // the owner has not performed the operation: value = code
  // Closing a rail that a better one has replaced; tag = rail.
  kRailUnused,  // the sender no longer uses it, and asks the peer to close it
  kRailClosed,  // the answer: the sender has nothing in flight on it, and has closed it
  // Closing the connections of a pair that is idle.
  kCloseIdle,  // the sender has nothing in flight: may it close them?
  kMayClose,   // the answer; tag = the connection that carries it; value = 1: yes, the sender has
               // nothing in flight and sends nothing until the end of it or kWake; 0: no
  // Sent to the lower rank, which makes connections: data goes between its transports |tag| and the
  // sender's transports |value| (masks, as AnnounceBody::transports).
  kRailsWanted,
  // Tracks (track.h).
  // From the sending end; tag = the track's, value = TrackTerms::plan, payload TrackOpenBody.
  kTrackOpen,
  kTrackLength,  // tag = run_id(); value = length of a message that is shorter than its receive
  kTrackAt,      // tag = the track; value = number of the next run of the sending end
  kTrackClosed,  // tag = closed_end(), value = code, payload TrackClosedBody and why (reason.h)
  kOffer,  // a part of a granted chunk lies in memory of the sender that the receiver can map; tag
           // as in the grant, value = sender's transfer id, payload OfferBody
  kTaken,  // the receiver has read an offer; tag = sender's transfer id, value = taken_value()
  // Plans of redistributions (reshard_board.h).
  kReshardText,  // a piece of the text of the kReshardNote that follows
  kReshardNote,  // tag = the plan's, value = ReshardAction, payload ReshardNoteBody
  // Operations wait to use a registered memory of the receiver; tag = its id.
  kAskMemory,  // asks whether it is registered
  kNoMemory,   // the answer if it is not: value = code
  kPastLast,   // not a message; the fuzzer tries all kinds before it
};

// The fixed cost of an unmatched message to its receiver, in addition to its bytes. Both sides use
// the same value.
inline constexpr uint64_t kMessageCost = 272;
// Announcements of messages that a pair may have unanswered. A further send waits at the sender. An
// announcement costs the receiver a record but no credit, so messages that are received out of
// order cannot wait for each other. A record is an Incoming of at most 256 bytes: a peer makes the
// receiver hold at most 2 MiB of records.
inline constexpr uint64_t kMaxAnnounced = 8192;

// One-sided operations that this rank may have requested from one owner without knowing that they
// are over. A further operation waits at the initiator.
inline constexpr uint32_t kMaxAsked = 1024;
// One-sided operations that an owner holds for one initiator. An initiator that asks for more is
// hostile. The owner may hold operations that no longer have a place at the initiator:
//   - a get that the owner has withdrawn and the initiator has ended at the same time, until the
//     initiator acknowledges the withdrawal: at most kMaxAsked;
//   - a transfer that the initiator has ended, until the connection or the device here has
//     released the memory: few, and twice kMaxAsked are allowed for.
// Each is an Operation of 512 bytes with a transfer of at most 16 KiB, or an answer that waits to
// leave or to be acknowledged. A peer makes the owner hold at most 66 MiB of them, all of them
// large transfers, and |kMaxKeptAnswers| of bytes that were read for it.
inline constexpr uint32_t kMaxHeld = 4 * kMaxAsked;
// On a connection that may lose messages, the most bytes that may wait for the peer's
// acknowledgement if one more get is answered at once. With more, the bytes of a get stay in place
// until the initiator fetches them.
inline constexpr uint64_t kMaxKeptAnswers = 4 << 20;

// flags
inline constexpr uint8_t kFlagCollective = 1;
inline constexpr uint8_t kFlagAnswer = 2;  // kUpdate: answer with an update
inline constexpr uint8_t kFlagNotify = 4;  // puts: tell the owner's user
inline constexpr uint8_t kFlagPlaced = 8;  // kPut: the bytes are already in place

struct WireHeader {
  MessageKind kind;
  uint8_t flags = 0;
  uint16_t channel = 0;   // low half of the receiver's channel number
  uint32_t sequence = 0;  // per direction of a pair; kOpen and kUpdate have none
  uint64_t tag = 0;
  uint32_t acknowledged = 0;  // last sequence received; all up to it have been handled
  uint32_t credit = 0;        // bytes of credit returned so far, modulo 2^32
  uint64_t value = 0;
};
static_assert(sizeof(WireHeader) == kHeaderBytes);

// The header of a message for a communicator has the receiver's channel number (32 bits) and the
// length of the message (48 bits). |value| holds the length, with the upper half of the number
// above it.
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
  uint64_t sender_id;  // the sender's transfer
  uint64_t rail;       // rail on which |source| was exposed; unused if that is zero
  RemoteKey source;    // all-zero: the receiver cannot read the data itself
  // The sender's transports that are near the data, one bit per transport number. The data goes
  // over the connections of these transports while some of them work.
  uint64_t transports = ~uint64_t{0};
};

struct PullBody {
  uint64_t sender_id;  // as in an announcement, like the next two
  uint64_t rail;
  RemoteKey source;
  uint64_t copy_ns_per_mib;  // sender's cost of copying messages of the class; 0: unknown
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
  uint64_t offers_to = 0;     // 0: nothing may be offered
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

// |refused|: the receiver cannot map the region, so the sender puts the bytes instead.
inline uint64_t taken_value(uint32_t number, bool refused) {
  return number | static_cast<uint64_t>(refused) << 32;
}

// The transfers of a track are identified by the track's number and their place in it instead of a
// sender's transfer id. The two cannot be confused: ids of a SlotTable leave the top bit free.
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

// Returns the wire id for the end of a track that its rank has closed.
inline uint64_t closed_end(uint32_t track, bool receiving) {
  return uint64_t{track} << 1 | static_cast<uint64_t>(receiving);
}

struct TrackClosedBody {
  uint64_t runs;       // runs that the closing rank had started; they end separately
  uint64_t unmatched;  // 1: no end of the receiver's rank belongs to it, since plans differ
};

// The kind of a note. It is about the sender's plan or, in an answer, about the receiver's.
enum class ReshardAction : uint64_t {
  kStarted = 1,  // the sender has started it
  kDiffers,      // answer: the sender's plan at this place has hash |content|
  kLacks,        // answer: the sender has no such plan; the text lists what it has
  kHas,          // later answer: the sender has now made the plan
  kGone,         // the plan is destroyed
  kGivenUp,      // no data of |execution| moves: |code| and the text say why
  kLabelled,     // |execution| has the label |step|, |micro_batch|
  kPastLast
};
struct ReshardNoteBody {
  uint32_t channel;        // number of the receiver's channel
  uint32_t reply_channel;  // number of the sender's channel
  uint32_t number;         // the owner's number for the plan, for one tag and these two ranks
  int32_t origin;          // kGivenUp: rank of the communicator where it ended
  uint64_t content;        // hash of what the ranks have to agree on
  uint64_t execution;      // index of the execution within the plan
  uint64_t step;
  uint64_t micro_batch;
  int32_t code;
  uint16_t confirmed;  // kDiffers: nonzero if the receiver has already reported it to the sender
  uint16_t older;      // ReshardBoard::note_told()
};

struct TrackOpenBody {
  uint32_t channel;   // number of the receiver's channel
  uint32_t number;    // the sender's number of the track
  uint16_t depth;     // most transfers in flight at a time
  uint16_t has_rate;  // 1: the sender limits the data to a rate
  uint32_t use;       // as in TrackTerms, like the next two
  uint64_t content;
  uint64_t most_bytes;  // most bytes of a message
  uint64_t transports;  // as in an announcement
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

// Copies a body out of an untrusted payload. Returns false when the size is wrong.
template <typename Body>
bool decode_body(ConstByteSpan payload, Body* body) {
  if (payload.size() != sizeof(Body)) return false;
  std::memcpy(body, payload.data(), sizeof(Body));
  return true;
}

}  // namespace hetcomm
