// A Registration represents registered memory on its owner. A RemoteMemory represents it on other
// ranks.
//
// A Registration is in the job's table under an id that is never reused. Every request from a peer
// contains this id. A registration ends in two steps: first it is closing (no new use begins, and
// operations in progress are ended), then it is destroyed. Exported bytes are plain data and prove
// nothing: the owner, or the network hardware that holds the key, checks each use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <hetcomm/onesided.h>

#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/device/memory.h"
#include "src/core/progress/communicator_base.h"
#include "src/net/credentials.h"
#include "transports/transport.h"

namespace hetcomm {

class RemoteMemory;

// The part of a communicator that its registered and imported memories use.
class MemoryCommunicator : public CommunicatorBase {
 public:
  // Add and remove the imported memory of a peer.
  virtual void add_remote(RemoteMemory& remote) HETCOMM_EXCLUDES(baton_role) = 0;
  virtual void drop_remote(RemoteMemory& remote) HETCOMM_EXCLUDES(baton_role) = 0;

 protected:
  using CommunicatorBase::CommunicatorBase;
  ~MemoryCommunicator() = default;
};

// Keys, each with the number of the owner's transport that uses it.
using TransportKeys = std::vector<std::pair<uint8_t, RemoteKey>>;

// A peer that has sent a notification. The notification uses some of the peer's credit until a user
// takes it.
class NotificationSource {
 public:
  virtual void give_back_credit(uint64_t bytes) HETCOMM_UNDER_BATON = 0;

 protected:
  ~NotificationSource() = default;
};

class Registration final : public RegistrationBase {
 public:
  Registration(MemoryCommunicator& communicator, Memory& memory, uint32_t rights)
      : communicator_(communicator), memory_(memory), rights_(rights) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  MemoryCommunicator& communicator() const { return communicator_; }
  Memory& memory() const { return memory_; }
  uint32_t rights() const { return rights_; }

  // Id in the job's table.
  uint64_t id HETCOMM_GUARDED_BY_BATON = 0;
  // The keys of the transports that reach the memory.
  TransportKeys keys HETCOMM_GUARDED_BY_BATON;
  // True if the last attempt to register the memory with a transport that should reach it has
  // failed.
  bool is_incomplete HETCOMM_GUARDED_BY_BATON = false;

  void notify(NotificationSource& source,
              const hetcomm_notification_t& notification) HETCOMM_UNDER_BATON {
    waiting_.push_back({&source, notification});
    arrived_.store(arrived_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  // Takes the oldest notification. Returns false if there is none. The caller must return the
  // credit to |*source|.
  bool take(hetcomm_notification_t* out, NotificationSource** source) HETCOMM_UNDER_BATON {
    if (waiting_.empty()) return false;
    *source = waiting_.front().source;
    *out = waiting_.front().notification;
    waiting_.pop_front();
    taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return true;
  }
  // Count the operations that this process carries out on behalf of peers.
  void add_running() HETCOMM_UNDER_BATON {
    running_.store(running() + 1, std::memory_order_relaxed);
  }
  // Returns whether no operation is running any more.
  bool drop_running() HETCOMM_UNDER_BATON {
    const uint32_t left = running() - 1;
    running_.store(left, std::memory_order_release);
    return left == 0;
  }

  // Any thread may access the following members once it has found this object under the baton.

  // Set under the baton; no new use begins afterwards.
  std::atomic<bool> closing{false};
  // Number of threads that wait for a notification. Each begins to wait under the baton.
  std::atomic<uint32_t> waiters{0};
  uint32_t running() const { return running_.load(std::memory_order_acquire); }
  bool has_notification() const {
    return arrived_.load(std::memory_order_acquire) != taken_.load(std::memory_order_acquire);
  }

 private:
  struct Waiting {
    NotificationSource* source;
    hetcomm_notification_t notification;
  };

  MemoryCommunicator& communicator_;
  Memory& memory_;
  uint32_t rights_;
  std::deque<Waiting> waiting_ HETCOMM_GUARDED_BY_BATON;
  std::atomic<uint64_t> arrived_{0};
  std::atomic<uint64_t> taken_{0};
  std::atomic<uint32_t> running_{0};
};

// Returns the registration of |memory|; null while it is not registered.
inline Registration* registration_of(const Memory& memory) {
  return static_cast<Registration*>(memory.registration.get());
}

// Decoded contents of exported bytes.
struct ExportedMemory {
  Identity job;
  int32_t rank = 0;  // rank in the job
  uint64_t id = 0;
  uint64_t length = 0;
  uint32_t rights = 0;
  bool host_accessible = false;
  bool needs_flush = false;  // the device must flush before it reads data that peers have put
  TransportKeys keys;

  std::vector<std::byte> encode() const;
  // Decodes |bytes|. Checks only their format.
  static Result<ExportedMemory> decode(ConstByteSpan bytes);
};

// Imported memory, which another rank has registered.
class RemoteMemory {
 public:
  RemoteMemory(MemoryCommunicator& communicator, const ExportedMemory& exported,
               std::vector<RemoteKey> keys);
  ~RemoteMemory();
  RemoteMemory(const RemoteMemory&) = delete;
  RemoteMemory& operator=(const RemoteMemory&) = delete;

  MemoryCommunicator& communicator() const { return communicator_; }
  int32_t rank() const { return rank_; }  // rank in the job
  uint64_t id() const { return id_; }
  uint64_t length() const { return length_; }
  uint32_t rights() const { return rights_; }
  bool host_accessible() const { return host_accessible_; }
  bool needs_flush() const { return needs_flush_; }
  // Returns the key for connections to the owner's transport |index|; all zeros if it has no key.
  const RemoteKey& key(size_t index) const {
    static constexpr RemoteKey kNone{};
    return index < keys_.size() ? keys_[index] : kNone;
  }
  // Returns one more than the highest number of a transport that has a key.
  size_t key_count() const { return keys_.size(); }
  // Returns the owner's transports that have a key, as bits.
  uint64_t transports() const { return transports_; }
  bool contains(uint64_t offset, uint64_t length) const {
    return offset <= length_ && length <= length_ - offset;
  }

  // Address at which the connection to the owner maps this memory; null: it is not mapped.
  std::byte* mapped HETCOMM_GUARDED_BY_BATON = nullptr;
  // Counters of the connection that maps this memory.
  hetcomm_counters_t* counters HETCOMM_GUARDED_BY_BATON = nullptr;

  // Count the pending operations on this memory.
  void add_use() { uses_.fetch_add(1, std::memory_order_relaxed); }
  void drop_use() { uses_.fetch_sub(1, std::memory_order_release); }
  bool in_use() const { return uses_.load(std::memory_order_acquire) != 0; }

 private:
  MemoryCommunicator& communicator_;
  int32_t rank_;
  uint64_t id_;
  uint64_t length_;
  uint32_t rights_;
  bool host_accessible_;
  bool needs_flush_;
  std::vector<RemoteKey> keys_;
  uint64_t transports_ = 0;
  std::atomic<uint32_t> uses_{0};
};

}  // namespace hetcomm
