// A buffer that was given back is never written again: the sender stops at every step of a
// transfer, the receive ends at its deadline, its buffer is filled anew, the sender goes on, and
// nothing in the buffer may change. Both ranks are driven by one thread, so that every step is
// reached.
#include <algorithm>
#include <vector>

#include "tests/support/core_job.h"
#include "tests/support/faulty_transport.h"
#include "tests/support/pattern.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

struct LateCase {
  std::string name;
  bool shm;
  std::string settings;
  uint64_t size;
  bool delayed = false;  // the transport holds upcalls back
};
void PrintTo(const LateCase& test_case, std::ostream* out) { *out << test_case.name; }

std::vector<LateCase> late_cases() {
  return {
      {"shm_fragments", true, "SHM_EAGER=256K;SHM_RING_BYTES=64K;SHM_CHUNK=4K;", 250'000},
      {"shm_copied", true, "SHM_BULK=copy;SHM_RING_BYTES=64K;SHM_CHUNK=4K;", 1'500'000},
      {"shm_read", true, "SHM_BULK=read;", 1'500'000},
      {"shm_copied_delayed", true, "SHM_BULK=copy;", 700'000, true},
      {"tcp_bulk", false, "", 12'000'000},
      {"tcp_bulk_delayed", false, "", 700'000, true},
  };
}

class LateWriter : public ::testing::TestWithParam<LateCase> {};

void step(CoreMember& member) { member.communicator().mesh().engine().poke(); }

TEST_P(LateWriter, NeverTouchesWhatWasGivenBack) {
  const LateCase& test_case = GetParam();
  const auto factories = [&](int rank) {
    FaultPlan plan;
    plan.seed = static_cast<uint64_t>(rank) + 1;
    plan.max_delay = test_case.delayed ? 3 : 0;
    Factories result;
    result.push_back(std::make_unique<FaultyFactory>(
        test_case.shm ? make_shm_factory() : make_tcp_factory(), plan));
    return result;
  };
  hetcomm_test::LocalStore store;
  const std::string settings = "LOG=error;PROGRESS=caller;" + test_case.settings;
  std::unique_ptr<CoreMember> sender;
  std::unique_ptr<CoreMember> receiver;
  std::thread other(
      [&] { sender = std::make_unique<CoreMember>(store, 0, 2, settings, factories(0)); });
  receiver = std::make_unique<CoreMember>(store, 1, 2, settings, factories(1));
  other.join();

  const std::vector<std::byte> out(test_case.size, std::byte{0x11});
  std::vector<std::byte> in(test_case.size);
  uint64_t tag = 0;
  // Both drive until the operations are over.
  const auto drive = [&](std::vector<std::pair<CoreMember*, Operation*>> operations) {
    for (const auto& [member, operation] : operations) {
      const uint32_t generation = operation->generation();
      for (int i = 0; i < 2'000'000 && !operation->is(generation, OperationState::kComplete); ++i) {
        step(*sender);
        step(*receiver);
      }
    }
  };
  const auto exchange_word = [&] {
    uint64_t word = 42;
    uint64_t got = 0;
    Operation* receive = receiver->post(OperationKind::kReceive, 0, ++tag, &got, 8);
    Operation* send = sender->post(OperationKind::kSend, 1, tag, &word, 8);
    drive({{receiver.get(), receive}, {sender.get(), send}});
    EXPECT_TRUE(receiver->finish(receive).ok());
    EXPECT_TRUE(sender->finish(send).ok());
    EXPECT_EQ(got, 42u);
  };
  exchange_word();  // connects

  constexpr int kMostSteps = 400;
  int stopped = 0;
  for (int steps = 0; steps < kMostSteps; ++steps) {
    std::fill(in.begin(), in.end(), std::byte{0});
    ++tag;
    Operation* receive =
        receiver->post(OperationKind::kReceive, 0, tag, in.data(), in.size(), 3'000'000);
    Operation* send =
        sender->post(OperationKind::kSend, 1, tag, const_cast<std::byte*>(out.data()), out.size());
    for (int i = 0; i < steps; ++i) {
      step(*receiver);
      step(*sender);
    }
    // The sender stands still.
    const Status ended = receiver->finish(receive);
    if (ended.code() == Code::kTimedOut) {
      ++stopped;
      std::fill(in.begin(), in.end(), std::byte{0xdd});
    } else {
      ASSERT_TRUE(ended.ok()) << ended.text();
    }
    drive({{sender.get(), send}});
    (void)sender->finish(send);
    exchange_word();
    for (int i = 0; i < 50; ++i) {
      step(*sender);
      step(*receiver);
    }
    if (ended.ok()) {
      EXPECT_TRUE(std::ranges::all_of(in, [](std::byte byte) { return byte == std::byte{0x11}; }));
      // Whole before the sender stopped, for several steps in a row: there is no later step.
      if (steps > stopped + 5) break;
    } else {
      ASSERT_TRUE(std::ranges::all_of(in, [](std::byte byte) { return byte == std::byte{0xdd}; }))
          << "written after " << steps << " steps of the sender";
    }
  }
  EXPECT_GT(stopped, 0) << "no step was met in which the transfer was under way";
  RecordProperty("stopped", stopped);
  // Gone together, as neither waits for the other here.
  std::thread leaving([&] { sender.reset(); });
  receiver.reset();
  leaving.join();
}

INSTANTIATE_TEST_SUITE_P(Over, LateWriter, ::testing::ValuesIn(late_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace hetcomm::test
