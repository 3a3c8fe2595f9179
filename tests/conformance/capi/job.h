// Shared by the C API suites: the cases they run over, and jobs. A job is some ranks that all run
// one function, as threads of this process (a context each) or as processes.
//
//   run_job(4, [](Member& me) { ... hetcomm_send(me.communicator(), ...) ... });
//
// Only <hetcomm/...> is used. Every wait here has a limit, and HETCOMM_TIMEOUT gives every
// operation a deadline, so that a defect shows as a failure.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/hetcomm.h>

#include "tests/support/pattern.h"
#include "tests/support/shared_store.h"

namespace hetcomm_test {

using hetcomm::test::all_bytes;
using hetcomm::test::fill_bytes;
using hetcomm::test::fill_pattern;
using hetcomm::test::find_mismatch;
using hetcomm::test::Random;

inline constexpr uint64_t kMs = 1'000'000;
inline constexpr uint64_t kSec = 1'000'000'000;
// The longest time that a test waits for something that should happen at once.
inline constexpr uint64_t kPatienceNs = 20 * kSec;
inline constexpr const char* kOperationTimeout = "TIMEOUT=10s;BOOTSTRAP_TIMEOUT=25s;";

struct CapiCase {
  std::string name;
  std::string transports;
  std::string settings;
  bool thread_progress = false;
  bool processes = false;
  int clusters = 0;  // clusters to which the ranks claim to belong, in turn; 0: none
  // Each process calls this before it does anything else. Process jobs only.
  std::function<void(int32_t rank)> prepare{};
  hetcomm_log_function_t log = nullptr;  // with the rank as user data

  // "self" has one rank only.
  bool alone() const { return transports == "self"; }
};
inline void PrintTo(const CapiCase& test_case, std::ostream* out) { *out << test_case.name; }

std::vector<CapiCase> all_cases();
// Returns one plain case per transport and mode, for suites whose subject does not depend on
// protocols.
std::vector<CapiCase> plain_cases();
std::vector<CapiCase> process_cases();
std::string capi_case_name(const ::testing::TestParamInfo<CapiCase>& info);

// The outcome of an operation, with its own copy of the text.
struct Outcome {
  hetcomm_status_t call = HETCOMM_INTERNAL;  // result of the wait
  hetcomm_status_t status = HETCOMM_INTERNAL;
  int32_t source = -2;
  uint64_t tag = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  std::string text;
};

// One rank: context, bootstrap, communicator.
class Member {
 public:
  Member(SharedStore& store, const CapiCase& test_case, int32_t rank, int32_t size);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member();

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  bool ok() const { return communicator_ != nullptr; }
  hetcomm_context_t* context() const { return context_; }
  hetcomm_communicator_t* communicator() const { return communicator_; }
  SharedStore& store() { return store_; }
  const CapiCase& test_case() const { return case_; }
  // Returns the rank to talk to: the other rank of two, or this rank if it is alone.
  int32_t partner() const { return size_ == 1 ? 0 : rank_ ^ 1; }

  // Waits until all ranks have called meet(). Sends nothing over hetcomm, but drives it. Returns
  // false if some rank never arrives.
  bool meet();
  // Like meet(), but does not drive hetcomm: arriving messages wait unless a thread takes them.
  bool meet_quietly();
  // Waits for a condition that another rank brings about without using hetcomm.
  bool until(const std::function<bool()>& done, uint64_t limit_ns = kPatienceNs);
  // Returns a bootstrap over the part of the store named |name|. Each set of ranks needs its own
  // name.
  hetcomm_bootstrap_t* make_bootstrap(const std::string& name, int32_t rank, int32_t size);
  // Ends this process at once. Process jobs only.
  [[noreturn]] void die();
  // Tells the destructor not to expect that the communicator can be destroyed cleanly.
  void expect_ruin() { ruined_ = true; }
  // Releases the communicator to the caller, who destroys it.
  hetcomm_communicator_t* release() {
    hetcomm_communicator_t* released = communicator_;
    communicator_ = nullptr;
    return released;
  }

  // Submits the operation. Returns null and fails the test if it is rejected.
  hetcomm_request_t* send(int32_t to, uint64_t tag, const void* data, uint64_t size,
                          const hetcomm_operation_options_t* options = nullptr);
  hetcomm_request_t* recv(int32_t from, uint64_t tag, void* data, uint64_t size,
                          uint64_t ignore = HETCOMM_EXACT_TAG,
                          const hetcomm_operation_options_t* options = nullptr);

 private:
  SharedStore& store_;
  const CapiCase& case_;
  int32_t rank_;
  int32_t size_;
  uint64_t meetings_ = 0;
  bool ruined_ = false;
  std::list<StoreView> views_;
  hetcomm_context_t* context_ = nullptr;
  hetcomm_bootstrap_t* bootstrap_ = nullptr;
  hetcomm_communicator_t* communicator_ = nullptr;
};

// Starts a message from rank 0's |buffer| to rank 1's. Returns the request for this rank's half.
hetcomm_request_t* start_move(Member& me, hetcomm_buffer_t buffer);
// Waits for the end of the request. If it does not end in time, fails the test and tries to cancel.
Outcome finish(hetcomm_request_t* request, uint64_t limit_ns = 2 * kPatienceNs);
// Waits for a list of requests, each of which must end with OK.
void finish_all(std::vector<hetcomm_request_t*>& requests);

// Expects that receives and sends on |communicator| to and from |peer| are rejected with |status|.
void expect_rejected(hetcomm_communicator_t* communicator, int32_t peer, hetcomm_status_t status);

hetcomm_operation_options_t with_timeout(uint64_t timeout_ns);

// Sends |value| around the ring of |communicator| and checks that it arrives from the neighbour.
void ring(hetcomm_communicator_t* communicator, uint64_t value);

// Memory of this process.
uint64_t resident_bytes();
// True if a sanitizer is in this program.
#if defined(HETCOMM_ASAN) || defined(HETCOMM_TSAN)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Returns a TCP port of the loopback interface on which nothing is listening.
int free_port();

// Runs |body| on every rank of a job of |size| ranks. A rank that fails fails the test.
void run_job(const CapiCase& test_case, int32_t size, const std::function<void(Member&)>& body);

class CapiTest : public ::testing::TestWithParam<CapiCase> {
 protected:
  void SetUp() override;
  void run(int32_t size, const std::function<void(Member&)>& body) {
    run_job(GetParam(), size, body);
  }
  // Two ranks that talk to each other, or one that talks to itself.
  void run_two(const std::function<void(Member&)>& body) {
    run_job(GetParam(), GetParam().alone() ? 1 : 2, body);
  }
};

// Skips the test if the case has only one rank.
#define HETCOMM_NEEDS_RANKS()              \
  if (GetParam().alone()) {                \
    GTEST_SKIP() << "self: one rank only"; \
  }                                        \
  static_assert(true)

// --- bytes -----------------------------------------------------------------------------------

inline std::vector<std::byte> pattern(uint64_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  fill_pattern(bytes, seed);
  return bytes;
}

// Checks that |bytes| start with |length| bytes of pattern |seed|, followed by |background|.
::testing::AssertionResult holds(const std::vector<std::byte>& bytes, uint64_t seed,
                                 uint64_t length, std::byte background = std::byte{0});

}  // namespace hetcomm_test
