// ReshardNotes sends and receives notes about plans between this rank and one peer
// (reshard_board.h). The text of a note precedes it, in pieces. All callers hold the baton.
#pragma once

#include <string>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/core/peer/association.h"
#include "src/core/peer/matching/channel_table.h"
#include "src/core/peer/matching/reshard_board.h"
#include "src/core/peer/wire/wire.h"

namespace hetcomm {

class ReshardNotes {
 public:
  ReshardNotes(Association& association, ChannelTable& channels)
      : association_(association), channels_(channels) {}
  ReshardNotes(const ReshardNotes&) = delete;
  ReshardNotes& operator=(const ReshardNotes&) = delete;

  // Sends |note|, and truncates a text that is too long. Never throws, like
  // Association::send_protocol().
  void send(const ReshardNote& note) HETCOMM_UNDER_BATON;

  // --- messages that arrive on Association::receiving_on() ---
  void receive_text(ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;

 private:
  Association& association_;
  ChannelTable& channels_;
  std::string text_;  // received text of the next note
};

}  // namespace hetcomm
