// The fault injector itself (tests/support/faulty_transport.h) fulfils the transport contract:
//
//   * a rail that breaks while the peer lives is reported once on both sides, and memory is quiet
//     from then on;
//   * accepted operations end by their completion or by on_failed; a new connection of the pair
//     works;
//   * failing connects end in on_connected with an error, and a later one succeeds;
//   * masked capabilities are reported as missing, and their use is refused.
#include <list>

#include "tests/conformance/transports/transport_test.h"

namespace hetcomm::test {
namespace {

class Faults : public TransportTest {
 protected:
  std::unique_ptr<FaultyFactory> with(FaultPlan plan) const {
    plan.seed = seed();
    return std::make_unique<FaultyFactory>(make_factory(GetParam()), plan);
  }
  PairOptions over(const TransportFactory& factory) const {
    return {.factory = factory, .settings = GetParam().settings, .mode = GetParam().mode};
  }
};

TEST_P(Faults, BrokenRailsAreReportedOnBothSides) {
  constexpr uint64_t kSize = 30'000;
  constexpr int kRounds = 15;
  FaultPlan plan;
  plan.fail_rail = 0.05;
  plan.lose_reported_put = true;
  plan.max_delay = 4;
  plan.refuse = 0.1;
  const auto factory = with(plan);
  const auto near = [&](Side& side) {
    Random random(seed());
    for (int i = 0; i < kRounds; ++i) {
      Rail& rail = side.connect();
      EXPECT_FALSE(rail.capabilities().lossless);
      const auto key = side.take<RemoteKey>();
      GuardedMemory source(kSize, 2, random);
      source.fill(1);
      std::list<Bulk> puts;
      size_t accepted = 0;
      while (rail.failed == 0) {
        puts.push_back(make_bulk(source, 0, kSize, key, 0));
        const Code code = rail.put(puts.back());
        if (code == Code::kOk) ++accepted;
        if (code == Code::kPeerLost) {
          side.node().until("on_failed", [&] { return rail.failed > 0; });
        }
        side.node().step();
      }
      EXPECT_LE(rail.completions.size(), accepted);
      source.fill(2);
      side.node().linger(kMillisecond);
      EXPECT_EQ(rail.failed, 1);
      EXPECT_EQ(source.mismatch(2), std::nullopt);
      side.meet();
      side.node().connected.clear();
    }
  };
  const auto far = [&](Side& side) {
    Random random(seed() + 1);
    for (int i = 0; i < kRounds; ++i) {
      Rail& rail = side.connect();
      GuardedMemory target(kSize, some_pieces(rail, 2, random), random);
      target.fill(3);
      side.post(expose_or_abandon(rail, target, Access::kPutTarget, 1));
      side.node().until("on_failed", [&] { return rail.failed > 0; });
      EXPECT_EQ(target.neither(1, 3), std::nullopt);
      target.fill(4);
      side.meet();
      EXPECT_EQ(target.mismatch(4), std::nullopt);
      EXPECT_EQ(rail.failed, 1);
      side.node().accepted.clear();
    }
  };
  run_pair(over(*factory), near, far);
}

TEST_P(Faults, ConnectSucceedsAfterInjectedFailures) {
  FaultPlan plan;
  plan.connect_failures = 2;
  const auto factory = with(plan);
  const auto near = [&](Side& side) {
    Node& node = side.node();
    const std::vector<std::byte> descriptor = side.take_bytes();
    for (int i = 1; i <= 3; ++i) {
      node.connect(1, descriptor);
      EXPECT_EQ(node.connect_outcomes, i - 1);
      node.until("on_connected", [&] { return node.connect_outcomes == i; });
      EXPECT_EQ(node.connected.contains(1), i == 3);
    }
    side.post('d');
  };
  const auto far = [&](Side& side) {
    side.post_bytes(side.node().transport().contact());
    (void)side.take<char>();
  };
  run_pair(over(*factory), near, far);
}

TEST_P(Faults, MaskedCapabilitiesAreUnavailable) {
  FaultPlan plan;
  plan.no_put = true;
  plan.no_get = true;
  plan.max_payload_bytes = 100;
  const auto factory = with(plan);
  const auto both = [&](Side& side) {
    Rail& rail = side.connect();
    EXPECT_FALSE(rail.capabilities().put);
    EXPECT_FALSE(rail.capabilities().get);
    EXPECT_EQ(rail.capabilities().max_payload_bytes, 100u);
    EXPECT_EQ(side.node().transport().capabilities().max_payload_bytes, 100u);
    // Bytes that have reached registered memory stay.
    if (!rail.capabilities().regions) {
      EXPECT_EQ(rail.abilities().puts, nullptr);
      EXPECT_EQ(rail.abilities().gets, nullptr);
    }
    EXPECT_EQ(rail.abilities().exposer, nullptr);
    expect_usable(side, rail);
  };
  run_pair(over(*factory), both, both);
}

INSTANTIATE_OVER(Faults, plain_cases);

}  // namespace
}  // namespace hetcomm::test
