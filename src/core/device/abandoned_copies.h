// AbandonedCopies records copies that were in flight on devices when these were abandoned
// (hetcomm_device_abandon()). Operations no longer wait for such copies.
//
// Such a copy may end at any time, or never. Until then it may read and write its memory, and calls
// to its device may wait for it. So all resources that the copy uses are kept here until it has
// ended. Resources still in use when this object is destroyed stay until the process ends. All
// functions are [any-thread].
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "devices/device.h"

namespace hetcomm {

// Host memory from |begin| up to |end|.
struct HostRange {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;

  static HostRange of(const void* memory, uint64_t size) {
    const auto* const first = static_cast<const std::byte*>(memory);
    return {first, first + size};
  }
  bool meets(const HostRange& other) const { return begin < other.end && other.begin < end; }
  // Extends the range to include |other| and all bytes in between.
  void extend(const HostRange& other) {
    if (other.begin == other.end) return;
    if (begin == end) {
      *this = other;
      return;
    }
    if (other.begin < begin) begin = other.begin;
    if (other.end > end) end = other.end;
  }
};

// A copy that no operation waits for any longer.
struct AbandonedCopy {
  const Device* device = nullptr;
  void* event = nullptr;  // completes with the copy; null: nothing signals its end
  HostRange host;         // host memory that the copy may touch
  bool is_aside = false;  // may touch all devices with the same copy_rows_between function
};

class AbandonedCopies {
 public:
  // The abandoned copies that have not ended.
  class List {
   public:
    bool touch(const HostRange& host) const;
    // Returns whether a call to |device| that frees an object, or waits for one, may have to wait
    // for a copy in the list.
    bool use(const Device& device) const;

   private:
    friend class AbandonedCopies;
    std::list<AbandonedCopy> copies_;
    bool is_incomplete_ = false;  // a copy could not be recorded and may touch any memory
  };
  // A resource that abandoned copies may still use. It is destroyed once no copy uses it.
  class Kept {
   public:
    virtual ~Kept() = default;
    virtual bool is_used(const List& copies) const = 0;
    // Returns whether |device| must outlive this resource.
    virtual bool needs(const Device& device) const = 0;
    // Drops references to |device|, which this resource does not need and which is about to be
    // destroyed.
    virtual void forget(const Device& device) = 0;
  };

  AbandonedCopies() = default;
  ~AbandonedCopies();
  AbandonedCopies(const AbandonedCopies&) = delete;
  AbandonedCopies& operator=(const AbandonedCopies&) = delete;

  // Returns whether no copy is recorded and no resource is kept. Costs one load.
  bool none() const { return !some_.load(std::memory_order_acquire); }
  void add(const AbandonedCopy& copy) noexcept;
  bool touch(const HostRange& host) const;
  bool use(const Device& device) const;
  // Keeps |what| unless it is null. If memory for the record runs out, |what| is never destroyed.
  void keep(std::unique_ptr<Kept> what) noexcept;
  // If |is_used| returns true for the copies, keeps the result of make() and returns true.
  // Otherwise returns false.
  template <typename IsUsed, typename Make>
  bool keep_if(IsUsed&& is_used, Make&& make) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (!is_used(std::as_const(list_))) return false;
    }
    keep(std::unique_ptr<Kept>(make()));
    return true;
  }
  // Takes over |thing|, the owner of |host|, and returns true if a copy may touch |host|. Otherwise
  // returns false.
  template <typename Thing>
  bool keep_if_touched(const HostRange& host, Thing& thing) noexcept;
  // Forgets copies that have ended, and destroys the resources that no copy uses any longer. The
  // calls to the devices may wait for users' streams.
  void look();
  // Returns whether |device|, which is about to be destroyed, must be kept. If not, no kept
  // resource refers to |device| any longer.
  bool must_stay(const Device& device);

 private:
  std::list<std::unique_ptr<Kept>> take_unused();

  std::atomic<bool> some_{false};
  mutable std::mutex mutex_;
  // Under |mutex_|:
  List list_;
  std::list<std::unique_ptr<Kept>> kept_;
};

// A kept object that owns host memory.
template <typename Thing>
class KeptHost final : public AbandonedCopies::Kept {
 public:
  KeptHost(const HostRange& host, Thing&& thing) : host_(host), thing_(std::move(thing)) {}
  bool is_used(const AbandonedCopies::List& copies) const override { return copies.touch(host_); }
  bool needs(const Device& /*device*/) const override { return false; }
  void forget(const Device& /*device*/) override {}

 private:
  const HostRange host_;
  Thing thing_;
};

template <typename Thing>
bool AbandonedCopies::keep_if_touched(const HostRange& host, Thing& thing) noexcept {
  if (none() || !touch(host)) return false;
  auto* const kept = new (std::nothrow) KeptHost<Thing>(host, std::move(thing));
  if (kept != nullptr) {
    keep(std::unique_ptr<Kept>(kept));
    return true;
  }
  // There is no memory to record the object, so it is never destroyed.
  union Left {
    explicit Left(Thing&& owner) : thing(std::move(owner)) {}
    ~Left() {}
    Thing thing;
  };
  const Left left(std::move(thing));
  return true;
}

}  // namespace hetcomm
