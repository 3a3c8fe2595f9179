// Sleeping: a context that has called prepare_sleep() and then waits on its poller is woken by
// every event:
//
//   * a message, whenever it is sent relative to the start of the sleep;
//   * bytes of a put, the completion of a put or get, room after a refusal;
//   * a new connection, and the end of one.
//
// A missed wake-up shows as a sleep that lasts until its time limit although work was pending.
#include <atomic>

#include "tests/conformance/transports/transport_test.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kLongSleep = 3 * kSecond;

class Sleeping : public TransportTest {};

// Sleeps whenever there is nothing to do, until |done|. Returns the number of sleeps that lasted
// until their limit.
template <typename Done>
int sleep_until(Node& node, Done&& done) {
  int missed = 0;
  const uint64_t deadline = now_ns() + 3 * kLongSleep;
  while (!done()) {
    if (now_ns() > deadline) throw Abandoned("slept for ever");
    if (node.step() > 0) continue;
    if (done()) break;
    const uint64_t start = now_ns();
    node.sleep(kLongSleep);
    if (now_ns() - start >= kLongSleep) ++missed;
  }
  return missed;
}

void busy_wait(uint64_t duration_ns) {
  for (const uint64_t end = now_ns() + duration_ns; now_ns() < end;) cpu_relax();
}

TEST_P(Sleeping, EveryMessageWakesASleeper) {
  const uint64_t count = GetParam().slow() ? 1500 : static_cast<uint64_t>(rounds(6000, 100'000));
  const auto both = [&](Side& side) {
    Rail& rail = side.connect();
    uint64_t received = 0;
    rail.listen([&](const MessageHeader&, ConstByteSpan) { ++received; });
    Random random(seed() + static_cast<uint64_t>(side.rank()));
    side.meet();
    int missed = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const bool mine = i % 2 == static_cast<uint64_t>(side.rank());
      if (mine) {
        if (random.chance(0.7)) busy_wait(random.below(random.chance(0.5) ? 3000 : 40'000));
        send_empty(rail, i);
      } else {
        missed += sleep_until(side.node(), [&] { return received > i / 2; });
      }
    }
    EXPECT_EQ(missed, 0) << "of " << count;
    side.meet();
  };
  run_pair(options(), both, both);
}

TEST_P(Sleeping, PutsAndTheirCompletionsWakeASleeper) {
  const int count = GetParam().slow() ? 40 : rounds(150, 3000);
  constexpr uint64_t kSize = 100'000;
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    const auto key = side.take<RemoteKey>();
    Random random(seed());
    GuardedMemory source(kSize, 2, random);
    int missed = 0;
    for (int i = 0; i < count; ++i) {
      busy_wait(random.below(50'000));
      Bulk put = make_bulk(source, 0, kSize, key, 0);
      until_accepted(rail, [&] { return rail.put(put); });
      missed += sleep_until(side.node(), [&] { return rail.running() == 0; });
      side.meet();
    }
    EXPECT_EQ(missed, 0);
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    Random random(seed());
    GuardedMemory target(kSize, some_pieces(rail, 2, random), random);
    side.post(expose_or_abandon(rail, target, Access::kPutTarget, 5));
    int missed = 0;
    for (int i = 0; i < count; ++i) {
      const uint64_t expected = kSize * static_cast<uint64_t>(i + 1);
      if (rail.capabilities().target_sees_put) {
        missed += sleep_until(side.node(), [&] { return rail.put_bytes[5] == expected; });
      }
      side.meet();
    }
    EXPECT_EQ(missed, 0);
  };
  run_pair(options(), near, far);
}

TEST_P(Sleeping, CompletedGetWakesASleeper) {
  HETCOMM_NEEDS_GET();
  const int count = GetParam().slow() ? 40 : rounds(150, 3000);
  constexpr uint64_t kSize = 100'000;
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    const auto key = side.take<RemoteKey>();
    Random random(seed());
    GuardedMemory target(kSize, 2, random);
    int missed = 0;
    for (int i = 0; i < count; ++i) {
      busy_wait(random.below(50'000));
      Bulk get = make_bulk(target, 0, kSize, key, 0);
      until_accepted(rail, [&] { return rail.get(get); });
      missed += sleep_until(side.node(), [&] { return rail.running() == 0; });
    }
    EXPECT_EQ(missed, 0);
    side.post('d');
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    Random random(seed());
    GuardedMemory source(kSize, some_pieces(rail, 2, random), random);
    side.post(expose_or_abandon(rail, source, Access::kGetSource, 5));
    (void)side.take<char>();
  };
  run_pair(options(), near, far);
}

TEST_P(Sleeping, SleeperWakesWhenARefusedSendCanResume) {
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    const uint64_t size = std::min<uint64_t>(rail.capabilities().max_payload_bytes, 30'000);
    std::vector<std::byte> bytes(size);
    const iovec piece{bytes.data(), size};
    const ExtentView view{Extents(&piece, 1), 0, size};
    int missed = 0;
    for (int i = 0; i < 8; ++i) {
      uint64_t accepted = 0;
      const int writable = rail.writable;
      Code code = Code::kOk;
      while (accepted < (uint64_t{64} << 20) / (size + 64) &&
             (code = rail.send(encode({}), view)) == Code::kOk) {
        ++accepted;
      }
      side.post('g');
      if (code == Code::kWouldBlock) {
        missed += sleep_until(side.node(), [&] { return rail.writable > writable; });
      }
      missed += sleep_until(side.node(), [&] { return rail.endpoint().flushed(); });
      side.post(accepted);
      (void)side.take<char>();
    }
    EXPECT_EQ(missed, 0);
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    uint64_t received = 0;
    rail.listen([&](const MessageHeader&, ConstByteSpan) { ++received; });
    uint64_t expected = 0;
    for (int i = 0; i < 8; ++i) {
      side.take_idle();
      usleep(2000);
      expected += side.take<uint64_t>();
      const bool all = side.node().try_until([&] { return received >= expected; }, kPatience);
      ASSERT_TRUE(all && received == expected)
          << received << " of " << expected << "; " << rail.failure.text();
      side.post('d');
    }
  };
  run_pair(options(), near, far);
}

// Calls are made next to a sleeping thread. The transport announces the work that they start, or
// reports that it does not.
TEST_P(Sleeping, WorkStartedDuringASleepIsNotMissed) {
  const int count = GetParam().slow() ? 40 : rounds(150, 3000);
  constexpr uint64_t kSize = 300'000;
  constexpr uint64_t kUnanswered = 1;
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    int answers = 0;
    rail.listen([&](const MessageHeader&, ConstByteSpan) { ++answers; });
    const auto key = side.take<RemoteKey>();
    Random random(seed());
    GuardedMemory source(kSize, 2, random);
    const uint64_t size = std::min<uint64_t>(rail.capabilities().max_payload_bytes, 30'000);
    std::vector<std::byte> bytes(size);
    const iovec piece{bytes.data(), size};
    const ExtentView view{Extents(&piece, 1), 0, size};
    int missed = 0;
    int asleep = 0;
    int asked = 0;
    // Work left from the last round keeps a transport from sleeping. That round does not count.
    const uint64_t deadline = now_ns() + kPatience;
    while (asleep < count && missed == 0 && now_ns() < deadline) {
      Bulk put = make_bulk(source, 0, kSize, key, 0);
      const int writable = rail.writable;
      bool refused = false;
      const uint64_t start = now_ns();
      side.node().step();
      side.node().sleep(kLongSleep, [&] {
        const int i = asleep++;
        busy_wait(random.below(20'000));
        if (i % 3 == 0) {
          refused = rail.put(put) == Code::kWouldBlock;
          return;
        }
        // Either no room is left, or an answer will arrive.
        for (int k = 0; i % 3 == 1 && k < 400 && !refused; ++k) {
          refused = rail.send(encode({0, size, 0, kUnanswered}), view) == Code::kWouldBlock;
        }
        if (!refused && rail.send(encode({}), ExtentView{}) == Code::kOk) ++asked;
      });
      if (now_ns() - start >= kLongSleep) ++missed;
      missed += sleep_until(side.node(), [&] {
        return rail.running() == 0 && answers == asked && (!refused || rail.writable > writable);
      });
    }
    EXPECT_EQ(missed, 0);
    EXPECT_EQ(asleep, count);
    side.post('d');
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    Random random(seed());
    GuardedMemory target(kSize, some_pieces(rail, 2, random), random);
    int received = 0;
    int answered = 0;
    rail.listen([&](const MessageHeader& header, ConstByteSpan) {
      if (decode(header).kind != kUnanswered) ++received;
    });
    side.post(expose_or_abandon(rail, target, Access::kPutTarget, 5));
    std::vector<std::byte> end;
    side.node().until("the end", [&] {
      for (; answered < received; ++answered) send_empty(rail, static_cast<uint64_t>(answered));
      return side.try_take(end);
    });
  };
  run_pair(options(), near, far);
}

TEST_P(Sleeping, ConnectsAndDisconnectsWakeASleeper) {
  const auto near = [&](Side& side) {
    for (int i = 0; i < 20; ++i) {
      const std::vector<std::byte> descriptor = side.take_bytes();
      usleep(2000);
      const int before = side.node().connect_outcomes;
      side.node().connect(1, descriptor);
      EXPECT_EQ(sleep_until(side.node(), [&] { return side.node().connect_outcomes > before; }), 0);
      ASSERT_TRUE(side.node().connected.contains(1)) << side.node().connect_failed[1].text();
      (void)side.take<char>();
      usleep(2000);
      side.node().connected.clear();
    }
  };
  const auto far = [&](Side& side) {
    for (int i = 0; i < 20; ++i) {
      side.post_bytes(side.node().transport().contact());
      EXPECT_EQ(sleep_until(side.node(), [&] { return side.node().accepts > i; }), 0);
      Rail& rail = *side.node().accepted.at(0);
      side.post('c');
      EXPECT_EQ(sleep_until(side.node(), [&] { return rail.failed > 0; }), 0);
      side.node().accepted.clear();
    }
  };
  run_pair(options(), near, far);
}

INSTANTIATE_OVER(Sleeping, transport_cases);

}  // namespace
}  // namespace hetcomm::test
