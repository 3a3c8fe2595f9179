// The progress thread serves callers that compute, and does not disturb callers that soon wait.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "tests/conformance/capi/job.h"
#include "tests/support/progress_threads.h"

namespace hetcomm_test {
namespace {

using Clock = std::chrono::steady_clock;

// Binds each rank and its progress thread to a separate processor if there are enough.
void stay_on_one_processor(int32_t rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  int left = rank % CPU_COUNT(&allowed);
  for (size_t i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed) == 0 || left-- > 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(i, &own);
    EXPECT_EQ(sched_setaffinity(0, sizeof(own), &own), 0);
    return;
  }
}

std::vector<CapiCase> cases() {
  std::vector<CapiCase> all;
  for (const char* transport : {"shm", "tcp"}) {
    all.push_back({.name = transport,
                   .transports = transport,
                   .settings = kOperationTimeout,
                   .thread_progress = true,
                   .processes = true,
                   .prepare = stay_on_one_processor});
  }
  return all;
}

class Background : public CapiTest {};
class TimedBackground : public CapiTest {};

// Returns how often the progress threads of this process have gone to sleep.
uint64_t sleeps() {
  uint64_t all = 0;
  for (const auto& thread : hetcomm::test::progress_threads()) {
    std::ifstream status(thread / "status");
    std::string word;
    while (status >> word && word != "voluntary_ctxt_switches:") {
      status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    uint64_t count = 0;
    if (status >> count) all += count;
  }
  return all;
}

void compute(std::chrono::nanoseconds time) {
  for (const auto end = Clock::now() + time; Clock::now() < end;) {
  }
}

// Makes |operations| collective operations, and computes for |time| before and after each wait.
// Returns how often the progress thread has gone to sleep, for each operation.
double sleeps_of(Member& me, int operations, std::chrono::nanoseconds time) {
  EXPECT_TRUE(me.meet());
  const uint64_t before = sleeps();
  for (int i = 0; i < operations; ++i) {
    uint64_t mine = 1;
    uint64_t sum = 0;
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_allreduce(me.communicator(), hetcomm_buffer_host(&mine, sizeof(mine)),
                                hetcomm_buffer_host(&sum, sizeof(sum)), HETCOMM_UINT64,
                                HETCOMM_REDUCE_SUM, nullptr, &request),
              HETCOMM_OK);
    compute(time);
    EXPECT_EQ(finish(request).status, HETCOMM_OK);
    EXPECT_EQ(sum, 2u);
    compute(time);
  }
  return static_cast<double>(sleeps() - before) / operations;
}

// A caller in Python computes a little before and after each wait. The progress thread has to serve
// a caller that computes for long, and wakes up for each of its operations.
TEST_P(TimedBackground, ThreadWakesLessOftenIfTheCallerWaitsSoon) {
  run(2, [](Member& me) {
    std::vector<double> soon;
    std::vector<double> late;
    for (int round = 0; round < 7; ++round) {
      soon.push_back(sleeps_of(me, 4000, std::chrono::microseconds(8)));
      late.push_back(sleeps_of(me, 100, std::chrono::microseconds(400)));
    }
    std::sort(soon.begin(), soon.end());
    std::sort(late.begin(), late.end());
    const double median = late[late.size() / 2];
    if (std::getenv("HETCOMM_TEST_PRINT") != nullptr) {
      printf("rank %d: %.3f to %.3f, median %.3f; late %.3f to %.3f, median %.3f\n", me.rank(),
             soon.front(), soon.back(), soon[soon.size() / 2], late.front(), late.back(), median);
    }
    EXPECT_LT(soon.front(), 0.5 * median) << "times that it went to sleep for each operation";
  });
}

// Rank 0's progress thread parks, because rank 0 polls until this message comes.
void let_it_park(Member& me) {
  uint64_t value = 1;
  if (me.rank() == 0) {
    EXPECT_EQ(finish(me.recv(1, 3, &value, sizeof(value))).status, HETCOMM_OK);
  } else {
    usleep(5000);
    EXPECT_EQ(finish(me.send(0, 3, &value, sizeof(value))).status, HETCOMM_OK);
    usleep(5000);  // rank 0 continues with its next step
  }
}

// A rank's memory, which the other rank accesses.
class Reached {
 public:
  Reached(Member& me, int32_t owner, uint32_t access) : me_(me) {
    std::vector<std::byte> exported(HETCOMM_EXPORT_MAX_BYTES);
    size_t size = exported.size();
    if (me.rank() == owner) {
      EXPECT_EQ(hetcomm_memory_allocate(me.context(), HETCOMM_DEVICE_HOST, 4096, &memory_),
                HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_register(memory_, me.communicator(), access, 0), HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_export(memory_, exported.size(), exported.data(), &size),
                HETCOMM_OK);
      EXPECT_EQ(finish(me.send(me.partner(), 1, exported.data(), size)).status, HETCOMM_OK);
    } else {
      size = finish(me.recv(owner, 1, exported.data(), size)).bytes_received;
    }
    EXPECT_EQ(hetcomm_memory_import(me.communicator(), exported.data(), size, &remote_),
              HETCOMM_OK);
  }
  Reached(const Reached&) = delete;
  Reached& operator=(const Reached&) = delete;
  ~Reached() {
    EXPECT_EQ(hetcomm_remote_memory_destroy(remote_), HETCOMM_OK);
    EXPECT_TRUE(me_.meet());
    if (memory_ == nullptr) return;
    EXPECT_EQ(hetcomm_memory_unregister(memory_, kPatienceNs), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK);
  }

  void read() {
    uint64_t word = 0;
    hetcomm_request_t* request = nullptr;
    ASSERT_EQ(hetcomm_get(remote_, 0, hetcomm_buffer_host(&word, sizeof(word)), nullptr, &request),
              HETCOMM_OK);
    ASSERT_EQ(finish(request).status, HETCOMM_OK);
  }

 private:
  Member& me_;
  hetcomm_memory_t* memory_ = nullptr;
  hetcomm_remote_memory_t* remote_ = nullptr;
};

// Rank 0 reads mapped memory until rank 1 is done. Each read ends immediately and makes no
// progress.
void wait_at_once(Member& me, Reached& mapped) {
  const uint64_t deadline = clock_ns() + kPatienceNs;
  while (me.store().word(0) == 0 && clock_ns() < deadline) mapped.read();
  EXPECT_EQ(me.store().word(0), 1u);
}

TEST_P(Background, ThreadCompletesAReceiveDuringOtherWaits) {
  constexpr uint64_t kSize = 8u << 20;
  run(2, [](Member& me) {
    Reached mapped(me, 1, HETCOMM_ACCESS_ALL);
    std::vector<std::byte> data(kSize);
    if (me.rank() == 1) {
      data = pattern(kSize, 1);
      let_it_park(me);
      EXPECT_EQ(finish(me.send(0, 1, data.data(), kSize)).status, HETCOMM_OK);
      me.store().word(0) = 1;
    } else {
      hetcomm_request_t* const receive = me.recv(1, 1, data.data(), kSize);
      let_it_park(me);
      wait_at_once(me, mapped);
      EXPECT_EQ(finish(receive).status, HETCOMM_OK);
      EXPECT_TRUE(holds(data, 1, kSize));
    }
  });
}

// Nothing is pending at the rank whose memory the other rank reads.
TEST_P(Background, ThreadServesAPeerWhileTheCallerWaits) {
  run(2, [](Member& me) {
    Reached mapped(me, 1, HETCOMM_ACCESS_ALL);
    Reached reached(me, 0, HETCOMM_ACCESS_GET);  // peers do not map it
    let_it_park(me);
    if (me.rank() == 0) {
      wait_at_once(me, mapped);
    } else {
      for (int i = 0; i < 300; ++i) reached.read();
      me.store().word(0) = 1;
    }
  });
}

// Everything except mapped memory requires rank 0's help here.
INSTANTIATE_TEST_SUITE_P(Over, Background,
                         ::testing::Values(CapiCase{.name = "shm",
                                                    .transports = "shm",
                                                    .settings = "SHM_BULK=copy;TIMEOUT=10s;",
                                                    .thread_progress = true,
                                                    .processes = true}),
                         capi_case_name);
INSTANTIATE_TEST_SUITE_P(Over, TimedBackground, ::testing::ValuesIn(cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
