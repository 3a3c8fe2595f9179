// MappedAccess performs one-sided operations, with the CPU, on remote memory that a connection maps
// into this process. Callers hold the baton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "src/base/baton_role.h"
#include "src/base/mix64.h"
#include "src/core/memory/access_state.h"
#include "src/core/memory/registration.h"
#include "src/core/peer/access/direct_path.h"
#include "src/core/peer/association.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// The most bytes that one call copies to or from mapped memory. Later passes copy the rest.
inline constexpr uint64_t kMaxCopiedAtOnce = 4 << 20;

class MappedAccess {
 public:
  MappedAccess(Association& association, Completer& completer, Log& log, DirectPathUser& user)
      : association_(association), completer_(completer), log_(log), user_(user) {}
  MappedAccess(const MappedAccess&) = delete;
  MappedAccess& operator=(const MappedAccess&) = delete;

  // Add a remote memory of the peer when it is created, and remove it before it is destroyed. If
  // add() throws std::bad_alloc, nothing has changed.
  void add(RemoteMemory& remote) HETCOMM_UNDER_BATON;
  void remove(RemoteMemory& remote) HETCOMM_UNDER_BATON;

  // Handle a connection's report that a request to map a region has finished, or that it unmaps a
  // region.
  void mapped(Rail& rail, const RemoteKey& key,
              const Result<MappedRegion>& mapped) HETCOMM_UNDER_BATON;
  void unmap(const Rail& rail, const RemoteKey& key) HETCOMM_UNDER_BATON;

  // Performs |operation|, or begins its copy, if |rail| maps its memory. |rail| is the current
  // connection. Returns false if nothing was done, or if the bytes are in place and only the
  // notification has to be sent.
  bool start(Operation& operation, Rail& rail) HETCOMM_UNDER_BATON {
    if (access_of(operation).remote == nullptr || access_of(operation).placed ||
        !operation.buffers.on_host || access_of(operation).direct_failed) {
      return false;
    }
    return is_mapped(*access_of(operation).remote, rail) && start_mapped(operation, rail);
  }
  // Continues the copies that are too long for one call. Returns whether any are left.
  bool copy_some() HETCOMM_UNDER_BATON;
  // Removes |operation| from the copies. Returns false if it was not there.
  bool stop(const Operation& operation) HETCOMM_UNDER_BATON;
  // Returns the first operation that is being copied, or null.
  Operation* first_copying() const HETCOMM_UNDER_BATON {
    return copies_.empty() ? nullptr : copies_.front().operation;
  }

  // Stops the copies to and from memory that |rail| maps. enqueue_interrupted() restarts them.
  void rail_failed(const Rail& rail) HETCOMM_UNDER_BATON;
  bool has_interrupted() const HETCOMM_UNDER_BATON { return !interrupted_.empty(); }
  // Puts the interrupted operations into the outbox, to be sent by message. Never fails.
  void enqueue_interrupted() HETCOMM_UNDER_BATON;
  // Returns whether no copy is in progress and this rank has no remote memory of the peer.
  bool is_idle() const HETCOMM_UNDER_BATON {
    return remote_count_ == 0 && copies_.empty() && interrupted_.empty();
  }

 private:
  struct Copy {
    Operation* operation;
    uint64_t done;
  };
  struct KnownRegion {
    MappedRegion mapped;   // has no address until it is mapped
    bool is_gone = false;  // the owner has dropped the region
  };
  struct HashKey {
    size_t operator()(const RemoteKey& key) const {
      uint64_t mixed = 0;
      for (const uint64_t word : key.words) mixed = mix64(mixed, word);
      return mixed;
    }
  };

  bool is_mapped(RemoteMemory& remote, Rail& rail) HETCOMM_UNDER_BATON {
    return remote.mapped != nullptr || ask_for(remote, rail);
  }
  // Calls use(RemoteMemory&) for the memories that |rail| identifies by |key|.
  template <typename Use>
  void for_each_remote(const Rail& rail, const RemoteKey& key, Use&& use) HETCOMM_UNDER_BATON;
  void forget_if_gone(const RemoteKey& key) HETCOMM_UNDER_BATON;
  bool ask_for(RemoteMemory& remote, Rail& rail) HETCOMM_UNDER_BATON;
  bool start_mapped(Operation& operation, Rail& rail) HETCOMM_UNDER_BATON;

  Association& association_;
  Completer& completer_;
  Log& log_;
  DirectPathUser& user_;
  size_t remote_count_ = 0;
  // The remote memories of the peer, each under all of its keys.
  std::unordered_multimap<RemoteKey, RemoteMemory*, HashKey> remotes_;
  // The regions that the current connection maps or was asked to map.
  std::unordered_map<RemoteKey, KnownRegion, HashKey> regions_;
  std::deque<Copy> copies_;
  std::vector<Operation*> interrupted_;
};

}  // namespace hetcomm
