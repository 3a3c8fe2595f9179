// While device copies run and nothing else is pending, the progress thread sleeps. A slow device
// therefore uses hardly more processor time than the same messages in host memory. The thread wakes
// up in time.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "tests/conformance/capi/device/device.h"
#include "tests/conformance/capi/job.h"
#include "tests/support/progress_threads.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kSize = 32u << 20;
constexpr double kRate = 250e6;  // bytes per second of the device

std::vector<CapiCase> cases() {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp"}) {
    all.push_back({.name = transport,
                   .transports = transport,
                   .settings = "DEVICES=sim-handle:bandwidth=250M;",
                   .thread_progress = true,
                   .processes = true});
  }
  return all;
}

class TimedCopiesAsleep : public CapiTest {};

// Returns the total running time of this process's progress threads, in seconds.
double progress_seconds() {
  double seconds = 0;
  for (const auto& thread : hetcomm::test::progress_threads()) {
    uint64_t ran_ns = 0;
    if (std::ifstream(thread / "schedstat") >> ran_ns) {
      seconds += static_cast<double>(ran_ns) * 1e-9;
    }
  }
  return seconds;
}

struct Cost {
  double took_s = 0;
  double ran_s = 0;
};

// Sends one message from rank 0's |memory| to rank 1's host memory. The waiting thread sleeps.
Cost move(Member& me, hetcomm_buffer_t buffer) {
  me.meet_quietly();
  const double ran = progress_seconds();
  const auto begin = std::chrono::steady_clock::now();
  hetcomm_request_t* const request = start_move(me, buffer);
  // A waiting caller would poll for a while. Here only the progress thread makes progress.
  hetcomm_status_t status = HETCOMM_PENDING;
  hetcomm_completion_t completion{};
  for (int i = 0; i < 20'000 && status == HETCOMM_PENDING; ++i) {
    usleep(1000);
    status = hetcomm_request_test(request, &completion);
  }
  EXPECT_EQ(status, HETCOMM_OK);
  EXPECT_EQ(completion.status, HETCOMM_OK);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return {took.count(), progress_seconds() - ran};
}

TEST_P(TimedCopiesAsleep, ProgressThreadSleepsDuringDeviceCopies) {
  run(2, [](Member& me) {
    DeviceMemory memory(me, me.rank() == 0 ? 1 : HETCOMM_DEVICE_HOST, kSize);
    std::vector<std::byte> host(kSize);
    memory.fill(pattern(kSize, 1));
    // The first messages include all one-time work.
    Cost on_device;
    Cost on_host;
    for (int round = 0; round < 3; ++round) {
      on_device = move(me, memory.part(0, kSize));
      on_host = move(me, hetcomm_buffer_host(host.data(), kSize));
    }
    const double more = (on_device.ran_s - on_host.ran_s) / on_device.took_s;
    const double ideal_s = static_cast<double>(kSize) / kRate;
    if (std::getenv("HETCOMM_TEST_PRINT") != nullptr) {
      printf("rank %d: %.1f ms of %.1f, processor %.1f ms (host: %.1f): %.1f %%\n", me.rank(),
             on_device.took_s * 1e3, ideal_s * 1e3, on_device.ran_s * 1e3, on_host.ran_s * 1e3,
             more * 100);
    }
    EXPECT_LT(more, 0.25) << "of a core beside what the wire takes";
    EXPECT_LT(on_device.took_s, 2 * ideal_s);
    EXPECT_TRUE(holds(memory.contents(), 1, kSize));
  });
}

INSTANTIATE_TEST_SUITE_P(Over, TimedCopiesAsleep, ::testing::ValuesIn(cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
