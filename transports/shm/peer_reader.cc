#include "transports/shm/peer_reader.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "transports/shm/cma.h"

namespace hetcomm::shm {
namespace {

// The largest number of bytes that one pump() reads.
constexpr uint64_t kReadBudget = 1 << 20;

// Returns the key of a bulk that begin() has checked.
SourceKey source_of(const Bulk& bulk) {
  SourceKey source{};
  [[maybe_unused]] const bool valid = SourceKey::decode(bulk.key, source);
  return source;
}

Code code_of_read_error(int error) {
  switch (error) {
    case EPERM:
      return Code::kPermissionDenied;
    case ENOMEM:
      return Code::kOutOfMemory;
    default:
      return Code::kInternal;
  }
}

bool has_ended(int socket) {
  pollfd watched{socket, POLLRDHUP, 0};
  return poll(&watched, 1, 0) > 0;
}

}  // namespace

Code PeerReader::begin(Bulk& bulk) const {
  SourceKey source{};
  if (!SourceKey::decode(bulk.key, source) || bulk.remote_offset > source.length ||
      bulk.local.length > source.length - bulk.remote_offset) {
    return Code::kInvalidArgument;
  }
  begin_read(bulk);
  return Code::kOk;
}

Code PeerReader::push(Bulk& bulk) {
  const Code code = begin(bulk);
  if (code == Code::kOk) gets_.push(bulk);
  return code;
}

Code PeerReader::read_now(Bulk& bulk) {
  if (const Code code = begin(bulk); code != Code::kOk) return code;
  int64_t outcome = 0;
  while (outcome >= 0 && left_to_read(bulk) > 0) {
    outcome = read_fragment(connection_.pid, source_of(bulk), bulk, left_to_read(bulk));
  }
  return outcome_of(bulk, outcome);
}

int PeerReader::pump(EndpointHandler& handler) {
  uint64_t budget = kReadBudget;
  int done = 0;
  while (budget > 0 && !gets_.empty() && !peer_is_gone_) {
    Bulk& bulk = gets_.front();
    int64_t outcome = 0;
    if (left_to_read(bulk) > 0) {
      outcome = read_fragment(connection_.pid, source_of(bulk), bulk, budget);
    }
    ++done;
    if (outcome > 0) budget -= std::min<uint64_t>(budget, static_cast<uint64_t>(outcome));
    if (outcome >= 0 && left_to_read(bulk) > 0) continue;
    const Code code = outcome_of(bulk, outcome);
    if (peer_is_gone_) break;
    gets_.remove(bulk);
    handler.on_bulk_complete(bulk, code);
  }
  return done;
}

// Returns the result of a get whose last byte was read, or which failed with the negative errno
// |outcome|. Sets |peer_is_gone_| if the peer has closed its end of the socket.
Code PeerReader::outcome_of(const Bulk& bulk, int64_t outcome) {
  const SourceKey source = source_of(bulk);
  // The source's word must be read after the data; see SourceTable::remove().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Side& peer = connection_.memory.side(1 - connection_.side);
  const bool exposed =
      peer.sources[source.index].load(std::memory_order_acquire) == source.generation;
  if (has_ended(connection_.socket.get())) {
    peer_is_gone_ = true;
    return Code::kPeerLost;
  }
  if (!exposed) return Code::kCancelled;
  return outcome < 0 ? code_of_read_error(static_cast<int>(-outcome)) : Code::kOk;
}

}  // namespace hetcomm::shm
