// Bad input to pipelines.
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <string>

#include <hetcomm/pipeline.h>

#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

using Chunk = hetcomm_pipeline_chunk_t;
using Options = hetcomm_pipeline_options_t;
using Facts = hetcomm_pipeline_facts_t;

constexpr const char* kPlan = R"({
 "format": "hetcomm pipeline plan", "version": 1,
 "cluster": {"hash": ""}, "model": {"hash": "", "items": 2},
 "training": {"global_batch": 6, "sequence": 1, "precision": "fp32", "optimizer": "sgd"},
 "ranks": [{"host": "a", "device": 0}],
 "pipelines": [{"micro_batches": 3, "micro_batch_size": 2,
  "stages": [{"items": [0, 1], "ranks": [0]}, {"items": [1, 2], "ranks": [0], "chunk": 1}],
  "schedule": {"name": "looped-bfs"},
  "boundaries": [{"from": 0, "to": 1, "tensors": [
   {"name": "x", "type": "float32", "shape": [2, 4], "cut": {"data": 0}}]}]}],
 "gradients": {"weight": "samples"}})";

hetcomm_status_t succeed(void* calls, const hetcomm_pipeline_action_t*) {
  ++*static_cast<int*>(calls);
  return HETCOMM_OK;
}

class BadPipeline : public BadInput {
 protected:
  void SetUp() override {
    BadInput::SetUp();
    Chunk chunk{};
    chunk.struct_size = sizeof(chunk);
    chunk.forward = chunk.backward = {.function = succeed, .user_data = &calls_};
    chunks_[0] = chunks_[1] = chunk;
  }

  std::function<hetcomm_status_t(Outputs&)> create(hetcomm_communicator_t* on, const char* plan,
                                                   const Chunk* chunks, size_t count,
                                                   const Options* options = nullptr) {
    return [=](Outputs& out) {
      return hetcomm_pipeline_create(on, plan, chunks, count, options,
                                     out.first<hetcomm_pipeline_t*>());
    };
  }
  hetcomm_pipeline_t* made() {
    hetcomm_pipeline_t* pipeline = nullptr;
    EXPECT_EQ(hetcomm_pipeline_create(communicator(), kPlan, chunks_, 2, nullptr, &pipeline),
              HETCOMM_OK)
        << hetcomm_pipeline_last_error();
    return pipeline;
  }
  static void expect_plan_refused(const BadCall& bad) {
    expect_refused({bad}, hetcomm_pipeline_last_error);
  }

  Chunk chunks_[2];
  int calls_ = 0;
};

TEST_F(BadPipeline, InvalidCreationIsRefused) {
  hetcomm_communicator_t* const own = communicator();
  Chunk wrong_size[2] = {chunks_[0], chunks_[1]};
  wrong_size[0].struct_size = 3;
  Chunk no_backward[2] = {chunks_[0], chunks_[1]};
  no_backward[1].backward.function = nullptr;
  Options options{};
  options.struct_size = 5;
  expect_refused(
      {
          {"no communicator", HETCOMM_INVALID_ARGUMENT, create(nullptr, kPlan, chunks_, 2)},
          {"no plan", HETCOMM_INVALID_ARGUMENT, create(own, nullptr, chunks_, 2)},
          {"no JSON", HETCOMM_INVALID_ARGUMENT, create(own, "", chunks_, 2)},
          {"no chunks", HETCOMM_INVALID_ARGUMENT, create(own, kPlan, nullptr, 2)},
          {"a chunk too few", HETCOMM_INVALID_ARGUMENT, create(own, kPlan, chunks_, 1)},
          {"no chunk", HETCOMM_INVALID_ARGUMENT, create(own, kPlan, chunks_, 0)},
          {"countless chunks", HETCOMM_INVALID_ARGUMENT, create(own, kPlan, chunks_, SIZE_MAX)},
          {"a chunk of another size", HETCOMM_INVALID_ARGUMENT, create(own, kPlan, wrong_size, 2)},
          {"no backward callback", HETCOMM_INVALID_ARGUMENT, create(own, kPlan, no_backward, 2)},
          {"options of another size", HETCOMM_INVALID_ARGUMENT,
           create(own, kPlan, chunks_, 2, &options)},
          {"no output", HETCOMM_INVALID_ARGUMENT,
           [&](Outputs&) {
             return hetcomm_pipeline_create(own, kPlan, chunks_, 2, nullptr, nullptr);
           }},
      },
      hetcomm_pipeline_last_error);
}

TEST_F(BadPipeline, InvalidHandlesAreRefused) {
  hetcomm_pipeline_t* const own = made();
  auto* const other = reinterpret_cast<hetcomm_pipeline_t*>(communicator());
  hetcomm_pipeline_run_options_t run{};
  run.struct_size = 7;
  for (hetcomm_pipeline_t* const wrong : {static_cast<hetcomm_pipeline_t*>(nullptr), other}) {
    expect_refused(
        {{"run", HETCOMM_INVALID_ARGUMENT,
          [=](Outputs&) { return hetcomm_pipeline_run(wrong, nullptr); }},
         {"cancel", HETCOMM_INVALID_ARGUMENT,
          [=](Outputs&) { return hetcomm_pipeline_cancel(wrong, "why"); }},
         {"set_schedule", HETCOMM_INVALID_ARGUMENT,
          [=](Outputs&) { return hetcomm_pipeline_set_schedule(wrong, kPlan, 0); }},
         {"set_gradients", HETCOMM_INVALID_ARGUMENT,
          [=](Outputs&) { return hetcomm_pipeline_set_gradients(wrong, nullptr, 0, 0); }},
         {"total", HETCOMM_INVALID_ARGUMENT,
          [=](Outputs&) { return hetcomm_pipeline_total(wrong, nullptr, 0, nullptr, 0); }},
         {"facts", HETCOMM_INVALID_ARGUMENT,
          [=](Outputs&) {
            Facts facts{};
            facts.struct_size = sizeof(facts);
            return hetcomm_pipeline_facts(wrong, &facts);
          }},
         {"trace", HETCOMM_INVALID_ARGUMENT,
          [=](Outputs& out) {
            return hetcomm_pipeline_trace(wrong, HETCOMM_PIPELINE_TRACE_JSON, 8, out.first<char>(),
                                          out.second<size_t>());
          }}},
        hetcomm_pipeline_last_error);
  }
  expect_refused({{"destroy of something else", HETCOMM_INVALID_ARGUMENT,
                   [=](Outputs&) { return hetcomm_pipeline_destroy(other); }},
                  {"run options of another size", HETCOMM_INVALID_ARGUMENT,
                   [&](Outputs&) { return hetcomm_pipeline_run(own, &run); }}},
                 hetcomm_pipeline_last_error);
  const uint64_t length = 1;
  for (int i = 0; i < 3; ++i) {
    hetcomm_pipeline_run_options_t bad{};
    bad.struct_size = sizeof(bad);
    if (i == 0) bad.flags = UINT32_MAX;
    if (i > 0) bad.lengths = &length;
    if (i == 2) bad.length_count = SIZE_MAX;
    expect_refused({{"run options", HETCOMM_INVALID_ARGUMENT,
                     [&](Outputs&) { return hetcomm_pipeline_run(own, &bad); }}},
                   hetcomm_pipeline_last_error);
  }
  expect_refused({{"no plan", HETCOMM_INVALID_ARGUMENT,
                   [&](Outputs&) { return hetcomm_pipeline_set_schedule(own, nullptr, 0); }},
                  {"no JSON", HETCOMM_INVALID_ARGUMENT,
                   [&](Outputs&) { return hetcomm_pipeline_set_schedule(own, "", 0); }}},
                 hetcomm_pipeline_last_error);
  hetcomm_pipeline_gradient_t gradient{};
  gradient.struct_size = 9;
  expect_refused(
      {{"no list", HETCOMM_INVALID_ARGUMENT,
        [&](Outputs&) { return hetcomm_pipeline_set_gradients(own, nullptr, 2, 0); }},
       {"another size", HETCOMM_INVALID_ARGUMENT,
        [&](Outputs&) { return hetcomm_pipeline_set_gradients(own, &gradient, 1, 0); }},
       {"countless", HETCOMM_INVALID_ARGUMENT,
        [&](Outputs&) { return hetcomm_pipeline_set_gradients(own, &gradient, SIZE_MAX, 0); }}},
      hetcomm_pipeline_last_error);
  gradient.struct_size = sizeof(gradient);
  expect_refused({{"no layout", HETCOMM_INVALID_ARGUMENT,
                   [&](Outputs&) { return hetcomm_pipeline_set_gradients(own, &gradient, 1, 0); }}},
                 hetcomm_pipeline_last_error);
  EXPECT_EQ(hetcomm_pipeline_set_gradients(own, nullptr, 0, 0), HETCOMM_OK);
  EXPECT_EQ(hetcomm_pipeline_set_schedule(own, kPlan, 0), HETCOMM_OK)
      << hetcomm_pipeline_last_error();
  EXPECT_EQ(hetcomm_pipeline_run(own, nullptr), HETCOMM_OK) << hetcomm_pipeline_last_error();
  EXPECT_EQ(calls_, 12);
  EXPECT_EQ(hetcomm_pipeline_destroy(own), HETCOMM_OK);
  EXPECT_EQ(hetcomm_pipeline_destroy(nullptr), HETCOMM_OK);
}

TEST_F(BadPipeline, InvalidQueriesAreRefused) {
  hetcomm_pipeline_t* const own = made();
  const auto trace = [=](int32_t format, size_t capacity) {
    return [=](Outputs& out) {
      return hetcomm_pipeline_trace(own, format, capacity, out.first<char>(), out.second<size_t>());
    };
  };
  expect_refused({{"trace before a run", HETCOMM_NOT_FOUND, trace(HETCOMM_PIPELINE_TRACE_JSON, 8)}},
                 hetcomm_pipeline_last_error);
  ASSERT_EQ(hetcomm_pipeline_run(own, nullptr), HETCOMM_OK) << hetcomm_pipeline_last_error();
  std::vector<BadCall> calls = {{"no such format", HETCOMM_INVALID_ARGUMENT, trace(2, 8)},
                                {"no such format", HETCOMM_INVALID_ARGUMENT, trace(-1, 8)},
                                {"no text", HETCOMM_INVALID_ARGUMENT,
                                 [=](Outputs& out) {
                                   return hetcomm_pipeline_trace(own, HETCOMM_PIPELINE_TRACE_JSON,
                                                                 8, nullptr, out.second<size_t>());
                                 }},
                                {"no size", HETCOMM_INVALID_ARGUMENT,
                                 [=](Outputs& out) {
                                   return hetcomm_pipeline_trace(own, HETCOMM_PIPELINE_TRACE_JSON,
                                                                 8, out.first<char>(), nullptr);
                                 }},
                                {"no facts", HETCOMM_INVALID_ARGUMENT,
                                 [=](Outputs&) { return hetcomm_pipeline_facts(own, nullptr); }}};
  for (const size_t size : kWrongSizes) {
    calls.push_back({"facts of another size", HETCOMM_INVALID_ARGUMENT, [=](Outputs&) {
                       Facts facts{};
                       facts.struct_size = size;
                       return hetcomm_pipeline_facts(own, &facts);
                     }});
  }
  expect_refused(calls, hetcomm_pipeline_last_error);
  EXPECT_EQ(hetcomm_pipeline_destroy(own), HETCOMM_OK);
}

// Every plan that is cut off is refused; one that was changed is refused or a good one.
TEST_F(BadPipeline, TruncatedPlansAreRefusedAndCorruptedOnesDoNotCrash) {
  const std::string good = kPlan;
  for (size_t length = 0; length < good.size(); length += 7) {
    const std::string cut = good.substr(0, length);
    expect_plan_refused({"a plan that is cut off", HETCOMM_INVALID_ARGUMENT,
                         create(communicator(), cut.c_str(), chunks_, 2)});
  }
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string changed = good;
    for (int n = 0; n <= i % 3; ++n) changed[random() % good.size()] = static_cast<char>(random());
    hetcomm_pipeline_t* pipeline = nullptr;
    const hetcomm_status_t status =
        hetcomm_pipeline_create(communicator(), changed.c_str(), chunks_, 2, nullptr, &pipeline);
    if (status != HETCOMM_OK) {
      EXPECT_STRNE(hetcomm_pipeline_last_error(), "") << changed;
      EXPECT_EQ(pipeline, nullptr);
    }
    EXPECT_EQ(hetcomm_pipeline_destroy(pipeline), HETCOMM_OK);
  }
}

// No callback is called there.
TEST_F(BadPipeline, PipelineCallsInAForkedChildAreRefused) {
  hetcomm_pipeline_t* const own = made();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = hetcomm_pipeline_run(own, nullptr) == HETCOMM_FORKED &&
                         hetcomm_pipeline_cancel(own, "child") == HETCOMM_FORKED &&
                         hetcomm_pipeline_set_schedule(own, kPlan, 0) == HETCOMM_FORKED &&
                         hetcomm_pipeline_set_gradients(own, nullptr, 0, 0) == HETCOMM_FORKED &&
                         hetcomm_pipeline_total(own, nullptr, 0, nullptr, 0) == HETCOMM_FORKED &&
                         hetcomm_pipeline_destroy(own) == HETCOMM_FORKED && calls_ == 0;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(hetcomm_pipeline_run(own, nullptr), HETCOMM_OK) << hetcomm_pipeline_last_error();
  EXPECT_EQ(hetcomm_pipeline_destroy(own), HETCOMM_OK);
}

TEST_F(BadPipeline, PipelineVersionMatchesTheLibraryVersion) {
  EXPECT_STREQ(hetcomm_pipeline_version_string(), hetcomm_version_string());
}

}  // namespace
}  // namespace hetcomm_test
