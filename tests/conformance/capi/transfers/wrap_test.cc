// Memory of hetcomm_memory_wrap:
//
//   * it has the given address and length, and messages, puts, gets and atomics on it access no
//     other byte
//   * while in use it cannot be freed; afterwards it belongs to its owner again, with its contents,
//     and can be wrapped again
//   * peers never map it, even if it is the start of an allocation of hetcomm_memory_allocate, so
//     that the rest of the allocation stays hidden
//   * wrapped device memory is the same memory
#include <atomic>
#include <cstring>
#include <memory>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kExportTag = 77;
constexpr std::byte kUntouched{0x3c};

hetcomm_memory_t* wrap(Member& me, int32_t device, void* address, uint64_t size) {
  hetcomm_memory_t* memory = nullptr;
  EXPECT_EQ(hetcomm_memory_wrap(me.context(), device, address, size, &memory), HETCOMM_OK)
      << hetcomm_last_error();
  return memory;
}

void expect_ok(hetcomm_request_t* request) {
  const Outcome outcome = finish(request);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
}

// A part of the heap surrounded by guard bytes.
class Owned {
 public:
  static constexpr uint64_t kAround = 4096;
  explicit Owned(uint64_t size) : size_(size), bytes_(new std::byte[size + 2 * kAround]) {
    std::memset(bytes_.get(), static_cast<int>(kUntouched), size + 2 * kAround);
  }
  std::byte* data() const { return bytes_.get() + kAround; }
  uint64_t size() const { return size_; }
  std::vector<std::byte> contents() const { return {data(), data() + size_}; }
  void expect_nothing_around() const {
    for (uint64_t i = 0; i < kAround; ++i) {
      ASSERT_EQ(bytes_[i], kUntouched) << kAround - i << " bytes before it";
      ASSERT_EQ(data()[size_ + i], kUntouched) << i << " bytes behind it";
    }
  }

 private:
  uint64_t size_;
  std::unique_ptr<std::byte[]> bytes_;
};

class Wrapped : public CapiTest {};

TEST_P(Wrapped, HasTheGivenAddressAndLength) {
  run_two([](Member& me) {
    const Owned own(1001);
    hetcomm_memory_t* const memory = wrap(me, HETCOMM_DEVICE_HOST, own.data(), own.size());
    void* address = nullptr;
    uint64_t size = 0;
    EXPECT_EQ(hetcomm_memory_address(memory, &address), HETCOMM_OK);
    EXPECT_EQ(address, own.data());
    EXPECT_EQ(hetcomm_memory_size(memory, &size), HETCOMM_OK);
    EXPECT_EQ(size, own.size());
    const std::vector<std::byte> out = pattern(100, 1);
    std::vector<std::byte> back(100);
    EXPECT_EQ(hetcomm_memory_write(memory, 901, out.data(), 100), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_read(memory, 901, back.data(), 100), HETCOMM_OK);
    EXPECT_EQ(back, out);
    EXPECT_EQ(std::memcmp(own.data() + 901, out.data(), 100), 0);
    EXPECT_EQ(hetcomm_memory_write(memory, 902, out.data(), 100), HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(hetcomm_memory_read(memory, 902, back.data(), 100), HETCOMM_OUT_OF_RANGE);
    own.expect_nothing_around();
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK) << hetcomm_last_error();
  });
}

TEST_P(Wrapped, CarriesMessagesAndReturnsToItsOwner) {
  run_two([](Member& me) {
    for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{3'000}, uint64_t{600'001}}) {
      SCOPED_TRACE(size);
      const Owned to(size + 1);  // the memory is never empty
      const Owned from(size + 1);
      const std::vector<std::byte> out = pattern(size, size + static_cast<uint64_t>(me.rank()));
      if (size > 0) std::memcpy(from.data() + 1, out.data(), size);
      hetcomm_memory_t* const receives = wrap(me, HETCOMM_DEVICE_HOST, to.data(), size + 1);
      hetcomm_memory_t* const sends = wrap(me, HETCOMM_DEVICE_HOST, from.data(), size + 1);
      hetcomm_request_t* receive = nullptr;
      hetcomm_request_t* send = nullptr;
      ASSERT_EQ(hetcomm_recv(me.communicator(), me.partner(), 5, 0,
                             hetcomm_buffer_memory(receives, 0, size), nullptr, &receive),
                HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_destroy(receives), HETCOMM_BUSY) << "a receive is pending";
      ASSERT_TRUE(me.meet_quietly());
      ASSERT_EQ(hetcomm_send(me.communicator(), me.partner(), 5,
                             hetcomm_buffer_memory(sends, 1, size), nullptr, &send),
                HETCOMM_OK);
      expect_ok(send);
      expect_ok(receive);
      EXPECT_EQ(hetcomm_memory_destroy(receives), HETCOMM_OK) << hetcomm_last_error();
      EXPECT_EQ(hetcomm_memory_destroy(sends), HETCOMM_OK) << hetcomm_last_error();
      std::vector<std::byte> right = pattern(size, size + static_cast<uint64_t>(me.partner()));
      right.push_back(kUntouched);
      EXPECT_EQ(to.contents(), right);
      to.expect_nothing_around();
      from.expect_nothing_around();
      std::memset(to.data(), 1, size + 1);  // the owner still owns it
      hetcomm_memory_t* const again = wrap(me, HETCOMM_DEVICE_HOST, to.data(), size + 1);
      EXPECT_EQ(hetcomm_memory_destroy(again), HETCOMM_OK) << hetcomm_last_error();
    }
  });
}

std::vector<std::byte> exported(hetcomm_memory_t* memory) {
  std::vector<std::byte> bytes(HETCOMM_EXPORT_MAX_BYTES);
  size_t size = 0;
  EXPECT_EQ(hetcomm_memory_export(memory, bytes.size(), bytes.data(), &size), HETCOMM_OK)
      << hetcomm_last_error();
  bytes.resize(size);
  return bytes;
}

void share(Member& me, hetcomm_memory_t* memory) {
  EXPECT_EQ(hetcomm_memory_register(memory, me.communicator(), HETCOMM_ACCESS_ALL,
                                    HETCOMM_REGISTER_CALLER_PROGRESS),
            HETCOMM_OK)
      << hetcomm_last_error();
}

// Exports |mine| to the partner. Returns the partner's memory.
hetcomm_remote_memory_t* exchange(Member& me, hetcomm_memory_t* mine) {
  const std::vector<std::byte> out = exported(mine);
  std::vector<std::byte> in(HETCOMM_EXPORT_MAX_BYTES);
  hetcomm_request_t* const receive = me.recv(me.partner(), kExportTag, in.data(), in.size());
  expect_ok(me.send(me.partner(), kExportTag, out.data(), out.size()));
  const Outcome outcome = finish(receive);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  hetcomm_remote_memory_t* remote = nullptr;
  EXPECT_EQ(hetcomm_memory_import(me.communicator(), in.data(), outcome.bytes_received, &remote),
            HETCOMM_OK)
      << hetcomm_last_error();
  return remote;
}

uint64_t operations_without_the_owner(Member& me) {
  hetcomm_counters_t counters[4] = {{.struct_size = sizeof(counters[0])}};
  size_t count = 0;
  EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), me.partner(), 4, counters, &count),
            HETCOMM_OK);
  uint64_t direct = 0;
  for (size_t i = 0; i < count; ++i) direct += counters[i].direct;
  return direct;
}

// Puts and gets all |size| bytes of |remote|. The last eight bytes are a counter.
void use(hetcomm_remote_memory_t* remote, uint64_t size, uint64_t seed) {
  const uint64_t counter = size - 8;
  const std::vector<std::byte> out = pattern(counter, seed);
  std::vector<std::byte> back(counter);
  hetcomm_request_t* request = nullptr;
  ASSERT_EQ(hetcomm_put(remote, 0, hetcomm_buffer_host(out.data(), counter), nullptr, &request),
            HETCOMM_OK);
  expect_ok(request);
  ASSERT_EQ(hetcomm_get(remote, 0, hetcomm_buffer_host(back.data(), counter), nullptr, &request),
            HETCOMM_OK);
  expect_ok(request);
  EXPECT_EQ(back, out);
  uint64_t before = ~uint64_t{0};
  ASSERT_EQ(hetcomm_fetch_add(remote, counter, 1, &before, nullptr, &request), HETCOMM_OK);
  expect_ok(request);
}

TEST_P(Wrapped, IsAccessibleToPeersWhileRegistered) {
  run_two([](Member& me) {
    for (const uint64_t size : {uint64_t{1'000}, uint64_t{400'000}}) {
      const Owned own(size);
      std::memset(own.data() + size - 8, 0, 8);
      hetcomm_memory_t* const memory = wrap(me, HETCOMM_DEVICE_HOST, own.data(), size);
      share(me, memory);
      hetcomm_remote_memory_t* const remote = exchange(me, memory);
      constexpr uint64_t kRounds = 10;
      for (uint64_t i = 0; i < kRounds; ++i) {
        use(remote, size, i + static_cast<uint64_t>(me.rank()));
      }
      if (me.test_case().transports == "shm") {
        EXPECT_EQ(operations_without_the_owner(me), 0u) << "its file would have to be handed over";
      }
      ASSERT_TRUE(me.meet());
      uint64_t counted = 0;
      std::memcpy(&counted, own.data() + size - 8, 8);
      EXPECT_EQ(counted, kRounds);
      std::vector<std::byte> bytes = own.contents();
      bytes.resize(size - 8);
      EXPECT_TRUE(holds(bytes, kRounds - 1 + static_cast<uint64_t>(me.partner()), size - 8));
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_BUSY) << "it is registered";
      EXPECT_EQ(hetcomm_memory_unregister(memory, kPatienceNs), HETCOMM_OK);
      ASSERT_TRUE(me.meet());
      uint64_t word = 1;
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_put(remote, 0, hetcomm_buffer_host(&word, 8), nullptr, &request),
                HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_STALE_HANDLE);
      EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
      ASSERT_TRUE(me.meet());
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK) << hetcomm_last_error();
      own.expect_nothing_around();
      std::memset(own.data(), 9, size);  // the owner still owns it
    }
  });
}

// The file of an allocation would expose all of it to a peer that receives the file.
TEST_P(Wrapped, StartOfAnAllocationDoesNotExposeTheRest) {
  run_two([](Member& me) {
    constexpr uint64_t kAll = 64 << 10;
    constexpr uint64_t kPart = 4096;
    hetcomm_memory_t* all = nullptr;
    void* address = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, kAll, &all), HETCOMM_OK);
    ASSERT_EQ(hetcomm_memory_address(all, &address), HETCOMM_OK);
    std::memset(address, 0, kAll);
    hetcomm_memory_t* const memory = wrap(me, HETCOMM_DEVICE_HOST, address, kPart);
    share(me, memory);
    hetcomm_remote_memory_t* const remote = exchange(me, memory);
    for (uint64_t i = 0; i < 30; ++i) use(remote, kPart, i);
    if (me.test_case().transports == "shm") {
      EXPECT_EQ(operations_without_the_owner(me), 0u) << "its file was handed over";
    }
    EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
    ASSERT_TRUE(me.meet());
    EXPECT_EQ(hetcomm_memory_unregister(memory, kPatienceNs), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(static_cast<const char*>(address)[kPart], 0);
    static_cast<char*>(address)[0] = 1;  // freed together with |all|, and not before
    EXPECT_EQ(hetcomm_memory_destroy(all), HETCOMM_OK) << hetcomm_last_error();
  });
}

TEST_P(Wrapped, DeviceMemorySharesTheBytesOfItsAllocation) {
  CapiCase with_devices = GetParam();
  with_devices.settings += "DEVICES=sim-handle,sim-address;";
  run_job(with_devices, with_devices.alone() ? 1 : 2, [](Member& me) {
    for (const int32_t device : {1, 2}) {
      SCOPED_TRACE(device);
      constexpr uint64_t kSize = 30'000;
      hetcomm_memory_t* all = nullptr;
      void* address = nullptr;
      ASSERT_EQ(hetcomm_memory_allocate(me.context(), device, kSize, &all), HETCOMM_OK);
      ASSERT_EQ(hetcomm_memory_address(all, &address), HETCOMM_OK);
      const std::vector<std::byte> blank(kSize, kUntouched);
      ASSERT_EQ(hetcomm_memory_write(all, 0, blank.data(), kSize), HETCOMM_OK);
      hetcomm_memory_t* const memory = wrap(me, device, address, kSize - 1000);
      if (device == 2) {
        // The wrapped part begins inside the allocation, and extends to its end.
        auto* const middle = static_cast<std::byte*>(address) + 1000;
        hetcomm_memory_t* part = nullptr;
        EXPECT_EQ(hetcomm_memory_wrap(me.context(), device, middle, kSize - 999, &part),
                  HETCOMM_OUT_OF_RANGE);
        EXPECT_EQ(part, nullptr);
        part = wrap(me, device, middle, kSize - 1000);
        EXPECT_EQ(hetcomm_memory_destroy(part), HETCOMM_OK) << hetcomm_last_error();
      }
      const std::vector<std::byte> out = pattern(kSize - 1000, 3);
      hetcomm_request_t* receive = nullptr;
      ASSERT_EQ(hetcomm_recv(me.communicator(), me.partner(), 5, 0,
                             hetcomm_buffer_memory(memory, 0, kSize - 1000), nullptr, &receive),
                HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_BUSY) << "a receive is pending";
      expect_ok(me.send(me.partner(), 5, out.data(), out.size()));
      expect_ok(receive);
      EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK) << hetcomm_last_error();
      std::vector<std::byte> back(kSize);
      EXPECT_EQ(hetcomm_memory_read(all, 0, back.data(), kSize), HETCOMM_OK)
          << "it went with what was wrapped of it";
      EXPECT_TRUE(holds(back, 3, kSize - 1000, kUntouched));
      EXPECT_EQ(hetcomm_memory_destroy(all), HETCOMM_OK) << hetcomm_last_error();
    }
  });
}

// Buffers from plain pointers (hetcomm_buffer_pointer), in memory of two devices and the host.
TEST_P(Wrapped, PlainPointersResolveToTheirMemory) {
  CapiCase with_devices = GetParam();
  with_devices.settings += "DEVICES=sim-handle,sim-address;";
  run_job(with_devices, with_devices.alone() ? 1 : 2, [](Member& me) {
    constexpr uint64_t kSize = 100'000;
    const auto buffer_of = [&](const void* pointer, uint64_t length) {
      hetcomm_buffer_t buffer{};
      EXPECT_EQ(hetcomm_buffer_pointer(me.context(), pointer, length, &buffer), HETCOMM_OK)
          << hetcomm_last_error();
      return buffer;
    };
    const auto refused = [&](const void* pointer, uint64_t length) {
      hetcomm_buffer_t buffer{};
      const hetcomm_status_t status =
          hetcomm_buffer_pointer(me.context(), pointer, length, &buffer);
      EXPECT_TRUE(buffer.memory == nullptr && buffer.offset == 0 && buffer.length == 0);
      return status;
    };
    std::vector<std::byte> host(kSize);
    for (int32_t device = 0; device <= 2; ++device) {
      for (uint64_t round = 0; round < 3; ++round) {
        // A buffer of another size may get the same address.
        const uint64_t size = kSize + round * 5000;
        hetcomm_memory_t* memory = nullptr;
        void* address = nullptr;
        ASSERT_EQ(hetcomm_memory_allocate(me.context(), device, size, &memory), HETCOMM_OK);
        ASSERT_EQ(hetcomm_memory_address(memory, &address), HETCOMM_OK);
        // A handle names only its first byte.
        const uint64_t at = device == 1 ? 0 : 4321;
        const std::vector<std::byte> sent = pattern(size - at, round + 1);
        if (me.rank() == 0) {
          ASSERT_EQ(hetcomm_memory_write(memory, at, sent.data(), sent.size()), HETCOMM_OK);
        }
        const hetcomm_buffer_t buffer = buffer_of(static_cast<std::byte*>(address) + at, size - at);
        EXPECT_EQ(buffer.memory == nullptr, device == 0);
        if (me.size() == 2) {
          expect_ok(start_move(me, buffer));
          std::vector<std::byte> got(size - at);
          ASSERT_EQ(hetcomm_memory_read(memory, at, got.data(), got.size()), HETCOMM_OK);
          EXPECT_TRUE(holds(got, round + 1, got.size()));
        }
        if (device != 0) {
          EXPECT_EQ(refused(address, size + 1), HETCOMM_OUT_OF_RANGE);
        }
        ASSERT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
        if (device == 1) {
          EXPECT_EQ(refused(address, 8), HETCOMM_STALE_HANDLE);
        }
      }
    }
    EXPECT_EQ(buffer_of(host.data(), kSize).memory, nullptr);
    EXPECT_EQ(buffer_of(nullptr, 0).length, 0u);
    EXPECT_EQ(refused(nullptr, 1), HETCOMM_INVALID_ARGUMENT);
    EXPECT_EQ(refused(host.data(), UINT64_MAX), HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(hetcomm_buffer_pointer(me.context(), host.data(), 1, nullptr),
              HETCOMM_INVALID_ARGUMENT);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, Wrapped,
    ::testing::Values(CapiCase{.name = "self", .transports = "self", .settings = ""},
                      CapiCase{.name = "shm", .transports = "shm", .settings = ""},
                      CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);

}  // namespace
}  // namespace hetcomm_test
