// IdleCloser: closes the unused connection of a pair when descriptors run short.
//
//   one side                              the other
//     kCloseIdle, goes on as before  -->
//                                    <--    kMayClose (1): holds back what it has to send
//     closes the connection          -->    its end: the pair is as if it had never been used
//     or kWake, since it uses the
//     connection again               -->    goes on
//
// The messages of each side arrive whole before the end of a connection, so nothing is lost where
// nothing is kept. If both ask at once, the lower rank's question counts. A pair with several
// connections keeps them. Under the baton.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/core/peer/association.h"
#include "src/core/peer/traffic.h"

namespace hetcomm {

class IdleCloser {
 public:
  IdleCloser(Association& association, Traffic& traffic)
      : association_(association), traffic_(traffic) {}
  IdleCloser(const IdleCloser&) = delete;
  IdleCloser& operator=(const IdleCloser&) = delete;

  // Nothing is in flight, so this side may ask the peer whether the connection can be closed.
  bool may_ask(uint64_t now_ns) const HETCOMM_UNDER_BATON;
  // Asks the peer. Requires may_ask().
  void ask() HETCOMM_UNDER_BATON;
  // Returns how many calls in a row, up to this one, have seen no new message.
  uint32_t count_idle() HETCOMM_UNDER_BATON;
  // The connection is gone.
  void connection_gone() HETCOMM_UNDER_BATON { asked_ = false; }
  // The peer has left, and its connection ends with it.
  void stop() HETCOMM_UNDER_BATON { stopped_ = true; }

  // The peer asks. True: it may close the connection, and this side sends nothing from now on.
  bool receive_question() HETCOMM_UNDER_BATON;
  // The peer has answered for |rail|. True: this side closes the connection now.
  bool receive_answer(uint64_t rail, bool may) HETCOMM_UNDER_BATON;

 private:
  bool is_idle() const HETCOMM_UNDER_BATON;
  // Losing the connection would lose nothing of the pair.
  bool may_lose_connection() const HETCOMM_UNDER_BATON;
  uint32_t count_messages() const HETCOMM_UNDER_BATON;

  Association& association_;
  Traffic& traffic_;
  bool stopped_ = false;
  bool asked_ = false;         // the peer's answer is pending
  uint64_t ask_again_ns_ = 0;  // the peer has refused: earliest time of the next question
  unsigned refusals_ = 0;      // in a row
  uint32_t messages_ = 0;      // count at the last call of count_idle()
  uint32_t idle_ = 0;          // the last result of count_idle()
};

}  // namespace hetcomm
