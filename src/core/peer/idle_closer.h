// IdleCloser closes the unused connection of a pair when descriptors run short.
//
//   one side                              the other
//     kCloseIdle, sends as before    -->
//                                    <--    kMayClose (1): holds back pending data
//     closes the connection          -->    sees its end: the pair is as if never used
//     or kWake, since it uses the
//     connection again               -->    resumes
//
// All messages of a side arrive before the end of its connection, so none is lost, although no
// copies are kept. If both sides send kCloseIdle at once, the lower rank's counts. A pair with
// several connections keeps them. All callers hold the baton.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/traffic.h"

namespace hetcomm {

class IdleCloser {
 public:
  IdleCloser(Association& association, Traffic& traffic, Engine& engine)
      : association_(association), traffic_(traffic), engine_(engine) {}
  IdleCloser(const IdleCloser&) = delete;
  IdleCloser& operator=(const IdleCloser&) = delete;

  // Returns whether nothing is in flight, so that this side may ask to close the connection.
  bool may_ask(uint64_t now_ns) const HETCOMM_UNDER_BATON;
  // Asks the peer whether the connection can be closed. Requires may_ask().
  void ask() HETCOMM_UNDER_BATON;
  // Returns how many calls in a row, up to this one, have seen no new message.
  uint32_t count_idle() HETCOMM_UNDER_BATON;
  // Records that the connection is gone.
  void connection_gone() HETCOMM_UNDER_BATON { asked_ = false; }
  // Stops this object because the peer has left, so that its connection ends anyway.
  void stop() HETCOMM_UNDER_BATON { stopped_ = true; }

  // Handles the peer's kCloseIdle. Returns true if the peer may close the connection. This side
  // then sends nothing more.
  bool receive_question() HETCOMM_UNDER_BATON;
  // Handles the peer's kMayClose for |rail|. Returns true if this side now closes the connection.
  bool receive_answer(uint64_t rail, bool may) HETCOMM_UNDER_BATON;

 private:
  bool is_idle() const HETCOMM_UNDER_BATON;
  // Returns whether losing the connection would lose none of the pair's data.
  bool may_lose_connection() const HETCOMM_UNDER_BATON;
  uint32_t count_messages() const HETCOMM_UNDER_BATON;

  Association& association_;
  Traffic& traffic_;
  Engine& engine_;
  bool stopped_ = false;
  bool asked_ = false;         // this side waits for the peer's kMayClose
  uint64_t ask_again_ns_ = 0;  // earliest time of the next ask() after a refusal
  unsigned refusals_ = 0;      // refusals in a row
  uint32_t messages_ = 0;      // count_messages() at the last count_idle() or refusal
  uint32_t idle_ = 0;          // the last result of count_idle()
};

}  // namespace hetcomm
