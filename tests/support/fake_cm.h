// A fake librdmacm table over the devices in fake_verbs.h, with identifiers, events and listeners
// within this process. Every request takes effect immediately, and its event waits in the channel.
//
// The real library blocks forever if an identifier with an unacknowledged event is destroyed. The
// fake counts such calls.
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
  // Replaces the next event |usual| by |type| with |status|. swallow_next() drops the event.
  static void replace_next(rdma_cm_event_type usual, rdma_cm_event_type type, int status);
  static void swallow_next(rdma_cm_event_type usual);
  // Makes the next call with that name (such as "connect") fail.
  static void fail_next(const std::string& call, int error);
  // Reports a wrong queue pair once, to the acceptor or, with |in_answer|, to the initiator.
  static void misdirect_next(bool in_answer);
  // Raises an event on every connected identifier, or on the listeners.
  static void raise(rdma_cm_event_type type, int status = 0);
  static void raise_at_listeners(rdma_cm_event_type type, int status = 0);
  // Assigns all addresses that are not GIDs to |device|, or to no device if |device| is empty.
  static void give_other_addresses(const std::string& device);

  // --- what happened
  static size_t identifiers();  // existing ones
  static size_t channels();
  static size_t would_hang();                   // destroyed with an unacknowledged event
  static std::vector<std::byte> last_token();   // of the last request
  static std::vector<std::string> listeners();  // "192.0.2.1:4001"
};

}  // namespace hetcomm::test
