// PlanNotes: notes about plans between this rank and one peer (plan_board.h). A text goes in front
// of its note, in pieces. Under the baton.
#pragma once

#include <string>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/core/peer/association.h"
#include "src/core/peer/plan_board.h"
#include "src/core/peer/wire.h"

namespace hetcomm {

class PlanNotes {
 public:
  explicit PlanNotes(Association& association) : association_(association) {}
  PlanNotes(const PlanNotes&) = delete;
  PlanNotes& operator=(const PlanNotes&) = delete;

  // Cuts a text that is too long. Fails for nothing, as Association::send_protocol().
  void send(const PlanNote& note) HETCOMM_UNDER_BATON;

  // --- what arrives on Association::receiving_on() ---
  void receive_text(ConstByteSpan payload) HETCOMM_UNDER_BATON;
  void receive(const WireHeader& header, ConstByteSpan payload) HETCOMM_UNDER_BATON;

 private:
  Association& association_;
  std::string text_;  // of the note that comes
};

}  // namespace hetcomm
