// Mismatched calls of redistributions, over every transport:
//
//   * an execution that is refused, cancelled or late before any rank has sent data for it ends on
//     its own on all involved ranks, and the next execution works; after data was sent it ends the
//     plan
//   * ranks that have made different plans learn of it within a second; a rank that has made none,
//     or another plan, is named at the deadline, and may still make the plan
//   * labels that differ end with MISMATCH on both ranks, with both labels
//   * executions can run in groups, and those of different plans and collective operations in any
//     order
//   * pending, drain, cancel, facts, and the log line about a rank that does not call
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/system/clock.h"
#include "tests/conformance/capi/job.h"

namespace hetcomm_test {
namespace {

std::vector<CapiCase> cases() {
  std::vector<CapiCase> few;
  for (CapiCase& each : plain_cases()) {
    if (!each.alone()) few.push_back(std::move(each));
  }
  return few;
}

// A whole tensor of |elements| words that moves from one rank to other ranks.
struct Way {
  uint64_t elements = 1000;
  int32_t from = 0;
  std::vector<int32_t> to = {1};
};

struct Wish {
  uint64_t tag = 0;
  uint32_t in_flight = 1;
  uint64_t slice_bytes = 0;
  hetcomm_communicator_t* communicator = nullptr;  // null: the member's own
};

hetcomm_layout_t* layout_on(uint64_t elements, const std::vector<int32_t>& ranks) {
  const hetcomm_placement_t replicate{HETCOMM_PLACEMENT_REPLICATE, 0, 0, nullptr};
  const uint64_t axis = ranks.size();
  hetcomm_layout_t* layout = nullptr;
  EXPECT_EQ(
      hetcomm_layout_from_mesh(1, &elements, 1, &axis, ranks.data(), &replicate, nullptr, &layout),
      HETCOMM_OK)
      << hetcomm_last_error();
  return layout;
}

// This rank's share of a plan that moves one tensor for each of |ways|, with memory for it.
class Moves {
 public:
  Moves(Member& me, std::vector<Way> ways, const Wish& wish = {})
      : me_(me), ways_(std::move(ways)) {
    hetcomm_reshard_options_t options{};
    options.struct_size = sizeof(options);
    // The strategy sends a message from each holder to each receiver, whatever the links are like.
    options.strategy = HETCOMM_STRATEGY_DIRECT;
    options.tag = wish.tag;
    options.in_flight = wish.in_flight;
    options.slice_bytes = wish.slice_bytes;
    std::vector<hetcomm_reshard_tensor_t> tensors;
    for (const Way& way : ways_) {
      tensors.push_back({layout_on(way.elements, {way.from}), layout_on(way.elements, way.to),
                         HETCOMM_UINT32, HETCOMM_UINT32});
    }
    hetcomm_communicator_t* const communicator =
        wish.communicator == nullptr ? me.communicator() : wish.communicator;
    EXPECT_EQ(
        hetcomm_reshard_create(communicator, tensors.data(), tensors.size(), &options, &plan_),
        HETCOMM_OK)
        << hetcomm_last_error();
    for (const hetcomm_reshard_tensor_t& tensor : tensors) {
      EXPECT_EQ(hetcomm_layout_destroy(const_cast<hetcomm_layout_t*>(tensor.source)), HETCOMM_OK);
      EXPECT_EQ(hetcomm_layout_destroy(const_cast<hetcomm_layout_t*>(tensor.destination)),
                HETCOMM_OK);
    }
  }
  Moves(const Moves&) = delete;
  Moves& operator=(const Moves&) = delete;
  ~Moves() { EXPECT_EQ(hetcomm_reshard_destroy(plan_), HETCOMM_OK) << hetcomm_last_error(); }
  hetcomm_reshard_t* plan() const { return plan_; }

  // The values that one execution sends and receives on this rank.
  struct Values {
    std::vector<std::vector<uint32_t>> sent;
    std::vector<std::vector<uint32_t>> got;
    std::vector<hetcomm_buffer_t> from;
    std::vector<hetcomm_buffer_t> to;
  };
  Values values(uint32_t salt) const {
    Values made;
    for (size_t i = 0; i < ways_.size(); ++i) {
      const bool receives =
          std::find(ways_[i].to.begin(), ways_[i].to.end(), me_.rank()) != ways_[i].to.end();
      made.sent.emplace_back(me_.rank() == ways_[i].from ? ways_[i].elements : 0, word(i, salt));
      made.got.emplace_back(receives ? ways_[i].elements : 0, 0);
    }
    for (size_t i = 0; i < ways_.size(); ++i) {
      made.from.push_back(hetcomm_buffer_host(made.sent[i].data(), made.sent[i].size() * 4));
      made.to.push_back(hetcomm_buffer_host(made.got[i].data(), made.got[i].size() * 4));
    }
    return made;
  }
  static void expect_arrived(const Values& values, uint32_t salt) {
    for (size_t i = 0; i < values.got.size(); ++i) {
      EXPECT_TRUE(std::all_of(values.got[i].begin(), values.got[i].end(),
                              [&](uint32_t each) { return each == word(i, salt); }))
          << "tensor " << i << " of execution " << salt;
    }
  }
  hetcomm_request_t* start(Values& values, const hetcomm_operation_options_t& options) const {
    hetcomm_request_t* request = nullptr;
    EXPECT_EQ(
        hetcomm_reshard_start(plan_, values.from.data(), values.to.data(), &options, &request),
        HETCOMM_OK)
        << hetcomm_last_error();
    return request;
  }
  Outcome execute(Values& values, const hetcomm_operation_options_t& options) const {
    return finish(start(values, options));
  }
  Outcome execute(uint32_t salt = 1, uint64_t timeout_ns = 0) const {
    Values own = values(salt);
    const Outcome outcome = execute(own, with_timeout(timeout_ns));
    if (outcome.status == HETCOMM_OK) expect_arrived(own, salt);
    return outcome;
  }
  void expect_works(uint32_t salt = 1) const {
    const Outcome outcome = execute(salt);
    EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
  }

 private:
  static uint32_t word(size_t tensor, uint32_t salt) {
    return 7 + 1000 * salt + static_cast<uint32_t>(tensor);
  }
  Member& me_;
  std::vector<Way> ways_;
  hetcomm_reshard_t* plan_ = nullptr;
};

hetcomm_operation_options_t labelled(uint64_t step, uint64_t micro_batch) {
  hetcomm_operation_options_t options = with_timeout(0);
  options.step = step;
  options.micro_batch = micro_batch;
  return options;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Waits until this rank has received all earlier messages from other ranks, as messages keep their
// order.
void hear(Member& me) {
  std::vector<hetcomm_request_t*> requests;
  uint64_t word = 0;
  std::vector<uint64_t> words(static_cast<size_t>(me.size()));
  for (int32_t rank = 0; rank < me.size(); ++rank) {
    if (rank == me.rank()) continue;
    requests.push_back(me.send(rank, 99, &word, sizeof(word)));
    requests.push_back(me.recv(rank, 99, &words[static_cast<size_t>(rank)], sizeof(word)));
  }
  finish_all(requests);
}

class ReshardCalls : public CapiTest {};

// --- executions that end on their own ---------------------------------------------

TEST_P(ReshardCalls, RefusalEndsOnlyThatExecutionOnAllRanks) {
  run(2, [](Member& me) {
    for (const int32_t refuses : {0, 1}) {
      for (const bool before : {false, true}) {
        Moves moves(me, {{}, {.from = 1, .to = {0}}});
        moves.expect_works(1);
        if (me.rank() == refuses) {
          if (!before) me.meet();
          EXPECT_EQ(hetcomm_reshard_refuse(moves.plan(), "another shape"), HETCOMM_OK);
          if (before) me.meet();
        } else {
          if (before) me.meet();
          Moves::Values values = moves.values(2);
          hetcomm_request_t* const request = moves.start(values, with_timeout(0));
          if (!before) me.meet();
          const uint64_t start_ns = hetcomm::now_ns();
          const Outcome outcome = finish(request);
          EXPECT_LT(hetcomm::now_ns() - start_ns, 5 * kSec);
          EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
          EXPECT_TRUE(has(outcome.text, "another shape")) << outcome.text;
          EXPECT_TRUE(has(outcome.text, "rank " + std::to_string(refuses))) << outcome.text;
        }
        moves.expect_works(3);
        me.meet();
      }
    }
  });
}

TEST_P(ReshardCalls, ExecutionRefusedOnAllRanksHasNoEffect) {
  run(2, [](Member& me) {
    Moves moves(me, {{}});
    for (uint32_t round = 0; round < 5; ++round) {
      EXPECT_EQ(hetcomm_reshard_refuse(moves.plan(), nullptr), HETCOMM_OK);
      EXPECT_EQ(hetcomm_reshard_refuse(moves.plan(), "no"), HETCOMM_OK);
      moves.expect_works(round);
    }
    me.meet();
  });
}

// A plan has many messages between two ranks, and the other rank does not call.
TEST_P(ReshardCalls, ConsecutiveRefusalsEndOnlyThoseExecutions) {
  run(2, [](Member& me) {
    for (const int32_t refuses : {0, 1}) {
      for (const bool one_is_under_way : {false, true}) {
        const std::vector<Way> ways(400, Way{.elements = 100});
        Moves moves(me, ways, {.in_flight = 2, .slice_bytes = 400});
        moves.expect_works(1);
        Moves::Values values = moves.values(2);
        hetcomm_request_t* under_way = nullptr;
        if (me.rank() == refuses) {
          if (one_is_under_way) under_way = moves.start(values, with_timeout(0));
          for (int i = 0; i < 30; ++i) {
            EXPECT_EQ(hetcomm_reshard_refuse(moves.plan(), "no"), HETCOMM_OK);
          }
          hear(me);
        } else {
          hear(me);
          if (one_is_under_way) under_way = moves.start(values, with_timeout(0));
        }
        if (one_is_under_way) {
          const Outcome outcome = finish(under_way);
          EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
          Moves::expect_arrived(values, 2);
        }
        for (uint32_t i = 0; i < 30 && me.rank() != refuses; ++i) {
          EXPECT_EQ(moves.execute(3).status, HETCOMM_MISMATCH);
        }
        moves.expect_works(4);
        me.meet();
      }
    }
  });
}

// One rank is thousands of executions ahead of the other rank, and starts one more.
TEST_P(ReshardCalls, ThousandsOfEarlyRefusalsEndOnlyThoseExecutions) {
  constexpr uint32_t kRefused = 6000;
  run(2, [](Member& me) {
    for (const int32_t refuses : {0, 1}) {
      for (const bool is_made : {false, true}) {
        std::unique_ptr<Moves> moves;
        if (is_made || me.rank() == refuses)
          moves = std::make_unique<Moves>(me, std::vector{Way{}});
        if (me.rank() == refuses) {
          for (uint32_t i = 0; i < kRefused; ++i) {
            ASSERT_EQ(hetcomm_reshard_refuse(moves->plan(), "no"), HETCOMM_OK);
          }
          Moves::Values values = moves->values(5);
          hetcomm_request_t* const request = moves->start(values, with_timeout(0));
          hear(me);
          const Outcome outcome = finish(request);
          EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
          Moves::expect_arrived(values, 5);
        } else {
          hear(me);
          if (!is_made) moves = std::make_unique<Moves>(me, std::vector{Way{}});
          for (uint32_t i = 0; i < kRefused; ++i) {
            ASSERT_EQ(moves->execute(3).status, HETCOMM_MISMATCH) << i;
          }
          moves->expect_works(5);
        }
        me.meet();
      }
    }
  });
}

// The number of refusals is bounded, and no rank is lost.
TEST_P(ReshardCalls, TooManyRefusalsEndThePlan) {
  run(2, [](Member& me) {
    for (const int32_t refuses : {0, 1}) {
      Moves moves(me, {{}});
      Outcome outcome{};
      if (me.rank() == refuses) {
        for (uint32_t i = 0; i < 10'000; ++i) {
          ASSERT_EQ(hetcomm_reshard_refuse(moves.plan(), "no"), HETCOMM_OK);
        }
        outcome = moves.execute();
        EXPECT_EQ(outcome.status, HETCOMM_BUSY) << outcome.text;
        hear(me);
      } else {
        hear(me);
        // The first executions end by the refusals that the other rank was able to report.
        uint32_t ended = 0;
        do {
          outcome = moves.execute();
        } while (outcome.status == HETCOMM_MISMATCH && ++ended < 10'000);
        EXPECT_EQ(ended, 8192u);
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
      }
      EXPECT_TRUE(has(outcome.text, "8192 in front of it were given up")) << outcome.text;
      EXPECT_TRUE(has(outcome.text, "rank " + std::to_string(refuses))) << outcome.text;
      me.meet();
    }
  });
}

// A queue and a redistribution with one tag, both from rank 0 to rank 1.
class Both {
 public:
  Both(Member& me, bool queue_first) : me_(me) {
    for (const bool is_queue : {queue_first, !queue_first}) {
      if (is_queue) {
        open_queue();
      } else {
        moves_ = std::make_unique<Moves>(me, std::vector{Way{}}, Wish{.tag = kTag});
      }
    }
  }
  Both(const Both&) = delete;
  Both& operator=(const Both&) = delete;
  ~Both() { EXPECT_EQ(hetcomm_queue_destroy(queue_), HETCOMM_OK); }

  void expect_to_work() {
    for (uint64_t i = 1; i <= 3; ++i) {
      uint64_t item = me_.rank() == 0 ? i : 0;
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(&item, sizeof(item));
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(me_.rank() == 0 ? hetcomm_queue_push(queue_, buffer, nullptr, &request)
                                : hetcomm_queue_pull(queue_, buffer, nullptr, &request),
                HETCOMM_OK);
      moves_->expect_works(static_cast<uint32_t>(i));
      const Outcome outcome = finish(request);
      ASSERT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      EXPECT_EQ(item, i);
    }
    me_.meet();
  }

 private:
  static constexpr uint64_t kTag = 7;

  void open_queue() {
    const hetcomm_queue_options_t options{.struct_size = sizeof(options),
                                          .tag = kTag,
                                          .max_item_bytes = 8,
                                          .depth = 1,
                                          .weight = 0,
                                          .max_bytes_per_second = 0};
    EXPECT_EQ(hetcomm_queue_create(me_.communicator(), 1 - me_.rank(),
                                   me_.rank() == 0 ? HETCOMM_QUEUE_PUSH : HETCOMM_QUEUE_PULL,
                                   &options, &queue_),
              HETCOMM_OK)
        << hetcomm_last_error();
  }

  Member& me_;
  hetcomm_queue_t* queue_ = nullptr;
  std::unique_ptr<Moves> moves_;
};

CapiCase with_thread(CapiCase of) {
  of.thread_progress = true;  // a queue needs it
  return of;
}

// The ranks open both in different orders.
TEST_P(ReshardCalls, QueueAndRedistributionCanShareATag) {
  run_job(with_thread(GetParam()), 2,
          [](Member& me) { Both(me, /*queue_first=*/me.rank() == 0).expect_to_work(); });
}

// A message behind the openings shows that they have arrived.
TEST_P(ReshardCalls, QueueWithASharedTagWorksIfThePeerOpensFirst) {
  run_job(with_thread(GetParam()), 2, [](Member& me) {
    for (const bool queue_first : {false, true}) {
      uint64_t token = 0;
      if (me.rank() == 1) {
        ASSERT_EQ(finish(me.recv(0, 9, &token, sizeof(token))).status, HETCOMM_OK);
      }
      Both both(me, queue_first);
      if (me.rank() == 0) {
        ASSERT_EQ(finish(me.send(1, 9, &token, sizeof(token))).status, HETCOMM_OK);
      }
      both.expect_to_work();
    }
  });
}

// Other executions in progress continue in order.
TEST_P(ReshardCalls, CancelledExecutionDoesNotAffectTheOthers) {
  run(2, [](Member& me) {
    for (const int32_t cancels : {0, 1}) {
      Moves moves(me, {{.elements = 100'000}}, {.in_flight = 4, .slice_bytes = 64'000});
      std::vector<Moves::Values> values;
      for (uint32_t i = 0; i < 4; ++i) values.push_back(moves.values(i));
      std::vector<hetcomm_request_t*> requests;
      if (me.rank() != cancels) hear(me);
      for (Moves::Values& each : values) requests.push_back(moves.start(each, with_timeout(0)));
      if (me.rank() == cancels) {
        EXPECT_EQ(hetcomm_request_cancel(requests[1]), HETCOMM_OK);
        EXPECT_EQ(hetcomm_request_cancel(requests[2]), HETCOMM_OK);
        hear(me);
      }
      for (uint32_t i = 0; i < 4; ++i) {
        const Outcome outcome = finish(requests[i]);
        const bool ends = i == 1 || i == 2;
        EXPECT_EQ(outcome.status, !ends                  ? HETCOMM_OK
                                  : me.rank() == cancels ? HETCOMM_CANCELLED
                                                         : HETCOMM_ABORTED)
            << i << ": " << outcome.text;
        if (!ends) Moves::expect_arrived(values[i], i);
        if (ends && me.rank() != cancels) {
          EXPECT_TRUE(has(outcome.text, "rank " + std::to_string(cancels))) << outcome.text;
        }
      }
      moves.expect_works(9);
      me.meet();
    }
  });
}

TEST_P(ReshardCalls, ExecutionPastItsDeadlineEndsAndTheNextOneSucceeds) {
  run(2, [](Member& me) {
    for (const int32_t waits : {0, 1}) {
      Moves moves(me, {{.elements = 50'000}});
      for (uint32_t round = 0; round < 3; ++round) {
        if (me.rank() == waits) {
          const Outcome outcome = moves.execute(1, 100 * kMs);
          EXPECT_EQ(outcome.status, HETCOMM_TIMED_OUT) << outcome.text;
          hear(me);
        } else {
          hear(me);
          const Outcome outcome = moves.execute(1);
          EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
          EXPECT_TRUE(has(outcome.text, "TIMED_OUT")) << outcome.text;
        }
        moves.expect_works(2 + round);
      }
      me.meet();
    }
  });
}

// Rank 2 exchanges no messages with rank 0, and waits for rank 1.
TEST_P(ReshardCalls, CancelReachesRanksThatExchangeNoMessages) {
  run(3, [](Member& me) {
    Moves moves(me, {{.from = 0, .to = {1}}, {.from = 1, .to = {2}}});
    if (me.rank() == 2) {
      Moves::Values values = moves.values(1);
      hetcomm_request_t* const request = moves.start(values, with_timeout(0));
      me.meet();
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
      EXPECT_TRUE(has(outcome.text, "rank 0")) << outcome.text;
    } else {
      me.meet();
    }
    if (me.rank() == 0) {
      Moves::Values values = moves.values(1);
      hetcomm_request_t* const request = moves.start(values, with_timeout(0));
      EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
    }
    hear(me);
    if (me.rank() == 1) {
      EXPECT_EQ(moves.execute(1).status, HETCOMM_ABORTED);
    }
    for (uint32_t round = 2; round < 5; ++round) moves.expect_works(round);
    me.meet();
  });
}

// Rank 1 already has its data when rank 0 abandons the execution.
TEST_P(ReshardCalls, CancelAfterDataHasMovedEndsThePlan) {
  run(3, [](Member& me) {
    Moves moves(me, {{.from = 0, .to = {1}}, {.from = 0, .to = {2}}});
    if (me.rank() == 0) {
      Moves::Values values = moves.values(1);
      hetcomm_request_t* const request = moves.start(values, with_timeout(0));
      me.meet();  // rank 1 has received its data
      EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
      me.meet();
    } else if (me.rank() == 1) {
      moves.expect_works(1);
      me.meet();
      me.meet();
    } else {
      me.meet();
      me.meet();
      EXPECT_EQ(moves.execute(1).status, HETCOMM_ABORTED);
    }
    me.meet();
    const Outcome outcome = moves.execute(2, 5 * kSec);
    EXPECT_EQ(outcome.status, me.rank() == 0 ? HETCOMM_CANCELLED : HETCOMM_ABORTED) << outcome.text;
    me.meet();
  });
}

// Rank 2 refuses its part before it begins. Rank 1 has data of rank 0 by then, and both go on.
TEST_P(ReshardCalls, RefusalByAnotherRankAfterDataHasMovedEndsThePlan) {
  run(3, [](Member& me) {
    Moves moves(me, {{.from = 0, .to = {1}}, {.from = 0, .to = {2}}, {.from = 1, .to = {2}}});
    Moves::Values values = moves.values(1);
    hetcomm_request_t* request = nullptr;
    if (me.rank() < 2) request = moves.start(values, with_timeout(0));
    if (me.rank() == 1) {
      EXPECT_TRUE(me.until([&] { return std::atomic_ref(values.got[0].back()).load() != 0; }));
    }
    me.meet();
    if (me.rank() == 2) {
      EXPECT_EQ(hetcomm_reshard_refuse(moves.plan(), "another shape"), HETCOMM_OK);
    }
    if (me.rank() < 2) {
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
      EXPECT_TRUE(has(outcome.text, "another shape")) << outcome.text;
    }
    me.meet();
    const Outcome outcome = moves.execute(2, 5 * kSec);
    EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
    EXPECT_TRUE(has(outcome.text, "another shape")) << outcome.text;
    me.meet();
  });
}

// Rank 1 never begins with the second one.
TEST_P(ReshardCalls, FailedExecutionAlsoEndsTheNextOne) {
  run(2, [](Member& me) {
    Moves moves(me, {{}}, {.in_flight = 2});
    Moves::Values values[2] = {moves.values(1), moves.values(2)};
    if (me.rank() == 0) {
      hetcomm_request_t* const first = moves.start(values[0], labelled(3, 1));
      hetcomm_request_t* const second = moves.start(values[1], labelled(3, 2));
      me.meet();
      EXPECT_EQ(finish(first).status, HETCOMM_MISMATCH);
      const Outcome outcome = finish(second, 5 * kSec);
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
    } else {
      me.meet();
      EXPECT_EQ(moves.execute(values[0], labelled(9, 9)).status, HETCOMM_MISMATCH);
    }
    me.meet();
  });
}

// The news of an abort and of a closed track take different ways.
TEST_P(ReshardCalls, AbortReasonSurvivesImmediateDestructionOfThePlan) {
  run(3, [](Member& me) {
    for (int i = 0; i < 10; ++i) {
      hetcomm_communicator_t* own = nullptr;
      ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &own), HETCOMM_OK)
          << hetcomm_last_error();
      {
        const Moves moves(me, {{.from = 0, .to = {1, 2}}}, {.communicator = own});
        moves.expect_works();
        me.meet();  // an abort would end the execution where it has not ended yet
        if (me.rank() == 0) {
          EXPECT_EQ(hetcomm_communicator_abort(own, "the loss is no number"), HETCOMM_OK);
        } else {
          const Outcome outcome = moves.execute(2);
          EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
          EXPECT_TRUE(has(outcome.text, "the loss is no number")) << outcome.text;
        }
      }
      EXPECT_EQ(hetcomm_communicator_destroy(own), HETCOMM_OK) << hetcomm_last_error();
    }
  });
}

// Numbers of channels differ between ranks. An abort of one communicator is not taken for that of
// another one.
TEST_P(ReshardCalls, DestroyedPlanIsNotMistakenForAnUnrelatedAbort) {
  run(3, [](Member& me) {
    hetcomm_communicator_t* few = nullptr;
    hetcomm_communicator_t* all = nullptr;
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), me.rank() == 2 ? HETCOMM_NO_COLOR : 0,
                                         0, &few),
              HETCOMM_OK);
    ASSERT_EQ(hetcomm_communicator_split(me.communicator(), 0, me.rank(), &all), HETCOMM_OK);
    {
      auto moves = std::make_unique<Moves>(me, std::vector<Way>{{.from = 0, .to = {2}}},
                                           Wish{.communicator = all});
      moves->expect_works();
      if (me.rank() == 0) {
        EXPECT_EQ(hetcomm_communicator_abort(few, "of this one only"), HETCOMM_OK);
        moves.reset();
      }
      if (me.rank() == 2) {
        const Outcome outcome = moves->execute(2, 5 * kSec);
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
        EXPECT_TRUE(has(outcome.text, "rank 0 destroyed its plan")) << outcome.text;
      }
      me.meet();
    }
    EXPECT_EQ(hetcomm_communicator_destroy(few), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(hetcomm_communicator_destroy(all), HETCOMM_OK) << hetcomm_last_error();
  });
}

// Rank 2 has moved nothing when it refuses, and rank 0 has sent rank 1's data.
TEST_P(ReshardCalls, RefusalAfterDataWasSentEndsThePlan) {
  run(3, [](Member& me) {
    Moves moves(me, {{.from = 0, .to = {1}}, {.from = 0, .to = {2}}});
    if (me.rank() == 0) {
      Moves::Values values = moves.values(1);
      hetcomm_request_t* const request = moves.start(values, with_timeout(0));
      me.meet();  // rank 1 has received its data
      const Outcome outcome = finish(request);
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
      EXPECT_TRUE(has(outcome.text, "too small")) << outcome.text;
    } else if (me.rank() == 1) {
      moves.expect_works(1);
      me.meet();
    } else {
      me.meet();
      EXPECT_EQ(hetcomm_reshard_refuse(moves.plan(), "too small"), HETCOMM_OK);
    }
    for (int hop = 0; hop < 2; ++hop) hear(me);
    const Outcome outcome = moves.execute(2, 5 * kSec);
    EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
    EXPECT_TRUE(has(outcome.text, "too small")) << outcome.text;
    me.meet();
  });
}

// A random rank abandons a random execution at a random time, by a deadline, a cancel or a refusal.
// All ranks end, and if the plan survives, the other executions are right.
TEST_P(ReshardCalls, ExecutionAbandonedAtARandomTimeEndsOnAllRanks) {
  const uint64_t rounds = std::getenv("HETCOMM_TEST_LONG") != nullptr ? 300 : 6;
  run(3, [rounds](Member& me) {
    for (uint64_t round = 0; round < rounds; ++round) {
      Random shared(round + 1);  // seed shared by all ranks
      const auto victim = static_cast<int32_t>(shared.below(3));
      const auto number = static_cast<uint32_t>(shared.below(6));
      const uint64_t manner = shared.below(3);
      const uint64_t delay_us = shared.below(400);
      Random own(round * 3 + static_cast<uint64_t>(me.rank()) + 100);
      Moves moves(me,
                  {{.elements = 20'000, .from = 0, .to = {1, 2}},
                   {.elements = 5000, .from = 1, .to = {0}},
                   {.elements = 5000, .from = 2, .to = {1}}},
                  {.in_flight = 6, .slice_bytes = 16'000});
      std::vector<Moves::Values> values;
      std::vector<hetcomm_request_t*> requests(6, nullptr);
      for (uint32_t i = 0; i < 6; ++i) values.push_back(moves.values(i));
      for (uint32_t i = 0; i < 6; ++i) {
        usleep(static_cast<useconds_t>(own.below(200)));
        const bool is_it = me.rank() == victim && i == number;
        if (is_it && manner == 0) {
          EXPECT_EQ(hetcomm_reshard_refuse(moves.plan(), "refused"), HETCOMM_OK);
          continue;
        }
        requests[i] =
            moves.start(values[i], with_timeout(is_it && manner == 1 ? delay_us * 1000 + 1 : 0));
        if (is_it && manner == 2) {
          usleep(static_cast<useconds_t>(delay_us));
          EXPECT_EQ(hetcomm_request_cancel(requests[i]), HETCOMM_OK);
        }
      }
      for (uint32_t i = 0; i < 6; ++i) {
        if (requests[i] == nullptr) continue;
        const Outcome outcome = finish(requests[i]);
        EXPECT_EQ(outcome.call, HETCOMM_OK) << "execution " << i << " in round " << round;
        if (outcome.status == HETCOMM_OK) Moves::expect_arrived(values[i], i);
      }
      // News takes three hops: the abandoning rank, ranks that have moved data, and the other
      // ranks.
      for (int hop = 0; hop < 3; ++hop) hear(me);
      // All ranks agree on whether the plan survives.
      const bool goes_on = moves.execute(17, 2 * kSec).status == HETCOMM_OK;
      uint64_t sum = goes_on ? 1 : 0;
      const hetcomm_buffer_t buffer = hetcomm_buffer_host(&sum, sizeof(sum));
      hetcomm_request_t* request = nullptr;
      ASSERT_EQ(hetcomm_allreduce(me.communicator(), buffer, buffer, HETCOMM_UINT64,
                                  HETCOMM_REDUCE_SUM, nullptr, &request),
                HETCOMM_OK);
      ASSERT_EQ(finish(request).status, HETCOMM_OK);
      EXPECT_TRUE(sum == 0 || sum == 3) << sum << " in round " << round;
      me.meet();
    }
  });
}

// --- plans that differ -------------------------------------------------------------

// Runs |body| and returns the time that it took.
template <typename Body>
uint64_t time_of(Body&& body) {
  const uint64_t start_ns = hetcomm::now_ns();
  body();
  return hetcomm::now_ns() - start_ns;
}

TEST_P(ReshardCalls, PlansInOppositeDirectionsAreAMismatch) {
  run(2, [](Member& me) {
    for (const bool both_send : {true, false}) {
      {
        const int32_t from = both_send ? me.rank() : 1 - me.rank();
        Moves moves(me, {{.from = from, .to = {1 - from}}});
        me.meet();
        Outcome outcome;
        const uint64_t took_ns = time_of([&] { outcome = moves.execute(1); });
        EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
        EXPECT_TRUE(has(outcome.text, "has made another plan than rank")) << outcome.text;
        EXPECT_LT(took_ns, 5 * kSec) << "the deadline is at 10 s";
        me.meet();
      }
      hear(me);  // leftovers of the earlier plans are gone
      Moves right(me, {{}});
      right.expect_works();
      me.meet();
    }
  });
}

// A rank that has not started the wrong plan learns of the mismatch as well.
TEST_P(ReshardCalls, LaterExecutionReportsTheEarlierMismatch) {
  run(2, [](Member& me) {
    const int32_t from = me.rank();
    Moves moves(me, {{.from = from, .to = {1 - from}}});
    me.meet();
    if (me.rank() == 0) {
      EXPECT_EQ(moves.execute(1).status, HETCOMM_MISMATCH);
      me.meet();
    } else {
      me.meet();
      EXPECT_EQ(moves.execute(1, 5 * kSec).status, HETCOMM_MISMATCH);
    }
    me.meet();
  });
}

TEST_P(ReshardCalls, ErrorAtTheDeadlineNamesTheMissingPlan) {
  run(2, [](Member& me) {
    {  // another tag
      Moves moves(me, {{}}, {.tag = static_cast<uint64_t>(me.rank())});
      me.meet();
      const Outcome outcome = moves.execute(1, 500 * kMs);
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
      const std::string other = std::to_string(1 - me.rank());
      const std::string own = std::to_string(me.rank());
      EXPECT_TRUE(has(outcome.text, "rank " + other + " has no plan with tag " + own +
                                        " and rank " + own + "; it has tag " + other))
          << outcome.text;
      me.meet();
    }
    me.meet();             // rank 1's plan with tag 1 is gone
    if (me.rank() == 0) {  // rank 1 has no plan
      Moves moves(me, {{}}, {.tag = 5});
      const Outcome outcome = moves.execute(1, 500 * kMs);
      EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
      EXPECT_TRUE(has(outcome.text, "rank 1 has no plan with tag 5 and rank 0; it has none"))
          << outcome.text;
      me.meet();
    } else {
      me.meet();
    }
    {  // rank 1 uses a plan of its own
      Moves moves(me, {{.from = me.rank(), .to = {1}}}, {.tag = 6});
      me.meet();
      const Outcome outcome = moves.execute(1, 500 * kMs);
      EXPECT_EQ(outcome.status, me.rank() == 0 ? HETCOMM_MISMATCH : HETCOMM_OK) << outcome.text;
      if (me.rank() == 0) {
        EXPECT_TRUE(has(outcome.text, "tag 6 with other ranks")) << outcome.text;
      }
      me.meet();
    }
  });
}

TEST_P(ReshardCalls, PlanCreatedLaterMatches) {
  run(2, [](Member& me) {
    for (const int32_t late : {0, 1}) {
      if (me.rank() != late) {
        Moves moves(me, {{}}, {.tag = 3});
        Moves::Values values = moves.values(4);
        hetcomm_request_t* const request = moves.start(values, with_timeout(0));
        me.meet();
        const Outcome outcome = finish(request);
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        Moves::expect_arrived(values, 4);
        // The other rank has the plan, and is late. That is no mismatch.
        EXPECT_EQ(moves.execute(5, 300 * kMs).status, HETCOMM_TIMED_OUT);
        me.meet();
      } else {
        Moves other(me, {{.from = me.rank(), .to = {me.rank()}}}, {.tag = 3});
        me.meet();
        Moves moves(me, {{}}, {.tag = 3});
        moves.expect_works(4);
        me.meet();
      }
    }
  });
}

// One rank has made plans that the other rank made later or never.
TEST_P(ReshardCalls, PlansMatchDespiteUnmatchedEarlierPlans) {
  run(2, [](Member& me) {
    for (uint32_t round = 0; round < 4; ++round) {
      if (me.rank() == static_cast<int32_t>(round % 2)) {
        Moves unused(me, {{.elements = 77 + round}});
        Moves late(me, {{.elements = 5 + round}});
        EXPECT_NE(late.execute(1, 50 * kMs).status, HETCOMM_OK);
      }
      hear(me);
      Moves moves(me, {{}});
      Moves more(me, {{.elements = 300}});
      me.meet();
      more.expect_works(round);
      moves.expect_works(round);
      me.meet();
    }
  });
}

// Rank 1 has moved data of its execution, and gives it up. Rank 2 begins with it only then.
TEST_P(ReshardCalls, LateRankLearnsWhyTheExecutionEnded) {
  run(3, [](Member& me) {
    Moves moves(me, {{.from = 0, .to = {1}}, {.from = 1, .to = {2}}});
    moves.expect_works();
    me.meet();
    Moves::Values values = moves.values(2);
    if (me.rank() == 0) {
      EXPECT_EQ(moves.execute(values, with_timeout(0)).status, HETCOMM_OK);
    }
    hetcomm_request_t* request = nullptr;
    if (me.rank() == 1) {
      request = moves.start(values, with_timeout(0));
      EXPECT_TRUE(me.until([&] { return std::atomic_ref(values.got[0].back()).load() != 0; }));
    }
    me.meet();
    if (me.rank() == 1) {
      EXPECT_EQ(hetcomm_request_cancel(request), HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
    }
    me.meet();
    if (me.rank() == 2) {
      const Outcome outcome = moves.execute(values, with_timeout(0));
      EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
      EXPECT_TRUE(has(outcome.text, "rank 1: CANCELLED: cancelled by the caller")) << outcome.text;
    }
    me.meet();
  });
}

// --- labels ----------------------------------------------------------------------

TEST_P(ReshardCalls, DifferentLabelsAreAMismatchOnBothRanks) {
  run(2, [](Member& me) {
    for (const int32_t from : {0, 1}) {
      for (const bool both : {true, false}) {
        Moves moves(me, {{.from = from, .to = {1 - from}}});
        Moves::Values values = moves.values(1);
        Outcome outcome = moves.execute(values, labelled(3, 1));
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        me.meet();
        // Rank 0 is at micro-batch 2; rank 1 at 4, or without a label.
        const hetcomm_operation_options_t options = me.rank() == 0 ? labelled(3, 2)
                                                    : both         ? labelled(3, 4)
                                                                   : labelled(0, 0);
        outcome = moves.execute(values, options);
        EXPECT_EQ(outcome.status, HETCOMM_MISMATCH) << outcome.text;
        EXPECT_TRUE(has(outcome.text, "step 3, micro-batch 2")) << outcome.text;
        EXPECT_TRUE(has(outcome.text, both ? "step 3, micro-batch 4" : "step 0, micro-batch 0"))
            << outcome.text;
        me.meet();
      }
    }
  });
}

// A message waits for the label of its receiver, but not of one that has destroyed its plan.
TEST_P(ReshardCalls, DestroyedPlanEndsAnExecutionAwaitingItsLabel) {
  run(2, [](Member& me) {
    for (const bool starts_before : {true, false}) {
      std::optional<Moves> moves(std::in_place, me, std::vector<Way>{{}});
      moves->expect_works();
      me.meet();
      if (me.rank() == 0) {
        Moves::Values values = moves->values(2);
        hetcomm_request_t* request = nullptr;
        if (starts_before) request = moves->start(values, labelled(3, 1));
        me.meet();
        me.meet();
        if (!starts_before) request = moves->start(values, labelled(3, 1));
        const Outcome outcome = finish(request);
        EXPECT_EQ(outcome.status, HETCOMM_ABORTED) << outcome.text;
        EXPECT_TRUE(has(outcome.text, "rank 1 destroyed its plan")) << outcome.text;
      } else {
        me.meet();
        moves.reset();
        me.meet();
      }
      me.meet();
    }
  });
}

TEST_P(ReshardCalls, EqualLabelsMatchOverManyExecutions) {
  run(3, [](Member& me) {
    Moves moves(me, {{.elements = 3000, .from = 0, .to = {1, 2}}, {.from = 2, .to = {0}}},
                {.in_flight = 3});
    std::vector<Moves::Values> values;
    std::vector<hetcomm_request_t*> requests;
    for (uint32_t i = 0; i < 3; ++i) values.push_back(moves.values(i));
    for (uint32_t i = 0; i < 60; ++i) {
      if (i >= 3) {
        const Outcome outcome = finish(requests[i - 3]);
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
        Moves::expect_arrived(values[i % 3], i % 3);
        for (auto& each : values[i % 3].got) std::fill(each.begin(), each.end(), 0);
      }
      requests.push_back(moves.start(values[i % 3], labelled(i / 4, i % 4)));
    }
    for (uint32_t i = 57; i < 60; ++i) EXPECT_EQ(finish(requests[i]).status, HETCOMM_OK);
    me.meet();
  });
}

// --- order -------------------------------------------------------------------------

// Ranks start two plans and a collective operation in different orders.
TEST_P(ReshardCalls, PlansAndCollectiveOperationsCanStartInAnyOrder) {
  run(2, [](Member& me) {
    Moves one(me, {{.elements = 100'000}});
    Moves two(me, {{.elements = 100'000, .from = 1, .to = {0}}}, {.tag = 1});
    Moves::Values first = one.values(1);
    Moves::Values second = two.values(2);
    hetcomm_request_t* requests[3] = {};
    uint64_t word = 1;
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(&word, sizeof(word));
    for (int i = 0; i < 3; ++i) {
      const int what = me.rank() == 0 ? i : 2 - i;
      if (what == 0) requests[0] = one.start(first, with_timeout(0));
      if (what == 1) requests[1] = two.start(second, with_timeout(0));
      if (what == 2) {
        EXPECT_EQ(hetcomm_allreduce(me.communicator(), buffer, buffer, HETCOMM_UINT64,
                                    HETCOMM_REDUCE_SUM, nullptr, &requests[2]),
                  HETCOMM_OK);
      }
      me.meet();
    }
    for (hetcomm_request_t* const request : requests) EXPECT_EQ(finish(request).status, HETCOMM_OK);
    EXPECT_EQ(word, 2u);
    Moves::expect_arrived(first, 1);
    Moves::expect_arrived(second, 2);
    me.meet();
  });
}

TEST_P(ReshardCalls, GroupStartsItsExecutions) {
  run(2, [](Member& me) {
    Moves one(me, {{}}, {.in_flight = 2});
    Moves two(me, {{.from = 1, .to = {0}}}, {.tag = 1});
    hetcomm_group_t* group = nullptr;
    ASSERT_EQ(hetcomm_group_create(me.communicator(), &group), HETCOMM_OK);
    hetcomm_operation_options_t options = with_timeout(0);
    options.group = group;
    for (uint32_t round = 0; round < 3; ++round) {
      Moves::Values values[3] = {one.values(1), two.values(2), one.values(3)};
      hetcomm_request_t* requests[3] = {};
      // Rank 0 collects both, and starts them after the execution that it calls next.
      requests[0] =
          one.start(values[me.rank() == 0 ? 2 : 0], me.rank() == 0 ? options : with_timeout(0));
      requests[1] = two.start(values[1], options);
      requests[2] = one.start(values[me.rank() == 0 ? 0 : 2], with_timeout(0));
      EXPECT_EQ(hetcomm_group_start(group), HETCOMM_OK);
      for (hetcomm_request_t* const request : requests) {
        const Outcome outcome = finish(request);
        EXPECT_EQ(outcome.status, HETCOMM_OK) << outcome.text;
      }
      Moves::expect_arrived(values[0], 1);
      Moves::expect_arrived(values[1], 2);
      Moves::expect_arrived(values[2], 3);
    }
    // An execution that is collected and never started does not count.
    Moves::Values unused = one.values(0);
    hetcomm_request_t* const never = one.start(unused, options);
    hetcomm_group_destroy(group);
    EXPECT_EQ(finish(never).status, HETCOMM_CANCELLED);
    one.expect_works(7);
    me.meet();
  });
}

// --- pending, drain, cancel, facts -----------------------------------------------------

TEST_P(ReshardCalls, PendingDrainAndCancelCoverAllExecutions) {
  run(2, [](Member& me) {
    Moves moves(me, {{}}, {.in_flight = 3});
    uint32_t count = 7;
    EXPECT_EQ(hetcomm_reshard_pending(moves.plan(), &count), HETCOMM_OK);
    EXPECT_EQ(count, 0u);
    EXPECT_EQ(hetcomm_reshard_drain(moves.plan(), 1), HETCOMM_OK);
    EXPECT_EQ(hetcomm_reshard_cancel(moves.plan()), HETCOMM_OK);
    std::vector<Moves::Values> values;
    for (uint32_t i = 0; i < 3; ++i) values.push_back(moves.values(i));
    std::vector<hetcomm_request_t*> requests;
    if (me.rank() == 0) {
      for (Moves::Values& each : values) requests.push_back(moves.start(each, with_timeout(0)));
      EXPECT_EQ(hetcomm_reshard_pending(moves.plan(), &count), HETCOMM_OK);
      EXPECT_EQ(count, 3u);
      EXPECT_EQ(hetcomm_reshard_drain(moves.plan(), 20 * kMs), HETCOMM_TIMED_OUT);
      EXPECT_EQ(hetcomm_reshard_destroy(moves.plan()), HETCOMM_BUSY);
      EXPECT_EQ(hetcomm_reshard_cancel(moves.plan()), HETCOMM_OK);
      EXPECT_EQ(hetcomm_reshard_drain(moves.plan(), 0), HETCOMM_OK);
      for (hetcomm_request_t* const request : requests) {
        EXPECT_EQ(finish(request).status, HETCOMM_CANCELLED);
      }
      hear(me);
    } else {
      hear(me);
      for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(moves.execute(1).status, HETCOMM_ABORTED);
    }
    // The next three executions are drained. One of them is released before that.
    requests.clear();
    for (Moves::Values& each : values) requests.push_back(moves.start(each, with_timeout(0)));
    EXPECT_EQ(hetcomm_request_destroy(requests[1]), HETCOMM_OK);
    EXPECT_EQ(hetcomm_reshard_drain(moves.plan(), 0), HETCOMM_OK);
    EXPECT_EQ(hetcomm_reshard_pending(moves.plan(), &count), HETCOMM_OK);
    EXPECT_EQ(count, 0u);
    for (uint32_t i = 0; i < 3; ++i) Moves::expect_arrived(values[i], i);
    EXPECT_EQ(finish(requests[0]).status, HETCOMM_OK);
    EXPECT_EQ(finish(requests[2]).status, HETCOMM_OK);
    me.meet();
  });
}

TEST_P(ReshardCalls, FactsMatchThePlan) {
  run(2, [](Member& me) {
    Moves moves(me, {{.elements = 100'000}, {.elements = 5, .from = 1, .to = {0}}},
                {.slice_bytes = 100'000});
    hetcomm_reshard_facts_t facts{};
    EXPECT_EQ(hetcomm_reshard_facts(moves.plan(), &facts), HETCOMM_INVALID_ARGUMENT);
    facts.struct_size = sizeof(facts);
    ASSERT_EQ(hetcomm_reshard_facts(moves.plan(), &facts), HETCOMM_OK) << hetcomm_last_error();
    EXPECT_EQ(facts.strategy, HETCOMM_STRATEGY_DIRECT);
    EXPECT_EQ(facts.is_strategy_of_all, 1);
    EXPECT_EQ(facts.bytes_sent, me.rank() == 0 ? 400'000u : 20u);
    EXPECT_EQ(facts.bytes_received, me.rank() == 0 ? 20u : 400'000u);
    EXPECT_GE(me.rank() == 0 ? facts.messages_sent : facts.messages_received, 2u);
    EXPECT_EQ(me.rank() == 0 ? facts.messages_received : facts.messages_sent, 1u);
    EXPECT_EQ(facts.scratch_bytes, 0u);
    me.meet();
  });
}

// Half of the bytes take at least half of the total time.
TEST_P(ReshardCalls, RateLimitDelaysData) {
  run(2, [](Member& me) {
    hetcomm_reshard_options_t options{};
    options.struct_size = sizeof(options);
    options.max_bytes_per_second = 4'000'000;
    std::vector<uint32_t> words(500'000, 5);
    hetcomm_layout_t* from = layout_on(words.size(), {0});
    hetcomm_layout_t* to = layout_on(words.size(), {1});
    const hetcomm_reshard_tensor_t tensor{from, to, HETCOMM_UINT32, HETCOMM_UINT32};
    hetcomm_reshard_t* plan = nullptr;
    options.weight = HETCOMM_QUEUE_MAX_WEIGHT + 1;
    EXPECT_EQ(hetcomm_reshard_create(me.communicator(), &tensor, 1, &options, &plan),
              HETCOMM_OUT_OF_RANGE);
    options.weight = 2;
    ASSERT_EQ(hetcomm_reshard_create(me.communicator(), &tensor, 1, &options, &plan), HETCOMM_OK);
    const hetcomm_buffer_t buffer = hetcomm_buffer_host(words.data(), words.size() * 4);
    me.meet();
    hetcomm_request_t* request = nullptr;
    const uint64_t took_ns = time_of([&] {
      ASSERT_EQ(hetcomm_reshard_start(plan, &buffer, &buffer, nullptr, &request), HETCOMM_OK);
      EXPECT_EQ(finish(request).status, HETCOMM_OK);
    });
    // 2 MB take 0.5 s, minus the 20 ms that may be sent immediately.
    EXPECT_GE(took_ns, 400 * kMs);
    me.meet();
    EXPECT_EQ(hetcomm_reshard_destroy(plan), HETCOMM_OK);
    EXPECT_EQ(hetcomm_layout_destroy(from), HETCOMM_OK);
    EXPECT_EQ(hetcomm_layout_destroy(to), HETCOMM_OK);
    me.meet();
  });
}

std::atomic<int> lines_about_waiting{0};

// Rank 1 does not call for a while. The log reports this once.
TEST(ReshardCallsLog, WaitForThisRanksNextCallIsLoggedOnce) {
  for (CapiCase plain : cases()) {
    if (plain.thread_progress || plain.processes) continue;
    plain.settings += "LOG=info;";
    plain.log = [](void* rank, int32_t /*level*/, const char* line) {
      if (*static_cast<const int32_t*>(rank) != 1) return;
      if (std::strstr(line, "for this rank's next call") != nullptr) ++lines_about_waiting;
    };
    lines_about_waiting = 0;
    run_job(plain, 2, [](Member& me) {
      Moves moves(me, {{.elements = 100'000}});
      moves.expect_works(1);
      EXPECT_EQ(lines_about_waiting, 0);
      me.meet();
      if (me.rank() == 1) {
        Moves::Values values = moves.values(2);
        hetcomm_request_t* const request = moves.start(values, with_timeout(0));
        sleep(1);
        usleep(200'000);
        EXPECT_EQ(finish(request).status, HETCOMM_OK);
      } else {
        moves.expect_works(2);  // it stays inside a call the whole time
      }
      me.meet();
    });
    EXPECT_EQ(lines_about_waiting, 1);
    return;
  }
  FAIL() << "no case without the progress thread";
}

INSTANTIATE_TEST_SUITE_P(Over, ReshardCalls, ::testing::ValuesIn(cases()), capi_case_name);

}  // namespace
}  // namespace hetcomm_test
