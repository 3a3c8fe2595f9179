#include "transports/rdma/registration_cache.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

namespace hetcomm::rdma {
namespace {

// Of kept registrations; each may split a mapping of the process in three.
constexpr size_t kMostKept = 1024;

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

RegistrationCache::RegistrationCache(const Verbs& verbs, ibv_pd* pd, uint64_t limit_bytes, Log& log)
    : verbs_(verbs), pd_(pd), limit_bytes_(limit_bytes) {
  if (limit_bytes == 0) return;
  Result<std::unique_ptr<MemoryMonitor>> monitor = MemoryMonitor::create();
  if (monitor.ok()) {
    monitor_ = std::move(monitor).value();
  } else {
    log.info("rdma: registrations are not kept: {}", monitor.status().text());
  }
}

RegistrationCache::~RegistrationCache() {
  for (List* list : {&all_, &idle_}) {
    for (Registration& registration : *list) (void)verbs_.dereg_mr(registration.mr_);
  }
}

MemoryRange RegistrationCache::pages_of(const Registration::Id& id) {
  const uint64_t page = page_bytes();
  return {id.address / page * page, (id.address + id.length + page - 1) / page * page};
}

Result<Registration*> RegistrationCache::acquire(const void* address, uint64_t length, int access) {
  const Registration::Id id{reinterpret_cast<uint64_t>(address), length, access};
  if (monitor_) {
    if (monitor_->anything_lost()) forget_lost();
    if (const auto found = known_.find(id); found != known_.end()) {
      Registration& registration = *found->second;
      if (registration.users_++ == 0) all_.splice(all_.begin(), idle_, registration.self_);
      return &registration;
    }
  }
  // Watched first: what is lost from now on is noticed.
  bool keep = false;
  if (monitor_ && length <= limit_bytes_) {
    trim(length);
    keep = known_.size() < kMostKept && cached_bytes_ + length <= limit_bytes_ &&
           monitor_->watch(pages_of(id));
  }
  Result<ibv_mr*> mr = register_memory(verbs_, pd_, const_cast<void*>(address), length, access);
  if (!mr.ok() && !idle_.empty()) {
    // What is kept for nobody may be what the limit is full of.
    while (!idle_.empty()) drop(idle_.back());
    mr = register_memory(verbs_, pd_, const_cast<void*>(address), length, access);
  }
  if (!mr.ok()) return mr.status();
  Registration& registration = all_.emplace_front();
  registration.self_ = all_.begin();
  registration.id_ = id;
  registration.mr_ = mr.value();
  registration.users_ = 1;
  registration.cached_ = keep;
  if (keep) {
    known_.emplace(id, &registration);
    cached_bytes_ += length;
  }
  return &registration;
}

void RegistrationCache::release(Registration* registration) {
  if (--registration->users_ > 0) return;
  if (registration->cached_) {
    idle_.splice(idle_.begin(), all_, registration->self_);
    return;
  }
  (void)verbs_.dereg_mr(registration->mr_);
  all_.erase(registration->self_);
}

bool RegistrationCache::revoke(Registration* registration) {
  if (registration->users_ > 1) return false;
  const bool watched = registration->cached_;
  const MemoryRange pages = pages_of(registration->id_);
  if (watched) {
    known_.erase(registration->id_);
    cached_bytes_ -= registration->id_.length;
  }
  (void)verbs_.dereg_mr(registration->mr_);
  all_.erase(registration->self_);
  if (watched) unwatch_alone(pages);
  return true;
}

// The next acquire() of the same range makes a new one; this one lives as long as it is used.
void RegistrationCache::forget(Registration& registration) {
  known_.erase(registration.id_);
  cached_bytes_ -= registration.id_.length;
  registration.cached_ = false;
  if (registration.users_ > 0) return;
  (void)verbs_.dereg_mr(registration.mr_);
  idle_.erase(registration.self_);
}

void RegistrationCache::forget_lost() {
  MemoryMonitor::Lost lost;
  monitor_->take(lost);
  std::vector<Registration*> gone;
  for (const auto& [id, registration] : known_) {
    const MemoryRange pages = pages_of(id);
    const bool hit =
        lost.all || std::any_of(lost.ranges.begin(), lost.ranges.begin() + lost.count,
                                [&](const MemoryRange& range) {
                                  return range.begin < pages.end && pages.begin < range.end;
                                });
    if (hit) gone.push_back(registration);
  }
  for (Registration* registration : gone) forget(*registration);
}

void RegistrationCache::trim(uint64_t room_bytes) {
  while (!idle_.empty() &&
         (known_.size() >= kMostKept || cached_bytes_ + room_bytes > limit_bytes_)) {
    drop(idle_.back());
  }
}

// Ends an idle one whose memory is still there.
void RegistrationCache::drop(Registration& registration) {
  const MemoryRange pages = pages_of(registration.id_);
  forget(registration);
  unwatch_alone(pages);
}

void RegistrationCache::unwatch_alone(const MemoryRange& pages) {
  const bool shared = std::any_of(known_.begin(), known_.end(), [&](const auto& entry) {
    const MemoryRange other = pages_of(entry.first);
    return other.begin < pages.end && pages.begin < other.end;
  });
  if (!shared) monitor_->unwatch(pages);
}

}  // namespace hetcomm::rdma
