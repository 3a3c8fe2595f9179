#include "bench/probe.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#include "bench/loops/samples.h"
#include "tools/common/launch.h"

namespace bench {
namespace {

constexpr double kNearUs = 0.12;
constexpr double kFarUs = 0.37;
constexpr uint64_t kBatch = 2000;
constexpr int kBatches = 25;
constexpr int64_t kLimitNs = 100000000;
constexpr uint64_t kStop = ~uint64_t{0};

struct Lines {
  alignas(128) std::atomic<uint64_t> there{0};
  alignas(128) std::atomic<uint64_t> back{0};
};

void bind_to(int cpu) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  CPU_SET(static_cast<size_t>(cpu), &cpus);
  sched_setaffinity(0, sizeof cpus, &cpus);
}

[[noreturn]] void answer(Lines* lines, int cpu) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  bind_to(cpu);
  for (uint64_t next = 1;; ++next) {
    uint64_t seen = 0;
    while ((seen = lines->there.load(std::memory_order_acquire)) < next) {
    }
    if (seen == kStop) _exit(0);
    lines->back.store(next, std::memory_order_release);
  }
}

// Returns the one-way time of the fastest of several batches, since interrupts and other load only
// add time. Stops after kLimitNs with the best time so far.
double ask(Lines* lines) {
  const int64_t started = now_ns();
  double best = kUnknown;
  uint64_t next = 1;
  for (int batch = 0; batch < kBatches; ++batch) {
    const int64_t batch_started = now_ns();
    for (const uint64_t end = next + kBatch; next < end; ++next) {
      lines->there.store(next, std::memory_order_release);
      for (uint64_t spins = 1; lines->back.load(std::memory_order_acquire) != next; ++spins) {
        if (spins % 4096 == 0 && now_ns() - started > kLimitNs) return best;
      }
    }
    const double time = static_cast<double>(now_ns() - batch_started) * 1e-3 / (2.0 * kBatch);
    best = std::isnan(best) ? time : std::min(best, time);
  }
  return best;
}

}  // namespace

double probe_hand_over_us() {
  const std::vector<int> cpus = tools::usable_cpus();
  if (cpus.size() < 2) return kUnknown;
  void* memory =
      mmap(nullptr, sizeof(Lines), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return kUnknown;
  Lines* lines = new (memory) Lines;
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  double result = kUnknown;
  const pid_t child = fork();
  if (child == 0) answer(lines, cpus[1]);
  if (child > 0) {
    bind_to(cpus[0]);
    result = ask(lines);
    lines->there.store(kStop, std::memory_order_release);
    sched_setaffinity(0, sizeof allowed, &allowed);
    waitpid(child, nullptr, 0);
  }
  munmap(memory, sizeof(Lines));
  return result;
}

const char* placement_of(double hand_over_us) {
  if (std::isnan(hand_over_us)) return "unknown";
  if (hand_over_us < kNearUs) return "near";
  return hand_over_us < kFarUs ? "far" : "remote";
}

const char* placement_between(double before_us, double after_us) {
  const char* before = placement_of(before_us);
  return std::strcmp(before, placement_of(after_us)) == 0 ? before : "mixed";
}

}  // namespace bench
