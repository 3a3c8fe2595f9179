// Registered memory, at its owner and as others see it.
//
// A Registration stands in the job's table under an id that is never used twice, which every
// request of a peer names. It ends in two steps: closing (no new use; what is under way is ended),
// then gone. Exported bytes are plain data and prove nothing: each use is checked by the owner, or
// by the network hardware that holds the key.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <hetcomm/onesided.h>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/credentials.h"
#include "transports/transport.h"

namespace hetcomm {

class CommunicatorBase;
class Memory;
class Pair;

class Registration {
 public:
  Registration(CommunicatorBase& communicator, Memory& memory, uint32_t rights)
      : communicator_(communicator), memory_(memory), rights_(rights) {}
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  CommunicatorBase& communicator() const { return communicator_; }
  Memory& memory() const { return memory_; }
  uint32_t rights() const { return rights_; }

  // Under the baton:
  uint64_t id = 0;
  // What transports made of it, by their number in the job; all-zero: nothing.
  std::vector<std::pair<std::string, RemoteKey>> keys;

  void notify(Pair& source, const hetcomm_notification_t& notification) {
    waiting_.push_back({&source, notification});
    arrived_.store(arrived_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  // False when there is none. |*source| gets its credit back from the caller.
  bool take(hetcomm_notification_t* out, Pair** source) {
    if (waiting_.empty()) return false;
    *source = waiting_.front().source;
    *out = waiting_.front().notification;
    waiting_.pop_front();
    taken_.store(taken_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return true;
  }
  // Operations of this process on behalf of peers.
  void add_running() { running_.store(running() + 1, std::memory_order_relaxed); }
  // True when it was the last.
  bool drop_running() {
    const uint32_t left = running() - 1;
    running_.store(left, std::memory_order_release);
    return left == 0;
  }

  // [any-thread], once it was found under the baton:
  // Nothing new begins; set under the baton.
  std::atomic<bool> closing{false};
  // Threads that wait for a notification; begun under the baton.
  std::atomic<uint32_t> waiters{0};
  uint32_t running() const { return running_.load(std::memory_order_acquire); }
  bool has_notification() const {
    return arrived_.load(std::memory_order_acquire) != taken_.load(std::memory_order_acquire);
  }

 private:
  struct Waiting {
    Pair* source;
    hetcomm_notification_t notification;
  };

  CommunicatorBase& communicator_;
  Memory& memory_;
  uint32_t rights_;
  std::deque<Waiting> waiting_;
  std::atomic<uint64_t> arrived_{0};
  std::atomic<uint64_t> taken_{0};
  std::atomic<uint32_t> running_{0};
};

// What exported bytes say.
struct ExportedMemory {
  Identity job;
  int32_t rank = 0;  // of the job
  uint64_t id = 0;
  uint64_t length = 0;
  uint32_t rights = 0;
  bool host_accessible = false;
  bool needs_flush = false;  // the device has to be told of what network interfaces have written
  std::vector<std::pair<std::string, RemoteKey>> keys;

  std::vector<std::byte> encode() const;
  // The bytes are believed for nothing but their form.
  static Result<ExportedMemory> decode(ConstByteSpan bytes);
};

// Registered memory of a rank, imported.
class RemoteMemory {
 public:
  RemoteMemory(CommunicatorBase& communicator, const ExportedMemory& exported,
               std::vector<RemoteKey> keys);
  ~RemoteMemory();
  RemoteMemory(const RemoteMemory&) = delete;
  RemoteMemory& operator=(const RemoteMemory&) = delete;

  CommunicatorBase& communicator() const { return communicator_; }
  int32_t rank() const { return rank_; }  // of the job
  uint64_t id() const { return id_; }
  uint64_t length() const { return length_; }
  uint32_t rights() const { return rights_; }
  bool host_accessible() const { return host_accessible_; }
  bool needs_flush() const { return needs_flush_; }
  // For connections of the job's transport |index|; all-zero: none.
  const RemoteKey& key(size_t index) const { return keys_[index]; }
  bool contains(uint64_t offset, uint64_t length) const {
    return offset <= length_ && length <= length_ - offset;
  }

  // Under the baton: where the connection maps it, null while it does not, and what counts its use.
  std::byte* mapped = nullptr;
  hetcomm_counters_t* counters = nullptr;

  // Pending operations on it.
  void add_use() { uses_.fetch_add(1, std::memory_order_relaxed); }
  void drop_use() { uses_.fetch_sub(1, std::memory_order_release); }
  bool in_use() const { return uses_.load(std::memory_order_acquire) != 0; }

 private:
  CommunicatorBase& communicator_;
  int32_t rank_;
  uint64_t id_;
  uint64_t length_;
  uint32_t rights_;
  bool host_accessible_;
  bool needs_flush_;
  std::vector<RemoteKey> keys_;
  std::atomic<uint32_t> uses_{0};
};

}  // namespace hetcomm
