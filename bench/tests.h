// Defines the names of the tests, and the default sizes, window and ranks of each test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

struct TestDefaults {
  const char* test;
  uint64_t first_bytes;
  uint64_t last_bytes;
  double factor;
  double factor_compared;
  uint64_t last_bytes_compared;
  int window;
  int ranks;
};
const TestDefaults& defaults_of(const std::string& test);

// Returns the tests that |word| stands for, or none if it is unknown.
std::vector<std::string> tests_of(const std::string& word);
// Returns all words that tests_of() accepts.
std::vector<std::string> known_tests();

// Returns whether the test measures a whole job instead of sizes. Such a test is measured alone.
bool measures_job(const std::string& test);
// Returns the tests, other than collective ones, whose operations can be ordered in a stream.
std::vector<std::string> stream_tests();
// The test whose works always use a stream.
inline constexpr const char* kPost = "post_latency";

}  // namespace bench
