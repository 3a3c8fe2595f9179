// An ended collective operation stays ended. If other ranks have reported something about a call
// before this rank makes it, the call ends immediately, and its memory is never accessed.
//
//   * a refusal, or a different call, that is known before this call: as the first operation of its
//     ranks, as one that could start immediately, and as one queued behind others
//   * a message for a different call that has arrived before this call
//   * a rank that was lost before the call
//   * calls that differ in kind, root or length, detected through the arena or messages after both
//     are made
//   * every kind of operation, called alone or in a group
//   * through shared memory, by messages within a host, and by tcp; with host memory that must not
//     be accessed after the report, and with device memory
//   * operations that were in progress at that time end too, and their memory may be taken away
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/core/collectives/call_note.h"
#include "src/core/communicator/split.h"
#include "tests/support/core_job.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "transports/shm/factory.h"
#include "transports/tcp/factory.h"

namespace hetcomm::test {
namespace {

using collectives::Arguments;
using collectives::Call;
using collectives::CallNote;
using collectives::Kind;

constexpr int kRanks = 2;
constexpr uint64_t kBytes = 4096;
constexpr uint64_t kManyBytes = 1u << 20;  // too many to leave before a receive is posted
constexpr uint64_t kLimitNs = 20'000'000'000;

// The terms on which the ranks must agree.
struct Shape {
  Kind kind = Kind::kAllreduce;
  int32_t root = 0;
  uint64_t block = kBytes / kRanks;  // size of one rank's part
};

// The late rank, 1, is the root of a reduction or a gather, since the other ranks only send.
Shape shape_of(Kind kind, uint64_t bytes = kBytes) {
  const bool collects = kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kGatherv;
  return {.kind = kind, .root = collects ? 1 : 0, .block = bytes / kRanks};
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> all;
  for (size_t i = 0; i < collectives::kKinds; ++i) all.push_back(static_cast<Kind>(i));
  return all;
}

// Returns whether |rank| may end a call of this shape with OK although the other rank has made a
// different call, because it waits for no other rank.
bool may_end_well(const Shape& own, int rank) {
  switch (own.kind) {
    case Kind::kBroadcast:
    case Kind::kScatter:
    case Kind::kScatterv:
      return rank == own.root;
    case Kind::kReduce:
    case Kind::kGather:
    case Kind::kGatherv:
      return rank != own.root;
    case Kind::kScan:
      return rank == 0;
    default:
      return false;
  }
}

// Host memory that can be taken away, so that any later access ends the process.
class Pages {
 public:
  explicit Pages(uint64_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (base_ == MAP_FAILED) throw std::bad_alloc();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(base_, bytes_); }
  void take_away() { ASSERT_EQ(mprotect(base_, bytes_, PROT_NONE), 0); }
  hetcomm_buffer_t part(uint64_t offset, uint64_t length) const {
    return hetcomm_buffer_host(static_cast<std::byte*>(base_) + offset, length);
  }

 private:
  const uint64_t bytes_;
  void* const base_;
};

// Buffers that an operation sends and receives, on the host or on a device.
class Buffers {
 public:
  Buffers(CoreMember& me, bool on_device, uint64_t bytes = kBytes)
      : bytes_(bytes), host_{Pages(bytes), Pages(bytes)} {
    if (!on_device) return;
    for (auto& each : device_) {
      each = std::make_unique<OnDevice>(me, bytes);
      each->fill(kSeed);
    }
  }
  std::vector<hetcomm_buffer_t> sends(const Shape& shape) {
    if (shape.kind == Kind::kBarrier || shape.kind == Kind::kBroadcast) return {};
    return parts(0, shape.block, collectives::sends_blocks(shape.kind),
                 collectives::sends_many(shape.kind));
  }
  std::vector<hetcomm_buffer_t> receives(const Shape& shape) {
    if (shape.kind == Kind::kBarrier) return {};
    return parts(1, shape.block, collectives::receives_blocks(shape.kind),
                 collectives::receives_many(shape.kind));
  }
  void take_away() {
    if (device_[0] != nullptr) return;
    for (Pages& each : host_) each.take_away();
  }
  // Expects that device memory is unchanged, and releases it.
  void check_untouched() {
    for (auto& each : device_) {
      if (each == nullptr) continue;
      std::vector<std::byte> expected(bytes_);
      fill_pattern(expected, kSeed);
      EXPECT_EQ(each->contents(0, bytes_), expected);
      each.reset();
    }
  }

 private:
  static constexpr uint64_t kSeed = 7;
  hetcomm_buffer_t part(size_t side, uint64_t offset, uint64_t length) {
    return device_[side] != nullptr ? device_[side]->part(offset, length)
                                    : host_[side].part(offset, length);
  }
  // |blocks|: the side has a part for each rank. |many|: each part is a separate buffer.
  std::vector<hetcomm_buffer_t> parts(size_t side, uint64_t block, bool blocks, bool many) {
    if (!many) return {part(side, 0, blocks ? kRanks * block : block)};
    std::vector<hetcomm_buffer_t> all;
    for (uint64_t rank = 0; rank < kRanks; ++rank) all.push_back(part(side, rank * block, block));
    return all;
  }

  const uint64_t bytes_;
  Pages host_[2];
  std::unique_ptr<OnDevice> device_[2];
};

enum class Early : uint8_t { kRefusal, kOtherCall, kBoth };
// kFirst: the list of ranks has not been used before. kDirect: the operation could start
// immediately. kBehind: the maximum number of other operations is in progress.
enum class Place : uint8_t { kFirst, kDirect, kBehind };

struct Scenario {
  Kind kind;
  Early early;
  Place place;
  bool on_device;
  bool grouped;  // the calls of rank 1 are made in a group
};

struct Case {
  const char* name;
  const char* transport;
  const char* settings;
};

// Returns whether this kind is tested with device memory for every kind of report.
bool is_usual(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kAllreduce || kind == Kind::kReduce;
}

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const Kind kind : all_kinds()) {
    for (const Early early : {Early::kRefusal, Early::kOtherCall, Early::kBoth}) {
      for (const Place place : {Place::kFirst, Place::kDirect, Place::kBehind}) {
        for (const bool on_device : {false, true}) {
          if (on_device && !is_usual(kind) && early != Early::kBoth) continue;
          all.push_back({kind, early, place, on_device, false});
        }
        if (early != Early::kBoth) all.push_back({kind, early, place, false, true});
      }
    }
  }
  return all;
}

// Makes the call, or collects it in |group|, which the caller starts.
Operation* start(Communicator& communicator, const Shape& shape, Buffers& buffers,
                 std::vector<OperationRef>* group = nullptr) {
  const std::vector<hetcomm_buffer_t> sends = buffers.sends(shape);
  const std::vector<hetcomm_buffer_t> receives = buffers.receives(shape);
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  // Only the group's address is used, to find the group.
  options.group = reinterpret_cast<hetcomm_group_t*>(group);
  Operation* operation = nullptr;
  std::string text;
  const Code code = post_collective(communicator,
                                    {.kind = shape.kind,
                                     .root = shape.root,
                                     .datatype = HETCOMM_UINT8,
                                     .reduction = HETCOMM_REDUCE_MAX,
                                     .sends = sends.data(),
                                     .send_count = sends.size(),
                                     .receives = receives.data(),
                                     .receive_count = receives.size(),
                                     .options = &options},
                                    &operation, &text);
  EXPECT_EQ(code, Code::kOk) << text;
  if (group != nullptr) group->push_back({operation, operation->generation()});
  return operation;
}

// Delivers rank 0's notes about operation |sequence|, which rank 1 has not started.
void hear(CoreMember& me, Communicator& on, uint64_t sequence, Early early) {
  uint64_t team = 0;
  for (const int rank : on.ranks()) team = mix64(team, static_cast<uint64_t>(rank) + 1);
  Call other;
  other.kind = Kind::kScan;
  CallNote note{.team = team, .sequence = sequence, .refusals = 0, .call = other, .why = {}};
  const Engine::Baton baton(me.context().engine());
  if (early != Early::kRefusal) on.peer_calls(0, note.encode());
  note.refusals = 1;
  note.call = {};
  note.why = "not now";
  if (early != Early::kOtherCall) on.peer_calls(0, note.encode());
}

void expect_mismatch(CoreMember& me, Operation* operation) {
  const Status status = me.finish(operation);
  EXPECT_EQ(status.code(), Code::kMismatch) << status.text();
}

// Expects an end with MISMATCH, or with OK where |may_be_ok|.
void expect_end(CoreMember& me, Operation* operation, bool may_be_ok) {
  const Status status = me.finish(operation);
  EXPECT_TRUE(status.code() == Code::kMismatch || (may_be_ok && status.ok())) << status.text();
}

void meet(CoreMember& me) {
  const Status met = barrier(me.communicator(), kLimitNs);
  EXPECT_TRUE(met.ok()) << met.text();
}

// Runs a successful operation, in which the ranks determine how they are connected.
void join(CoreMember& me, Communicator& on) {
  Buffers buffers(me, false);
  const Status status = me.finish(start(on, {}, buffers));
  ASSERT_TRUE(status.ok()) << status.text();
}

// Expects that every rank learns of the failure in the next operation that waits for all ranks. The
// operation's memory may be taken away afterwards.
void expect_next_to_tell(CoreMember& me, Communicator& on) {
  Buffers buffers(me, false);
  expect_mismatch(me, start(on, {}, buffers));
  buffers.take_away();
  // Further progress accesses no memory.
  for (int i = 0; i < 3; ++i) meet(me);
}

// Runs rank 1's side. The operations in |others| were called before, and are in progress.
void call_what_is_over(CoreMember& me, Communicator& on, const Scenario& scenario,
                       uint64_t sequence, std::vector<Operation*>& others,
                       std::vector<std::unique_ptr<Buffers>>& used) {
  const Shape shape = shape_of(scenario.kind);
  auto own = std::make_unique<Buffers>(me, scenario.on_device);
  own->take_away();
  if (!scenario.grouped) {
    hear(me, on, sequence, scenario.early);
    expect_mismatch(me, start(on, shape, *own));
  } else {
    // The rank learns of the first call when both are collected, and neither was started.
    Buffers next(me, scenario.on_device);
    next.take_away();
    std::vector<OperationRef> group;
    Operation* const first = start(on, shape, *own, &group);
    Operation* const second = start(on, {}, next, &group);
    hear(me, on, sequence, scenario.early);
    on.poster().start_group(group);
    expect_mismatch(me, first);
    expect_mismatch(me, second);
  }
  for (Operation* const each : others) expect_mismatch(me, each);
  for (auto& each : used) each->take_away();
  own->check_untouched();
}

void play(CoreMember& me, const Scenario& scenario) {
  Result<std::unique_ptr<Communicator>> made = split(me.communicator(), 0, me.rank(), {});
  ASSERT_TRUE(made.ok()) << made.status().text();
  Communicator& on = **made;
  uint64_t calls = 0;
  if (scenario.place != Place::kFirst) {
    join(me, on);
    ++calls;
  }
  std::vector<std::unique_ptr<Buffers>> used;
  std::vector<Operation*> others;
  const auto call = [&](Kind kind, bool on_device) {
    used.push_back(std::make_unique<Buffers>(me, on_device));
    others.push_back(start(on, shape_of(kind), *used.back()));
    ++calls;
  };
  meet(me);
  constexpr int kMaxActive = 8;
  if (me.rank() == 0) {
    // Rank 0's data has arrived when rank 1 calls.
    if (scenario.place != Place::kBehind) call(scenario.kind, scenario.on_device);
    meet(me);
    meet(me);
    for (Operation* const each : others) {
      // A rank that only sends may have finished.
      const Status status = me.finish(each);
      EXPECT_TRUE(status.ok() || status.code() == Code::kMismatch) << status.text();
    }
    for (auto& each : used) each->take_away();
  } else {
    for (int i = 0; i < kMaxActive && scenario.place == Place::kBehind; ++i) {
      call(Kind::kAllreduce, scenario.on_device);
    }
    meet(me);
    call_what_is_over(me, on, scenario, calls + 1, others, used);
    meet(me);
  }
  // Further progress accesses no memory.
  for (int i = 0; i < 3; ++i) meet(me);
}

std::vector<Device> make_devices() {
  return {create_sim_device("sim-handle", "memory=64M").value()};
}

class CollectiveEnds : public testing::TestWithParam<Case> {
 protected:
  static std::string settings() {
    return std::string("HETCOMM_LOG=error;HETCOMM_TIMEOUT=20s;") + GetParam().settings;
  }
  static Factories factories() {
    Factories all;
    const bool shm = GetParam().transport == std::string("shm");
    all.push_back(shm ? make_shm_factory() : make_tcp_factory());
    return all;
  }
  static void run(const std::function<void(CoreMember&)>& body) {
    run_core_job(
        kRanks, settings(), [](int) { return factories(); }, body, make_devices);
  }
};

TEST_P(CollectiveEnds, CallEndedBeforehandIsNotStarted) {
  run([](CoreMember& me) {
    for (const Scenario& scenario : scenarios()) {
      SCOPED_TRACE(testing::Message() << collectives::name_of(scenario.kind) << ", early "
                                      << static_cast<int>(scenario.early) << ", place "
                                      << static_cast<int>(scenario.place)
                                      << (scenario.on_device ? ", on a device" : "")
                                      << (scenario.grouped ? ", in a group" : ""));
      play(me, scenario);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// --- calls that differ without any report -------------------------------------------------------

// The calls by both ranks. Rank 0 makes its call first.
struct Difference {
  Shape of_rank_0;
  Shape of_rank_1;
};

std::vector<Difference> differences() {
  std::vector<Difference> all;
  for (const Kind kind : all_kinds()) {
    const Shape own = shape_of(kind);
    const auto next = static_cast<Kind>((static_cast<size_t>(kind) + 1) % collectives::kKinds);
    all.push_back({own, shape_of(next)});
    if (collectives::has_root(kind)) {
      Shape other = own;
      other.root = 1 - own.root;
      all.push_back({own, other});
    }
    if (kind != Kind::kBarrier) {
      Shape other = own;
      other.block /= 2;
      all.push_back({own, other});
    }
  }
  return all;
}

// Makes collective calls that differ between the ranks. Rank 1 calls late, when rank 0's data is
// already in the arena or on its way.
void differ(CoreMember& me, const Difference& difference, Place place, bool on_device,
            bool grouped) {
  Result<std::unique_ptr<Communicator>> made = split(me.communicator(), 0, me.rank(), {});
  ASSERT_TRUE(made.ok()) << made.status().text();
  Communicator& on = **made;
  if (place == Place::kDirect) join(me, on);
  const Shape& own = me.rank() == 0 ? difference.of_rank_0 : difference.of_rank_1;
  Buffers buffers(me, on_device);
  std::vector<OperationRef> group;
  Operation* operation = nullptr;
  const auto call = [&] {
    operation = start(on, own, buffers, grouped ? &group : nullptr);
    if (grouped) on.poster().start_group(group);
  };
  meet(me);
  if (me.rank() == 0) call();
  meet(me);
  if (me.rank() == 1) call();
  expect_end(me, operation, may_end_well(own, me.rank()));
  buffers.take_away();
  expect_next_to_tell(me, on);
}

// In the arena each rank finds the other rank's ticket, and drops its own operation.
TEST_P(CollectiveEnds, MismatchedCallsTouchNoMemoryAfterTheReport) {
  run([](CoreMember& me) {
    for (const Difference& difference : differences()) {
      for (const Place place : {Place::kFirst, Place::kDirect}) {
        for (const bool on_device : {false, true}) {
          for (const bool grouped : {false, true}) {
            if (place == Place::kFirst && (on_device || grouped)) continue;
            SCOPED_TRACE(testing::Message()
                         << collectives::name_of(difference.of_rank_0.kind) << " to "
                         << difference.of_rank_0.root << " and "
                         << collectives::name_of(difference.of_rank_1.kind) << " to "
                         << difference.of_rank_1.root << " of " << difference.of_rank_1.block
                         << " bytes, place " << static_cast<int>(place)
                         << (on_device ? ", on a device" : "") << (grouped ? ", in a group" : ""));
            differ(me, difference, place, on_device, grouped);
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

// --- messages that come before the call ----------------------------------------------------------

// Waits until a message of a collective operation has arrived that no operation expects.
bool message_is_here(CoreMember& me, Communicator& on) {
  const uint64_t until_ns = now_ns() + kLimitNs;
  do {
    me.context().engine().poke();
    const Engine::Baton baton(me.context().engine());
    if (on.channel().collective.first_unexpected() != nullptr) return true;
  } while (now_ns() < until_ns);
  return false;
}

struct Message {
  Kind kind;
  uint64_t bytes;
  int calls;  // calls by rank 0 before rank 1's first call
  bool on_device;
  bool grouped;
};

// Rank 0 only sends, so it may be several calls ahead.
void send_before_the_call(CoreMember& me, const Message& message) {
  Result<std::unique_ptr<Communicator>> made = split(me.communicator(), 0, me.rank(), {});
  ASSERT_TRUE(made.ok()) << made.status().text();
  Communicator& on = **made;
  join(me, on);
  meet(me);
  if (me.rank() == 0) {
    const Kind other = message.kind == Kind::kBroadcast ? Kind::kScatter : Kind::kBroadcast;
    std::vector<std::unique_ptr<Buffers>> used;
    std::vector<Operation*> operations;
    for (int i = 0; i < message.calls; ++i) {
      used.push_back(std::make_unique<Buffers>(me, false, message.bytes));
      operations.push_back(start(on, shape_of(other, message.bytes), *used.back()));
    }
    for (Operation* const each : operations) expect_end(me, each, true);
    for (auto& each : used) each->take_away();
  } else {
    ASSERT_TRUE(message_is_here(me, on));
    Buffers own(me, message.on_device, message.bytes);
    own.take_away();
    std::vector<OperationRef> group;
    Operation* const operation =
        start(on, shape_of(message.kind, message.bytes), own, message.grouped ? &group : nullptr);
    if (message.grouped) on.poster().start_group(group);
    expect_mismatch(me, operation);
    own.check_untouched();
  }
  expect_next_to_tell(me, on);
}

// In an arena no rank sends messages.
class CollectiveEndsByMessages : public CollectiveEnds {};

TEST_P(CollectiveEndsByMessages, MessageForADifferentCallEndsTheNextCall) {
  run([](CoreMember& me) {
    for (const Kind kind : all_kinds()) {
      for (const Message& message :
           {Message{kind, kBytes, 1, false, false}, Message{kind, kBytes, 3, false, false},
            Message{kind, kManyBytes, 1, false, false}, Message{kind, kManyBytes, 2, false, true},
            Message{kind, kBytes, 1, true, false}}) {
        SCOPED_TRACE(testing::Message()
                     << collectives::name_of(kind) << " of " << message.bytes << " bytes behind "
                     << message.calls << " calls" << (message.on_device ? ", on a device" : "")
                     << (message.grouped ? ", in a group" : ""));
        send_before_the_call(me, message);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

// --- a rank that is lost before the call
// ----------------------------------------------------------

// A call that rank 1 makes after rank 0 has left.
struct Late {
  Kind kind;
  Place place;
  bool on_device;
  bool grouped;
  std::unique_ptr<Communicator> on;
};

// Each call has its own communicator, because the first failure ends all operations on a
// communicator.
std::vector<Late> late_calls(CoreMember& me) {
  std::vector<Late> all;
  for (const Kind kind : all_kinds()) {
    for (const Place place : {Place::kFirst, Place::kDirect}) {
      all.push_back({kind, place, false, false, nullptr});
      all.push_back({kind, place, true, false, nullptr});
      all.push_back({kind, place, false, true, nullptr});
    }
  }
  for (Late& each : all) {
    Result<std::unique_ptr<Communicator>> made = split(me.communicator(), 0, me.rank(), {});
    EXPECT_TRUE(made.ok()) << made.status().text();
    if (!made.ok()) return {};
    each.on = std::move(made).value();
    if (each.place == Place::kDirect) join(me, *each.on);
  }
  return all;
}

void call_without_rank_0(CoreMember& me, const Late& late) {
  Buffers own(me, late.on_device);
  // The first operation of its ranks does not begin before they know how they are connected.
  if (late.place == Place::kFirst) own.take_away();
  std::vector<OperationRef> group;
  Operation* const operation =
      start(*late.on, shape_of(late.kind), own, late.grouped ? &group : nullptr);
  if (late.grouped) late.on->poster().start_group(group);
  const Status status = me.finish(operation);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.text();
  EXPECT_NE(status.text().find("rank 0"), std::string::npos) << status.text();
  own.take_away();
  for (int i = 0; i < 10; ++i) me.context().engine().poke();
  own.check_untouched();
}

void outlive_rank_0(CoreMember& me) {
  const std::vector<Late> all = late_calls(me);
  meet(me);
  if (me.rank() == 0) return;
  const uint64_t until_ns = now_ns() + kLimitNs;
  while (me.communicator().peer_status(0).ok() && now_ns() < until_ns) {
    me.context().engine().poke();
  }
  ASSERT_EQ(me.communicator().peer_status(0).code(), Code::kPeerLost);
  for (const Late& late : all) {
    SCOPED_TRACE(testing::Message()
                 << collectives::name_of(late.kind) << ", place " << static_cast<int>(late.place)
                 << (late.on_device ? ", on a device" : "")
                 << (late.grouped ? ", in a group" : ""));
    call_without_rank_0(me, late);
  }
}

// The ranks do not meet at the end, because rank 0 has left.
TEST_P(CollectiveEnds, LostRankEndsTheNextCall) {
  hetcomm_test::LocalStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&store, rank] {
      try {
        CoreMember me(store, rank, kRanks, settings(), factories(), make_devices());
        outlive_rank_0(me);
        if (rank == 0) me.communicator().flush(5'000'000'000);
      } catch (const std::exception& exception) {
        ADD_FAILURE() << "rank " << rank << ": " << exception.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

constexpr Case kArena{"arena", "shm", ""};
constexpr Case kShmMessages{"shm_messages", "shm", "HETCOMM_COLLECTIVE_SHARED=0"};
constexpr Case kTcp{"tcp", "tcp", ""};

std::string case_name(const testing::TestParamInfo<Case>& each) {
  return std::string(each.param.name);
}
INSTANTIATE_TEST_SUITE_P(All, CollectiveEnds, testing::Values(kArena, kShmMessages, kTcp),
                         case_name);
INSTANTIATE_TEST_SUITE_P(All, CollectiveEndsByMessages, testing::Values(kShmMessages, kTcp),
                         case_name);

}  // namespace
}  // namespace hetcomm::test
