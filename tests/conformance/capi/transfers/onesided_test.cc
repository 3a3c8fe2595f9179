// One-sided operations:
//
//   * puts and gets move the right bytes at sizes around every boundary of the protocols, between
//     all kinds of memory, and change no others;
//   * a notification arrives once, after all bytes, with its value and range; notifications that
//     are not taken block only the putter;
//   * simultaneous atomics from many ranks lose no update;
//   * flush covers operations whose requests were released, and reports their failure;
//   * a right that was not granted, a range past the end, and foreign or outdated exports are
//     refused, and memory in use stays valid; exports from one communicator are foreign to the next
//     one with its name;
//   * after an unregister nothing is written, and operations in flight have failed;
//   * an owner that computes is served by its background thread;
//   * every operation ends: at its deadline, or when the owner dies; the status of an atomic shows
//     whether its outcome is unknown.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

constexpr uint64_t kExportTag = 0x6578706f7274;
constexpr uint64_t kOrderTag = 0x6f72646572;

hetcomm_status_t register_memory(Member& me, hetcomm_memory_t* memory, uint32_t access) {
  const uint32_t flags = me.test_case().thread_progress ? 0 : HETCOMM_REGISTER_CALLER_PROGRESS;
  return hetcomm_memory_register(memory, me.communicator(), access, flags);
}

// Memory of this rank that others may access. It is host memory unless |device| is set.
class Shared {
 public:
  Shared(Member& me, uint64_t size, uint32_t access = HETCOMM_ACCESS_ALL, int32_t device = 0)
      : me_(me), size_(size) {
    EXPECT_EQ(hetcomm_memory_allocate(me.context(), device, size, &memory_), HETCOMM_OK);
    fill(std::vector<std::byte>(size, std::byte{0x5a}));
    publish(access);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() {
    if (registered_) unpublish();
    EXPECT_EQ(hetcomm_memory_destroy(memory_), HETCOMM_OK) << hetcomm_last_error();
  }

  void publish(uint32_t access) {
    EXPECT_EQ(register_memory(me_, memory_, access), HETCOMM_OK) << hetcomm_last_error();
    registered_ = true;
  }
  void unpublish() {
    EXPECT_EQ(hetcomm_memory_unregister(memory_, kPatienceNs), HETCOMM_OK) << hetcomm_last_error();
    registered_ = false;
  }
  std::vector<std::byte> exported() const {
    std::vector<std::byte> bytes(HETCOMM_EXPORT_MAX_BYTES);
    size_t size = 0;
    EXPECT_EQ(hetcomm_memory_export(memory_, bytes.size(), bytes.data(), &size), HETCOMM_OK)
        << hetcomm_last_error();
    bytes.resize(size);
    return bytes;
  }
  void fill(const std::vector<std::byte>& bytes) {
    order_with_progress_thread();
    EXPECT_EQ(hetcomm_memory_write(memory_, 0, bytes.data(), bytes.size()), HETCOMM_OK);
    order_with_progress_thread();
  }
  std::vector<std::byte> contents(uint64_t offset, uint64_t length) const {
    order_with_progress_thread();
    std::vector<std::byte> bytes(length);
    EXPECT_EQ(hetcomm_memory_read(memory_, offset, bytes.data(), length), HETCOMM_OK);
    return bytes;
  }
  std::vector<std::byte> contents() const { return contents(0, size_); }
  hetcomm_memory_t* get() const { return memory_; }
  uint64_t size() const { return size_; }
  // Host memory only.
  void* address() const {
    void* result = nullptr;
    EXPECT_EQ(hetcomm_memory_address(memory_, &result), HETCOMM_OK);
    return result;
  }

 private:
  // The ranks meet outside of the library: in the initiator's process, or through memory that is
  // mapped twice. ThreadSanitizer does not follow that order. A message to oneself passes the
  // progress thread, as would a message that tells a program that its memory was written. Its
  // outcome does not matter, because the communicator may be aborted.
  void order_with_progress_thread() const {
    if (!me_.test_case().thread_progress) return;
    hetcomm_request_t* receive = me_.recv(me_.rank(), kOrderTag, nullptr, 0);
    finish(me_.send(me_.rank(), kOrderTag, nullptr, 0));
    finish(receive);
  }

  Member& me_;
  uint64_t size_;
  hetcomm_memory_t* memory_ = nullptr;
  bool registered_ = false;
};

// Memory of another rank.
class Remote {
 public:
  Remote(Member& me, const std::vector<std::byte>& bytes) {
    EXPECT_EQ(hetcomm_memory_import(me.communicator(), bytes.data(), bytes.size(), &remote_),
              HETCOMM_OK)
        << hetcomm_last_error();
  }
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;
  ~Remote() {
    EXPECT_EQ(hetcomm_remote_memory_destroy(remote_), HETCOMM_OK) << hetcomm_last_error();
  }
  hetcomm_remote_memory_t* get() const { return remote_; }

  hetcomm_request_t* put(uint64_t offset, const void* data, uint64_t size,
                         const hetcomm_operation_options_t* options = nullptr) const {
    return put(offset, hetcomm_buffer_host(data, size), options);
  }
  hetcomm_request_t* put(uint64_t offset, hetcomm_buffer_t buffer,
                         const hetcomm_operation_options_t* options = nullptr) const {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_put(remote_, offset, buffer, options, &request), HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  hetcomm_request_t* get(uint64_t offset, hetcomm_buffer_t buffer,
                         const hetcomm_operation_options_t* options = nullptr) const {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_get(remote_, offset, buffer, options, &request), HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  hetcomm_request_t* fetch_add(uint64_t offset, uint64_t addend, uint64_t* previous,
                               const hetcomm_operation_options_t* options = nullptr) const {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_fetch_add(remote_, offset, addend, previous, options, &request), HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  uint64_t add(uint64_t offset, uint64_t addend) const {
    uint64_t previous = 0;
    const Outcome outcome = finish(fetch_add(offset, addend, &previous));
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    return previous;
  }
  uint64_t swap(uint64_t offset, uint64_t expected, uint64_t desired) const {
    uint64_t previous = 0;
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(
        hetcomm_compare_swap(remote_, offset, expected, desired, &previous, nullptr, &request),
        HETCOMM_OK)
        << hetcomm_last_error();
    const Outcome outcome = finish(request);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
    return previous;
  }

 private:
  hetcomm_remote_memory_t* remote_ = nullptr;
};

void expect_ok(hetcomm_request_t* request) {
  const Outcome outcome = finish(request);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
}

std::vector<std::byte> exchange(Member& me, int32_t peer, const std::vector<std::byte>& mine) {
  std::vector<std::byte> theirs(HETCOMM_EXPORT_MAX_BYTES);
  hetcomm_request_t* receive = me.recv(peer, kExportTag, theirs.data(), theirs.size());
  expect_ok(me.send(peer, kExportTag, mine.data(), mine.size()));
  const Outcome outcome = finish(receive);
  EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  theirs.resize(outcome.bytes_received);
  return theirs;
}

hetcomm_operation_options_t notifying(uint64_t value) {
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.flags = HETCOMM_OPERATION_NOTIFY;
  options.notify_value = value;
  return options;
}

hetcomm_status_t flush(Member& me, int32_t rank) {
  hetcomm_request_t* request = nullptr;
  EXPECT_EQ(hetcomm_flush(me.communicator(), rank, nullptr, &request), HETCOMM_OK);
  return finish(request).status;
}

std::vector<uint64_t> border_sizes() {
  std::vector<uint64_t> sizes = {0, 1, 7, 8, 9, 100};
  for (uint64_t power = 1024; power <= (1 << 20); power *= 4) {
    for (const uint64_t size : {power - 40, power - 24, power - 1, power, power + 1}) {
      sizes.push_back(size);
    }
  }
  sizes.push_back((12 << 20) + 5);
  return sizes;
}

class OneSided : public CapiTest {};

TEST_P(OneSided, PutsAndGetsMoveTheRightBytes) {
  run_two([](Member& me) {
    constexpr uint64_t kSize = 13 << 20;
    Shared mine(me, kSize);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    uint64_t round = 0;
    for (const uint64_t size : border_sizes()) {
      const uint64_t offset = round++ % 2 == 0 ? 3 : kSize - size;
      const std::vector<std::byte> out = pattern(size, size + static_cast<uint64_t>(me.rank()));
      const Outcome put = finish(theirs.put(offset, out.data(), size));
      EXPECT_EQ(put.status, HETCOMM_OK) << put.text;
      EXPECT_EQ(put.bytes_sent, size);
      me.meet();
      const std::vector<std::byte> here = mine.contents(offset, size);
      EXPECT_TRUE(holds(here, size + static_cast<uint64_t>(me.partner()), size)) << size;
      // The bytes beside them are as before.
      const std::vector<std::byte> untouched(3, std::byte{0x5a});
      EXPECT_EQ(mine.contents(offset - 3, 3), untouched) << size;
      if (offset == 3) {
        EXPECT_EQ(mine.contents(offset + size, 3), untouched) << size;
      }
      std::vector<std::byte> back(size + 8, std::byte{0x11});
      const Outcome get = finish(theirs.get(offset, hetcomm_buffer_host(back.data(), size)));
      EXPECT_EQ(get.status, HETCOMM_OK) << get.text;
      EXPECT_EQ(get.bytes_received, size);
      EXPECT_TRUE(holds(back, size + static_cast<uint64_t>(me.rank()), size, std::byte{0x11}))
          << size;
      me.meet();
      mine.fill(std::vector<std::byte>(kSize, std::byte{0x5a}));
      me.meet();
      const std::vector<std::byte> clean = mine.contents(0, 3);
      EXPECT_EQ(clean, std::vector<std::byte>(3, std::byte{0x5a}));
    }
    me.meet();
  });
}

TEST_P(OneSided, ManyConcurrentPutsLandAtTheirAddresses) {
  run_two([](Member& me) {
    constexpr uint64_t kSlots = 200;
    constexpr uint64_t kSlot = 70'000;
    Shared mine(me, kSlots * kSlot);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    Random random(static_cast<uint64_t>(me.rank()) + 5);
    std::vector<std::vector<std::byte>> out;
    std::vector<hetcomm_request_t*> requests;
    std::vector<uint64_t> lengths;
    for (uint64_t i = 0; i < kSlots; ++i) {
      const uint64_t length = random.chance(0.5) ? random.below(200) : random.below(kSlot);
      out.push_back(pattern(length, i + static_cast<uint64_t>(me.rank())));
      requests.push_back(theirs.put(i * kSlot, out.back().data(), length));
    }
    EXPECT_EQ(flush(me, me.partner()), HETCOMM_OK);
    finish_all(requests);
    me.meet();
    Random same(static_cast<uint64_t>(me.partner()) + 5);
    for (uint64_t i = 0; i < kSlots; ++i) {
      const uint64_t length = same.chance(0.5) ? same.below(200) : same.below(kSlot);
      EXPECT_TRUE(holds(mine.contents(i * kSlot, kSlot), i + static_cast<uint64_t>(me.partner()),
                        length, std::byte{0x5a}))
          << "slot " << i;
    }
    me.meet();
  });
}

TEST_P(OneSided, PutsAndGetsWorkBetweenAllKindsOfMemory) {
  CapiCase test_case = GetParam();
  test_case.settings += "DEVICES=sim-handle,sim-address:latency=20us;STAGING_CHUNK=16K;";
  run_job(test_case, test_case.alone() ? 1 : 2, [](Member& me) {
    for (int32_t there = 0; there < 3; ++there) {
      const uint32_t access = HETCOMM_ACCESS_PUT | HETCOMM_ACCESS_GET;
      Shared mine(me, 400'000, access, there);
      const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
      me.meet();
      for (int32_t here = 0; here < 3; ++here) {
        for (const uint64_t size : {uint64_t{100}, uint64_t{30'000}, uint64_t{300'001}}) {
          hetcomm_memory_t* local = nullptr;
          ASSERT_EQ(hetcomm_memory_allocate(me.context(), here, size, &local), HETCOMM_OK);
          const std::vector<std::byte> out = pattern(size, size + static_cast<uint64_t>(me.rank()));
          EXPECT_EQ(hetcomm_memory_write(local, 0, out.data(), size), HETCOMM_OK);
          expect_ok(theirs.put(1000, hetcomm_buffer_memory(local, 0, size)));
          me.meet();
          EXPECT_TRUE(
              holds(mine.contents(1000, size), size + static_cast<uint64_t>(me.partner()), size))
              << here << " -> " << there << ", " << size;
          const std::vector<std::byte> blank(size);
          EXPECT_EQ(hetcomm_memory_write(local, 0, blank.data(), size), HETCOMM_OK);
          expect_ok(theirs.get(1000, hetcomm_buffer_memory(local, 0, size)));
          std::vector<std::byte> back(size);
          EXPECT_EQ(hetcomm_memory_read(local, 0, back.data(), size), HETCOMM_OK);
          EXPECT_TRUE(holds(back, size + static_cast<uint64_t>(me.rank()), size))
              << there << " -> " << here << ", " << size;
          EXPECT_EQ(hetcomm_memory_destroy(local), HETCOMM_OK);
          me.meet();
        }
      }
    }
    me.meet();
  });
}

TEST_P(OneSided, NotificationArrivesOnceAfterItsBytes) {
  run_two([](Member& me) {
    constexpr uint64_t kSlots = 64;
    constexpr uint64_t kSlot = 150'000;
    constexpr uint64_t kRounds = 6;
    Shared mine(me, kSlots * kSlot);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    const auto length_of = [](uint64_t round, uint64_t slot) {
      Random random(round * 1000 + slot);
      return random.chance(0.6) ? random.below(300) : random.below(kSlot);
    };
    for (uint64_t round = 0; round < kRounds; ++round) {
      std::vector<std::vector<std::byte>> out;
      std::vector<hetcomm_request_t*> requests;
      for (uint64_t slot = 0; slot < kSlots; ++slot) {
        const uint64_t length = length_of(round, slot);
        const auto options = notifying(round << 32 | slot);
        out.push_back(pattern(length, round * kSlots + slot));
        requests.push_back(theirs.put(slot * kSlot, out.back().data(), length, &options));
      }
      std::vector<bool> seen(kSlots);
      for (uint64_t i = 0; i < kSlots; ++i) {
        hetcomm_notification_t notification{};
        ASSERT_EQ(hetcomm_memory_wait_notification(mine.get(), kPatienceNs, &notification),
                  HETCOMM_OK)
            << i << ": " << hetcomm_last_error();
        EXPECT_EQ(notification.value >> 32, round);
        const uint64_t slot = notification.value & 0xffffffff;
        ASSERT_LT(slot, kSlots);
        EXPECT_FALSE(seen[slot]) << "twice";
        seen[slot] = true;
        EXPECT_EQ(notification.source, me.partner());
        EXPECT_EQ(notification.offset, slot * kSlot);
        EXPECT_EQ(notification.length, length_of(round, slot));
        EXPECT_TRUE(holds(mine.contents(notification.offset, notification.length),
                          round * kSlots + slot, notification.length))
            << "slot " << slot << " of " << notification.length;
      }
      hetcomm_notification_t none{};
      finish_all(requests);
      EXPECT_EQ(hetcomm_memory_wait_notification(mine.get(), HETCOMM_TIMEOUT_POLL, &none),
                HETCOMM_TIMED_OUT);
      me.meet();
    }
  });
}

TEST_P(OneSided, UnreadNotificationsDoNotBlockOtherTraffic) {
  CapiCase test_case = GetParam();
  test_case.settings += "CREDIT_BYTES=16K;";
  run_job(test_case, test_case.alone() ? 1 : 2, [](Member& me) {
    constexpr uint64_t kCount = 500;  // credit suffices for about 60
    Shared mine(me, kCount * 8);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    std::vector<uint64_t> values(kCount);
    std::vector<hetcomm_request_t*> requests;
    for (uint64_t i = 0; i < kCount; ++i) {
      values[i] = i;
      const auto options = notifying(i);
      requests.push_back(theirs.put(i * 8, &values[i], 8, &options));
    }
    // Messages, puts and gets still work.
    for (uint64_t i = 0; i < 20; ++i) {
      std::vector<std::byte> out = pattern(5000, i);
      std::vector<std::byte> in(5000);
      hetcomm_request_t* receive = me.recv(me.partner(), i, in.data(), in.size());
      expect_ok(me.send(me.partner(), i, out.data(), out.size()));
      expect_ok(receive);
      uint64_t word = 0;
      expect_ok(theirs.get(8 * (i % 8), hetcomm_buffer_host(&word, 8)));
    }
    me.meet();
    hetcomm_notification_t notification{};
    std::vector<bool> seen(kCount);
    for (uint64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(hetcomm_memory_wait_notification(mine.get(), kPatienceNs, &notification),
                HETCOMM_OK)
          << i << ": " << hetcomm_last_error();
      ASSERT_LT(notification.value, kCount);
      EXPECT_FALSE(seen[notification.value]);
      seen[notification.value] = true;
    }
    finish_all(requests);
    me.meet();
  });
}

TEST_P(OneSided, AtomicsFromSeveralRanksLoseNoUpdate) {
  const int32_t size = GetParam().alone() ? 1 : 4;
  run(size, [](Member& me) {
    constexpr uint64_t kRounds = 50;
    const auto ranks = static_cast<uint64_t>(me.size());
    Shared mine(me, 64 + 8 * kRounds * ranks);
    mine.fill(std::vector<std::byte>(mine.size()));
    me.meet();
    std::vector<std::unique_ptr<Remote>> all;
    for (int32_t rank = 0; rank < me.size(); ++rank) {
      if (rank == me.rank()) {
        all.push_back(std::make_unique<Remote>(me, mine.exported()));
        for (int32_t other = 0; other < me.size(); ++other) {
          const std::vector<std::byte> bytes = mine.exported();
          if (other != rank) expect_ok(me.send(other, kExportTag, bytes.data(), bytes.size()));
        }
      } else {
        std::vector<std::byte> bytes(HETCOMM_EXPORT_MAX_BYTES);
        const Outcome outcome = finish(me.recv(rank, kExportTag, bytes.data(), bytes.size()));
        bytes.resize(outcome.bytes_received);
        all.push_back(std::make_unique<Remote>(me, bytes));
      }
    }
    me.meet();
    // Word 0 is a counter. Its previous values are tickets, each returned once and marked after the
    // counter. Word 1 is swapped from k to k + 1.
    for (uint64_t round = 0; round < kRounds; ++round) {
      for (const auto& remote : all) {
        const uint64_t ticket = remote->add(0, 1);
        ASSERT_LT(ticket, kRounds * ranks);
        EXPECT_EQ(remote->add(64 + 8 * ticket, 1), 0u) << "ticket " << ticket << " given twice";
        uint64_t seen = 0;
        while (true) {
          const uint64_t before = remote->swap(8, seen, seen + 1);
          if (before == seen) break;
          seen = before;
        }
      }
    }
    me.meet();
    uint64_t words[2];
    std::memcpy(words, mine.contents(0, 16).data(), 16);
    EXPECT_EQ(words[0], kRounds * ranks);
    EXPECT_EQ(words[1], kRounds * ranks);
    me.meet();
    all.clear();
    me.meet();
  });
}

TEST_P(OneSided, FlushCoversReleasedOperationsAndReportsTheirFailure) {
  run_two([](Member& me) {
    Shared mine(me, 1 << 20);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    EXPECT_EQ(flush(me, me.partner()), HETCOMM_OK) << "of nothing";
    me.meet();
    const std::vector<std::byte> out = pattern(1 << 20, 9);
    EXPECT_EQ(hetcomm_request_destroy(theirs.put(0, out.data(), out.size())), HETCOMM_OK);
    EXPECT_EQ(hetcomm_request_destroy(theirs.put(0, out.data(), 100)), HETCOMM_OK);
    EXPECT_EQ(flush(me, me.partner()), HETCOMM_OK);
    me.meet();
    EXPECT_TRUE(holds(mine.contents(), 9, out.size()));
    me.meet();
    mine.unpublish();
    me.meet();
    EXPECT_EQ(hetcomm_request_destroy(theirs.put(0, out.data(), 100)), HETCOMM_OK);
    EXPECT_EQ(flush(me, me.partner()), HETCOMM_STALE_HANDLE);
    EXPECT_EQ(flush(me, me.partner()), HETCOMM_OK) << "reported once";
    me.meet();
  });
}

TEST_P(OneSided, AccessWithoutPermissionIsRefused) {
  run_two([](Member& me) {
    Shared readable(me, 1000, HETCOMM_ACCESS_GET);
    Shared writable(me, 1000, HETCOMM_ACCESS_PUT);
    const Remote read(me, exchange(me, me.partner(), readable.exported()));
    const Remote write(me, exchange(me, me.partner(), writable.exported()));
    uint64_t word = 0;
    uint64_t previous = 0;
    hetcomm_request_t* request = nullptr;
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&word, 8);
    EXPECT_EQ(hetcomm_put(read.get(), 0, buffer, nullptr, &request), HETCOMM_PERMISSION_DENIED);
    EXPECT_EQ(hetcomm_get(write.get(), 0, buffer, nullptr, &request), HETCOMM_PERMISSION_DENIED);
    EXPECT_EQ(hetcomm_fetch_add(write.get(), 0, 1, &previous, nullptr, &request),
              HETCOMM_PERMISSION_DENIED);
    EXPECT_EQ(hetcomm_put(write.get(), 993, buffer, nullptr, &request), HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(hetcomm_put(write.get(), UINT64_MAX, buffer, nullptr, &request),
              HETCOMM_OUT_OF_RANGE);
    EXPECT_EQ(hetcomm_get(read.get(), 1001, hetcomm_buffer_host(&word, 0), nullptr, &request),
              HETCOMM_OUT_OF_RANGE);
    EXPECT_STRNE(hetcomm_last_error(), "");
    EXPECT_EQ(request, nullptr);
    // Exports that claim more than the owner granted pass this rank's check, but not the owner's.
    std::vector<std::byte> forged = exchange(me, me.partner(), readable.exported());
    // The byte of rights follows magic, job, epoch, mesh, rank, id and length.
    const size_t rights = 4 + 16 + 4 + 16 + 4 + 8 + 8;
    forged[rights] = std::byte{HETCOMM_ACCESS_ALL};
    const size_t keys = rights + 2;
    forged.resize(keys + 1);
    forged[keys] = std::byte{0};
    const Remote liar(me, forged);
    EXPECT_EQ(finish(liar.put(0, &word, 8)).status, HETCOMM_PERMISSION_DENIED);
    EXPECT_EQ(finish(liar.fetch_add(0, 1, &previous)).status, HETCOMM_PERMISSION_DENIED);
    std::vector<std::byte> longer = forged;
    longer[rights - 7] = std::byte{0xff};
    const Remote past(me, longer);
    EXPECT_EQ(finish(past.get(2000, buffer)).status, HETCOMM_OUT_OF_RANGE);
    std::vector<std::byte> large(500'000);
    EXPECT_EQ(finish(past.get(2000, hetcomm_buffer_host(large.data(), 60'000))).status,
              HETCOMM_OUT_OF_RANGE);
    me.meet();
    EXPECT_EQ(readable.contents(), std::vector<std::byte>(1000, std::byte{0x5a}));
    me.meet();
  });
}

TEST_P(OneSided, StaleAndForeignExportsAreRefused) {
  run_two([](Member& me) {
    Shared mine(me, 1000);
    const std::vector<std::byte> old = exchange(me, me.partner(), mine.exported());
    mine.unpublish();
    mine.publish(HETCOMM_ACCESS_ALL);
    me.meet();
    {
      const Remote outdated(me, old);
      uint64_t word = 7;
      uint64_t previous = 0;
      EXPECT_EQ(finish(outdated.put(0, &word, 8)).status, HETCOMM_STALE_HANDLE);
      EXPECT_EQ(finish(outdated.get(0, hetcomm_buffer_host(&word, 8))).status,
                HETCOMM_STALE_HANDLE);
      EXPECT_EQ(finish(outdated.fetch_add(0, 1, &previous)).status, HETCOMM_STALE_HANDLE);
      std::vector<std::byte> large(900);
      const auto options = notifying(1);
      EXPECT_EQ(finish(outdated.put(0, large.data(), large.size(), &options)).status,
                HETCOMM_STALE_HANDLE);
    }
    me.meet();
    EXPECT_EQ(mine.contents(), std::vector<std::byte>(1000, std::byte{0x5a}));
    hetcomm_remote_memory_t* remote = nullptr;
    // The job, its epoch and its mesh follow four bytes of format. Each of their bytes matters.
    for (size_t at = 4; at < 4 + 16 + 4 + 16; ++at) {
      std::vector<std::byte> foreign = old;
      foreign[at] ^= std::byte{1};
      EXPECT_EQ(hetcomm_memory_import(me.communicator(), foreign.data(), foreign.size(), &remote),
                HETCOMM_PERMISSION_DENIED)
          << "byte " << at;
    }
    // Random bytes and truncated ones are refused.
    Random random(3);
    for (int i = 0; i < 300; ++i) {
      std::vector<std::byte> bytes = old;
      if (i % 2 == 0) {
        bytes.resize(random.below(bytes.size()));
      } else {
        for (std::byte& byte : bytes) {
          if (random.chance(0.3)) byte = static_cast<std::byte>(random.below(256));
        }
        bytes[0] ^= std::byte{1};
      }
      EXPECT_NE(hetcomm_memory_import(me.communicator(), bytes.data(), bytes.size(), &remote),
                HETCOMM_OK);
    }
    EXPECT_EQ(remote, nullptr);
    me.meet();
  });
}

// Ranks, name, epoch and the registration's number are the same as before.
TEST_P(OneSided, ExportOfADestroyedCommunicatorIsRefused) {
  run_two([](Member& me) {
    hetcomm_communicator_options_t options{};
    options.struct_size = sizeof(options);
    options.name = "again";
    options.timeout_ns = kPatienceNs;
    const std::string& transports = me.test_case().transports;
    options.transports = transports.empty() ? nullptr : transports.c_str();
    const auto create = [&](const std::string& store) {
      hetcomm_bootstrap_t* bootstrap = me.make_bootstrap(store, me.rank(), me.size());
      hetcomm_communicator_t* made = nullptr;
      EXPECT_EQ(hetcomm_communicator_create(me.context(), bootstrap, &options, &made), HETCOMM_OK)
          << hetcomm_last_error();
      hetcomm_bootstrap_destroy(bootstrap);
      return made;
    };
    hetcomm_memory_t* memory = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(me.context(), 0, 4096, &memory), HETCOMM_OK);
    std::vector<std::byte> exported(HETCOMM_EXPORT_MAX_BYTES);
    size_t size = 0;
    const auto offer_in = [&](hetcomm_communicator_t* communicator) {
      const uint32_t flags = me.test_case().thread_progress ? 0 : HETCOMM_REGISTER_CALLER_PROGRESS;
      ASSERT_EQ(hetcomm_memory_register(memory, communicator, HETCOMM_ACCESS_ALL, flags),
                HETCOMM_OK)
          << hetcomm_last_error();
    };

    hetcomm_communicator_t* first = create("first");
    ASSERT_NE(first, nullptr);
    offer_in(first);
    ASSERT_EQ(hetcomm_memory_export(memory, exported.size(), exported.data(), &size), HETCOMM_OK);
    exported.resize(size);
    hetcomm_remote_memory_t* remote = nullptr;
    EXPECT_EQ(hetcomm_memory_import(first, exported.data(), size, &remote), HETCOMM_OK);
    EXPECT_EQ(hetcomm_remote_memory_destroy(remote), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_unregister(memory, kPatienceNs), HETCOMM_OK);
    me.meet();
    EXPECT_EQ(hetcomm_communicator_destroy(first), HETCOMM_OK) << hetcomm_last_error();

    hetcomm_communicator_t* second = create("second");
    ASSERT_NE(second, nullptr);
    offer_in(second);
    remote = nullptr;
    EXPECT_EQ(hetcomm_memory_import(second, exported.data(), size, &remote),
              HETCOMM_PERMISSION_DENIED);
    EXPECT_EQ(remote, nullptr);
    me.meet();
    EXPECT_EQ(hetcomm_memory_unregister(memory, kPatienceNs), HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
    EXPECT_EQ(hetcomm_communicator_destroy(second), HETCOMM_OK) << hetcomm_last_error();
  });
}

// The remaining ranks have new numbers: old exports would name another rank's memory.
TEST_P(OneSided, ExportFromBeforeARebuildIsRefused) {
  HETCOMM_NEEDS_RANKS();
  run(3, [](Member& me) {
    if (me.rank() == 0) {  // this rank leaves
      me.meet();
      return;
    }
    Shared mine(me, 1000);
    const std::vector<std::byte> old = exchange(me, 3 - me.rank(), mine.exported());
    const Remote before(me, old);
    me.meet();
    hetcomm_bootstrap_t* bootstrap = me.make_bootstrap("rebuilt", me.rank() - 1, 2);
    hetcomm_communicator_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = kPatienceNs;
    const std::string& transports = me.test_case().transports;
    options.transports = transports.empty() ? nullptr : transports.c_str();
    hetcomm_communicator_t* fresh = nullptr;
    ASSERT_EQ(hetcomm_communicator_rebuild(me.communicator(), bootstrap, &options, &fresh),
              HETCOMM_OK)
        << hetcomm_last_error();
    hetcomm_bootstrap_destroy(bootstrap);
    // The rank's own old exports are refused too, and earlier imports no longer work.
    hetcomm_remote_memory_t* remote = nullptr;
    for (const std::vector<std::byte>& bytes : {old, mine.exported()}) {
      EXPECT_EQ(hetcomm_memory_import(fresh, bytes.data(), bytes.size(), &remote),
                HETCOMM_PERMISSION_DENIED);
      EXPECT_EQ(remote, nullptr);
    }
    uint64_t word = 7;
    hetcomm_request_t* request = nullptr;
    const hetcomm_status_t posted =
        hetcomm_put(before.get(), 0, hetcomm_buffer_host(&word, 8), nullptr, &request);
    EXPECT_EQ(posted == HETCOMM_OK ? finish(request).status : posted, HETCOMM_ABORTED);
    EXPECT_EQ(hetcomm_communicator_barrier(fresh, kPatienceNs), HETCOMM_OK);
    EXPECT_EQ(mine.contents(), std::vector<std::byte>(1000, std::byte{0x5a}));
    EXPECT_EQ(hetcomm_communicator_destroy(fresh), HETCOMM_OK) << hetcomm_last_error();
  });
}

TEST_P(OneSided, MemoryInUseIsBusy) {
  run_two([](Member& me) {
    Shared mine(me, 1000);
    EXPECT_EQ(hetcomm_memory_destroy(mine.get()), HETCOMM_BUSY);
    EXPECT_EQ(register_memory(me, mine.get(), HETCOMM_ACCESS_GET), HETCOMM_BUSY);
    EXPECT_EQ(hetcomm_communicator_destroy(me.communicator()), HETCOMM_BUSY);
    {
      const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
      hetcomm_remote_memory_info_t info{.struct_size = sizeof(info)};
      EXPECT_EQ(hetcomm_remote_memory_info(theirs.get(), &info), HETCOMM_OK);
      EXPECT_EQ(info.rank, me.partner());
      EXPECT_EQ(info.access, uint32_t{HETCOMM_ACCESS_ALL});
      EXPECT_EQ(info.size_bytes, 1000u);
      EXPECT_EQ(hetcomm_communicator_destroy(me.communicator()), HETCOMM_BUSY);
      me.meet();
    }
    me.meet();
  });
}

TEST_P(OneSided, GroupStartsItsPutsTogether) {
  run_two([](Member& me) {
    Shared mine(me, 64);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
    hetcomm_operation_options_t options = notifying(4);
    options.group = group;
    const uint64_t words[2] = {11, 12};
    std::vector<hetcomm_request_t*> requests = {theirs.put(0, &words[0], 8, &options),
                                                theirs.put(8, &words[1], 8, &options)};
    hetcomm_notification_t notification{};
    EXPECT_EQ(hetcomm_memory_wait_notification(mine.get(), 5 * kMs, &notification),
              HETCOMM_TIMED_OUT);
    me.meet();
    EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(hetcomm_memory_wait_notification(mine.get(), kPatienceNs, &notification),
                HETCOMM_OK);
    }
    finish_all(requests);
    hetcomm_request_t* dropped = theirs.put(0, &words[0], 8, &options);
    hetcomm_group_destroy(group);
    EXPECT_EQ(finish(dropped).status, HETCOMM_CANCELLED);
    me.meet();
  });
}

// The owner unregisters during puts, fills the memory, and checks that it does not change.
TEST_P(OneSided, NothingIsWrittenAfterUnregister) {
  run_two([](Member& me) {
    constexpr uint64_t kSize = 3 << 20;
    for (int round = 0; round < 6; ++round) {
      Shared mine(me, kSize);
      const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
      me.meet();
      const std::vector<std::byte> out(kSize, std::byte{0xee});
      std::vector<std::byte> in(kSize);
      std::vector<hetcomm_request_t*> requests;
      uint64_t previous = 0;
      for (int i = 0; i < 4; ++i) {
        const auto options = notifying(1);
        requests.push_back(theirs.put(0, out.data(), kSize));
        requests.push_back(theirs.put(0, out.data(), 3000, &options));
        requests.push_back(theirs.get(0, hetcomm_buffer_host(in.data(), kSize)));
        requests.push_back(theirs.fetch_add(8, 1, &previous));
      }
      Random random(static_cast<uint64_t>(round * 2 + me.rank()));
      (void)me.until([] { return false; }, random.below(3) * random.below(kMs));
      mine.unpublish();
      mine.fill(std::vector<std::byte>(kSize, std::byte{0x33}));
      for (hetcomm_request_t* request : requests) {
        const Outcome outcome = finish(request);
        EXPECT_TRUE(outcome.status == HETCOMM_OK || outcome.status == HETCOMM_STALE_HANDLE)
            << hetcomm_status_name(outcome.status) << ": " << outcome.text;
      }
      me.meet();
      EXPECT_EQ(mine.contents(), std::vector<std::byte>(kSize, std::byte{0x33})) << round;
    }
  });
}

TEST_P(OneSided, ProgressThreadServesAComputingOwner) {
  if (!GetParam().thread_progress) GTEST_SKIP() << "caller progress: served in calls only";
  HETCOMM_NEEDS_RANKS();
  run_two([](Member& me) {
    constexpr uint64_t kSize = 5 << 20;
    Shared mine(me, kSize);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    if (me.rank() == 0) {
      // The rank makes no library call until the other rank has signalled it by a plain store into
      // the memory.
      auto* word = static_cast<uint64_t*>(mine.address());
      const std::atomic_ref<uint64_t> told(word[1]);
      const auto start = std::chrono::steady_clock::now();
      told.store(0);
      me.meet();
      while (told.load() != 1) {
        ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
      }
    } else {
      me.meet();
      const std::vector<std::byte> out = pattern(kSize - 64, 3);
      std::vector<std::byte> in(kSize - 64);
      expect_ok(theirs.put(64, out.data(), out.size()));
      expect_ok(theirs.get(64, hetcomm_buffer_host(in.data(), in.size())));
      EXPECT_TRUE(holds(in, 3, in.size()));
      expect_ok(theirs.put(64, out.data(), 100));
      EXPECT_EQ(theirs.add(8, 1), 0u);
    }
    me.meet();
  });
}

// Sleeps without library calls until the other rank has set the word.
void await_word(Member& me) {
  for (int i = 0; i < 15'000 && me.store().word(1) == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(me.store().word(1), 1u);
}

bool maps(const CapiCase& test_case) {
  return test_case.transports == "shm" || test_case.name == "any";
}

hetcomm_counters_t counters_with(Member& me, int32_t rank) {
  hetcomm_counters_t counters[4] = {{.struct_size = sizeof(counters[0])}};
  size_t count = 0;
  EXPECT_EQ(hetcomm_communicator_counters(me.communicator(), rank, 4, counters, &count),
            HETCOMM_OK);
  EXPECT_EQ(count, 1u);
  return counters[0];
}

// Uses |theirs| until it is mapped.
void map(Member& me, const Remote& theirs) {
  EXPECT_TRUE(me.until([&] {
    uint64_t word = 0;
    expect_ok(theirs.get(0, hetcomm_buffer_host(&word, 8)));
    return counters_with(me, me.partner()).direct > 0;
  }));
}

TEST_P(OneSided, MappedMemoryIsAccessibleWithoutTheOwner) {
  if (!maps(GetParam())) GTEST_SKIP() << "no shared memory";
  run_two([](Member& me) {
    constexpr uint64_t kSize = 9 << 20;
    Shared mine(me, kSize);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    const Remote again(me, exchange(me, me.partner(), mine.exported()));
    map(me, theirs);
    me.meet();
    if (me.rank() == 0) {
      // The rank makes no library call while the other rank works.
      await_word(me);
    } else {
      for (const Remote* remote : {&theirs, &again}) {
        for (const uint64_t size : {uint64_t{8}, uint64_t{3000}, kSize - 64}) {
          const std::vector<std::byte> out = pattern(size, size);
          expect_ok(remote->put(64, out.data(), size));
          std::vector<std::byte> back(size);
          expect_ok(remote->get(64, hetcomm_buffer_host(back.data(), size)));
          EXPECT_TRUE(holds(back, size, size));
        }
        const uint64_t before = remote->add(0, 5);
        EXPECT_EQ(remote->swap(0, before + 5, before), before + 5);
        EXPECT_EQ(flush(me, me.partner()), HETCOMM_OK);
      }
      me.store().word(1) = 1;
    }
    me.meet();
    if (me.rank() == 0) {
      EXPECT_TRUE(holds(mine.contents(64, kSize - 64), kSize - 64, kSize - 64));
    }
    me.meet();
  });
}

TEST_P(OneSided, MemoryWithoutFullAccessIsNotMapped) {
  if (!maps(GetParam())) GTEST_SKIP() << "no shared memory";
  run_two([](Member& me) {
    for (const int access : {int{HETCOMM_ACCESS_GET}, HETCOMM_ACCESS_GET | HETCOMM_ACCESS_PUT,
                             HETCOMM_ACCESS_GET | HETCOMM_ACCESS_ATOMIC}) {
      Shared mine(me, 5000, static_cast<uint32_t>(access));
      const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
      std::vector<std::byte> back(5000);
      for (int i = 0; i < 20; ++i) {
        expect_ok(theirs.get(0, hetcomm_buffer_host(back.data(), back.size())));
        me.meet();
      }
      EXPECT_EQ(back, std::vector<std::byte>(5000, std::byte{0x5a}));
      EXPECT_EQ(counters_with(me, me.partner()).direct, 0u);
      me.meet();
    }
  });
}

TEST_P(OneSided, AtomicDoesNotNeedThePutRight) {
  HETCOMM_NEEDS_RANKS();
  run_two([](Member& me) {
    Shared mine(me, 4096, HETCOMM_ACCESS_ATOMIC | HETCOMM_ACCESS_GET);
    mine.fill(std::vector<std::byte>(4096));
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(theirs.add(64, 3), 3 * i);
    EXPECT_EQ(theirs.swap(64, 150, 7), 150u);
    EXPECT_EQ(theirs.swap(64, 150, 8), 7u);
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(hetcomm_put(theirs.get(), 0, hetcomm_buffer_host(&me, 8), nullptr, &request),
              HETCOMM_PERMISSION_DENIED);
    me.meet();
    uint64_t word = 0;
    std::memcpy(&word, mine.contents(64, 8).data(), 8);
    EXPECT_EQ(word, 7u);
    me.meet();
  });
}

// The first refusal waits for room on the connection, and the other refusals queue after it.
TEST_P(OneSided, RefusalIsNotAcknowledgedByAnEarlierMessage) {
  HETCOMM_NEEDS_RANKS();
  run_two([](Member& me) {
    constexpr uint64_t kMessages = 4000;
    constexpr uint64_t kSize = 1000;
    Shared mine(me, 1000);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    mine.unpublish();
    me.meet();
    std::vector<std::byte> bytes(kMessages * kSize);
    std::vector<hetcomm_request_t*> messages;
    if (me.rank() == 0) {
      me.meet_quietly();  // the connection is full
      std::vector<hetcomm_request_t*> puts;
      for (int i = 0; i < 8; ++i) puts.push_back(theirs.put(0, bytes.data(), 8));
      me.meet_quietly();
      me.meet_quietly();  // the rank has received them
      for (uint64_t i = 0; i < kMessages; ++i) {
        messages.push_back(me.recv(1, 3, &bytes[i * kSize], kSize));
      }
      for (hetcomm_request_t* put : puts) EXPECT_EQ(finish(put).status, HETCOMM_STALE_HANDLE);
    } else {
      for (uint64_t i = 0; i < kMessages; ++i) {
        messages.push_back(me.send(0, 3, &bytes[i * kSize], kSize));
      }
      me.meet_quietly();
      me.meet_quietly();
      (void)me.until([] { return false; }, 5 * kMs);
      me.meet_quietly();
    }
    finish_all(messages);
    me.meet();
  });
}

// A rank that leaves waits only for messages that a peer must receive.
TEST_P(OneSided, MessagesAfterAPutDoNotDelayLeaving) {
  HETCOMM_NEEDS_RANKS();
  run_two([](Member& me) {
    {
      Shared mine(me, 1000);
      const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
      uint64_t word = 7;
      const auto options = notifying(1);
      expect_ok(theirs.put(0, &word, 8, &options));
      hetcomm_notification_t notification{};
      EXPECT_EQ(hetcomm_memory_wait_notification(mine.get(), kPatienceNs, &notification),
                HETCOMM_OK);
      me.meet();
    }
    me.meet();  // both have released their mappings
    char letter = 'a';
    if (me.rank() == 0) {
      expect_ok(me.send(1, 3, &letter, 1));
    } else {
      expect_ok(me.recv(0, 3, &letter, 1));
    }
    me.meet_quietly();
    if (me.rank() == 1) {
      const uint64_t start = clock_ns();
      EXPECT_EQ(hetcomm_communicator_destroy(me.release()), HETCOMM_OK) << hetcomm_last_error();
      EXPECT_LT(clock_ns() - start, 3 * kSec);
    }
    me.meet_quietly();  // the other rank stays until this point
  });
}

TEST_P(OneSided, UnregisterEndsAWaitForANotification) {
  run_two([](Member& me) {
    std::atomic<int> ended{0};
    for (int round = 0; round < 20; ++round) {
      Shared mine(me, 4096);
      std::atomic<bool> waits{false};
      std::thread waiter([&] {
        waits.store(true);
        hetcomm_notification_t notification{};
        const hetcomm_status_t status =
            hetcomm_memory_wait_notification(mine.get(), kPatienceNs, &notification);
        // The wait may have started too late.
        EXPECT_TRUE(status == HETCOMM_STALE_HANDLE || status == HETCOMM_INVALID_ARGUMENT) << status;
        if (status == HETCOMM_STALE_HANDLE) ++ended;
      });
      while (!waits.load()) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
      mine.unpublish();
      waiter.join();
    }
    EXPECT_GT(ended.load(), 0);
    me.meet();
  });
}

TEST_P(OneSided, UnregisterWaitsForTheMapperToUnmap) {
  if (!maps(GetParam()) || GetParam().thread_progress) GTEST_SKIP() << "nobody holds a mapping";
  run_two([](Member& me) {
    Shared mine(me, 5000);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    map(me, theirs);
    me.meet();
    me.meet_quietly();  // neither is inside of a call any more, in which it would unmap
    if (me.rank() == 1) {
      await_word(me);
    } else {
      EXPECT_EQ(hetcomm_memory_unregister(mine.get(), 30 * kMs), HETCOMM_TIMED_OUT);
      EXPECT_STRNE(hetcomm_last_error(), "");
      EXPECT_EQ(hetcomm_memory_destroy(mine.get()), HETCOMM_BUSY);
      me.store().word(1) = 1;
      mine.unpublish();
    }
    me.meet();
    if (me.rank() == 1) {
      uint64_t word = 0;
      EXPECT_EQ(finish(theirs.put(0, &word, 8)).status, HETCOMM_STALE_HANDLE);
      EXPECT_EQ(finish(theirs.get(0, hetcomm_buffer_host(&word, 8))).status, HETCOMM_STALE_HANDLE);
    }
    me.meet();
  });
}

TEST_P(OneSided, EveryOperationEndsAtItsDeadline) {
  if (GetParam().thread_progress) GTEST_SKIP() << "thread progress: nobody is silent";
  HETCOMM_NEEDS_RANKS();
  run_two([](Member& me) {
    Shared mine(me, 200'000);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    if (me.rank() == 0) {
      // The rank is silent for as long as the other rank needs.
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
    } else {
      const auto options = with_timeout(60 * kMs);
      std::vector<std::byte> bytes(150'000);
      uint64_t previous = 0;
      const Outcome get =
          finish(theirs.get(0, hetcomm_buffer_host(bytes.data(), bytes.size()), &options));
      // The network may work without help from the owner.
      const hetcomm_status_t silent =
          me.test_case().transports == "rdma" ? HETCOMM_OK : HETCOMM_TIMED_OUT;
      EXPECT_EQ(get.status, silent) << get.text;
      const Outcome put = finish(theirs.put(0, bytes.data(), bytes.size(), &options));
      EXPECT_EQ(put.status, silent) << put.text;
      const Outcome add = finish(theirs.fetch_add(0, 1, &previous, &options));
      EXPECT_EQ(add.status, HETCOMM_OUTCOME_UNKNOWN) << add.text;
      hetcomm_request_t* request = theirs.fetch_add(0, 1, &previous);
      EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_OUTCOME_UNKNOWN);
    }
    me.meet();
    uint64_t word = 0;
    expect_ok(theirs.get(0, hetcomm_buffer_host(&word, 8)));
    me.meet();
  });
}

TEST_P(OneSided, AbortEndsEveryOperation) {
  HETCOMM_NEEDS_RANKS();
  run_two([](Member& me) {
    Shared mine(me, 1 << 20);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    me.expect_ruin();
    std::vector<std::byte> bytes(1 << 20);
    uint64_t previous = 0;
    std::vector<hetcomm_request_t*> requests = {theirs.put(0, bytes.data(), bytes.size()),
                                                theirs.fetch_add(0, 1, &previous)};
    if (me.rank() == 1) {
      EXPECT_EQ(hetcomm_communicator_abort(me.communicator(), "enough"), HETCOMM_OK);
    }
    for (hetcomm_request_t* request : requests) {
      const Outcome outcome = finish(request);
      // The other rank may have unregistered its memory already.
      EXPECT_TRUE(outcome.status == HETCOMM_OK || outcome.status == HETCOMM_ABORTED ||
                  outcome.status == HETCOMM_OUTCOME_UNKNOWN ||
                  outcome.status == HETCOMM_STALE_HANDLE)
          << outcome.text;
    }
    EXPECT_TRUE(me.until([&] {
      uint64_t word = 0;
      return finish(theirs.put(0, &word, 8)).status == HETCOMM_ABORTED;
    }));
  });
}

INSTANTIATE_TEST_SUITE_P(Over, OneSided, ::testing::ValuesIn(all_cases()), capi_case_name);

class OneSidedDeath : public CapiTest {};

TEST_P(OneSidedDeath, OwnerDeathEndsEveryOperation) {
  run(2, [](Member& me) {
    Shared mine(me, 64 << 20);
    const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
    me.meet();
    if (me.rank() == 1) me.die();
    me.expect_ruin();
    std::vector<std::byte> bytes(64 << 20);
    uint64_t previous = 0;
    std::vector<hetcomm_request_t*> requests;
    for (int i = 0; i < 3; ++i) {
      const auto options = notifying(1);
      requests.push_back(theirs.put(0, bytes.data(), bytes.size()));
      requests.push_back(theirs.put(0, bytes.data(), 8, &options));
      requests.push_back(theirs.get(0, hetcomm_buffer_host(bytes.data(), bytes.size())));
    }
    for (hetcomm_request_t* request : requests) {
      const Outcome outcome = finish(request);
      EXPECT_TRUE(outcome.status == HETCOMM_PEER_LOST || outcome.status == HETCOMM_OK)
          << hetcomm_status_name(outcome.status) << ": " << outcome.text;
    }
    const Outcome atomic = finish(theirs.fetch_add(0, 1, &previous));
    EXPECT_TRUE(atomic.status == HETCOMM_PEER_LOST || atomic.status == HETCOMM_OUTCOME_UNKNOWN)
        << atomic.text;
    EXPECT_EQ(flush(me, 1), HETCOMM_PEER_LOST);
  });
}

TEST_P(OneSidedDeath, MapperDeathReleasesTheMemory) {
  run(2, [](Member& me) {
    Shared mine(me, 1 << 20);
    {
      const Remote theirs(me, exchange(me, me.partner(), mine.exported()));
      uint64_t word = 0;
      for (int i = 0; i < 100; ++i) expect_ok(theirs.put(0, &word, 8));
      me.meet();
      if (me.rank() == 1) me.die();
      me.expect_ruin();
    }
    mine.unpublish();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, OneSidedDeath, ::testing::ValuesIn(process_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
