// Tracks, over every kind of transport that misbehaves:
//   * run n of the sender fills run n of the receiver, whole, however connections break
//   * a run that ends early at one end also ends at the other, and affects no other run
//   * ends report it if they close, do not match, or have a late peer
#include <atomic>
#include <barrier>
#include <deque>
#include <utility>
#include <vector>

#include "src/core/peer/sharing/pacer.h"
#include "tests/conformance/core/fault_cases.h"
#include "tests/support/core_job.h"
#include "tests/support/on_device.h"
#include "tests/support/pattern.h"
#include "tests/support/track_end.h"
#include "transports/self/factory.h"

namespace hetcomm::test {
namespace {

using End = Track::End;

Factories plain(const std::string& kind) {
  Factories result;
  result.push_back(make_self_factory());
  result.push_back(kind == "shm" ? make_shm_factory() : make_tcp_factory());
  return result;
}

class CoreTracks : public CoreFaults {};

struct Run {
  Operation* operation;
  std::vector<std::byte> bytes;
  uint64_t number;
};

// Return the length of run |number| and the seed of its contents.
uint64_t length_of(uint64_t seed, uint64_t number, uint64_t most) {
  Random random(mix(seed) + number);
  return random.chance(0.2) ? most : std::min(any_size(random), most);
}
uint64_t contents_of(uint64_t seed, uint64_t number) { return mix(seed * 1000 + number); }

// One end of a track that carries |count| runs. Some are cancelled if |cancels|.
class Carrier {
 public:
  Carrier(CoreMember& me, End end, int peer, const TrackTerms& terms, const TrackShare& share,
          uint64_t seed, uint64_t count, bool cancels)
      : me_(me),
        sends_(end == End::kSending),
        terms_(terms),
        seed_(seed),
        count_(count),
        cancels_(cancels),
        random_(mix(seed) + static_cast<uint64_t>(me.rank())),
        end_(me, end, peer, terms, share) {}

  ~Carrier() {
    for (Run& run : running_) {
      end_.cancel(run.operation);
      (void)me_.finish(run.operation);
    }
  }
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  bool done() const { return next_ == count_ && running_.empty(); }
  // Starts runs, or polls the oldest. Never waits, because the peer may wait for another track.
  void step() {
    if (next_ < count_ && random_.chance(0.6) && start()) {
      if (cancels_ && random_.chance(0.3)) {
        end_.cancel(running_[random_.below(running_.size())].operation);
      }
      return;
    }
    if (running_.size() >= terms_.depth || next_ == count_) finish_oldest();
  }
  uint64_t whole() const { return whole_; }

 private:
  bool start() {
    const uint64_t size = sends_ ? length_of(seed_, next_, terms_.most_bytes) : terms_.most_bytes;
    std::vector<std::byte> bytes(size);
    if (sends_) fill_pattern(bytes, contents_of(seed_, next_));
    Operation* operation = end_.start(bytes.data(), size);
    if (operation == nullptr) {
      EXPECT_GE(running_.size(), terms_.depth);
      return false;
    }
    running_.push_back({operation, std::move(bytes), next_++});
    return true;
  }
  void finish_oldest() {
    if (running_.empty() || running_.front().operation->state() != OperationState::kComplete) {
      me_.context().engine().poke();
      return;
    }
    Run run = std::move(running_.front());
    running_.pop_front();
    const uint64_t bytes = run.operation->outcome.bytes_received;
    const Status status = me_.finish(run.operation);
    if (!status.ok()) {
      EXPECT_TRUE(cancels_) << status.text();
      EXPECT_TRUE(status.code() == Code::kCancelled || status.code() == Code::kAborted)
          << status.text();
      return;
    }
    ++whole_;
    if (sends_) return;
    EXPECT_EQ(bytes, length_of(seed_, run.number, terms_.most_bytes)) << "run " << run.number;
    run.bytes.resize(bytes);
    EXPECT_FALSE(find_mismatch(run.bytes, contents_of(seed_, run.number)).has_value())
        << "run " << run.number << " of " << bytes << " bytes";
  }
  CoreMember& me_;
  const bool sends_;
  const TrackTerms terms_;
  const uint64_t seed_;
  const uint64_t count_;
  const bool cancels_;
  Random random_;
  TrackEnd end_;
  std::deque<Run> running_;
  uint64_t next_ = 0;
  uint64_t whole_ = 0;
};

// Tracks in both directions between all ranks, each with its own depth and size. Queues between two
// ranks share the way by weight, and some have a rate.
void carry(CoreMember& me, uint64_t seed, uint64_t count, bool cancels) {
  std::vector<std::unique_ptr<Carrier>> carriers;
  for (int from = 0; from < me.size(); ++from) {
    for (int to = 0; to < me.size(); ++to) {
      if (from == to || (me.rank() != from && me.rank() != to)) continue;
      Random random(mix(seed) + static_cast<uint64_t>(from * 8 + to));
      const bool sends = me.rank() == from;
      const uint64_t tracks = random.between(1, 2);
      for (uint64_t tag = 7; tag < 7 + tracks; ++tag) {
        const TrackTerms terms{.tag = tag,
                               .most_bytes = random.between(1, 400'000),
                               .depth = static_cast<uint32_t>(random.between(1, 6))};
        const TrackShare share{
            .weight = static_cast<uint32_t>(random.between(1, 9)),
            .bytes_per_second = random.chance(0.3) ? random.between(4'000'000, 80'000'000) : 0};
        carriers.push_back(std::make_unique<Carrier>(
            me, sends ? End::kSending : End::kReceiving, sends ? to : from, terms, share,
            seed * 100 + static_cast<uint64_t>(from * 8 + to) + 1000 * tag, count, cancels));
      }
    }
  }
  bool more = true;
  while (more && !::testing::Test::HasFailure()) {
    more = false;
    for (const auto& carrier : carriers) {
      if (carrier->done()) continue;
      carrier->step();
      more = true;
    }
  }
  uint64_t whole = 0;
  for (const auto& carrier : carriers) whole += carrier->whole();
  EXPECT_GE(whole, carriers.size() * (cancels ? count / 10 : count));
  // No rank closes an end while its peer still uses its own end.
  EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
}

TEST_P(CoreTracks, EachRunArrivesInTheMatchingBufferDespiteFaults) {
  const bool long_run = std::getenv("HETCOMM_TEST_LONG") != nullptr;
  for (uint64_t seed = 1; seed <= (long_run ? 20u : 1u); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_core_job(
        seed % 2 == 0 ? 3 : 2, "TIMEOUT=30s;LOG=error;" + GetParam().settings,
        [&](int rank) { return factories(seed * 100 + static_cast<uint64_t>(rank)); },
        [&](CoreMember& me) { carry(me, seed, 40, false); }, {}, {}, UINT32_MAX - 40);
    if (HasFailure()) return;
  }
}

TEST_P(CoreTracks, AbandonedRunDoesNotAffectOthers) {
  const bool long_run = std::getenv("HETCOMM_TEST_LONG") != nullptr;
  for (uint64_t seed = 1; seed <= (long_run ? 20u : 1u); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_core_job(
        2, "TIMEOUT=30s;LOG=error;" + GetParam().settings,
        [&](int rank) { return factories(seed * 100 + static_cast<uint64_t>(rank)); },
        [&](CoreMember& me) { carry(me, seed, 60, true); });
    if (HasFailure()) return;
  }
}

// Queues share four connections, and some have a rate.
TEST(CoreTrackRails, EachRunArrivesInTheMatchingBufferOverSharedRails) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    FaultPlan plan;
    plan.instances = 4;
    plan.seed = seed;
    plan.refuse = 0.1;
    plan.fail_rail = 0.002;
    run_core_job(
        2, "TIMEOUT=30s;LOG=error;RAILS=4;",
        [&](int) {
          Factories result;
          result.push_back(make_self_factory());
          result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
          return result;
        },
        [&](CoreMember& me) { carry(me, seed, 60, seed == 3); });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(CoreTrackRails, RunsOfAnyLengthUseAllRails) {
  FaultPlan plan;
  plan.instances = 3;
  plan.fail_rail = 1e-12;  // not lossless, like rails that may fail
  for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{16} << 20}) {
    run_core_job(
        2, "TIMEOUT=30s;LOG=error;PROGRESS=thread;",
        [&](int) {
          Factories result;
          result.push_back(std::make_unique<FaultyFactory>(make_tcp_factory(), plan));
          return result;
        },
        [&](CoreMember& me) {
          const bool sends = me.rank() == 0;
          const TrackTerms terms{.tag = 1, .most_bytes = bytes, .depth = 1};
          TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(), terms);
          std::vector<std::byte> data(bytes);
          for (uint64_t run = 0; run < 20; ++run) {
            if (sends) fill_pattern(data, run);
            ASSERT_TRUE(me.finish(end.start(data.data(), bytes)).ok());
            EXPECT_FALSE(find_mismatch(data, run).has_value());
          }
          EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
          if (!sends) return;
          hetcomm_counters_t counters[4];
          ASSERT_EQ(me.communicator().counters(1, 4, counters), 3u);
          for (size_t i = 0; i < 3; ++i) {
            EXPECT_GT(counters[i].bulk_bytes, 20 * bytes / 20) << counters[i].transport;
          }
        });
  }
}

// The receiver grants its run again over each new connection. The sender starts the run after more
// grants than may wait for one, and only those over the last connection wait.
TEST(CoreTrackRails, RunStartsAfterManyConnectionsHaveBroken) {
  constexpr int kBreaks = 70;
  constexpr uint64_t kBytes = 100'000;
  run_core_job(
      2, "TIMEOUT=20s;LOG=error;PROGRESS=thread;", [](int) { return plain("tcp"); },
      [](CoreMember& me) {
        const bool sends = me.rank() == 0;
        const TrackTerms terms{.tag = 1, .most_bytes = kBytes, .depth = 1};
        TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(), terms);
        std::vector<std::byte> bytes(kBytes);
        if (sends) fill_pattern(bytes, 1);
        Operation* run = sends ? nullptr : end.start(bytes.data(), kBytes);
        for (int i = 0; i < kBreaks; ++i) {
          // The second barrier acknowledges the first. A path without acknowledgements is given up.
          for (int twice = 0; twice < 2; ++twice) {
            ASSERT_TRUE(barrier(me.communicator(), 20'000'000'000).ok()) << i;
          }
          if (!sends) continue;
          const Engine::Baton baton(me.context().engine());
          me.communicator().job().pair(1).knocked(UINT32_MAX);
        }
        if (sends) run = end.start(bytes.data(), kBytes);
        ASSERT_TRUE(me.finish(run).ok());
        EXPECT_FALSE(find_mismatch(bytes, 1).has_value());
        EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
      });
}

INSTANTIATE_TEST_SUITE_P(Over, CoreTracks, ::testing::ValuesIn(fault_cases()),
                         [](const auto& test) { return test.param.name; });

class CoreTrackEnds : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(const std::function<void(CoreMember&)>& body,
                  const std::string& settings = "TIMEOUT=20s;LOG=error;PROGRESS=thread;") {
    run_core_job(
        2, settings, [](int) { return plain(GetParam()); }, body);
  }
};

TEST_P(CoreTrackEnds, RunsWaitUntilTheOtherEndOpens) {
  for (const int late : {0, 1}) {
    std::barrier both(2);
    run([&](CoreMember& me) {
      const bool sends = me.rank() == 0;
      const TrackTerms terms{.tag = 1, .most_bytes = 100'000, .depth = 4};
      if (me.rank() == late) both.arrive_and_wait();
      TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(), terms);
      std::vector<std::vector<std::byte>> bytes(4, std::vector<std::byte>(100'000));
      std::vector<Operation*> runs;
      for (uint64_t i = 0; i < 4; ++i) {
        if (sends) fill_pattern(bytes[i], i);
        runs.push_back(end.start(bytes[i].data(), bytes[i].size()));
      }
      if (me.rank() != late) {
        EXPECT_EQ(end.start(bytes[0].data(), 1), nullptr) << "a fifth at a time";
        me.context().engine().poke();
        both.arrive_and_wait();
      }
      for (uint64_t i = 0; i < 4; ++i) {
        EXPECT_TRUE(me.finish(runs[i]).ok());
        EXPECT_FALSE(find_mismatch(bytes[i], i).has_value()) << "run " << i;
      }
    });
  }
}

// The receiver cancels runs before the sender has opened its end, and other runs before it starts
// them. The sender cancels some runs before they are granted.
TEST_P(CoreTrackEnds, RunsStayMatchedAfterCancels) {
  for (const bool opened : {false, true}) {
    std::barrier both(2);
    run([&](CoreMember& me) {
      const bool sends = me.rank() == 0;
      const TrackTerms terms{.tag = 1, .most_bytes = 5000, .depth = 3};
      std::unique_ptr<TrackEnd> end;
      const auto open = [&] {
        end = std::make_unique<TrackEnd>(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                                         terms);
      };
      if (opened || !sends) open();
      std::vector<std::byte> bytes(5000);
      // The receiver cancels runs 0 and 1.
      if (!sends) {
        for (int i = 0; i < 2; ++i) {
          Operation* given_up = end->start(bytes.data(), bytes.size());
          if (opened) me.context().engine().poke();
          end->cancel(given_up);
          EXPECT_EQ(me.finish(given_up).code(), Code::kCancelled);
        }
      }
      both.arrive_and_wait();
      if (!opened && sends) open();
      if (sends) {
        for (int i = 0; i < 2; ++i) {
          const Status status = me.finish(end->start(bytes.data(), bytes.size()));
          EXPECT_EQ(status.code(), Code::kAborted);
          EXPECT_NE(status.text().find("rank 1: CANCELLED: "), std::string::npos) << status.text();
        }
        // The sender cancels runs 2 and 3.
        for (int i = 0; i < 2; ++i) {
          Operation* given_up = end->start(bytes.data(), bytes.size());
          end->cancel(given_up);
          EXPECT_EQ(me.finish(given_up).code(), Code::kCancelled);
        }
      }
      both.arrive_and_wait();
      if (!sends) {
        for (int i = 0; i < 2; ++i) {
          const Status status = me.finish(end->start(bytes.data(), bytes.size()));
          EXPECT_EQ(status.code(), Code::kAborted);
          EXPECT_NE(status.text().find("rank 0: CANCELLED: "), std::string::npos) << status.text();
        }
      }
      // Run 4 arrives.
      if (sends) fill_pattern(bytes, 4);
      EXPECT_TRUE(me.finish(end->start(bytes.data(), bytes.size())).ok());
      EXPECT_FALSE(find_mismatch(bytes, 4).has_value());
    });
  }
}

// One end cancels as many runs as it may while the other end starts none. Afterwards the runs of
// the two ends match again.
TEST_P(CoreTrackEnds, EndFarAheadIsBusyUntilTheOtherCatchesUp) {
  for (const int ahead : {0, 1}) {
    for (const bool opened : {false, true}) {
      std::barrier both(2);
      run([&](CoreMember& me) {
        const bool sends = me.rank() == 0;
        std::unique_ptr<TrackEnd> end;
        const auto open = [&] {
          end =
              std::make_unique<TrackEnd>(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                                         TrackTerms{.tag = 1, .most_bytes = 100, .depth = 2});
        };
        if (opened || me.rank() == ahead) open();
        std::vector<std::byte> bytes(100);
        if (me.rank() == ahead) {
          for (uint64_t i = 0; i < Track::kMaxAhead; ++i) {
            Operation* const given_up = end->start(bytes.data(), bytes.size());
            end->cancel(given_up);
            ASSERT_EQ(me.finish(given_up).code(), Code::kCancelled) << i;
          }
          for (int i = 0; i < 2; ++i) {
            const Status busy = me.finish(end->start(bytes.data(), bytes.size()));
            EXPECT_EQ(busy.code(), Code::kBusy) << busy.text();
            EXPECT_NE(busy.text().find(sends ? "the receiver, rank 1, is 4096 items behind"
                                             : "the sender, rank 0, is 4096 items behind"),
                      std::string::npos)
                << busy.text();
          }
        }
        both.arrive_and_wait();
        if (!opened && me.rank() != ahead) open();
        if (me.rank() != ahead) {
          for (uint64_t i = 0; i < Track::kMaxAhead; ++i) {
            const Status told = me.finish(end->start(bytes.data(), bytes.size()));
            // A sender that has the grant, and not yet the news of its end, sends in vain.
            ASSERT_TRUE(told.code() == Code::kAborted || (sends && told.ok()))
                << i << ": " << told.text();
          }
        }
        EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
        for (uint64_t i = 0; i < 10; ++i) {
          if (sends) fill_pattern(bytes, i);
          const Status status = me.finish(end->start(bytes.data(), bytes.size()));
          EXPECT_TRUE(status.ok()) << status.text();
          EXPECT_FALSE(find_mismatch(bytes, i).has_value());
        }
      });
    }
  }
}

// A receiving end of a redistribution may cancel more runs than the sender accepts grants or ends
// for. It tells of them once the sender has come near.
TEST_P(CoreTrackEnds, RedistributionReceiverFarAheadWaitsForItsSender) {
  constexpr uint64_t kCancelled = Track::kMaxSpan + 100;
  std::barrier both(2);
  run([&](CoreMember& me) {
    const bool sends = me.rank() == 0;
    TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                 {.tag = 1, .most_bytes = 100, .depth = 2, .use = 1});
    std::vector<std::byte> bytes(100);
    if (!sends) {
      for (uint64_t i = 0; i < kCancelled; ++i) {
        Operation* const given_up = end.start(bytes.data(), bytes.size());
        end.cancel(given_up);
        ASSERT_EQ(me.finish(given_up).code(), Code::kCancelled) << i;
      }
    }
    both.arrive_and_wait();
    if (sends) {
      // The sender hears all that the receiver has said before it starts a run.
      for (const uint64_t until = now_ns() + 100'000'000; now_ns() < until;) {
        me.context().engine().poke();
      }
      for (uint64_t i = 0; i < kCancelled; ++i) {
        const Status told = me.finish(end.start(bytes.data(), bytes.size()));
        // A sender that has the grant, and not yet the news of its end, sends in vain.
        ASSERT_TRUE(told.code() == Code::kAborted || told.ok()) << i << ": " << told.text();
      }
      fill_pattern(bytes, 1);
    }
    const Status status = me.finish(end.start(bytes.data(), bytes.size()));
    EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_FALSE(find_mismatch(bytes, 1).has_value());
  });
}

TEST_P(CoreTrackEnds, DeadlineEndsOnlyItsOwnRun) {
  run([&](CoreMember& me) {
    const bool sends = me.rank() == 0;
    TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                 {.tag = 1, .most_bytes = 5000, .depth = 3});
    std::vector<std::byte> bytes(5000);
    if (!sends) {
      const Status late = me.finish(end.start(bytes.data(), bytes.size(), 30'000'000));
      EXPECT_EQ(late.code(), Code::kTimedOut) << late.text();
    }
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
    if (sends) {
      const Status told = me.finish(end.start(bytes.data(), bytes.size()));
      EXPECT_EQ(told.code(), Code::kAborted);
      EXPECT_NE(told.text().find("rank 1: TIMED_OUT: "), std::string::npos) << told.text();
      fill_pattern(bytes, 1);
    }
    EXPECT_TRUE(me.finish(end.start(bytes.data(), bytes.size())).ok());
    EXPECT_FALSE(find_mismatch(bytes, 1).has_value());
  });
}

TEST_P(CoreTrackEnds, ClosingOneEndEndsTheRunsOfTheOther) {
  for (const int closes : {0, 1}) {
    run([&](CoreMember& me) {
      const bool sends = me.rank() == 0;
      TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                   {.tag = 1, .most_bytes = 500'000, .depth = 3});
      std::vector<std::byte> bytes(500'000);
      if (me.rank() == closes) {
        EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
        end.close();
        return;
      }
      Operation* under_way = end.start(bytes.data(), bytes.size());
      EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
      const Status status = me.finish(under_way);
      EXPECT_EQ(status.code(), Code::kAborted);
      EXPECT_NE(status.text().find("closed its end"), std::string::npos) << status.text();
      EXPECT_EQ(me.finish(end.start(bytes.data(), bytes.size())).code(), Code::kAborted);
    });
  }
}

// The sender cancels an ungranted run, and closes its end. The receiver starts the run before it
// learns of either.
TEST_P(CoreTrackEnds, RunCancelledBeforeClosingEndsOnBothSides) {
  std::barrier both(2);
  run([&](CoreMember& me) {
    const bool sends = me.rank() == 0;
    TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                 {.tag = 1, .most_bytes = 5000, .depth = 3});
    std::vector<std::byte> bytes(5000);
    EXPECT_TRUE(me.finish(end.start(bytes.data(), bytes.size())).ok());
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
    both.arrive_and_wait();
    Operation* under_way = nullptr;
    if (sends) {
      Operation* given_up = end.start(bytes.data(), bytes.size());
      end.cancel(given_up);
      // If it was granted early enough, its data had left before the sender cancelled it.
      const Status status = me.finish(given_up);
      EXPECT_TRUE(status.ok() || status.code() == Code::kCancelled) << status.text();
      end.close();
    } else {
      under_way = end.start(bytes.data(), bytes.size());
    }
    both.arrive_and_wait();
    if (!sends) {
      const Status status = me.finish(under_way);
      EXPECT_TRUE(status.ok() || status.code() == Code::kCancelled ||
                  status.code() == Code::kAborted)
          << status.text();
    }
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
  });
}

// An end is opened and closed before the other rank opens its own.
TEST_P(CoreTrackEnds, RunsEndIfThePeerClosedBeforeTheyStarted) {
  for (const int late : {0, 1}) {
    run([&](CoreMember& me) {
      const bool sends = me.rank() == 0;
      const TrackTerms terms{.tag = 1, .most_bytes = 500, .depth = 3};
      std::vector<std::byte> bytes(500);
      const auto open = [&] {
        return std::make_unique<TrackEnd>(me, sends ? End::kSending : End::kReceiving,
                                          1 - me.rank(), terms);
      };
      if (me.rank() == late) {
        EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
      }
      std::unique_ptr<TrackEnd> first = open();
      if (me.rank() != late) {
        first.reset();
        EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
      } else {
        const Status status = me.finish(first->start(bytes.data(), bytes.size()));
        EXPECT_EQ(status.code(), Code::kAborted) << status.text();
      }
      // The next two ends match each other.
      std::unique_ptr<TrackEnd> second = open();
      EXPECT_TRUE(me.finish(second->start(bytes.data(), bytes.size())).ok());
      EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
    });
  }
}

TEST_P(CoreTrackEnds, DifferingTermsAreReportedAsAMismatch) {
  run([&](CoreMember& me) {
    const bool sends = me.rank() == 0;
    TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                 {.tag = 1, .most_bytes = sends ? 1000u : 2000u, .depth = 3});
    std::vector<std::byte> bytes(1000);
    const Status status = me.finish(end.start(bytes.data(), bytes.size()));
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.text().find("2000 bytes"), std::string::npos) << status.text();
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
  });
}

TEST_P(CoreTrackEnds, RunLongerThanTheReceiversBufferFailsAtBothEnds) {
  run([&](CoreMember& me) {
    const bool sends = me.rank() == 0;
    TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                 {.tag = 1, .most_bytes = 9000, .depth = 3});
    std::vector<std::byte> bytes(9000);
    const Status status = me.finish(end.start(bytes.data(), sends ? 9000 : 5000));
    EXPECT_EQ(status.code(), sends ? Code::kTruncated : Code::kAborted) << status.text();
    EXPECT_TRUE(me.finish(end.start(bytes.data(), sends ? 0 : 9000)).ok());
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
  });
}

// A run costs one grant and its data. If connections may lose data, the receiver confirms that it
// has all of it.
TEST_P(CoreTrackEnds, RunCostsOneGrantAndItsData) {
  run([&](CoreMember& me) {
    constexpr uint64_t kRuns = 100;
    const bool sends = me.rank() == 0;
    TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                 {.tag = 1, .most_bytes = 100'000, .depth = 4});
    std::vector<std::byte> bytes(100'000);
    const auto messages = [&] {
      const Engine::Baton baton(me.context().engine());
      return me.communicator().job().pair(1 - me.rank()).association().sequencer().sent();
    };
    EXPECT_TRUE(me.finish(end.start(bytes.data(), bytes.size())).ok());
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
    const uint32_t before = messages();
    for (uint64_t i = 0; i < kRuns; ++i) {
      EXPECT_TRUE(me.finish(end.start(bytes.data(), bytes.size())).ok());
    }
    const uint32_t sent = messages() - before;
    const uint32_t each = sends ? 0 : GetParam() == "shm" ? 1 : 2;
    EXPECT_EQ(sent, each * kRuns);
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
  });
}

// Pieces that have ended make room for later ones.
TEST_P(CoreTrackEnds, TrackCarriesMoreBytesThanMayBeInFlight) {
  run([&](CoreMember& me) {
    const bool sends = me.rank() == 0;
    TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                 {.tag = 1, .most_bytes = 1u << 20, .depth = 1});
    std::vector<std::byte> bytes(1u << 20);
    for (uint64_t moved = 0; moved < 2 * Pacer::kWindowAloneBytes; moved += bytes.size()) {
      ASSERT_TRUE(me.finish(end.start(bytes.data(), bytes.size())).ok()) << moved;
    }
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
  });
}

// Data moves from host memory into device memory and back, staged in chunks while other runs move.
TEST_P(CoreTrackEnds, RunsBetweenHostAndDeviceArriveIntact) {
  for (const bool to_device : {true, false}) {
    run_core_job(
        2, "TIMEOUT=20s;LOG=error;PROGRESS=thread;STAGING_CHUNK=64K;",
        [](int) { return plain(GetParam()); },
        [&](CoreMember& me) {
          constexpr uint64_t kSize = 300'000;
          constexpr uint64_t kDepth = 3;
          const bool sends = me.rank() == 0;
          TrackEnd end(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                       {.tag = 1, .most_bytes = kSize, .depth = kDepth});
          OnDevice device(me, kSize * kDepth);
          std::vector<std::byte> host(kSize * kDepth);
          const bool on_device = sends != to_device;
          std::deque<std::pair<uint64_t, Operation*>> running;
          const auto check_oldest = [&] {
            const auto [number, operation] = running.front();
            running.pop_front();
            ASSERT_TRUE(me.finish(operation).ok());
            if (sends) return;
            const uint64_t at = number % kDepth * kSize;
            std::vector<std::byte> got =
                on_device
                    ? device.contents(at, kSize)
                    : std::vector<std::byte>(host.begin() + static_cast<ptrdiff_t>(at),
                                             host.begin() + static_cast<ptrdiff_t>(at + kSize));
            got.resize(kSize - number);
            EXPECT_FALSE(find_mismatch(got, number).has_value()) << "run " << number;
          };
          for (uint64_t number = 0; number < 30; ++number) {
            if (running.size() == kDepth) {
              ASSERT_NO_FATAL_FAILURE(check_oldest());
            }
            const uint64_t at = number % kDepth * kSize;
            const uint64_t size = sends ? kSize - number : kSize;
            if (sends) {
              const ByteSpan bytes(host.data() + at, size);
              fill_pattern(bytes, number);
              if (on_device) {
                ASSERT_TRUE((*device).write(at, bytes.data(), size).ok());
              }
            }
            running.emplace_back(
                number, end.start(on_device ? device.part(at, size)
                                            : hetcomm_buffer_host(host.data() + at, size)));
          }
          while (!running.empty()) ASSERT_NO_FATAL_FAILURE(check_oldest());
          EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
        },
        [] {
          Result<Device> device = create_sim_device("sim-handle", "memory=64M");
          if (!device.ok()) throw std::runtime_error(std::string(device.status().text()));
          return std::vector<Device>{device.value()};
        });
  }
}

// Closed tracks leave nothing behind. Many are created, in sequence and concurrently.
TEST_P(CoreTrackEnds, TracksWithReusedTagsCarryTheRightRuns) {
  run([&](CoreMember& me) {
    const bool sends = me.rank() == 0;
    std::vector<std::byte> bytes(64);
    for (uint64_t round = 0; round < 30; ++round) {
      std::vector<std::unique_ptr<TrackEnd>> ends;
      for (uint64_t i = 0; i < 30; ++i) {
        // The two ranks open the tracks in different orders.
        const uint64_t tag = sends ? i : 29 - i;
        ends.push_back(
            std::make_unique<TrackEnd>(me, sends ? End::kSending : End::kReceiving, 1 - me.rank(),
                                       TrackTerms{.tag = tag, .most_bytes = 64, .depth = 1}));
      }
      for (uint64_t tag = 0; tag < 30; ++tag) {
        if (sends) fill_pattern(bytes, tag);
        TrackEnd& end = *ends[sends ? tag : 29 - tag];
        ASSERT_TRUE(me.finish(end.start(bytes.data(), bytes.size())).ok());
        ASSERT_FALSE(find_mismatch(bytes, tag).has_value());
      }
      // The receiver has all data when it closes. The sender may have closed before.
    }
    EXPECT_TRUE(barrier(me.communicator(), 20'000'000'000).ok());
  });
}

TEST_P(CoreTrackEnds, RunsFromARankToItselfArriveIntact) {
  run([&](CoreMember& me) {
    const TrackTerms terms{.tag = 1, .most_bytes = 70'000, .depth = 2};
    TrackEnd out(me, End::kSending, me.rank(), terms);
    TrackEnd in(me, End::kReceiving, me.rank(), terms);
    std::vector<std::byte> sent(70'000);
    std::vector<std::byte> received(70'000);
    for (uint64_t i = 0; i < 20; ++i) {
      fill_pattern(sent, i);
      Operation* receive = in.start(received.data(), received.size());
      EXPECT_TRUE(me.finish(out.start(sent.data(), sent.size())).ok());
      EXPECT_TRUE(me.finish(receive).ok());
      EXPECT_FALSE(find_mismatch(received, i).has_value());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Over, CoreTrackEnds, ::testing::Values("shm", "tcp"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace hetcomm::test
