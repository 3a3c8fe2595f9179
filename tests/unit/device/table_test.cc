// The table's contract, for every kind of device. Data arrives where it was sent, in order. Wrong
// arguments are refused and leave outputs unchanged. Empty transfers are allowed. All this also
// holds with several threads. find() knows exactly the allocated bytes, and no longer finds freed
// memory. A failed copy is reported.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "src/system/unique_fd.h"
#include "tests/unit/device/fixture.h"

namespace hetcomm {
namespace {

class EveryDevice : public testing::TestWithParam<std::string> {
 protected:
  std::vector<UniqueFd> files_;  // the device may write them until it is destroyed
  TestDevice device_{GetParam()};
};

// Devices whose copy engines support rows.
class DevicesWithRows : public EveryDevice {};

// Devices that can copy to other devices directly.
class DevicesThatCopyBetween : public EveryDevice {};
// Devices that signal the end of copies through a descriptor.
class DevicesThatNotify : public EveryDevice {};
// Devices that allocate host memory.
class DevicesWithHostMemory : public EveryDevice {};
// Devices that can order operations in a user's stream.
class DevicesWithUserStreams : public EveryDevice {
 protected:
  static void* native_of(TestDevice& device, void* stream) {
    void* native = nullptr;
    EXPECT_EQ(device.table().stream_native(device.instance(), stream, &native), HETCOMM_OK);
    return native;
  }
};

// Devices that find an address among all devices of their kind.
class DevicesThatLocate : public EveryDevice {};

// Devices that can also hold back a user's stream.
class DevicesThatHold : public DevicesWithUserStreams {};

bool becomes_readable(int file) {
  pollfd wanted = {.fd = file, .events = POLLIN, .revents = 0};
  return poll(&wanted, 1, 20'000) == 1;
}

// Returns how often the eventfd was signalled since the last call.
uint64_t take_count(int eventfd) {
  uint64_t count = 0;
  return read(eventfd, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

TEST_P(EveryDevice, TableHasAllRequiredEntries) {
  const DeviceTable& table = device_.table();
  EXPECT_EQ(table.struct_size, sizeof(DeviceTable));
  const bool is_plugin = GetParam() == "example";  // it may have any kind
  EXPECT_TRUE(is_plugin || GetParam().starts_with(table.kind));
  EXPECT_EQ(table.host_accessible, GetParam() == "host" ? 1 : 0);
  EXPECT_NE(table.destroy, nullptr);
  EXPECT_NE(table.allocate, nullptr);
  EXPECT_NE(table.free, nullptr);
  EXPECT_TRUE(table.host_accessible || table.find != nullptr);
  EXPECT_NE(table.stream_create, nullptr);
  EXPECT_NE(table.stream_destroy, nullptr);
  EXPECT_NE(table.copy_to_host, nullptr);
  EXPECT_NE(table.copy_from_host, nullptr);
  EXPECT_NE(table.event_record, nullptr);
  EXPECT_NE(table.event_query, nullptr);
  EXPECT_NE(table.event_wait, nullptr);
  EXPECT_NE(table.event_release, nullptr);
  EXPECT_EQ(table.pin_host == nullptr, table.unpin_host == nullptr);
  EXPECT_EQ(table.copy_rows_to_host == nullptr, table.copy_rows_from_host == nullptr);
  EXPECT_EQ(table.allocate_host == nullptr, table.free_host == nullptr);
  if (table.host_memory_suffices != nullptr) {
    const int32_t suffices = table.host_memory_suffices(device_.instance());
    EXPECT_TRUE(suffices == 0 || (suffices == 1 && !GetParam().starts_with("sim"))) << suffices;
  }
  EXPECT_STRNE(table.name(device_.instance()), "");
  if (is_plugin) return;
  const bool is_sim = GetParam().starts_with("sim");
  const bool is_accelerator = GetParam().starts_with("opencl") || GetParam().starts_with("torch");
  const bool knows_rows = GetParam() == "sim-address" || is_accelerator;
  EXPECT_EQ(table.copy_rows_to_host != nullptr, knows_rows);
  EXPECT_EQ(table.copy_rows_between != nullptr, knows_rows);
  EXPECT_EQ(table.reduce != nullptr, knows_rows);
  EXPECT_EQ(table.allocate_host != nullptr, knows_rows);
  EXPECT_EQ(table.event_notify != nullptr, is_sim || is_accelerator);
  EXPECT_EQ(table.user_stream_open != nullptr, is_sim || is_accelerator);
}

TEST_P(EveryDevice, DataOfVariousSizesReadsBackAsWritten) {
  void* const stream = device_.stream();
  for (const size_t size : {1u, 7u, 64u, 4096u, 65537u, 3u << 20}) {
    void* const memory = device_.allocate(size);
    const std::vector<std::byte> sent = random_bytes(size, static_cast<unsigned>(size));
    std::vector<std::byte> received(size);
    ASSERT_EQ(device_.write(stream, memory, 0, sent.data(), size), HETCOMM_OK);
    // The stream orders the read after the write, so no wait is needed.
    ASSERT_EQ(device_.read(stream, received.data(), memory, 0, size), HETCOMM_OK);
    device_.finish(stream);
    EXPECT_EQ(received, sent) << size;
    device_.free(memory);
  }
  device_.destroy_stream(stream);
}

TEST_P(DevicesWithRows, RowsReachTheRightBytes) {
  const DeviceTable& table = device_.table();
  constexpr uint64_t kSize = 4000;
  void* const stream = device_.stream();
  void* const memory = device_.allocate(kSize);
  std::vector<std::byte> model = random_bytes(kSize, 1);
  ASSERT_EQ(device_.write(stream, memory, 0, model.data(), kSize), HETCOMM_OK);
  device_.finish(stream);
  std::mt19937 random(5);
  for (unsigned round = 0; round < 300; ++round) {
    DeviceRows rows;
    rows.row_bytes = random() % 9;
    rows.extents[0] = random() % 5;
    rows.extents[1] = random() % 6;
    rows.strides[1] = rows.row_bytes + random() % 4;
    rows.strides[0] = rows.strides[1] * rows.extents[1] + random() % 7;
    rows.offset = random() % 3000;
    const std::vector<std::byte> sent = random_bytes(bytes_of(rows) + 1, round);
    std::vector<std::byte> back(sent.size(), std::byte{0x77});
    ASSERT_EQ(table.copy_rows_from_host(device_.instance(), stream, memory, &rows, sent.data()),
              HETCOMM_OK);
    ASSERT_EQ(table.copy_rows_to_host(device_.instance(), stream, back.data(), memory, &rows),
              HETCOMM_OK);
    std::vector<std::byte> whole(kSize);
    ASSERT_EQ(device_.read(stream, whole.data(), memory, 0, kSize), HETCOMM_OK);
    device_.finish(stream);
    size_t next = 0;
    for_each_row(rows, [&](uint64_t at) {
      for (uint64_t k = 0; k < rows.row_bytes; ++k) model[at + k] = sent[next++];
    });
    ASSERT_EQ(next, bytes_of(rows));
    ASSERT_EQ(whole, model) << round;
    ASSERT_TRUE(std::equal(back.begin(), back.end() - 1, sent.begin())) << round;
    ASSERT_EQ(back.back(), std::byte{0x77});
  }
  device_.free(memory);
  device_.destroy_stream(stream);
}

TEST_P(DevicesThatCopyBetween, RowsReachTheRightBytes) {
  const DeviceTable& table = device_.table();
  constexpr uint64_t kSize = 4000;
  void* const stream = device_.stream();
  void* const from = device_.allocate(kSize);
  void* const to = device_.allocate(kSize);
  const std::vector<std::byte> source = random_bytes(kSize, 1);
  std::vector<std::byte> model = random_bytes(kSize, 2);
  ASSERT_EQ(device_.write(stream, from, 0, source.data(), kSize), HETCOMM_OK);
  ASSERT_EQ(device_.write(stream, to, 0, model.data(), kSize), HETCOMM_OK);
  std::mt19937 random(5);
  for (unsigned round = 0; round < 300; ++round) {
    DeviceRows rows[2];
    for (DeviceRows& side : rows) {
      side.row_bytes = round % 9;
      side.extents[0] = round % 5;
      side.extents[1] = round % 6;
      side.strides[1] = side.row_bytes + random() % 4;
      side.strides[0] = side.strides[1] * side.extents[1] + random() % 7;
      side.offset = random() % 3000;
    }
    ASSERT_EQ(table.copy_rows_between(device_.instance(), stream, from, &rows[0],
                                      device_.instance(), to, &rows[1]),
              HETCOMM_OK);
    std::vector<uint64_t> places;
    for_each_row(rows[0], [&](uint64_t at) { places.push_back(at); });
    size_t next = 0;
    for_each_row(rows[1], [&](uint64_t at) {
      std::copy_n(source.data() + places[next++], rows[0].row_bytes, model.data() + at);
    });
    std::vector<std::byte> whole(kSize);
    ASSERT_EQ(device_.read(stream, whole.data(), to, 0, kSize), HETCOMM_OK);
    device_.finish(stream);
    ASSERT_EQ(whole, model) << round;
  }
  device_.free(from);
  device_.free(to);
  device_.destroy_stream(stream);
}

TEST_P(DevicesThatCopyBetween, CopyWithinOneAllocationReachesTheRightBytes) {
  void* const stream = device_.stream();
  constexpr uint64_t kHalf = 1 << 20;
  void* const memory = device_.allocate(2 * kHalf);
  const std::vector<std::byte> sent = random_bytes(kHalf, 1);
  ASSERT_EQ(device_.write(stream, memory, 0, sent.data(), kHalf), HETCOMM_OK);
  const DeviceRows first = one_row(0, kHalf);
  const DeviceRows second = one_row(kHalf, kHalf);
  ASSERT_EQ(device_.table().copy_rows_between(device_.instance(), stream, memory, &first,
                                              device_.instance(), memory, &second),
            HETCOMM_OK);
  std::vector<std::byte> back(kHalf);
  ASSERT_EQ(device_.read(stream, back.data(), memory, kHalf, kHalf), HETCOMM_OK);
  device_.finish(stream);
  EXPECT_TRUE(back == sent);
  // Copies rows with other strides into the free half.
  const DeviceRows dense{.offset = 0, .row_bytes = 64, .extents = {4, 100}, .strides = {6400, 64}};
  for (const uint64_t pitch : {80u, 96u, 128u}) {
    const DeviceRows wide{.offset = kHalf + 128,
                          .row_bytes = 64,
                          .extents = {4, 100},
                          .strides = {pitch * 130, pitch}};
    ASSERT_EQ(device_.table().copy_rows_between(device_.instance(), stream, memory, &dense,
                                                device_.instance(), memory, &wide),
              HETCOMM_OK)
        << pitch;
    std::vector<std::byte> half(kHalf);
    ASSERT_EQ(device_.read(stream, half.data(), memory, kHalf, kHalf), HETCOMM_OK);
    device_.finish(stream);
    size_t next = 0;
    for_each_row(wide, [&](uint64_t at) {
      ASSERT_TRUE(std::equal(sent.begin() + static_cast<ptrdiff_t>(next),
                             sent.begin() + static_cast<ptrdiff_t>(next + 64),
                             half.begin() + static_cast<ptrdiff_t>(at - kHalf)));
      next += 64;
    });
  }
  device_.free(memory);
  device_.destroy_stream(stream);
}

// The device can copy to another one of its kind, or reports that it cannot.
TEST_P(DevicesThatCopyBetween, CopyToAnotherDeviceSucceedsOrIsRefused) {
  TestDevice other(GetParam());
  void* const stream = device_.stream();
  void* const from = device_.allocate(1000);
  void* const to = other.allocate(1000);
  const std::vector<std::byte> sent = random_bytes(1000, 1);
  std::vector<std::byte> back(1000);
  ASSERT_EQ(device_.write(stream, from, 0, sent.data(), 1000), HETCOMM_OK);
  const auto copy = [&](void* in, const DeviceRows& rows) {
    return device_.table().copy_rows_between(device_.instance(), in, from, &rows, other.instance(),
                                             to, &rows);
  };
  const hetcomm_status_t way = copy(nullptr, one_row(0, 0));
  ASSERT_TRUE(way == HETCOMM_OK || way == HETCOMM_UNSUPPORTED) << way;
  ASSERT_EQ(copy(stream, one_row(0, 1000)), way);
  device_.finish(stream);
  if (way == HETCOMM_OK) {
    void* const others = other.stream();
    ASSERT_EQ(other.read(others, back.data(), to, 0, 1000), HETCOMM_OK);
    other.finish(others);
    EXPECT_EQ(back, sent);
    other.destroy_stream(others);
  }
  device_.free(from);
  other.free(to);
  device_.destroy_stream(stream);
}

TEST_P(DevicesThatCopyBetween, InvalidArgumentsAreRefused) {
  const DeviceTable& table = device_.table();
  void* const stream = device_.stream();
  void* const from = device_.allocate(100);
  void* const to = device_.allocate(100);
  const std::vector<std::byte> before(100, std::byte{0x77});
  ASSERT_EQ(device_.write(stream, to, 0, before.data(), 100), HETCOMM_OK);
  const auto copy = [&](void* in, const DeviceRows* from_rows, const DeviceRows* to_rows) {
    return table.copy_rows_between(device_.instance(), in, from, from_rows, device_.instance(), to,
                                   to_rows);
  };
  const DeviceRows right{.offset = 0, .row_bytes = 10, .extents = {1, 4}, .strides = {0, 20}};
  const DeviceRows outside{.offset = 0, .row_bytes = 10, .extents = {1, 4}, .strides = {0, 31}};
  const DeviceRows longer{.offset = 0, .row_bytes = 11, .extents = {1, 4}, .strides = {0, 20}};
  const DeviceRows more{.offset = 0, .row_bytes = 10, .extents = {1, 5}, .strides = {0, 20}};
  const DeviceRows late = one_row(~uint64_t{0}, 10);
  const DeviceRows row = one_row(0, 10);
  int here = 0;
  EXPECT_EQ(copy(stream, &right, &outside), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(copy(stream, &outside, &right), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(copy(stream, &late, &row), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(copy(stream, &row, &late), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(copy(stream, &right, &longer), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(copy(stream, &more, &right), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(copy(stream, &right, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(copy(stream, nullptr, &right), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(copy(nullptr, &right, &right), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.copy_rows_between(device_.instance(), stream, from, &row, device_.instance(),
                                    &here, &row),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.copy_rows_between(device_.instance(), stream, &here, &row, device_.instance(), to,
                                    &row),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.copy_rows_between(device_.instance(), stream, from, &row, nullptr, to, &row),
            HETCOMM_INVALID_ARGUMENT);
  std::vector<std::byte> after(100);
  ASSERT_EQ(device_.read(stream, after.data(), to, 0, 100), HETCOMM_OK);
  device_.finish(stream);
  EXPECT_EQ(after, before);
  device_.free(from);
  device_.free(to);
  device_.destroy_stream(stream);
}

TEST_P(DevicesWithRows, RowsBeyondTheAllocationAreRefused) {
  const DeviceTable& table = device_.table();
  void* const stream = device_.stream();
  void* const memory = device_.allocate(100);
  std::vector<std::byte> host(4096, std::byte{0x77});
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  const auto refused = [&](const DeviceRows& rows) {
    EXPECT_EQ(table.copy_rows_to_host(device_.instance(), stream, host.data(), memory, &rows),
              HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(table.copy_rows_from_host(device_.instance(), stream, memory, &rows, host.data()),
              HETCOMM_OUT_OF_RANGE);
  };
  refused({.offset = 0, .row_bytes = 10, .extents = {1, 4}, .strides = {0, 31}});
  refused({.offset = 1, .row_bytes = 10, .extents = {3, 3}, .strides = {30, 15}});
  refused({.offset = 0, .row_bytes = 1, .extents = {3, 1}, .strides = {kHuge / 2 + 1, 0}});
  refused({.offset = kHuge, .row_bytes = 2, .extents = {1, 1}, .strides = {0, 0}});
  refused({.offset = 0, .row_bytes = 2, .extents = {kHuge, kHuge}, .strides = {0, 0}});
  const DeviceRows right{.offset = 0, .row_bytes = 10, .extents = {1, 4}, .strides = {0, 30}};
  EXPECT_EQ(table.copy_rows_to_host(device_.instance(), stream, host.data(), memory, nullptr),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.copy_rows_to_host(device_.instance(), nullptr, host.data(), memory, &right),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.copy_rows_to_host(device_.instance(), stream, nullptr, memory, &right),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.copy_rows_to_host(device_.instance(), stream, host.data(), host.data(), &right),
            HETCOMM_INVALID_ARGUMENT);
  device_.finish(stream);
  EXPECT_EQ(host, std::vector<std::byte>(4096, std::byte{0x77}));
  device_.free(memory);
  device_.destroy_stream(stream);
}

TEST_P(DevicesThatNotify, EveryEventIsAnnouncedOnce) {
  constexpr size_t kSize = 1u << 20;
  constexpr int kEvents = 20;
  const DeviceTable& table = device_.table();
  const UniqueFd file(eventfd(0, EFD_NONBLOCK));
  void* const stream = device_.stream();
  void* const memory = device_.allocate(kSize);
  std::vector<std::byte> bytes(kSize);
  uint64_t rung = 0;
  for (int i = 0; i < kEvents; ++i) {
    ASSERT_EQ(device_.write(stream, memory, 0, bytes.data(), kSize), HETCOMM_OK);
    void* const event = device_.record(stream);
    // Every second notification is requested only after the event has completed.
    if (i % 2 == 1) device_.finish(stream);
    ASSERT_EQ(table.event_notify(device_.instance(), event, file.get()), HETCOMM_OK);
    if (i % 4 == 0) {
      // Once the notification arrives, the event has completed.
      while (rung < static_cast<uint64_t>(i) + 1) {
        ASSERT_TRUE(becomes_readable(file.get()));
        rung += take_count(file.get());
      }
      EXPECT_EQ(device_.query(event), HETCOMM_OK);
    }
    table.event_release(device_.instance(), event);
  }
  device_.destroy_stream(stream);
  while (rung < kEvents) {
    ASSERT_TRUE(becomes_readable(file.get())) << rung;
    rung += take_count(file.get());
  }
  device_.free(memory);
  device_.destroy();
  EXPECT_EQ(rung + take_count(file.get()), kEvents);
}

TEST_P(DevicesThatNotify, InvalidArgumentsAreRefused) {
  const UniqueFd file(eventfd(0, EFD_NONBLOCK));
  void* const stream = device_.stream();
  void* const event = device_.record(stream);
  const auto notify = [&](void* which, int descriptor) {
    return device_.table().event_notify(device_.instance(), which, descriptor);
  };
  EXPECT_EQ(notify(nullptr, file.get()), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(notify(event, -1), HETCOMM_INVALID_ARGUMENT);
  device_.table().event_release(device_.instance(), event);
  device_.destroy_stream(stream);
}

TEST_P(DevicesWithHostMemory, CopiesUseTheDevicesHostMemory) {
  const DeviceTable& table = device_.table();
  constexpr size_t kSize = 300'000;
  void* const stream = device_.stream();
  void* const memory = device_.allocate(kSize);
  std::vector<void*> blocks(8);
  for (void*& block : blocks) {
    ASSERT_EQ(table.allocate_host(device_.instance(), kSize, &block), HETCOMM_OK);
    ASSERT_NE(block, nullptr);
  }
  for (unsigned i = 0; i + 1 < blocks.size(); ++i) {
    const std::vector<std::byte> sent = random_bytes(kSize, i);
    std::memcpy(blocks[i], sent.data(), kSize);
    ASSERT_EQ(device_.write(stream, memory, 0, blocks[i], kSize), HETCOMM_OK);
    ASSERT_EQ(device_.read(stream, blocks[i + 1], memory, 0, kSize), HETCOMM_OK);
    device_.finish(stream);
    EXPECT_EQ(std::memcmp(blocks[i + 1], sent.data(), kSize), 0);
  }
  for (void* const block : blocks) table.free_host(device_.instance(), block);
  void* untouched = &device_;
  EXPECT_EQ(table.allocate_host(device_.instance(), 0, &untouched), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.allocate_host(device_.instance(), 1, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_NE(table.allocate_host(device_.instance(), UINT64_MAX, &untouched), HETCOMM_OK);
  EXPECT_EQ(untouched, &device_);
  device_.free(memory);
  device_.destroy_stream(stream);
}

TEST_P(DevicesThatHold, HoldDelaysLaterWorkOfItsStream) {
  const DeviceTable& table = device_.table();
  constexpr size_t kSize = 100'000;
  void* const stream = device_.stream();
  void* const other = device_.stream();
  void* const memory = device_.allocate(kSize);
  void* user_stream = nullptr;
  ASSERT_EQ(table.user_stream_open(device_.instance(), native_of(device_, stream), &user_stream),
            HETCOMM_OK);
  std::vector<std::byte> back(kSize);
  for (unsigned round = 0; round < 3; ++round) {
    const std::vector<std::byte> first = random_bytes(kSize, round);
    const std::vector<std::byte> second = random_bytes(kSize, 100 + round);
    ASSERT_EQ(device_.write(stream, memory, 0, first.data(), kSize), HETCOMM_OK);
    void* before = nullptr;
    ASSERT_EQ(table.user_stream_record(device_.instance(), user_stream, &before), HETCOMM_OK);
    void* hold = nullptr;
    ASSERT_EQ(table.user_stream_hold(device_.instance(), user_stream, &hold), HETCOMM_OK);
    ASSERT_EQ(device_.write(stream, memory, 0, second.data(), kSize), HETCOMM_OK);
    void* after = nullptr;
    ASSERT_EQ(table.user_stream_record(device_.instance(), user_stream, &after), HETCOMM_OK);
    void* const written = device_.record(stream);
    EXPECT_EQ(table.event_wait(device_.instance(), before), HETCOMM_OK);
    EXPECT_EQ(device_.query(before), HETCOMM_OK);
    // Other streams keep working.
    ASSERT_EQ(device_.read(other, back.data(), memory, 0, kSize), HETCOMM_OK);
    device_.finish(other);
    EXPECT_EQ(back, first);
    EXPECT_EQ(device_.query(after), HETCOMM_PENDING);
    EXPECT_EQ(device_.query(written), HETCOMM_PENDING);
    files_.emplace_back(eventfd(0, EFD_NONBLOCK));
    const UniqueFd& file = files_.back();
    ASSERT_EQ(table.event_notify(device_.instance(), after, file.get()), HETCOMM_OK);
    EXPECT_EQ(take_count(file.get()), 0u);
    table.hold_end(device_.instance(), hold);
    EXPECT_TRUE(becomes_readable(file.get()));
    EXPECT_EQ(device_.query(after), HETCOMM_OK);
    EXPECT_EQ(table.event_wait(device_.instance(), written), HETCOMM_OK);
    for (void* const event : {before, after, written}) {
      table.event_release(device_.instance(), event);
    }
    ASSERT_EQ(device_.read(other, back.data(), memory, 0, kSize), HETCOMM_OK);
    device_.finish(other);
    EXPECT_EQ(back, second);
  }
  table.user_stream_close(device_.instance(), user_stream);
  device_.free(memory);
  device_.destroy_stream(stream);
  device_.destroy_stream(other);
}

// An event on a user's stream completes after the stream's earlier work, and not before.
TEST_P(DevicesWithUserStreams, EventCompletesAfterEarlierWorkOfTheStream) {
  const DeviceTable& table = device_.table();
  constexpr size_t kSize = 4u << 20;
  void* const stream = device_.stream();
  void* const memory = device_.allocate(kSize);
  void* user_stream = nullptr;
  ASSERT_EQ(table.user_stream_open(device_.instance(), native_of(device_, stream), &user_stream),
            HETCOMM_OK);
  const std::vector<std::byte> sent = random_bytes(kSize, 1);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ(device_.write(stream, memory, 0, sent.data(), kSize), HETCOMM_OK);
    }
    void* const before = device_.record(stream);
    void* event = nullptr;
    ASSERT_EQ(table.user_stream_record(device_.instance(), user_stream, &event), HETCOMM_OK);
    EXPECT_EQ(table.event_wait(device_.instance(), event), HETCOMM_OK);
    EXPECT_EQ(device_.query(event), HETCOMM_OK);
    EXPECT_EQ(device_.query(before), HETCOMM_OK);
    table.event_release(device_.instance(), before);
    table.event_release(device_.instance(), event);
  }
  table.user_stream_close(device_.instance(), user_stream);
  device_.free(memory);
  device_.destroy_stream(stream);
}

TEST_P(DevicesWithUserStreams, PointerThatIsNotAStreamIsRefused) {
  const DeviceTable& table = device_.table();
  void* const stream = device_.stream();
  void* const native = native_of(device_, stream);
  uint64_t word = 0;
  void* untouched = &word;
  for (void* const wrong : std::vector<void*>{nullptr, &word, reinterpret_cast<void*>(8)}) {
    if (wrong == nullptr && (table.flags & HETCOMM_DEVICE_NULL_STREAM) != 0) continue;
    EXPECT_EQ(table.user_stream_open(device_.instance(), wrong, &untouched),
              HETCOMM_INVALID_ARGUMENT);
  }
  // Another device's stream is not valid on this device.
  TestDevice second(GetParam());
  void* const elsewhere = second.stream();
  EXPECT_EQ(table.user_stream_open(device_.instance(), native_of(second, elsewhere), &untouched),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(untouched, &word);
  EXPECT_EQ(table.user_stream_open(device_.instance(), native, nullptr), HETCOMM_INVALID_ARGUMENT);
  void* user_stream = nullptr;
  ASSERT_EQ(table.user_stream_open(device_.instance(), native, &user_stream), HETCOMM_OK);
  EXPECT_EQ(table.user_stream_record(device_.instance(), user_stream, nullptr),
            HETCOMM_INVALID_ARGUMENT);
  if (table.user_stream_hold != nullptr) {
    EXPECT_EQ(table.user_stream_hold(device_.instance(), user_stream, nullptr),
              HETCOMM_INVALID_ARGUMENT);
    table.hold_end(device_.instance(), nullptr);
  }
  EXPECT_EQ(table.stream_native(device_.instance(), stream, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.stream_native(device_.instance(), nullptr, &untouched), HETCOMM_INVALID_ARGUMENT);
  table.user_stream_close(device_.instance(), user_stream);
  second.destroy_stream(elsewhere);
  device_.destroy_stream(stream);
}

TEST_P(EveryDevice, CopiesAtAnyOffsetReachTheRightBytes) {
  constexpr size_t kSize = 1000;
  void* const stream = device_.stream();
  void* const memory = device_.allocate(kSize);
  std::vector<std::byte> model(kSize, std::byte{0});
  ASSERT_EQ(device_.write(stream, memory, 0, model.data(), kSize), HETCOMM_OK);
  device_.finish(stream);
  std::mt19937 random(3);
  std::vector<std::vector<std::byte>> pieces;  // must stay valid until the event completes
  for (unsigned i = 0; i < 200; ++i) {
    const size_t offset = random() % kSize;
    pieces.push_back(random_bytes(random() % (kSize - offset + 1), i));
    const std::vector<std::byte>& piece = pieces.back();
    ASSERT_EQ(device_.write(stream, memory, offset, piece.data(), piece.size()), HETCOMM_OK);
    std::copy(piece.begin(), piece.end(), model.begin() + static_cast<ptrdiff_t>(offset));
  }
  std::vector<std::byte> whole(kSize);
  std::vector<std::byte> part(10);
  ASSERT_EQ(device_.read(stream, whole.data(), memory, 0, kSize), HETCOMM_OK);
  ASSERT_EQ(device_.read(stream, part.data(), memory, 500, part.size()), HETCOMM_OK);
  device_.finish(stream);
  EXPECT_EQ(whole, model);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), model.begin() + 500));
  device_.destroy_stream(stream);
  device_.free(memory);
}

// The status that find() returns for |address|, and the allocation found.
struct Found {
  hetcomm_status_t status = HETCOMM_INTERNAL;
  void* base = nullptr;
  uint64_t size = 0;
};
Found find(const TestDevice& device, const void* address) {
  Found found;
  found.status = device.table().find(device.instance(), address, &found.base, &found.size);
  return found;
}

// find() knows an allocation by its first byte and by no byte before or after it.
TEST_P(EveryDevice, FindCoversExactlyTheAllocation) {
  if (device_.table().find == nullptr)
    GTEST_SKIP() << "optional where the CPU may touch the memory";
  for (const uint64_t size : {1u, 100u, 4096u, 65536u, 1000001u}) {
    auto* const memory = static_cast<std::byte*>(device_.allocate(size));
    const Found own = find(device_, memory);
    ASSERT_EQ(own.status, HETCOMM_OK);
    EXPECT_EQ(own.base, memory);
    EXPECT_EQ(own.size, size);
    const Found last = find(device_, memory + size - 1);
    if (last.status == HETCOMM_OK && last.base == memory) {
      EXPECT_EQ(last.size, size);
    } else {
      EXPECT_NE(last.status, HETCOMM_OK) << "only a handle is known by itself alone";
    }
    for (const std::byte* const outside : {memory - 1, memory + size}) {
      const Found found = find(device_, outside);
      EXPECT_FALSE(found.status == HETCOMM_OK && found.base == memory)
          << size << " bytes, " << (outside < memory ? "before" : "behind");
      EXPECT_TRUE(found.status == HETCOMM_OK || found.status == HETCOMM_NOT_FOUND ||
                  found.status == HETCOMM_STALE_HANDLE)
          << found.status;
    }
    device_.free(memory);
  }
}

// Returns this process's resident memory in bytes.
uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0;
  uint64_t resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

TEST_P(EveryDevice, FreedMemoryIsReturnedAndNoLongerFound) {
  constexpr uint64_t kSize = 8u << 20;
  constexpr int kRounds = 64;
  const std::vector<std::byte> bytes(kSize, std::byte{1});
  void* const stream = device_.stream();
  uint64_t before = 0;
  for (int round = 0; round < kRounds; ++round) {
    void* const memory = device_.allocate(kSize);
    ASSERT_NE(memory, nullptr);
    ASSERT_EQ(device_.write(stream, memory, 0, bytes.data(), kSize), HETCOMM_OK);
    device_.finish(stream);
    device_.free(memory);
    if (device_.table().find != nullptr) {
      const hetcomm_status_t status = find(device_, memory).status;
      ASSERT_TRUE(status == HETCOMM_NOT_FOUND || status == HETCOMM_STALE_HANDLE) << status;
    }
    // Vendors cache some memory.
    if (round == kRounds / 4) before = resident_bytes();
  }
  const uint64_t after = resident_bytes();
  EXPECT_LT(after, before + kSize * kRounds / 4) << "memory that was freed stays with the process";
  device_.destroy_stream(stream);
}

// Exits with 0 if a copy to missing memory is reported as failed, and with 3 if its event reports
// success.
[[noreturn]] void copy_to_nowhere(TestDevice& device) {
  constexpr size_t kSize = 1u << 20;
  void* const nowhere =
      mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* const stream = device.stream();
  void* const memory = device.allocate(kSize);
  hetcomm_status_t status = device.read(stream, nowhere, memory, 0, kSize);
  void* event = nullptr;
  if (status == HETCOMM_OK) {
    status = device.table().event_record(device.instance(), stream, &event);
  }
  if (status == HETCOMM_OK) status = device.table().event_wait(device.instance(), event);
  const bool is_told = status != HETCOMM_OK && (event == nullptr || device.query(event) == status);
  _exit(is_told ? 0 : 3);
}

// Either the event reports that the impossible copy failed, or the process ends.
TEST_P(EveryDevice, FailedCopyIsNotReportedAsSuccess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto is_no_success = [](int status) {
    return !WIFEXITED(status) || WEXITSTATUS(status) != 3;
  };
  EXPECT_EXIT(
      {
        alarm(30);  // a vendor's run-time may never report the failure
        copy_to_nowhere(device_);
      },
      is_no_success, "");
}

TEST_P(DevicesThatLocate, LocateFindsTheDeviceAmongSeveral) {
  TestDevice second(GetParam());
  TestDevice third(GetParam());
  const std::vector<TestDevice*> all = {&device_, &second, &third};
  std::vector<void*> instances;
  for (const TestDevice* each : all) instances.push_back(each->instance());
  const auto locate = [&](const void* address, uint64_t count, hetcomm_device_place_t* out) {
    return device_.table().locate(instances.data(), count, address, out);
  };
  std::set<uint64_t> ids;
  for (size_t i = 0; i < all.size(); ++i) {
    for (int round = 0; round < 3; ++round) {
      auto* const memory = static_cast<std::byte*>(all[i]->allocate(5000));
      hetcomm_device_place_t place{};
      ASSERT_EQ(locate(memory, all.size(), &place), HETCOMM_OK);
      EXPECT_EQ(place.device, i);
      EXPECT_EQ(place.base, memory);
      EXPECT_EQ(place.size, 5000u);
      if (place.allocation_id != 0) {
        EXPECT_TRUE(ids.insert(place.allocation_id).second) << "another allocation had this id";
      }
      hetcomm_device_place_t untouched{.device = 77, .base = &place, .size = 1, .allocation_id = 2};
      // The memory belongs to a device that is not queried, or to none.
      EXPECT_EQ(locate(memory, i, &untouched), HETCOMM_NOT_FOUND);
      for (const void* const outside :
           {static_cast<const void*>(memory - 1), static_cast<const void*>(memory + 5000),
            static_cast<const void*>(&place), static_cast<const void*>(nullptr)}) {
        const hetcomm_status_t status = locate(outside, all.size(), &untouched);
        EXPECT_TRUE(status == HETCOMM_NOT_FOUND || status == HETCOMM_STALE_HANDLE) << status;
      }
      all[i]->free(memory);
      const hetcomm_status_t status = locate(memory, all.size(), &untouched);
      EXPECT_TRUE(status == HETCOMM_NOT_FOUND || status == HETCOMM_STALE_HANDLE) << status;
      EXPECT_TRUE(untouched.device == 77 && untouched.base == &place);
    }
  }
}

TEST_P(EveryDevice, AllocationsDoNotOverlap) {
  constexpr size_t kCount = 50;
  void* const stream = device_.stream();
  std::vector<void*> memories;
  for (size_t i = 0; i < kCount; ++i) memories.push_back(device_.allocate(100 + i));
  EXPECT_EQ(std::set<void*>(memories.begin(), memories.end()).size(), kCount);
  std::vector<std::vector<std::byte>> contents;
  for (size_t i = 0; i < kCount; ++i) {
    contents.push_back(random_bytes(100 + i, static_cast<unsigned>(i)));
    ASSERT_EQ(device_.write(stream, memories[i], 0, contents[i].data(), 100 + i), HETCOMM_OK);
  }
  for (size_t i = 0; i < kCount; ++i) {
    std::vector<std::byte> back(100 + i);
    ASSERT_EQ(device_.read(stream, back.data(), memories[i], 0, back.size()), HETCOMM_OK);
    device_.finish(stream);
    EXPECT_EQ(back, contents[i]);
  }
  for (void* const memory : memories) device_.free(memory);
  device_.destroy_stream(stream);
}

TEST_P(EveryDevice, EmptyAllocationsAndCopiesAreAllowed) {
  void* const stream = device_.stream();
  void* const first = device_.allocate(0);
  void* const second = device_.allocate(0);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(device_.write(stream, first, 0, nullptr, 0), HETCOMM_OK);
  EXPECT_EQ(device_.read(stream, nullptr, first, 0, 0), HETCOMM_OK);
  device_.finish(stream);
  device_.free(first);
  device_.free(second);
  device_.destroy_stream(stream);
}

TEST_P(EveryDevice, InvalidArgumentsAreRefused) {
  const DeviceTable& table = device_.table();
  void* const instance = device_.instance();
  void* const stream = device_.stream();
  void* const memory = device_.allocate(16);
  char host[16] = {};
  EXPECT_EQ(table.allocate(instance, 1, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.stream_create(instance, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.event_record(instance, stream, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.event_query(instance, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(table.event_wait(instance, nullptr), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(device_.write(stream, memory, 0, nullptr, 1), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(device_.read(stream, nullptr, memory, 0, 1), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(device_.write(stream, nullptr, 0, host, 1), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(device_.read(stream, host, nullptr, 0, 1), HETCOMM_INVALID_ARGUMENT);
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(device_.write(stream, memory, kMax, host, 16), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_.read(stream, host, memory, 16, kMax), HETCOMM_OUT_OF_RANGE);
  device_.finish(stream);
  device_.free(memory);
  device_.destroy_stream(stream);
}

TEST_P(EveryDevice, HugeAllocationReportsOutOfMemory) {
  for (const uint64_t size : {std::numeric_limits<uint64_t>::max(), uint64_t{1} << 60}) {
    void* const before = &device_;
    void* address = before;
    EXPECT_EQ(device_.table().allocate(device_.instance(), size, &address), HETCOMM_OUT_OF_MEMORY);
    EXPECT_EQ(address, before);
  }
}

TEST_P(EveryDevice, ReleasingNullIsAllowed) {
  device_.table().event_release(device_.instance(), nullptr);
  device_.table().stream_destroy(device_.instance(), nullptr);
  device_.free(nullptr);
}

TEST_P(EveryDevice, SeveralThreadsCopyIndependently) {
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < 4; ++id) {
    threads.emplace_back([this, id] {
      void* const stream = device_.stream();
      for (unsigned round = 0; round < 30; ++round) {
        const size_t size = 1 + (id * 977 + round * 131) % 9000;
        void* const memory = device_.allocate(size);
        const std::vector<std::byte> sent = random_bytes(size, id * 100 + round);
        std::vector<std::byte> received(size);
        EXPECT_EQ(device_.write(stream, memory, 0, sent.data(), size), HETCOMM_OK);
        EXPECT_EQ(device_.read(stream, received.data(), memory, 0, size), HETCOMM_OK);
        device_.finish(stream);
        EXPECT_EQ(received, sent);
        device_.free(memory);
      }
      device_.destroy_stream(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryDevice, testing::ValuesIn(kinds_to_test()), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EveryDevice);
INSTANTIATE_TEST_SUITE_P(Kinds, DevicesWithRows,
                         testing::ValuesIn(kinds_with(&DeviceTable::copy_rows_to_host)), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicesWithRows);
INSTANTIATE_TEST_SUITE_P(Kinds, DevicesThatCopyBetween,
                         testing::ValuesIn(kinds_with(&DeviceTable::copy_rows_between)), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicesThatCopyBetween);
INSTANTIATE_TEST_SUITE_P(Kinds, DevicesThatNotify,
                         testing::ValuesIn(kinds_with(&DeviceTable::event_notify)), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicesThatNotify);
INSTANTIATE_TEST_SUITE_P(Kinds, DevicesWithHostMemory,
                         testing::ValuesIn(kinds_with(&DeviceTable::allocate_host)), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicesWithHostMemory);
INSTANTIATE_TEST_SUITE_P(Kinds, DevicesWithUserStreams,
                         testing::ValuesIn(kinds_with(&DeviceTable::user_stream_open)), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicesWithUserStreams);
INSTANTIATE_TEST_SUITE_P(Kinds, DevicesThatLocate,
                         testing::ValuesIn(kinds_with(&DeviceTable::locate)), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicesThatLocate);
INSTANTIATE_TEST_SUITE_P(Kinds, DevicesThatHold,
                         testing::ValuesIn(kinds_with(&DeviceTable::user_stream_hold)), kind_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DevicesThatHold);

}  // namespace
}  // namespace hetcomm
