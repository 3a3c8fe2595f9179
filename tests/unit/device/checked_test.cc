// The checks around foreign devices:
//   - each function's permitted statuses pass unchanged;
//   - every other status becomes DEVICE_LOST, and the device's text names the function and the
//     status;
//   - the device's own texts are kept; null entries stay null; copies between devices get the
//     device's own instances, and never another table's;
//   - an entry that extends past the end of the table counts as missing.
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "devices/device.h"
#include "devices/plugin/checked_device.h"
#include "devices/registry.h"

namespace hetcomm {
namespace {

using testing::HasSubstr;
using testing::Not;

hetcomm_status_t answer = HETCOMM_OK;  // the status returned by all functions below
int destroyed = 0;
void* between_to = nullptr;

DeviceTable table_of_answers() {
  DeviceTable table{};
  table.struct_size = sizeof(table);
  table.kind = "acme";
  table.destroy = [](void*) { ++destroyed; };
  table.name = [](void*) { return "acme"; };
  table.allocate = [](void*, uint64_t, void** out) {
    static char some;
    if (answer == HETCOMM_OK) *out = &some;
    return answer;
  };
  table.free = [](void*, void*) {};
  table.find = [](void*, const void*, void**, uint64_t*) { return answer; };
  table.copy_to_host = [](void*, void*, void*, const void*, uint64_t, uint64_t) { return answer; };
  table.copy_from_host = [](void*, void*, void*, uint64_t, const void*, uint64_t) {
    return answer;
  };
  table.stream_create = [](void*, void** out) {
    static char some;
    *out = &some;
    return hetcomm_status_t{HETCOMM_OK};
  };
  table.stream_destroy = [](void*, void*) {};
  table.event_record = [](void*, void*, void**) { return answer; };
  table.event_query = [](void*, void*) { return answer; };
  table.event_wait = [](void*, void*) { return answer; };
  table.event_release = [](void*, void*) {};
  return table;
}

std::string text_of(const Device& device) {
  char text[200] = "?";
  device.table->error_text(device.instance, text, sizeof(text));
  return text;
}

class Checked : public testing::Test {
 protected:
  explicit Checked(DeviceTable table = table_of_answers()) : table_(table) {
    answer = HETCOMM_OK;
    destroyed = 0;
    device_ = make_checked_device({&table_, &inner_}).value();
  }
  ~Checked() override {
    if (device_.table != nullptr) device_.table->destroy(device_.instance);
    EXPECT_EQ(destroyed, 1);
  }
  hetcomm_status_t find() {
    void* base = nullptr;
    uint64_t size = 0;
    return device_.table->find(device_.instance, nullptr, &base, &size);
  }
  hetcomm_status_t copy() {
    return device_.table->copy_to_host(device_.instance, nullptr, nullptr, nullptr, 0, 0);
  }
  hetcomm_status_t query() { return device_.table->event_query(device_.instance, nullptr); }

  DeviceTable table_;
  int inner_ = 0;
  Device device_;
};

TEST_F(Checked, PermittedStatusPassesUnchanged) {
  for (const hetcomm_status_t status :
       {HETCOMM_OK, HETCOMM_OUT_OF_MEMORY, HETCOMM_OUT_OF_RESOURCES, HETCOMM_DEVICE_LOST}) {
    answer = status;
    EXPECT_EQ(find(), status);
    EXPECT_EQ(copy(), status);
    EXPECT_EQ(query(), status);
    EXPECT_EQ(text_of(device_), "");
  }
  answer = HETCOMM_PENDING;
  EXPECT_EQ(query(), HETCOMM_PENDING);
  answer = HETCOMM_NOT_FOUND;
  EXPECT_EQ(find(), HETCOMM_NOT_FOUND);
  answer = HETCOMM_OUT_OF_RANGE;
  EXPECT_EQ(copy(), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(text_of(device_), "");
}

TEST_F(Checked, ForbiddenStatusBecomesDeviceLost) {
  for (const hetcomm_status_t status :
       {hetcomm_status_t{HETCOMM_CANCELLED}, hetcomm_status_t{HETCOMM_PEER_LOST},
        hetcomm_status_t{HETCOMM_TIMED_OUT}, hetcomm_status_t{HETCOMM_ABORTED},
        hetcomm_status_t{HETCOMM_CONTEXT_FAILED}, 77, -9999, 12345, INT32_MIN, INT32_MAX}) {
    answer = status;
    EXPECT_EQ(find(), HETCOMM_DEVICE_LOST) << status;
    EXPECT_THAT(text_of(device_), HasSubstr("find() returned " + std::to_string(status)));
    EXPECT_EQ(copy(), HETCOMM_DEVICE_LOST) << status;
    EXPECT_THAT(text_of(device_), HasSubstr("copy_to_host() returned " + std::to_string(status)));
    EXPECT_EQ(query(), HETCOMM_DEVICE_LOST) << status;
  }
  answer = HETCOMM_CANCELLED;
  EXPECT_EQ(copy(), HETCOMM_DEVICE_LOST);
  EXPECT_THAT(failure_text(device_, HETCOMM_DEVICE_LOST), HasSubstr("CANCELLED"));
  // Each function has its own permitted statuses.
  answer = HETCOMM_PENDING;
  EXPECT_EQ(copy(), HETCOMM_DEVICE_LOST);
  EXPECT_EQ(find(), HETCOMM_DEVICE_LOST);
  answer = HETCOMM_NOT_FOUND;
  EXPECT_EQ(copy(), HETCOMM_DEVICE_LOST);
  // A later failure in the device itself does not get this text.
  answer = HETCOMM_DEVICE_LOST;
  EXPECT_EQ(copy(), HETCOMM_DEVICE_LOST);
  EXPECT_EQ(text_of(device_), "");
}

TEST_F(Checked, NullAllocationIsReportedAsDeviceLost) {
  table_ = table_of_answers();
  DeviceTable none = table_of_answers();
  none.allocate = [](void*, uint64_t, void** out) {
    *out = nullptr;
    return hetcomm_status_t{HETCOMM_OK};
  };
  const Device device = make_checked_device({&none, &inner_}).value();
  void* address = &none;
  EXPECT_EQ(device.table->allocate(device.instance, 8, &address), HETCOMM_DEVICE_LOST);
  EXPECT_EQ(address, &none);
  EXPECT_THAT(text_of(device), HasSubstr("allocate()"));
  drop_wall(device);
  EXPECT_EQ(destroyed, 0) << "the device behind it is the caller's";
}

TEST_F(Checked, ErrorTextOfTheDeviceIsKept) {
  DeviceTable talks = table_of_answers();
  talks.error_text = [](void*, char* text, uint64_t size) {
    std::strncpy(text, "the bus fell off", size - 1);
  };
  const Device device = make_checked_device({&talks, &inner_}).value();
  EXPECT_EQ(text_of(device), "the bus fell off");
  answer = HETCOMM_CANCELLED;
  EXPECT_EQ(device.table->event_wait(device.instance, nullptr), HETCOMM_DEVICE_LOST);
  EXPECT_THAT(text_of(device), HasSubstr("event_wait() returned -4 (CANCELLED), which it must not; "
                                         "the bus fell off"));
  for (uint64_t size = 0; size < 80; ++size) {
    std::string text(100, '#');
    device.table->error_text(device.instance, text.data(), size);
    EXPECT_EQ(text.find_first_not_of('#', size), std::string::npos) << size;
    EXPECT_TRUE(size == 0 || std::strlen(text.c_str()) < size) << size;
  }
  drop_wall(device);
}

TEST_F(Checked, NullEntriesStayNull) {
  EXPECT_EQ(device_.table->pin_host, nullptr);
  EXPECT_EQ(device_.table->copy_rows_between, nullptr);
  EXPECT_EQ(device_.table->locate, nullptr);
  EXPECT_EQ(device_.table->reduce, nullptr);
  EXPECT_EQ(device_.table->retain_rule, nullptr);
  EXPECT_EQ(device_.table->struct_size, sizeof(DeviceTable));
}

TEST_F(Checked, CopiesBetweenDevicesGetTheDevicesOwnInstances) {
  DeviceTable copies = table_of_answers();
  copies.copy_rows_between = [](void*, void*, const void*, const DeviceRows*, void* to, void*,
                                const DeviceRows*) {
    between_to = to;
    return answer;
  };
  DeviceTable others = copies;
  others.copy_rows_between = [](void*, void*, const void*, const DeviceRows*, void*, void*,
                                const DeviceRows*) { return answer; };
  int second = 0;
  const Device from = make_checked_device({&copies, &inner_}).value();
  const Device to = make_checked_device({&copies, &second}).value();
  const Device strange = make_checked_device({&others, &second}).value();
  const DeviceRows rows = one_row(0, 0);
  const auto copy = [&](void* target) {
    return from.table->copy_rows_between(from.instance, nullptr, nullptr, &rows, target, nullptr,
                                         &rows);
  };
  EXPECT_EQ(copy(to.instance), HETCOMM_OK);
  EXPECT_EQ(between_to, &second);
  EXPECT_EQ(copy(strange.instance), HETCOMM_UNSUPPORTED);
  EXPECT_EQ(copy(nullptr), HETCOMM_INVALID_ARGUMENT);
  for (const Device& each : {from, to, strange}) drop_wall(each);
}

TEST_F(Checked, LocateQueryReachesTheWrappedDevices) {
  DeviceTable finds = table_of_answers();
  finds.locate = [](void* const* devices, uint64_t count, const void* address,
                    hetcomm_device_place_t* out) {
    for (uint64_t i = 0; i < count; ++i) {
      if (devices[i] != address) continue;
      *out = {.device = i, .base = devices[i], .size = 4, .allocation_id = 9};
      return hetcomm_status_t{HETCOMM_OK};
    }
    return hetcomm_status_t{HETCOMM_NOT_FOUND};
  };
  DeviceTable lies = finds;
  lies.locate = [](void* const*, uint64_t count, const void*, hetcomm_device_place_t* out) {
    out->device = count;
    return hetcomm_status_t{HETCOMM_OK};
  };
  std::vector<int> instances(5);
  std::vector<Device> all;
  std::vector<void*> asked;
  for (int& each : instances) {
    all.push_back(make_checked_device({&finds, &each}).value());
    asked.push_back(all.back().instance);
  }
  hetcomm_device_place_t place{};
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[0].table->locate(asked.data(), asked.size(), &instances[i], &place), HETCOMM_OK);
    EXPECT_EQ(place.device, i);
    EXPECT_EQ(place.base, &instances[i]);
  }
  EXPECT_EQ(all[0].table->locate(asked.data(), asked.size(), &place, &place), HETCOMM_NOT_FOUND);
  // A device behind another table is called, and its impossible answer is ignored.
  all.push_back(make_checked_device({&lies, &inner_}).value());
  asked.push_back(all.back().instance);
  EXPECT_EQ(all[0].table->locate(asked.data(), asked.size(), &place, &place), HETCOMM_DEVICE_LOST);
  for (const Device& each : all) drop_wall(each);
}

TEST(DeviceTables, EntryBeyondTheEndOfTheTableCountsAsMissing) {
  Result<Device> whole = create_sim_device("sim-address", "memory=1M");
  ASSERT_TRUE(whole.ok());
  constexpr uint64_t kReduce = offsetof(DeviceTable, reduce);
  for (uint64_t bytes = 0; bytes <= sizeof(void*); ++bytes) {
    DeviceTable table = *whole->table;
    table.struct_size = kReduce + bytes;
    Result<DeviceTable> completed = complete_table(&table);
    ASSERT_TRUE(completed.ok()) << completed.status().text();
    EXPECT_EQ(completed->reduce, bytes == sizeof(void*) ? table.reduce : nullptr) << bytes;
    EXPECT_EQ(completed->copy_rows_between, table.copy_rows_between);
    EXPECT_EQ(completed->numa_node, nullptr);
  }
  whole->table->destroy(whole->instance);
}

}  // namespace
}  // namespace hetcomm
