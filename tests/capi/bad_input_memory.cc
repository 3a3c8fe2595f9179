// Bad input to devices and memories, on the host, both kinds of simulated device, and devices that
// the caller provides.
#include <cstdlib>
#include <cstring>

#include <hetcomm/device_plugin.h>

#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

constexpr int32_t kDevices = 3;  // host, sim-handle, sim-address
constexpr int32_t kWrongDevices[] = {-1, -2, kDevices, INT_MAX, INT_MIN};

TEST_F(BadInput, InvalidDeviceCallsAreRefused) {
  int32_t count = 0;
  ASSERT_EQ(hetcomm_device_count(context(), &count), HETCOMM_OK);
  ASSERT_EQ(count, kDevices);
  expect_refused({
      {"count: no context", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) { return hetcomm_device_count(nullptr, out.first<int32_t>()); }},
      {"count: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_device_count(context(), nullptr); }},
      {"info: no context", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_device_info(nullptr, 0, out.first<hetcomm_device_info_t>());
       }},
      {"info: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_device_info(context(), 0, nullptr); }},
  });
  int native = 0;
  const auto from_native = [&](hetcomm_context_t* where, const char* kind, void* what,
                               int32_t* out) {
    return hetcomm_device_from_native(where, kind, what, out);
  };
  expect_refused({
      {"native: no context", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return from_native(nullptr, "opencl", &native, out.first<int32_t>()); }},
      {"native: no kind", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return from_native(context(), nullptr, &native, out.first<int32_t>());
       }},
      {"native: nothing", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return from_native(context(), "opencl", nullptr, out.first<int32_t>());
       }},
      {"native: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return from_native(context(), "opencl", &native, nullptr); }},
      {"native: a kind that nobody has", HETCOMM_NOT_FOUND,
       [&](Outputs& out) { return from_native(context(), "acme", &native, out.first<int32_t>()); }},
      {"native: a simulation", HETCOMM_UNSUPPORTED,
       [&](Outputs& out) {
         return from_native(context(), "sim-handle", &native, out.first<int32_t>());
       }},
  });
  expect_refused({
      {"abandon: no context", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_device_abandon(nullptr, 1, nullptr); }},
      {"abandon: the host", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_device_abandon(context(), 0, nullptr); }},
  });
  for (const int32_t device : kWrongDevices) {
    SCOPED_TRACE(device);
    char host[8];
    expect_refused({
        {"abandon", HETCOMM_OUT_OF_RANGE,
         [&](Outputs&) { return hetcomm_device_abandon(context(), device, nullptr); }},
        {"info", HETCOMM_OUT_OF_RANGE,
         [&](Outputs& out) {
           return hetcomm_device_info(context(), device, out.first<hetcomm_device_info_t>());
         }},
        {"allocate", HETCOMM_OUT_OF_RANGE,
         [&](Outputs& out) {
           return hetcomm_memory_allocate(context(), device, 8, out.first<hetcomm_memory_t*>());
         }},
        {"wrap", HETCOMM_OUT_OF_RANGE,
         [&](Outputs& out) {
           return hetcomm_memory_wrap(context(), device, host, 8, out.first<hetcomm_memory_t*>());
         }},
    });
  }
}

// A caller-provided device whose memory is the host's. It counts its copies.
struct Brought {
  int copies = 0;
  int ends = 0;
};
Brought& of(void* device) { return *static_cast<Brought*>(device); }

hetcomm_device_table_t brought_table() {
  hetcomm_device_table_t table{};
  table.struct_size = sizeof(table);
  table.kind = "brought";
  table.host_accessible = 1;
  table.destroy = [](void* device) { ++of(device).ends; };
  table.name = [](void*) { return "the caller's own"; };
  table.allocate = [](void*, uint64_t size, void** out) {
    *out = std::malloc(size);
    return hetcomm_status_t{*out != nullptr ? HETCOMM_OK : HETCOMM_OUT_OF_MEMORY};
  };
  table.free = [](void*, void* address) { std::free(address); };
  table.stream_create = [](void* device, void** out) {
    *out = device;
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.stream_destroy = [](void*, void*) {};
  table.copy_to_host = [](void* device, void*, void* host, const void* address, uint64_t offset,
                          uint64_t size) {
    ++of(device).copies;
    std::memcpy(host, static_cast<const char*>(address) + offset, size);
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.copy_from_host = [](void* device, void*, void* address, uint64_t offset, const void* host,
                            uint64_t size) {
    ++of(device).copies;
    std::memcpy(static_cast<char*>(address) + offset, host, size);
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.event_record = [](void* device, void*, void** out) {
    *out = device;
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.event_query = [](void*, void*) { return hetcomm_status_t{HETCOMM_OK}; };
  table.event_wait = [](void*, void*) { return hetcomm_status_t{HETCOMM_OK}; };
  table.event_release = [](void*, void*) {};
  return table;
}

TEST_F(BadInput, AddedDeviceWorksUntilItsContextIsDestroyed) {
  const hetcomm_device_table_t table = brought_table();
  Brought brought;
  const hetcomm_device_t device = {&table, &brought};
  hetcomm_context_t* other = nullptr;
  ASSERT_EQ(hetcomm_context_create(nullptr, &other), HETCOMM_OK);
  int32_t index = -1;
  ASSERT_EQ(hetcomm_device_add(other, &device, &index), HETCOMM_OK) << hetcomm_last_error();
  EXPECT_EQ(index, 1);
  hetcomm_device_info_t info{};
  info.struct_size = sizeof(info);
  ASSERT_EQ(hetcomm_device_info(other, index, &info), HETCOMM_OK);
  EXPECT_STREQ(info.kind, "brought");
  EXPECT_STREQ(info.name, "the caller's own");
  hetcomm_memory_t* memory = nullptr;
  ASSERT_EQ(hetcomm_memory_allocate(other, index, 8, &memory), HETCOMM_OK);
  const uint64_t sent = 7;
  uint64_t got = 0;
  EXPECT_EQ(hetcomm_memory_write(memory, 0, &sent, sizeof(sent)), HETCOMM_OK);
  EXPECT_EQ(hetcomm_memory_read(memory, 0, &got, sizeof(got)), HETCOMM_OK);
  EXPECT_EQ(got, sent);
  EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
  EXPECT_EQ(brought.ends, 0);
  EXPECT_EQ(hetcomm_context_destroy(other), HETCOMM_OK);
  EXPECT_EQ(brought.ends, 1);
}

TEST_F(BadInput, AddingAnInvalidDeviceIsRefused) {
  Brought brought;
  const hetcomm_device_table_t good = brought_table();
  const auto add = [&](const hetcomm_device_table_t* table) {
    return [this, table, &brought](Outputs& out) {
      const hetcomm_device_t device = {table, &brought};
      return hetcomm_device_add(context(), &device, out.first<int32_t>());
    };
  };
  hetcomm_device_table_t old = good;
  old.struct_size = 8;
  hetcomm_device_table_t lacking = good;
  lacking.event_query = nullptr;
  hetcomm_device_table_t half = good;
  half.hold_end = [](void*, void*) {};
  hetcomm_device_table_t own = good;
  own.kind = "sim-handle";
  hetcomm_device_table_t nameless = good;
  nameless.kind = "no kind!";
  const hetcomm_device_t device = {&good, &brought};
  expect_refused({
      {"no context", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_device_add(nullptr, &device, out.first<int32_t>()); }},
      {"no device", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) { return hetcomm_device_add(context(), nullptr, out.first<int32_t>()); }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_device_add(context(), &device, nullptr); }},
      {"no table", HETCOMM_UNSUPPORTED, add(nullptr)},
      {"another version", HETCOMM_UNSUPPORTED, add(&old)},
      {"an entry is missing", HETCOMM_UNSUPPORTED, add(&lacking)},
      {"the other half is missing", HETCOMM_UNSUPPORTED, add(&half)},
      {"a kind of the library's", HETCOMM_INVALID_ARGUMENT, add(&own)},
      {"no name of a kind", HETCOMM_UNSUPPORTED, add(&nameless)},
  });
  EXPECT_EQ(brought.ends, 0);
}

TEST_F(BadInput, InvalidMemoryCreationIsRefused) {
  char host[8];
  expect_refused({
      {"allocate: no context", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_memory_allocate(nullptr, 0, 8, out.first<hetcomm_memory_t*>());
       }},
      {"allocate: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_memory_allocate(context(), 0, 8, nullptr); }},
      {"wrap: no context", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_wrap(nullptr, 0, host, 8, out.first<hetcomm_memory_t*>());
       }},
      {"wrap: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_memory_wrap(context(), 0, host, 8, nullptr); }},
      {"wrap: no address", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_memory_wrap(context(), 0, nullptr, 8, out.first<hetcomm_memory_t*>());
       }},
      {"wrap: past the end of the address space", kAnyFailure,
       [&](Outputs& out) {
         return hetcomm_memory_wrap(context(), 0, host, UINT64_MAX, out.first<hetcomm_memory_t*>());
       }},
      {"wrap: no handle of this device", kAnyFailure,
       [&](Outputs& out) {
         return hetcomm_memory_wrap(context(), 1, host, 8, out.first<hetcomm_memory_t*>());
       }},
      {"wrap: no address of this device", kAnyFailure,
       [&](Outputs& out) {
         return hetcomm_memory_wrap(context(), 2, host, 8, out.first<hetcomm_memory_t*>());
       }},
  });
  for (int32_t device = 0; device < kDevices; ++device) {
    SCOPED_TRACE(device);
    for (const uint64_t size : {UINT64_MAX, UINT64_MAX / 2, UINT64_C(1) << 60}) {
      expect_refused({{"allocate", HETCOMM_OUT_OF_MEMORY, [&](Outputs& out) {
                         return hetcomm_memory_allocate(context(), device, size,
                                                        out.first<hetcomm_memory_t*>());
                       }}});
    }
  }
}

TEST_F(BadInput, WrappingBeyondAnAllocationIsRefused) {
  for (int32_t device = 1; device < kDevices; ++device) {
    SCOPED_TRACE(device);
    hetcomm_memory_t* memory = nullptr;
    void* address = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(context(), device, 100, &memory), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_address(memory, &address), HETCOMM_OK);
    for (const uint64_t size : {UINT64_C(101), UINT64_MAX}) {
      expect_refused({{"wrap", HETCOMM_OUT_OF_RANGE, [&](Outputs& out) {
                         return hetcomm_memory_wrap(context(), device, address, size,
                                                    out.first<hetcomm_memory_t*>());
                       }}});
    }
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
    expect_refused({{"wrap what was freed", kAnyFailure, [&](Outputs& out) {
                       return hetcomm_memory_wrap(context(), device, address, 100,
                                                  out.first<hetcomm_memory_t*>());
                     }}});
  }
}

TEST_F(BadInput, NullMemoriesAreRefused) {
  EXPECT_EQ(hetcomm_memory_destroy(nullptr), HETCOMM_OK);
  char host[8] = {};
  expect_refused({
      {"size", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) { return hetcomm_memory_size(nullptr, out.first<uint64_t>()); }},
      {"address", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) { return hetcomm_memory_address(nullptr, out.first<void*>()); }},
      {"write", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_memory_write(nullptr, 0, host, 8); }},
      {"read", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) { return hetcomm_memory_read(nullptr, 0, out.first<char>(), 8); }},
  });
}

TEST_F(BadInput, ReadsAndWritesBeyondAMemoryAreRefused) {
  constexpr struct {
    uint64_t offset;
    uint64_t size;
  } kOutside[] = {{0, 101},        {100, 1},          {101, 0},
                  {1, 100},        {UINT64_MAX, 1},   {UINT64_MAX, 2},
                  {1, UINT64_MAX}, {100, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
  for (int32_t device = 0; device < kDevices; ++device) {
    SCOPED_TRACE(device);
    hetcomm_memory_t* memory = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(context(), device, 100, &memory), HETCOMM_OK);
    char host[128] = {};
    for (const auto& range : kOutside) {
      expect_refused({
          {"write", HETCOMM_OUT_OF_RANGE,
           [&](Outputs&) { return hetcomm_memory_write(memory, range.offset, host, range.size); }},
          {"read", HETCOMM_OUT_OF_RANGE,
           [&](Outputs& out) {
             return hetcomm_memory_read(memory, range.offset, out.first<char>(), range.size);
           }},
      });
    }
    expect_refused({
        {"size: no output", HETCOMM_INVALID_ARGUMENT,
         [&](Outputs&) { return hetcomm_memory_size(memory, nullptr); }},
        {"address: no output", HETCOMM_INVALID_ARGUMENT,
         [&](Outputs&) { return hetcomm_memory_address(memory, nullptr); }},
        {"write: no source", HETCOMM_INVALID_ARGUMENT,
         [&](Outputs&) { return hetcomm_memory_write(memory, 0, nullptr, 1); }},
        {"read: no destination", HETCOMM_INVALID_ARGUMENT,
         [&](Outputs&) { return hetcomm_memory_read(memory, 0, nullptr, 1); }},
        {"context in use", HETCOMM_BUSY,
         [&](Outputs&) { return hetcomm_context_destroy(context()); }},
    });
    EXPECT_EQ(hetcomm_memory_write(memory, 100, nullptr, 0), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_memory_write(memory, 0, host, 100), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_memory_read(memory, 0, host, 100), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
  }
}

TEST_F(BadInput, InvalidPointerQueriesAreRefused) {
  char bytes[16] = {};
  const auto find = [](hetcomm_context_t* c, const void* pointer, uint64_t length) {
    return [=](Outputs& out) {
      return hetcomm_buffer_pointer(c, pointer, length, out.first<hetcomm_buffer_t>());
    };
  };
  expect_refused({
      {"no context", HETCOMM_INVALID_ARGUMENT, find(nullptr, bytes, 16)},
      {"no pointer", HETCOMM_INVALID_ARGUMENT, find(context(), nullptr, 16)},
      {"past the address space", HETCOMM_OUT_OF_RANGE, find(context(), bytes, UINT64_MAX)},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_buffer_pointer(context(), bytes, 16, nullptr); }},
  });
}

}  // namespace
}  // namespace hetcomm_test
