// IdleCloser: how the connection of a pair is closed that nobody uses, when descriptors run short.
//
//   one side                              the other
//     kCloseIdle, goes on as before  -->
//                                    <--    kMayClose (1): holds back what it has to send
//     closes the connection          -->    its end: the pair is as if it had never been used
//     or kWake, since it uses the
//     connection again               -->    goes on
//
// Each side's messages come whole before the end of a connection, so nothing is lost where nothing
// is kept. Both may ask at once: then the lower rank's question counts. A pair with several
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

  // Nothing is under way, so that the peer may be asked whether the connection can be closed.
  bool may_ask(uint64_t now_ns) const HETCOMM_UNDER_BATON;
  // Asks it; may_ask() is true.
  void ask() HETCOMM_UNDER_BATON;
  // Counts how often in a row it was called without a message since the call before.
  uint32_t count_idle() HETCOMM_UNDER_BATON;
  // There is no connection any more.
  void connection_gone() HETCOMM_UNDER_BATON { asked_ = false; }
  // The peer has left: its connection ends by itself.
  void stop() HETCOMM_UNDER_BATON { stopped_ = true; }

  // The peer asks. True: it may close the connection, and this side holds back from now on.
  bool receive_question() HETCOMM_UNDER_BATON;
  // The peer has answered for |rail|. True: this side closes the connection now.
  bool receive_answer(uint64_t rail, bool may) HETCOMM_UNDER_BATON;

 private:
  bool is_idle() const HETCOMM_UNDER_BATON;
  // Nothing of the pair would be lost with the connection.
  bool may_lose_connection() const HETCOMM_UNDER_BATON;
  uint32_t count_messages() const HETCOMM_UNDER_BATON;

  Association& association_;
  Traffic& traffic_;
  bool stopped_ = false;
  bool asked_ = false;         // the peer has not answered
  uint64_t ask_again_ns_ = 0;  // the peer has refused; not before
  unsigned refusals_ = 0;      // in a row
  uint32_t messages_ = 0;      // when count_idle() was called last
  uint32_t idle_ = 0;          // what it returned
};

}  // namespace hetcomm
