/* Declares the options of messages and one-sided operations, and groups, which start multiple
 * operations together. Collective operations have their own options (hetcomm/collective.h), but can
 * join the same groups. */
#ifndef HETCOMM_OPERATION_H_
#define HETCOMM_OPERATION_H_

#include <hetcomm/communicator.h>
#include <hetcomm/request.h>
#include <hetcomm/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Priority of an operation relative to other operations with the same peer. */
enum {
  HETCOMM_PRIORITY_NORMAL = 0,
  /* Bulk data of the operation is sent before bulk data of normal operations to the same peer. The
   * order in which messages are matched does not change. */
  HETCOMM_PRIORITY_HIGH = 1
};

/* Flags of an operation, combined by bitwise OR. */
enum {
  /* A receive from HETCOMM_ANY_SOURCE fails as soon as one rank of the communicator is lost.
   * Without the flag it fails once every rank that could send is lost. In both cases, a receive
   * that has been matched with a message fails with PEER_LOST if the sender is lost before the
   * whole message has arrived. */
  HETCOMM_OPERATION_FAIL_ON_ANY_LOSS = 1,
  /* Put only: notifies the owner of the memory with |notify_value| (hetcomm_put). */
  HETCOMM_OPERATION_NOTIFY = 2
};

typedef struct hetcomm_group hetcomm_group_t;

typedef struct hetcomm_operation_options {
  /* The caller sets it to sizeof(hetcomm_operation_options_t). */
  size_t struct_size;
  /* Time limit of the operation, counted from its submission, or from each start of a prepared
   * operation. 0: HETCOMM_TIMEOUT, whose default is 30 minutes. */
  uint64_t timeout_ns;
  /* One of HETCOMM_PRIORITY_*. */
  int32_t priority;
  /* Any of HETCOMM_OPERATION_*, combined by bitwise OR. */
  uint32_t flags;
  /* The operation starts when this group is started. NULL: it starts immediately. */
  hetcomm_group_t* group;
  /* Value that a put with HETCOMM_OPERATION_NOTIFY delivers to the owner of the memory. */
  uint64_t notify_value;
  /* The operation starts after the work that was submitted to this stream before it, and later work
   * in the stream waits for it (hetcomm/stream.h). NULL: the operation is not in a stream. */
  hetcomm_stream_t* stream;
  /* Label of an execution of a reshard plan (hetcomm/reshard.h): the step and the micro-batch that
   * it belongs to. Other operations ignore it. */
  uint64_t step;
  uint64_t micro_batch;
} hetcomm_operation_options_t;

/* Creates an empty group for operations on |communicator|, which cannot be destroyed before the
 * group (BUSY). A call whose options name the group adds its operation to the group. Calls on other
 * communicators, and calls that prepare an operation, must not name it (INVALID_ARGUMENT). Only one
 * thread at a time may use a group, and calls that add operations count as uses. The time limit of
 * an operation starts when it is added to the group, so an operation that is never started ends
 * with TIMED_OUT. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_group_create(
    hetcomm_communicator_t* communicator, hetcomm_group_t** out_group) HETCOMM_NOEXCEPT;

/* Starts the operations of the group in the order in which they were added, and empties the group,
 * which can then be reused. The call does not wait, and the library makes no progress between the
 * starts. If operations name streams, all operations start together once all of these streams have
 * reached them. Each stream waits for the operations that name it. If an operation cannot start,
 * its completion record has the reason; the call itself does not fail. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_group_start(hetcomm_group_t* group)
    HETCOMM_NOEXCEPT;

/* Frees the group. Operations that were added but never started end with CANCELLED; the caller must
 * still wait for their requests or destroy them. NULL is accepted. [exclusive] */
HETCOMM_API void hetcomm_group_destroy(hetcomm_group_t* group) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_OPERATION_H_ */
