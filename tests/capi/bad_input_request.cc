// Bad input to request calls: null and stale handles, in every call that takes one.
#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kPatience = UINT64_C(10'000'000'000);

class BadRequest : public BadInput {
 protected:
  // Expects every call that takes a request to refuse |request| with |expected|.
  void expect_handle_refused(const char* what, hetcomm_request_t* request,
                             hetcomm_status_t expected) {
    SCOPED_TRACE(what);
    expect_refused({
        {"test", expected,
         [&](Outputs& out) {
           return hetcomm_request_test(request, out.first<hetcomm_completion_t>());
         }},
        {"test without record", expected,
         [&](Outputs&) { return hetcomm_request_test(request, nullptr); }},
        {"wait", expected,
         [&](Outputs& out) {
           return hetcomm_request_wait(request, HETCOMM_TIMEOUT_POLL,
                                       out.first<hetcomm_completion_t>());
         }},
        {"wait without end", expected,
         [&](Outputs& out) {
           return hetcomm_request_wait(request, HETCOMM_TIMEOUT_INFINITE,
                                       out.first<hetcomm_completion_t>());
         }},
        {"wait_any", request == nullptr ? HETCOMM_INVALID_ARGUMENT : expected,
         [&](Outputs& out) {
           return hetcomm_request_wait_any(1, &request, HETCOMM_TIMEOUT_POLL, out.first<size_t>(),
                                           out.second<hetcomm_completion_t>());
         }},
        {"cancel", expected, [&](Outputs&) { return hetcomm_request_cancel(request); }},
        {"start", expected, [&](Outputs&) { return hetcomm_request_start(request); }},
    });
    if (request != nullptr) {
      expect_refused(
          {{"release", expected, [&](Outputs&) { return hetcomm_request_destroy(request); }}});
    }
  }

  // Returns a receive that matches no send.
  hetcomm_request_t* pending() {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_recv(communicator(), 0, 77, HETCOMM_EXACT_TAG,
                           hetcomm_buffer_host(bytes_, sizeof(bytes_)), nullptr, &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  hetcomm_request_t* prepared() {
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes_, sizeof(bytes_));
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_recv_prepare(communicator(), 0, 78, HETCOMM_EXACT_TAG, &buffer, 1, nullptr,
                                   &request),
              HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  static void end(hetcomm_request_t* request) {
    EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK) << hetcomm_last_error();
    hetcomm_completion_t completion{};
    EXPECT_EQ(hetcomm_request_wait(request, kPatience, &completion), HETCOMM_OK);
    EXPECT_EQ(completion.status, HETCOMM_CANCELLED);
  }

  char bytes_[16] = {};
};

TEST_F(BadRequest, NullRequestIsRefusedExceptByDestroy) {
  EXPECT_EQ(hetcomm_request_destroy(nullptr), HETCOMM_OK);
  expect_handle_refused("null", nullptr, HETCOMM_INVALID_ARGUMENT);
}

TEST_F(BadRequest, RequestIsStaleOnceItsCompletionIsReported) {
  hetcomm_request_t* const request = pending();
  end(request);
  expect_handle_refused("reported", request, HETCOMM_STALE_HANDLE);
}

TEST_F(BadRequest, DestroyedRequestIsStale) {
  hetcomm_request_t* const idle = prepared();
  ASSERT_EQ(hetcomm_request_destroy(idle), HETCOMM_OK) << hetcomm_last_error();
  expect_handle_refused("released", idle, HETCOMM_STALE_HANDLE);
}

// Reusing a slot does not revive the old handle.
TEST_F(BadRequest, StaleHandleStaysStaleWhenItsSlotIsReused) {
  std::vector<hetcomm_request_t*> old;
  for (int i = 0; i < 300; ++i) {
    hetcomm_request_t* const request = pending();
    for (hetcomm_request_t* const other : old) ASSERT_NE(request, other);
    end(request);
    old.push_back(request);
  }
  hetcomm_request_t* const current = pending();
  for (hetcomm_request_t* const request : old) {
    EXPECT_EQ(hetcomm_request_test(request, nullptr), HETCOMM_STALE_HANDLE);
    EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_STALE_HANDLE);
    EXPECT_EQ(hetcomm_request_destroy(request), HETCOMM_STALE_HANDLE);
  }
  EXPECT_EQ(hetcomm_request_test(current, nullptr), HETCOMM_PENDING);
  end(current);
}

TEST_F(BadRequest, StartingAnUnpreparedRequestIsRefused) {
  hetcomm_request_t* const request = pending();
  expect_refused({{"start", HETCOMM_INVALID_ARGUMENT,
                   [&](Outputs&) { return hetcomm_request_start(request); }}});
  EXPECT_EQ(hetcomm_request_test(request, nullptr), HETCOMM_PENDING);
  end(request);
}

TEST_F(BadRequest, StartingARunningRequestIsRefused) {
  hetcomm_request_t* const request = prepared();
  ASSERT_EQ(hetcomm_request_start(request), HETCOMM_OK) << hetcomm_last_error();
  expect_refused(
      {{"start", HETCOMM_BUSY, [&](Outputs&) { return hetcomm_request_start(request); }}});
  end(request);
  EXPECT_EQ(hetcomm_request_start(request), HETCOMM_OK) << hetcomm_last_error();
  end(request);
  EXPECT_EQ(hetcomm_request_destroy(request), HETCOMM_OK);
}

TEST_F(BadRequest, WaitAnyWithInvalidListsIsRefused) {
  hetcomm_request_t* const nothing[3] = {};
  hetcomm_request_t* const request = pending();
  hetcomm_request_t* const some[2] = {nullptr, request};
  expect_refused({
      {"all null", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_request_wait_any(3, nothing, HETCOMM_TIMEOUT_INFINITE, out.first<size_t>(),
                                         out.second<hetcomm_completion_t>());
       }},
      {"none", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_request_wait_any(0, some, HETCOMM_TIMEOUT_INFINITE, out.first<size_t>(),
                                         out.second<hetcomm_completion_t>());
       }},
      {"no list", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_request_wait_any(1, nullptr, HETCOMM_TIMEOUT_INFINITE, out.first<size_t>(),
                                         out.second<hetcomm_completion_t>());
       }},
      {"no index", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_request_wait_any(2, some, HETCOMM_TIMEOUT_POLL, nullptr,
                                         out.second<hetcomm_completion_t>());
       }},
      {"not yet", HETCOMM_TIMED_OUT,
       [&](Outputs& out) {
         return hetcomm_request_wait_any(2, some, HETCOMM_TIMEOUT_POLL, out.first<size_t>(),
                                         out.second<hetcomm_completion_t>());
       }},
  });
  end(request);
}

TEST_F(BadRequest, RequestSurvivesAWaitThatTimesOut) {
  hetcomm_request_t* const request = pending();
  expect_refused({{"wait", HETCOMM_TIMED_OUT, [&](Outputs& out) {
                     return hetcomm_request_wait(request, 1'000'000,
                                                 out.first<hetcomm_completion_t>());
                   }}});
  expect_refused({{"communicator in use", HETCOMM_BUSY,
                   [&](Outputs&) { return hetcomm_communicator_destroy(communicator()); }}});
  end(request);
}

}  // namespace
}  // namespace hetcomm_test
