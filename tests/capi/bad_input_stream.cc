// Bad input to streams, and to operations that name them. The context of the other suites has no
// background thread, so this suite has its own.
#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

class BadStream : public BadInput {
 protected:
  void SetUp() override {
    BadInput::SetUp();
    hetcomm_context_options_t options{};
    options.struct_size = sizeof(options);
    options.progress = HETCOMM_PROGRESS_THREAD;
    options.settings = "HETCOMM_DEVICES=sim-handle:memory=1M,sim-address:memory=1M";
    ASSERT_EQ(hetcomm_context_create(&options, &threaded_), HETCOMM_OK);
  }
  void TearDown() override {
    EXPECT_EQ(hetcomm_context_destroy(threaded_), HETCOMM_OK) << hetcomm_last_error();
    BadInput::TearDown();
  }

  hetcomm_context_t* threaded_ = nullptr;
};

TEST_F(BadStream, InvalidStreamCreationIsRefused) {
  hetcomm_stream_t* good = nullptr;
  hetcomm_stream_t* other = nullptr;
  ASSERT_EQ(hetcomm_stream_create(threaded_, 1, 0, &good), HETCOMM_OK) << hetcomm_last_error();
  ASSERT_EQ(hetcomm_stream_create(threaded_, 2, 0, &other), HETCOMM_OK) << hetcomm_last_error();
  void* native = nullptr;
  void* elsewhere = nullptr;
  EXPECT_EQ(hetcomm_stream_native(good, &native), HETCOMM_OK);
  EXPECT_EQ(hetcomm_stream_native(other, &elsewhere), HETCOMM_OK);
  const auto wrap = [](hetcomm_context_t* c, int32_t device, void* given) {
    return [=](Outputs& out) {
      return hetcomm_stream_wrap(c, device, given, 0, out.first<hetcomm_stream_t*>());
    };
  };
  const auto create = [](hetcomm_context_t* c, int32_t device) {
    return [=](Outputs& out) {
      return hetcomm_stream_create(c, device, 0, out.first<hetcomm_stream_t*>());
    };
  };
  uint64_t word = 0;
  expect_refused({
      {"no context", HETCOMM_INVALID_ARGUMENT, wrap(nullptr, 1, native)},
      {"no context", HETCOMM_INVALID_ARGUMENT, create(nullptr, 1)},
      {"no such device", HETCOMM_OUT_OF_RANGE, wrap(threaded_, 3, native)},
      {"no such device", HETCOMM_OUT_OF_RANGE, wrap(threaded_, -1, native)},
      {"no such device", HETCOMM_OUT_OF_RANGE, create(threaded_, 3)},
      {"a device without streams", HETCOMM_UNSUPPORTED, wrap(threaded_, 0, native)},
      {"a device without streams", HETCOMM_UNSUPPORTED, create(threaded_, 0)},
      {"no thread", HETCOMM_UNSUPPORTED, wrap(context(), 1, native)},
      {"no thread", HETCOMM_UNSUPPORTED, create(context(), 1)},
      {"no stream", HETCOMM_INVALID_ARGUMENT, wrap(threaded_, 1, nullptr)},
      {"something else", HETCOMM_INVALID_ARGUMENT, wrap(threaded_, 1, &word)},
      {"another device's", HETCOMM_INVALID_ARGUMENT, wrap(threaded_, 1, elsewhere)},
      {"unknown flags", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_stream_wrap(threaded_, 1, native, 2, out.first<hetcomm_stream_t*>());
       }},
      {"unknown flags", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_stream_create(threaded_, 1, ~0u, out.first<hetcomm_stream_t*>());
       }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_stream_wrap(threaded_, 1, native, 0, nullptr); }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_stream_create(threaded_, 1, 0, nullptr); }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_stream_native(good, nullptr); }},
      {"no stream", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) { return hetcomm_stream_native(nullptr, out.first<void*>()); }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_stream_info(good, nullptr, out.first<uint32_t>()); }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_stream_info(good, out.first<int32_t>(), nullptr); }},
      {"no stream", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_stream_info(nullptr, out.first<int32_t>(), out.second<uint32_t>());
       }},
      {"streams exist", HETCOMM_BUSY, [&](Outputs&) { return hetcomm_context_destroy(threaded_); }},
  });
  EXPECT_EQ(hetcomm_stream_destroy(good), HETCOMM_OK);
  EXPECT_EQ(hetcomm_stream_destroy(other), HETCOMM_OK);
  EXPECT_EQ(hetcomm_stream_destroy(nullptr), HETCOMM_OK);
  expect_refused({
      {"released", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_stream_native(good, out.first<void*>()); }},
      {"released", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_stream_destroy(good); }},
  });
}

TEST_F(BadStream, StreamOfAnotherContextIsRefused) {
  hetcomm_stream_t* stream = nullptr;
  ASSERT_EQ(hetcomm_stream_create(threaded_, 1, 0, &stream), HETCOMM_OK) << hetcomm_last_error();
  char bytes[16] = {};
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes, sizeof(bytes));
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.stream = stream;
  hetcomm_collective_options_t collective{};
  collective.struct_size = sizeof(collective);
  collective.stream = stream;
  const std::vector<BadCall> calls = {
      {"send", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_send(communicator(), 0, 1, buffer, &options,
                             out.first<hetcomm_request_t*>());
       }},
      {"recvv", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_recvv(communicator(), 0, 1, 0, &buffer, 1, &options,
                              out.first<hetcomm_request_t*>());
       }},
      {"send_prepare", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_send_prepare(communicator(), 0, 1, &buffer, 1, &options,
                                     out.first<hetcomm_request_t*>());
       }},
      {"broadcast", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_broadcast(communicator(), 0, buffer, HETCOMM_UINT8, &collective,
                                  out.first<hetcomm_request_t*>());
       }},
  };
  expect_refused(calls);  // belongs to another context
  EXPECT_EQ(hetcomm_stream_destroy(stream), HETCOMM_OK);
#ifndef NDEBUG
  expect_refused(calls);  // released; a destroyed object stays readable in debug builds
#endif
}

}  // namespace
}  // namespace hetcomm_test
