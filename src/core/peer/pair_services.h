// Defines the services that a job provides to its pairs: the settings that apply to every peer, and
// the objects and interfaces that pairs share. A pair passes to each of its units the services that
// the unit uses.
#pragma once

#include <cstdint>

#include "src/base/baton_role.h"
#include "src/base/status.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/matching/data_services.h"
#include "src/core/peer/rails/peer_paths.h"
#include "src/core/peer/sharing/link_share.h"
#include "src/core/peer/sharing/pair_turns.h"
#include "src/core/peer/wire/wire.h"
#include "src/core/progress/engine.h"
#include "src/core/progress/slot_table.h"
#include "src/liveness/control_plane.h"
#include "src/system/log.h"
#include "transports/transport.h"

namespace hetcomm {

// Receives events that concern more than one pair.
class PairListener {
 public:
  // Notifies all waiters of |why|. Called when |rank| is permanently gone and nothing of its pair
  // is in flight. Works even when memory has run out.
  virtual void on_rank_lost(int rank, const Status& why) HETCOMM_UNDER_BATON = 0;
  // Handles the report of |rank| that its memory with registration |id| can no longer be used.
  virtual void on_memory_gone(int rank, uint64_t id, Code code) HETCOMM_UNDER_BATON = 0;
  // Handles a transport's report that |stream| to |rank| may no longer work. Asks |rank| how much
  // data has arrived on it.
  virtual void on_doubt(int rank, const StreamId& stream) HETCOMM_UNDER_BATON = 0;
  // Handles a message of a collective operation for which no receive is posted.
  virtual void on_unexpected_message(int rank, const WireHeader& header) HETCOMM_UNDER_BATON = 0;

 protected:
  ~PairListener() = default;
};

// The settings that apply to every peer. They do not change after the first pair has been made.
struct PairTerms {
  const int rank;  // this process's number in the job
  const uint64_t detection_ns;
  const uint64_t cool_down_ns;
  uint32_t credit_granted = 0;  // bytes granted to each peer
  uint32_t first_sequence = 0;  // number before the first message; see JobOptions
};

// Services for the units that make, choose and close connections.
struct ConnectionServices {
  Engine& engine;
  Log& log;
  const PeerPaths paths;
  PairListener& listener;
  const PairTerms& terms;
  liveness::ControlPlane* control = nullptr;  // null in a job of one rank
};

// Services for the units that access memory of the peer, or serve its accesses.
struct AccessServices {
  Engine& engine;
  Log& log;
  PairListener& listener;
  SlotTable<Registration>& registrations;
};

// The arguments of a Pair. All of them outlive it.
struct PairServices {
  const PairTerms& terms;
  DataServices& data;
  PairTurns& turns;
  LinkShares& links;
  ConnectionServices& connections;
  AccessServices& access;
};

}  // namespace hetcomm
