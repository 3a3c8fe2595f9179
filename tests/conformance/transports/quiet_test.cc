// Quiet memory: after cancel(), revoke() or the end of an endpoint has returned, at any point of a
// transfer,
//
//   * the local memory of a cancelled put or get, and the memory of a revoked key, never changes
//     again;
//   * a put never carries bytes that were written into its source after it was cancelled;
//   * a get whose source was revoked reports an error, or delivers the bytes from before;
//   * a cancelled operation never completes;
//   * the connection still works;
//   * the same holds if the other process was stopped during the transfer and resumes later (a late
//     writer), and the calls do not wait for it.
#include "tests/conformance/transports/transport_test.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kBefore = 11;     // contents of sources
constexpr uint64_t kUntouched = 12;  // contents of targets before the transfer
constexpr uint64_t kAfter = 13;      // written by the owner after the event

class Quiet : public TransportTest {
 protected:
  // The transfer is long enough for the event to occur during it.
  uint64_t size() const { return GetParam().slow() ? 300'000 : 4 << 20; }
  int count() const { return GetParam().slow() ? 12 : rounds(20, 500); }
};

void expect_unchanged(Node& node, GuardedMemory& memory, const char* what) {
  memory.fill(kAfter);
  node.linger(3 * kMillisecond);
  EXPECT_EQ(memory.mismatch(kAfter), std::nullopt) << what;
  EXPECT_TRUE(memory.guards_intact()) << what;
}

TEST_P(Quiet, CancelledPutStopsReadingItsSource) {
  const auto near = [&](Side& side) {
    side.connect();
    Random random(seed());
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.rail();
      GuardedMemory source(size(), random.between(1, 4), random);
      source.fill(kBefore);
      Bulk put = make_bulk(source, 0, size(), side.take<RemoteKey>(), 0);
      until_begun(rail, GetParam(), [&] { return rail.put(put); });
      random_steps(side.node(), random);
      if (rail.running() > 0) rail.cancel(put);
      rail.completions.clear();
      expect_unchanged(side.node(), source, "source of a cancelled put");
      EXPECT_TRUE(rail.completions.empty());
      settle(side, GetParam());
    }
  };
  const auto far = [&](Side& side) {
    side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.rail();
      GuardedMemory target(size(), some_pieces(rail, 4, random), random);
      target.fill(kUntouched);
      const RemoteKey key = expose_or_abandon(rail, target, Access::kPutTarget, 1);
      side.post(key);
      settle(side, GetParam());
      EXPECT_LE(side.rail().put_bytes[1], size());
      side.rail().release(key);
      side.rail().put_bytes.clear();
      EXPECT_EQ(target.neither(kBefore, kUntouched), std::nullopt);
      EXPECT_TRUE(target.guards_intact());
    }
  };
  run_pair(options(), near, far);
}

TEST_P(Quiet, CancelledGetStopsWritingItsTarget) {
  HETCOMM_NEEDS_GET();
  const auto near = [&](Side& side) {
    side.connect();
    Random random(seed());
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.rail();
      GuardedMemory target(size(), random.between(1, 4), random);
      Bulk get = make_bulk(target, 0, size(), side.take<RemoteKey>(), 0);
      until_begun(rail, GetParam(), [&] { return rail.get(get); });
      random_steps(side.node(), random);
      if (rail.running() > 0) rail.cancel(get);
      rail.completions.clear();
      expect_unchanged(side.node(), target, "target of a cancelled get");
      EXPECT_TRUE(rail.completions.empty());
      settle(side, GetParam());
    }
  };
  const auto far = [&](Side& side) {
    side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.rail();
      GuardedMemory source(size(), some_pieces(rail, 4, random), random);
      source.fill(kBefore);
      const RemoteKey key = expose_or_abandon(rail, source, Access::kGetSource, 1);
      side.post(key);
      settle(side, GetParam());
      side.rail().release(key);
    }
  };
  run_pair(options(), near, far);
}

TEST_P(Quiet, RevokeStopsWritesToTheTarget) {
  const auto near = [&](Side& side) {
    side.connect();
    Random random(seed());
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.rail();
      GuardedMemory source(size(), random.between(1, 4), random);
      source.fill(kBefore);
      Bulk put = make_bulk(source, 0, size(), side.take<RemoteKey>(), 0);
      until_begun(rail, GetParam(), [&] { return rail.put(put); });
      side.post('s');
      // Bytes still in flight are dropped. The operation still ends.
      (void)await_bulk(rail, put);
      settle(side, GetParam());
    }
  };
  const auto far = [&](Side& side) {
    side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.rail();
      GuardedMemory target(size(), some_pieces(rail, 4, random), random);
      const RemoteKey key = expose_or_abandon(rail, target, Access::kPutTarget, 1);
      side.post(key);
      (void)side.take<char>();
      random_steps(side.node(), random);
      rail.revoke(key);
      const uint64_t seen = rail.put_bytes[1];
      expect_unchanged(side.node(), target, "revoked target");
      EXPECT_EQ(rail.put_bytes[1], seen) << "on_put after revoke";
      rail.put_bytes.clear();
      settle(side, GetParam());
      EXPECT_EQ(target.mismatch(kAfter), std::nullopt);
    }
  };
  run_pair(options(), near, far);
}

TEST_P(Quiet, GetFromARevokedSourceFailsOrReturnsOldBytes) {
  HETCOMM_NEEDS_GET();
  const auto near = [&](Side& side) {
    side.connect();
    Random random(seed());
    int whole = 0;
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.rail();
      GuardedMemory target(size(), random.between(1, 4), random);
      Bulk get = make_bulk(target, 0, size(), side.take<RemoteKey>(), 0);
      until_begun(rail, GetParam(), [&] { return rail.get(get); });
      side.post('s');
      if (await_bulk(rail, get) == Code::kOk) {
        ++whole;
        EXPECT_EQ(target.mismatch(kBefore), std::nullopt) << "bytes from after the revoke";
      }
      EXPECT_TRUE(target.guards_intact());
      settle(side, GetParam());
    }
    RecordProperty("whole", whole);
  };
  const auto far = [&](Side& side) {
    side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.rail();
      GuardedMemory source(size(), some_pieces(rail, 4, random), random);
      source.fill(kBefore);
      const RemoteKey key = expose_or_abandon(rail, source, Access::kGetSource, 1);
      side.post(key);
      (void)side.take<char>();
      random_steps(side.node(), random);
      rail.revoke(key);
      source.fill(kAfter);
      settle(side, GetParam());
    }
  };
  run_pair(options(), near, far);
}

TEST_P(Quiet, ClosingAnEndpointStopsAccessToMemory) {
  const auto near = [&](Side& side) {
    Random random(seed());
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.connect();
      GuardedMemory source(size(), 2, random);
      GuardedMemory target(size(), 2, random);
      source.fill(kBefore);
      Bulk put = make_bulk(source, 0, size(), side.take<RemoteKey>(), 0);
      Bulk get = make_bulk(target, 0, size(), side.take<RemoteKey>(), 0);
      until_accepted(rail, [&] { return rail.put(put); });
      if (rail.capabilities().get) until_accepted(rail, [&] { return rail.get(get); });
      for (uint64_t k = 0; k < 5; ++k) send_pattern(rail, k, k, k);
      side.post('s');
      const bool first = i % 2 == 0;
      if (first) {
        random_steps(side.node(), random);
        rail.close();
        expect_unchanged(side.node(), source, "source after the end");
        expect_unchanged(side.node(), target, "target after the end");
      } else {
        side.node().until("on_failed", [&] { return rail.failed > 0; });
        expect_unchanged(side.node(), source, "source after on_failed");
        expect_unchanged(side.node(), target, "target after on_failed");
        EXPECT_EQ(rail.put(put), Code::kPeerLost);
        EXPECT_EQ(rail.send(encode({}), {}), Code::kPeerLost);
      }
      side.meet();
      side.node().connected.clear();
    }
  };
  const auto far = [&](Side& side) {
    Random random(seed() + 1);
    for (int i = 0; i < count(); ++i) {
      Rail& rail = side.connect();
      GuardedMemory source(size(), some_pieces(rail, 2, random), random);
      GuardedMemory target(size(), some_pieces(rail, 2, random), random);
      source.fill(kBefore);
      target.fill(kUntouched);
      side.post(expose_or_abandon(rail, target, Access::kPutTarget, 1));
      side.post(expose_or_abandon(rail, source, Access::kGetSource, 2));
      (void)side.take<char>();
      const bool first = i % 2 == 1;
      if (first) {
        random_steps(side.node(), random);
        rail.close();
      } else {
        side.node().until("on_failed", [&] { return rail.failed > 0; });
      }
      EXPECT_EQ(target.neither(kBefore, kUntouched), std::nullopt);
      expect_unchanged(side.node(), target, "target after the end");
      side.meet();
      side.node().accepted.clear();
    }
  };
  run_pair(options(), near, far);
}

// The peer is a process that can be stopped.
class QuietWhilePeerIsStopped : public Quiet {};

// Stops the far process at a random point, runs |event| and checks that it did not wait, lets the
// owner write, and resumes the far process.
template <typename Event>
void while_stopped(Side& side, Random& random, Event&& event) {
  usleep(static_cast<useconds_t>(random.below(600)));
  random_steps(side.node(), random);
  kill(side.process(), SIGSTOP);
  const uint64_t start = now_ns();
  event();
  EXPECT_LT(now_ns() - start, 10 * kSecond) << "waited for a stopped peer";
}

TEST_P(QuietWhilePeerIsStopped, StoppedWriterCannotWriteARevokedTarget) {
  const int times = GetParam().slow() ? 10 : rounds(25, 1000);
  // The near side owns the target. The far side puts, is stopped, and resumes later.
  const auto near = [&](Side& side) {
    side.connect();
    Random random(seed());
    for (int i = 0; i < times; ++i) {
      Rail& rail = side.rail();
      GuardedMemory target(size(), some_pieces(rail, 4, random), random);
      const RemoteKey key = expose_or_abandon(rail, target, Access::kPutTarget, 1);
      side.post(key);
      while_stopped(side, random, [&] { rail.revoke(key); });
      target.fill(kAfter);
      random_steps(side.node(), random);
      kill(side.process(), SIGCONT);
      side.node().linger(2 * kMillisecond);
      (void)side.take<char>();
      side.node().linger(kMillisecond);
      EXPECT_EQ(target.mismatch(kAfter), std::nullopt) << "round " << i;
      EXPECT_TRUE(target.guards_intact());
      settle(side, GetParam());
    }
  };
  const auto far = [&](Side& side) {
    side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < times; ++i) {
      Rail& rail = side.rail();
      GuardedMemory source(size(), random.between(1, 4), random);
      source.fill(kBefore);
      Bulk put = make_bulk(source, 0, size(), side.take<RemoteKey>(), 0);
      until_begun(rail, GetParam(), [&] { return rail.put(put); });
      (void)await_bulk(rail, put);
      side.post('d');
      settle(side, GetParam());
    }
  };
  run_pair(options(), near, far);
}

TEST_P(QuietWhilePeerIsStopped, StoppedReaderReturnsNoBytesWrittenAfterTheRevoke) {
  HETCOMM_NEEDS_GET();
  const int times = GetParam().slow() ? 10 : rounds(25, 1000);
  // The near side owns the source. The far side gets.
  const auto near = [&](Side& side) {
    side.connect();
    Random random(seed());
    for (int i = 0; i < times; ++i) {
      Rail& rail = side.rail();
      GuardedMemory source(size(), some_pieces(rail, 4, random), random);
      source.fill(kBefore);
      const RemoteKey key = expose_or_abandon(rail, source, Access::kGetSource, 1);
      side.post(key);
      while_stopped(side, random, [&] { rail.revoke(key); });
      source.fill(kAfter);
      kill(side.process(), SIGCONT);
      (void)side.take<char>();
      EXPECT_EQ(source.mismatch(kAfter), std::nullopt);
      settle(side, GetParam());
    }
  };
  const auto far = [&](Side& side) {
    side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < times; ++i) {
      Rail& rail = side.rail();
      GuardedMemory target(size(), random.between(1, 4), random);
      Bulk get = make_bulk(target, 0, size(), side.take<RemoteKey>(), 0);
      until_begun(rail, GetParam(), [&] { return rail.get(get); });
      if (await_bulk(rail, get) == Code::kOk) {
        EXPECT_EQ(target.mismatch(kBefore), std::nullopt) << "new bytes in round " << i;
      }
      side.post('d');
      settle(side, GetParam());
    }
  };
  run_pair(options(), near, far);
}

TEST_P(QuietWhilePeerIsStopped, CancelDoesNotWaitForAStoppedPeer) {
  const int times = GetParam().slow() ? 10 : rounds(15, 500);
  const auto near = [&](Side& side) {
    side.connect();
    Random random(seed());
    for (int i = 0; i < times; ++i) {
      Rail& rail = side.rail();
      GuardedMemory source(size(), 2, random);
      source.fill(kBefore);
      Bulk put = make_bulk(source, 0, size(), side.take<RemoteKey>(), 0);
      until_begun(rail, GetParam(), [&] { return rail.put(put); });
      while_stopped(side, random, [&] {
        if (rail.running() > 0) rail.cancel(put);
      });
      rail.completions.clear();
      source.fill(kAfter);
      kill(side.process(), SIGCONT);
      settle(side, GetParam());
      EXPECT_EQ(source.mismatch(kAfter), std::nullopt);
    }
  };
  const auto far = [&](Side& side) {
    side.connect();
    Random random(seed() + 1);
    for (int i = 0; i < times; ++i) {
      Rail& rail = side.rail();
      GuardedMemory target(size(), some_pieces(rail, 2, random), random);
      target.fill(kUntouched);
      const RemoteKey key = expose_or_abandon(rail, target, Access::kPutTarget, 1);
      side.post(key);
      settle(side, GetParam());
      side.rail().release(key);
      EXPECT_EQ(target.neither(kBefore, kUntouched), std::nullopt);
    }
  };
  run_pair(options(), near, far);
}

INSTANTIATE_OVER(Quiet, transport_cases);
INSTANTIATE_OVER(QuietWhilePeerIsStopped, process_cases);

}  // namespace
}  // namespace hetcomm::test
