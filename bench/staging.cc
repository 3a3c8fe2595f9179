#include "bench/staging.h"

#include <time.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "bench/hetcomm_backend.h"
#include "bench/loops/collectives.h"
#include "bench/loops/loops.h"

namespace bench {
namespace {

// Measures the average number of processors that this process has used since the object was
// created.
class ProcessorShare {
 public:
  double value() const {
    return static_cast<double>(processor_ns() - processor_begin_) /
           static_cast<double>(now_ns() - begin_);
  }

 private:
  static int64_t processor_ns() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  }

  const int64_t begin_ = now_ns();
  const int64_t processor_begin_ = processor_ns();
};

// A Stage holds the times of one stage, measured alone. They cover both ranks on rank 0, and only
// this rank elsewhere.
struct Stage {
  double us = 0;            // per message, on the slower side
  double processor_us = 0;  // per message, of all threads
};

// On rank 0, returns the longer time of both ranks and the sum of their processor times. On rank 1,
// returns |own|.
Stage of_both(HetcommBackend& backend, const Stage& own) {
  if (backend.rank() == 1) {
    backend.send_word(0, own.us);
    backend.send_word(0, own.processor_us);
    return own;
  }
  const double theirs = backend.receive_word(1);
  return {.us = std::max(own.us, theirs),
          .processor_us = own.processor_us + backend.receive_word(1)};
}

// Returns the test that runs with staged memory: "bandwidth", or a collective operation.
std::string staged_test(std::string_view test) {
  constexpr std::string_view kPrefix = "staged_";
  return test.starts_with(kPrefix) ? std::string(test.substr(kPrefix.size())) : "bandwidth";
}

// Returns the smallest parts of a buffer that |rank| must copy in one operation of |test|.
CopyShares shares_of(const std::string& test, int rank, int ranks) {
  const double part = 1.0 / ranks;
  if (test == "allreduce") return {.to_host = 1, .from_host = 1};
  if (test == "allgather") return {.to_host = part, .from_host = 1};
  return {.to_host = rank == 0 ? 1.0 : 0.0, .from_host = rank == 0 ? 0.0 : 1.0};
}

Measurement measure_operation(HetcommBackend& backend, const Workload& workload,
                              const Point& point) {
  return find_collective(workload.test) != nullptr
             ? CollectiveLoops<HetcommBackend>(backend, workload).measure(point)
             : Loops<HetcommBackend>(backend, workload).measure(point);
}

// Measures the operation on host memory, where nothing is staged.
Stage measure_wire(HetcommBackend& backend, const Workload& workload, const Point& point) {
  const ProcessorShare share;
  const Measurement measurement = measure_operation(backend, workload, point);
  if (backend.rank() > 1) return {};
  // Combines only processor times: rank 0's measurement covers both ranks' time.
  const Stage shares = of_both(backend, {.us = 0, .processor_us = share.value()});
  const double us = measurement.total_us / static_cast<double>(measurement.iterations);
  return {.us = us, .processor_us = us * shares.processor_us};
}

// Measures each rank's own copies, if its memory is on a device.
Stage measure_copies(HetcommBackend& backend, const Workload& workload) {
  const auto own = [&] {
    const ProcessorShare share;
    const double us = backend.slots().copy_us(
        workload.seconds, shares_of(workload.test, backend.rank(), backend.ranks()));
    return Stage{.us = us, .processor_us = us * share.value()};
  };
  // Measures one rank after the other, so that their copies do not disturb each other.
  if (backend.rank() == 1) {
    backend.receive_word(0);
    return of_both(backend, own());
  }
  const Stage mine = own();
  backend.send_word(1, 0);
  return of_both(backend, mine);
}

// On rank 0, returns the smaller chunk size of both ranks, ignoring sizes of 0. On rank 1, returns
// |chunk|.
double chunk_of_both(HetcommBackend& backend, double chunk) {
  if (backend.rank() == 1) {
    backend.send_word(0, chunk);
    return chunk;
  }
  const double theirs = backend.receive_word(1);
  return chunk == 0 || (theirs > 0 && theirs < chunk) ? theirs : chunk;
}

}  // namespace

void run_staging(const tools::Session& session, hetcomm_communicator_t* communicator,
                 const Work& work, const std::function<void(const Measurement&)>& report) {
  Work on_host = work;
  on_host.first_memory = on_host.second_memory = "host";
  Workload workload = work.workload;
  workload.test = staged_test(work.workload.test);
  for (const Point& point : work.workload.points) {
    const Stage wire = [&] {
      HetcommBackend backend(session, communicator, on_host);
      return measure_wire(backend, workload, point);
    }();
    HetcommBackend backend(session, communicator, work);
    Measurement both = measure_operation(backend, workload, point);
    if (session.rank() > 1) continue;
    both.chunk_bytes = chunk_of_both(backend, backend.traffic().staged_chunk_bytes());
    const Stage copies = measure_copies(backend, workload);
    both.wire_us = wire.us;
    both.copy_us = copies.us;
    both.processor_us = wire.processor_us + copies.processor_us;
    if (session.rank() == 0) report(both);
  }
}

}  // namespace bench
