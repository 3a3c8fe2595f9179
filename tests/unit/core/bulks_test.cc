// Puts and gets of a pair, on rails that accept, refuse and break at random:
//    * each bulk that was submitted ends once: it is reported with a code, or cancelled, as its
//      owner does when its rail fails
//    * the endpoint has no bulk after its cancel, and is asked to cancel none that it does not have
//    * bulks that wait for room are submitted again in their order, each once for each call
//    * a refusal is reported by report_refused(), not inside submit()
//    * what a rail has in flight is counted, and is nothing in the end
#include "src/core/peer/rails/bulks.h"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/idle_pair.h"
#include "tests/support/pattern.h"

namespace hetcomm {
namespace {

using test::Nobody;
using test::NoPair;
using test::Random;

// An endpoint whose next answers the test decides. kInternal: it throws std::bad_alloc.
class DecidedEndpoint final : public Endpoint, public PutStarter, public GetStarter {
 public:
  DecidedEndpoint(bool puts, bool gets) : puts_(puts), gets_(gets) {}
  void close() override {}
  void set_handler(EndpointHandler* /*handler*/) override {}
  const Capabilities& capabilities() const override { return capabilities_; }
  EndpointAbilities abilities() override {
    return {.puts = puts_ ? this : nullptr, .gets = gets_ ? this : nullptr};
  }
  Code send(const MessageHeader& /*header*/, const ExtentView& /*payload*/) override {
    return Code::kOk;
  }
  bool flushed() const override { return true; }
  std::string describe() const override { return "decided"; }
  Code put(Bulk& bulk) override { return take(bulk); }
  Code get(Bulk& bulk) override { return take(bulk); }
  bool cancel(Bulk& bulk) override {
    const auto it = std::find(running.begin(), running.end(), &bulk);
    EXPECT_NE(it, running.end()) << "the endpoint does not have this bulk";
    if (it != running.end()) running.erase(it);
    return breaks;
  }

  Code answer = Code::kOk;
  bool breaks = false;
  std::deque<Bulk*> running;
  std::vector<Bulk*> tried;

 private:
  Code take(Bulk& bulk) {
    tried.push_back(&bulk);
    EXPECT_EQ(std::count(running.begin(), running.end(), &bulk), 0) << "given twice";
    if (answer == Code::kInternal) throw std::bad_alloc();
    if (answer == Code::kOk) running.push_back(&bulk);
    return answer;
  }
  const bool puts_;
  const bool gets_;
  Capabilities capabilities_;
};

class DecidedRail final : public Rail {
 public:
  explicit DecidedRail(bool puts = true, bool gets = true)
      : DecidedRail(std::make_unique<DecidedEndpoint>(puts, gets)) {}
  void on_message(const MessageHeader& /*header*/, ConstByteSpan /*payload*/) override {}
  void on_put(uint64_t /*cookie*/, uint64_t /*length*/) override {}
  void on_bulk_complete(Bulk& /*bulk*/, Code /*code*/) override {}
  void on_mapped(const RemoteKey& /*key*/, const Result<MappedRegion>& /*mapped*/) override {}
  void on_unmap(const RemoteKey& /*key*/) override {}
  void on_writable() override {}
  void on_doubt(const StreamId& /*stream*/) override {}
  void on_failed(const Status& /*why*/) override {}

  DecidedEndpoint& decided;

 private:
  explicit DecidedRail(std::unique_ptr<Endpoint> its_endpoint)
      : Rail(std::move(its_endpoint), {}, "decided", {}, &counted_),
        decided(static_cast<DecidedEndpoint&>(endpoint())) {}
  hetcomm_counters_t counted_ = {};
};

class CoreBulks : public ::testing::Test, public BulkOwner {
 protected:
  CoreBulks() { turns_.add(pair_); }
  void on_bulk(Bulk& bulk, Code code) override {
    const auto& owned = static_cast<const OwnedBulk&>(bulk);
    EXPECT_EQ(owned.rail, nullptr);
    ended_.push_back({&owned, code});
  }
  OwnedBulk& prepare(DecidedRail& rail, uint64_t bytes, bool is_get = false) {
    OwnedBulk& bulk = all_.emplace_back();
    bulk.owner = this;
    bulk.rail = &rail;
    bulk.is_get = is_get;
    bulk.local.length = bytes;
    return bulk;
  }
  struct End {
    const OwnedBulk* bulk;
    Code code;
    bool operator==(const End&) const = default;
  };

  Nobody nobody_;
  Engine engine_{nobody_};
  PairTurns turns_{engine_};
  NoPair pair_;
  PairState state_ = PairState::kReady;
  Bulks bulks_{engine_, turns_, pair_, state_};
  std::deque<OwnedBulk> all_;
  std::vector<End> ended_;
};

TEST_F(CoreBulks, WaitingBulksAreResubmittedInOrder) {
  DecidedRail rail;
  OwnedBulk& first = prepare(rail, 1);
  OwnedBulk& second = prepare(rail, 2, true);
  OwnedBulk& third = prepare(rail, 3);
  state_ = PairState::kConnecting;
  for (OwnedBulk& bulk : all_) bulks_.submit(bulk);
  EXPECT_TRUE(rail.decided.tried.empty()) << "the pair is not ready";
  state_ = PairState::kReady;
  rail.decided.answer = Code::kWouldBlock;
  bulks_.submit_waiting();
  EXPECT_EQ(rail.decided.tried, (std::vector<Bulk*>{&first, &second, &third}));
  EXPECT_EQ(rail.sending.outstanding(), 0u);
  rail.decided.answer = Code::kOk;
  bulks_.cancel(second);
  bulks_.submit_waiting();
  EXPECT_EQ(rail.decided.running, (std::deque<Bulk*>{&first, &third}));
  EXPECT_EQ(rail.sending.outstanding(), 4u);
  EXPECT_TRUE(bulks_.empty());
  EXPECT_TRUE(ended_.empty());
}

TEST_F(CoreBulks, RefusalsAreReportedAtTheEndOfThePass) {
  DecidedRail rail;
  DecidedRail without(false, false);
  OwnedBulk& refused = prepare(rail, 10);
  OwnedBulk& cancelled = prepare(rail, 10);
  OwnedBulk& thrown = prepare(rail, 10, true);
  OwnedBulk& impossible = prepare(without, 10);
  rail.decided.answer = Code::kUnsupported;
  bulks_.submit(refused);
  bulks_.submit(cancelled);
  rail.decided.answer = Code::kInternal;
  bulks_.submit(thrown);
  bulks_.submit(impossible);
  EXPECT_TRUE(ended_.empty());
  EXPECT_TRUE(pair_.listed.update) << "the pair gets a turn at the end of the pass";
  EXPECT_FALSE(bulks_.cancel(cancelled));
  bulks_.report_refused();
  EXPECT_EQ(ended_, (std::vector<End>{{&refused, Code::kUnsupported},
                                      {&thrown, Code::kOutOfMemory},
                                      {&impossible, Code::kUnsupported}}));
  EXPECT_EQ(rail.counters().bulk_bytes, 0u);
  EXPECT_TRUE(bulks_.empty());
}

TEST_F(CoreBulks, BulkOfAFailedRailCanBeSubmittedToAnother) {
  DecidedRail failed;
  DecidedRail next;
  failed.decided.answer = Code::kWouldBlock;
  OwnedBulk& waiting = prepare(failed, 5);
  bulks_.submit(waiting);
  failed.decided.answer = Code::kUnsupported;
  OwnedBulk& refused = prepare(failed, 5);
  bulks_.submit(refused);
  bulks_.forget(failed);
  bulks_.report_refused();
  EXPECT_TRUE(ended_.empty());
  for (OwnedBulk* bulk : {&waiting, &refused}) {
    bulk->rail = &next;
    bulks_.submit(*bulk);
    next.decided.breaks = true;
    EXPECT_TRUE(bulks_.cancel(*bulk)) << "the endpoint has it and says what a cancel costs";
    EXPECT_TRUE(next.decided.running.empty());
  }
  EXPECT_EQ(next.sending.outstanding(), 0u);
}

TEST_F(CoreBulks, NoBulkEndsTwiceUnderRandomOperations) {
  Random random(52);
  size_t cancelled = 0;
  size_t failed_with_rail = 0;
  for (int round = 0; round < 200; ++round) {
    std::array<DecidedRail, 2> rails;
    all_.clear();
    ended_.clear();
    std::vector<OwnedBulk*> open;
    uint64_t done_bytes = 0;
    const auto settle = [&] {
      for (const End& end : ended_) {
        const auto it = std::find(open.begin(), open.end(), end.bulk);
        ASSERT_NE(it, open.end()) << "ended twice, or after its cancel";
        open.erase(it);
      }
      ended_.clear();
    };
    const auto finish_first = [&](DecidedRail& rail, Code code) {
      auto& bulk = static_cast<OwnedBulk&>(*rail.decided.running.front());
      rail.decided.running.pop_front();
      if (code == Code::kOk) done_bytes += bulk.local.length;
      bulks_.ended(bulk, code);
    };
    for (int step = 0; step < 120; ++step) {
      DecidedRail& rail = rails[random.below(2)];
      constexpr std::array kAnswers = {Code::kOk,          Code::kOk,       Code::kOk,
                                       Code::kWouldBlock,  Code::kPeerLost, Code::kWouldBlock,
                                       Code::kUnsupported, Code::kInternal};
      rail.decided.answer = kAnswers[random.below(kAnswers.size())];
      state_ = random.chance(0.8) ? PairState::kReady : PairState::kConnecting;
      const uint64_t action = random.below(24);
      if (action < 8) {
        OwnedBulk& bulk = prepare(rail, random.size_up_to(1u << 20), random.chance(0.5));
        open.push_back(&bulk);
        bulks_.submit(bulk);
      } else if (action < 12) {
        bulks_.submit_waiting();
      } else if (action < 15) {
        bulks_.report_refused();
      } else if (action < 18 && !open.empty()) {
        const size_t chosen = random.below(open.size());
        bulks_.cancel(*open[chosen]);
        open.erase(open.begin() + static_cast<ptrdiff_t>(chosen));
        ++cancelled;
      } else if (action < 23 && !rail.decided.running.empty()) {
        finish_first(rail, random.chance(0.9) ? Code::kOk : Code::kCancelled);
      } else if (action == 23) {
        // The rail fails: owners cancel their bulks, and submit some of them to the other rail.
        DecidedRail& other = &rail == &rails[0] ? rails[1] : rails[0];
        const std::vector<OwnedBulk*> before = open;
        for (OwnedBulk* bulk : before) {
          if (bulk->rail != &rail) continue;
          bulks_.cancel(*bulk);
          ++failed_with_rail;
          if (random.chance(0.5)) {
            bulk->rail = &other;
            bulks_.submit(*bulk);
          } else {
            std::erase(open, bulk);
          }
        }
        bulks_.forget(rail);
        EXPECT_TRUE(rail.decided.running.empty());
        EXPECT_EQ(rail.sending.outstanding(), 0u);
      }
      settle();
    }
    // Everything that is left ends: the endpoints accept what waits, and finish it.
    state_ = PairState::kReady;
    for (DecidedRail& rail : rails) rail.decided.answer = Code::kOk;
    bulks_.submit_waiting();
    bulks_.report_refused();
    for (DecidedRail& rail : rails) {
      while (!rail.decided.running.empty()) finish_first(rail, Code::kOk);
      EXPECT_EQ(rail.sending.outstanding(), 0u);
    }
    settle();
    EXPECT_TRUE(open.empty()) << open.size() << " never ended";
    EXPECT_TRUE(bulks_.empty());
    EXPECT_EQ(rails[0].counters().bulk_bytes + rails[1].counters().bulk_bytes, done_bytes);
  }
  EXPECT_GT(cancelled, 100u);
  EXPECT_GT(failed_with_rail, 100u);
}

}  // namespace
}  // namespace hetcomm
