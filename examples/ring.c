/* Every rank sends a block to the next rank and receives one from the previous rank.
 *
 *   torchrun --no-python --nproc-per-node 4 build/release/bin/example_ring
 * or by hand:
 *   export WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
 *   for r in 0 1 2 3; do RANK=$r build/release/bin/example_ring & done; wait */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetcomm/hetcomm.h>

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

int main(void) {
  enum { kTag = 7, kBytes = 1 << 20 };
  hetcomm_context_t* context;
  hetcomm_bootstrap_t* bootstrap;
  hetcomm_communicator_t* world;
  check(hetcomm_context_create(NULL, &context), "context");
  check(hetcomm_bootstrap_create_from_environment(context, &bootstrap), "bootstrap");
  check(hetcomm_communicator_create(context, bootstrap, NULL, &world), "communicator");

  int32_t rank, size;
  check(hetcomm_communicator_rank(world, &rank, &size), "rank");
  char* out = malloc(kBytes);
  char* in = malloc(kBytes);
  if (out == NULL || in == NULL) return 1;
  memset(out, 'a' + rank % 26, kBytes);

  hetcomm_request_t* receive;
  hetcomm_request_t* send;
  check(hetcomm_recv(world, (rank + size - 1) % size, kTag, HETCOMM_EXACT_TAG,
                     hetcomm_buffer_host(in, kBytes), NULL, &receive),
        "recv");
  check(hetcomm_send(world, (rank + 1) % size, kTag, hetcomm_buffer_host(out, kBytes), NULL, &send),
        "send");
  wait_for(receive);
  wait_for(send);
  printf("rank %d of %d received '%c' from rank %d\n", rank, size, in[kBytes - 1],
         (rank + size - 1) % size);

  check(hetcomm_communicator_destroy(world), "destroy");
  hetcomm_bootstrap_destroy(bootstrap);
  check(hetcomm_context_destroy(context), "destroy");
  free(out);
  free(in);
  return 0;
}
