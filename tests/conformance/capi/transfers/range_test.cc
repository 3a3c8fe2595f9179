// Bounds checks on registered memory, by its owner and for a mapping. Exports are modified to claim
// a longer memory, so that the rank that uses them does not refuse the access itself.
//
//   * a put, get or atomic that ends one or more bytes past the memory is refused with
//     OUT_OF_RANGE, whether it is small or sent in parts; the last byte can be used
//   * the same holds with a mapping of that memory
//   * the bytes past the memory are neither changed nor read
#include <algorithm>
#include <cstring>
#include <memory>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kExportTag = 77;
constexpr std::byte kInside{0x5a};
constexpr std::byte kBehind{0x3c};
constexpr uint64_t kPage = 4096;

using Bytes = std::vector<std::byte>;

// Whole pages of memory, of which the first |size| bytes are registered.
class Owned {
 public:
  // |whole|: the memory has its own file, so that it can be mapped.
  Owned(Member& me, uint64_t size, bool whole) : size_(size) {
    room_ = (size + kPage) / kPage * kPage;
    void* address = nullptr;
    if (whole) {
      EXPECT_EQ(hetcomm_memory_allocate(me.context(), 0, size, &memory_), HETCOMM_OK);
      EXPECT_EQ(hetcomm_memory_address(memory_, &address), HETCOMM_OK);
    } else {
      bytes_ = std::make_unique<std::byte[]>(room_ + 7);
      // The address is a multiple of 8.
      address = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(bytes_.get()) + 7) & ~7ul);
      EXPECT_EQ(hetcomm_memory_wrap(me.context(), 0, address, size, &memory_), HETCOMM_OK);
    }
    at_ = static_cast<std::byte*>(address);
    std::fill(at_, at_ + size, kInside);
    std::fill(at_ + size, at_ + room_, kBehind);
    EXPECT_EQ(hetcomm_memory_register(memory_, me.communicator(), HETCOMM_ACCESS_ALL,
                                      HETCOMM_REGISTER_CALLER_PROGRESS),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    EXPECT_EQ(hetcomm_memory_unregister(memory_, kPatienceNs), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK) << hetcomm_last_error();
  }
  Bytes exported() const {
    Bytes bytes(HETCOMM_EXPORT_MAX_BYTES);
    size_t size = 0;
    EXPECT_EQ(hetcomm_memory_export(memory_, bytes.size(), bytes.data(), &size), HETCOMM_OK);
    bytes.resize(size);
    return bytes;
  }
  // Returns whether all bytes after the registered ones, up to the end of the page, are unchanged.
  bool is_whole_behind() const {
    return std::all_of(at_ + size_, at_ + room_, [](std::byte b) { return b == kBehind; });
  }

 private:
  uint64_t size_;
  uint64_t room_;
  std::unique_ptr<std::byte[]> bytes_;
  std::byte* at_ = nullptr;
  hetcomm_memory_t* memory_ = nullptr;
};

Bytes swap_bytes(Member& me, const Bytes& mine) {
  Bytes theirs(HETCOMM_EXPORT_MAX_BYTES);
  hetcomm_request_t* receive = me.recv(me.partner(), kExportTag, theirs.data(), theirs.size());
  EXPECT_EQ(finish(me.send(me.partner(), kExportTag, mine.data(), mine.size())).status, HETCOMM_OK);
  const Outcome outcome = finish(receive);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  theirs.resize(outcome.bytes_received);
  return theirs;
}

// Returns a copy of |exported|, which states |size| bytes, changed to claim |claimed| bytes.
Bytes lengthen(Bytes exported, uint64_t size, uint64_t claimed) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&size);
  const auto at = std::search(exported.begin(), exported.end(), bytes, bytes + sizeof(size));
  EXPECT_NE(at, exported.end());
  if (at != exported.end()) std::memcpy(&*at, &claimed, sizeof(claimed));
  return exported;
}

class Remote {
 public:
  Remote(Member& me, const Bytes& bytes) {
    EXPECT_EQ(hetcomm_memory_import(me.communicator(), bytes.data(), bytes.size(), &remote_),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;
  ~Remote() {
    EXPECT_EQ(hetcomm_remote_memory_destroy(remote_), HETCOMM_OK) << hetcomm_last_error();
  }

  hetcomm_status_t put(uint64_t offset, uint64_t length) const {
    const Bytes out(length, kInside);
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(
        hetcomm_put(remote_, offset, hetcomm_buffer_host(out.data(), length), nullptr, &request),
        HETCOMM_OK)
        << hetcomm_last_error();
    return finish(request).status;
  }
  hetcomm_status_t get(uint64_t offset, uint64_t length) const {
    Bytes in(length);
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(
        hetcomm_get(remote_, offset, hetcomm_buffer_host(in.data(), length), nullptr, &request),
        HETCOMM_OK)
        << hetcomm_last_error();
    const hetcomm_status_t status = finish(request).status;
    EXPECT_EQ(std::count(in.begin(), in.end(), kBehind), 0) << "it was read";
    return status;
  }
  hetcomm_status_t add(uint64_t offset) const {
    uint64_t before = 0;
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_fetch_add(remote_, offset, 0, &before, nullptr, &request), HETCOMM_OK)
        << hetcomm_last_error();
    return finish(request).status;
  }
  hetcomm_status_t swap(uint64_t offset) const {
    uint64_t before = 0;
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_compare_swap(remote_, offset, 0, 1, &before, nullptr, &request), HETCOMM_OK)
        << hetcomm_last_error();
    return finish(request).status;
  }

 private:
  hetcomm_remote_memory_t* remote_ = nullptr;
};

void try_ends(const Remote& remote, uint64_t size) {
  for (const uint64_t length : {uint64_t{8}, size / 2, size}) {
    SCOPED_TRACE(length);
    EXPECT_EQ(remote.put(size - length, length), HETCOMM_OK);
    EXPECT_EQ(remote.get(size - length, length), HETCOMM_OK);
    for (const uint64_t offset :
         {size - length + 1, size, size + 1, size + kPage, UINT64_MAX - length}) {
      EXPECT_EQ(remote.put(offset, length), HETCOMM_OUT_OF_RANGE) << offset;
      EXPECT_EQ(remote.get(offset, length), HETCOMM_OUT_OF_RANGE) << offset;
    }
  }
  EXPECT_EQ(remote.put(size, 0), HETCOMM_OK) << "nothing, at the end";
  EXPECT_EQ(remote.get(size + 1, 0), HETCOMM_OUT_OF_RANGE) << "nothing, behind the end";
  const uint64_t last = (size - 8) / 8 * 8;
  EXPECT_EQ(remote.add(last), HETCOMM_OK);
  EXPECT_EQ(remote.swap(last), HETCOMM_OK);
  for (const uint64_t offset : {last + 8, last + 16, UINT64_MAX - 15}) {
    EXPECT_EQ(remote.add(offset), HETCOMM_OUT_OF_RANGE) << offset;
    EXPECT_EQ(remote.swap(offset), HETCOMM_OUT_OF_RANGE) << offset;
  }
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

class Range : public CapiTest {};

TEST_P(Range, OwnerRefusesAccessPastTheEnd) {
  run_two([](Member& me) {
    // The second access ends at an offset that is not a multiple of 8, and is sent in parts.
    for (const uint64_t size : {uint64_t{1'000}, uint64_t{300'001}}) {
      SCOPED_TRACE(size);
      const Owned mine(me, size, false);
      const Bytes theirs = swap_bytes(me, mine.exported());
      {
        const Remote longer(me, lengthen(theirs, size, UINT64_MAX));
        try_ends(longer, size);
      }
      ASSERT_TRUE(me.meet());
      EXPECT_TRUE(mine.is_whole_behind());
      ASSERT_TRUE(me.meet());
    }
  });
}

class MappedRange : public CapiTest {};

TEST_P(MappedRange, MappingRefusesAccessPastTheEnd) {
  run_two([](Member& me) {
    for (const uint64_t size : {uint64_t{1'000}, uint64_t{300'001}}) {
      SCOPED_TRACE(size);
      for (const bool is_known : {true, false}) {
        const Owned mine(me, size, true);
        const Bytes theirs = swap_bytes(me, mine.exported());
        std::unique_ptr<Remote> right;
        if (is_known) {
          // The memory is mapped with its true length.
          right = std::make_unique<Remote>(me, theirs);
          const uint64_t before = operations_without_the_owner(me);
          EXPECT_TRUE(me.until([&] {
            EXPECT_EQ(right->get(0, 8), HETCOMM_OK);
            return operations_without_the_owner(me) > before;
          }));
        }
        const uint64_t before = operations_without_the_owner(me);
        for (const uint64_t claimed : {UINT64_MAX, size + kPage}) {
          const Remote longer(me, lengthen(theirs, size, claimed));
          for (int i = 0; i < 5; ++i) {
            EXPECT_EQ(longer.put(size - 7, 8), HETCOMM_OUT_OF_RANGE);
            EXPECT_EQ(longer.get(size - 7, 8), HETCOMM_OUT_OF_RANGE);
            EXPECT_EQ(longer.add((size + 7) / 8 * 8), HETCOMM_OUT_OF_RANGE);
            ASSERT_TRUE(me.meet());
          }
        }
        EXPECT_EQ(operations_without_the_owner(me), before) << "a longer one was mapped";
        EXPECT_TRUE(mine.is_whole_behind());
        right.reset();
        ASSERT_TRUE(me.meet());
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, Range,
    ::testing::Values(CapiCase{.name = "self", .transports = "self", .settings = ""},
                      CapiCase{.name = "shm", .transports = "shm", .settings = ""},
                      CapiCase{.name = "tcp", .transports = "tcp", .settings = ""}),
    capi_case_name);
INSTANTIATE_TEST_SUITE_P(Over, MappedRange,
                         ::testing::Values(CapiCase{
                             .name = "shm", .transports = "shm", .settings = ""}),
                         capi_case_name);

}  // namespace
}  // namespace hetcomm_test
