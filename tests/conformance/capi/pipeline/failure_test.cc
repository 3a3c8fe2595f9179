// Pipelines that fail, over every transport:
//
//   * a callback that fails or throws, a cancel, a time limit, a lost rank and different step
//     numbers end the run on all ranks, with the rank, the step and the reason; the caller's
//     communicator and a new pipeline still work, after a loss in a rebuilt communicator
//   * a failed run counts its waits, and keeps the last trace if it performed no step
//   * a run without a time limit of its own waits for the last rank
//   * plans that are wrong, that differ, or that lack a callback are refused on all ranks, and
//     nothing runs
//   * calls of the pipeline inside a callback are refused, or do what they say
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "pipeline/plan/plan_json.h"
#include "pipeline/schedule/text.h"
#include "tests/conformance/capi/pipeline/model.h"
#include "tests/conformance/capi/pipeline/own_pipeline.h"
#include "tests/support/pipeline_plans.h"

namespace hetcomm_test {
namespace {

using hetcomm::test::on_ranks;
using hetcomm::test::plan_of;
using pipeline::PipelinePlan;

class PipelineFailures : public CapiTest {};

INSTANTIATE_TEST_SUITE_P(All, PipelineFailures, ::testing::ValuesIn(pipeline_cases()),
                         capi_case_name);

const PipelinePlan& three_stages() {
  static const PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "1f1b", 6);
  return plan;
}

// Runs a pipeline of three ranks, in which rank 1 does |what| in its backward step for micro-batch
// 2. Then all ranks have to go on with a new pipeline. Returns how the failed run ended.
Ran fail_in_rank_one(
    Member& me, const std::function<hetcomm_status_t(const hetcomm_pipeline_action_t&)>& what) {
  Ran ran;
  const std::string json = pipeline::to_json(three_stages());
  {
    Model model(three_stages(), static_cast<uint32_t>(me.rank()));
    if (me.rank() == 1) {
      model.before = [&](const hetcomm_pipeline_action_t& action) {
        const bool is_it =
            action.kind == HETCOMM_PIPELINE_BACKWARD && action.micro_batch == 2 && action.step == 1;
        return is_it ? what(action) : HETCOMM_OK;
      };
    }
    Made made = create(me, json, model);
    EXPECT_EQ(made.status, HETCOMM_OK) << made.text;
    if (made.handle == nullptr) return ran;
    EXPECT_EQ(run_once(made.handle, 0).status, HETCOMM_OK);
    ran = run_once(made.handle, 1);
    const Ran again = run_once(made.handle, 2);
    EXPECT_EQ(again.status, ran.status);
    EXPECT_EQ(again.text, ran.text);
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  }
  EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK)
      << hetcomm_last_error();
  Model model(three_stages(), static_cast<uint32_t>(me.rank()));
  Made made = create(me, json, model);
  EXPECT_EQ(made.status, HETCOMM_OK) << made.text;
  const Ran next = run_once(made.handle, 3);
  EXPECT_EQ(next.status, HETCOMM_OK) << next.text;
  EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  return ran;
}

TEST_P(PipelineFailures, FailingCallbackEndsTheRunOnAllRanks) {
  run(3, [](Member& me) {
    const Ran ran = fail_in_rank_one(me, [](const hetcomm_pipeline_action_t& action) {
      snprintf(action.reason, action.reason_capacity, "the loss is no number");
      return HETCOMM_DEVICE_LOST;
    });
    EXPECT_EQ(ran.status, me.rank() == 1 ? HETCOMM_DEVICE_LOST : HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "the loss is no number")) << ran.text;
    EXPECT_TRUE(has(ran.text, "rank 1")) << ran.text;
    EXPECT_TRUE(has(ran.text, "backward step of micro-batch 2 in stage 1")) << ran.text;
  });
}

TEST_P(PipelineFailures, FailingCallbackWithoutAReasonIsReportedByStatus) {
  run(3, [](Member& me) {
    const Ran ran = fail_in_rank_one(
        me, [](const hetcomm_pipeline_action_t&) { return hetcomm_status_t{12345}; });
    EXPECT_EQ(ran.status, me.rank() == 1 ? HETCOMM_INTERNAL : HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "12345")) << ran.text;
    const Ran other = fail_in_rank_one(
        me, [](const hetcomm_pipeline_action_t&) { return hetcomm_status_t{-12345}; });
    EXPECT_EQ(other.status, me.rank() == 1 ? HETCOMM_INTERNAL : HETCOMM_ABORTED) << other.text;
    EXPECT_TRUE(has(other.text, "-12345")) << other.text;
  });
}

// A run that returns one of these has not begun, and could be called again.
TEST_P(PipelineFailures, RefusalStatusFromACallbackBecomesInternal) {
  for (const hetcomm_status_t status : {HETCOMM_INVALID_ARGUMENT, HETCOMM_BUSY}) {
    run(3, [&](Member& me) {
      const Ran ran =
          fail_in_rank_one(me, [&](const hetcomm_pipeline_action_t&) { return status; });
      EXPECT_EQ(ran.status, me.rank() == 1 ? HETCOMM_INTERNAL : HETCOMM_ABORTED) << ran.text;
      EXPECT_TRUE(has(ran.text, hetcomm_status_name(status))) << ran.text;
    });
  }
}

TEST_P(PipelineFailures, ThrowingCallbackEndsTheRunOnAllRanks) {
  run(3, [](Member& me) {
    const Ran ran = fail_in_rank_one(me, [](const hetcomm_pipeline_action_t&) -> hetcomm_status_t {
      throw std::runtime_error("the trainer's own");
    });
    EXPECT_EQ(ran.status, me.rank() == 1 ? HETCOMM_INTERNAL : HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "the trainer's own")) << ran.text;
  });
}

TEST_P(PipelineFailures, CancelEndsTheRunOnAllRanks) {
  run(3, [](Member& me) {
    Model model(three_stages(), static_cast<uint32_t>(me.rank()));
    std::atomic<bool> is_there{false};
    std::atomic<bool> is_cancelled{false};
    if (me.rank() == 1) {
      model.before = [&](const hetcomm_pipeline_action_t& action) {
        if (action.micro_batch == 1) {
          is_there = true;
          while (!is_cancelled) std::this_thread::yield();
        }
        return HETCOMM_OK;
      };
    }
    const Made made = create_together(me, pipeline::to_json(three_stages()), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    std::thread other([&] {
      if (me.rank() != 1) return;
      while (!is_there) std::this_thread::yield();
      EXPECT_EQ(hetcomm_pipeline_cancel(made.handle, "no time left"), HETCOMM_OK);
      is_cancelled = true;
    });
    const Ran ran = run_once(made.handle);
    other.join();
    EXPECT_EQ(ran.status, me.rank() == 1 ? HETCOMM_CANCELLED : HETCOMM_ABORTED) << ran.text;
    if (me.rank() != 1) {
      EXPECT_TRUE(has(ran.text, "no time left")) << ran.text;
    }
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
    EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
  });
}

TEST_P(PipelineFailures, CancelBetweenRunsEndsTheNextOne) {
  run(3, [](Member& me) {
    Model model(three_stages(), static_cast<uint32_t>(me.rank()));
    const Made made = create_together(me, pipeline::to_json(three_stages()), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    ASSERT_EQ(run_once(made.handle).status, HETCOMM_OK);
    // A rank whose run has ended could still end those of others.
    EXPECT_TRUE(me.meet());
    if (me.rank() == 2) {
      EXPECT_EQ(hetcomm_pipeline_cancel(made.handle, nullptr), HETCOMM_OK);
    }
    const Ran ran = run_once(made.handle, 1);
    EXPECT_EQ(ran.status, me.rank() == 2 ? HETCOMM_CANCELLED : HETCOMM_ABORTED) << ran.text;
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

TEST_P(PipelineFailures, TimeLimitEndsTheRunOnAllRanks) {
  run(3, [](Member& me) {
    Model model(three_stages(), static_cast<uint32_t>(me.rank()));
    if (me.rank() == 2) {
      model.before = [&](const hetcomm_pipeline_action_t& action) {
        if (action.micro_batch == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
        return HETCOMM_OK;
      };
    }
    const Made made = create_together(me, pipeline::to_json(three_stages()), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    const Ran ran = run_once(made.handle, 0, 200 * kMs);
    EXPECT_TRUE(ran.status == HETCOMM_TIMED_OUT || ran.status == HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "TIMED_OUT") || ran.status == HETCOMM_TIMED_OUT) << ran.text;
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
    EXPECT_EQ(hetcomm_communicator_barrier(me.communicator(), kPatienceNs), HETCOMM_OK);
  });
}

// Sends a byte to rank |peer|, or receives one from it, over the caller's communicator.
void pass_byte(Member& me, int32_t peer, bool sends) {
  std::byte byte{};
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(&byte, 1);
  hetcomm_request_t* request = nullptr;
  hetcomm_completion_t completion{};
  ASSERT_EQ(sends ? hetcomm_send(me.communicator(), peer, 77, buffer, nullptr, &request)
                  : hetcomm_recv(me.communicator(), peer, 77, HETCOMM_EXACT_TAG, buffer, nullptr,
                                 &request),
            HETCOMM_OK);
  ASSERT_EQ(hetcomm_request_wait(request, kPatienceNs, &completion), HETCOMM_OK);
  EXPECT_EQ(completion.status, HETCOMM_OK) << completion.text;
}

// Rank 0 fails in its first step when the others wait for its data.
TEST_P(PipelineFailures, FactsIncludeWaitsOfARunThatFailsBeforeItsFirstStep) {
  run(3, [](Member& me) {
    Trained own(me, three_stages());
    ASSERT_EQ(own.run(7).status, HETCOMM_OK);
    const auto trace = [&] {
      std::string text(1 << 16, ' ');
      size_t size = 0;
      EXPECT_EQ(hetcomm_pipeline_trace(own.handle, HETCOMM_PIPELINE_TRACE_JSON, text.size(),
                                       text.data(), &size),
                HETCOMM_OK)
          << hetcomm_pipeline_last_error();
      return text.substr(0, size);
    };
    const auto waited_ns = [&] {
      hetcomm_pipeline_facts_t facts{};
      facts.struct_size = sizeof(facts);
      EXPECT_EQ(hetcomm_pipeline_facts(own.handle, &facts), HETCOMM_OK);
      return facts.data_wait_ns;
    };
    const std::string before = trace();
    const uint64_t before_ns = waited_ns();
    struct Waiting {
      Member& me;
      bool is_told = false;
      static hetcomm_status_t tell(void* self) {
        auto& waiting = *static_cast<Waiting*>(self);
        if (!std::exchange(waiting.is_told, true)) pass_byte(waiting.me, 0, true);
        return HETCOMM_OK;
      }
    } waiting{.me = me};
    hetcomm_pipeline_run_options_t options = options_of(8);
    if (me.rank() == 0) {
      own.model.before = [&](const hetcomm_pipeline_action_t&) {
        for (const int32_t other : {1, 2}) pass_byte(me, other, false);
        return HETCOMM_CANCELLED;
      };
    } else {
      options.interrupt = &Waiting::tell;
      options.interrupt_user_data = &waiting;
    }
    EXPECT_NE(own.run(options).status, HETCOMM_OK);
    if (me.rank() == 0) {
      EXPECT_NE(trace(), before);
    } else {
      EXPECT_EQ(trace(), before);
      EXPECT_GT(waited_ns(), before_ns);
    }
    EXPECT_TRUE(me.meet());
  });
}

// Rank 2 stays in a callback until rank 0, which waits for its data or for its end, has been
// interrupted.
TEST_P(PipelineFailures, InterruptEndsAWaitingRun) {
  const std::pair<int32_t, hetcomm_status_t> cases[] = {
      {HETCOMM_PIPELINE_FORWARD, HETCOMM_CANCELLED},
      {HETCOMM_PIPELINE_BACKWARD, 7},  // no status of a failure
  };
  for (const auto& [kind, answer] : cases) {
    run(3, [&, kind = kind, answer = answer](Member& me) {
      Trained own(me, three_stages());
      ASSERT_EQ(own.run(0).status, HETCOMM_OK);
      if (me.rank() == 2) {
        own.model.before = [&](const hetcomm_pipeline_action_t& action) {
          if (action.kind == kind && action.micro_batch == 5) pass_byte(me, 0, false);
          return HETCOMM_OK;
        };
      }
      struct Asked {
        int32_t times = 0;
        hetcomm_status_t answer = HETCOMM_OK;
        static hetcomm_status_t again(void* self) {
          auto& asked = *static_cast<Asked*>(self);
          return ++asked.times < 2 ? HETCOMM_OK : asked.answer;
        }
      } asked{.answer = answer};
      hetcomm_pipeline_run_options_t options = options_of(1);
      if (me.rank() == 0) {
        options.interrupt = &Asked::again;
        options.interrupt_user_data = &asked;
      }
      const Ran ran = own.run(options);
      if (me.rank() == 0) {
        pass_byte(me, 2, true);
        EXPECT_EQ(asked.times, 2);
        EXPECT_EQ(ran.status, answer < 0 ? answer : HETCOMM_INTERNAL) << ran.text;
      } else {
        EXPECT_EQ(ran.status, HETCOMM_ABORTED) << ran.text;
        EXPECT_TRUE(has(ran.text, "rank 0")) << ran.text;
      }
      EXPECT_TRUE(has(ran.text, "the trainer interrupted it")) << ran.text;
      EXPECT_TRUE(me.meet());
    });
  }
}

TEST_P(PipelineFailures, InterruptIsNotCalledDuringARunThatNeverWaits) {
  run(1, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0}), "1f1b", 4);
    Trained own(me, plan);
    hetcomm_pipeline_run_options_t options = options_of(0);
    options.interrupt = [](void*) -> hetcomm_status_t { return HETCOMM_CANCELLED; };
    EXPECT_EQ(own.run(options).status, HETCOMM_OK);
  });
}

TEST_P(PipelineFailures, DifferentStepNumbersAreReported) {
  run(2, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 3);
    Model model(plan, static_cast<uint32_t>(me.rank()));
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    const Ran ran = run_once(made.handle, me.rank() == 0 ? 4 : 5);
    EXPECT_TRUE(ran.status == HETCOMM_MISMATCH || ran.status == HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "4") && has(ran.text, "5")) << ran.text;
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

TEST_P(PipelineFailures, DestroyedPipelineEndsTheRunOnOtherRanks) {
  run(2, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 3);
    Model model(plan, static_cast<uint32_t>(me.rank()));
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    ASSERT_EQ(run_once(made.handle).status, HETCOMM_OK);
    if (me.rank() == 0) {
      EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
      EXPECT_TRUE(me.meet());
      return;
    }
    const Ran ran = run_once(made.handle, 1);
    EXPECT_EQ(ran.status, HETCOMM_ABORTED) << ran.text;
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
    EXPECT_TRUE(me.meet());
  });
}

TEST_P(PipelineFailures, DifferingPlansAreRefused) {
  run(3, [](Member& me) {
    PipelinePlan plan = three_stages();
    if (me.rank() == 2) plan.pipelines[0].schedule.name = "gpipe";
    Model model(plan, static_cast<uint32_t>(me.rank()));
    const Made made = create(me, pipeline::to_json(plan), model);
    EXPECT_EQ(made.status, HETCOMM_MISMATCH) << made.text;
    EXPECT_TRUE(has(made.text, "rank 2")) << made.text;
    EXPECT_EQ(made.handle, nullptr);
  });
}

TEST_P(PipelineFailures, PlansWithDifferentProvenanceAreAccepted) {
  run(3, [](Member& me) {
    PipelinePlan plan = three_stages();
    plan.provenance = "{\"planner\": \"" + std::to_string(me.rank()) + "\"}";
    Model model(plan, static_cast<uint32_t>(me.rank()));
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    EXPECT_EQ(run_once(made.handle).status, HETCOMM_OK);
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

TEST_P(PipelineFailures, InvalidPlanOnOneRankIsReportedToAll) {
  run(3, [](Member& me) {
    const std::string good = pipeline::to_json(three_stages());
    Model model(three_stages(), static_cast<uint32_t>(me.rank()));
    struct Wrong {
      std::string json;
      hetcomm_status_t status;
      std::string text;
    };
    PipelinePlan other = plan_of(on_ranks({0, 1}), "1f1b", 6);
    const std::vector<Wrong> wrongs = {
        {"{", HETCOMM_INVALID_ARGUMENT, "plan"},
        {"{\"format\": \"hetcomm pipeline plan\", \"version\": 2}", HETCOMM_UNSUPPORTED, "version"},
        {pipeline::to_json(other), HETCOMM_INVALID_ARGUMENT, "2 ranks"}};
    for (const Wrong& wrong : wrongs) {
      const Made made = create(me, me.rank() == 1 ? wrong.json : good, model);
      EXPECT_EQ(made.status, me.rank() == 1 ? wrong.status : HETCOMM_ABORTED) << made.text;
      EXPECT_TRUE(has(made.text, wrong.text)) << made.text;
      EXPECT_TRUE(me.rank() == 1 || has(made.text, "rank 1")) << made.text;
    }
    // A rank whose arguments cannot be read tells the others, too.
    hetcomm_pipeline_t* handle = nullptr;
    const hetcomm_status_t status =
        hetcomm_pipeline_create(me.communicator(), me.rank() == 0 ? nullptr : good.c_str(),
                                model.chunks().data(), model.chunks().size(), nullptr, &handle);
    EXPECT_EQ(status, me.rank() == 0 ? HETCOMM_INVALID_ARGUMENT : HETCOMM_ABORTED);
    EXPECT_TRUE(has(hetcomm_pipeline_last_error(), "plan is null"));
    Made made = create(me, good, model);
    EXPECT_EQ(made.status, HETCOMM_OK) << made.text;
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

TEST_P(PipelineFailures, MissingCallbackIsReportedToAll) {
  run(3, [](Member& me) {
    Model model(three_stages(), static_cast<uint32_t>(me.rank()));
    if (me.rank() == 1) model.chunks()[0].backward.function = nullptr;
    const Made made = create(me, pipeline::to_json(three_stages()), model);
    EXPECT_EQ(made.status, me.rank() == 1 ? HETCOMM_INVALID_ARGUMENT : HETCOMM_ABORTED);
    EXPECT_TRUE(has(made.text, "rank 1 has no callback for the backward step of micro-batch 0"))
        << made.text;
    EXPECT_TRUE(model.done.empty());
  });
}

TEST_P(PipelineFailures, TensorThatNeedsTooMuchMemoryIsRefused) {
  run(1, [](Member& me) {
    PipelinePlan plan = plan_of(on_ranks({0, 0}), "looped-bfs", 8192);
    pipeline::PlanTensor& tensor = plan.pipelines.front().boundaries.front().tensors.front();
    tensor = {.name = "x", .type = HETCOMM_COMPLEX128, .shape = {uint64_t{1} << 47}};
    Model model(plan, 0);
    const Made made = create(me, pipeline::to_json(plan), model);
    EXPECT_EQ(made.status, HETCOMM_OUT_OF_RANGE) << made.text;
    EXPECT_TRUE(has(made.text, "'x'")) << made.text;
  });
}

TEST_P(PipelineFailures, MissingDeviceIsReportedToAll) {
  run(3, [](Member& me) {
    PipelinePlan plan = three_stages();
    plan.ranks[2].device = 77;
    Model model(plan, static_cast<uint32_t>(me.rank()));
    const Made made = create(me, pipeline::to_json(plan), model);
    EXPECT_EQ(made.status, me.rank() == 2 ? HETCOMM_OUT_OF_RANGE : HETCOMM_ABORTED) << made.text;
    EXPECT_TRUE(has(made.text, "77")) << made.text;
  });
}

TEST_P(PipelineFailures, CallbackCanOnlyCancelItsPipeline) {
  run(2, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 3);
    Model model(plan, static_cast<uint32_t>(me.rank()));
    Made made;
    if (me.rank() == 0) {
      model.before = [&](const hetcomm_pipeline_action_t& action) {
        hetcomm_pipeline_facts_t facts{};
        facts.struct_size = sizeof(facts);
        size_t size = 0;
        EXPECT_EQ(hetcomm_pipeline_run(made.handle, nullptr), HETCOMM_BUSY);
        EXPECT_EQ(hetcomm_pipeline_facts(made.handle, &facts), HETCOMM_BUSY);
        EXPECT_EQ(hetcomm_pipeline_trace(made.handle, 0, 0, nullptr, &size), HETCOMM_BUSY);
        EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_BUSY);
        EXPECT_EQ(hetcomm_pipeline_set_schedule(made.handle, "", 0), HETCOMM_BUSY);
        EXPECT_EQ(hetcomm_pipeline_set_gradients(made.handle, nullptr, 0, 0), HETCOMM_BUSY);
        if (action.micro_batch == 1) {
          EXPECT_EQ(hetcomm_pipeline_cancel(made.handle, "seen enough"), HETCOMM_OK);
        }
        return HETCOMM_OK;
      };
    }
    made = create(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK) << made.text;
    EXPECT_TRUE(me.meet());
    const Ran ran = run_once(made.handle);
    EXPECT_EQ(ran.status, me.rank() == 0 ? HETCOMM_CANCELLED : HETCOMM_ABORTED) << ran.text;
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

// Rank 0 has posted all its sends when rank 1 fails, and needs nothing of it.
TEST_P(PipelineFailures, RankThatIsNotWaitingNoticesAFailedRun) {
  run(2, [](Member& me) {
    PipelinePlan plan = plan_of(on_ranks({0, 1}), "gpipe", 40);
    plan.pipelines.front().boundaries.front().in_flight = 40;
    Model model(plan, static_cast<uint32_t>(me.rank()));
    model.before = [&](const hetcomm_pipeline_action_t& action) {
      if (me.rank() == 1 && action.micro_batch == 1) return HETCOMM_DEVICE_LOST;
      std::this_thread::sleep_for(std::chrono::milliseconds(25));
      return HETCOMM_OK;
    };
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    const Ran ran = run_once(made.handle);
    EXPECT_EQ(ran.status, me.rank() == 1 ? HETCOMM_DEVICE_LOST : HETCOMM_ABORTED) << ran.text;
    EXPECT_LT(model.done.size(), 40u);
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

TEST_P(PipelineFailures, TimeLimitEndsARunWithoutTransfers) {
  run(1, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0}), "1f1b", 20);
    Model model(plan, 0);
    model.before = [](const hetcomm_pipeline_action_t&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return HETCOMM_OK;
    };
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    const Ran ran = run_once(made.handle, 0, 50 * kMs);
    EXPECT_EQ(ran.status, HETCOMM_TIMED_OUT) << ran.text;
    EXPECT_TRUE(has(ran.text, "of micro-batch")) << ran.text;
    EXPECT_LT(model.done.size(), 40u);
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

// Rank |odd| evaluates and the others train, or the other way round. Each may then wait for data
// that nobody sends.
TEST_P(PipelineFailures, MixedTrainingAndEvaluationRunsAreReported) {
  for (const int32_t odd : {0, 1, 2}) {
    for (const bool evaluates : {false, true}) {
      run(3, [&](Member& me) {
        PipelinePlan plan = plan_of(on_ranks({0, 1, 2}), "1f1b", 12);
        for (auto& each : plan.pipelines.front().boundaries) each.in_flight = 1;
        Trained own(me, plan);
        hetcomm_pipeline_run_options_t options = options_of(0, kPatienceNs);
        if ((me.rank() == odd) == evaluates) options.flags = HETCOMM_PIPELINE_EVALUATE;
        const Ran ran = own.run(options);
        EXPECT_TRUE(ran.status == HETCOMM_MISMATCH || ran.status == HETCOMM_ABORTED) << ran.text;
        EXPECT_TRUE(has(ran.text, "some ranks train, and others evaluate")) << ran.text;
      });
    }
  }
}

TEST_P(PipelineFailures, InvalidRunOptionsAreRefusedBeforeAnyStep) {
  run(2, [](Member& me) {
    PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 3);
    Trained own(me, plan);
    const uint64_t lengths[] = {8, 8, 8};
    hetcomm_pipeline_run_options_t flag = options_of(0);
    flag.flags = 2;
    hetcomm_pipeline_run_options_t no_lengths = options_of(0);
    no_lengths.lengths = lengths;
    no_lengths.length_count = 3;
    for (const auto& options : {flag, no_lengths}) {
      EXPECT_EQ(own.run(options).status, HETCOMM_INVALID_ARGUMENT);
      EXPECT_TRUE(own.model.done.empty());
    }
    const Ran ran = own.run(1);
    EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
  });
}

// Nothing goes between the two pipelines.
TEST_P(PipelineFailures, DifferentStepNumbersOfSeparatePipelinesAreReported) {
  run(2, [](Member& me) {
    PipelinePlan plan = plan_of(on_ranks({0}), "1f1b", 3);
    const PipelinePlan other = plan_of(on_ranks({1}), "1f1b", 3);
    plan.pipelines.push_back(other.pipelines.front());
    plan.training.global_batch *= 2;
    plan.ranks.resize(2, plan.ranks.front());
    Model model(plan, static_cast<uint32_t>(me.rank()));
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    EXPECT_EQ(run_once(made.handle, 3).status, HETCOMM_OK);
    const Ran ran = run_once(made.handle, me.rank() == 0 ? 4 : 5);
    EXPECT_TRUE(ran.status == HETCOMM_MISMATCH || ran.status == HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "from 4 to 5")) << ran.text;
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

TEST_P(PipelineFailures, TraceOfAFailedRunListsTheStepsThatStarted) {
  run(1, [](Member& me) {
    PipelinePlan plan = plan_of(on_ranks({0}), "", 2);
    plan.pipelines.front().schedule.actions =
        pipeline::read_csv("0F0,(0B0;0F1)OVERLAP_F_B,0B1\n")->actions;
    Model model(plan, 0);
    model.before = [](const hetcomm_pipeline_action_t& action) {
      return action.kind == HETCOMM_PIPELINE_BACKWARD ? HETCOMM_DEVICE_LOST : HETCOMM_OK;
    };
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    EXPECT_EQ(run_once(made.handle).status, HETCOMM_DEVICE_LOST);
    std::string text(4096, '\0');
    size_t size = 0;
    ASSERT_EQ(hetcomm_pipeline_trace(made.handle, HETCOMM_PIPELINE_TRACE_JSON, text.size(),
                                     text.data(), &size),
              HETCOMM_OK);
    text.resize(size - 1);
    const nlohmann::json json = nlohmann::json::parse(text);
    ASSERT_EQ(json["steps"].size(), 2u);
    EXPECT_GE(json["steps"][1]["end_ns"].get<uint64_t>(),
              json["steps"][1]["start_ns"].get<uint64_t>());
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

// Queries from another thread wait for no run, and no run fails for a query.
TEST_P(PipelineFailures, QueriesFromAnotherThreadDoNotDisturbRuns) {
  run(2, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0, 1}), "1f1b", 3);
    Model model(plan, static_cast<uint32_t>(me.rank()));
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    std::atomic<bool> ends{false};
    std::thread other([&] {
      while (!ends) {
        hetcomm_pipeline_facts_t facts{};
        facts.struct_size = sizeof(facts);
        const hetcomm_status_t status = hetcomm_pipeline_facts(made.handle, &facts);
        EXPECT_TRUE(status == HETCOMM_OK || status == HETCOMM_BUSY);
        std::this_thread::yield();
      }
    });
    for (uint64_t step = 0; step < 100; ++step) {
      const Ran ran = run_once(made.handle, step);
      EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
      if (ran.status != HETCOMM_OK) break;
    }
    ends = true;
    other.join();
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
  });
}

class PipelinePatience : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(Of, PipelinePatience, ::testing::Values(pipeline_cases().front()),
                         capi_case_name);

// Rank 1 stays in its last callback for longer than HETCOMM_TIMEOUT, which does not bound this run.
TEST_P(PipelinePatience, RunWithoutATimeLimitWaitsForASlowRank) {
  CapiCase patient = GetParam();
  patient.settings += "TIMEOUT=2s;";
  run_job(patient, 2, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0, 1}), "forward-only", 2);
    Trained own(me, plan);
    if (me.rank() == 1) {
      own.model.before = [](const hetcomm_pipeline_action_t& action) {
        if (action.micro_batch == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
        return HETCOMM_OK;
      };
    }
    const Ran ran = own.run(options_of(0, HETCOMM_TIMEOUT_INFINITE));
    EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
    EXPECT_TRUE(me.meet());
  });
}

// The three ranks that are left run a plan for three in a rebuilt communicator.
void go_on_without_rank_two(Member& me) {
  const int32_t rank = me.rank() < 2 ? me.rank() : me.rank() - 1;
  hetcomm_bootstrap_t* const bootstrap = me.make_bootstrap("rebuilt", rank, 3);
  hetcomm_communicator_t* rebuilt = nullptr;
  ASSERT_EQ(hetcomm_communicator_rebuild(me.communicator(), bootstrap, nullptr, &rebuilt),
            HETCOMM_OK)
      << hetcomm_last_error();
  {
    Model model(three_stages(), static_cast<uint32_t>(rank));
    hetcomm_pipeline_t* pipeline = nullptr;
    ASSERT_EQ(
        hetcomm_pipeline_create(rebuilt, pipeline::to_json(three_stages()).c_str(),
                                model.chunks().data(), model.chunks().size(), nullptr, &pipeline),
        HETCOMM_OK)
        << hetcomm_pipeline_last_error();
    for (uint64_t step = 5; step < 7; ++step) {
      const Ran ran = run_once(pipeline, step);
      EXPECT_EQ(ran.status, HETCOMM_OK) << ran.text;
    }
    EXPECT_EQ(hetcomm_pipeline_destroy(pipeline), HETCOMM_OK);
  }
  EXPECT_EQ(hetcomm_communicator_destroy(rebuilt), HETCOMM_OK) << hetcomm_last_error();
  hetcomm_bootstrap_destroy(bootstrap);
}

class PipelineLosses : public CapiTest {};
INSTANTIATE_TEST_SUITE_P(All, PipelineLosses, ::testing::ValuesIn(process_cases()), capi_case_name);

TEST_P(PipelineLosses, LostRankEndsTheRunOnAllOtherRanks) {
  HETCOMM_NEEDS_RANKS();
  run(4, [](Member& me) {
    const PipelinePlan plan = plan_of(on_ranks({0, 1, 2, 3}), "1f1b", 8);
    Model model(plan, static_cast<uint32_t>(me.rank()));
    if (me.rank() == 2) {
      model.before = [&](const hetcomm_pipeline_action_t& action) {
        if (action.kind == HETCOMM_PIPELINE_BACKWARD && action.micro_batch == 1) me.die();
        return HETCOMM_OK;
      };
    }
    const Made made = create_together(me, pipeline::to_json(plan), model);
    ASSERT_EQ(made.status, HETCOMM_OK);
    const Ran ran = run_once(made.handle);
    EXPECT_TRUE(ran.status == HETCOMM_PEER_LOST || ran.status == HETCOMM_ABORTED) << ran.text;
    EXPECT_TRUE(has(ran.text, "rank 2") || has(ran.text, "PEER_LOST")) << ran.text;
    // The rank's own place, or that of the rank that noticed first.
    EXPECT_TRUE(has(ran.text, "micro-batch") || has(ran.text, "end of its steps")) << ran.text;
    EXPECT_EQ(hetcomm_pipeline_destroy(made.handle), HETCOMM_OK);
    go_on_without_rank_two(me);
    me.expect_ruin();
  });
}

}  // namespace
}  // namespace hetcomm_test
