// Copies of devices that were given up (hetcomm_device_abandon). No operation waits for them any
// more.
//
// Such a copy may end at any time, or never. Until then it may read and write its memory, and calls
// of its device may wait for it. So everything that it uses is kept here until that is over.
// Anything still in use when this object goes stays as long as the process. All functions are
// [any-thread].
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
  // Makes it hold |other| too, and everything in between.
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

// One copy that nobody waits for.
struct AbandonedCopy {
  const Device* device = nullptr;
  void* event = nullptr;  // completes with the copy; null: nothing signals its end
  HostRange host;         // host memory that the copy may touch
  bool is_aside = false;  // it may touch memory of devices with the same function for such copies
};

class AbandonedCopies {
 public:
  // The copies that have not ended.
  class List {
   public:
    bool touch(const HostRange& host) const;
    // Whether calls of |device| that free or wait for something may wait for one of them.
    bool use(const Device& device) const;

   private:
    friend class AbandonedCopies;
    std::list<AbandonedCopy> copies_;
    bool is_incomplete_ = false;  // one could not be noted: it may touch everything
  };
  // A resource that abandoned copies may still use. It is destroyed once none of them does.
  class Kept {
   public:
    virtual ~Kept() = default;
    virtual bool is_used(const List& copies) const = 0;
    // Whether |device| has to stay as long as this.
    virtual bool needs(const Device& device) const = 0;
    // |device|, which it does not need, is about to go.
    virtual void forget(const Device& device) = 0;
  };

  AbandonedCopies() = default;
  ~AbandonedCopies();
  AbandonedCopies(const AbandonedCopies&) = delete;
  AbandonedCopies& operator=(const AbandonedCopies&) = delete;

  // Whether nothing is noted or kept. Costs one load.
  bool none() const { return !some_.load(std::memory_order_acquire); }
  void add(const AbandonedCopy& copy) noexcept;
  bool touch(const HostRange& host) const;
  bool use(const Device& device) const;
  // Keeps |what| (null: nothing). It stays permanently where there is no memory to note it.
  void keep(std::unique_ptr<Kept> what) noexcept;
  // Keeps make(), if |is_used| returns true for the copies; else returns false.
  template <typename IsUsed, typename Make>
  bool keep_if(IsUsed&& is_used, Make&& make) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (!is_used(std::as_const(list_))) return false;
    }
    keep(std::unique_ptr<Kept>(make()));
    return true;
  }
  // Keeps |thing|, an owner of |host|, if some copy may touch |host|; else it stays the caller's.
  template <typename Thing>
  bool keep_if_touched(const HostRange& host, Thing& thing) noexcept;
  // Forgets copies that have ended, and releases what nothing uses any more. The device calls for
  // that may wait for users' streams.
  void look();
  // Call this at the end of |device|. Returns whether it has to stay; false: nothing that is kept
  // refers to it any more.
  bool must_stay(const Device& device);

 private:
  std::list<std::unique_ptr<Kept>> take_unused();

  std::atomic<bool> some_{false};
  mutable std::mutex mutex_;
  // Under |mutex_|:
  List list_;
  std::list<std::unique_ptr<Kept>> kept_;
};

// A thing that owns host memory.
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
  // There is no memory to note it, so it stays where it is permanently.
  union Left {
    explicit Left(Thing&& owner) : thing(std::move(owner)) {}
    ~Left() {}
    Thing thing;
  };
  const Left left(std::move(thing));
  return true;
}

}  // namespace hetcomm
