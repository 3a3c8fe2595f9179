// Bad input to registration, export, import and one-sided operations.
#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

class BadOneSided : public BadInput {
 protected:
  void SetUp() override {
    BadInput::SetUp();
    ASSERT_EQ(hetcomm_memory_allocate(context(), 0, 64, &memory_), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_allocate(context(), 1, 64, &device_), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_register(memory_, communicator(), HETCOMM_ACCESS_ALL,
                                      HETCOMM_REGISTER_CALLER_PROGRESS),
              HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_export(memory_, sizeof(bytes_), bytes_, &size_), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_import(communicator(), bytes_, size_, &remote_), HETCOMM_OK);
  }
  void TearDown() override {
    EXPECT_EQ(hetcomm_remote_memory_destroy(remote_), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_unregister(memory_, HETCOMM_TIMEOUT_DEFAULT), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(device_), HETCOMM_OK);
    BadInput::TearDown();
  }

  hetcomm_memory_t* memory_ = nullptr;  // registered
  hetcomm_memory_t* device_ = nullptr;  // not registered
  hetcomm_remote_memory_t* remote_ = nullptr;
  char bytes_[HETCOMM_EXPORT_MAX_BYTES] = {};
  size_t size_ = 0;
};

TEST_F(BadOneSided, InvalidRegistrationIsRefused) {
  const auto caller = uint32_t{HETCOMM_REGISTER_CALLER_PROGRESS};
  expect_refused({
      {"no memory", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_memory_register(nullptr, communicator(), HETCOMM_ACCESS_PUT, caller);
       }},
      {"no communicator", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_memory_register(device_, nullptr, HETCOMM_ACCESS_PUT, caller);
       }},
      {"no access", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_memory_register(device_, communicator(), 0, caller); }},
      {"unknown access", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_memory_register(device_, communicator(), 8, caller); }},
      {"unknown flag", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_memory_register(device_, communicator(), HETCOMM_ACCESS_PUT, 2);
       }},
      {"registered already", HETCOMM_BUSY,
       [&](Outputs&) {
         return hetcomm_memory_register(memory_, communicator(), HETCOMM_ACCESS_PUT, caller);
       }},
      {"atomics on a device", HETCOMM_UNSUPPORTED,
       [&](Outputs&) {
         return hetcomm_memory_register(device_, communicator(), HETCOMM_ACCESS_ALL, caller);
       }},
      {"caller progress that nobody promised", HETCOMM_UNSUPPORTED,
       [&](Outputs&) {
         return hetcomm_memory_register(device_, communicator(), HETCOMM_ACCESS_PUT, 0);
       }},
      {"unregister: no memory", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_memory_unregister(nullptr, 0); }},
      {"unregister: not registered", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_memory_unregister(device_, 0); }},
      {"free while registered", HETCOMM_BUSY,
       [&](Outputs&) { return hetcomm_memory_destroy(memory_); }},
      {"notification: no memory", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_memory_wait_notification(nullptr, 1, out.first<hetcomm_notification_t>());
       }},
      {"notification: not registered", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_wait_notification(device_, 1, out.first<hetcomm_notification_t>());
       }},
      {"notification: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_memory_wait_notification(memory_, 1, nullptr); }},
      {"notification: none", HETCOMM_TIMED_OUT,
       [&](Outputs& out) {
         return hetcomm_memory_wait_notification(memory_, HETCOMM_TIMEOUT_POLL,
                                                 out.first<hetcomm_notification_t>());
       }},
  });
}

TEST_F(BadOneSided, InvalidExportsAndImportsAreRefused) {
  expect_refused({
      {"export: no memory", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_export(nullptr, 512, out.first<char>(), out.second<size_t>());
       }},
      {"export: not registered", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_export(device_, 512, out.first<char>(), out.second<size_t>());
       }},
      {"export: no room", HETCOMM_OUT_OF_RANGE,
       [&](Outputs& out) {
         return hetcomm_memory_export(memory_, size_ - 1, out.first<char>(), out.second<size_t>());
       }},
      {"export: no bytes", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_export(memory_, 512, nullptr, out.second<size_t>());
       }},
      {"export: no size", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_export(memory_, 512, out.first<char>(), nullptr);
       }},
      {"import: no communicator", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_import(nullptr, bytes_, size_,
                                      out.first<hetcomm_remote_memory_t*>());
       }},
      {"import: no bytes", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_import(communicator(), nullptr, size_,
                                      out.first<hetcomm_remote_memory_t*>());
       }},
      {"import: cut", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_import(communicator(), bytes_, size_ - 1,
                                      out.first<hetcomm_remote_memory_t*>());
       }},
      {"import: too long", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_import(communicator(), bytes_, size_ + 1,
                                      out.first<hetcomm_remote_memory_t*>());
       }},
      {"import: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_memory_import(communicator(), bytes_, size_, nullptr); }},
      {"info: no remote", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_remote_memory_info(nullptr, out.first<hetcomm_remote_memory_info_t>());
       }},
      {"info: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_remote_memory_info(remote_, nullptr); }},
  });
  EXPECT_EQ(hetcomm_remote_memory_destroy(nullptr), HETCOMM_OK);
}

TEST_F(BadOneSided, InvalidOperationsAreRefused) {
  uint64_t word = 0;
  const hetcomm_buffer_t good = hetcomm_buffer_host(&word, 8);
  const hetcomm_buffer_t null = hetcomm_buffer_host(nullptr, 8);
  const auto request = [](Outputs& out) { return out.first<hetcomm_request_t*>(); };
  hetcomm_operation_options_t unknown{};
  unknown.struct_size = sizeof(unknown);
  unknown.flags = 4;
  hetcomm_operation_options_t notify = unknown;
  notify.flags = HETCOMM_OPERATION_NOTIFY;
  expect_refused({
      {"put: no remote", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_put(nullptr, 0, good, nullptr, request(out)); }},
      {"put: no bytes", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_put(remote_, 0, null, nullptr, request(out)); }},
      {"put: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_put(remote_, 0, good, nullptr, nullptr); }},
      {"put: past the end", HETCOMM_OUT_OF_RANGE,
       [&](Outputs& out) { return hetcomm_put(remote_, 57, good, nullptr, request(out)); }},
      {"put: unknown flag", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_put(remote_, 0, good, &unknown, request(out)); }},
      {"get: no remote", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_get(nullptr, 0, good, nullptr, request(out)); }},
      {"get: past the end", HETCOMM_OUT_OF_RANGE,
       [&](Outputs& out) { return hetcomm_get(remote_, 65, good, nullptr, request(out)); }},
      {"get: notifies", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_get(remote_, 0, good, &notify, request(out)); }},
      {"fetch_add: no remote", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_fetch_add(nullptr, 0, 1, &word, nullptr, request(out));
       }},
      {"fetch_add: unaligned", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_fetch_add(remote_, 4, 1, &word, nullptr, request(out));
       }},
      {"fetch_add: past the end", HETCOMM_OUT_OF_RANGE,
       [&](Outputs& out) {
         return hetcomm_fetch_add(remote_, 64, 1, &word, nullptr, request(out));
       }},
      {"compare_swap: no remote", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_compare_swap(nullptr, 0, 1, 2, &word, nullptr, request(out));
       }},
      {"compare_swap: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_compare_swap(remote_, 0, 1, 2, &word, nullptr, nullptr); }},
      {"flush: no communicator", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_flush(nullptr, 0, nullptr, request(out)); }},
      {"flush: no such rank", HETCOMM_OUT_OF_RANGE,
       [&](Outputs& out) { return hetcomm_flush(communicator(), 1, nullptr, request(out)); }},
      {"flush: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_flush(communicator(), 0, nullptr, nullptr); }},
      {"flush: notifies", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_flush(communicator(), 0, &notify, request(out)); }},
      {"send: notifies", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_send(communicator(), 0, 1, good, &notify, request(out));
       }},
  });
}

}  // namespace
}  // namespace hetcomm_test
