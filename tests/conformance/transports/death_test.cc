// A peer that is killed (SIGKILL) at any moment:
//
//   * is reported by on_failed exactly once and in bounded time, with a text, and nothing is
//     reported afterwards;
//   * causes no partial message: the messages that arrived are a prefix of those that it sent,
//     whole; if the transport promises it (TransportCase::accepted_survives), every message that
//     its send() had accepted arrives first;
//   * leaves memory quiet: after on_failed neither exposed nor local memory changes;
//   * makes later calls return kPeerLost;
//   * leaves no resources behind: descriptors and mappings are returned.
//
// A peer that only stalls is not dead.

#include <atomic>
#include <fstream>

#include "tests/conformance/transports/transport_test.h"
#include "tests/support/descriptors.h"

namespace hetcomm::test {
namespace {

class PeerDeath : public TransportTest {};

int mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    // This does not count heap and stacks, whose number varies.
    if (line.find('/') != std::string::npos) ++count;
  }
  return count;
}

void expect_dead(Side& side, Rail& rail) {
  Bulk bulk;
  EXPECT_EQ(rail.failed, 1);
  EXPECT_EQ(rail.failure.code(), Code::kPeerLost) << rail.failure.text();
  EXPECT_EQ(rail.send(encode({}), {}), Code::kPeerLost);
  EXPECT_EQ(rail.put(bulk), Code::kPeerLost);
  side.node().linger(2 * kMillisecond);
  EXPECT_EQ(rail.failed, 1);
}

struct Progress {
  std::atomic<uint64_t> accepted;
};

TEST_P(PeerDeath, DeathDuringMessagesLeavesAnIntactPrefix) {
  const int times = GetParam().slow() ? 6 : rounds(12, 300);
  Random random(seed());
  for (int i = 0; i < times; ++i) {
    Shared<Progress> progress;
    const auto near = [&](Side& side) {
      Rail& rail = side.connect();
      uint64_t received = 0;
      rail.listen([&](const MessageHeader& header, ConstByteSpan payload) {
        EXPECT_EQ(decode(header).sequence, received++);
        expect_whole(header, payload);
      });
      if (i % 2 == 0) {
        side.node().linger(random.below(10 * kMillisecond));
      } else {
        usleep(static_cast<useconds_t>(random.below(10'000)));  // many messages are pending
      }
      side.kill_far();
      side.node().until("on_failed", [&] { return rail.failed > 0; });
      if (GetParam().accepted_survives) {
        EXPECT_GE(received, progress->accepted.load());
      }
      EXPECT_LE(received, progress->accepted.load() + 1);
      expect_dead(side, rail);
    };
    const auto far = [&](Side& side) {
      Rail& rail = side.connect();
      for (uint64_t k = 0;; ++k) {
        send_pattern(rail, k,
                     k * 7 % std::min<uint64_t>(rail.capabilities().max_payload_bytes, 3000), k);
        progress->accepted.store(k + 1);
        if (k % 16 == 0) side.node().step();
      }
    };
    run_pair(options(), near, far);
  }
}

TEST_P(PeerDeath, NoBytesAreWrittenAfterADeathDuringATransfer) {
  const int times = GetParam().slow() ? 6 : rounds(12, 300);
  const uint64_t size = GetParam().slow() ? 300'000 : 8 << 20;
  Random random(seed());
  for (int i = 0; i < times; ++i) {
    const auto near = [&](Side& side) {
      Rail& rail = side.connect();
      GuardedMemory source(size, 3, random);
      GuardedMemory target(size, some_pieces(rail, 3, random), random);
      GuardedMemory got(size, 3, random);
      source.fill(1);
      target.fill(2);
      side.post(expose_or_abandon(rail, target, Access::kPutTarget, 1));
      Bulk put = make_bulk(source, 0, size, side.take<RemoteKey>(), 0);
      Bulk get = make_bulk(got, 0, size, side.take<RemoteKey>(), 0);
      until_accepted(rail, [&] { return rail.put(put); });
      if (rail.capabilities().get) until_accepted(rail, [&] { return rail.get(get); });
      usleep(static_cast<useconds_t>(random.below(2000)));
      random_steps(side.node(), random);
      side.kill_far();
      side.node().until("on_failed", [&] { return rail.failed > 0; });
      EXPECT_EQ(target.neither(2, 3), std::nullopt);
      for (const Rail::Completion& done : rail.completions) {
        if (done.bulk == &get && done.code == Code::kOk) {
          EXPECT_EQ(got.mismatch(4), std::nullopt);
        }
      }
      for (GuardedMemory* memory : {&source, &target, &got}) memory->fill(9);
      expect_dead(side, rail);
      for (const GuardedMemory* memory : {&source, &target, &got}) {
        EXPECT_EQ(memory->mismatch(9), std::nullopt);
        EXPECT_TRUE(memory->guards_intact());
      }
    };
    const auto far = [&](Side& side) {
      Rail& rail = side.connect();
      Random mine(random.next());
      GuardedMemory source(size, some_pieces(rail, 3, mine), mine);
      GuardedMemory target(size, some_pieces(rail, 3, mine), mine);
      GuardedMemory sent(size, 3, mine);
      source.fill(4);
      sent.fill(3);
      const auto key = side.take<RemoteKey>();
      side.post(expose_or_abandon(rail, target, Access::kPutTarget, 1));
      side.post(expose_or_abandon(rail, source, Access::kGetSource, 2));
      while (true) {
        Bulk put = make_bulk(sent, 0, size, key, 0);
        until_accepted(rail, [&] { return rail.put(put); });
        (void)await_bulk(rail, put);
      }
    };
    run_pair(options(), near, far);
  }
}

TEST_P(PeerDeath, DeathsLeakNoDescriptorsOrMappings) {
  const auto once = [&] {
    const auto near = [&](Side& side) {
      Rail& rail = side.connect();
      side.kill_far();
      side.node().until("on_failed", [&] { return rail.failed > 0; });
      rail.close();
    };
    const auto far = [&](Side& side) {
      (void)side.connect();
      side.node().linger(kPatience);
    };
    run_pair(options(), near, far);
  };
  once();
  const size_t descriptors = open_descriptors();
  const int maps = mappings();
  for (int i = 0; i < 10; ++i) once();
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_LE(mappings(), maps + 2);
}

TEST_P(PeerDeath, DeathWakesASleeper) {
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    side.node().linger(20 * kMillisecond);
    side.kill_far();
    const uint64_t start = now_ns();
    while (rail.failed == 0 && now_ns() < start + kPatience) {
      side.node().step();
      if (rail.failed == 0) side.node().sleep(kPatience);
    }
    EXPECT_EQ(rail.failed, 1);
    EXPECT_LT(now_ns() - start, kPatience / 2) << "nothing woke the context";
  };
  const auto far = [&](Side& side) {
    (void)side.connect();
    side.node().linger(kPatience);
  };
  run_pair(options(), near, far);
}

TEST_P(PeerDeath, StoppedPeerIsNotReportedDead) {
  const auto near = [&](Side& side) {
    Rail& rail = side.connect();
    side.meet();
    kill(side.process(), SIGSTOP);
    for (uint64_t k = 0; k < 20; ++k) send_pattern(rail, k, 20, k);
    side.node().linger(200 * kMillisecond);
    EXPECT_EQ(rail.failed, 0) << rail.failure.text();
    kill(side.process(), SIGCONT);
    (void)side.take<char>();
    EXPECT_EQ(rail.failed, 0) << rail.failure.text();
    side.meet();
  };
  const auto far = [&](Side& side) {
    Rail& rail = side.connect();
    side.meet();
    side.node().until("the messages", [&] { return rail.messages.size() == 20; });
    side.post('d');
    side.meet();  // the far side must not end before the near side is done
  };
  run_pair(options(), near, far);
}

INSTANTIATE_OVER(PeerDeath, process_cases);

}  // namespace
}  // namespace hetcomm::test
