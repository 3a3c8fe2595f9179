#include "transports/rdma/memory_region_cache.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include <fmt/core.h>

namespace hetcomm::rdma {
namespace {

// The maximum number of cached memory regions. Each may split a mapping of the process in three,
// and the kernel limits the number of mappings.
constexpr size_t kMaxKept = 1024;
constexpr int kRemote = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

std::string lock_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return fmt::format("{} KiB", limit.rlim_cur >> 10);
}

uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

Result<ibv_mr*> register_memory(const Verbs& verbs, ibv_pd* pd, void* address, uint64_t length,
                                int access) {
  ibv_mr* mr = verbs.reg_mr(pd, address, length, access);
  if (mr != nullptr) return mr;
  const int error = errno;
  if (error == ENOMEM || error == EAGAIN) {
    return Status(
        Code::kOutOfResources,
        fmt::format("rdma: {} bytes cannot be registered: {}; RLIMIT_MEMLOCK is {}; raise "
                    "it ('ulimit -l unlimited', memlock in limits.conf, LimitMEMLOCK in a "
                    "service)",
                    length, std::strerror(error), lock_limit()));
  }
  return Status(
      error == EFAULT ? Code::kInvalidArgument : Code::kOutOfResources,
      fmt::format("rdma: {} bytes cannot be registered: {}", length, std::strerror(error)));
}

MemoryRegionCache::MemoryRegionCache(const Verbs& verbs, ibv_pd* pd, uint64_t limit_bytes,
                                     bool strict, Log& log)
    : verbs_(verbs), pd_(pd), log_(log), limit_bytes_(limit_bytes), strict_(strict) {
  if (limit_bytes == 0) return;
  Result<std::unique_ptr<MemoryMonitor>> monitor = MemoryMonitor::create();
  if (monitor.ok()) {
    monitor_ = std::move(monitor).value();
  } else {
    log_.info(
        "rdma: memory is registered anew for each operation, since its end would go unnoticed: {}",
        monitor.status().text());
  }
}

MemoryRegionCache::~MemoryRegionCache() {
  for (List* list : {&all_, &idle_}) {
    for (MemoryRegion& region : *list) (void)verbs_.dereg_mr(region.mr_);
  }
  for (auto& [begin, device] : devices_) (void)verbs_.dereg_mr(device->whole.mr_);
}

MemoryRange MemoryRegionCache::pages_of(const MemoryRegion::Id& id) {
  const uint64_t page = page_bytes();
  return {id.address / page * page, (id.address + id.length + page - 1) / page * page};
}

Result<MemoryRegion*> MemoryRegionCache::acquire(const void* address, uint64_t length, int access) {
  const MemoryRegion::Id id{reinterpret_cast<uint64_t>(address), length, access};
  Attached* const device = devices_.empty() ? nullptr : find_device(address, length);
  if (device != nullptr && (access & kRemote) == 0) {
    ++device->whole.users_;
    return &device->whole;
  }
  if (strict_ && (access & kRemote) != 0) return add(id, device, false);
  if (MemoryRegion* known = use(id); known != nullptr) return known;
  return add(id, device, begin_keeping(id, device));
}

Result<MemoryRegion*> MemoryRegionCache::acquire_part(const iovec& whole, const iovec& part,
                                                      int access) {
  const bool all = part.iov_len == whole.iov_len;
  if (all || (!devices_.empty() && find_device(whole.iov_base, whole.iov_len) != nullptr)) {
    return acquire(whole.iov_base, whole.iov_len, access);
  }
  const MemoryRegion::Id id{reinterpret_cast<uint64_t>(whole.iov_base), whole.iov_len, access};
  if (MemoryRegion* known = use(id); known != nullptr) return known;
  if (whole.iov_len <= most_bytes_ && begin_keeping(id, nullptr)) {
    Result<MemoryRegion*> made = add(id, nullptr, true);
    if (made.ok()) return made;
    if (made.status().code() == Code::kOutOfResources) most_bytes_ = whole.iov_len - 1;
  }
  return add({reinterpret_cast<uint64_t>(part.iov_base), part.iov_len, access}, nullptr, false);
}

MemoryRegion* MemoryRegionCache::use(const MemoryRegion::Id& id) {
  MemoryRegion* known = find(id);
  if (known != nullptr && known->users_++ == 0) {
    all_.splice(all_.begin(), idle_, known->self_);
  }
  return known;
}

// Returns whether a memory region created now should be cached. If so, host memory is already
// watched, so a later loss is noticed. Running out of memory is not an error: the memory region is
// then not cached.
bool MemoryRegionCache::begin_keeping(const MemoryRegion::Id& id, const Attached* device) {
  if (id.length > limit_bytes_ || (device == nullptr && monitor_ == nullptr)) return false;
  try {
    if (device == nullptr && !monitor_->watch(pages_of(id))) return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  trim(id.length);
  if (known_.size() < kMaxKept && cached_bytes_ + id.length <= limit_bytes_) return true;
  if (device == nullptr) monitor_->unwatch(pages_of(id));
  return false;
}

Result<MemoryRegion*> MemoryRegionCache::add(const MemoryRegion::Id& id, const Attached* device,
                                             bool keep) {
  try {
    return try_add(id, device, keep);
  } catch (const std::bad_alloc&) {
    if (keep) stop_keeping(id, device);
    throw;
  }
}

// Reverts begin_keeping() if no memory region was created.
void MemoryRegionCache::stop_keeping(const MemoryRegion::Id& id, const Attached* device) {
  known_.erase(id);
  if (device == nullptr) monitor_->unwatch(pages_of(id));
}

Result<MemoryRegion*> MemoryRegionCache::try_add(const MemoryRegion::Id& id, const Attached* device,
                                                 bool keep) {
  // Allocates everything first: nothing may fail after the device has registered the memory.
  List own(1);
  MemoryRegion& region = own.front();
  region.self_ = own.begin();
  region.id_ = id;
  if (keep) known_.emplace(id, &region);
  Result<Registered> made = make(id, device);
  if (!made.ok() && !idle_.empty()) {
    // Idle memory regions may have exhausted the limit.
    while (!idle_.empty()) forget(idle_.back());
    made = make(id, device);
  }
  if (!made.ok()) {
    if (keep) stop_keeping(id, device);
    return made.status();
  }
  region.mr_ = made->mr;
  region.shift_ = made->address - id.address;
  region.users_ = 1;
  region.cached_ = keep;
  region.watched_ = keep && device == nullptr;
  if (keep) cached_bytes_ += id.length;
  all_.splice(all_.begin(), own);
  return &region;
}

// Returns a cached memory region for the memory that is currently mapped; nullptr if there is none.
MemoryRegion* MemoryRegionCache::find(const MemoryRegion::Id& id) {
  auto found = known_.find(id);
  const bool settled = found == known_.end() || !found->second->watched_ || monitor_->settle();
  if (monitor_ && monitor_->anything_lost()) {
    forget_lost();
    found = known_.find(id);
  }
  if (found == known_.end()) return nullptr;
  if (settled) return found->second;
  forget(*found->second);
  return nullptr;
}

void MemoryRegionCache::release(MemoryRegion* region) {
  if (--region->users_ > 0) return;
  if (region->cached_) {
    idle_.splice(idle_.begin(), all_, region->self_);
    return;
  }
  end(*region, all_);
}

bool MemoryRegionCache::revoke(MemoryRegion* region) {
  if (region->users_ > 1 || verbs_.dereg_mr(region->mr_) != 0) return false;
  if (region->cached_) {
    known_.erase(region->id_);
    cached_bytes_ -= region->id_.length;
  }
  drop(*region, all_);
  return true;
}

// Removes |region| from the cache. The next acquire() of its range creates a new region; |region|
// lives as long as it is used.
void MemoryRegionCache::forget(MemoryRegion& region) {
  known_.erase(region.id_);
  cached_bytes_ -= region.id_.length;
  region.cached_ = false;
  if (region.users_ == 0) end(region, idle_);
}

void MemoryRegionCache::end(MemoryRegion& region, List& list) {
  (void)verbs_.dereg_mr(region.mr_);
  drop(region, list);
}

// Removes |region| after the device has released it.
void MemoryRegionCache::drop(MemoryRegion& region, List& list) {
  if (region.watched_) monitor_->unwatch(pages_of(region.id_));
  list.erase(region.self_);
}

void MemoryRegionCache::forget_lost() {
  MemoryMonitor::Lost lost;
  monitor_->take(lost);
  // Losses are reported only once, so nothing here may fail.
  for (auto at = known_.begin(); at != known_.end();) {
    MemoryRegion& region = *at->second;
    const MemoryRange pages = pages_of((at++)->first);
    const bool hit =
        lost.all || std::any_of(lost.ranges.begin(), lost.ranges.begin() + lost.count,
                                [&](const MemoryRange& range) {
                                  return range.begin < pages.end && pages.begin < range.end;
                                });
    if (hit) forget(region);
  }
}

void MemoryRegionCache::trim(uint64_t room_bytes) {
  while (!idle_.empty() &&
         (known_.size() >= kMaxKept || cached_bytes_ + room_bytes > limit_bytes_)) {
    forget(idle_.back());
  }
}

// --- device memory ---------------------------------------------------------------------------

Result<Registered> MemoryRegionCache::make(const MemoryRegion::Id& id, const Attached* device) {
  if (device != nullptr) {
    const DeviceRange& range = device->range;
    Result<Registered> made = register_device_memory(
        verbs_, pd_, device->way, range.device, range.address,
        id.address - reinterpret_cast<uint64_t>(range.placeholder), id.length, id.access);
    if (!made.ok()) return made.status().annotate("rdma");
    return made;
  }
  Result<ibv_mr*> mr =
      register_memory(verbs_, pd_, reinterpret_cast<void*>(id.address), id.length, id.access);
  if (!mr.ok()) return mr.status();
  return Registered{mr.value(), id.address};
}

bool MemoryRegionCache::may_copy(const Status& why, Extents extents) {
  if (why.code() != Code::kOutOfResources || has_device(extents)) return false;
  if (!std::exchange(told_of_copying_, true)) {
    log_.warn("{}; such memory goes through message buffers, which takes longer", why.text());
  }
  return true;
}

Result<Registered> MemoryRegionCache::register_alone(const void* address, uint64_t length,
                                                     int access) {
  return make({reinterpret_cast<uint64_t>(address), length, access}, find_device(address, length));
}

MemoryRegionCache::Attached* MemoryRegionCache::find_device(const void* address,
                                                            uint64_t length) const {
  const auto begin = reinterpret_cast<uint64_t>(address);
  auto at = devices_.upper_bound(begin);
  if (at == devices_.begin()) return nullptr;
  --at;
  const uint64_t inside = begin - at->first;
  const uint64_t size = at->second->range.length;
  return inside <= size && length <= size - inside ? at->second.get() : nullptr;
}

bool MemoryRegionCache::has_device(Extents extents) const {
  return !devices_.empty() && std::any_of(extents.begin(), extents.end(), [&](const iovec& each) {
    return find_device(each.iov_base, each.iov_len) != nullptr;
  });
}

Status MemoryRegionCache::attach(const DeviceRange& range, DeviceWay way) {
  auto device = std::make_unique<Attached>();
  device->range = range;
  device->way = way;
  MemoryRegion& whole = device->whole;
  whole.id_ = {reinterpret_cast<uint64_t>(range.placeholder), range.length, IBV_ACCESS_LOCAL_WRITE};
  // Records the range first, so that nothing can fail after the device has registered it.
  const auto at = devices_.emplace(whole.id_.address, std::move(device)).first;
  const auto taken_back = [&](Status why) {
    devices_.erase(at);
    return why;
  };
  try {
    Result<Registered> made = make(whole.id_, at->second.get());
    if (!made.ok()) return taken_back(made.status());
    whole.mr_ = made->mr;
    whole.shift_ = made->address - whole.id_.address;
    whole.users_ = 1;  // keeps the count above zero
  } catch (const std::bad_alloc&) {
    return taken_back(Code::kOutOfMemory);
  }
  return {};
}

void MemoryRegionCache::detach(const std::byte* placeholder) {
  const auto at = devices_.find(reinterpret_cast<uint64_t>(placeholder));
  if (at == devices_.end()) return;
  for (auto each = known_.begin(); each != known_.end();) {
    const MemoryRegion::Id& id = each->first;
    MemoryRegion& region = *each->second;
    ++each;
    if (find_device(reinterpret_cast<void*>(id.address), id.length) == at->second.get()) {
      forget(region);
    }
  }
  (void)verbs_.dereg_mr(at->second->whole.mr_);
  devices_.erase(at);
}

}  // namespace hetcomm::rdma
