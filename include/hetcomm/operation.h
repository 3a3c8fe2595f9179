/* Operations: the options that messages and one-sided operations share, and groups, which start
 * several operations together. Collective operations have options of their own
 * (hetcomm/collective.h) and can join the same groups.                                          */
#ifndef HETCOMM_OPERATION_H_
#define HETCOMM_OPERATION_H_

#include <hetcomm/communicator.h>
#include <hetcomm/request.h>
#include <hetcomm/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Priority of an operation among those with the same peer. */
enum {
  HETCOMM_PRIORITY_NORMAL = 0,
  /* Bulk data of the operation goes before bulk data of normal operations to the same peer. The
   * order in which messages are matched does not change. */
  HETCOMM_PRIORITY_HIGH = 1
};

/* Flags of an operation; they are combined by or. */
enum {
  /* A receive from HETCOMM_ANY_SOURCE fails as soon as one rank of the communicator is lost.
   * Without the flag it fails when no rank is left that could send. Once a message has matched the
   * receive, with or without the flag, the loss of that message's sender ends it with PEER_LOST
   * unless all of the message has arrived. */
  HETCOMM_OPERATION_FAIL_ON_ANY_LOSS = 1,
  /* A put notifies the owner of the memory with |notify_value| (hetcomm_put). */
  HETCOMM_OPERATION_NOTIFY = 2
};

typedef struct hetcomm_group hetcomm_group_t;

typedef struct hetcomm_operation_options {
  /* The caller sets it to sizeof(hetcomm_operation_options_t). */
  size_t struct_size;
  /* Deadline of the operation, counted from its submission; a prepared operation counts it from
   * each start. 0: HETCOMM_TIMEOUT, which is 30 minutes unless set. */
  uint64_t timeout_ns;
  /* HETCOMM_PRIORITY_*. */
  int32_t priority;
  /* HETCOMM_OPERATION_*. */
  uint32_t flags;
  /* The operation starts when this group is started. NULL: it starts at once. */
  hetcomm_group_t* group;
  /* The owner of the memory gets this value with a put that has HETCOMM_OPERATION_NOTIFY. */
  uint64_t notify_value;
  /* The operation starts after what this stream holds, and the stream waits for it
   * (hetcomm/stream.h). NULL: it is in no stream's order. */
  hetcomm_stream_t* stream;
  /* The label of an execution of a redistribution (hetcomm/reshard.h): the step and the micro-batch
   * that it belongs to. Other operations do not look at it. */
  uint64_t step;
  uint64_t micro_batch;
} hetcomm_operation_options_t;

/* Creates an empty group for operations on |communicator|, which cannot be destroyed before the
 * group (BUSY). A call whose options name the group collects its operation there. Calls on other
 * communicators, and calls that prepare an operation, cannot name it (INVALID_ARGUMENT). All calls
 * on a group, those that collect included, come from one thread at a time. The deadline of an
 * operation counts from when it was collected: one that is never started ends with TIMED_OUT.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_group_create(
    hetcomm_communicator_t* communicator, hetcomm_group_t** out_group) HETCOMM_NOEXCEPT;

/* Starts the collected operations in the order in which they were collected, and empties the group,
 * which can be filled again. No progress runs between two of them. Does not wait. Where operations
 * name streams, all start together when all of these streams have come to them, and each stream
 * waits for those operations that name it. What keeps an operation from starting is its outcome and
 * does not fail the call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_group_start(hetcomm_group_t* group)
    HETCOMM_NOEXCEPT;

/* Frees the group. Operations that were collected and never started end with CANCELLED; their
 * requests still have to be waited for or destroyed. NULL is accepted. [exclusive] */
HETCOMM_API void hetcomm_group_destroy(hetcomm_group_t* group) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_OPERATION_H_ */
