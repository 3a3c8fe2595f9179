/* Runs two pipeline stages that divide their activations differently: the first stage by batch, the
 * second by sequence. Activations are sent forward and gradients backward, one micro-batch at a
 * time, as soon as they are available.
 *
 *   mpirun --oversubscribe -n 6 -x MASTER_ADDR=127.0.0.1 -x MASTER_PORT=29500 \
 *     build/release/bin/example_pipeline
 *   torchrun --no-python --nproc-per-node 6 build/release/bin/example_pipeline
 * or by hand, as ring.c shows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetcomm/hetcomm.h>

enum { kMicroBatches = 4, kInFlight = 2, kHidden = 64 };

static void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, hetcomm_status_name(status), hetcomm_last_error());
  exit(1);
}

static void wait_for(hetcomm_request_t* request) {
  hetcomm_completion_t completion;
  check(hetcomm_request_wait(request, HETCOMM_TIMEOUT_DEFAULT, &completion), "wait");
  if (completion.status == HETCOMM_OK) return;
  fprintf(stderr, "%s: %s\n", hetcomm_status_name(completion.status), completion.text);
  exit(1);
}

/* Returns the layout of a stage that divides |dimension| evenly among |count| ranks, the first of
 * which is |first|. */
static hetcomm_layout_t* stage(const uint64_t* shape, uint32_t dimension, int32_t first,
                               int32_t count) {
  const uint64_t axis = (uint64_t)count;
  const hetcomm_placement_t placement = {HETCOMM_PLACEMENT_SHARD, dimension, 1, NULL};
  hetcomm_layout_t* layout;
  int32_t* ranks = malloc((size_t)count * sizeof(*ranks));
  if (ranks == NULL) exit(1);
  for (int32_t i = 0; i < count; ++i) ranks[i] = first + i;
  check(hetcomm_layout_from_mesh(3, shape, 1, &axis, ranks, &placement, NULL, &layout), "layout");
  free(ranks);
  return layout;
}

static hetcomm_reshard_t* plan(hetcomm_communicator_t* world, const hetcomm_layout_t* from,
                               const hetcomm_layout_t* to) {
  const hetcomm_reshard_tensor_t tensor = {from, to, HETCOMM_FLOAT32, HETCOMM_FLOAT32};
  hetcomm_reshard_options_t options;
  hetcomm_reshard_t* made;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.in_flight = kInFlight;
  check(hetcomm_reshard_create(world, &tensor, 1, &options, &made), "plan");
  return made;
}

static hetcomm_request_t* start(hetcomm_reshard_t* reshard, const float* from, float* to,
                                uint64_t elements) {
  const hetcomm_buffer_t source = hetcomm_buffer_host(from, elements * sizeof(float));
  const hetcomm_buffer_t target = hetcomm_buffer_host(to, elements * sizeof(float));
  hetcomm_request_t* request;
  check(hetcomm_reshard_start(reshard, from == NULL ? NULL : &source, to == NULL ? NULL : &target,
                              NULL, &request),
        "start");
  return request;
}

/* Returns the value that the first stage sends for an element of |rank|'s part of the tensor. */
static float value(int batch, int32_t rank, uint64_t element) {
  return (float)(batch * 1000 + rank * 100) + (float)(element % 97);
}

int main(void) {
  hetcomm_context_t* context;
  hetcomm_bootstrap_t* bootstrap;
  hetcomm_communicator_t* world;
  check(hetcomm_context_create(NULL, &context), "context");
  check(hetcomm_bootstrap_create_from_environment(context, &bootstrap), "bootstrap");
  check(hetcomm_communicator_create(context, bootstrap, NULL, &world), "communicator");
  int32_t rank, size;
  check(hetcomm_communicator_rank(world, &rank, &size), "rank");
  if (size < 2) {
    fprintf(stderr, "start two ranks or more\n");
    return 1;
  }

  const int32_t half = (size + 1) / 2;
  const uint64_t shape[3] = {4 * (uint64_t)half, 8 * (uint64_t)(size - half), kHidden};
  hetcomm_layout_t* first = stage(shape, 0, 0, half);
  hetcomm_layout_t* second = stage(shape, 1, half, size - half);
  hetcomm_reshard_t* forward = plan(world, first, second);
  hetcomm_reshard_t* backward = plan(world, second, first);
  const int is_first = rank < half;
  uint64_t elements;
  check(hetcomm_layout_elements(is_first ? first : second, rank, &elements), "elements");

  float* sent[kInFlight];
  float* received[kInFlight];
  for (int i = 0; i < kInFlight; ++i) {
    sent[i] = malloc(elements * sizeof(float));
    received[i] = malloc(elements * sizeof(float));
    if (sent[i] == NULL || received[i] == NULL) return 1;
  }
  hetcomm_request_t* out[kInFlight] = {NULL};
  hetcomm_request_t* in[kInFlight] = {NULL};
  /* The first stage sends |kInFlight| micro-batches before it waits for the first gradient. */
  for (int i = 0; i < kMicroBatches + kInFlight; ++i) {
    const int slot = i % kInFlight;
    if (i >= kInFlight) {
      if (in[slot] != NULL) wait_for(in[slot]);
      wait_for(out[slot]);
      /* The second stage returns its input as the gradient, so the first stage must get back the
       * values that it sent. */
      for (uint64_t e = 0; is_first && e < elements; ++e) {
        if (received[slot][e] == value(i - kInFlight, rank, e)) continue;
        fprintf(stderr, "rank %d: a gradient is wrong\n", rank);
        return 1;
      }
    }
    if (i >= kMicroBatches) continue;
    if (is_first) {
      for (uint64_t e = 0; e < elements; ++e) sent[slot][e] = value(i, rank, e);
      out[slot] = start(forward, sent[slot], NULL, elements);
      in[slot] = start(backward, NULL, received[slot], elements);
    } else {
      wait_for(start(forward, NULL, received[slot], elements));
      memcpy(sent[slot], received[slot], elements * sizeof(float)); /* instead of a computation */
      out[slot] = start(backward, sent[slot], NULL, elements);
      in[slot] = NULL;
    }
  }
  printf("rank %d of %d: %d micro-batches on and back\n", rank, size, kMicroBatches);

  check(hetcomm_communicator_barrier(world, HETCOMM_TIMEOUT_DEFAULT), "barrier");
  check(hetcomm_reshard_destroy(forward), "destroy");
  check(hetcomm_reshard_destroy(backward), "destroy");
  check(hetcomm_layout_destroy(first), "destroy");
  check(hetcomm_layout_destroy(second), "destroy");
  for (int i = 0; i < kInFlight; ++i) {
    free(sent[i]);
    free(received[i]);
  }
  check(hetcomm_communicator_destroy(world), "destroy");
  hetcomm_bootstrap_destroy(bootstrap);
  check(hetcomm_context_destroy(context), "destroy");
  return 0;
}
