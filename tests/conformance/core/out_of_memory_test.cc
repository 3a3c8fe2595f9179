// Out of memory: every operation ends, whichever allocation fails.
//
//   * a pair that is lost while no allocation succeeds ends all of its operations, and the
//     any-source receives that have no sender left, each with the reason's code;
//   * so does an operation that is cancelled at that time, and the rank that must be told of it is
//     not left waiting;
//   * that pair's peer learns of the loss as soon as memory is available;
//   * ended operations are kept, and freed in order, without allocating;
//   * a split that fails on one rank fails on the other too, or its communicator does;
//   * notified puts that wait for credit end when it arrives, each once, whichever allocation fails
//     in the passes in which it arrives.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "src/core/communicator/collective_calls.h"
#include "src/core/communicator/split.h"
#include "src/core/job/job.h"
#include "src/core/peer/pair.h"
#include "src/core/progress/graveyard.h"
#include "src/system/clock.h"
#include "tests/support/core_job.h"
#include "tests/support/counting_allocator.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

Factories tcp() {
  Factories factories;
  factories.push_back(make_tcp_factory());
  return factories;
}

void step(CoreMember& member) { member.communicator().job().engine().poke(); }

// A putter and the memory's owner. This thread drives both.
class TwoRanks {
 public:
  explicit TwoRanks(size_t bytes) : bytes_(bytes) {
    const std::string settings = "LOG=error;PROGRESS=caller;CREDIT_BYTES=8K;";
    std::thread other(
        [&] { putter_ = std::make_unique<CoreMember>(store_, 0, 2, settings, tcp()); });
    owner_ = std::make_unique<CoreMember>(store_, 1, 2, settings, tcp());
    other.join();
    memory_ = std::make_unique<Memory>(owner_->context().devices(), 0, bytes_.data(), bytes_.size(),
                                       false);
    EXPECT_TRUE(
        owner_->communicator().memories().register_memory(*memory_, HETCOMM_ACCESS_ALL, true).ok());
    const auto exported = RegisteredMemories::export_memory(*memory_);
    ExportedMemory named;
    std::vector<RemoteKey> keys;
    EXPECT_TRUE(
        putter_->communicator().memories().import_memory(exported.value(), &named, &keys).ok());
    remote_ = std::make_unique<RemoteMemory>(putter_->communicator(), named, std::move(keys));
  }
  ~TwoRanks() {
    remote_.reset();
    (void)RegisteredMemories::unregister_memory(*memory_, 20'000'000'000);
    // Both ranks are destroyed together, because here neither waits for the other.
    std::thread leaving([this] { putter_.reset(); });
    owner_.reset();
    leaving.join();
  }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;

  CoreMember& putter() { return *putter_; }
  CoreMember& owner() { return *owner_; }
  RemoteMemory& remote() { return *remote_; }
  Memory& memory() { return *memory_; }
  bool waits_for_credit() {
    return putter_->communicator().job().pair(1).access().initiator().waits_for_credit();
  }
  bool take_notification() {
    hetcomm_notification_t notification{};
    return RegisteredMemories::wait_notification(*memory_, owner_->context().engine(),
                                                 HETCOMM_TIMEOUT_POLL, &notification)
        .ok();
  }

 private:
  hetcomm_test::LocalStore store_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<CoreMember> putter_;
  std::unique_ptr<CoreMember> owner_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<RemoteMemory> remote_;
};

Status why_lost() { return {Code::kPeerLost, std::string(200, 'x')}; }

// The codes of a split, and of a message over its communicator.
struct SplitOutcome {
  Code split = Code::kOk;
  Code receive = Code::kOk;
  Code later = Code::kOk;  // of a barrier of the parent
  bool allocation_failed = false;
};

SplitOutcome split_and_talk(CoreMember& me, int64_t failing, std::atomic<int>& done) {
  SplitOutcome outcome;
  std::unique_ptr<Communicator> made;
  fail_allocation_after(failing);
  try {
    auto split = hetcomm::split(me.communicator(), 0, 0, {});
    outcome.split = split.status().code();
    if (split.ok()) made = std::move(split).value();
  } catch (const std::bad_alloc&) {
    outcome.split = Code::kOutOfMemory;
  }
  outcome.allocation_failed = allocation_has_failed();
  fail_allocation_after(-1);
  if (made != nullptr) {
    uint64_t out = 7;
    uint64_t in = 0;
    const hetcomm_buffer_t from = hetcomm_buffer_host(&out, sizeof(out));
    const hetcomm_buffer_t to = hetcomm_buffer_host(&in, sizeof(in));
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = 10'000'000'000;
    std::string text;
    Operation* send = nullptr;
    Operation* receive = nullptr;
    const int peer = 1 - me.rank();
    EXPECT_EQ(made->poster().post({OperationKind::kReceive, peer, 1, 0, &to, 1, &options}, &receive,
                                  &text),
              Code::kOk);
    EXPECT_EQ(
        made->poster().post({OperationKind::kSend, peer, 1, 0, &from, 1, &options}, &send, &text),
        Code::kOk);
    (void)me.finish(send);
    outcome.receive = me.finish(receive).code();
  }
  outcome.later = run_collective(me.communicator(), {.kind = collectives::Kind::kBarrier}).code();
  ++done;
  while (done.load() < 2) step(me);
  return outcome;
}

TEST(OutOfMemory, SplitThatFailsOnOneRankLeavesNoWorkingCommunicator) {
  int failures = 0;
  int alone = 0;  // the split failed, and nothing else
  for (int64_t allocation = 0; allocation < 300; ++allocation) {
    hetcomm_test::LocalStore store;
    const std::string settings = "LOG=error;PROGRESS=caller;TIMEOUT=5s;";
    std::atomic<int> done{0};
    SplitOutcome outcomes[2];
    std::thread other([&] {
      CoreMember member(store, 0, 2, settings, tcp());
      outcomes[0] = split_and_talk(member, -1, done);
    });
    {
      CoreMember member(store, 1, 2, settings, tcp());
      outcomes[1] = split_and_talk(member, allocation, done);
    }
    other.join();
    for (int rank = 0; rank < 2; ++rank) {
      const SplitOutcome& outcome = outcomes[rank];
      EXPECT_NE(outcome.receive, Code::kTimedOut)
          << "allocation " << allocation << ", rank " << rank;
    }
    if (outcomes[0].split != Code::kOk && outcomes[1].split == Code::kOk) {
      EXPECT_NE(outcomes[1].receive, Code::kOk) << "allocation " << allocation;
    }
    if (outcomes[1].split != Code::kOk && outcomes[0].split == Code::kOk) {
      EXPECT_NE(outcomes[0].receive, Code::kOk) << "allocation " << allocation;
    }
    failures += outcomes[1].split != Code::kOk ? 1 : 0;
    if (!outcomes[1].allocation_failed) break;
    if (outcomes[0].later != Code::kOk || outcomes[1].later != Code::kOk) continue;
    if (outcomes[0].split != Code::kAborted) continue;
    EXPECT_EQ(outcomes[1].split, Code::kOutOfMemory) << "allocation " << allocation;
    ++alone;
  }
  EXPECT_GT(failures, 5);
  EXPECT_GE(alone, 1) << "the channel is allocated before the exchange";
}

TEST(OutOfMemory, LostPairEndsAllItsOperations) {
  constexpr size_t kLarge = 1'000'000;
  // Either all allocations fail, or a single one does.
  for (int64_t allocation = -1; allocation < 1000; ++allocation) {
    std::vector<std::byte> out(kLarge);
    std::deque<std::vector<std::byte>> in;  // receives do not overlap
    const auto room = [&](size_t bytes) { return in.emplace_back(bytes).data(); };
    TwoRanks ranks(kLarge);
    CoreMember& me = ranks.putter();
    CoreMember& other = ranks.owner();
    std::vector<Operation*> mine;
    const AccessArguments to{.remote = &ranks.remote(), .operand = 1};
    for (int i = 0; i < 3; ++i) {
      mine.push_back(me.post(OperationKind::kSend, 1, 1, out.data(), kLarge));
      mine.push_back(me.post(OperationKind::kReceive, 1, 2, room(kLarge), kLarge));
      mine.push_back(me.post(OperationKind::kReceive, -1, 3, room(8), 8));
    }
    std::vector<Operation*> theirs;
    theirs.push_back(other.post(OperationKind::kSend, 0, 2, out.data(), kLarge));
    theirs.push_back(other.post(OperationKind::kReceive, 0, 1, room(kLarge), kLarge));
    // Drives until transfers of both directions are in progress, and no further.
    const auto under_way = [&] {
      return mine[0]->phase == OperationPhase::kTransfer &&
             mine[1]->phase == OperationPhase::kTransfer;
    };
    for (int i = 0; i < 100'000 && !under_way(); ++i) {
      step(me);
      step(other);
    }
    ASSERT_TRUE(under_way());
    for (int i = 0; i < 20; ++i) {
      mine.push_back(me.access(OperationKind::kPut, to, out.data(), 8, true));
      mine.push_back(me.access(OperationKind::kGet, to, room(8), 8));
    }
    const Status why = why_lost();
    bool failed = false;
    {
      const Engine::Baton baton(me.context().engine());
      allocation < 0 ? fail_all_allocations(true) : fail_allocation_after(allocation);
      bool thrown = false;
      try {
        me.communicator().job().pair(1).lose(why);
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      failed = allocation_has_failed();
      fail_all_allocations(false);
      fail_allocation_after(-1);
      EXPECT_FALSE(thrown) << "allocation " << allocation;
    }
    size_t left = 0;
    for (Operation* operation : mine) {
      if (operation->state() != OperationState::kComplete) {
        ++left;
        continue;
      }
      const Status status = me.finish(operation);
      EXPECT_TRUE(status.ok() || status.code() == Code::kPeerLost) << status.text();
    }
    EXPECT_EQ(left, 0u) << "allocation " << allocation;
    EXPECT_FALSE(me.communicator().job().peer_status(1).ok());
    if (left > 0) std::abort();  // their memory is about to be freed
    {
      const Engine::Baton baton(other.context().engine());
      other.communicator().job().pair(0).lose(why);  // no other event reports the loss to it
    }
    for (Operation* operation : theirs) (void)other.finish(operation);
    if (allocation >= 0 && !failed) return;
  }
  ADD_FAILURE() << "no end of allocations";
}

TEST(OutOfMemory, OperationCanBeCancelledWithoutMemory) {
  constexpr size_t kLarge = 1'000'000;
  std::vector<std::byte> out(kLarge);
  TwoRanks ranks(kLarge);
  CoreMember& me = ranks.putter();
  Operation* send = me.post(OperationKind::kSend, 1, 1, out.data(), kLarge);
  for (int i = 0; i < 100'000 && send->phase != OperationPhase::kTransfer; ++i) {
    step(me);
    step(ranks.owner());
  }
  ASSERT_EQ(send->phase, OperationPhase::kTransfer);
  {
    const Engine::Baton baton(me.context().engine());
    fail_all_allocations(true);
    EXPECT_NO_THROW(me.communicator().job().ender().end(*send, Code::kCancelled, "because"));
    fail_all_allocations(false);
  }
  ASSERT_EQ(send->state(), OperationState::kComplete);
  EXPECT_EQ(me.finish(send).code(), Code::kCancelled);
  // The receiver learns that the message was withdrawn, or that the pair is lost.
  std::vector<std::byte> in(kLarge);
  Operation* receive = ranks.owner().post(OperationKind::kReceive, 0, 1, in.data(), kLarge);
  const uint64_t deadline = now_ns() + 20'000'000'000;
  while (receive->state() != OperationState::kComplete && now_ns() < deadline) {
    step(me);
    step(ranks.owner());
  }
  ASSERT_EQ(receive->state(), OperationState::kComplete);
  const Code told = ranks.owner().finish(receive).code();
  EXPECT_TRUE(told == Code::kAborted || told == Code::kPeerLost) << code_name(told);
}

TEST(OutOfMemory, PeerOfALostPairLearnsOfTheLoss) {
  std::vector<std::byte> out(8);
  std::vector<std::byte> in(8);
  std::vector<std::byte> never(8);
  TwoRanks ranks(8);
  CoreMember& me = ranks.putter();
  CoreMember& other = ranks.owner();
  Operation* send = me.post(OperationKind::kSend, 1, 1, out.data(), out.size());
  Operation* first = other.post(OperationKind::kReceive, 0, 1, in.data(), in.size());
  Operation* second = other.post(OperationKind::kReceive, 0, 2, never.data(), never.size());
  const uint64_t deadline = now_ns() + 20'000'000'000;
  const auto run_until_complete = [&](const Operation* operation) {
    while (operation->state() != OperationState::kComplete && now_ns() < deadline) {
      step(me);
      step(other);
    }
    return operation->state() == OperationState::kComplete;
  };
  ASSERT_TRUE(run_until_complete(first));
  {
    const Engine::Baton baton(me.context().engine());
    fail_all_allocations(true);
    EXPECT_NO_THROW(me.communicator().job().pair(1).out_of_memory());
    fail_all_allocations(false);
  }
  ASSERT_TRUE(run_until_complete(second)) << "nobody has told it";
  EXPECT_EQ(other.finish(second).code(), Code::kPeerLost);
  EXPECT_TRUE(other.finish(first).ok());
  (void)me.finish(send);
}

struct Grave final : public Mortal {
  Grave(std::vector<int>& order, int place) : order_(order), place_(place) {}
  ~Grave() { order_.push_back(place_); }
  std::vector<int>& order_;
  int place_;
};

TEST(OutOfMemory, GraveyardKeepsEntriesWithoutAllocating) {
  constexpr int kMany = 1000;
  BlockPool pool;
  Graveyard graveyard;
  std::vector<int> order;
  order.reserve(kMany);
  std::vector<PoolPtr<Grave>> pooled;
  std::vector<std::unique_ptr<Grave>> owned;
  for (int i = 0; i < kMany; i += 2) {
    pooled.push_back(make_pooled<Grave>(pool, order, i));
    owned.push_back(std::make_unique<Grave>(order, i + 1));
  }
  fail_all_allocations(true);
  for (size_t i = 0; i < pooled.size(); ++i) {
    graveyard.add(std::move(pooled[i]));
    graveyard.add(std::move(owned[i]));
  }
  graveyard.bury(pool);
  fail_all_allocations(false);
  EXPECT_TRUE(graveyard.empty());
  ASSERT_EQ(order.size(), size_t{kMany});
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

// Returns false if the allocation that had to fail did not occur.
bool puts_end_though_one_fails(int64_t allocation) {
  constexpr size_t kLarge = 200'000;
  TwoRanks ranks(kLarge);
  std::vector<std::byte> out(kLarge);
  std::vector<Operation*> puts;
  for (int i = 0; i < 48; ++i) {
    const AccessArguments to{.remote = &ranks.remote(), .operand = 1};
    const size_t length = i % 8 == 7 ? kLarge : 8;
    puts.push_back(ranks.putter().access(OperationKind::kPut, to, out.data(), length, true));
  }
  for (int i = 0; i < 1'000'000 && !ranks.waits_for_credit(); ++i) {
    step(ranks.putter());
    step(ranks.owner());
  }
  EXPECT_TRUE(ranks.waits_for_credit());
  const auto all_done = [&] {
    return std::all_of(puts.begin(), puts.end(), [](const Operation* put) {
      return put->state() == OperationState::kComplete;
    });
  };
  // An allocation fails only in the putter's passes, and only while a put waits for credit.
  bool failed = false;
  int64_t left = allocation;
  const uint64_t deadline = now_ns() + 20'000'000'000;
  while (!all_done() && now_ns() < deadline) {
    while (ranks.take_notification()) {
    }
    step(ranks.owner());
    const bool arm = !failed && ranks.waits_for_credit();
    if (arm) fail_allocation_after(left);
    try {
      step(ranks.putter());
    } catch (const std::bad_alloc&) {
    }
    if (arm) {
      failed = allocation_has_failed();
      left = allocations_until_failure();
      fail_allocation_after(-1);
    }
  }
  EXPECT_TRUE(all_done()) << "allocation " << allocation;
  for (Operation* put : puts) {
    if (put->state() == OperationState::kComplete) (void)ranks.putter().finish(put);
  }
  return failed;
}

TEST(OutOfMemory, NotifiedPutsWaitingForCreditEnd) {
  constexpr int64_t kMax = 400;
  int64_t allocation = 0;
  while (allocation < kMax && puts_end_though_one_fails(allocation)) {
    if (HasFailure()) return;
    ++allocation;
  }
  EXPECT_GT(allocation, 3) << "the test tests something";
  EXPECT_LT(allocation, kMax);
}

}  // namespace
}  // namespace hetcomm::test
