// Runs a whole workload over one back end.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "bench/loops/collectives.h"
#include "bench/loops/loops.h"
#include "bench/loops/one_sided.h"

namespace bench {

template <class Loops, class Backend, class Report>
void run_points(Backend& backend, const Workload& workload, Report report) {
  Loops loops(backend, workload);
  for (const Point& point : workload.points) {
    const Measurement measurement = loops.measure(point);
    if (backend.rank() == 0) report(measurement);
  }
}

// Measures all points of |workload| in every process. Rank 0 passes its results to |report|. Exits
// the process if the back end lacks the operations of the test.
template <class Backend, class Report>
void run_workload(Backend& backend, const Workload& workload, Report report) {
  if constexpr (Backend::kOneSided) {
    if (is_one_sided(workload.test))
      return run_points<OneSidedLoops<Backend>>(backend, workload, report);
  }
  if (is_one_sided(workload.test)) {
    std::fputs("hetcomm_bench: no one-sided operations here\n", stderr);
    std::exit(1);
  }
  if constexpr (Backend::kCollectives) {
    if (find_collective(workload.test) != nullptr) {
      return run_points<CollectiveLoops<Backend>>(backend, workload, report);
    }
  }
  if (find_collective(workload.test) != nullptr) {
    std::fputs("hetcomm_bench: no collective operations here\n", stderr);
    std::exit(1);
  }
  run_points<Loops<Backend>>(backend, workload, report);
}

}  // namespace bench
