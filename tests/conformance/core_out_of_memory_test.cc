// Want of memory: every operation ends, whichever allocation fails.
//
//   * notified puts that wait for credit end when it comes, each once, though any one allocation of
//     the passes in which it comes fails.
#include <algorithm>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "src/base/clock.h"
#include "src/core/mesh.h"
#include "src/core/pair.h"
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

void step(CoreMember& member) { member.communicator().mesh().engine().poke(); }

// A putter and the owner of the memory, both driven by this thread.
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
    EXPECT_TRUE(owner_->communicator().register_memory(*memory_, HETCOMM_ACCESS_ALL, true).ok());
    const auto exported = Communicator::export_memory(*memory_);
    ExportedMemory named;
    std::vector<RemoteKey> keys;
    EXPECT_TRUE(putter_->communicator().import_memory(exported.value(), &named, &keys).ok());
    remote_ = std::make_unique<RemoteMemory>(putter_->communicator(), named, std::move(keys));
  }
  ~TwoRanks() {
    remote_.reset();
    (void)Communicator::unregister_memory(*memory_, 20'000'000'000);
    // Gone together, as neither waits for the other here.
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
    return putter_->communicator().mesh().pair(1).access().waits_for_credit();
  }
  bool take_notification() {
    hetcomm_notification_t notification{};
    return Communicator::wait_notification(*memory_, owner_->context().engine(),
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

// False when the allocation that was to fail did not come.
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
  // Of the putter's passes only, as long as any of them waits.
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

TEST(OutOfMemory, PutsThatWaitForCreditEnd) {
  constexpr int64_t kMost = 400;
  int64_t allocation = 0;
  while (allocation < kMost && puts_end_though_one_fails(allocation)) {
    if (HasFailure()) return;
    ++allocation;
  }
  EXPECT_GT(allocation, 3) << "the test tests something";
  EXPECT_LT(allocation, kMost);
}

}  // namespace
}  // namespace hetcomm::test
