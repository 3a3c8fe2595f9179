// Registered memory at its owner, and its description for other ranks:
//  * notifications are returned once each, in the order in which they were added, with their
//    source;
//  * the last running operation is distinguished from the others;
//  * exported bytes contain all their input, and bytes that are shorter, longer or from another
//    version are refused;
//  * the check whether a range is inside a memory is correct even if offset plus length exceeds 64
//    bits;
//  * within a job, no two registrations ever have the same id, at once or later;
//  * exported memory is accepted only by its own job: not by another job or epoch, and not for a
//    rank that does not exist.
#include "src/core/memory/registration.h"

#include <deque>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "src/core/device/memory.h"
#include "src/core/job/job.h"
#include "src/core/memory/access_state.h"
#include "tests/support/core_job.h"
#include "transports/self/factory.h"

namespace hetcomm::test {
namespace {

constexpr uint64_t kTop = UINT64_MAX;

class RegistrationTest : public ::testing::Test {
 protected:
  RegistrationTest() : me_(store_, 0, 1, "LOG=error;PROGRESS=caller;", factories()), bytes_(256) {}
  static Factories factories() {
    Factories result;
    result.push_back(make_self_factory());
    return result;
  }
  Memory& memory(uint64_t size) {
    return memories_.emplace_back(me_.context().devices(), 0, bytes_.data(), size, false);
  }
  void register_memory(Memory& memory, uint32_t rights = HETCOMM_ACCESS_ALL) {
    const Status status = me_.communicator().memories().register_memory(memory, rights, true);
    ASSERT_TRUE(status.ok()) << status.text();
  }
  static void unregister(Memory& memory) {
    const Status status = RegisteredMemories::unregister_memory(memory, 5'000'000'000);
    EXPECT_TRUE(status.ok()) << status.text();
  }
  Registration* find(uint64_t id) {
    const Engine::Baton baton(me_.context().engine());
    return me_.communicator().job().registrations().find(id);
  }
  Code import(const ExportedMemory& exported) { return import(exported.encode()); }
  Code import(ConstByteSpan bytes) {
    ExportedMemory out;
    std::vector<RemoteKey> keys;
    return me_.communicator().memories().import_memory(bytes, &out, &keys).code();
  }

  hetcomm_test::LocalStore store_;
  CoreMember me_;
  std::vector<std::byte> bytes_;
  std::deque<Memory> memories_;
};

TEST_F(RegistrationTest, EachNotificationIsReturnedOnceAndInOrder) {
  Memory& mine = memory(256);
  register_memory(mine, HETCOMM_ACCESS_PUT);
  {
    const Engine::Baton baton(me_.context().engine());
    Registration& registration = *registration_of(mine);
    EXPECT_EQ(registration.rights(), static_cast<uint32_t>(HETCOMM_ACCESS_PUT));
    EXPECT_EQ(&registration.memory(), &mine);
    hetcomm_notification_t out{};
    NotificationSource* source = nullptr;
    EXPECT_FALSE(registration.has_notification());
    EXPECT_FALSE(registration.take(&out, &source));
    Association& self = me_.communicator().job().pair(0).association();
    for (uint64_t i = 0; i < 3; ++i) registration.notify(self, {i, 0, 0, 10 * i, i});
    for (uint64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(registration.has_notification());
      ASSERT_TRUE(registration.take(&out, &source));
      EXPECT_EQ(out.value, i);
      EXPECT_EQ(out.offset, 10 * i);
      EXPECT_EQ(source, &self);
    }
    EXPECT_FALSE(registration.has_notification());
    EXPECT_FALSE(registration.take(&out, &source));
  }
  unregister(mine);
}

TEST_F(RegistrationTest, LastRunningOperationIsRecognized) {
  Memory& mine = memory(256);
  register_memory(mine);
  {
    const Engine::Baton baton(me_.context().engine());
    Registration& registration = *registration_of(mine);
    registration.add_running();
    registration.add_running();
    EXPECT_EQ(registration.running(), 2U);
    EXPECT_FALSE(registration.drop_running());
    EXPECT_TRUE(registration.drop_running());
    EXPECT_EQ(registration.running(), 0U);
  }
  unregister(mine);
}

TEST_F(RegistrationTest, UnregisteringSparesAnOperationThatReusedAnAccessSlot) {
  Memory& mine = memory(256);
  register_memory(mine);
  Engine& engine = me_.context().engine();
  Operation* later = nullptr;
  {
    const Engine::Baton baton(engine);
    Registration& registration = *registration_of(mine);
    registration.add_running();  // so that operations on the memory are ended
    later = engine.pool().allocate();
    ASSERT_NE(later, nullptr);
    later->communicator = &me_.communicator();
    later->kind = OperationKind::kCollective;
    later->phase = OperationPhase::kCollective;
    access_of(*later).registration = &registration;
    later->set_state(OperationState::kPending);
  }
  EXPECT_EQ(RegisteredMemories::unregister_memory(mine, 1'000'000).code(), Code::kTimedOut);
  {
    const Engine::Baton baton(engine);
    EXPECT_EQ(later->state(), OperationState::kPending);
    engine.pool().recycle_locked(later);
    registration_of(mine)->drop_running();
  }
  unregister(mine);
}

TEST_F(RegistrationTest, ExportedBytesReadBackAsWritten) {
  ExportedMemory given;
  for (size_t i = 0; i < given.job.job.size(); ++i) given.job.job[i] = static_cast<std::byte>(i);
  for (size_t i = 0; i < given.job.instance.size(); ++i) {
    given.job.instance[i] = static_cast<std::byte>(200 - i);
  }
  given.job.epoch = 0x80000001;
  given.rank = 77;
  given.id = 0x1122334455667788;
  given.length = uint64_t{1} << 45 | 5;
  given.rights = HETCOMM_ACCESS_GET | HETCOMM_ACCESS_ATOMIC;
  given.keys = {{1, {{1, 2, 3}}}, {63, {{kTop, 5, 6}}}};
  for (const bool host : {false, true}) {
    for (const bool flush : {false, true}) {
      given.host_accessible = host;
      given.needs_flush = flush;
      const std::vector<std::byte> bytes = given.encode();
      const ExportedMemory got = ExportedMemory::decode(bytes).value();
      EXPECT_EQ(got.job.job, given.job.job);
      EXPECT_EQ(got.job.instance, given.job.instance);
      EXPECT_EQ(got.job.epoch, given.job.epoch);
      EXPECT_EQ(got.rank, given.rank);
      EXPECT_EQ(got.id, given.id);
      EXPECT_EQ(got.length, given.length);
      EXPECT_EQ(got.rights, given.rights);
      EXPECT_EQ(got.host_accessible, host);
      EXPECT_EQ(got.needs_flush, flush);
      EXPECT_EQ(got.keys, given.keys);
      for (size_t length = 0; length < bytes.size(); ++length) {
        EXPECT_FALSE(ExportedMemory::decode(ConstByteSpan(bytes).first(length)).ok()) << length;
      }
      std::vector<std::byte> longer = bytes;
      longer.push_back(std::byte{0});
      EXPECT_FALSE(ExportedMemory::decode(longer).ok());
      std::vector<std::byte> other = bytes;
      other[0] ^= std::byte{1};
      EXPECT_FALSE(ExportedMemory::decode(other).ok());
    }
  }
}

TEST_F(RegistrationTest, RangeCheckIsExactAtTheBoundsAndOnOverflow) {
  Memory& mine = memory(256);
  ExportedMemory exported;
  exported.length = 256;
  const RemoteMemory remote(me_.communicator(), exported, {});
  const auto inside = [&](uint64_t offset, uint64_t length) {
    EXPECT_EQ(mine.contains(offset, length), remote.contains(offset, length));
    return mine.contains(offset, length);
  };
  EXPECT_TRUE(inside(0, 256));
  EXPECT_TRUE(inside(0, 0));
  EXPECT_TRUE(inside(256, 0));
  EXPECT_TRUE(inside(255, 1));
  EXPECT_FALSE(inside(0, 257));
  EXPECT_FALSE(inside(1, 256));
  EXPECT_FALSE(inside(256, 1));
  EXPECT_FALSE(inside(257, 0));
  EXPECT_FALSE(inside(kTop, 1));
  EXPECT_FALSE(inside(1, kTop));
  EXPECT_FALSE(inside(kTop - 7, 8));
  EXPECT_FALSE(inside(8, kTop - 7));
  EXPECT_FALSE(inside(kTop, kTop));
}

TEST_F(RegistrationTest, IdsAreNeverReused) {
  std::set<uint64_t> ids;
  for (int round = 0; round < 200; ++round) {
    std::vector<Memory*> now;
    for (int i = 0; i < 1 + round % 3; ++i) {
      Memory& mine = memory(256);
      register_memory(mine);
      EXPECT_NE(registration_of(mine)->id, 0U);
      EXPECT_TRUE(ids.insert(registration_of(mine)->id).second) << registration_of(mine)->id;
      EXPECT_EQ(find(registration_of(mine)->id), registration_of(mine));
      now.push_back(&mine);
    }
    for (Memory* mine : now) {
      const uint64_t id = registration_of(*mine)->id;
      unregister(*mine);
      EXPECT_EQ(find(id), nullptr);
    }
  }
}

TEST_F(RegistrationTest, ExportedMemoryIsAcceptedOnlyByItsOwnJob) {
  Memory& mine = memory(256);
  EXPECT_FALSE(RegisteredMemories::export_memory(mine).ok()) << "it is not registered";
  register_memory(mine);
  const std::vector<std::byte> bytes = RegisteredMemories::export_memory(mine).value();
  EXPECT_EQ(import(bytes), Code::kOk);
  const ExportedMemory right = ExportedMemory::decode(bytes).value();
  EXPECT_EQ(right.length, 256U);
  EXPECT_EQ(right.rank, 0);
  EXPECT_EQ(right.rights, static_cast<uint32_t>(HETCOMM_ACCESS_ALL));
  for (size_t i = 0; i < right.job.job.size(); ++i) {
    ExportedMemory wrong = right;
    wrong.job.job[i] ^= std::byte{1};
    EXPECT_NE(import(wrong), Code::kOk) << "byte " << i << " of the job";
  }
  for (size_t i = 0; i < right.job.instance.size(); ++i) {
    ExportedMemory wrong = right;
    wrong.job.instance[i] ^= std::byte{0x80};
    EXPECT_NE(import(wrong), Code::kOk) << "byte " << i << " of the job";
  }
  ExportedMemory wrong = right;
  ++wrong.job.epoch;
  EXPECT_NE(import(wrong), Code::kOk);
  for (const int32_t rank : {-1, 1, INT32_MAX, INT32_MIN}) {
    wrong = right;
    wrong.rank = rank;
    EXPECT_NE(import(wrong), Code::kOk) << rank;
  }
  unregister(mine);
}

}  // namespace
}  // namespace hetcomm::test
