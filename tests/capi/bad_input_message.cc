// Bad input to sends, receives, their prepared forms, probes and groups.
#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

using Options = hetcomm_operation_options_t;

// Every function that takes buffers, behind one signature.
struct Submit {
  const char* name;
  bool receives;
  bool vector;  // takes a list of buffers
  hetcomm_status_t (*call)(hetcomm_communicator_t* communicator, int32_t rank,
                           const hetcomm_buffer_t* buffers, size_t count, const Options* options,
                           hetcomm_request_t** out_request);
};

constexpr uint64_t kTag = 5;

constexpr Submit kSubmits[] = {
    {"send", false, false,
     [](hetcomm_communicator_t* c, int32_t rank, const hetcomm_buffer_t* b, size_t,
        const Options* o,
        hetcomm_request_t** out) { return hetcomm_send(c, rank, kTag, *b, o, out); }},
    {"recv", true, false,
     [](hetcomm_communicator_t* c, int32_t rank, const hetcomm_buffer_t* b, size_t,
        const Options* o, hetcomm_request_t** out) {
       return hetcomm_recv(c, rank, kTag, HETCOMM_EXACT_TAG, *b, o, out);
     }},
    {"sendv", false, true,
     [](hetcomm_communicator_t* c, int32_t rank, const hetcomm_buffer_t* b, size_t n,
        const Options* o,
        hetcomm_request_t** out) { return hetcomm_sendv(c, rank, kTag, b, n, o, out); }},
    {"recvv", true, true,
     [](hetcomm_communicator_t* c, int32_t rank, const hetcomm_buffer_t* b, size_t n,
        const Options* o, hetcomm_request_t** out) {
       return hetcomm_recvv(c, rank, kTag, HETCOMM_EXACT_TAG, b, n, o, out);
     }},
    {"send_prepare", false, true,
     [](hetcomm_communicator_t* c, int32_t rank, const hetcomm_buffer_t* b, size_t n,
        const Options* o,
        hetcomm_request_t** out) { return hetcomm_send_prepare(c, rank, kTag, b, n, o, out); }},
    {"recv_prepare", true, true,
     [](hetcomm_communicator_t* c, int32_t rank, const hetcomm_buffer_t* b, size_t n,
        const Options* o, hetcomm_request_t** out) {
       return hetcomm_recv_prepare(c, rank, kTag, HETCOMM_EXACT_TAG, b, n, o, out);
     }},
};

class BadMessage : public BadInput {
 protected:
  // Expects every submit function to refuse |buffer|.
  void expect_buffer_refused(const char* what, hetcomm_status_t expected,
                             const hetcomm_buffer_t& buffer) {
    for (const Submit& submit : kSubmits) {
      SCOPED_TRACE(submit.name);
      expect_refused({{what, expected, [&](Outputs& out) {
                         return submit.call(communicator(), 0, &buffer, 1, nullptr,
                                            out.first<hetcomm_request_t*>());
                       }}});
      if (!submit.vector) continue;
      // The buffer is also refused after a valid buffer.
      const hetcomm_buffer_t both[] = {good_, buffer};
      expect_refused({{what, expected, [&](Outputs& out) {
                         return submit.call(communicator(), 0, both, 2, nullptr,
                                            out.first<hetcomm_request_t*>());
                       }}});
    }
  }

  char bytes_[16] = {};
  const hetcomm_buffer_t good_ = hetcomm_buffer_host(bytes_, sizeof(bytes_));
};

TEST_F(BadMessage, NullHandlesAndOutputsAreRefused) {
  for (const Submit& submit : kSubmits) {
    SCOPED_TRACE(submit.name);
    expect_refused({
        {"no communicator", HETCOMM_INVALID_ARGUMENT,
         [&](Outputs& out) {
           return submit.call(nullptr, 0, &good_, 1, nullptr, out.first<hetcomm_request_t*>());
         }},
        {"no output", HETCOMM_INVALID_ARGUMENT,
         [&](Outputs&) { return submit.call(communicator(), 0, &good_, 1, nullptr, nullptr); }},
    });
  }
}

TEST_F(BadMessage, RanksOutsideTheCommunicatorAreRefused) {
  for (const Submit& submit : kSubmits) {
    for (const int32_t rank : {-2, 1, 2, INT_MAX, INT_MIN, -1}) {
      if (submit.receives && rank == HETCOMM_ANY_SOURCE) continue;
      SCOPED_TRACE(testing::Message() << submit.name << " " << rank);
      expect_refused({{"rank", HETCOMM_OUT_OF_RANGE, [&](Outputs& out) {
                         return submit.call(communicator(), rank, &good_, 1, nullptr,
                                            out.first<hetcomm_request_t*>());
                       }}});
    }
  }
}

TEST_F(BadMessage, BuffersBeyondTheirMemoryAreRefused) {
  for (int32_t device = 0; device < 3; ++device) {
    SCOPED_TRACE(device);
    hetcomm_memory_t* memory = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(context(), device, 100, &memory), HETCOMM_OK);
    constexpr struct {
      uint64_t offset;
      uint64_t length;
    } kOutside[] = {{0, 101},
                    {100, 1},
                    {101, 0},
                    {50, 51},
                    {UINT64_MAX, 1},
                    {UINT64_MAX, 2},
                    {1, UINT64_MAX},
                    {100, UINT64_MAX - 99},
                    {0, UINT64_MAX},
                    {UINT64_MAX, 0},
                    {UINT64_MAX, UINT64_MAX}};
    for (const auto& [offset, length] : kOutside) {
      expect_buffer_refused("range", HETCOMM_OUT_OF_RANGE,
                            hetcomm_buffer_memory(memory, offset, length));
    }
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK) << hetcomm_last_error();
  }
}

TEST_F(BadMessage, InvalidHostBuffersAreRefused) {
  expect_buffer_refused("no address", kAnyFailure, hetcomm_buffer_host(nullptr, 1));
  expect_buffer_refused("around the end", kAnyFailure, hetcomm_buffer_host(bytes_, UINT64_MAX));
  expect_buffer_refused("around the end by one", kAnyFailure,
                        hetcomm_buffer_memory(nullptr, UINT64_MAX, 2));
}

TEST_F(BadMessage, InvalidBufferListsAreRefused) {
  // Each fits into the address space, but their sum exceeds any message.
  const hetcomm_buffer_t half = hetcomm_buffer_memory(nullptr, 4096, UINT64_C(1) << 63);
  const hetcomm_buffer_t halves[] = {half, half};
  for (const Submit& submit : kSubmits) {
    if (!submit.vector) continue;
    SCOPED_TRACE(submit.name);
    const auto call = [&](const hetcomm_buffer_t* buffers, size_t count) {
      return [&submit, this, buffers, count](Outputs& out) {
        return submit.call(communicator(), 0, buffers, count, nullptr,
                           out.first<hetcomm_request_t*>());
      };
    };
    expect_refused({
        {"no list", HETCOMM_INVALID_ARGUMENT, call(nullptr, 1)},
        {"count SIZE_MAX", kAnyFailure, call(&good_, SIZE_MAX)},
        {"count SIZE_MAX / 24", kAnyFailure, call(&good_, SIZE_MAX / sizeof(good_))},
        {"count 2^40", kAnyFailure, call(&good_, size_t{1} << 40)},
        {"sum past 64 bits", kAnyFailure, call(halves, 2)},
    });
  }
}

TEST_F(BadMessage, InvalidOptionsAreRefused) {
  LocalStore store;
  Rank other(store, 0, 1);
  ASSERT_TRUE(other.ok());
  hetcomm_group_t* foreign = nullptr;
  ASSERT_EQ(hetcomm_group_create(other.communicator(), &foreign), HETCOMM_OK);
  for (const Submit& submit : kSubmits) {
    SCOPED_TRACE(submit.name);
    const auto with = [&](const std::function<void(Options&)>& change) {
      return [&submit, this, change](Outputs& out) {
        Options options{};
        options.struct_size = sizeof(options);
        change(options);
        return submit.call(communicator(), 0, &good_, 1, &options, out.first<hetcomm_request_t*>());
      };
    };
    expect_refused({
        {"struct_size 0", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.struct_size = 0; })},
        {"struct_size 1", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.struct_size = 1; })},
        {"priority 2", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.priority = 2; })},
        {"priority -1", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.priority = -1; })},
        {"flags", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.flags = 0x80000000u; })},
        {"group of another communicator", HETCOMM_INVALID_ARGUMENT,
         with([&](Options& o) { o.group = foreign; })},
    });
  }
  hetcomm_group_destroy(foreign);
}

TEST_F(BadMessage, ProbeWithInvalidArgumentsIsRefused) {
  const auto probe = [&](hetcomm_communicator_t* communicator, int32_t rank) {
    return [communicator, rank](Outputs& out) {
      return hetcomm_probe(communicator, rank, 0, HETCOMM_ANY_TAG, HETCOMM_TIMEOUT_POLL,
                           out.first<hetcomm_completion_t>());
    };
  };
  expect_refused({
      {"no communicator", HETCOMM_INVALID_ARGUMENT, probe(nullptr, 0)},
      {"rank -2", HETCOMM_OUT_OF_RANGE, probe(communicator(), -2)},
      {"rank 1", HETCOMM_OUT_OF_RANGE, probe(communicator(), 1)},
      {"rank INT_MAX", HETCOMM_OUT_OF_RANGE, probe(communicator(), INT_MAX)},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_probe(communicator(), 0, 0, 0, HETCOMM_TIMEOUT_POLL, nullptr);
       }},
      {"nothing there", HETCOMM_TIMED_OUT, probe(communicator(), 0)},
  });
}

TEST_F(BadMessage, InvalidGroupCallsAreRefused) {
  hetcomm_group_destroy(nullptr);
  expect_refused({
      {"create: no communicator", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) { return hetcomm_group_create(nullptr, out.first<hetcomm_group_t*>()); }},
      {"create: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_group_create(communicator(), nullptr); }},
      {"start: no group", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_group_start(nullptr); }},
  });
}

// Every tag and every mask is allowed; the extremes match like any other.
// Only debug builds check for overlaps.
TEST_F(BadMessage, OverlappingReceivesAreRefusedInDebugBuilds) {
#ifdef NDEBUG
  GTEST_SKIP() << "debug builds only";
#endif
  char memory[64];
  hetcomm_request_t* first = nullptr;
  ASSERT_EQ(hetcomm_recv(communicator(), 0, 1, HETCOMM_EXACT_TAG,
                         hetcomm_buffer_host(memory + 16, 16), nullptr, &first),
            HETCOMM_OK);
  hetcomm_request_t* request = nullptr;
  const auto receive = [&](char* at, uint64_t length) {
    return hetcomm_recv(communicator(), 0, 2, HETCOMM_EXACT_TAG, hetcomm_buffer_host(at, length),
                        nullptr, &request);
  };
  for (const auto& [at, length] : {std::pair{16, 16}, {0, 17}, {31, 1}, {0, 64}, {20, 2}}) {
    EXPECT_EQ(receive(memory + at, static_cast<uint64_t>(length)), HETCOMM_INVALID_ARGUMENT)
        << at << ", " << length;
    EXPECT_NE(std::string(hetcomm_last_error()).find("overlap"), std::string::npos);
  }
  const hetcomm_buffer_t pieces[] = {hetcomm_buffer_host(memory, 8),
                                     hetcomm_buffer_host(memory + 4, 8)};
  EXPECT_EQ(hetcomm_recvv(communicator(), 0, 2, HETCOMM_EXACT_TAG, pieces, 2, nullptr, &request),
            HETCOMM_INVALID_ARGUMENT);
  // Adjacent memory is free, and so is the receive's own memory once the receive has ended.
  for (const int at : {0, 32}) {
    ASSERT_EQ(receive(memory + at, 16), HETCOMM_OK) << hetcomm_last_error();
    ASSERT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
    ASSERT_EQ(hetcomm_request_wait(request, UINT64_C(10'000'000'000), nullptr), HETCOMM_OK);
  }
  ASSERT_EQ(hetcomm_request_cancel(first), HETCOMM_OK);
  ASSERT_EQ(receive(memory, 64), HETCOMM_OK) << hetcomm_last_error();
  ASSERT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
  ASSERT_EQ(hetcomm_request_wait(request, UINT64_C(10'000'000'000), nullptr), HETCOMM_OK);
  ASSERT_EQ(hetcomm_request_wait(first, UINT64_C(10'000'000'000), nullptr), HETCOMM_OK);
}

TEST_F(BadMessage, ExtremeTagsAndMasksMatch) {
  const struct {
    uint64_t sent;
    uint64_t wanted;
    uint64_t ignore;
  } cases[] = {
      {UINT64_MAX, UINT64_MAX, HETCOMM_EXACT_TAG},
      {0, 0, HETCOMM_EXACT_TAG},
      {UINT64_MAX, 0, HETCOMM_ANY_TAG},
      {0, UINT64_MAX, HETCOMM_ANY_TAG},
      {UINT64_C(1) << 63, 0, UINT64_C(1) << 63},
      {0xff00, 0xff12, 0xff},
  };
  for (const auto& [sent, wanted, ignore] : cases) {
    char received[16];
    hetcomm_request_t* requests[2] = {};
    ASSERT_EQ(hetcomm_recv(communicator(), HETCOMM_ANY_SOURCE, wanted, ignore,
                           hetcomm_buffer_host(received, sizeof(received)), nullptr, &requests[0]),
              HETCOMM_OK);
    ASSERT_EQ(hetcomm_send(communicator(), 0, sent, good_, nullptr, &requests[1]), HETCOMM_OK);
    hetcomm_completion_t completion{};
    ASSERT_EQ(hetcomm_request_wait(requests[0], UINT64_C(10'000'000'000), &completion), HETCOMM_OK);
    EXPECT_EQ(completion.status, HETCOMM_OK) << completion.text;
    EXPECT_EQ(completion.tag, sent);
    ASSERT_EQ(hetcomm_request_wait(requests[1], UINT64_C(10'000'000'000), nullptr), HETCOMM_OK);
  }
}

}  // namespace
}  // namespace hetcomm_test
