// Ranks with different numbers of network interfaces: which interfaces are connected, which data
// they carry, and the effects when one of them is down.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/core_job.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/pattern.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kRate = 1'000'000'000;

// The interfaces of one rank, which all have the same rate.
struct Interfaces {
  size_t count;
  uint64_t bytes_per_s;
  std::optional<size_t> broken = {};  // index of one whose first connects fail
  uint32_t failures = 0;
};

Factories factories_of(const Interfaces& own) {
  FaultPlan plan;
  plan.instances = own.count;
  plan.bytes_per_s = own.bytes_per_s;
  plan.fail_rail = 1e-12;  // not lossless, like rails that may fail
  plan.failing_instance = own.broken;
  plan.connect_failures = own.failures;
  Factories result;
  result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
  return result;
}

void run_pair(const Interfaces& lower, const Interfaces& higher, const std::string& settings,
              const std::function<void(CoreMember&)>& body) {
  run_core_job(
      2, "TIMEOUT=30s;LOG=error;" + settings,
      [&](int rank) { return factories_of(rank == 0 ? lower : higher); }, body);
}

// Exchanges messages in both directions, and checks their bytes.
void exchange(CoreMember& me, std::vector<std::byte>& out, std::vector<std::byte>& in,
              uint64_t round) {
  const uint64_t mine = round * 2 + static_cast<uint64_t>(me.rank());
  const uint64_t theirs = round * 2 + static_cast<uint64_t>(1 - me.rank());
  fill_pattern(out, mine);
  Operation* const receive =
      me.post(OperationKind::kReceive, 1 - me.rank(), 1, in.data(), in.size());
  Operation* const send = me.post(OperationKind::kSend, 1 - me.rank(), 1, out.data(), out.size());
  for (Operation* const each : {receive, send}) {
    const Status status = me.finish(each);
    ASSERT_TRUE(status.ok()) << status.text();
  }
  EXPECT_FALSE(find_mismatch(in, theirs).has_value());
}

void exchange_often(CoreMember& me, uint64_t rounds) {
  std::vector<std::byte> out(8 << 20);
  std::vector<std::byte> in(8 << 20);
  for (uint64_t round = 0; round < rounds; ++round) {
    ASSERT_NO_FATAL_FAILURE(exchange(me, out, in, round));
  }
}

// Returns the bytes that each interface of this rank has moved for the peer, indexed by interface.
std::vector<uint64_t> loads(CoreMember& me) {
  std::vector<hetcomm_counters_t> counters(32);
  counters.resize(me.communicator().counters(1 - me.rank(), counters.size(), counters.data()));
  std::vector<uint64_t> bytes;
  for (const hetcomm_counters_t& each : counters) {
    const std::string name = each.transport;
    const size_t mark = name.find('#');
    const size_t index = mark == std::string::npos ? 0 : std::stoul(name.substr(mark + 1));
    bytes.resize(std::max(bytes.size(), index + 1));
    bytes[index] += each.bulk_bytes;
  }
  return bytes;
}

size_t used(const std::vector<uint64_t>& loads) {
  return static_cast<size_t>(
      std::count_if(loads.begin(), loads.end(), [](uint64_t bytes) { return bytes > 0; }));
}

struct Shape {
  Interfaces lower;
  Interfaces higher;
  size_t lower_used;
  size_t higher_used;
};

// The side with fewer interfaces uses all of them. The other side uses as many as that requires.
TEST(CorePairing, SideWithFewerInterfacesUsesAllOfThem) {
  const Shape shapes[] = {
      {{1, 3 * kRate}, {3, kRate}, 1, 3}, {{3, kRate}, {1, 3 * kRate}, 3, 1},
      {{2, 2 * kRate}, {4, kRate}, 2, 4}, {{4, kRate}, {2, 2 * kRate}, 4, 2},
      {{4, kRate}, {2, kRate}, 2, 2},     {{1, kRate}, {3, kRate}, 1, 1},
      {{3, kRate}, {3, kRate}, 3, 3},
  };
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.lower.count << " against " << shape.higher.count);
    run_pair(shape.lower, shape.higher, "RAILS=8;", [&](CoreMember& me) {
      exchange_often(me, 6);
      const Shape& now = shape;
      EXPECT_EQ(used(loads(me)), me.rank() == 0 ? now.lower_used : now.higher_used)
          << "rank " << me.rank();
    });
  }
}

// In a large job a rank does not know in advance how another rank is reached.
TEST(CorePairing, PairingReportMarksRanksNotYetContacted) {
  run_pair({2, kRate}, {2, kRate}, "SMALL_JOB=0;", [](CoreMember& me) {
    if (me.rank() == 0) {
      Result<PairingReport> before = me.communicator().links().pairing_report(1, 0);
      ASSERT_TRUE(before.ok());
      ASSERT_FALSE(before->pairings.empty());
      for (const Pairing& each : before->pairings) {
        EXPECT_NE(each.reach.text().find("has not been met"), std::string_view::npos)
            << each.reach.text();
      }
    }
    exchange_often(me, 2);
    Result<PairingReport> after = me.communicator().links().pairing_report(1 - me.rank(), 0);
    ASSERT_TRUE(after.ok());
    for (const Pairing& each : after->pairings) EXPECT_TRUE(each.reach.ok()) << each.reach.text();
  });
}

// When most of a message is assigned, its rest may be a single byte.
TEST(CorePairing, MessagesOfUnevenLengthsArriveOverSeveralInterfaces) {
  constexpr uint64_t kShare = 128u << 10;  // minimum share of one interface, in bytes
  for (const size_t count : {2u, 3u, 4u}) {
    SCOPED_TRACE(testing::Message() << count << " interfaces");
    run_pair({count, kRate}, {count, kRate}, "", [](CoreMember& me) {
      for (const uint64_t shares : {1u, 2u, 9u}) {
        for (const uint64_t more : {0u, 1u, 2u, 3u, 5u, 17u}) {
          std::vector<std::byte> out(shares * kShare + more);
          std::vector<std::byte> in(out.size());
          ASSERT_NO_FATAL_FAILURE(exchange(me, out, in, more)) << out.size() << " bytes";
        }
      }
    });
  }
}

TEST(CorePairing, RailCountDoesNotExceedTheSetting) {
  run_pair({6, kRate}, {6, kRate}, "RAILS=3;", [](CoreMember& me) {
    exchange_often(me, 6);
    EXPECT_EQ(used(loads(me)), 3u);
  });
}

// Connections with rank 0's first interface fail, and the second one serves both of the peer's
// interfaces. When the first one works again it gets its share, and the connection that replaced it
// is closed.
TEST(CorePairing, AnotherInterfaceReplacesOneThatIsDown) {
  constexpr uint32_t kFailures = 12;
  const Interfaces lower{2, 2 * kRate, 0, kFailures};
  run_pair(lower, {2, kRate}, "COOL_DOWN=20ms;PROGRESS=thread;", [](CoreMember& me) {
    std::vector<std::byte> out(8 << 20);
    std::vector<std::byte> in(8 << 20);
    ASSERT_NO_FATAL_FAILURE(exchange(me, out, in, 0));
    const bool is_lower = me.rank() == 0;
    if (is_lower) {
      EXPECT_EQ(loads(me)[0], 0u) << "connections over it fail";
    }
    // Both of the peer's interfaces are in use before this rank's first one is.
    bool both_in_time = false;
    bool back = false;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    uint64_t more = 1;
    for (uint64_t round = 1; more != 0; ++round) {
      ASSERT_NO_FATAL_FAILURE(exchange(me, out, in, round));
      const std::vector<uint64_t> now = loads(me);
      if (is_lower) {
        back = back || now[0] > 0;
        more = !back && std::chrono::steady_clock::now() < deadline;
      } else {
        both_in_time = both_in_time || used(now) == 2;
      }
      const Status status =
          me.finish(me.post(is_lower ? OperationKind::kSend : OperationKind::kReceive,
                            1 - me.rank(), 2, &more, sizeof(more)));
      ASSERT_TRUE(status.ok()) << status.text();
    }
    if (is_lower) {
      EXPECT_TRUE(back);
      // The two paired connections stay, and so does the connection that messages use.
      const auto is_closed = [&] {
        const std::string text = me.communicator().explain(1);
        size_t connections = 0;
        for (size_t at = text.find("connection:"); at != std::string::npos;
             at = text.find("connection:", at + 1)) {
          ++connections;
        }
        return connections <= 3;
      };
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!is_closed() && std::chrono::steady_clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_TRUE(is_closed()) << me.communicator().explain(1);
    } else {
      EXPECT_TRUE(both_in_time);
    }
  });
}

}  // namespace
}  // namespace hetcomm::test
