/* Every rank puts a block into the next rank's memory, and the put notifies that rank. The transfer
 * requires no receive and no other message.
 *
 *   torchrun --no-python --nproc-per-node 4 build/release/bin/example_notify
 * or by hand, as ring.c shows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetcomm/hetcomm.h>

enum { kTag = 7, kBytes = 1 << 20 };

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

/* Sends the exported description of this rank's memory to the previous rank, and imports the memory
 * of the next rank. */
static hetcomm_remote_memory_t* exchange(hetcomm_communicator_t* world, hetcomm_memory_t* window,
                                         int32_t before, int32_t next) {
  unsigned char mine[HETCOMM_EXPORT_MAX_BYTES];
  unsigned char theirs[HETCOMM_EXPORT_MAX_BYTES];
  size_t size;
  hetcomm_request_t* receive;
  hetcomm_request_t* send;
  hetcomm_remote_memory_t* remote;
  hetcomm_completion_t completion;
  check(hetcomm_memory_export(window, sizeof(mine), mine, &size), "export");
  check(hetcomm_recv(world, next, kTag, HETCOMM_EXACT_TAG,
                     hetcomm_buffer_host(theirs, sizeof(theirs)), NULL, &receive),
        "recv");
  check(hetcomm_send(world, before, kTag, hetcomm_buffer_host(mine, size), NULL, &send), "send");
  wait_for(send);
  check(hetcomm_request_wait(receive, HETCOMM_TIMEOUT_DEFAULT, &completion), "wait");
  check(completion.status, "recv");
  check(hetcomm_memory_import(world, theirs, (size_t)completion.bytes_received, &remote), "import");
  return remote;
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

  hetcomm_memory_t* window;
  void* bytes;
  check(hetcomm_memory_allocate(context, HETCOMM_DEVICE_HOST, kBytes, &window), "allocate");
  check(hetcomm_memory_address(window, &bytes), "address");
  /* HETCOMM_ACCESS_PUT lets other ranks only put. With HETCOMM_ACCESS_ALL, ranks on this host would
   * map the memory. This process is in calls that wait while others use the memory, so it needs no
   * progress thread. */
  check(
      hetcomm_memory_register(window, world, HETCOMM_ACCESS_PUT, HETCOMM_REGISTER_CALLER_PROGRESS),
      "register");
  hetcomm_remote_memory_t* next =
      exchange(world, window, (rank + size - 1) % size, (rank + 1) % size);

  char* block = malloc(kBytes);
  if (block == NULL) return 1;
  memset(block, 'a' + rank % 26, kBytes);
  hetcomm_operation_options_t options;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.flags = HETCOMM_OPERATION_NOTIFY;
  options.notify_value = 100 + (uint64_t)rank;
  hetcomm_request_t* put;
  check(hetcomm_put(next, 0, hetcomm_buffer_host(block, kBytes), &options, &put), "put");

  /* The notification arrives once, when all bytes are in place. */
  hetcomm_notification_t note;
  check(hetcomm_memory_wait_notification(window, HETCOMM_TIMEOUT_DEFAULT, &note), "notification");
  printf("rank %d of %d was put '%c' by rank %d, with the value %d\n", rank, size,
         ((char*)bytes)[note.length - 1], note.source, (int)note.value);
  wait_for(put);

  /* A rank must not unregister its memory while another rank may still put into it. */
  check(hetcomm_communicator_barrier(world, HETCOMM_TIMEOUT_DEFAULT), "barrier");
  check(hetcomm_remote_memory_destroy(next), "release");
  check(hetcomm_memory_unregister(window, HETCOMM_TIMEOUT_DEFAULT), "unregister");
  check(hetcomm_memory_destroy(window), "free");
  check(hetcomm_communicator_destroy(world), "destroy");
  hetcomm_bootstrap_destroy(bootstrap);
  check(hetcomm_context_destroy(context), "destroy");
  free(block);
  return 0;
}
