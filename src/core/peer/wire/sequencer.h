// Sequencer keeps the messages between this rank and one peer in order, and records which messages
// each side has acknowledged.
//
// Messages are numbered in each direction. The receiver handles them in order and drops duplicates.
// On a connection that may lose messages while the peer lives, messages are kept until the peer has
// acknowledged them, and are sent again on the next connection. All callers hold the baton.
#pragma once

#include <cstdint>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/peer/rails/rail.h"
#include "src/core/peer/rails/rail_set.h"
#include "src/core/peer/wire/credit.h"
#include "src/core/peer/wire/retention.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

class Sequencer {
 public:
  // All numbers begin after |first|. |granted|: bytes that the peer may send before they are
  // matched. |rails| outlives this object.
  Sequencer(const RailSet& rails, uint32_t first, uint32_t granted)
      : rails_(rails),
        sent_(first),
        received_(first),
        reported_(first),
        owed_(first),
        receive_credit_(granted, first) {}
  Sequencer(const Sequencer&) = delete;
  Sequencer& operator=(const Sequencer&) = delete;

  // --- sending ---
  // Sends the next message over the current rail. The message acknowledges all messages received,
  // or those up to |acknowledged|. If the code is not kOk, or if this throws std::bad_alloc,
  // nothing was sent.
  //
  // Forced inline to keep |header| in registers. Reading it back from memory would have to wait for
  // the stores of the previous message.
  [[gnu::always_inline]] inline Code send(const WireHeader& header,
                                          const ExtentView& payload) HETCOMM_UNDER_BATON {
    return send(header, payload, received_);
  }
  [[gnu::always_inline]] inline Code send(WireHeader header, const ExtentView& payload,
                                          uint32_t acknowledged) HETCOMM_UNDER_BATON {
    Rail& rail = *rails_.current();
    header.sequence = sent_ + 1;
    header.acknowledged = acknowledged;
    header.credit = receive_credit_.returned();
    const MessageHeader encoded = encode_header(header);
    const bool lossless = rail.capabilities().lossless;
    if (!lossless) retention_.make_room(payload.length);
    const Code code = rail.endpoint().send(encoded, payload);
    if (code != Code::kOk) [[unlikely]]
      return code;
    ++sent_;
    receive_credit_.report();
    reported_ = acknowledged;
    if (!lossless) retain(encoded, payload);
    return Code::kOk;
  }
  // Returns the number of the last message sent.
  uint32_t sent() const HETCOMM_UNDER_BATON { return sent_; }
  bool was_sent(uint32_t sequence) const HETCOMM_UNDER_BATON {
    return static_cast<int32_t>(sequence - sent_) <= 0;
  }
  // Drops kept messages up to |sequence|, which the peer has acknowledged.
  void acknowledge(uint32_t sequence) HETCOMM_UNDER_BATON { retention_.acknowledge(sequence); }
  const Retention& kept() const HETCOMM_UNDER_BATON { return retention_; }

  // --- receiving ---
  // Returns the peer's credit, which every message to the peer reports.
  ReceiveCredit& receive_credit() HETCOMM_UNDER_BATON { return receive_credit_; }
  // Returns the number of the last message received.
  uint32_t received() const HETCOMM_UNDER_BATON { return received_; }
  bool is_next(uint32_t sequence) const HETCOMM_UNDER_BATON { return sequence == received_ + 1; }
  // Returns whether message |sequence| was received before. If so, it is a duplicate that was
  // resent after a connection broke.
  bool had(uint32_t sequence) const HETCOMM_UNDER_BATON {
    return static_cast<int32_t>(sequence - received_) <= 0;
  }
  void take_next() HETCOMM_UNDER_BATON { ++received_; }
  // Counts a message of |bytes| that arrived over a connection that may lose messages. Returns true
  // if the peer keeps so many messages or bytes that they should be acknowledged.
  bool count_unreported(uint64_t bytes) HETCOMM_UNDER_BATON {
    bytes_unreported_ += bytes;
    return received_ - reported_ >= kAcknowledgeEvery || bytes_unreported_ >= kAcknowledgeBytes;
  }
  bool is_reported() const HETCOMM_UNDER_BATON { return received_ == reported_; }
  // Records that a message that acknowledges everything was sent.
  void report() HETCOMM_UNDER_BATON {
    reported_ = received_;
    bytes_unreported_ = 0;
  }
  // Records that the peer is waiting for an acknowledgement of everything received so far.
  void owe() HETCOMM_UNDER_BATON { owed_ = received_; }
  bool owes() const HETCOMM_UNDER_BATON { return static_cast<int32_t>(owed_ - reported_) > 0; }
  // Called periodically while nothing is owed. Keeps |owed_| close to |reported_|, since both wrap
  // around.
  void settle() HETCOMM_UNDER_BATON { owed_ = reported_; }

  // --- over the next connection ---
  // Records that the connection whose messages were not kept is gone.
  void lose_unkept() HETCOMM_UNDER_BATON {
    check_unkept_ = true;
    last_unkept_ = sent_;
  }
  // Returns false if the peer, which has received the messages up to |sequence|, lacks some that
  // were not kept. Checks only once after lose_unkept(), and otherwise returns true.
  [[nodiscard]] bool check_unkept(uint32_t sequence) HETCOMM_UNDER_BATON {
    return !std::exchange(check_unkept_, false) ||
           static_cast<int32_t>(last_unkept_ - sequence) <= 0;
  }
  // Prepares to resend, by replay(), everything that the peer may not have received.
  void begin_replay() HETCOMM_UNDER_BATON {
    replaying_ = true;
    replayed_ = sent_ - static_cast<uint32_t>(retention_.count());
  }
  bool replaying() const HETCOMM_UNDER_BATON { return replaying_; }
  void stop_replay() HETCOMM_UNDER_BATON { replaying_ = false; }
  // Continues the replay. Returns kOk when everything was resent, and otherwise the code with which
  // the next message was refused. May throw std::bad_alloc.
  Code replay(Rail& rail) HETCOMM_UNDER_BATON;

 private:
  // The peer keeps messages that may be lost until they are acknowledged, so they must be
  // acknowledged often enough.
  static constexpr uint32_t kAcknowledgeEvery = 32;
  static constexpr uint64_t kAcknowledgeBytes = 64 * 1024;

  [[gnu::noinline]] void retain(const MessageHeader& header,
                                const ExtentView& payload) HETCOMM_UNDER_BATON {
    retention_.push(decode_header(header), payload);
  }

  const RailSet& rails_;
  uint32_t sent_;
  uint32_t received_;
  uint32_t reported_;  // last message whose arrival was reported to the peer
  uint32_t owed_;      // last message that the peer needs acknowledged
  uint64_t bytes_unreported_ = 0;
  ReceiveCredit receive_credit_;
  Retention retention_;
  bool check_unkept_ = false;
  uint32_t last_unkept_ = 0;
  bool replaying_ = false;
  uint32_t replayed_ = 0;  // last message that was sent again
};

}  // namespace hetcomm
