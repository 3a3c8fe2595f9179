// A whole plan over one back end.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "bench/loops/collectives.h"
#include "bench/loops/loops.h"
#include "bench/loops/one_sided.h"

namespace bench {

template <class Loops, class Backend, class Report>
void run_points(Backend& backend, const Plan& plan, Report report) {
  Loops loops(backend, plan);
  for (const Point& point : plan.points) {
    const Measurement measurement = loops.measure(point);
    if (backend.rank() == 0) report(measurement);
  }
}

// What every process does: all points of |plan|, the results of rank 0 given to |report|. One-sided
// and collective tests only where the back end has such operations.
template <class Backend, class Report>
void run_plan(Backend& backend, const Plan& plan, Report report) {
  if constexpr (Backend::kOneSided) {
    if (is_one_sided(plan.test)) return run_points<OneSidedLoops<Backend>>(backend, plan, report);
  }
  if (is_one_sided(plan.test)) {
    std::fputs("hetcomm_bench: no one-sided operations here\n", stderr);
    std::exit(1);
  }
  if constexpr (Backend::kCollectives) {
    if (find_collective(plan.test) != nullptr) {
      return run_points<CollectiveLoops<Backend>>(backend, plan, report);
    }
  }
  if (find_collective(plan.test) != nullptr) {
    std::fputs("hetcomm_bench: no collective operations here\n", stderr);
    std::exit(1);
  }
  run_points<Loops<Backend>>(backend, plan, report);
}

}  // namespace bench
