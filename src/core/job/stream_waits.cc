#include "src/core/job/stream_waits.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "src/core/memory/access_state.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/matching/messaging_communicator.h"
#include "src/core/peer/pair.h"

namespace hetcomm {
namespace {

// The owner of an operation's remote memory is asked whether the memory is still registered: first
// after at most kFirstAskNs, and then kAsksPerDetection times in each detection time.
constexpr uint64_t kFirstAskNs = 100'000'000;
constexpr uint64_t kAsksPerDetection = 4;

const RemoteMemory* remote_of(const Operation& operation) {
  return has_access(operation) ? access_of(operation).remote : nullptr;
}

bool matches(const Operation& receive, const Incoming& message) {
  return (receive.peer < 0 || receive.peer == message.source) &&
         ((receive.tag ^ message.tag) & ~receive.ignore) == 0;
}

// Assigns messages that have arrived to waiting receives, one message to each receive.
class HereMessages {
 public:
  // Assigns a message to |receive|. Returns false if no unassigned message matches it.
  bool take(const Operation& receive) HETCOMM_UNDER_BATON {
    const Channel& channel = communicator_of(receive).channel();
    const MatchTable& table =
        receive.options.collective ? channel.collective : channel.point_to_point;
    for (Incoming* message = table.first_unexpected(); message != nullptr;
         message = message->next_arrived) {
      if (!matches(receive, *message) || is_taken(*message)) continue;
      try {
        taken_.push_back(message);
      } catch (const std::bad_alloc&) {
        // If out of memory, the message may be assigned to two receives. The second one ends when
        // its stream reaches it.
      }
      return true;
    }
    return false;
  }

 private:
  bool is_taken(const Incoming& message) const {
    return std::find(taken_.begin(), taken_.end(), &message) != taken_.end();
  }
  std::vector<const Incoming*> taken_;
};

// Returns whether the loss of |rank| ends |operation|, which waits for a stream.
bool is_ended_by(const Operation& operation, int rank, const PairTable& pairs,
                 HereMessages& here) HETCOMM_UNDER_BATON {
  if (operation.kind == OperationKind::kCollective) {
    return operation.composite->fails_without(rank, pairs.has_left(rank));
  }
  if (operation.kind != OperationKind::kReceive || operation.options.on_track) {
    return operation.peer == rank;
  }
  if (here.take(operation)) return false;
  if (operation.peer >= 0) return operation.peer == rank;
  return operation.communicator->contains(rank) &&
         (operation.options.fail_on_any_loss || !pairs.any_live_sender(*operation.communicator));
}

}  // namespace

void StreamWaits::begun(Operation& operation) {
  try {
    connect(operation);
  } catch (const std::bad_alloc&) {
    // The operation connects when it starts.
  }
  if (operation.kind == OperationKind::kCollective) {
    const Status known = operation.composite->known_end();
    if (!known.ok()) ender_.end(operation, known.code(), known.text());
  }
  if (pairs_.any_lost()) look_for_lost(operation);
  if (operation.state() != OperationState::kPending || remote_of(operation) == nullptr) return;
  const uint64_t first =
      engine_.refresh_now() + std::min(kFirstAskNs, detection_ns_ / kAsksPerDetection);
  if (first >= ask_at_ns_) return;
  ask_at_ns_ = first;
  engine_.timer_changed(first);
}

void StreamWaits::look_for_lost(Operation& operation) {
  for (const int rank : operation.communicator->ranks()) {
    if (operation.state() != OperationState::kPending) return;
    const Status& status = pairs_.status(rank);
    if (status.ok()) continue;
    HereMessages here;
    if (operation.kind == OperationKind::kReceive) {
      peer_lost(rank, status);  // assigns messages to older receives first
    } else if (is_ended_by(operation, rank, pairs_, here)) {
      ender_.end(operation, status.code(), status.text());
    }
  }
}

// Connects to the operation's peer. The peers of tracks are already connected. Collective
// operations choose their peers when they start.
void StreamWaits::connect(const Operation& operation) {
  if (operation.kind == OperationKind::kCollective || operation.options.on_track ||
      operation.peer < 0 || !pairs_.status(operation.peer).ok()) {
    return;
  }
  Pair& pair = pairs_.at(operation.peer);
  if (pair.state() != PairState::kReady) pair.ensure_connected();
}

void StreamWaits::peer_lost(int rank, const Status& why) {
  HereMessages here;
  departures_.for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (is_ended_by(operation, rank, pairs_, here)) ender_.end(operation, why.code(), why.text());
  });
}

void StreamWaits::collectives_failed(const CommunicatorBase& communicator, const Status& why) {
  departures_.for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    if (operation.communicator == &communicator && operation.kind == OperationKind::kCollective &&
        operation.composite->is_collective_call()) {
      ender_.end(operation, why.code(), why.text());
    }
  });
}

void StreamWaits::memory_gone(int rank, uint64_t id, Code code) {
  departures_.for_each([&](Operation& operation) HETCOMM_UNDER_BATON {
    const RemoteMemory* const remote = remote_of(operation);
    if (remote == nullptr || remote->rank() != rank || remote->id() != id) return;
    ender_.end(
        operation, code,
        code == Code::kStaleHandle ? "the memory is not registered any more" : code_text(code));
  });
}

void StreamWaits::tick(uint64_t now_ns) {
  if (now_ns < ask_at_ns_) return;
  ask_at_ns_ = kForever;
  ask(now_ns);
}

// Asks the owners of all remote memories that operations wait to use, once for each memory.
void StreamWaits::ask(uint64_t now_ns) {
  std::vector<std::pair<int, uint64_t>> memories;
  departures_.for_each([&](const Operation& operation) HETCOMM_UNDER_BATON {
    if (const RemoteMemory* const remote = remote_of(operation); remote != nullptr) {
      memories.emplace_back(remote->rank(), remote->id());
    }
  });
  if (memories.empty()) return;
  ask_at_ns_ = now_ns + std::max<uint64_t>(detection_ns_ / kAsksPerDetection, 1);
  std::sort(memories.begin(), memories.end());
  memories.erase(std::unique(memories.begin(), memories.end()), memories.end());
  for (const auto& [rank, id] : memories) {
    Pair* const pair = pairs_.find(rank);
    if (pair == nullptr || !pair->association().is_ready()) continue;
    pair->association().send_protocol(MessageKind::kAskMemory, id, 0);
  }
}

}  // namespace hetcomm
