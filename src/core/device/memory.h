// DeviceSet holds the devices of a context. Memory is a memory region on one of them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "src/base/baton_role.h"
#include "src/base/span.h"
#include "src/base/status.h"
#include "src/core/device/abandoned_copies.h"
#include "src/core/device/blocking_chunks.h"
#include "src/core/device/copy_notice.h"
#include "src/core/device/copy_watch.h"
#include "src/core/device/device_kinds.h"
#include "src/core/device/waiting_calls.h"

namespace hetcomm {

class Memory;

// kAside: between two devices or within one, not to or from the host.
enum class StreamDirection : uint8_t { kToHost, kFromHost, kAside };
inline constexpr size_t kStreamDirections = 3;

// A MemoryUser keeps references to memories, and is notified before one is destroyed.
class MemoryUser {
 public:
  // Drops all references to |memory|, which is about to be destroyed. No operation uses it.
  virtual void forget(const Memory& memory) HETCOMM_UNDER_BATON = 0;

 protected:
  ~MemoryUser() = default;
};

// A DeviceUser starts copies on devices, and waits for them and for users' streams.
class DeviceUser {
 public:
  // Stops waiting for device |index|, which was abandoned.
  virtual void on_abandoned(size_t index) HETCOMM_UNDER_BATON = 0;
  // If the oldest copy in flight on device |index| began before |*started_ns|, describes it in
  // |*text| and sets |*started_ns| to its start.
  virtual void describe_oldest_copy(size_t index, uint64_t now_ns, uint64_t* started_ns,
                                    std::string* text) HETCOMM_UNDER_BATON = 0;

 protected:
  ~DeviceUser() = default;
};

// Checks for copies that do not end.
class CopyWarden {
 public:
  // Schedules a check for hung copies at |at_ns|.
  virtual void look_at_copies(uint64_t at_ns) HETCOMM_UNDER_BATON = 0;
  // Reports that a thread has waited since |started_ns| for a copy of device |index|, which is
  // longer than any copy should take. |what| describes the copy. [any-thread]
  virtual void on_hang(size_t index, std::string_view what, uint64_t started_ns)
      HETCOMM_EXCLUDES(baton_role) = 0;

 protected:
  ~CopyWarden() = default;
};

// Holds the devices of one context. Device 0 is the host. Each device has one stream per direction,
// made on first use. Devices may be added at any time, and are never removed.
class DeviceSet {
 public:
  static constexpr size_t kMaxDevices = DeviceKinds::kMaxDevices;
  DeviceSet() { calls_.set_abandoned(abandoned_, &some_hang, this); }
  ~DeviceSet();
  DeviceSet(const DeviceSet&) = delete;
  DeviceSet& operator=(const DeviceSet&) = delete;

  // Takes ownership of |device| and returns its number. Fails, without taking ownership, if the
  // device's table is incomplete, the set is full, or memory runs out. Only one thread at a time
  // may call this.
  Result<size_t> add(Device device);
  // Returns the notice through which completed copies wake a thread that sleeps in the poller.
  CopyNotice& notice() { return notice_; }
  // Returns whether the completion of |event| of |device| will end a sleep that begins now.
  // |*asked| is set once the device has promised to signal the notice. It must be passed again for
  // the same event.
  bool ends_sleep(const Device& device, void* event, bool* asked) HETCOMM_UNDER_BATON;
  // The next two are [any-thread].
  size_t size() const { return size_.load(std::memory_order_acquire); }
  const Device& device(size_t index) const { return entries_[index]->device; }
  // Returns the stream for |direction|. The first call creates it.
  Result<void*> stream(size_t index, StreamDirection direction) HETCOMM_UNDER_BATON;
  // Waits for all work in the stream and destroys it; the next stream() call makes a new one.
  void end_stream(size_t index, StreamDirection direction, const NoHolds& none) HETCOMM_UNDER_BATON;

  // Destroys the stream of a lost device, once no user's stream is held back.
  void drop_stream(size_t index, StreamDirection direction) HETCOMM_UNDER_BATON;

  void add_user(MemoryUser& user) HETCOMM_UNDER_BATON { users_.push_back(&user); }
  void remove_user(MemoryUser& user) HETCOMM_UNDER_BATON { std::erase(users_, &user); }
  void forget(const Memory& memory) HETCOMM_UNDER_BATON {
    for (MemoryUser* user : users_) user->forget(memory);
  }
  // Records that a transport may be able to access device memory without staging. [any-thread]
  void set_reachable() { reachable_.store(true, std::memory_order_release); }
  // Starts watching copies: |warden| is notified if no copy has ended for |limit_ns| while some are
  // in flight.
  void watch_copies(CopyWarden& warden, uint64_t limit_ns) {
    warden_ = &warden;
    copy_limit_ns_ = limit_ns;
  }
  uint64_t copy_limit_ns() const { return copy_limit_ns_; }
  void copy_started(size_t index, uint64_t now_ns) HETCOMM_UNDER_BATON {
    if (entries_[index]->watch.start(now_ns) && copy_limit_ns_ != kForever) arrange_look(now_ns);
  }
  void copy_ended(size_t index, uint64_t now_ns) HETCOMM_UNDER_BATON {
    if (entries_[index]->watch.end(now_ns)) [[unlikely]]
      arrange_look(now_ns);
  }
  // Records the time of the next check of copies; 0: no check is scheduled.
  void set_next_look(uint64_t at_ns) HETCOMM_UNDER_BATON { next_look_ns_ = at_ns; }
  CopyWatch& watch(size_t index) HETCOMM_UNDER_BATON { return entries_[index]->watch; }
  void on_hang(size_t index, std::string_view what, uint64_t started_ns) const {
    if (warden_ != nullptr) warden_->on_hang(index, what, started_ns);
  }

  void add_device_user(DeviceUser& user) HETCOMM_UNDER_BATON { device_users_.push_back(&user); }
  void remove_device_user(DeviceUser& user) HETCOMM_UNDER_BATON {
    std::erase(device_users_, &user);
  }
  const std::vector<DeviceUser*>& device_users() const HETCOMM_UNDER_BATON { return device_users_; }
  // Abandons device |index| because of |why|: nothing is started on it any longer, and nothing
  // waits for it. Returns false if it was abandoned before.
  bool abandon(size_t index, std::string_view why) HETCOMM_UNDER_BATON;
  // The next two are [any-thread].
  bool is_abandoned(size_t index) const {
    return entries_[index]->abandoned.load(std::memory_order_acquire);
  }
  bool has_abandoned() const { return has_abandoned_.load(std::memory_order_acquire); }
  // Returns DEVICE_LOST and the reason if the device was abandoned, otherwise OK. [any-thread]
  Status check(size_t index) const;
  AbandonedCopies& abandoned() const { return abandoned_; }
  // Frees resources that were kept for abandoned copies that have ended, unless users' streams are
  // held back. [any-thread]
  void look_at_abandoned();
  // Free an allocation of device |index|, release retained memory, or destroy a stream. The call is
  // deferred if it could wait for an abandoned copy. [any-thread]
  void free(size_t index, void* address);
  void release(size_t index, void* address);
  void destroy_stream(size_t index, void* stream);
  // Returns the host memory for blocking copies. [any-thread]
  BlockingChunks& blocking_chunks() { return blocking_chunks_; }

  // Returns the record of the users' streams that are held back, and of device calls that may wait
  // for them. [any-thread]
  WaitingCalls& calls() { return calls_; }
  // Records that device |index| has had users' streams, which may be held back from now on.
  // [any-thread]
  void note_user_streams(size_t index) {
    calls_.expect_holds();
    entries_[index]->has_user_streams.store(true, std::memory_order_release);
  }
  bool has_user_streams(size_t index) const {
    return entries_[index]->has_user_streams.load(std::memory_order_acquire);
  }
  bool is_reachable(size_t index) const {
    return reachable_.load(std::memory_order_acquire) && !device(index).table->host_accessible;
  }
  // Records that device |index| has memory of |size| bytes at |address|, unless the CPU can access
  // the memory of the device. [any-thread]
  void note_memory(size_t index, const void* address, uint64_t size);
  // Returns the devices by kind, to find the device to which an address belongs. [any-thread]
  const DeviceKinds& kinds() const { return kinds_; }
  // Checks whether the CPU can access |address|, which a user passed as host memory. Returns
  // kInvalidArgument if it is in device memory, and another error if a device cannot tell. Costs
  // one comparison until this context has had memory that the CPU cannot access. [any-thread]
  Code check_plain(uint64_t address) const {
    if (address < lowest_forbidden_.load(std::memory_order_relaxed)) [[likely]]
      return Code::kOk;
    return ask_devices(address);
  }

 private:
  struct Entry {
    Entry(const DeviceTable& whole, const Device& given) : table(whole), device(given) {}
    const DeviceTable table;  // device.table points to it
    Device device;
    std::array<void*, kStreamDirections> streams{};
    std::atomic<bool> has_user_streams{false};
    CopyWatch watch;  // under the baton
    std::atomic<bool> abandoned{false};
    std::string reason;  // why it was abandoned; written before |abandoned|
  };
  Code ask_devices(uint64_t address) const;
  static bool some_hang(const void* devices);
  template <typename Kept>
  void end(size_t index, void* thing);
  void arrange_look(uint64_t now_ns) HETCOMM_UNDER_BATON;
  CopyNotice notice_;  // destroyed after the devices
  std::array<std::unique_ptr<Entry>, kMaxDevices> entries_;
  std::atomic<size_t> size_{0};
  DeviceKinds kinds_;
  std::vector<MemoryUser*> users_ HETCOMM_GUARDED_BY_BATON;
  std::vector<DeviceUser*> device_users_ HETCOMM_GUARDED_BY_BATON;
  mutable AbandonedCopies abandoned_;
  BlockingChunks blocking_chunks_;
  std::atomic<bool> has_abandoned_{false};
  CopyWarden* warden_ = nullptr;
  uint64_t copy_limit_ns_ = kForever;
  uint64_t next_look_ns_ HETCOMM_GUARDED_BY_BATON = 0;  // time of the next check
  std::atomic<bool> reachable_{false};
  WaitingCalls calls_;  // destroyed before the devices
  // The bounds of all memories, past and present, that the CPU cannot access.
  std::atomic<uint64_t> highest_forbidden_{0};
  std::atomic<uint64_t> lowest_forbidden_{~uint64_t{0}};
};

// The base of Registration (src/core/memory/registration.h). Memory owns its registration through
// this class, so it does not depend on Registration.
class RegistrationBase {
 public:
  virtual ~RegistrationBase() = default;
};

// A memory region of one device. It counts the pending operations that use the region.
class Memory {
 public:
  // Wraps memory at |address|. The destructor frees the memory on the device if |owned|. Otherwise
  // it calls the device's release(), if the device has one.
  Memory(DeviceSet& devices, size_t device, void* address, uint64_t size, bool owned);
  // Marks memory that the caller owns. The caller may free it, and allocate other memory at the
  // same address, while this object exists. No transport accesses it directly, because
  // registrations with NICs would become stale.
  struct Unowned {};
  Memory(DeviceSet& devices, size_t device, void* address, uint64_t size, Unowned /*tag*/);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const Device& device() const { return devices_.device(device_); }
  size_t device_index() const { return device_; }
  void* address() const { return address_; }
  // Returns the start of the allocation that contains this memory. If it was not set, this memory
  // is assumed to be a whole allocation.
  const void* allocation() const { return allocation_; }
  void set_allocation(const void* begin) { allocation_ = begin; }
  uint64_t size() const { return size_; }
  bool owned() const { return owned_; }  // the destructor frees the memory
  bool host_accessible() const { return device().table->host_accessible; }
  // Returns DEVICE_LOST and the reason if the memory's device was abandoned, otherwise OK.
  Status check() const { return devices_.check(device_); }
  // Returns whether [offset, offset + length) is inside the memory.
  bool contains(uint64_t offset, uint64_t length) const {
    return offset <= size_ && length <= size_ - offset;
  }

  // Returns the placeholder: reserved addresses that represent this memory in extents (see
  // DeviceRange). The first call reserves them. Returns null if no transport may access the memory
  // directly, or if no addresses can be reserved. [any-thread]
  std::byte* placeholder();
  std::byte* known_placeholder() const { return placeholder_.load(std::memory_order_acquire); }
  // Returns whether the device needs flush_remote_writes(), which makes earlier writes by NICs
  // visible to it.
  bool needs_flush() const { return device().table->flush_remote_writes != nullptr; }
  Status flush_remote_writes() const;

  // Make blocking copies, for set-up and tests. A copy of device memory uses its own stream and
  // goes through host memory of the library. DEVICE_LOST: the device was abandoned, perhaps during
  // the call. The copy may then still run, but it does not access the caller's memory.
  Status write(uint64_t offset, const void* source, uint64_t length);
  Status read(uint64_t offset, void* destination, uint64_t length);

  void add_use() { uses_.fetch_add(1, std::memory_order_relaxed); }
  void drop_use() { uses_.fetch_sub(1, std::memory_order_release); }
  bool in_use() const { return uses_.load(std::memory_order_acquire) != 0; }

  // A Registration; null while this memory is not registered.
  std::unique_ptr<RegistrationBase> registration;

 private:
  class BlockingCopy;

  Status copy_and_wait(StreamDirection direction, uint64_t offset, void* host, uint64_t length);

  DeviceSet& devices_;
  size_t device_;
  void* address_;
  const void* allocation_ = address_;
  uint64_t size_;
  bool owned_;
  bool releases_;          // the destructor calls the device's release()
  bool reachable_ = true;  // transports may access it directly
  std::atomic<std::byte*> placeholder_{nullptr};
  std::atomic<uint32_t> uses_{0};
};

}  // namespace hetcomm
