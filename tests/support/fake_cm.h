// A table of librdmacm over the devices of fake_verbs.h: identifiers, events and listeners of this
// process. What is asked for happens at once; its event waits in the channel.
//
// Destroying an identifier of which an event is not acknowledged would wait for ever in the real
// one; here that is counted.
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
  // Once: |type| with |status| comes where |usual| would have come; or nothing.
  static void replace_next(rdma_cm_event_type usual, rdma_cm_event_type type, int status);
  static void swallow_next(rdma_cm_event_type usual);
  // The next call of that name ("connect") fails.
  static void fail_next(const std::string& call, int error);
  // Once: who is asked, or who has asked and is answered, is told another queue pair.
  static void misdirect_next(bool in_answer);
  // An event of every identifier that is part of a connection; and of the listeners.
  static void raise(rdma_cm_event_type type, int status = 0);
  static void raise_at_listeners(rdma_cm_event_type type, int status = 0);
  // Addresses that are no GID belong to this device; empty: to none.
  static void give_other_addresses(const std::string& device);

  // --- what happened
  static size_t identifiers();  // that exist
  static size_t channels();
  static size_t would_hang();                   // destroyed with an event in use
  static std::vector<std::byte> last_token();   // that came with a request
  static std::vector<std::string> listeners();  // "192.0.2.1:4001"
};

}  // namespace hetcomm::test
