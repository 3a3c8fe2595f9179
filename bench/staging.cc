#include "bench/staging.h"

#include <algorithm>

#include "bench/hetcomm_backend.h"
#include "bench/loops/loops.h"

namespace bench {
namespace {

// Measures like the bandwidth test, and each rank's own time of a copy if its memory is on a
// device.
Measurement measure_point(const Session& session, hetcomm_communicator_t* communicator,
                          const Work& work, const Point& point, double* copy_us) {
  Workload workload = work.workload;
  workload.test = "bandwidth";
  HetcommBackend backend(session, communicator, work);
  Loops<HetcommBackend> loops(backend, workload);
  Measurement measurement = loops.measure(point);
  if (copy_us == nullptr || backend.rank() > 1) return measurement;
  const double chunk = backend.staged_chunk_bytes();
  // One after the other, so that neither's copies disturb the other's.
  if (backend.rank() == 1) {
    backend.receive_word(0);
    backend.send_word(0, backend.copy_us(workload.seconds));
    backend.send_word(0, chunk);
  } else {
    *copy_us = backend.copy_us(workload.seconds);
    backend.send_word(1, 0);
    *copy_us = std::max(*copy_us, backend.receive_word(1));
    // The smaller ones, where the sides differ.
    const double theirs = backend.receive_word(1);
    measurement.chunk_bytes = chunk == 0 || (theirs > 0 && theirs < chunk) ? theirs : chunk;
  }
  return measurement;
}

}  // namespace

void run_staging(const Session& session, hetcomm_communicator_t* communicator, const Work& work,
                 const std::function<void(const Measurement&)>& report) {
  Work on_host = work;
  on_host.first_memory = on_host.second_memory = "host";
  for (const Point& point : work.workload.points) {
    const Measurement wire = measure_point(session, communicator, on_host, point, nullptr);
    double copy_us = 0;
    Measurement both = measure_point(session, communicator, work, point, &copy_us);
    both.wire_us = wire.total_us / static_cast<double>(wire.iterations);
    both.copy_us = copy_us;
    if (session.rank() == 0) report(both);
  }
}

}  // namespace bench
