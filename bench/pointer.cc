#include "bench/pointer.h"

#include "bench/loops/samples.h"

namespace bench {
namespace {

constexpr int kCallsOfSample = 1000;

// Pointed allocates memory on a device or on the host, and provides a pointer to it.
class Pointed {
 public:
  Pointed(hetcomm_context_t* context, int32_t device, uint64_t bytes) {
    tools::require(hetcomm_memory_allocate(context, device, bytes, &memory_), "allocating");
    tools::require(hetcomm_memory_address(memory_, &pointer_), "asking for an address");
  }
  Pointed(const Pointed&) = delete;
  Pointed& operator=(const Pointed&) = delete;
  ~Pointed() { static_cast<void>(hetcomm_memory_destroy(memory_)); }
  const void* get() const { return pointer_; }

 private:
  hetcomm_memory_t* memory_ = nullptr;
  void* pointer_ = nullptr;
};

void find(hetcomm_context_t* context, const void* pointer, uint64_t bytes) {
  for (int i = 0; i < kCallsOfSample; ++i) {
    hetcomm_buffer_t buffer;
    tools::require(hetcomm_buffer_pointer(context, pointer, bytes, &buffer), "finding a pointer");
  }
}

}  // namespace

void run_pointer(const tools::Session& session, const Work& work,
                 const std::function<void(const Measurement&)>& report) {
  if (session.rank() != 0) return;
  const int64_t iterations = work.workload.iterations > 0 ? work.workload.iterations : 500;
  for (const Point& point : work.workload.points) {
    const Pointed memory(session.context(), session.find_device(work.first_memory), point.bytes);
    find(session.context(), memory.get(), point.bytes);
    Samples samples(iterations, 1);
    for (int64_t i = 0; i < iterations; ++i) {
      samples.start();
      find(session.context(), memory.get(), point.bytes);
      samples.stop();
    }
    Measurement measurement;
    measurement.point = point;
    measurement.iterations = measurement.messages = iterations;
    measurement.total_us = samples.mean() * static_cast<double>(iterations);
    samples.summarize(&measurement);
    report(measurement);
  }
}

}  // namespace bench
