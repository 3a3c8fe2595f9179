#include "bench/post.h"

#include <algorithm>

#include "bench/hetcomm_backend.h"

namespace bench {
namespace {

// Number of posts that wait behind one receive. A stream accepts only a limited number.
constexpr int kPostsAtOnce = 100;

}  // namespace

void run_post(const tools::Session& session, hetcomm_communicator_t* communicator, const Work& work,
              const std::function<void(const Measurement&)>& report) {
  const int64_t iterations = work.workload.iterations > 0 ? work.workload.iterations : 2000;
  HetcommBackend backend(session, communicator, work);
  for (const Point& point : work.workload.points) {
    backend.prepare(point.bytes, 1);
    Samples warmup(kPostsAtOnce, 1);
    backend.measure_posts(kPostsAtOnce, &warmup);
    Samples samples(iterations, 1);
    for (int64_t done = 0; done < iterations; done += kPostsAtOnce) {
      backend.measure_posts(static_cast<int>(std::min<int64_t>(kPostsAtOnce, iterations - done)),
                            &samples);
    }
    if (session.rank() != 0) continue;
    Measurement measurement;
    measurement.point = point;
    measurement.iterations = measurement.messages = iterations;
    measurement.total_us = samples.mean() * static_cast<double>(iterations);
    measurement.path = backend.path();
    samples.summarize(&measurement);
    report(measurement);
  }
}

}  // namespace bench
