// Sequencer: the order of the messages between this rank and one peer, and what each side knows to
// have arrived.
//
// Messages are numbered in each direction. The receiver takes them in order and drops duplicates.
// On a connection that may lose messages while the peer lives, messages are kept until the peer has
// acknowledged them, and are sent again on the next connection. Under the baton.
#pragma once

#include <cstdint>
#include <utility>

#include "src/base/baton_role.h"
#include "src/core/peer/rails/rail.h"
#include "src/core/peer/wire/credit.h"
#include "src/core/peer/wire/retention.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

class Sequencer {
 public:
  // All numbers begin after |first|.
  explicit Sequencer(uint32_t first)
      : sent_(first), received_(first), reported_(first), owed_(first) {}
  Sequencer(const Sequencer&) = delete;
  Sequencer& operator=(const Sequencer&) = delete;

  // --- sending ---
  // Sends the next message, which acknowledges those up to |acknowledged|. If the code is not kOk,
  // nothing has left. Throws std::bad_alloc before anything leaves.
  //
  // Inlined by force, so that |header| stays in registers. Reading it back from memory would wait
  // for the bytes of the message before it.
  [[gnu::always_inline]] inline Code send(Rail& rail, WireHeader header, const ExtentView& payload,
                                          uint32_t acknowledged,
                                          ReceiveCredit& credit) HETCOMM_UNDER_BATON {
    header.sequence = sent_ + 1;
    header.acknowledged = acknowledged;
    header.credit = credit.returned();
    const MessageHeader encoded = encode_header(header);
    const bool lossless = rail.capabilities().lossless;
    if (!lossless) retention_.make_room(payload.length);
    const Code code = rail.endpoint().send(encoded, payload);
    if (code != Code::kOk) [[unlikely]]
      return code;
    ++sent_;
    credit.report();
    reported_ = acknowledged;
    if (!lossless) retain(encoded, payload);
    return Code::kOk;
  }
  // The number of the last message sent.
  uint32_t sent() const HETCOMM_UNDER_BATON { return sent_; }
  bool was_sent(uint32_t sequence) const HETCOMM_UNDER_BATON {
    return static_cast<int32_t>(sequence - sent_) <= 0;
  }
  // The peer has all messages up to |sequence|, which was sent.
  void acknowledge(uint32_t sequence) HETCOMM_UNDER_BATON { retention_.acknowledge(sequence); }
  const Retention& kept() const HETCOMM_UNDER_BATON { return retention_; }

  // --- receiving ---
  // The number of the last message received.
  uint32_t received() const HETCOMM_UNDER_BATON { return received_; }
  bool is_next(uint32_t sequence) const HETCOMM_UNDER_BATON { return sequence == received_ + 1; }
  // The message is already here: it was sent again after a connection had broken.
  bool had(uint32_t sequence) const HETCOMM_UNDER_BATON {
    return static_cast<int32_t>(sequence - received_) <= 0;
  }
  void take_next() HETCOMM_UNDER_BATON { ++received_; }
  // A message with |bytes| came over a connection that may lose messages. True: the peer keeps so
  // much by now that it should hear what has arrived.
  bool count_unreported(uint64_t bytes) HETCOMM_UNDER_BATON {
    bytes_unreported_ += bytes;
    return received_ - reported_ >= kAcknowledgeEvery || bytes_unreported_ >= kAcknowledgeBytes;
  }
  bool is_reported() const HETCOMM_UNDER_BATON { return received_ == reported_; }
  // A message that acknowledges everything has left.
  void report() HETCOMM_UNDER_BATON {
    reported_ = received_;
    bytes_unreported_ = 0;
  }
  // The peer waits to hear that everything so far has been handled.
  void owe() HETCOMM_UNDER_BATON { owed_ = received_; }
  bool owes() const HETCOMM_UNDER_BATON { return static_cast<int32_t>(owed_ - reported_) > 0; }
  // Called now and then while nothing is owed, to keep the difference small.
  void settle() HETCOMM_UNDER_BATON { owed_ = reported_; }

  // --- over the next connection ---
  // The connection whose messages were not kept is gone.
  void lose_unkept() HETCOMM_UNDER_BATON {
    check_unkept_ = true;
    last_unkept_ = sent_;
  }
  // The peer has received the messages up to |sequence|. False: it lacks some that were not kept.
  // Checks only once after lose_unkept().
  [[nodiscard]] bool check_unkept(uint32_t sequence) HETCOMM_UNDER_BATON {
    return !std::exchange(check_unkept_, false) ||
           static_cast<int32_t>(last_unkept_ - sequence) <= 0;
  }
  // Sends everything again that the peer may not have, by replay().
  void begin_replay() HETCOMM_UNDER_BATON {
    replaying_ = true;
    replayed_ = sent_ - static_cast<uint32_t>(retention_.count());
  }
  bool replaying() const HETCOMM_UNDER_BATON { return replaying_; }
  void stop_replay() HETCOMM_UNDER_BATON { replaying_ = false; }
  // Continues the replay. kOk: all has left. Other codes: why the next message has not. Throws
  // std::bad_alloc.
  Code replay(Rail& rail, const ReceiveCredit& credit) HETCOMM_UNDER_BATON;

 private:
  // The peer keeps messages that may be lost until they are acknowledged, so it has to hear often
  // enough.
  static constexpr uint32_t kAcknowledgeEvery = 32;
  static constexpr uint64_t kAcknowledgeBytes = 64 * 1024;

  [[gnu::noinline]] void retain(const MessageHeader& header,
                                const ExtentView& payload) HETCOMM_UNDER_BATON {
    retention_.push(decode_header(header), payload);
  }

  uint32_t sent_;
  uint32_t received_;
  uint32_t reported_;  // last number that the peer was told has arrived
  uint32_t owed_;
  uint64_t bytes_unreported_ = 0;
  Retention retention_;
  bool check_unkept_ = false;
  uint32_t last_unkept_ = 0;
  bool replaying_ = false;
  uint32_t replayed_ = 0;  // last message that was sent again
};

}  // namespace hetcomm
