// Message contents:
//
//   * are unchanged at sizes around every boundary of the protocols (eager limits, chunks, rings,
//     credit), up to 64 MiB, and above 4 GiB (long run);
//   * do not change bytes after a shorter message;
//   * are truncated if too long: TRUNCATED with both lengths, and the next message is intact;
//   * may be gathered and scattered: one message, split differently on both sides, with empty
//     pieces;
//   * may be in host memory or in device memory that the CPU cannot access, in any combination.
#include <cstdlib>
#include <memory>

#include "tests/conformance/capi/device/device.h"
#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

class Data : public CapiTest {
 protected:
  static bool long_run() {
    const char* value = std::getenv("HETCOMM_TEST_LONG");
    return value != nullptr && std::string(value) == "1";
  }
};

// Sends patterns of |sizes| to the partner in both directions at once, and checks them.
void exchange_sizes(Member& me, const std::vector<uint64_t>& sizes) {
  for (uint64_t i = 0; i < sizes.size(); ++i) {
    const std::vector<std::byte> out = pattern(sizes[i], i + 10 * static_cast<uint64_t>(me.rank()));
    std::vector<std::byte> in(sizes[i] + 16);
    hetcomm_request_t* receive = nullptr;
    if (i % 2 == 0) receive = me.recv(me.partner(), i, in.data(), in.size());
    hetcomm_request_t* send = me.send(me.partner(), i, out.data(), out.size());
    if (i % 2 == 1) receive = me.recv(me.partner(), i, in.data(), in.size());
    const Outcome received = finish(receive);
    EXPECT_EQ(received.status, HETCOMM_OK) << received.text;
    EXPECT_EQ(received.bytes_sent, sizes[i]);
    EXPECT_EQ(received.bytes_received, sizes[i]);
    EXPECT_TRUE(holds(in, i + 10 * static_cast<uint64_t>(me.partner()), sizes[i]))
        << "size " << sizes[i];
    const Outcome sent = finish(send);
    EXPECT_EQ(sent.status, HETCOMM_OK) << sent.text;
    EXPECT_EQ(sent.bytes_sent, sizes[i]);
    EXPECT_EQ(sent.bytes_received, sizes[i]);
    EXPECT_EQ(sent.source, me.rank());
  }
}

TEST_P(Data, MessagesArriveIntactAtEverySizeBoundary) {
  run_two([](Member& me) {
    std::vector<uint64_t> sizes = {0, 1, 2, 3, 7, 8, 9, 31, 32, 33};
    for (uint64_t power = 64; power <= (2 << 20); power *= 2) {
      for (const uint64_t size : {power - 32, power - 1, power, power + 1, power + 32}) {
        sizes.push_back(size);
      }
    }
    exchange_sizes(me, sizes);
    me.meet();
  });
}

TEST_P(Data, MessagesUpTo64MiBArriveIntact) {
  run_two([](Member& me) {
    exchange_sizes(me, {(4 << 20) - 7, (16 << 20) + 3, 64 << 20});
    me.meet();
  });
}

TEST_P(Data, TooLongMessageIsTruncatedAndTheNextIsIntact) {
  run_two([](Member& me) {
    struct Cut {
      uint64_t sent;
      uint64_t room;
    };
    const Cut cuts[] = {
        {1, 0},           {100, 99},         {5000, 1},         {5000, 4096},
        {40'000, 39'999}, {200'000, 10},     {200'000, 0},      {3'000'000, 1'000'000},
        {70'000, 65'536}, {3'000'000, 5000}, {600'000, 599'999}};
    for (const bool late : {false, true}) {
      for (const Cut& cut : cuts) {
        const std::vector<std::byte> out = pattern(cut.sent, cut.sent);
        const std::vector<std::byte> next = pattern(777, 4);
        std::vector<std::byte> in(cut.room + 64, std::byte{0x5a});
        std::vector<std::byte> next_in(777);
        hetcomm_request_t* receive = nullptr;
        hetcomm_request_t* receive_next = nullptr;
        const auto post = [&] {
          receive = me.recv(me.partner(), 1, in.data(), cut.room);
          receive_next = me.recv(me.partner(), 1, next_in.data(), next_in.size());
        };
        if (!late) post();
        hetcomm_request_t* send = me.send(me.partner(), 1, out.data(), out.size());
        hetcomm_request_t* send_next = me.send(me.partner(), 1, next.data(), next.size());
        if (late) {
          (void)me.until([] { return false; }, 2 * kMs);
          post();
        }
        const Outcome received = finish(receive);
        EXPECT_EQ(received.status, HETCOMM_TRUNCATED) << received.text;
        EXPECT_EQ(received.source, me.partner());
        EXPECT_EQ(received.tag, 1u);
        EXPECT_EQ(received.bytes_sent, cut.sent);
        EXPECT_EQ(received.bytes_received, cut.room);
        EXPECT_TRUE(holds(in, cut.sent, cut.room, std::byte{0x5a}));
        const Outcome received_next = finish(receive_next);
        EXPECT_EQ(received_next.status, HETCOMM_OK) << received_next.text;
        EXPECT_TRUE(holds(next_in, 4, 777));
        // The sends succeed.
        EXPECT_EQ(finish(send).status, HETCOMM_OK);
        EXPECT_EQ(finish(send_next).status, HETCOMM_OK);
      }
    }
    me.meet();
  });
}

// Returns |size| bytes of |memory| in |pieces| random pieces.
std::vector<hetcomm_buffer_t> cut(std::vector<std::byte>& memory, uint64_t size, size_t pieces,
                                  Random& random) {
  std::vector<uint64_t> cuts = {0, size};
  for (size_t i = 1; i < pieces; ++i) cuts.push_back(random.between(0, size));
  std::sort(cuts.begin(), cuts.end());
  std::vector<hetcomm_buffer_t> buffers;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    buffers.push_back(hetcomm_buffer_host(memory.data() + cuts[i], cuts[i + 1] - cuts[i]));
  }
  return buffers;
}

TEST_P(Data, BufferListsCanBeSplitDifferentlyOnEachSide) {
  run_two([](Member& me) {
    Random random(5 + static_cast<uint64_t>(me.rank()));
    Random common(77);
    for (uint64_t i = 0; i < 40; ++i) {
      const uint64_t size = common.size_up_to(i % 10 == 0 ? 3'000'000 : 200'000) - 1;
      std::vector<std::byte> out = pattern(size, i);
      std::vector<std::byte> in(size + 20);
      const std::vector<hetcomm_buffer_t> from = cut(out, size, random.between(1, 60), random);
      const std::vector<hetcomm_buffer_t> to =
          cut(in, random.chance(0.5) ? size : in.size(), random.between(1, 60), random);
      hetcomm_request_t* send = nullptr;
      hetcomm_request_t* receive = nullptr;
      EXPECT_EQ(hetcomm_sendv(me.communicator(), me.partner(), i, from.data(), from.size(), nullptr,
                              &send),
                HETCOMM_OK)
          << hetcomm_last_error();
      EXPECT_EQ(hetcomm_recvv(me.communicator(), me.partner(), i, 0, to.data(), to.size(), nullptr,
                              &receive),
                HETCOMM_OK)
          << hetcomm_last_error();
      const Outcome outcome = finish(receive);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(outcome.bytes_received, size);
      EXPECT_TRUE(holds(in, i, size)) << "size " << size;
      EXPECT_EQ(finish(send).status, HETCOMM_OK);
    }
    me.meet();
  });
}

TEST_P(Data, EmptyBufferListSendsAnEmptyMessage) {
  run_two([](Member& me) {
    hetcomm_request_t* send = nullptr;
    hetcomm_request_t* receive = nullptr;
    EXPECT_EQ(hetcomm_sendv(me.communicator(), me.partner(), 1, nullptr, 0, nullptr, &send),
              HETCOMM_OK)
        << hetcomm_last_error();
    EXPECT_EQ(hetcomm_recvv(me.communicator(), me.partner(), 1, 0, nullptr, 0, nullptr, &receive),
              HETCOMM_OK)
        << hetcomm_last_error();
    if (receive != nullptr) {
      EXPECT_EQ(finish(receive).bytes_sent, 0u);
    }
    if (send != nullptr) {
      EXPECT_EQ(finish(send).status, HETCOMM_OK);
    }
    me.meet();
  });
}

// Sends more than 4 GiB in one message. The sender repeats a small buffer; debug builds refuse
// that of a receiver.
TEST_P(Data, MessageOfMoreThan4GiBArrivesIntact) {
  if (!long_run()) GTEST_SKIP() << "long run only (HETCOMM_TEST_LONG=1)";
  if (GetParam().name != GetParam().transports) GTEST_SKIP() << "plain transports only";
  run_two([](Member& me) {
    constexpr uint64_t kPiece = 8 << 20;
    constexpr uint64_t kPieces = 520;
    std::vector<std::byte> out = pattern(kPiece, 1);
    const bool receives = me.rank() == me.size() - 1;
    std::vector<std::vector<std::byte>> in(receives ? kPieces : 0, std::vector<std::byte>(kPiece));
    const std::vector<hetcomm_buffer_t> from(kPieces, hetcomm_buffer_host(out.data(), kPiece));
    std::vector<hetcomm_buffer_t> to;
    for (auto& piece : in) to.push_back(hetcomm_buffer_host(piece.data(), kPiece));
    const hetcomm_operation_options_t options = with_timeout(60 * kSec);
    hetcomm_request_t* request = nullptr;
    const bool sends = me.rank() == 0;
    hetcomm_request_t* other = nullptr;
    if (sends) {
      EXPECT_EQ(hetcomm_sendv(me.communicator(), me.partner(), 1, from.data(), kPieces, &options,
                              &request),
                HETCOMM_OK);
    }
    if (receives) {
      EXPECT_EQ(hetcomm_recvv(me.communicator(), me.partner(), 1, 0, to.data(), kPieces, &options,
                              &other),
                HETCOMM_OK);
      const Outcome outcome = finish(other, 80 * kSec);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(outcome.bytes_received, kPiece * kPieces);
      for (const auto& piece : in) ASSERT_EQ(piece, out);
    }
    if (sends) {
      EXPECT_EQ(finish(request, 80 * kSec).status, HETCOMM_OK);
    }
    me.meet();
  });
}

// --- devices ---------------------------------------------------------------------------------

void run_with_devices(CapiCase test_case, const std::function<void(Member&)>& body) {
  test_case.settings +=
      "DEVICES=sim-handle,sim-address:latency=20us,sim-handle:unified=1;STAGING_CHUNK=16K;";
  run_job(test_case, test_case.alone() ? 1 : 2, body);
}

TEST_P(Data, MessagesBetweenAllPairsOfMemoryKindsArriveIntact) {
  run_with_devices(GetParam(), [](Member& me) {
    int32_t devices = 0;
    ASSERT_EQ(hetcomm_device_count(me.context(), &devices), HETCOMM_OK);
    ASSERT_EQ(devices, 4);
    const uint64_t sizes[] = {0, 1, 100, 5000, 16'384, 16'385, 300'000, 1'500'000};
    uint64_t tag = 0;
    for (int32_t from = 0; from < devices; ++from) {
      for (int32_t to = 0; to < devices; ++to) {
        for (const uint64_t size : sizes) {
          ++tag;
          DeviceMemory source(me, from, size + 64);
          DeviceMemory target(me, to, size + 64);
          source.fill(pattern(size + 64, tag));
          target.fill(std::vector<std::byte>(size + 64, std::byte{0x11}));
          hetcomm_request_t* send = nullptr;
          hetcomm_request_t* receive = nullptr;
          EXPECT_EQ(hetcomm_send(me.communicator(), me.partner(), tag, source.part(0, size),
                                 nullptr, &send),
                    HETCOMM_OK)
              << hetcomm_last_error();
          EXPECT_EQ(hetcomm_recv(me.communicator(), me.partner(), tag, 0, target.part(0, size + 32),
                                 nullptr, &receive),
                    HETCOMM_OK)
              << hetcomm_last_error();
          const Outcome outcome = finish(receive);
          EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
          EXPECT_EQ(outcome.bytes_received, size);
          EXPECT_EQ(finish(send).status, HETCOMM_OK);
          EXPECT_TRUE(holds(target.contents(), tag, size, std::byte{0x11}))
              << from << " -> " << to << ", " << size << " bytes";
        }
      }
    }
    me.meet();
  });
}

TEST_P(Data, MessageFromSeveralDevicesArrivesIntact) {
  run_with_devices(GetParam(), [](Member& me) {
    for (const uint64_t part : {uint64_t{10}, uint64_t{3000}, uint64_t{100'000}}) {
      const uint64_t total = 4 * part;
      const std::vector<std::byte> all = pattern(total, part);
      DeviceMemory handle(me, 1, part + 8);
      DeviceMemory address(me, 2, 2 * part);
      std::vector<std::byte> host(all.begin(), all.begin() + static_cast<ptrdiff_t>(part));
      std::vector<std::byte> second(8 + part);
      std::copy_n(all.begin() + static_cast<ptrdiff_t>(part), part, second.begin() + 8);
      handle.fill(second);
      address.fill({all.begin() + static_cast<ptrdiff_t>(2 * part), all.end()});
      const hetcomm_buffer_t from[] = {hetcomm_buffer_host(host.data(), part), handle.part(8, part),
                                       address.part(0, 0), address.part(0, part),
                                       address.part(part, part)};
      DeviceMemory whole(me, 2, part);
      DeviceMemory rest(me, 1, 2 * part);
      std::vector<std::byte> tail(part + 7);
      const hetcomm_buffer_t to[] = {whole.part(0, part), rest.part(0, 2 * part),
                                     hetcomm_buffer_host(tail.data(), tail.size())};
      hetcomm_request_t* send = nullptr;
      hetcomm_request_t* receive = nullptr;
      EXPECT_EQ(hetcomm_recvv(me.communicator(), me.partner(), 1, 0, to, 3, nullptr, &receive),
                HETCOMM_OK);
      EXPECT_EQ(hetcomm_sendv(me.communicator(), me.partner(), 1, from, 5, nullptr, &send),
                HETCOMM_OK);
      const Outcome outcome = finish(receive);
      EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(outcome.bytes_received, total);
      EXPECT_EQ(finish(send).status, HETCOMM_OK);
      std::vector<std::byte> got = whole.contents();
      const std::vector<std::byte> middle = rest.contents();
      got.insert(got.end(), middle.begin(), middle.end());
      got.insert(got.end(), tail.begin(), tail.end());
      EXPECT_TRUE(holds(got, part, total));
    }
    me.meet();
  });
}

TEST_P(Data, RangeBeyondAMemoryIsRefusedAndMemoryInUseIsBusy) {
  run_with_devices(GetParam(), [](Member& me) {
    hetcomm_memory_t* memory = nullptr;
    ASSERT_EQ(hetcomm_memory_allocate(me.context(), 1, 1000, &memory), HETCOMM_OK);
    hetcomm_request_t* request = nullptr;
    for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
             {0, 1001}, {1000, 1}, {1001, 0}, {UINT64_MAX, 2}, {500, UINT64_MAX - 100}}) {
      EXPECT_EQ(hetcomm_send(me.communicator(), me.partner(), 1,
                             hetcomm_buffer_memory(memory, offset, length), nullptr, &request),
                HETCOMM_OUT_OF_RANGE)
          << offset << "+" << length;
      EXPECT_STRNE(hetcomm_last_error(), "");
    }
    EXPECT_EQ(hetcomm_recv(me.communicator(), me.partner(), 1, 0,
                           hetcomm_buffer_memory(memory, 0, 1000), nullptr, &request),
              HETCOMM_OK);
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_BUSY);
    EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
    EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
    EXPECT_EQ(hetcomm_memory_destroy(memory), HETCOMM_OK);
    me.meet();
  });
}

INSTANTIATE_TEST_SUITE_P(Over, Data, ::testing::ValuesIn(all_cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
