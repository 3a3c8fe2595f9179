#include "bench/memcpy.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench/loops/buffers.h"
#include "bench/loops/samples.h"

namespace bench {
namespace {

// SharedMemory maps an in-memory file. Another process fills the file first, as the owner of
// exposed memory would.
class SharedMemory {
 public:
  explicit SharedMemory(uint64_t size) : size_(static_cast<size_t>(size)) {
    const int file = memfd_create("hetcomm_bench", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) give_up();
    const pid_t owner = fork();
    if (owner < 0) give_up();
    if (owner == 0) {
      std::memset(map(file), 1, size_);
      _exit(0);
    }
    waitpid(owner, nullptr, 0);
    address_ = map(file);
    close(file);
  }
  ~SharedMemory() { munmap(address_, size_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  void* address() const { return address_; }

 private:
  [[noreturn]] static void give_up() {
    std::perror("hetcomm_bench: no shared memory");
    std::exit(1);
  }
  void* map(int file) const {
    void* address = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (address == MAP_FAILED) give_up();
    return address;
  }

  size_t size_;
  void* address_ = nullptr;
};

void copy_windows(const HostBuffers& buffers, int window, int64_t iterations) {
  for (int64_t i = 0; i < iterations; i += window) {
    for (int slot = 0; slot < window; ++slot) {
      std::memcpy(buffers.receive_slot(slot), buffers.send_slot(slot),
                  static_cast<size_t>(buffers.bytes()));
      // Keeps the compiler from removing the copies, which nothing reads.
      __asm__ volatile("" ::: "memory");
    }
  }
}

double timed(const HostBuffers& buffers, int window, int64_t iterations) {
  const int64_t started = now_ns();
  copy_windows(buffers, window, iterations);
  return static_cast<double>(now_ns() - started) * 1e-9;
}

int64_t choose_iterations(const HostBuffers& buffers, const Workload& workload, int window) {
  if (workload.iterations > 0) return (workload.iterations + window - 1) / window * window;
  for (int64_t iterations = window;; iterations *= 4) {
    double seconds = timed(buffers, window, iterations);
    // Takes the faster of two passes, since an interruption could make a short pass look long
    // enough.
    if (seconds >= workload.seconds / 8)
      seconds = std::min(seconds, timed(buffers, window, iterations));
    if (seconds < workload.seconds / 8) continue;
    const double windows = workload.seconds / seconds * static_cast<double>(iterations) / window;
    return (static_cast<int64_t>(windows) + 1) * window;
  }
}

Measurement measure_point(const Workload& workload, const Point& point) {
  std::unique_ptr<SharedMemory> shared;
  HostBuffers buffers;
  if (is_one_sided(workload.test)) {
    const Exposed exposed = workload.test == "get_bandwidth" ? Exposed::kSend : Exposed::kReceive;
    shared = std::make_unique<SharedMemory>(SlotMemory::size(point.bytes, point.window));
    buffers.prepare(point.bytes, point.window, exposed, shared->address());
  } else {
    buffers.prepare(point.bytes, point.window);
  }
  Measurement measurement;
  measurement.point = point;
  measurement.iterations = choose_iterations(buffers, workload, point.window);
  measurement.messages = measurement.iterations;
  measurement.total_us = timed(buffers, point.window, measurement.iterations) * 1e6;
  return measurement;
}

}  // namespace

int run_memcpy(const Workload& workload) {
  for (const Point& point : workload.points) {
    std::puts(encode(measure_point(workload, point)).c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace bench
