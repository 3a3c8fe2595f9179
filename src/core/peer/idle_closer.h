// IdleCloser closes the unused connection of a pair when descriptors run short.
//
//   one side                              the other side
//     kCloseIdle, keeps sending      -->
//                                    <--    kMayClose (1), holds back pending data
//     closes the connection          -->    sees it close; the pair is idle again
//     or sends kWake, since it uses
//     the connection again           -->    resumes
//
// The connection delivers all messages before it reports the close, so none is lost although no
// copies are kept. If both sides send kCloseIdle at the same time, only the lower rank's request is
// answered. A pair with several connections keeps all of them. All callers hold the baton.
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

  // Returns whether this rank can now ask to close the connection. It can if nothing is in flight,
  // no question is pending, and the pause after the last refusal is over.
  bool may_ask(uint64_t now_ns) const HETCOMM_UNDER_BATON;
  // Asks the peer whether the connection can be closed. Requires may_ask().
  void ask() HETCOMM_UNDER_BATON;
  // Returns how many calls in a row, up to this one, have seen no new message.
  uint32_t count_idle() HETCOMM_UNDER_BATON;
  // Records that the connection is gone.
  void connection_gone() HETCOMM_UNDER_BATON { asked_ = false; }
  // Stops this object because the peer has left and its connection will close anyway.
  void stop() HETCOMM_UNDER_BATON { stopped_ = true; }

  // Handles the peer's kCloseIdle. Returns true if the peer can close the connection. This rank
  // then sends nothing more on it, unless the peer sends kWake.
  bool receive_question() HETCOMM_UNDER_BATON;
  // Handles the peer's kMayClose for |rail|. Returns true if this rank now has to close the
  // connection. If the peer has agreed and this rank keeps the connection after all, sends kWake.
  bool receive_answer(uint64_t rail, bool may) HETCOMM_UNDER_BATON;

 private:
  bool is_idle() const HETCOMM_UNDER_BATON;
  // Returns whether the connection can be closed without losing data of the pair.
  bool may_lose_connection() const HETCOMM_UNDER_BATON;
  uint32_t count_messages() const HETCOMM_UNDER_BATON;

  Association& association_;
  Traffic& traffic_;
  Engine& engine_;
  bool stopped_ = false;
  bool asked_ = false;         // this rank is waiting for the peer's kMayClose
  uint64_t ask_again_ns_ = 0;  // earliest time of the next ask() after a refusal
  unsigned refusals_ = 0;      // refusals in a row
  uint32_t messages_ = 0;      // count_messages() at the last count_idle() or refusal
  uint32_t idle_ = 0;          // the last result of count_idle()
};

}  // namespace hetcomm
