// Messages of one connection:
//
//   * arrive whole, once each, in send order, at every size from 0 to max_payload_bytes, in both
//     directions at once;
//   * are copied before send() returns;
//   * if refused, are not sent, and on_writable follows each refusal, even for a peer that was busy
//     for long;
//   * may be sent inside an upcall;
//   * messages that were accepted before the endpoint was flushed and destroyed arrive before the
//     peer's on_failed.
#include "tests/conformance/transports/transport_test.h"

namespace hetcomm::test {
namespace {

class Messages : public TransportTest {};

std::vector<uint64_t> interesting_sizes(uint64_t largest) {
  std::vector<uint64_t> sizes = {0, 1, 7, 8, 9};
  for (uint64_t power = 16; power <= largest; power *= 2) {
    for (const uint64_t size : {power - 33, power - 32, power - 1, power, power + 1}) {
      if (size <= largest) sizes.push_back(size);
    }
  }
  sizes.push_back(largest - 1);
  sizes.push_back(largest);
  return sizes;
}

// Checks order and contents of all messages that |rail| receives, and counts them in |received|.
void check_stream(Rail& rail, uint64_t& received) {
  rail.listen([&received](const MessageHeader& header, ConstByteSpan payload) {
    EXPECT_EQ(decode(header).sequence, received);
    expect_whole(header, payload);
    ++received;
  });
}

TEST_P(Messages, MessagesOfManySizesArriveInOrderInBothDirections) {
  const int random_messages = GetParam().slow() ? 150 : rounds(600, 20000);
  const auto both = [&](Side& side) {
    Rail& rail = side.connect();
    uint64_t received = 0;
    check_stream(rail, received);
    const uint64_t largest = rail.capabilities().max_payload_bytes;
    ASSERT_GE(largest, 64u);
    Random random(seed() + static_cast<uint64_t>(side.rank()));
    std::vector<uint64_t> sizes = interesting_sizes(std::min<uint64_t>(largest, 1 << 20));
    for (int i = 0; i < random_messages; ++i) {
      sizes.push_back(random.size_up_to(std::min<uint64_t>(largest, 100'000)) - 1);
    }
    side.meet();
    uint64_t sequence = 0;
    for (const uint64_t size : sizes) {
      send_pattern(rail, sequence++, size, random.next());
      if (random.chance(0.2)) side.node().step();
    }
    side.post(sequence);
    const auto expected = side.take<uint64_t>();
    side.node().until("all messages", [&] { return received >= expected; });
    side.node().until("flushed", [&] { return rail.endpoint().flushed(); });
    side.node().linger(5 * kMillisecond);
    EXPECT_EQ(received, expected);
    side.meet();
  };
  run_pair(options(), both, both);
}

TEST_P(Messages, PayloadIsCopiedBeforeSendReturns) {
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    const uint64_t size = std::min<uint64_t>(rail.capabilities().max_payload_bytes, 4000);
    std::vector<std::byte> bytes(size);
    for (uint64_t i = 0; i < 200; ++i) {
      fill_pattern(bytes, i);
      const iovec piece{bytes.data(), size};
      until_accepted(rail, [&] {
        return rail.send(encode({i, size, i, 0}), {Extents(&piece, 1), 0, size});
      });
      fill_bytes(bytes, std::byte{0xee});
    }
    side.meet();
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    uint64_t received = 0;
    check_stream(rail, received);
    side.node().until("all messages", [&] { return received == 200; });
    side.meet();
  };
  run_pair(options(), near, far);
}

TEST_P(Messages, OffsetAndLengthOfTheViewAreRespected) {
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    const uint64_t limit = std::min<uint64_t>(rail.capabilities().max_payload_bytes, 5000);
    Random random(seed());
    for (uint64_t i = 0; i < 200; ++i) {
      GuardedMemory memory(random.between(1, 2 * limit), random.between(1, 9), random);
      const uint64_t length = random.below(std::min(memory.size(), limit) + 1);
      const uint64_t offset = random.between(0, memory.size() - length);
      memory.fill(i, offset, length, 0);
      until_accepted(rail, [&] {
        return rail.send(encode({i, length, i, 0}), {memory.extents(), offset, length});
      });
      EXPECT_TRUE(memory.guards_intact());
    }
    side.meet();
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    uint64_t received = 0;
    check_stream(rail, received);
    side.node().until("all messages", [&] { return received == 200; });
    side.meet();
  };
  run_pair(options(), near, far);
}

// Sends until refused. Returns how many messages were accepted. Stops at |limit|, because some
// transports buffer much.
uint64_t send_until_refused(Rail& rail, uint64_t& sequence, uint64_t size, uint64_t limit) {
  std::vector<std::byte> bytes(size);
  uint64_t accepted = 0;
  while (accepted < limit) {
    fill_pattern(bytes, sequence);
    const iovec piece{bytes.data(), size};
    const Code code =
        rail.send(encode({sequence, size, sequence, 0}), {Extents(&piece, 1), 0, size});
    if (code == Code::kWouldBlock) break;
    if (code != Code::kOk) throw Abandoned(std::string("send: ") + code_name(code));
    ++sequence;
    ++accepted;
  }
  return accepted;
}

TEST_P(Messages, RefusedSendResumesAfterOnWritableWithoutLoss) {
  constexpr int kRounds = 10;
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    const uint64_t largest = rail.capabilities().max_payload_bytes;
    uint64_t sequence = 0;
    for (int i = 0; i < kRounds; ++i) {
      const uint64_t size = i % 2 == 0 ? std::min<uint64_t>(largest, 30'000) : 16;
      const uint64_t limit = (uint64_t{64} << 20) / (size + 64);
      // A transport may accept a little more after it has moved its pending data.
      for (int again = 0; again < 3; ++again) {
        send_until_refused(rail, sequence, size, limit);
        for (int step = 0; step < 20; ++step) side.node().step();
      }
      const int writable = rail.writable;
      const uint64_t accepted = send_until_refused(rail, sequence, size, limit);
      const bool refused = accepted < limit;
      side.post('g');  // the far side may now receive
      if (refused) {
        side.node().until("on_writable", [&] { return rail.writable > writable; });
      }
      side.post(sequence);
      (void)side.take<char>();
    }
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    uint64_t received = 0;
    check_stream(rail, received);
    for (int i = 0; i < kRounds; ++i) {
      side.take_idle();
      const auto expected = side.take<uint64_t>();
      side.node().until("all messages", [&] { return received >= expected; });
      EXPECT_EQ(received, expected);
      side.post('d');
    }
  };
  run_pair(options(), near, far);
}

TEST_P(Messages, SendFromWithinAnUpcallArrives) {
  constexpr uint64_t kCount = 300;
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    uint64_t received = 0;
    check_stream(rail, received);
    for (uint64_t i = 0; i < kCount; ++i) {
      send_pattern(rail, i, i % 60, i);
      // Few messages are in flight, so the echo is not refused.
      side.node().until("the echo", [&] { return received + 4 > i; });
    }
    side.node().until("all echoes", [&] { return received == kCount; });
    side.meet();
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    std::deque<Rail::Message> refused;
    const auto echo = [&](const MessageHeader& header, ConstByteSpan payload) {
      const iovec piece{const_cast<std::byte*>(payload.data()), payload.size()};
      return rail.send(header, {Extents(&piece, 1), 0, payload.size()});
    };
    rail.listen([&](const MessageHeader& header, ConstByteSpan payload) {
      if (!refused.empty() || echo(header, payload) != Code::kOk) {
        refused.push_back({header, {payload.begin(), payload.end()}});
      }
    });
    bool done = false;
    std::vector<std::byte> note;
    side.node().until("the end", [&] {
      while (!refused.empty() &&
             echo(refused.front().header, refused.front().payload) == Code::kOk) {
        refused.pop_front();
      }
      done = done || rail.failed > 0 || side.try_take(note);
      return done;
    });
    EXPECT_EQ(rail.failed, 0);
    side.post('m');
  };
  run_pair(options(), near, far);
}

TEST_P(Messages, FlushedMessagesArriveBeforeTheConnectionEnds) {
  constexpr uint64_t kCount = 100;
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    side.meet();
    for (uint64_t i = 0; i < kCount; ++i) send_pattern(rail, i, i * 10 % 1000 % 65, i);
    side.node().until("flushed", [&] { return rail.endpoint().flushed(); });
    rail.close();
    (void)side.take<char>();
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    uint64_t received = 0;
    check_stream(rail, received);
    side.meet();
    side.node().until("the end of the connection", [&] { return rail.failed > 0; });
    EXPECT_EQ(received, kCount);
    EXPECT_EQ(rail.failure.code(), Code::kPeerLost) << rail.failure.text();
    EXPECT_EQ(rail.send(encode({}), {}), Code::kPeerLost);
    side.node().linger(5 * kMillisecond);
    side.post('d');
  };
  run_pair(options(), near, far);
}

INSTANTIATE_OVER(Messages, transport_cases);

}  // namespace
}  // namespace hetcomm::test
