// A collective operation that is over stays over: what other ranks have said of a call before it is
// made here ends it at once, and its memory is never touched.
//
//   * a refusal, or another call, that is known before the call: as the first operation of its
//     ranks, as one that could start at once, and as one behind others
//   * through shared memory, by messages within a host, and by tcp; of memory of the host that no
//     access is allowed to, and of memory of a device
//   * operations that were under way then end too, and their memory may be taken away
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
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
constexpr uint64_t kLimitNs = 20'000'000'000;

// Host memory that can be taken away, so that any access ends the process.
class Pages {
 public:
  Pages()
      : base_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (base_ == MAP_FAILED) throw std::bad_alloc();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(base_, kBytes); }
  void take_away() { ASSERT_EQ(mprotect(base_, kBytes, PROT_NONE), 0); }
  hetcomm_buffer_t buffer() const { return hetcomm_buffer_host(base_, kBytes); }

 private:
  void* base_;
};

// What an operation sends and receives, on the host or on a device.
class Buffers {
 public:
  Buffers(CoreMember& me, bool on_device) {
    if (!on_device) return;
    for (auto& each : device_) {
      each = std::make_unique<OnDevice>(me, kBytes);
      each->fill(kSeed);
    }
  }
  hetcomm_buffer_t send() { return buffer(0); }
  hetcomm_buffer_t receive() { return buffer(1); }
  void take_away() {
    if (device_[0] != nullptr) return;
    for (Pages& each : host_) each.take_away();
  }
  // Memory of a device stays as it was, and can be given up.
  void check_untouched() {
    for (auto& each : device_) {
      if (each == nullptr) continue;
      std::vector<std::byte> expected(kBytes);
      fill_pattern(expected, kSeed);
      EXPECT_EQ(each->contents(0, kBytes), expected);
      each.reset();
    }
  }

 private:
  static constexpr uint64_t kSeed = 7;
  hetcomm_buffer_t buffer(size_t index) {
    return device_[index] != nullptr ? device_[index]->part(0, kBytes) : host_[index].buffer();
  }
  Pages host_[2];
  std::unique_ptr<OnDevice> device_[2];
};

enum class Early : uint8_t { kRefusal, kOtherCall, kBoth };
// kFirst: nobody has used the list of ranks before. kDirect: it could start at once. kBehind: others
// are under way, as many as may be.
enum class Place : uint8_t { kFirst, kDirect, kBehind };

struct Scenario {
  Kind kind;
  Early early;
  Place place;
  bool on_device;
};

struct Case {
  const char* name;
  const char* transport;
  const char* settings;
};

std::vector<Scenario> scenarios() {
  std::vector<Scenario> all;
  for (const Kind kind : {Kind::kBroadcast, Kind::kAllreduce, Kind::kReduce}) {
    for (const Early early : {Early::kRefusal, Early::kOtherCall, Early::kBoth}) {
      for (const Place place : {Place::kFirst, Place::kDirect, Place::kBehind}) {
        for (const bool on_device : {false, true}) all.push_back({kind, early, place, on_device});
      }
    }
  }
  return all;
}

Operation* start(Communicator& communicator, Kind kind, Buffers& buffers) {
  const hetcomm_buffer_t send = buffers.send();
  const hetcomm_buffer_t receive = buffers.receive();
  Operation* operation = nullptr;
  std::string text;
  const Code code = post_collective(communicator,
                                    {.kind = kind,
                                     .root = kind == Kind::kReduce ? 1 : 0,
                                     .datatype = HETCOMM_UINT8,
                                     .reduction = HETCOMM_REDUCE_MAX,
                                     .sends = &send,
                                     .send_count = 1,
                                     .receives = &receive,
                                     .receive_count = 1},
                                    &operation, &text);
  EXPECT_EQ(code, Code::kOk) << text;
  return operation;
}

// What rank 0 says of operation |sequence|, which rank 1 has not called.
void hear(CoreMember& me, Communicator& on, uint64_t sequence, Early early) {
  uint64_t team = 0;
  for (const int rank : on.ranks()) team = collectives::mix(team, static_cast<uint64_t>(rank) + 1);
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

void meet(CoreMember& me) {
  const Status met = barrier(me.communicator(), kLimitNs);
  EXPECT_TRUE(met.ok()) << met.text();
}

// Rank 1's side: |others| were called before, and are under way.
void call_what_is_over(CoreMember& me, Communicator& on, const Scenario& scenario,
                       uint64_t sequence, std::vector<Operation*>& others,
                       std::vector<std::unique_ptr<Buffers>>& used) {
  hear(me, on, sequence, scenario.early);
  auto own = std::make_unique<Buffers>(me, scenario.on_device);
  own->take_away();
  expect_mismatch(me, start(on, scenario.kind, *own));
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
    Buffers buffers(me, false);
    const Status status = me.finish(start(on, Kind::kAllreduce, buffers));
    ASSERT_TRUE(status.ok()) << status.text();
    ++calls;
  }
  std::vector<std::unique_ptr<Buffers>> used;
  std::vector<Operation*> others;
  const auto call = [&](Kind kind, bool on_device) {
    used.push_back(std::make_unique<Buffers>(me, on_device));
    others.push_back(start(on, kind, *used.back()));
    ++calls;
  };
  meet(me);
  constexpr int kMostActive = 8;
  if (me.rank() == 0) {
    // Its data is there when the other rank calls.
    if (scenario.place != Place::kBehind) call(scenario.kind, scenario.on_device);
    meet(me);
    meet(me);
    for (Operation* const each : others) {
      // A rank that only sends may be done.
      const Status status = me.finish(each);
      EXPECT_TRUE(status.ok() || status.code() == Code::kMismatch) << status.text();
    }
  } else {
    for (int i = 0; i < kMostActive && scenario.place == Place::kBehind; ++i) {
      call(Kind::kAllreduce, scenario.on_device);
    }
    meet(me);
    call_what_is_over(me, on, scenario, calls + 1, others, used);
    meet(me);
  }
  // Whatever goes on touches nothing.
  for (int i = 0; i < 3; ++i) meet(me);
}

class CollectiveEnds : public testing::TestWithParam<Case> {};

TEST_P(CollectiveEnds, WhatIsOverBeforeItsCallIsNeverStarted) {
  run_core_job(
      kRanks, std::string("HETCOMM_LOG=error;HETCOMM_TIMEOUT=20s;") + GetParam().settings,
      [](int) {
        Factories factories;
        const bool shm = GetParam().transport == std::string("shm");
        factories.push_back(shm ? make_shm_factory() : make_tcp_factory());
        return factories;
      },
      [](CoreMember& me) {
        for (const Scenario& scenario : scenarios()) {
          SCOPED_TRACE(testing::Message() << collectives::name_of(scenario.kind) << ", early "
                                          << static_cast<int>(scenario.early) << ", place "
                                          << static_cast<int>(scenario.place)
                                          << (scenario.on_device ? ", on a device" : ""));
          play(me, scenario);
          if (testing::Test::HasFatalFailure()) return;
        }
      },
      [] { return std::vector<Device>{create_sim_device("sim-handle", "memory=64M").value()}; });
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveEnds,
                         testing::Values(Case{"arena", "shm", ""},
                                         Case{"shm_messages", "shm", "HETCOMM_COLLECTIVE_SHARED=0"},
                                         Case{"tcp", "tcp", ""}),
                         [](const testing::TestParamInfo<Case>& each) {
                           return std::string(each.param.name);
                         });

}  // namespace
}  // namespace hetcomm::test
