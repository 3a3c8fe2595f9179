// A buffer that was returned is never written again. The sender stops at every step of a transfer,
// the receive ends at its deadline, its buffer is refilled, and the sender resumes. Nothing in the
// buffer may change. One thread drives both ranks, so that every step is reached.
#include <algorithm>
#include <array>
#include <memory>
#include <thread>
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
  bool delayed = false;  // the transport delays upcalls
};
void PrintTo(const LateCase& test_case, std::ostream* out) { *out << test_case.name; }

std::vector<LateCase> late_cases() {
  return {
      {"shm_fragments", true, "SHM_EAGER=256K;SHM_RING_BYTES=64K;SHM_CHUNK=4K;", 250'000},
      {"shm_copied", true, "SHM_BULK=copy;SHM_RING_BYTES=64K;SHM_CHUNK=4K;", 1'500'000},
      {"shm_both_ways", true, "SHM_RING_BYTES=64K;SHM_CHUNK=4K;", 1'500'000},
      {"shm_copied_delayed", true, "SHM_BULK=copy;", 700'000, true},
      {"tcp_bulk", false, "", 12'000'000},
      {"tcp_bulk_delayed", false, "", 700'000, true},
  };
}

class LateWriter : public ::testing::TestWithParam<LateCase> {};

void step(CoreMember& member) { member.communicator().job().engine().poke(); }

TEST_P(LateWriter, ResumedSenderDoesNotWriteAReturnedBuffer) {
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
  const auto is_over = [](const Operation* operation) {
    return operation->is(operation->generation(), OperationState::kComplete);
  };
  // Drives both ranks until |operation| has ended, or for at most |most| steps.
  const auto drive = [&](Operation* operation, int most = 2'000'000) {
    for (int i = 0; i < most && !is_over(operation); ++i) {
      step(*sender);
      step(*receiver);
    }
  };
  const auto exchange_word = [&] {
    uint64_t word = 42;
    uint64_t got = 0;
    Operation* receive = receiver->post(OperationKind::kReceive, 0, ++tag, &got, 8);
    Operation* send = sender->post(OperationKind::kSend, 1, tag, &word, 8);
    drive(receive);
    drive(send);
    EXPECT_TRUE(receiver->finish(receive).ok());
    EXPECT_TRUE(sender->finish(send).ok());
    EXPECT_EQ(got, 42u);
  };
  exchange_word();  // connects the ranks

  constexpr int kMaxSteps = 400;
  int stopped = 0;
  for (int steps = 0; steps < kMaxSteps; ++steps) {
    fill_bytes(in, std::byte{0});
    ++tag;
    Operation* receive =
        receiver->post(OperationKind::kReceive, 0, tag, in.data(), in.size(), 3'000'000);
    Operation* send =
        sender->post(OperationKind::kSend, 1, tag, const_cast<std::byte*>(out.data()), out.size());
    for (int i = 0; i < steps; ++i) {
      step(*receiver);
      step(*sender);
    }
    // The sender does not run.
    const Status ended = receiver->finish(receive);
    if (ended.code() == Code::kTimedOut) {
      ++stopped;
      fill_bytes(in, std::byte{0xdd});
    } else {
      ASSERT_TRUE(ended.ok()) << ended.text();
    }
    drive(send, 20'000);
    if (!is_over(send)) {
      // The machine was so slow that the receive ended before it matched the message.
      std::vector<std::byte> late(test_case.size);
      Operation* const again =
          receiver->post(OperationKind::kReceive, 0, tag, late.data(), late.size());
      drive(again);
      ASSERT_TRUE(receiver->finish(again).ok());
      drive(send);
    }
    ASSERT_TRUE(is_over(send));
    (void)sender->finish(send);
    exchange_word();
    for (int i = 0; i < 50; ++i) {
      step(*sender);
      step(*receiver);
    }
    if (ended.ok()) {
      EXPECT_TRUE(all_bytes(in, std::byte{0x11}));
      // The message was complete before the sender stopped, for several steps in a row. There is no
      // later step.
      if (steps > stopped + 5) break;
    } else {
      ASSERT_TRUE(all_bytes(in, std::byte{0xdd}))
          << "written after " << steps << " steps of the sender";
    }
  }
  EXPECT_GT(stopped, 0) << "no step was met in which the transfer was under way";
  RecordProperty("stopped", stopped);
  // Both ranks are destroyed together, because here neither waits for the other.
  std::thread leaving([&] { sender.reset(); });
  receiver.reset();
  leaving.join();
}

// The owner of published memory and its peer. This thread drives both.
class PutsOverFailingRails : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 300'000;

  void SetUp() override {
    plan_.regions = true;
    plan_.late_writes = true;
    plan_.instances = 2;
    plan_.fail_direct = 0.2;
    FaultPlan other_plan = plan_;
    other_plan.seed = 2;
    std::thread other([&] { putter_ = make(0, other_plan); });
    owner_ = make(1, plan_);
    other.join();
    ASSERT_TRUE(putter_ && owner_);
    memory_ = std::make_unique<Memory>(owner_->context().devices(), 0, bytes_.data(), bytes_.size(),
                                       false);
    ASSERT_TRUE(
        owner_->communicator().memories().register_memory(*memory_, HETCOMM_ACCESS_ALL, true).ok());
    const auto exported = RegisteredMemories::export_memory(*memory_);
    ASSERT_TRUE(exported.ok());
    ExportedMemory named;
    std::vector<RemoteKey> keys;
    ASSERT_TRUE(
        putter_->communicator().memories().import_memory(exported.value(), &named, &keys).ok());
    remote_ = std::make_unique<RemoteMemory>(putter_->communicator(), named, std::move(keys));
  }
  void TearDown() override {
    remote_.reset();
    if (memory_) {
      EXPECT_TRUE(RegisteredMemories::unregister_memory(*memory_, 20'000'000'000).ok());
    }
    // Both ranks are destroyed together, because here neither waits for the other.
    std::thread leaving([this] { putter_.reset(); });
    owner_.reset();
    leaving.join();
  }
  std::unique_ptr<CoreMember> make(int rank, const FaultPlan& plan) {
    Factories factories;
    factories.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
    return std::make_unique<CoreMember>(store_, rank, 2, "LOG=error;PROGRESS=caller;COOL_DOWN=1ms;",
                                        std::move(factories));
  }
  void step_both(int times = 1) {
    for (int i = 0; i < times; ++i) {
      step(*putter_);
      step(*owner_);
    }
  }
  // Starts a put of all bytes.
  Operation* put(std::vector<std::byte>& from) {
    const AccessArguments to{.remote = remote_.get()};
    return putter_->access(OperationKind::kPut, to, from.data(), from.size());
  }
  uint64_t failures() {
    std::array<hetcomm_counters_t, 4> counters{};
    const size_t count = putter_->communicator().counters(1, counters.size(), counters.data());
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += counters[i].failures;
    return sum;
  }

  FaultPlan plan_;
  hetcomm_test::LocalStore store_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kBytes);
  std::unique_ptr<CoreMember> putter_;
  std::unique_ptr<CoreMember> owner_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<RemoteMemory> remote_;
};

TEST_F(PutsOverFailingRails, NoPutIsWrittenAfterItCompletes) {
  constexpr int kPuts = 200;
  const uint64_t landed_before = internal::FaultyRegions::all().landed_late();
  int waited = 0;
  for (int i = 0; i < kPuts; ++i) {
    std::vector<std::byte> from(kBytes, static_cast<std::byte>(1 + i % 100));
    Operation* operation = put(from);
    const uint32_t generation = operation->generation();
    const auto done = [&] { return operation->is(generation, OperationState::kComplete); };
    // The owner does not run. Every put that can end without it does.
    for (int pass = 0; pass < 100 && !done(); ++pass) step(*putter_);
    if (!done()) ++waited;
    for (int pass = 0; pass < 2'000'000 && !done(); ++pass) step_both();
    ASSERT_TRUE(done()) << "put " << i;
    const Status ended = putter_->finish(operation);
    ASSERT_TRUE(ended.ok()) << ended.text();
    ASSERT_TRUE(all_bytes(bytes_, from[0])) << "put " << i;
    fill_bytes(bytes_, std::byte{0xdd});
    step_both(50);
    ASSERT_TRUE(all_bytes(bytes_, std::byte{0xdd}))
        << "written after put " << i << " had completed";
  }
  // This checks that the test covers the case at all.
  EXPECT_GT(failures(), 20u);
  EXPECT_GT(waited, 10);
  EXPECT_GT(internal::FaultyRegions::all().landed_late(), landed_before);
}

INSTANTIATE_TEST_SUITE_P(Over, LateWriter, ::testing::ValuesIn(late_cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace hetcomm::test
