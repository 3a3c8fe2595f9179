// Shared by the suites of collective operations: element buffers, each rank's elements, and checks
// of how an operation ends.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {

template <typename T>
hetcomm_buffer_t buffer(const std::vector<T>& values) {
  return hetcomm_buffer_host(values.data(), values.size() * sizeof(T));
}
template <typename T>
hetcomm_buffer_t part(const std::vector<T>& values, size_t first, size_t count) {
  return hetcomm_buffer_host(values.data() + first, count * sizeof(T));
}

inline hetcomm_collective_options_t no_options() {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  return options;
}

// Expects that the call was accepted and that the operation has ended with OK. |request| is a
// reference because the call, which may be made in the same expression, sets it.
inline void expect_ok(hetcomm_status_t call, hetcomm_request_t* const& request, const char* what) {
  ASSERT_EQ(call, HETCOMM_OK) << what << ": " << hetcomm_last_error();
  const Outcome outcome = finish(request);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << what << ": " << outcome.text;
}

inline int64_t value(int32_t rank, size_t index) {
  return static_cast<int64_t>(rank + 1) * 1'000'003 + static_cast<int64_t>(index) * 17;
}
inline std::vector<int64_t> values(int32_t rank, size_t count) {
  std::vector<int64_t> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = value(rank, i);
  return all;
}
inline int64_t sum(int32_t ranks, size_t index) {
  int64_t total = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) total += value(rank, index);
  return total;
}

// Runs barriers for some seconds until one fails. A rank that already had everything it needs may
// complete well before it learns of a failure.
inline Outcome first_failure(hetcomm_communicator_t* communicator) {
  const uint64_t start = clock_ns();
  Outcome outcome;
  do {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_barrier(communicator, nullptr, &request), HETCOMM_OK);
    outcome = finish(request);
  } while (outcome.status == HETCOMM_OK && clock_ns() - start < 5 * kSec);
  EXPECT_LT(clock_ns() - start, 5 * kSec);
  return outcome;
}

}  // namespace hetcomm_test
