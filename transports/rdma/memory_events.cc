#include "transports/rdma/memory_events.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include <fmt/core.h>

#include "src/net/fork_guard.h"
#include "src/system/clock.h"
#include "src/system/signals_blocked.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace hetcomm::rdma {
namespace {

constexpr uint64_t kFeatures =
    UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;

UniqueFd open_events() {
  const long fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  return UniqueFd(static_cast<int>(fd));
}

constexpr int kTryMs = 1000;

bool comes(int fd) {
  pollfd waiting{fd, POLLIN, 0};
  return poll(&waiting, 1, kTryMs) == 1;
}

template <typename Body>
Status start_thread(std::thread& thread, Body body) {
  try {
    const SignalsBlocked blocked;
    thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return status_of_no_thread("memory events", error);
  } catch (const std::bad_alloc&) {
    return Code::kOutOfMemory;
  }
  return {};
}

struct Pages {
  explicit Pages(size_t bytes) : size(bytes) {
    void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    begin = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  ~Pages() {
    if (begin != nullptr) munmap(begin, size);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* begin;
  const size_t size;
};

// Taker removes memory in a separate thread. It maps new pages over the memory, so that other
// mappings cannot occupy the addresses.
struct Taker {
  Status start(std::byte* begin, size_t bytes) {
    page = begin;
    return start_thread(thread, [begin, bytes] {
      (void)!mmap(begin, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    });
  }
  // Waits until the memory is removed. Returns false if that takes longer than kTryMs. While the
  // memory is readable, write() adds its contents to the eventfd |fd|. Afterwards write() fails.
  bool has_taken(int fd) const {
    const uint64_t deadline = deadline_after(now_ns(), uint64_t{kTryMs} * 1'000'000);
    while (write(fd, page, sizeof(uint64_t)) >= 0) {
      if (now_ns() >= deadline) return false;
      sched_yield();
    }
    return true;
  }
  const std::byte* page = nullptr;
  std::thread thread;
};

// Holds the process-wide object. A forked child creates another Holder, since the lock in its copy
// may be held by a thread that does not exist in the child.
struct Holder {
  const pid_t process = getpid();
  Holder* const before;
  std::mutex mutex;
  std::weak_ptr<MemoryEvents> events;
};

Holder& holder() {
  static std::atomic<Holder*> current{nullptr};
  Holder* at = current.load(std::memory_order_acquire);
  if (at != nullptr && at->process == getpid()) return *at;
  auto* fresh = new Holder{.before = at, .mutex = {}, .events = {}};
  if (current.compare_exchange_strong(at, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *at;
}

}  // namespace

Result<std::shared_ptr<MemoryEvents>> MemoryEvents::get() {
  Holder& here = holder();
  const std::lock_guard lock(here.mutex);
  if (std::shared_ptr<MemoryEvents> events = here.events.lock()) return events;
  Result<std::shared_ptr<MemoryEvents>> made = create();
  if (made.ok()) here.events = made.value();
  return made;
}

Result<std::shared_ptr<MemoryEvents>> MemoryEvents::create() {
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return status_from_errno(errno, "eventfd");
  auto thread = std::make_unique<std::thread>();
  std::shared_ptr<MemoryEvents> made(new MemoryEvents(std::move(stop)));
  HETCOMM_RETURN_IF_ERROR(made->open());
  HETCOMM_RETURN_IF_ERROR(made->try_out());
  HETCOMM_RETURN_IF_ERROR(start_thread(*thread, [raw = made.get()] { raw->run(); }));
  made->thread_ = std::move(thread);
  return made;
}

MemoryEvents::MemoryEvents(UniqueFd stop) : process_(getpid()), stop_(std::move(stop)) {}

Status MemoryEvents::open() {
  {
    // A child that outlives this process must not keep the descriptor open, since the kernel would
    // wait for it to read the events.
    NoFork no_fork;
    events_ = open_events();
    if (events_.valid()) no_fork.close_in_children(events_.get());
  }
  if (!events_.valid()) return {Code::kUnsupported, "userfaultfd is not allowed here"};
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kFeatures;
  if (ioctl(events_.get(), UFFDIO_API, &api) != 0 || (api.features & kFeatures) != kFeatures) {
    return {Code::kUnsupported, "userfaultfd has no events here"};
  }
  return {};
}

// Closes the descriptor and stops the thread. Nothing is watched at this point.
MemoryEvents::~MemoryEvents() {
  if (process_ != getpid()) {
    // The thread belongs to another process, and the descriptor was closed when this process was
    // forked.
    (void)thread_.release();
    (void)events_.release();
    return;
  }
  if (events_.valid()) close_events();
}

void MemoryEvents::close_events() {
  NoFork no_fork;
  no_fork.forget(events_.get());
  if (thread_ == nullptr) {
    events_.reset();
    return;
  }
  const uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));
  thread_->join();
}

bool MemoryEvents::watch(const MemoryRange& range) {
  const std::lock_guard lock(watched_mutex_);
  watched_.push_back(range);
  uffdio_register request{};
  request.range = {range.begin, range.end - range.begin};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  // A range that is already watched is registered again, since its pages may have changed.
  if (ioctl(events_.get(), UFFDIO_REGISTER, &request) == 0) return true;
  watched_.pop_back();
  return false;
}

void MemoryEvents::unwatch(const MemoryRange& range) {
  if (process_ != getpid()) return;
  const std::lock_guard lock(watched_mutex_);
  const auto at = std::find(watched_.begin(), watched_.end(), range);
  if (at == watched_.end()) return;
  *at = watched_.back();
  watched_.pop_back();
  let_go(range, 0);
}

// Stops watching the parts of |range| that no range from index |from| onward covers.
void MemoryEvents::let_go(const MemoryRange& range, size_t from) {
  for (size_t i = from; i < watched_.size(); ++i) {
    const MemoryRange& other = watched_[i];
    if (other.begin >= range.end || range.begin >= other.end) continue;
    if (range.begin < other.begin) let_go({range.begin, other.begin}, i + 1);
    if (other.end < range.end) let_go({other.end, range.end}, i + 1);
    return;
  }
  uffdio_range request{range.begin, range.end - range.begin};
  (void)ioctl(events_.get(), UFFDIO_UNREGISTER, &request);
}

bool MemoryEvents::changing() const {
  // The request is empty, so it changes nothing. The kernel first checks for changes in progress,
  // and reports them as EAGAIN.
  uffdio_writeprotect nothing{};
  const bool again = ioctl(events_.get(), UFFDIO_WRITEPROTECT, &nothing) != 0 && errno == EAGAIN;
  std::atomic_thread_fence(std::memory_order_acquire);
  return again;
}

// Tests whether changing() is reliable. Before version 5.15, Linux lost track of one pending call
// when another call ended. In this test two threads remove one page each while no thread reads
// events.
Status MemoryEvents::try_out() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Pages pages(2 * page);
  if (pages.begin == nullptr) return Code::kOutOfResources;
  const auto first = reinterpret_cast<uint64_t>(pages.begin);
  const Status failed(Code::kUnsupported, "userfaultfd does not report changes that are under way");
  std::array<Taker, 2> takers;
  const auto try_it = [&]() -> Status {
    if (!watch({first, first + 2 * page})) return failed;
    if (changing()) return failed;
    // The first thread is blocked until its event is read. Once has_taken() returns true, the
    // second thread has removed its page.
    HETCOMM_RETURN_IF_ERROR(takers[0].start(pages.begin, page));
    if (!comes(events_.get()) || !changing()) return failed;
    HETCOMM_RETURN_IF_ERROR(takers[1].start(pages.begin + page, page));
    if (!takers[1].has_taken(stop_.get())) return failed;
    for (size_t left = takers.size(); left > 0; --left) {
      uffd_msg message{};
      if (!comes(events_.get()) || !changing()) return failed;
      if (read(events_.get(), &message, sizeof(message)) != sizeof(message)) return failed;
      takers[message.arg.remove.start == first ? 0 : 1].thread.join();
    }
    return changing() ? failed : Status();
  };
  Status status(Code::kOutOfMemory);
  try {
    status = try_it();
  } catch (const std::bad_alloc&) {
    // |status| is already kOutOfMemory. The threads that were started are joined below.
  }
  // Closing the descriptor releases the threads that wait for their events to be read, so they can
  // be joined.
  if (!status.ok()) close_events();
  for (Taker& taker : takers) {
    if (taker.thread.joinable()) taker.thread.join();
  }
  if (status.ok()) unwatch({first, first + 2 * page});
  return status;
}

uint64_t MemoryEvents::count() {
  const std::lock_guard lock(lost_mutex_);
  return lost_count_;
}

void MemoryEvents::take(uint64_t& taken, MemoryMonitor::Lost& out) {
  const std::lock_guard lock(lost_mutex_);
  out.count = 0;
  out.all = lost_count_ - taken > lost_.size();
  for (; !out.all && taken < lost_count_; ++taken) {
    out.ranges[out.count++] = lost_[taken % lost_.size()];
  }
  taken = lost_count_;
}

void MemoryEvents::run() {
  pthread_setname_np(pthread_self(), "hetcomm-memory");
  while (true) {
    std::array<pollfd, 2> waiting = {{{events_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) {
      // A thread that unmaps memory waits for this thread, so this thread must not stop.
      const timespec pause = {.tv_sec = 0, .tv_nsec = 1'000'000};
      nanosleep(&pause, nullptr);
      waiting[0].revents = POLLIN;
    }
    if (waiting[0].revents != 0) read_events();
    if (waiting[1].revents != 0) break;
  }
  uint64_t count = 0;
  // Reads the request to stop, so that everything before the request is visible here.
  (void)!read(stop_.get(), &count, sizeof(count));
  // Releases every thread that waits for an event to be read. No thread can wait after this.
  events_.reset();
}

void MemoryEvents::read_events() {
  std::array<uffd_msg, 16> messages;
  sequence_.fetch_add(1, std::memory_order_seq_cst);
  // From here on, blocked callers of munmap can continue.
  const ssize_t got = read(events_.get(), messages.data(), sizeof(messages));
  const size_t count = got > 0 ? static_cast<size_t>(got) / sizeof(uffd_msg) : 0;
  {
    const std::lock_guard lock(lost_mutex_);
    const auto add = [this](uint64_t begin, uint64_t end) {
      lost_[lost_count_++ % lost_.size()] = {begin, end};
    };
    for (size_t i = 0; i < count; ++i) {
      const uffd_msg& message = messages[i];
      if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE) {
        add(message.arg.remove.start, message.arg.remove.end);
      } else if (message.event == UFFD_EVENT_REMAP) {
        add(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
        add(message.arg.remap.to, message.arg.remap.to + message.arg.remap.len);
      }
    }
  }
  sequence_.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace hetcomm::rdma
