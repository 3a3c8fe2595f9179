// Puts and gets:
//
//   * move exactly the right bytes, whatever the pieces, offsets and sizes on both sides, and
//     change no neighbouring byte;
//   * complete once each; a Bulk may be reused after its completion;
//   * are reported to a target that sees puts: every byte once, per exposed memory;
//   * do not block messages, which are delivered during a long transfer;
//   * work in both directions at once;
//   * change nothing, and end, if the key or range was never exposed.
#include <list>

#include "tests/conformance/transports/transport_test.h"

namespace hetcomm::test {
namespace {

class BulkTransfers : public TransportTest {
 protected:
  uint64_t largest() const {
    return GetParam().slow() ? 600'000 : uint64_t{1 << 20} * static_cast<uint64_t>(rounds(6, 16));
  }
};

// Sent by the far side: its description of one exposed memory.
struct Offer {
  RemoteKey key;
  uint64_t size;
  uint64_t cookie;
};

// A transfer of |size| bytes in chunks of random sizes, in random order.
struct Transfer {
  uint64_t size;
  uint64_t local_base;
  uint64_t remote_base;
  std::list<Bulk> chunks;
};

Transfer cut(const GuardedMemory& local, const Offer& offer, Random& random) {
  Transfer transfer;
  transfer.size = random.between(1, std::min(local.size(), offer.size));
  transfer.local_base = random.between(0, local.size() - transfer.size);
  transfer.remote_base = random.between(0, offer.size - transfer.size);
  for (uint64_t done = 0; done < transfer.size;) {
    const uint64_t left = transfer.size - done;
    const uint64_t length = std::min(left, std::max(left / 20, random.size_up_to(left)));
    Bulk chunk = make_bulk(local, transfer.local_base + done, length, offer.key,
                           transfer.remote_base + done);
    chunk.high_priority = random.chance(0.2);
    if (random.chance(0.5)) {
      transfer.chunks.push_back(chunk);
    } else {
      transfer.chunks.push_front(chunk);
    }
    done += length;
  }
  return transfer;
}

// Starts all chunks and waits for their completions.
void run_chunks(Rail& rail, Transfer& transfer, Code (Rail::*start)(Bulk&)) {
  for (Bulk& chunk : transfer.chunks) {
    until_accepted(rail, [&] { return (rail.*start)(chunk); });
  }
  for (Bulk& chunk : transfer.chunks) EXPECT_EQ(await_bulk(rail, chunk), Code::kOk);
  EXPECT_EQ(rail.running(), 0u);
  EXPECT_TRUE(rail.completions.empty());
}

struct Report {
  uint64_t size;
  uint64_t base;
};

TEST_P(BulkTransfers, PutsWriteExactlyTheRequestedBytes) {
  const int count = GetParam().slow() ? 12 : rounds(25, 400);
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    Random random(seed());
    for (int i = 0; i < count; ++i) {
      const auto offer = side.take<Offer>();
      GuardedMemory source(random.size_up_to(largest()), random.between(1, 12), random);
      Transfer transfer = cut(source, offer, random);
      source.fill(offer.cookie, transfer.local_base, transfer.size, 0);
      run_chunks(rail, transfer, &Rail::put);
      EXPECT_TRUE(source.guards_intact());
      side.post(Report{transfer.size, transfer.remote_base});
      (void)side.take<char>();
    }
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < count; ++i) {
      const uint64_t cookie = 100 + static_cast<uint64_t>(i);
      constexpr uint64_t kBackground = 99;
      GuardedMemory target(random.size_up_to(largest()), some_pieces(rail, 12, random), random);
      target.fill(kBackground);
      const RemoteKey key = expose_or_abandon(rail, target, Access::kPutTarget, cookie);
      side.post(Offer{key, target.size(), cookie});
      const auto report = side.take<Report>();
      if (rail.capabilities().target_sees_put) {
        side.node().until("on_put of every byte",
                          [&] { return rail.put_bytes[cookie] >= report.size; });
        side.node().step();
        EXPECT_EQ(rail.put_bytes[cookie], report.size);
      }
      rail.release(key);
      const uint64_t end = report.base + report.size;
      EXPECT_EQ(target.mismatch(kBackground, 0, report.base, 0), std::nullopt);
      EXPECT_EQ(target.mismatch(cookie, report.base, report.size, 0), std::nullopt);
      EXPECT_EQ(target.mismatch(kBackground, end, target.size() - end, end), std::nullopt);
      EXPECT_TRUE(target.guards_intact());
      side.post('d');
    }
    EXPECT_EQ(rail.put_bytes.size(), rail.capabilities().target_sees_put ? size_t(count) : 0);
  };
  run_pair(
      options(),
      [&](Side& side) {
        if (!side.node().transport().capabilities().put)
          throw Abandoned("every transport here puts");
        near(side);
      },
      far);
}

TEST_P(BulkTransfers, GetsWriteExactlyTheRequestedBytes) {
  HETCOMM_NEEDS_GET();
  const int count = GetParam().slow() ? 12 : rounds(25, 400);
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    Random random(seed());
    for (int i = 0; i < count; ++i) {
      const auto offer = side.take<Offer>();
      constexpr uint64_t kBackground = 99;
      GuardedMemory target(random.size_up_to(largest()), random.between(1, 12), random);
      target.fill(kBackground);
      Transfer transfer = cut(target, offer, random);
      run_chunks(rail, transfer, &Rail::get);
      const uint64_t base = transfer.local_base;
      const uint64_t end = base + transfer.size;
      EXPECT_EQ(target.mismatch(kBackground, 0, base, 0), std::nullopt);
      EXPECT_EQ(target.mismatch(offer.cookie, base, transfer.size, transfer.remote_base),
                std::nullopt);
      EXPECT_EQ(target.mismatch(kBackground, end, target.size() - end, end), std::nullopt);
      EXPECT_TRUE(target.guards_intact());
      side.post('d');
    }
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < count; ++i) {
      const uint64_t cookie = 100 + static_cast<uint64_t>(i);
      GuardedMemory source(random.size_up_to(largest()), some_pieces(rail, 12, random), random);
      source.fill(cookie);
      const RemoteKey key = expose_or_abandon(rail, source, Access::kGetSource, cookie);
      side.post(Offer{key, source.size(), cookie});
      (void)side.take<char>();
      rail.release(key);
      EXPECT_EQ(source.mismatch(cookie), std::nullopt);
      EXPECT_TRUE(source.guards_intact());
    }
    EXPECT_TRUE(rail.put_bytes.empty());
  };
  run_pair(options(), near, far);
}

TEST_P(BulkTransfers, ConcurrentTransfersAndMessagesArriveIntact) {
  constexpr size_t kTransfers = 24;
  const uint64_t size = GetParam().slow() ? 50'000 : 400'000;
  const auto both = [&](Side& side) {
    Rail& rail = side.connect();
    Random random(seed() + static_cast<uint64_t>(side.rank()));
    uint64_t received = 0;
    rail.listen([&](const MessageHeader& header, ConstByteSpan payload) {
      EXPECT_EQ(decode(header).sequence, received++);
      expect_whole(header, payload);
    });
    GuardedMemory source(size, 5, random);
    source.fill(7);
    std::list<GuardedMemory> targets;
    std::vector<RemoteKey> mine;
    std::vector<RemoteKey> theirs;
    for (size_t i = 0; i < kTransfers; ++i) {
      targets.emplace_back(size, some_pieces(rail, 5, random), random);
      mine.push_back(expose_or_abandon(rail, targets.back(), Access::kPutTarget, i));
      side.post(mine.back());
      theirs.push_back(side.take<RemoteKey>());
    }
    std::list<Bulk> puts;
    uint64_t sent = 0;
    for (const RemoteKey& key : theirs) {
      puts.push_back(make_bulk(source, 0, size, key, 0));
      until_accepted(rail, [&] { return rail.put(puts.back()); });
      send_pattern(rail, sent, sent % 64, sent);
      ++sent;
    }
    for (const Bulk& put : puts) EXPECT_EQ(await_bulk(rail, put), Code::kOk);
    if (rail.capabilities().target_sees_put) {
      side.node().until("all puts", [&] {
        for (size_t i = 0; i < kTransfers; ++i) {
          if (rail.put_bytes[i] < size) return false;
        }
        return true;
      });
    }
    side.node().until("all messages", [&] { return received == kTransfers; });
    side.meet();
    for (const GuardedMemory& target : targets) {
      EXPECT_EQ(target.mismatch(7), std::nullopt);
      EXPECT_TRUE(target.guards_intact());
    }
    for (const RemoteKey& key : mine) rail.release(key);
    side.meet();
  };
  run_pair(options(), both, both);
}

TEST_P(BulkTransfers, MessageDoesNotWaitForALongPut) {
  if (GetParam().faulty) GTEST_SKIP() << "injected delays have no order";
  // The put is longer than the kernel's buffers while the far side gets no core: 20 MiB for each of
  // three connections. Emulated RDMA buffers almost nothing, and is slow, most of all with small
  // fragments.
  const uint64_t mebibytes = GetParam().transport != "rdma"              ? 96
                             : GetParam().name == "rdma_small_fragments" ? 4
                                                                         : 16;
  const uint64_t size = mebibytes << 20;
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    const auto key = side.take<RemoteKey>();
    std::vector<std::byte> source(size);
    const iovec piece{source.data(), source.size()};
    Bulk put;
    put.local = {Extents(&piece, 1), 0, size};
    put.key = key;
    until_accepted(rail, [&] { return rail.put(put); });
    for (int i = 0; i < 3; ++i) side.node().step();
    send_empty(rail);
    (void)await_bulk(rail, put);
    (void)side.take<char>();
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    std::vector<std::byte> memory(size);
    const iovec piece{memory.data(), memory.size()};
    auto key = rail.expose(Extents(&piece, 1), Access::kPutTarget, 1);
    ASSERT_TRUE(key.ok());
    uint64_t arrived = 0;
    bool got = false;
    rail.listen([&](const MessageHeader&, ConstByteSpan) {
      got = true;
      arrived = rail.put_bytes[1];
    });
    side.post(key.value());
    side.node().until("the message", [&] { return got; });
    if (rail.capabilities().target_sees_put) {
      side.node().until("the put", [&] { return rail.put_bytes[1] == size; });
      EXPECT_LT(arrived, size) << "the message came after the whole put";
    }
    rail.revoke(key.value());
    side.post('d');
  };
  run_pair(options(), near, far);
}

constexpr int kPutByte = 0x77;

void fill_byte(const GuardedMemory& memory) {
  for_each_piece(memory.extents(), 0, memory.size(),
                 [](std::byte* piece, size_t length) { std::memset(piece, kPutByte, length); });
}

// Counts the bytes that are neither pattern |seed| nor kPutByte.
uint64_t foreign_bytes(const GuardedMemory& memory, uint64_t seed) {
  std::vector<std::byte> expected(memory.size());
  fill_pattern(expected, seed);
  uint64_t foreign = 0;
  uint64_t at = 0;
  for_each_piece(memory.extents(), 0, memory.size(), [&](const std::byte* piece, size_t length) {
    for (size_t i = 0; i < length; ++i, ++at) {
      foreign += piece[i] != expected[at] && piece[i] != std::byte{kPutByte} ? 1u : 0u;
    }
  });
  return foreign;
}

// Uses keys and ranges that were never exposed. The connection may break. A put that ends past the
// end of the memory may write the part inside the memory. No other byte may change.
TEST_P(BulkTransfers, InvalidKeysAndRangesDoNotCorruptMemory) {
  const int count = GetParam().slow() ? 6 : rounds(20, 200);
  constexpr uint64_t kSize = 20'000;
  const auto near = [&](Side& side) {
    Random random(seed());
    for (int i = 0; i < count; ++i) {
      Rail& rail = side.connect();
      const auto good_put = side.take<RemoteKey>();
      const auto good_get = side.take<RemoteKey>();
      GuardedMemory local(kSize, 3, random);
      fill_byte(local);
      const bool get = rail.capabilities().get && random.chance(0.5);
      RemoteKey key = get ? good_get : good_put;
      uint64_t offset = 0;
      switch (random.below(5)) {
        case 0:
          for (uint64_t& word : key.words) word = random.next();
          break;
        case 1:
          key.words[random.below(3)] ^= uint64_t{1} << random.below(64);
          break;
        case 2:
          key = get ? good_put : good_get;  // a key for the other kind of access
          break;
        case 3:
          offset = kSize - random.below(kSize - 1);  // ends past the memory
          break;
        default:
          offset = ~uint64_t{0} - random.below(kSize);  // wraps around
      }
      Bulk bulk = make_bulk(local, 0, kSize, key, offset);
      const Code code = get ? rail.get(bulk) : rail.put(bulk);
      if (code == Code::kOk) {
        const Code outcome = await_bulk(rail, bulk);
        if (get && outcome == Code::kOk) {
          // Some bits of the key may be meaningless. Then the key still names the exposed memory.
          EXPECT_EQ(local.mismatch(6), std::nullopt);
        }
      }
      EXPECT_TRUE(local.guards_intact());
      if (!get) {
        EXPECT_EQ(foreign_bytes(local, 5), 0u);
      }
      side.meet();
      side.node().connected.clear();
    }
  };
  const auto far = [&](Side& side) {
    Random random(seed() + 1);
    for (int i = 0; i < count; ++i) {
      Rail& rail = side.connect();
      GuardedMemory target(kSize, some_pieces(rail, 3, random), random);
      GuardedMemory source(kSize, some_pieces(rail, 3, random), random);
      target.fill(4);
      source.fill(6);
      side.post(expose_or_abandon(rail, target, Access::kPutTarget, 1));
      side.post(expose_or_abandon(rail, source, Access::kGetSource, 2));
      side.meet();
      side.node().linger(kMillisecond);
      EXPECT_EQ(source.mismatch(6), std::nullopt);
      EXPECT_EQ(foreign_bytes(target, 4), 0u);
      EXPECT_TRUE(target.guards_intact());
      EXPECT_TRUE(source.guards_intact());
      EXPECT_EQ(rail.put_bytes[2], 0u);
      EXPECT_LE(rail.put_bytes[1], kSize);
      side.node().accepted.clear();
    }
  };
  run_pair(options(), near, far);
}

INSTANTIATE_OVER(BulkTransfers, transport_cases);

}  // namespace
}  // namespace hetcomm::test
