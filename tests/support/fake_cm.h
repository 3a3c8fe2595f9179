// A fake table of librdmacm over the devices of fake_verbs.h: identifiers, events and listeners of
// this process. Every request takes effect at once; its event waits in the channel.
//
// The real library would block forever when an identifier with an unacknowledged event is
// destroyed. The fake counts such calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transports/rdma/cm_functions.h"

namespace hetcomm::test {

class FakeCm {
 public:
  static const rdma::Cm& cm();
  static void reset();

  // --- failures on demand
  // Once: |type| with |status| replaces |usual|; swallow_next() drops it.
  static void replace_next(rdma_cm_event_type usual, rdma_cm_event_type type, int status);
  static void swallow_next(rdma_cm_event_type usual);
  // The next call with that name (such as "connect") fails.
  static void fail_next(const std::string& call, int error);
  // Once: the acceptor, or with |in_answer| the initiator, is told a wrong queue pair.
  static void misdirect_next(bool in_answer);
  // Raises an event on every connected identifier, or on the listeners.
  static void raise(rdma_cm_event_type type, int status = 0);
  static void raise_at_listeners(rdma_cm_event_type type, int status = 0);
  // Addresses that are no GID belong to this device. If it is empty, they belong to none.
  static void give_other_addresses(const std::string& device);

  // --- what happened
  static size_t identifiers();  // existing ones
  static size_t channels();
  static size_t would_hang();                   // destroyed with an unacknowledged event
  static std::vector<std::byte> last_token();   // of the last request
  static std::vector<std::string> listeners();  // "192.0.2.1:4001"
};

}  // namespace hetcomm::test
