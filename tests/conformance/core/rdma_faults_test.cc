// The whole core over fake verbs whose network delays and fails:
//
//   * a cancelled or failed put ends when none of its data can arrive any longer, also if two are
//     cancelled at once, if the connection had broken before, and while the owner computes
//   * memory that cannot be registered is still moved
//   * no rank is lost when a link is down for less than the detection time
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "src/core/memory/registration.h"
#include "tests/support/core_job.h"
#include "tests/support/fake_verbs.h"
#include "tests/support/pattern.h"
#include "transports/rdma/factory.h"
#include "transports/self/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kBytes = 40'000;
using Bytes = std::vector<std::byte>;

Factories rdma_only() {
  Factories factories;
  factories.push_back(make_self_factory());
  factories.push_back(rdma::make_factory(FakeFabric::verbs()));
  return factories;
}
Factories rdma_and_tcp() {
  Factories factories = rdma_only();
  factories.push_back(make_tcp_factory());
  return factories;
}

void use_two_devices() {
  std::vector<FakeDeviceSpec> devices(2);
  for (size_t i = 0; i < devices.size(); ++i) {
    devices[i].name = "fake" + std::to_string(i);
    devices[i].ports.push_back({.gids = {ipv4_gid(static_cast<uint8_t>(i + 1))}});
  }
  FakeFabric::reset(devices);
}

bool until(CoreMember& me, const std::function<bool()>& done) {
  const uint64_t limit = now_ns() + 10 * kSecond;
  while (!done()) {
    if (now_ns() > limit) return false;
    me.context().engine().poke();
  }
  return true;
}

// Each rank's memory, known to the other rank.
struct Exposed {
  explicit Exposed(CoreMember& me)
      : bytes(kBytes), memory(me.context().devices(), 0, bytes.data(), kBytes, false) {
    Communicator& own = me.communicator();
    EXPECT_TRUE(own.memories().register_memory(memory, HETCOMM_ACCESS_ALL, true).ok());
    Bytes mine = RegisteredMemories::export_memory(memory).value();
    Bytes theirs(mine.size());
    const int peer = 1 - me.rank();
    Operation* receive = me.post(OperationKind::kReceive, peer, 7, theirs.data(), theirs.size());
    Operation* send = me.post(OperationKind::kSend, peer, 7, mine.data(), mine.size());
    EXPECT_TRUE(me.finish(receive).ok());
    EXPECT_TRUE(me.finish(send).ok());
    ExportedMemory exported;
    std::vector<RemoteKey> keys;
    EXPECT_TRUE(own.memories().import_memory(theirs, &exported, &keys).ok());
    remote = std::make_unique<RemoteMemory>(own, exported, std::move(keys));
  }

  Bytes bytes;
  Memory memory;
  std::unique_ptr<RemoteMemory> remote;
};

// Starts a put of |bytes| that stays in the network until it is released.
Operation* start_held_put(CoreMember& me, const Exposed& to, Bytes& bytes, uint64_t timeout_ns) {
  const AccessArguments access{.remote = to.remote.get()};
  hetcomm_operation_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes.data(), bytes.size());
  FakeFabric::hold_write(bytes.size());
  std::string text;
  Operation* operation = nullptr;
  EXPECT_EQ(me.communicator().poster().post(
                {OperationKind::kPut, 1 - me.rank(), 0, 0, &buffer, 1, &options, false, &access},
                &operation, &text),
            Code::kOk)
      << text;
  return operation;
}

bool is_complete(const Operation* operation, uint32_t generation) {
  return operation->is(generation, OperationState::kComplete);
}

// Resumes the owner when a test leaves its scope.
class Release {
 public:
  explicit Release(std::atomic<bool>& computes) : computes_(computes) {}
  ~Release() { computes_ = false; }

 private:
  std::atomic<bool>& computes_;
};

// The owner computes while the put times out. Its write arrives during that time.
TEST(LatePut, PutEndsOnceNoneOfItsDataCanStillArrive) {
  use_two_devices();
  std::atomic<bool> computes{true};
  run_core_job(
      2, "TIMEOUT=20s;LOG=error;INTERFACE=lo;COOL_DOWN=60s;", [](int) { return rdma_and_tcp(); },
      [&](CoreMember& me) {
        Exposed exposed(me);
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        Bytes first(kBytes, std::byte{0x11});
        Bytes second(kBytes, std::byte{0x22});
        if (me.rank() == 1) {
          while (computes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        } else {
          const Release release(computes);
          Operation* put = start_held_put(me, exposed, first, kSecond / 10);
          const uint32_t generation = put->generation();
          ASSERT_TRUE(until(me, [] { return FakeFabric::held_writes() == 1; }));
          const uint64_t later = now_ns() + kSecond / 2;
          until(me, [&] { return now_ns() > later; });
          EXPECT_FALSE(is_complete(put, generation)) << "its bytes can still arrive";
          // A second cancel changes nothing.
          me.communicator().cancel(*put);
          EXPECT_FALSE(is_complete(put, generation));
          EXPECT_EQ(FakeFabric::release_writes(), 1U) << "the test holds nothing back";
          computes = false;
          const Status ended = me.finish(put);
          EXPECT_EQ(ended.code(), Code::kTimedOut) << ended.text();
          Operation* again = me.access(OperationKind::kPut, {.remote = exposed.remote.get()},
                                       second.data(), kBytes);
          EXPECT_TRUE(me.finish(again).ok());
        }
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        if (me.rank() == 1) {
          EXPECT_EQ(exposed.bytes, second);
        }
        exposed.remote.reset();
        EXPECT_TRUE(RegisteredMemories::unregister_memory(exposed.memory, 20 * kSecond).ok());
      });
}

// The owner computes while |cancel| ends the put and a later one.
void end_two(const std::function<void(CoreMember&, Operation*, Operation*)>& cancel) {
  FakeFabric::reset();
  std::atomic<bool> computes{true};
  run_core_job(
      2, "TIMEOUT=20s;LOG=error;INTERFACE=lo;COOL_DOWN=60s;", [](int) { return rdma_and_tcp(); },
      [&](CoreMember& me) {
        Exposed exposed(me);
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        Bytes first(kBytes, std::byte{0x11});
        Bytes second(kBytes / 2, std::byte{0x22});
        if (me.rank() == 1) {
          while (computes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        } else {
          const Release release(computes);
          Operation* one = start_held_put(me, exposed, first, 20 * kSecond);
          const uint32_t of_one = one->generation();
          ASSERT_TRUE(until(me, [] { return FakeFabric::held_writes() == 1; }));
          Operation* two = me.access(OperationKind::kPut, {.remote = exposed.remote.get()},
                                     second.data(), second.size());
          const uint32_t of_two = two->generation();
          cancel(me, one, two);
          EXPECT_FALSE(is_complete(one, of_one));
          EXPECT_FALSE(is_complete(two, of_two));
          const uint64_t later = now_ns() + kSecond / 5;
          until(me, [&] { return now_ns() > later; });
          EXPECT_FALSE(is_complete(one, of_one));
          EXPECT_FALSE(is_complete(two, of_two));
          computes = false;
          EXPECT_EQ(me.finish(one).code(), Code::kCancelled);
          EXPECT_EQ(me.finish(two).code(), Code::kCancelled);
          EXPECT_EQ(FakeFabric::release_writes(), 0U) << "it arrived after its end";
        }
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        exposed.remote.reset();
        EXPECT_TRUE(RegisteredMemories::unregister_memory(exposed.memory, 20 * kSecond).ok());
      });
}

TEST(LatePut, TwoPutsCancelledTogetherBothWaitForTheFence) {
  end_two([](CoreMember& me, Operation* one, Operation* two) {
    me.communicator().cancel(*one);
    me.communicator().cancel(*two);
  });
}

// The puts would continue by message, but first wait for the fence.
TEST(LatePut, PutWithABrokenConnectionWaitsForTheFence) {
  end_two([](CoreMember& me, Operation* one, Operation* two) {
    FakeFabric::raise_queue_pair(IBV_EVENT_QP_FATAL, FakeFabric::held_sender());
    const uint64_t later = now_ns() + kSecond / 5;
    until(me, [&] { return now_ns() > later; });
    me.communicator().cancel(*one);
    me.communicator().cancel(*two);
  });
}

// A write that is still in the network when the cancelled put has completed never arrives.
TEST(LatePut, PutPastItsDeadlineDoesNotOverwriteTheOwner) {
  use_two_devices();
  std::atomic<bool> over{false};
  run_core_job(
      2, "TIMEOUT=20s;LOG=error;INTERFACE=lo;COOL_DOWN=60s;", [](int) { return rdma_and_tcp(); },
      [&](CoreMember& me) {
        Exposed exposed(me);
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        Bytes first(kBytes, std::byte{0x11});
        if (me.rank() == 0) {
          Operation* put = start_held_put(me, exposed, first, kSecond / 10);
          const Status ended = me.finish(put);
          EXPECT_EQ(ended.code(), Code::kTimedOut) << ended.text();
          EXPECT_EQ(FakeFabric::held_writes(), 1U);
          EXPECT_EQ(FakeFabric::release_writes(), 0U) << "it arrived after its end";
          over = true;
        } else {
          EXPECT_TRUE(until(me, [&] { return over.load(); }));
          EXPECT_EQ(exposed.bytes, Bytes(kBytes));
        }
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        exposed.remote.reset();
        EXPECT_TRUE(RegisteredMemories::unregister_memory(exposed.memory, 20 * kSecond).ok());
      });
}

// The link is down for longer than the immediate connection attempts take.
TEST(Flap, BriefLinkFailureDoesNotLoseARank) {
  FakeFabric::reset();
  run_core_job(
      2, "TIMEOUT=30s;LOG=error;INTERFACE=lo;", [](int) { return rdma_only(); },
      [](CoreMember& me) {
        char byte = 1;
        const auto exchange = [&](uint64_t tag) {
          const OperationKind kind =
              me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive;
          return me.finish(me.post(kind, 1 - me.rank(), tag, &byte, 1));
        };
        ASSERT_TRUE(exchange(1).ok());
        std::thread link;
        if (me.rank() == 0) {
          FakeFabric::fail_queue_pairs(ENETUNREACH);
          FakeFabric::raise(IBV_EVENT_PORT_ERR);
          link = std::thread([] {
            std::this_thread::sleep_for(std::chrono::seconds(6));
            FakeFabric::fail_queue_pairs(0);
            FakeFabric::raise(IBV_EVENT_PORT_ACTIVE);
          });
        }
        const Status status = exchange(2);
        EXPECT_TRUE(status.ok()) << status.text();
        if (link.joinable()) link.join();
      });
}

// From now on no memory can be registered. Messages, puts and gets use message buffers, and
// connections are made over tcp.
TEST(LockedMemory, DataMovesAfterLockedMemoryRunsOut) {
  FakeFabric::reset();
  run_core_job(
      2, "TIMEOUT=10s;LOG=error;INTERFACE=lo;", [](int) { return rdma_and_tcp(); },
      [](CoreMember& me) {
        Exposed exposed(me);
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        if (me.rank() == 0) FakeFabric::fail_registrations(ENOMEM, 0);
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        Bytes bytes(8 << 20);
        Bytes right(bytes.size());
        fill_pattern(right, 3);
        if (me.rank() == 0) bytes = right;
        for (const size_t size : {size_t{1'000}, size_t{100'000}, bytes.size()}) {
          const OperationKind kind =
              me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive;
          const Status status = me.finish(me.post(kind, 1 - me.rank(), 5, bytes.data(), size));
          EXPECT_TRUE(status.ok()) << size << ": " << status.text();
          EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size),
                                 right.begin()));
        }
        for (const OperationKind kind : {OperationKind::kPut, OperationKind::kGet}) {
          Bytes mine(kBytes, std::byte{0x33});
          const Status status =
              me.finish(me.access(kind, {.remote = exposed.remote.get()}, mine.data(), kBytes));
          EXPECT_TRUE(status.ok()) << status.text();
          EXPECT_EQ(mine, Bytes(kBytes, std::byte{0x33}));
          ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
          EXPECT_EQ(exposed.bytes, Bytes(kBytes, std::byte{0x33}));
        }
        ASSERT_TRUE(barrier(me.communicator(), 10 * kSecond).ok());
        FakeFabric::fail_registrations(0);
        exposed.remote.reset();
        EXPECT_TRUE(RegisteredMemories::unregister_memory(exposed.memory, 20 * kSecond).ok());
      });
}

TEST(LockedMemory, DataMovesWithoutAnyLockedMemory) {
  FakeFabric::reset();
  FakeFabric::fail_registrations(ENOMEM, 0);
  run_core_job(
      2, "TIMEOUT=10s;LOG=error;INTERFACE=lo;", [](int) { return rdma_and_tcp(); },
      [](CoreMember& me) {
        Bytes bytes(1 << 20);
        Bytes right(bytes.size());
        fill_pattern(right, 3);
        if (me.rank() == 0) bytes = right;
        const OperationKind kind = me.rank() == 0 ? OperationKind::kSend : OperationKind::kReceive;
        const Status status =
            me.finish(me.post(kind, 1 - me.rank(), 5, bytes.data(), bytes.size()));
        EXPECT_TRUE(status.ok()) << status.text();
        EXPECT_EQ(bytes, right);
      });
  FakeFabric::fail_registrations(0);
}

}  // namespace
}  // namespace hetcomm::test
