// Shared by the device tests: owners of devices and of the objects that devices return.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "devices/plugin/plugins.h"
#include "devices/registry.h"

namespace hetcomm {

#ifdef HETCOMM_HAS_TORCH
// Creates a torch device by torch's name for it, such as "cuda:0".
Result<Device> create_torch_device(std::string_view name);
#endif

// A device that is destroyed at the end of the test. Its functions are those of the device's table,
// with the instance bound.
class TestDevice {
 public:
  // Creates a device. |kind| is "host", "sim-handle", "sim-address", "example" (the first kind in a
  // plug-in), "opencl:" with options, or "torch:" with torch's name for a device.
  explicit TestDevice(std::string_view kind, std::string_view options = "") {
    Result<Device> device =
        kind == "host"      ? create_host_device()
        : kind == "example" ? create_example(options)
#ifdef HETCOMM_HAS_OPENCL
        : kind.starts_with(kOpenCl) ? create_opencl_device(kind.substr(kOpenCl.size()))
#endif
#ifdef HETCOMM_HAS_TORCH
        : kind.starts_with(kTorch) ? create_torch_device(kind.substr(kTorch.size()))
#endif
                                   : create_sim_device(kind, options);
    EXPECT_TRUE(device.ok()) << device.status().text();
    if (!device.ok()) return;
    table_ = complete_table(device->table).value();  // as the library uses it
    device_ = {&table_, device->instance};
  }
  ~TestDevice() { destroy(); }
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;

  void destroy() {
    const Device device = std::exchange(device_, {});
    if (device.table != nullptr) device.table->destroy(device.instance);
  }
  bool exists() const { return device_.table != nullptr; }
  const DeviceTable& table() const { return *device_.table; }
  void* instance() const { return device_.instance; }

  void* allocate(uint64_t size) {
    void* address = nullptr;
    EXPECT_EQ(table().allocate(instance(), size, &address), HETCOMM_OK);
    return address;
  }
  hetcomm_status_t try_allocate(uint64_t size) {
    void* address = nullptr;
    const hetcomm_status_t status = table().allocate(instance(), size, &address);
    if (status == HETCOMM_OK) free(address);
    return status;
  }
  void free(void* address) { table().free(instance(), address); }

  void* stream() {
    void* stream = nullptr;
    EXPECT_EQ(table().stream_create(instance(), &stream), HETCOMM_OK);
    return stream;
  }
  void destroy_stream(void* stream) { table().stream_destroy(instance(), stream); }
  hetcomm_status_t write(void* stream, void* address, uint64_t offset, const void* host,
                         uint64_t size) {
    return table().copy_from_host(instance(), stream, address, offset, host, size);
  }
  hetcomm_status_t read(void* stream, void* host, const void* address, uint64_t offset,
                        uint64_t size) {
    return table().copy_to_host(instance(), stream, host, address, offset, size);
  }
  void* record(void* stream) {
    void* event = nullptr;
    EXPECT_EQ(table().event_record(instance(), stream, &event), HETCOMM_OK);
    return event;
  }
  hetcomm_status_t query(void* event) { return table().event_query(instance(), event); }
  // Waits for all work in |stream|.
  void finish(void* stream) {
    void* const event = record(stream);
    EXPECT_EQ(table().event_wait(instance(), event), HETCOMM_OK);
    EXPECT_EQ(query(event), HETCOMM_OK);
    table().event_release(instance(), event);
  }

 private:
  static constexpr std::string_view kOpenCl = "opencl:";
  static constexpr std::string_view kTorch = "torch:";
  static Result<Device> create_example(std::string_view options) {
    const char* const path = std::getenv("HETCOMM_TEST_PLUGIN");
    if (path == nullptr) return Status(Code::kNotFound, "HETCOMM_TEST_PLUGIN is not set");
    Result<Plugins> plugins = Plugins::load(path, {}, [](std::string_view) {});
    return plugins.ok() ? plugins->create(plugins->kinds().front(), options)
                        : Result<Device>(plugins.status());
  }

  DeviceTable table_{};
  Device device_{};
};

// Returns the device kinds for which this program runs the table's test suite.
std::vector<std::string> kinds_to_test();

// Returns the kinds whose table has |entry|.
template <typename Entry>
std::vector<std::string> kinds_with(Entry DeviceTable::*entry) {
  std::vector<std::string> kinds = kinds_to_test();
  std::erase_if(kinds, [&](const std::string& kind) {
    // Without the variable there is no plug-in. Tests that need one report its absence.
    if (kind == "example" && std::getenv("HETCOMM_TEST_PLUGIN") == nullptr) return true;
    const TestDevice device(kind);
    return !device.exists() || device.table().*entry == nullptr;
  });
  return kinds;
}

// Names a test that runs over device kinds.
inline std::string kind_name(const testing::TestParamInfo<std::string>& kind) {
  std::string name = kind.param;
  for (const char letter : {'-', ':', '='}) std::erase(name, letter);
  return name;
}

inline std::vector<std::byte> random_bytes(size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Calls use(offset of the row in |rows|) for all rows, in order.
template <typename Use>
void for_each_row(const DeviceRows& rows, Use&& use) {
  for (uint64_t i = 0; i < rows.extents[0]; ++i) {
    for (uint64_t j = 0; j < rows.extents[1]; ++j) {
      use(rows.offset + i * rows.strides[0] + j * rows.strides[1]);
    }
  }
}

}  // namespace hetcomm
