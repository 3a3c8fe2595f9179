// MappedAccess: one-sided operations on remote memory that a connection maps into this process. The
// CPU does them. Under the baton.
#pragma once

#include <cstdint>
#include <vector>

#include "src/core/memory/registration.h"
#include "src/core/peer/association.h"
#include "src/core/peer/direct_path.h"
#include "src/core/progress/operation.h"

namespace hetcomm {

// One call copies so many bytes to or from mapped memory; progress does the rest.
inline constexpr uint64_t kMostCopiedAtOnce = 4 << 20;

class MappedAccess {
 public:
  MappedAccess(Association& association, DirectPathUser& user)
      : association_(association), user_(user) {}
  MappedAccess(const MappedAccess&) = delete;
  MappedAccess& operator=(const MappedAccess&) = delete;

  // Remote memories of the peer, for as long as they exist.
  void add(RemoteMemory& remote) { remotes_.push_back(&remote); }
  void remove(RemoteMemory& remote) { std::erase(remotes_, &remote); }

  // The connection maps, or stops mapping, a region.
  void mapped(Rail& rail, const RemoteKey& key, const Result<MappedRegion>& mapped);
  void unmap(const Rail& rail, const RemoteKey& key);

  // Does |operation|, or begins to copy, if |rail|, the current one, maps its memory. False:
  // nothing was done, or its bytes are in place and only the notification is missing.
  bool start(Operation& operation, Rail& rail) {
    if (operation.access.remote == nullptr || operation.access.placed ||
        !operation.buffers.on_host || operation.access.direct_failed) {
      return false;
    }
    return is_mapped(*operation.access.remote, rail) && start_mapped(operation, rail);
  }
  // Copies that are too long for one call go on. False: none is left.
  bool copy_some();
  // Takes |operation| out of what copies. False: it was not there.
  bool stop(const Operation& operation);
  // The first operation that copies. Null: none.
  Operation* first_copying() const { return copies_.empty() ? nullptr : copies_[0].operation; }

  // Stops the copies to memory that |rail| maps. They start again with enqueue_interrupted().
  void rail_failed(const Rail& rail);
  bool has_interrupted() const { return !interrupted_.empty(); }
  // Puts it into the outbox, to go by message. Fails for nothing.
  void enqueue_interrupted();
  // No memory of the peer is held that a connection may have mapped, and nothing is copied.
  bool is_idle() const { return remotes_.empty() && copies_.empty() && interrupted_.empty(); }

 private:
  struct Copy {
    Operation* operation;
    uint64_t done;
  };
  struct KnownRegion {
    RemoteKey key;
    MappedRegion mapped;  // without an address: asked for
  };

  bool is_mapped(RemoteMemory& remote, Rail& rail) {
    return remote.mapped != nullptr || ask_for(remote, rail);
  }
  bool ask_for(RemoteMemory& remote, Rail& rail);
  bool start_mapped(Operation& operation, Rail& rail);

  Association& association_;
  DirectPathUser& user_;
  std::vector<RemoteMemory*> remotes_;
  std::vector<KnownRegion> regions_;  // of the connection
  std::vector<Copy> copies_;
  std::vector<Operation*> interrupted_;
};

}  // namespace hetcomm
