/* Trains a model as a pipeline with one stage on each rank. Each stage has one weight: stage s
 * multiplies its input by s + 1. Each rank prints its weight times the gradient of its weight. All
 * ranks print the same number.
 *
 *   mpirun --oversubscribe -n 3 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 \
 *     build/release/bin/example_pipeline_plan 20
 *   torchrun --no-python --nproc-per-node 3 build/release/bin/example_pipeline_plan
 * or by hand:
 *   export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
 *   for r in 0 1 2; do RANK=$r build/release/bin/example_pipeline_plan & done; wait
 * The first argument is the computation time of a stage for one micro-batch, in milliseconds. A
 * rank with a device in HETCOMM_DEVICES, such as opencl:{local_rank}, keeps the tensors between
 * stages in the memory of that device.
 *
 * The second argument is a file with a plan, with any schedule and any parallel degrees. The ranks
 * run this plan, and rank 0 prints the duration of a step. The stages then compute nothing, and
 * only sleep for their computation time. The third argument is the number of stages on each rank
 * (default: 1). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <hetcomm/hetcomm.h>
#include <hetcomm/pipeline.h>

enum { kMicroBatches = 6, kSamples = 4, kMaxRanks = 64, kSlots = 64, kMaxChunks = 8 };

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

/* Writes a plan with one stage for each of |size| ranks. |devices| has the device number of each
 * rank. */
static void write_plan(int size, const int32_t* devices, char* text, size_t capacity) {
  size_t at = 0;
  int i;
#define ADD(...) at += (size_t)snprintf(text + at, at < capacity ? capacity - at : 0, __VA_ARGS__)
  ADD("{\"format\": \"hetcomm pipeline plan\", \"version\": 1, \"cluster\": {\"hash\": \"any\"},"
      " \"model\": {\"hash\": \"products\", \"items\": %d},"
      " \"training\": {\"global_batch\": %d, \"sequence\": 1, \"precision\": \"float64\","
      " \"optimizer\": \"none\"}, \"ranks\": [",
      size, kMicroBatches * kSamples);
  for (i = 0; i < size; ++i) {
    ADD("%s{\"host\": \"any\", \"device\": %d}", i == 0 ? "" : ", ", (int)devices[i]);
  }
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
  double compute_ms; /* time for a micro-batch: 1/3 forward, 2/3 backward */
  /* The inputs of the micro-batches in flight, by slot. */
  double inputs[kSlots][kSamples];
};

/* Copy between a tensor, which may be on a device, and |values|. */
static hetcomm_status_t load(const hetcomm_pipeline_tensor_t* tensor, double* values) {
  return hetcomm_memory_read(tensor->buffer.memory, tensor->buffer.offset, values,
                             kSamples * sizeof(double));
}
static hetcomm_status_t store(const hetcomm_pipeline_tensor_t* tensor, const double* values) {
  return hetcomm_memory_write(tensor->buffer.memory, tensor->buffer.offset, values,
                              kSamples * sizeof(double));
}

static void compute(double ms) {
  const long long ns = (long long)(ms * 1e6);
  const struct timespec time = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
  if (ns > 0) nanosleep(&time, NULL);
}

static hetcomm_status_t forward(void* user_data, const hetcomm_pipeline_action_t* action) {
  struct stage* stage = user_data;
  double* in = stage->inputs[action->slot];
  double out[kSamples];
  int i;
  compute(stage->compute_ms / 3);
  for (i = 0; i < kSamples; ++i) in[i] = action->micro_batch + 1;
  if (action->input_count > 0) {
    const hetcomm_status_t status = load(&action->inputs[0], in);
    if (status != HETCOMM_OK) return status;
  }
  for (i = 0; i < kSamples; ++i) out[i] = stage->weight * in[i];
  return action->output_count > 0 ? store(&action->outputs[0], out) : HETCOMM_OK;
}

/* The loss is the sum of the last stage's outputs. */
static hetcomm_status_t backward(void* user_data, const hetcomm_pipeline_action_t* action) {
  struct stage* stage = user_data;
  const double* in = stage->inputs[action->slot];
  double grad[kSamples];
  int i;
  compute(stage->compute_ms * 2 / 3);
  for (i = 0; i < kSamples; ++i) grad[i] = 1;
  if (action->output_grad_count > 0) {
    const hetcomm_status_t status = load(&action->output_grads[0], grad);
    if (status != HETCOMM_OK) return status;
  }
  for (i = 0; i < kSamples; ++i) {
    stage->gradient += in[i] * grad[i];
    grad[i] *= stage->weight;
  }
  return action->input_grad_count > 0 ? store(&action->input_grads[0], grad) : HETCOMM_OK;
}

/* Simulates a step of a plan from a file: sleeps for the step's fraction of the time for a
 * micro-batch. */
static hetcomm_status_t pass_time(void* user_data, const hetcomm_pipeline_action_t* action) {
  const struct stage* stage = user_data;
  const int whole = action->kind == HETCOMM_PIPELINE_BACKWARD;
  compute(stage->compute_ms * (whole ? 2 : 1) / 3);
  return HETCOMM_OK;
}

static void read_plan(const char* name, char* text, size_t capacity) {
  FILE* file = fopen(name, "r");
  size_t size;
  if (file == NULL) {
    perror(name);
    exit(1);
  }
  size = fread(text, 1, capacity - 1, file);
  text[size] = '\0';
  fclose(file);
}

/* Gets the number of the device that each rank uses: 1, or the host if the rank has no device. */
static void exchange_devices(hetcomm_context_t* context, hetcomm_communicator_t* world,
                             int32_t size, int32_t* devices) {
  int32_t count = 0;
  int32_t own;
  hetcomm_request_t* request;
  hetcomm_completion_t completion;
  check(hetcomm_device_count(context, &count), "devices");
  own = count > 1 ? 1 : HETCOMM_DEVICE_HOST; /* the host is device 0 */
  check(hetcomm_allgather(world, hetcomm_buffer_host(&own, sizeof(own)),
                          hetcomm_buffer_host(devices, (uint64_t)size * sizeof(own)), HETCOMM_INT32,
                          NULL, &request),
        "exchange");
  check(hetcomm_request_wait(request, HETCOMM_TIMEOUT_DEFAULT, &completion), "exchange");
  check(completion.status, "exchange");
}

static double now_ms(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e3 + (double)time.tv_nsec * 1e-6;
}

int main(int argc, char** argv) {
  const int has_file = argc > 2;
  const int chunk_count = argc > 3 ? atoi(argv[3]) : 1;
  char* rest = NULL;
  const double compute_ms = argc > 1 ? strtod(argv[1], &rest) : 0;
  if (argc > 4 || (rest != NULL && *rest != '\0') || chunk_count < 1 || chunk_count > kMaxChunks) {
    fprintf(stderr, "usage: %s [MILLISECONDS [PLAN.json [STAGES OF A RANK, 1 to %d]]]\n", argv[0],
            kMaxChunks);
    return 2;
  }
  hetcomm_context_t* context;
  hetcomm_bootstrap_t* bootstrap;
  hetcomm_communicator_t* world;
  hetcomm_context_options_t options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.progress = HETCOMM_PROGRESS_THREAD; /* lets data move while callbacks run */
  check(hetcomm_context_create(&options, &context), "context");
  check(hetcomm_bootstrap_create_from_environment(context, &bootstrap), "bootstrap");
  check(hetcomm_communicator_create(context, bootstrap, NULL, &world), "communicator");
  int32_t rank, size;
  check(hetcomm_communicator_rank(world, &rank, &size), "rank");
  if (size > kMaxRanks) return 1;

  static char plan[1 << 18];
  int32_t devices[kMaxRanks];
  exchange_devices(context, world, size, devices);
  if (has_file) {
    read_plan(argv[2], plan, sizeof(plan));
  } else {
    write_plan(size, devices, plan, sizeof(plan));
  }
  static struct stage stage;
  stage.weight = rank + 1;
  stage.compute_ms = compute_ms;
  hetcomm_pipeline_chunk_t chunks[kMaxChunks];
  memset(chunks, 0, sizeof(chunks));
  for (int i = 0; i < chunk_count; ++i) {
    hetcomm_pipeline_chunk_t* chunk = &chunks[i];
    chunk->struct_size = sizeof(*chunk);
    chunk->forward.function = has_file ? pass_time : forward;
    chunk->backward.function = has_file ? pass_time : backward;
    chunk->forward.user_data = chunk->backward.user_data = &stage;
    if (!has_file) continue;
    chunk->input_grad = chunk->weight_grad = chunk->recompute = chunk->forward;
  }
  hetcomm_pipeline_t* pipeline;
  check_pipeline(hetcomm_pipeline_create(world, plan, chunks, (size_t)chunk_count, NULL, &pipeline),
                 "pipeline");

  hetcomm_pipeline_run_options_t run;
  memset(&run, 0, sizeof(run));
  run.struct_size = sizeof(run);
  double step_ms = 0;
  for (run.step = 0; run.step < 3; ++run.step) {
    const double start_ms = now_ms();
    stage.gradient = 0;
    check_pipeline(hetcomm_pipeline_run(pipeline, &run), "run");
    step_ms = now_ms() - start_ms;
  }
  if (!has_file) {
    printf("stage %d of %d: weight times gradient %.0f\n", rank, size,
           stage.weight * stage.gradient);
  }
  if (rank == 0 && argc > 1) printf("a step takes %.1f ms\n", step_ms);

  check_pipeline(hetcomm_pipeline_destroy(pipeline), "destroy");
  check(hetcomm_communicator_destroy(world), "destroy");
  hetcomm_bootstrap_destroy(bootstrap);
  check(hetcomm_context_destroy(context), "destroy");
  return 0;
}
