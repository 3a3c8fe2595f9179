// One rank in the failover tests: two ranks that use only the C ABI, receive orders from
// failover_test.py on standard input, and report results line by line.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>

namespace hetcomm::test {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Prints one line immediately.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);
// Prints "FAILED ..." and ends the process.
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
void check(hetcomm_status_t status, const char* what);
#define CHECK(call) ::hetcomm::test::check((call), #call)

uint64_t mix(uint64_t value);
// Fills memory with bytes that depend on |seed| and on their position.
void fill(std::byte* bytes, uint64_t length, uint64_t seed);
// Returns the offset of the first wrong byte, or |length| if all are right.
uint64_t mismatch(const std::byte* bytes, uint64_t length, uint64_t seed);
// Describes the mismatch: its position, length and contents, and whether it becomes correct after a
// moment.
std::string explain_mismatch(const std::byte* bytes, uint64_t length, uint64_t seed);

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15); }
  uint64_t below(uint64_t bound) { return next() % bound; }

 private:
  uint64_t state_;
};
// Returns a size from |least| to |most|, usually a small one.
uint64_t random_size(Random& random, uint64_t least, uint64_t most);

// The test's orders to this rank while it runs.
struct Orders {
  std::atomic<bool> stop{false};
  std::atomic<bool> ended{false};  // the test has ended
};

class Rank {
 public:
  Rank();
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  int peer() const { return 1 - rank_; }
  hetcomm_communicator_t* world() { return world_; }
  Orders& orders() { return orders_; }

  // Library memory that the other rank may access, and the other rank's window of the same size.
  struct Window {
    std::byte* bytes = nullptr;
    hetcomm_memory_t* memory = nullptr;
    hetcomm_remote_memory_t* remote = nullptr;
  };
  // Opens a window with |size| bytes, allocated by the library. Collective.
  Window open_window(uint64_t size);
  void close_window(Window& window);

  hetcomm_request_t* send(uint64_t tag, const void* data, uint64_t size);
  hetcomm_request_t* receive(uint64_t tag, void* data, uint64_t size);
  hetcomm_completion_t wait(hetcomm_request_t* request);
  // Waits for |request| and fails the process unless it succeeded.
  void finish(hetcomm_request_t* request, const char* what);
  void barrier();

  std::vector<hetcomm_counters_t> counters();
  // Prints one line "COUNTERS ..." per transport.
  void say_counters();

 private:
  void obey();

  hetcomm_context_t* context_ = nullptr;
  hetcomm_bootstrap_t* bootstrap_ = nullptr;
  hetcomm_communicator_t* world_ = nullptr;
  int rank_ = 0;
  Orders orders_;
};

// The scenarios:
void play_mix(Rank& rank, uint64_t seed, uint64_t least_puts);
void play_bulk(Rank& rank, const std::string& how, uint64_t size);
void play_cut_off(Rank& rank);
void play_compute(Rank& rank, double seconds);

}  // namespace hetcomm::test
