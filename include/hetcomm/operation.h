/* Declares the options that messages and one-sided operations share, and groups, which start
 * several operations together. Collective operations have options of their own
 * (hetcomm/collective.h) and can join the same groups. */
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
   * Without the flag it fails when no rank is left that could send. With or without the flag, a
   * receive that a message has matched ends with PEER_LOST if that message's sender is lost before
   * the whole message has arrived. */
  HETCOMM_OPERATION_FAIL_ON_ANY_LOSS = 1,
  /* A put notifies the owner of the memory with |notify_value| (hetcomm_put). */
  HETCOMM_OPERATION_NOTIFY = 2
};

typedef struct hetcomm_group hetcomm_group_t;

typedef struct hetcomm_operation_options {
  /* The caller sets it to sizeof(hetcomm_operation_options_t). */
  size_t struct_size;
  /* Time limit of the operation, from its submission, or from each start of a prepared operation.
   * 0: HETCOMM_TIMEOUT, which is 30 minutes unless set. */
  uint64_t timeout_ns;
  /* One of HETCOMM_PRIORITY_*. */
  int32_t priority;
  /* Any of HETCOMM_OPERATION_*, combined by or. */
  uint32_t flags;
  /* The operation starts when this group is started. NULL: it starts at once. */
  hetcomm_group_t* group;
  /* Value that a put with HETCOMM_OPERATION_NOTIFY gives to the owner of the memory. */
  uint64_t notify_value;
  /* The operation starts after the work that this stream holds, and later work in the stream waits
   * for it (hetcomm/stream.h). NULL: the operation is not in a stream. */
  hetcomm_stream_t* stream;
  /* Label of an execution of a redistribution (hetcomm/reshard.h): the step and the micro-batch to
   * which it belongs. Other operations ignore it. */
  uint64_t step;
  uint64_t micro_batch;
} hetcomm_operation_options_t;

/* Creates an empty group for operations on |communicator|, which cannot be destroyed before the
 * group (BUSY). A call whose options name the group adds its operation to the group. Calls on other
 * communicators, and calls that prepare an operation, cannot name it (INVALID_ARGUMENT). Only one
 * thread at a time may use a group, including the calls that add operations. The deadline of an
 * operation counts from when it was added: one that is never started ends with TIMED_OUT.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_group_create(
    hetcomm_communicator_t* communicator, hetcomm_group_t** out_group) HETCOMM_NOEXCEPT;

/* Starts the operations of the group in the order in which they were added, and empties the group,
 * which can be filled again. No progress runs between two of them. Does not wait. If operations
 * name streams, all operations start together when all of these streams have reached them. Each
 * stream waits for the operations that name it. An operation that cannot start ends with the reason
 * as its outcome; the call does not fail. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_group_start(hetcomm_group_t* group)
    HETCOMM_NOEXCEPT;

/* Frees the group. Operations that were added and never started end with CANCELLED; their requests
 * still have to be waited for or destroyed. NULL is accepted. [exclusive] */
HETCOMM_API void hetcomm_group_destroy(hetcomm_group_t* group) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_OPERATION_H_ */
