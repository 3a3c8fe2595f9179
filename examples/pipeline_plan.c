/* Trains a model of one weight for each rank, as a pipeline: stage s multiplies what it gets by
 * s + 1. Each rank prints its weight times the gradient of the weight, which is the same for all.
 *
 *   torchrun --no-python --nproc-per-node 3 build/release/bin/example_pipeline_plan
 * or by hand:
 *   export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
 *   for r in 0 1 2; do RANK=$r build/release/bin/example_pipeline_plan & done; wait */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetcomm/hetcomm.h>
#include <hetcomm/pipeline.h>

enum { kMicroBatches = 6, kSamples = 4, kMaxRanks = 64, kSlots = 64 };

static void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, hetcomm_status_name(status), hetcomm_last_error());
  exit(1);
}

static void check_pipeline(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, hetcomm_status_name(status), hetcomm_pipeline_last_error());
  exit(1);
}

/* Writes a plan with a stage for each of |size| ranks. */
static void write_plan(int size, char* text, size_t capacity) {
  size_t at = 0;
  int i;
#define ADD(...) at += (size_t)snprintf(text + at, at < capacity ? capacity - at : 0, __VA_ARGS__)
  ADD("{\"format\": \"hetcomm pipeline plan\", \"version\": 1, \"cluster\": {\"hash\": \"any\"},"
      " \"model\": {\"hash\": \"products\", \"items\": %d},"
      " \"training\": {\"global_batch\": %d, \"sequence\": 1, \"precision\": \"float64\","
      " \"optimizer\": \"none\"}, \"ranks\": [",
      size, kMicroBatches * kSamples);
  for (i = 0; i < size; ++i) ADD("%s{\"host\": \"any\", \"device\": 0}", i == 0 ? "" : ", ");
  ADD("], \"pipelines\": [{\"micro_batches\": %d, \"micro_batch_size\": %d, \"stages\": [",
      kMicroBatches, kSamples);
  for (i = 0; i < size; ++i) {
    ADD("%s{\"items\": [%d, %d], \"ranks\": [%d]}", i == 0 ? "" : ", ", i, i + 1, i);
  }
  ADD("], \"schedule\": {\"name\": \"1f1b\"}, \"boundaries\": [");
  for (i = 0; i + 1 < size; ++i) {
    ADD("%s{\"from\": %d, \"to\": %d, \"tensors\": [{\"name\": \"x\", \"type\": \"float64\","
        " \"shape\": [%d], \"cut\": {\"data\": 0}}]}",
        i == 0 ? "" : ", ", i, i + 1, kSamples);
  }
  ADD("]}], \"gradients\": {\"weight\": \"samples\"}}");
#undef ADD
  if (at >= capacity) exit(1);
}

struct stage {
  double weight;
  double gradient;
  /* The first stage reads these, by slot. Others read what the pipeline keeps for them. */
  double samples[kSlots][kSamples];
};

static const double* input_of(struct stage* stage, const hetcomm_pipeline_action_t* action) {
  return action->input_count > 0 ? action->inputs[0].address : stage->samples[action->slot];
}

static hetcomm_status_t forward(void* user_data, const hetcomm_pipeline_action_t* action) {
  struct stage* stage = user_data;
  int i;
  if (action->input_count == 0) {
    for (i = 0; i < kSamples; ++i) stage->samples[action->slot][i] = action->micro_batch + 1;
  }
  if (action->output_count > 0) {
    const double* in = input_of(stage, action);
    double* out = action->outputs[0].address;
    for (i = 0; i < kSamples; ++i) out[i] = stage->weight * in[i];
  }
  return HETCOMM_OK;
}

/* The loss is the sum of what the last stage makes. */
static hetcomm_status_t backward(void* user_data, const hetcomm_pipeline_action_t* action) {
  struct stage* stage = user_data;
  const double* in = input_of(stage, action);
  int i;
  for (i = 0; i < kSamples; ++i) {
    const double grad =
        action->output_grad_count > 0 ? ((double*)action->output_grads[0].address)[i] : 1;
    stage->gradient += in[i] * grad;
    if (action->input_grad_count > 0) {
      ((double*)action->input_grads[0].address)[i] = stage->weight * grad;
    }
  }
  return HETCOMM_OK;
}

int main(void) {
  hetcomm_context_t* context;
  hetcomm_bootstrap_t* bootstrap;
  hetcomm_communicator_t* world;
  hetcomm_context_options_t options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.progress = HETCOMM_PROGRESS_THREAD; /* data moves while callbacks run */
  check(hetcomm_context_create(&options, &context), "context");
  check(hetcomm_bootstrap_create_from_environment(context, &bootstrap), "bootstrap");
  check(hetcomm_communicator_create(context, bootstrap, NULL, &world), "communicator");
  int32_t rank, size;
  check(hetcomm_communicator_rank(world, &rank, &size), "rank");
  if (size > kMaxRanks) return 1;

  static char plan[32768];
  write_plan(size, plan, sizeof(plan));
  static struct stage stage;
  stage.weight = rank + 1;
  hetcomm_pipeline_chunk_t chunk;
  memset(&chunk, 0, sizeof(chunk));
  chunk.struct_size = sizeof(chunk);
  chunk.forward.function = forward;
  chunk.backward.function = backward;
  chunk.forward.user_data = chunk.backward.user_data = &stage;
  hetcomm_pipeline_t* pipeline;
  check_pipeline(hetcomm_pipeline_create(world, plan, &chunk, 1, NULL, &pipeline), "pipeline");

  hetcomm_pipeline_run_options_t run;
  memset(&run, 0, sizeof(run));
  run.struct_size = sizeof(run);
  for (run.step = 0; run.step < 3; ++run.step) {
    stage.gradient = 0;
    check_pipeline(hetcomm_pipeline_run(pipeline, &run), "run");
  }
  printf("stage %d of %d: weight times gradient %.0f\n", rank, size, stage.weight * stage.gradient);

  check_pipeline(hetcomm_pipeline_destroy(pipeline), "destroy");
  check(hetcomm_communicator_destroy(world), "destroy");
  hetcomm_bootstrap_destroy(bootstrap);
  check(hetcomm_context_destroy(context), "destroy");
  return 0;
}
