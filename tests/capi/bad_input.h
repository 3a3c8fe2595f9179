// Tests of bad input: a table of calls that must each be refused.
//
// A refused call returns a negative status (the named one if the API promises it), sets the text of
// its library's last error, leaves outputs unchanged, and does not affect the next call.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include <hetcomm/hetcomm.h>

#include "tests/support/local_bootstrap.h"

namespace hetcomm_test {

// Output memory, filled with a pattern. Two outputs of one call are in different halves.
class Outputs {
 public:
  Outputs() { std::memset(bytes_, kPattern, sizeof(bytes_)); }
  template <typename T>
  T* first() {
    static_assert(sizeof(T) <= kHalf);
    return reinterpret_cast<T*>(bytes_);
  }
  template <typename T>
  T* second() {
    static_assert(sizeof(T) <= kHalf);
    return reinterpret_cast<T*>(bytes_ + kHalf);
  }
  bool untouched() const {
    for (const unsigned char byte : bytes_) {
      if (byte != kPattern) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kHalf = 512;
  static constexpr unsigned char kPattern = 0xa5;
  alignas(std::max_align_t) unsigned char bytes_[2 * kHalf];
};

constexpr hetcomm_status_t kAnyFailure = 0;

struct BadCall {
  const char* what;
  hetcomm_status_t expected;
  std::function<hetcomm_status_t(Outputs&)> call;
};

inline void expect_refused(const std::vector<BadCall>& calls,
                           const char* (*last_error)() = hetcomm_last_error) {
  for (const BadCall& bad : calls) {
    Outputs outputs;
    const hetcomm_status_t status = bad.call(outputs);
    EXPECT_LT(status, 0) << bad.what;
    if (bad.expected != kAnyFailure) {
      EXPECT_EQ(status, bad.expected)
          << bad.what << ": " << hetcomm_status_name(status) << ": " << last_error();
    }
    EXPECT_STRNE(last_error(), "") << bad.what;
    EXPECT_TRUE(outputs.untouched()) << bad.what;
  }
}

// Sizes that no version of any options struct ever had.
constexpr size_t kWrongSizes[] = {0, 1, sizeof(size_t) - 1};

// A context and a communicator with one rank. Both must still work after the table has run.
class BadInput : public testing::Test {
 protected:
  BadInput() : rank_(store_, 0, 1, "DEVICES=sim-handle:memory=1M,sim-address:memory=1M") {}

  void SetUp() override { ASSERT_TRUE(rank_.ok()); }
  void TearDown() override {
    if (rank_.ok()) expect_message_to_self_arrives();
  }

  hetcomm_context_t* context() const { return rank_.context(); }
  hetcomm_bootstrap_t* bootstrap() const { return rank_.bootstrap(); }
  hetcomm_communicator_t* communicator() const { return rank_.communicator(); }

  void expect_message_to_self_arrives() {
    uint64_t sent = 0x1122334455667788;
    uint64_t received = 0;
    hetcomm_request_t* requests[2] = {};
    ASSERT_EQ(hetcomm_recv(communicator(), 0, 1, HETCOMM_EXACT_TAG,
                           hetcomm_buffer_host(&received, sizeof(received)), nullptr, &requests[0]),
              HETCOMM_OK)
        << hetcomm_last_error();
    ASSERT_EQ(hetcomm_send(communicator(), 0, 1, hetcomm_buffer_host(&sent, sizeof(sent)), nullptr,
                           &requests[1]),
              HETCOMM_OK)
        << hetcomm_last_error();
    for (hetcomm_request_t* const request : requests) {
      hetcomm_completion_t completion{};
      ASSERT_EQ(hetcomm_request_wait(request, UINT64_C(10'000'000'000), &completion), HETCOMM_OK);
      EXPECT_EQ(completion.status, HETCOMM_OK) << completion.text;
    }
    EXPECT_EQ(received, sent);
  }

  LocalStore store_;
  Rank rank_;
};

}  // namespace hetcomm_test
