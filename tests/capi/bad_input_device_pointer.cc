// Pointers to device memory passed where plain host memory is expected:
//
//   * every call that would read or write the bytes refuses them, whether the vendor names memory
//     by address or by handle, and the text names the call to use;
//   * any byte of an allocation is recognized, for wrapped memory as for allocated memory;
//   * host memory is accepted next to device memory, and a length of 0 with any pointer.
#include <cstdint>
#include <string>

#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kSize = 4096;

class DevicePointer : public BadInput, public testing::WithParamInterface<int32_t> {
 protected:
  static constexpr int32_t kByAddress = 2;

  void SetUp() override {
    BadInput::SetUp();
    void* address = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(context(), GetParam(), kSize, &device_), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_address(device_, &address), HETCOMM_OK);
    first_ = reinterpret_cast<uintptr_t>(address);
    ASSERT_EQ(hetcomm_memory_allocate(context(), 0, kSize, &host_), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_register(host_, communicator(), HETCOMM_ACCESS_ALL,
                                      HETCOMM_REGISTER_CALLER_PROGRESS),
              HETCOMM_OK);
    char bytes[HETCOMM_EXPORT_MAX_BYTES];
    size_t size = 0;
    ASSERT_EQ(hetcomm_memory_export(host_, sizeof(bytes), bytes, &size), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_import(communicator(), bytes, size, &remote_), HETCOMM_OK);
  }
  void TearDown() override {
    EXPECT_EQ(hetcomm_remote_memory_destroy(remote_), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_unregister(host_, HETCOMM_TIMEOUT_DEFAULT), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(host_), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(device_), HETCOMM_OK);
    BadInput::TearDown();
  }

  // Returns addresses inside |device_|. A handle names only itself.
  std::vector<uint64_t> places() const {
    if (GetParam() != kByAddress) return {first_};
    return {first_, first_ + 8, first_ + kSize / 2, first_ + kSize - 8};
  }
  static hetcomm_buffer_t plain(uint64_t place) {
    return hetcomm_buffer_host(reinterpret_cast<void*>(place), 8);
  }
  // Checks that the call is refused with the expected status and a text that names the call to use.
  static void expect_pointer_refused(
      const char* what, const std::function<hetcomm_status_t(hetcomm_request_t**)>& call) {
    SCOPED_TRACE(what);
    expect_refused({{what, HETCOMM_INVALID_ARGUMENT,
                     [&](Outputs& out) { return call(out.first<hetcomm_request_t*>()); }}});
    EXPECT_NE(std::string(hetcomm_last_error()).find("hetcomm_buffer_memory"), std::string::npos)
        << hetcomm_last_error();
  }

  hetcomm_memory_t* device_ = nullptr;
  hetcomm_memory_t* host_ = nullptr;  // registered
  hetcomm_remote_memory_t* remote_ = nullptr;
  uint64_t first_ = 0;  // first address of |device_|
  uint64_t word_ = 0;
  const hetcomm_buffer_t good_ = hetcomm_buffer_host(&word_, sizeof(word_));
};

TEST_P(DevicePointer, MessagesWithDevicePointersAreRefused) {
  const hetcomm_operation_options_t options{.struct_size = sizeof(options)};
  for (const uint64_t place : places()) {
    const hetcomm_buffer_t bad = plain(place);
    const hetcomm_buffer_t both[] = {good_, bad};
    for (const hetcomm_operation_options_t* each :
         {static_cast<decltype(&options)>(nullptr), &options}) {
      expect_pointer_refused("send", [&](hetcomm_request_t** out) {
        return hetcomm_send(communicator(), 0, 1, bad, each, out);
      });
      expect_pointer_refused("recv", [&](hetcomm_request_t** out) {
        return hetcomm_recv(communicator(), 0, 1, HETCOMM_EXACT_TAG, bad, each, out);
      });
      expect_pointer_refused("sendv", [&](hetcomm_request_t** out) {
        return hetcomm_sendv(communicator(), 0, 1, both, 2, each, out);
      });
      expect_pointer_refused("recvv", [&](hetcomm_request_t** out) {
        return hetcomm_recvv(communicator(), 0, 1, HETCOMM_EXACT_TAG, both, 2, each, out);
      });
      expect_pointer_refused("send_prepare", [&](hetcomm_request_t** out) {
        return hetcomm_send_prepare(communicator(), 0, 1, both, 2, each, out);
      });
      expect_pointer_refused("recv_prepare", [&](hetcomm_request_t** out) {
        return hetcomm_recv_prepare(communicator(), 0, 1, HETCOMM_EXACT_TAG, both, 2, each, out);
      });
    }
  }
}

TEST_P(DevicePointer, OneSidedOperationsOnADevicePointerAreRefused) {
  for (const uint64_t place : places()) {
    auto* const result = reinterpret_cast<uint64_t*>(place);
    expect_pointer_refused("put", [&](hetcomm_request_t** out) {
      return hetcomm_put(remote_, 0, plain(place), nullptr, out);
    });
    expect_pointer_refused("get", [&](hetcomm_request_t** out) {
      return hetcomm_get(remote_, 0, plain(place), nullptr, out);
    });
    expect_pointer_refused("fetch_add", [&](hetcomm_request_t** out) {
      return hetcomm_fetch_add(remote_, 0, 1, result, nullptr, out);
    });
    expect_pointer_refused("compare_swap", [&](hetcomm_request_t** out) {
      return hetcomm_compare_swap(remote_, 0, 0, 1, result, nullptr, out);
    });
  }
  uint64_t after = 1;
  ASSERT_EQ(hetcomm_memory_read(host_, 0, &after, sizeof(after)), HETCOMM_OK);
  EXPECT_EQ(after, 0u);
}

TEST_P(DevicePointer, CollectiveOperationsOnADevicePointerAreRefused) {
  for (const uint64_t place : places()) {
    const hetcomm_buffer_t bad = plain(place);
    expect_pointer_refused("broadcast", [&](hetcomm_request_t** out) {
      return hetcomm_broadcast(communicator(), 0, bad, HETCOMM_UINT64, nullptr, out);
    });
    expect_pointer_refused("allreduce from", [&](hetcomm_request_t** out) {
      return hetcomm_allreduce(communicator(), bad, good_, HETCOMM_UINT64, HETCOMM_REDUCE_SUM,
                               nullptr, out);
    });
    expect_pointer_refused("allreduce to", [&](hetcomm_request_t** out) {
      return hetcomm_allreduce(communicator(), good_, bad, HETCOMM_UINT64, HETCOMM_REDUCE_SUM,
                               nullptr, out);
    });
    expect_pointer_refused("alltoallv", [&](hetcomm_request_t** out) {
      return hetcomm_alltoallv(communicator(), &good_, &bad, HETCOMM_UINT64, nullptr, out);
    });
  }
}

TEST_P(DevicePointer, CopyingOrWrappingADevicePointerIsRefused) {
  for (const uint64_t place : places()) {
    auto* const pointer = reinterpret_cast<void*>(place);
    for (hetcomm_memory_t* const memory : {host_, device_}) {
      expect_pointer_refused("write", [&](hetcomm_request_t**) {
        return hetcomm_memory_write(memory, 0, pointer, 8);
      });
      expect_pointer_refused(
          "read", [&](hetcomm_request_t**) { return hetcomm_memory_read(memory, 0, pointer, 8); });
    }
    expect_pointer_refused("wrap as host memory", [&](hetcomm_request_t** out) {
      return hetcomm_memory_wrap(context(), HETCOMM_DEVICE_HOST, pointer, 8,
                                 reinterpret_cast<hetcomm_memory_t**>(out));
    });
  }
}

TEST_P(DevicePointer, PointerIntoWrappedMemoryIsRefused) {
  hetcomm_memory_t* wrapped = nullptr;
  ASSERT_EQ(
      hetcomm_memory_wrap(context(), GetParam(), reinterpret_cast<void*>(first_), kSize, &wrapped),
      HETCOMM_OK);
  expect_pointer_refused("send", [&](hetcomm_request_t** out) {
    return hetcomm_send(communicator(), 0, 1, plain(first_), nullptr, out);
  });
  EXPECT_EQ(hetcomm_memory_destroy(wrapped), HETCOMM_OK);
  expect_pointer_refused("send from what is still allocated", [&](hetcomm_request_t** out) {
    return hetcomm_send(communicator(), 0, 1, plain(first_), nullptr, out);
  });
}

TEST_P(DevicePointer, HostPointersEmptyBuffersAndMemoryHandlesAreAccepted) {
  expect_message_to_self_arrives();
  const hetcomm_buffer_t nothing = hetcomm_buffer_host(reinterpret_cast<void*>(first_), 0);
  hetcomm_request_t* request = nullptr;
  ASSERT_EQ(hetcomm_recv(communicator(), 0, 2, HETCOMM_EXACT_TAG, nothing, nullptr, &request),
            HETCOMM_OK)
      << hetcomm_last_error();
  hetcomm_request_t* sent = nullptr;
  ASSERT_EQ(hetcomm_send(communicator(), 0, 2, nothing, nullptr, &sent), HETCOMM_OK)
      << hetcomm_last_error();
  for (hetcomm_request_t* each : {sent, request}) {
    hetcomm_completion_t completion{};
    ASSERT_EQ(hetcomm_request_wait(each, UINT64_C(10'000'000'000), &completion), HETCOMM_OK);
    EXPECT_EQ(completion.status, HETCOMM_OK) << completion.text;
  }
  // Sent by its memory handle, the data may lie anywhere.
  ASSERT_EQ(hetcomm_memory_write(device_, 0, &word_, sizeof(word_)), HETCOMM_OK);
  uint64_t received = 1;
  ASSERT_EQ(hetcomm_recv(communicator(), 0, 3, HETCOMM_EXACT_TAG,
                         hetcomm_buffer_host(&received, sizeof(received)), nullptr, &request),
            HETCOMM_OK);
  ASSERT_EQ(
      hetcomm_send(communicator(), 0, 3, hetcomm_buffer_memory(device_, 0, 8), nullptr, &sent),
      HETCOMM_OK);
  for (hetcomm_request_t* each : {sent, request}) {
    hetcomm_completion_t completion{};
    ASSERT_EQ(hetcomm_request_wait(each, UINT64_C(10'000'000'000), &completion), HETCOMM_OK);
    EXPECT_EQ(completion.status, HETCOMM_OK) << completion.text;
  }
  EXPECT_EQ(received, word_);
}

INSTANTIATE_TEST_SUITE_P(Devices, DevicePointer, testing::Values(1, 2), [](const auto& instance) {
  return instance.param == 1 ? "by_handle" : "by_address";
});

}  // namespace
}  // namespace hetcomm_test
