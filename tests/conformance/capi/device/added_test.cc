// Devices added by the program (hetcomm_device_add), whose function table misbehaves as each test
// requires:
//
//   * memory that was pinned before the device was added is also pinned for the device: copies use
//     no other memory
//   * a device that cannot tell whether a pointer is its own fails the call with its own status and
//     text; the pointer is never treated as host memory
//   * one query finds the owner of a pointer among all devices of a kind
//   * a status that no device function may return ends an operation with DEVICE_LOST on both ranks,
//     and the text contains that status
//   * only devices that accept NULL in user_stream_open() receive it
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include <gmock/gmock.h>

#include <hetcomm/device_plugin.h>

#include "tests/conformance/capi/device/device.h"

namespace hetcomm_test {
namespace {

using testing::HasSubstr;

// A device whose memory belongs to the process, under names that the CPU cannot access.
struct Stub {
  static constexpr uintptr_t kTag = uintptr_t{0xb0} << 56;

  std::mutex mutex;
  std::map<uintptr_t, uint64_t> memory;  // by name; guarded by |mutex|
  std::map<uintptr_t, uint64_t> pins;    // guarded by |mutex|
  std::atomic<int64_t> pinned_copies{0};
  std::atomic<int64_t> other_copies{0};
  std::atomic<hetcomm_status_t> find_status{HETCOMM_OK};  // if not OK, find() fails with it
  std::atomic<hetcomm_status_t> copy_status{HETCOMM_OK};
  std::atomic<int64_t> queries{0};  // calls of find() and locate()
  std::atomic<int64_t> null_streams{0};

  hetcomm_status_t find(const void* address, void** out_base, uint64_t* out_size) {
    const std::lock_guard lock(mutex);
    const auto name = reinterpret_cast<uintptr_t>(address);
    auto next = memory.upper_bound(name);
    if (next == memory.begin()) return HETCOMM_NOT_FOUND;
    --next;
    if (name - next->first >= next->second) return HETCOMM_NOT_FOUND;
    *out_base = reinterpret_cast<void*>(next->first);
    *out_size = next->second;
    return HETCOMM_OK;
  }
  void note_copy(const void* host) {
    const std::lock_guard lock(mutex);
    const auto place = reinterpret_cast<uintptr_t>(host);
    auto next = pins.upper_bound(place);
    const bool is_pinned =
        next != pins.begin() && place - std::prev(next)->first < std::prev(next)->second;
    ++(is_pinned ? pinned_copies : other_copies);
  }
};

Stub& of(void* device) { return *static_cast<Stub*>(device); }
std::byte* bytes_at(const void* name, uint64_t offset) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(name) & ~Stub::kTag) + offset;
}

hetcomm_device_table_t make_table() {
  hetcomm_device_table_t table{};
  table.struct_size = sizeof(table);
  table.kind = "stub";
  table.destroy = [](void*) {};
  table.name = [](void*) { return "stub"; };
  table.allocate = [](void* device, uint64_t size, void** out_address) {
    const auto name = reinterpret_cast<uintptr_t>(std::malloc(size)) | Stub::kTag;
    const std::lock_guard lock(of(device).mutex);
    of(device).memory[name] = size;
    *out_address = reinterpret_cast<void*>(name);
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.free = [](void* device, void* address) {
    const std::lock_guard lock(of(device).mutex);
    of(device).memory.erase(reinterpret_cast<uintptr_t>(address));
    std::free(bytes_at(address, 0));
  };
  table.find = [](void* device, const void* address, void** out_base, uint64_t* out_size) {
    ++of(device).queries;
    if (of(device).find_status != HETCOMM_OK) return of(device).find_status.load();
    return of(device).find(address, out_base, out_size);
  };
  table.copy_to_host = [](void* device, void*, void* host, const void* address, uint64_t offset,
                          uint64_t size) {
    of(device).note_copy(host);
    if (of(device).copy_status != HETCOMM_OK) return of(device).copy_status.load();
    std::memcpy(host, bytes_at(address, offset), size);
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.copy_from_host = [](void* device, void*, void* address, uint64_t offset, const void* host,
                            uint64_t size) {
    of(device).note_copy(host);
    if (of(device).copy_status != HETCOMM_OK) return of(device).copy_status.load();
    std::memcpy(bytes_at(address, offset), host, size);
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.error_text = [](void*, char* text, uint64_t size) {
    std::strncpy(text, "the bus fell off", size - 1);
    text[size - 1] = '\0';
  };
  return table;
}

hetcomm_device_table_t pinning_table() {
  hetcomm_device_table_t table = make_table();
  table.kind = "pinning";
  table.pin_host = [](void* device, void* host, uint64_t size) {
    const std::lock_guard lock(of(device).mutex);
    of(device).pins[reinterpret_cast<uintptr_t>(host)] = size;
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.unpin_host = [](void* device, void* host) {
    const std::lock_guard lock(of(device).mutex);
    of(device).pins.erase(reinterpret_cast<uintptr_t>(host));
  };
  return table;
}

hetcomm_status_t locate(void* const* devices, uint64_t count, const void* address,
                        hetcomm_device_place_t* out_place) {
  ++of(devices[0]).queries;
  for (uint64_t i = 0; i < count; ++i) {
    void* base = nullptr;
    uint64_t size = 0;
    if (of(devices[i]).find(address, &base, &size) != HETCOMM_OK) continue;
    *out_place = {.device = i, .base = base, .size = size, .allocation_id = 0};
    return HETCOMM_OK;
  }
  return HETCOMM_NOT_FOUND;
}

int32_t add(Member& me, const hetcomm_device_table_t& table, Stub& stub) {
  const hetcomm_device_t device{.table = &table, .instance = &stub};
  int32_t index = -1;
  EXPECT_EQ(hetcomm_device_add(me.context(), &device, &index), HETCOMM_OK) << hetcomm_last_error();
  return index;
}

class AddedDevices : public CapiTest {};

TEST_P(AddedDevices, DeviceAddedLateGetsPinnedMemory) {
  static const hetcomm_device_table_t kTable = pinning_table();
  std::vector<std::unique_ptr<Stub>> stubs;
  for (int i = 0; i < 4; ++i) stubs.push_back(std::make_unique<Stub>());
  run(2, [&](Member& me) {
    constexpr uint64_t kSize = 6'000'000;
    std::vector<std::byte> host(kSize);
    for (int i = 0; i < 2; ++i) {
      Stub& stub = *stubs[static_cast<size_t>(2 * me.rank() + i)];
      DeviceMemory memory(me, add(me, kTable, stub), kSize);
      for (int round = 0; round < 3; ++round) {
        hetcomm_request_t* const receive = me.recv(me.partner(), 1, host.data(), kSize);
        hetcomm_request_t* send = nullptr;
        ASSERT_EQ(
            hetcomm_send(me.communicator(), me.partner(), 1, memory.part(0, kSize), nullptr, &send),
            HETCOMM_OK);
        for (hetcomm_request_t* const each : {send, receive}) {
          const Outcome outcome = finish(each);
          EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        }
      }
      EXPECT_GT(stub.pinned_copies, 0) << "device " << i;
      EXPECT_EQ(stub.other_copies, 0) << "device " << i << " of " << stub.pinned_copies;
      me.meet();
    }
  });
}

TEST_P(AddedDevices, PointerIsNotTakenForHostMemoryIfTheDeviceFails) {
  static const hetcomm_device_table_t kTable = make_table();
  std::vector<std::unique_ptr<Stub>> stubs;
  for (int i = 0; i < 2; ++i) stubs.push_back(std::make_unique<Stub>());
  run(2, [&](Member& me) {
    Stub& stub = *stubs[static_cast<size_t>(me.rank())];
    constexpr uint64_t kSize = 4096;
    const int32_t device = add(me, kTable, stub);
    const DeviceMemory memory(me, device, kSize);
    void* address = nullptr;
    ASSERT_EQ(hetcomm_memory_address(const_cast<DeviceMemory&>(memory).get(), &address),
              HETCOMM_OK);
    for (const hetcomm_status_t status :
         {hetcomm_status_t{HETCOMM_DEVICE_LOST}, hetcomm_status_t{HETCOMM_OUT_OF_RESOURCES},
          hetcomm_status_t{HETCOMM_CANCELLED}, hetcomm_status_t{HETCOMM_PENDING}, 77}) {
      SCOPED_TRACE(status);
      const bool may_be = status == HETCOMM_DEVICE_LOST || status == HETCOMM_OUT_OF_RESOURCES;
      const hetcomm_status_t wanted = may_be ? status : hetcomm_status_t{HETCOMM_DEVICE_LOST};
      stub.find_status = status;
      hetcomm_buffer_t buffer{};
      int64_t word = 0;
      for (const void* const pointer :
           {static_cast<const void*>(address), static_cast<const void*>(&word)}) {
        EXPECT_EQ(hetcomm_buffer_pointer(me.context(), pointer, 8, &buffer), wanted);
        EXPECT_THAT(hetcomm_last_error(), HasSubstr("the bus fell off"));
        if (!may_be) {
          EXPECT_THAT(hetcomm_last_error(), HasSubstr("find() returned"));
        }
        EXPECT_EQ(buffer.offset, 0u);
      }
      hetcomm_memory_t* wrapped = nullptr;
      EXPECT_EQ(hetcomm_memory_wrap(me.context(), device, address, 8, &wrapped), wanted);
      EXPECT_THAT(hetcomm_last_error(), HasSubstr("the bus fell off"));
      EXPECT_EQ(wrapped, nullptr);
      // A plain pointer has the same effect.
      hetcomm_request_t* request = nullptr;
      EXPECT_EQ(hetcomm_send(me.communicator(), me.partner(), 1, hetcomm_buffer_host(address, 8),
                             nullptr, &request),
                wanted);
      EXPECT_THAT(hetcomm_last_error(), HasSubstr("cannot tell"));
      stub.find_status = HETCOMM_OK;
    }
    hetcomm_buffer_t buffer{};
    EXPECT_EQ(hetcomm_buffer_pointer(me.context(), address, kSize, &buffer), HETCOMM_OK);
    EXPECT_NE(buffer.memory, nullptr);
    me.meet();
  });
}

// One query finds which device owns a pointer, or that none does, for any number of devices.
TEST_P(AddedDevices, OneQueryFindsTheOwnerAmongDevicesOfAKind) {
  static const hetcomm_device_table_t kTable = [] {
    hetcomm_device_table_t table = make_table();
    table.locate = locate;
    return table;
  }();
  constexpr size_t kDevices = 8;
  std::vector<std::unique_ptr<Stub>> stubs;
  for (size_t i = 0; i < 2 * kDevices; ++i) stubs.push_back(std::make_unique<Stub>());
  run(2, [&](Member& me) {
    const auto stub = [&](size_t i) -> Stub& {
      return *stubs[static_cast<size_t>(me.rank()) * kDevices + i];
    };
    const auto queries = [&] {
      int64_t all = 0;
      for (size_t i = 0; i < kDevices; ++i) all += stub(i).queries.exchange(0);
      return all;
    };
    std::vector<std::unique_ptr<DeviceMemory>> memories;
    for (size_t i = 0; i < kDevices; ++i) {
      memories.push_back(std::make_unique<DeviceMemory>(me, add(me, kTable, stub(i)), 1000 + i));
    }
    int64_t word = 0;
    hetcomm_buffer_t buffer{};
    queries();
    EXPECT_EQ(hetcomm_buffer_pointer(me.context(), &word, 8, &buffer), HETCOMM_OK);
    EXPECT_EQ(buffer.memory, nullptr);
    EXPECT_EQ(queries(), 1);
    for (size_t i = 0; i < kDevices; ++i) {
      void* address = nullptr;
      ASSERT_EQ(hetcomm_memory_address(memories[i]->get(), &address), HETCOMM_OK);
      auto* const inside = static_cast<std::byte*>(address) + 5;
      EXPECT_EQ(hetcomm_buffer_pointer(me.context(), inside, 995 + i, &buffer), HETCOMM_OK);
      EXPECT_EQ(queries(), 1);
      EXPECT_EQ(buffer.offset, 5u);
      uint64_t size = 0;
      EXPECT_EQ(hetcomm_memory_size(buffer.memory, &size), HETCOMM_OK);
      EXPECT_EQ(size, 1000 + i);
      EXPECT_EQ(hetcomm_buffer_pointer(me.context(), inside, 996 + i, &buffer),
                HETCOMM_OUT_OF_RANGE);
      queries();
    }
    me.meet();
  });
}

TEST_P(AddedDevices, InvalidDeviceStatusEndsTheOperationWithDeviceLost) {
  static const hetcomm_device_table_t kTable = make_table();
  std::vector<std::unique_ptr<Stub>> stubs;
  for (int i = 0; i < 2; ++i) stubs.push_back(std::make_unique<Stub>());
  run(2, [&](Member& me) {
    Stub& stub = *stubs[static_cast<size_t>(me.rank())];
    constexpr uint64_t kSize = 300'000;
    DeviceMemory memory(me, add(me, kTable, stub), kSize);
    uint64_t tag = 1;
    for (const hetcomm_status_t status :
         {hetcomm_status_t{HETCOMM_CANCELLED}, hetcomm_status_t{HETCOMM_PENDING},
          hetcomm_status_t{HETCOMM_PEER_LOST}, hetcomm_status_t{HETCOMM_TIMED_OUT}, 4711}) {
      // Rank 0's device fails, as the sender's device and as the receiver's.
      for (const int sender : {0, 1}) {
        SCOPED_TRACE(testing::Message() << status << " sender " << sender);
        if (me.rank() == 0) stub.copy_status = status;
        hetcomm_request_t* request = nullptr;
        const hetcomm_status_t posted =
            me.rank() == sender
                ? hetcomm_send(me.communicator(), me.partner(), tag, memory.part(0, kSize), nullptr,
                               &request)
                : hetcomm_recv(me.communicator(), me.partner(), tag, HETCOMM_EXACT_TAG,
                               memory.part(0, kSize), nullptr, &request);
        ASSERT_EQ(posted, HETCOMM_OK) << hetcomm_last_error();
        const Outcome outcome = finish(request);
        if (me.rank() == 0) {
          EXPECT_EQ(outcome.status, HETCOMM_DEVICE_LOST) << outcome.text;
          EXPECT_THAT(outcome.text, HasSubstr("returned"));
          EXPECT_THAT(outcome.text, HasSubstr(std::to_string(status)));
        } else {
          EXPECT_NE(outcome.status, HETCOMM_TIMED_OUT) << "it waited: " << outcome.text;
        }
        stub.copy_status = HETCOMM_OK;
        ++tag;
        ASSERT_TRUE(me.meet());
      }
    }
  });
}

TEST_P(AddedDevices, NullStreamIsPassedOnlyToDevicesThatAcceptIt) {
  static const hetcomm_device_table_t kTable = [] {
    hetcomm_device_table_t table = make_table();
    static char some;
    table.stream_create = [](void*, void** out_stream) {
      *out_stream = &some;
      return hetcomm_status_t{HETCOMM_OK};
    };
    table.stream_destroy = [](void*, void*) {};
    table.event_record = [](void*, void*, void** out_event) {
      *out_event = &some;
      return hetcomm_status_t{HETCOMM_OK};
    };
    table.event_query = [](void*, void*) { return hetcomm_status_t{HETCOMM_OK}; };
    table.event_wait = table.event_query;
    table.event_release = [](void*, void*) {};
    table.user_stream_open = [](void* device, void* native, void** out_user_stream) {
      if (native == nullptr) ++of(device).null_streams;
      *out_user_stream = native;
      return hetcomm_status_t{HETCOMM_OK};
    };
    table.user_stream_close = [](void*, void*) {};
    table.user_stream_record = table.event_record;
    table.stream_native = [](void*, void* stream, void** out_native) {
      *out_native = stream;
      return hetcomm_status_t{HETCOMM_OK};
    };
    return table;
  }();
  hetcomm_device_table_t takes_null = kTable;
  takes_null.flags = HETCOMM_DEVICE_NULL_STREAM;
  // The entry is used only if the table contains all of it.
  hetcomm_device_table_t cut = takes_null;
  cut.struct_size = offsetof(hetcomm_device_table_t, flags) + 3;
  std::vector<std::unique_ptr<Stub>> stubs;
  for (int i = 0; i < 6; ++i) stubs.push_back(std::make_unique<Stub>());
  CapiCase threaded = GetParam();
  threaded.thread_progress = true;
  run_job(threaded, 2, [&](Member& me) {
    size_t number = static_cast<size_t>(3 * me.rank());
    const hetcomm_device_table_t* const tables[] = {&kTable, &takes_null, &cut};
    for (const hetcomm_device_table_t* const table : tables) {
      Stub& stub = *stubs[number++];
      const int32_t device = add(me, *table, stub);
      hetcomm_stream_t* stream = nullptr;
      const hetcomm_status_t status =
          hetcomm_stream_wrap(me.context(), device, nullptr, HETCOMM_STREAM_NOT_HELD, &stream);
      const bool takes = table == &takes_null;
      EXPECT_EQ(status, takes ? HETCOMM_OK : HETCOMM_INVALID_ARGUMENT);
      EXPECT_EQ(stub.null_streams, takes ? 1 : 0);
      if (!takes) {
        EXPECT_THAT(hetcomm_last_error(), HasSubstr("native is null"));
        continue;
      }
      // The simulated stream runs its operations in order.
      int64_t word = me.rank();
      hetcomm_operation_options_t options{};
      options.struct_size = sizeof(options);
      options.stream = stream;
      hetcomm_request_t* const request = me.rank() == 0
                                             ? me.send(1, 9, &word, 8, &options)
                                             : me.recv(0, 9, &word, 8, HETCOMM_EXACT_TAG, &options);
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(word, 0);
      EXPECT_TRUE(me.until([&] { return hetcomm_stream_destroy(stream) == HETCOMM_OK; }));
    }
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, AddedDevices,
    ::testing::Values(CapiCase{.name = "shm", .transports = "shm", .settings = ""},
                      CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
