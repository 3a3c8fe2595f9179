/* A queue transfers items from one rank to another, in order and asynchronously, so that the
 * transfer over a slow link overlaps with computation (HetAuto, section 5.1).
 *
 *   hetcomm_queue_create(..., HETCOMM_QUEUE_PUSH, ...)      hetcomm_queue_create(..., _PULL, ...)
 *     push(item 0), push(item 1), ...              -->        pull(item 0), pull(item 1), ...
 *
 * The n-th item that one rank pushes is written to the buffer of the other rank's n-th pull. Push
 * and pull immediately return a request. A pull immediately announces its buffer to the other rank.
 * An item that is pushed after that is sent without a handshake. So post the next pull before
 * working on the item that has arrived. Copies of items between device and host overlap with their
 * transfer over the network.
 *
 * At most |depth| items can be in flight at each end. A further push or pull returns BUSY, and the
 * caller must wait for its oldest request first.
 *
 * A queue transfers items while its rank computes, so it requires a context with a progress thread
 * (HETCOMM_PROGRESS_THREAD in hetcomm/context.h).
 *
 * The status in an item's completion record is one of those of messages (hetcomm/p2p.h), or one of
 * these:
 *   CANCELLED  The item was cancelled on this rank. Items before and after it are not affected.
 *   ABORTED    The other rank ended the item early; the text has its rank, its status and its
 *              reason, and the next pull gets the next item. Or the other rank destroyed its end;
 *              items that were in flight before that still arrive.
 *   MISMATCH   The other rank created its end with a different size or depth; the text has both.
 *   TRUNCATED  A push matched a pull with a shorter buffer. The pull ends with ABORTED. */
#ifndef HETCOMM_QUEUE_H_
#define HETCOMM_QUEUE_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The two ends of a queue. */
enum { HETCOMM_QUEUE_PUSH = 1, HETCOMM_QUEUE_PULL = 2 };

/* Maximum |depth| of a queue. */
#define HETCOMM_QUEUE_MAX_DEPTH UINT32_C(1024)
/* Maximum |weight| of a queue. */
#define HETCOMM_QUEUE_MAX_WEIGHT UINT32_C(1000)

typedef struct hetcomm_queue hetcomm_queue_t;

typedef struct hetcomm_queue_options {
  /* The caller sets it to sizeof(hetcomm_queue_options_t). */
  size_t struct_size;
  /* Distinguishes queues in the same direction between the same two ranks. Ends with the same tag
   * are paired in the order in which each rank created its ends. */
  uint64_t tag;
  /* Maximum size of an item in bytes; at least 1. Both ranks must pass the same number. */
  uint64_t max_item_bytes;
  /* Maximum number of items in flight. 0 selects 4. Both ranks must pass the same number. */
  uint32_t depth;
  /* Queues from this rank over the same network interface share its rate in proportion to their
   * weights, as long as each of them has at least a few MiB waiting. 0: a weight of 1. At most
   * HETCOMM_QUEUE_MAX_WEIGHT. Queues to ranks on this host share only with other queues to the same
   * rank. If the path of a queue is slower than its share of the interface, the queue gets the rate
   * of the path, and the others share the rest. The library detects this within a few seconds, and
   * checks again from time to time: the others then wait for the slow queue for about 250 ms. Only
   * the pushing end sets a weight; the pulling end has 0. */
  uint32_t weight;
  /* Maximum rate at which items are sent, in bytes per second. After a pause the queue may send a
   * burst: the bytes of 20 ms at this rate, or 16 KiB if that is more. 0: no limit. Only the
   * pushing end sets a rate; the pulling end has 0. */
  uint64_t max_bytes_per_second;
} hetcomm_queue_options_t;

/* Creates this rank's |end| of a queue, HETCOMM_QUEUE_PUSH or HETCOMM_QUEUE_PULL. Rank |peer|,
 * which may be this rank, creates the other end. The call does not wait for the other end; items
 * wait for it instead. The communicator cannot be destroyed before the queue (BUSY).
 *   INVALID_ARGUMENT  |end| is neither HETCOMM_QUEUE_PUSH nor HETCOMM_QUEUE_PULL, |options| is NULL
 *                     or invalid, max_item_bytes is 0, or the pulling end has a weight or a rate.
 *   OUT_OF_RANGE      There is no rank |peer|, max_item_bytes is 2^48 or more, the depth is above
 *                     HETCOMM_QUEUE_MAX_DEPTH, or the weight is above HETCOMM_QUEUE_MAX_WEIGHT.
 *   UNSUPPORTED       The context has no progress thread.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_create(
    hetcomm_communicator_t* communicator, int32_t peer, int32_t end,
    const hetcomm_queue_options_t* options, hetcomm_queue_t** out_queue) HETCOMM_NOEXCEPT;

/* Pushes the bytes of |buffer|, in host or device memory, as the next item. The request completes
 * when the buffer can be reused, which does not mean that the item was pulled. |options| may be
 * NULL.
 *   BUSY              |depth| items are in flight. In a completion record: the other end is
 *                     thousands of items behind, because many items ended early here without being
 *                     pulled there.
 *   INVALID_ARGUMENT  |queue| is the pulling end. Other reasons are as for hetcomm_send.
 *   OUT_OF_RANGE      The item is longer than max_item_bytes. Other reasons are as for
 *                     hetcomm_send.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_push(
    hetcomm_queue_t* queue, hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Pulls the next item into |buffer|, in host or device memory. |buffer| must be large enough for
 * the item. It may be shorter than max_item_bytes if the next item is known to be shorter too. The
 * completion record has the length of the item; the contents of the rest of the buffer are
 * undefined. |options| may be NULL.
 *   BUSY              |depth| items are in flight. In a completion record: the other end is
 *                     thousands of items behind, because many items ended early here without being
 *                     pushed there.
 *   INVALID_ARGUMENT  |queue| is the pushing end, or the buffer is empty. Other reasons are as for
 *                     hetcomm_recv.
 *   OUT_OF_RANGE      The buffer is longer than max_item_bytes. Other reasons are as for
 *                     hetcomm_recv.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_pull(
    hetcomm_queue_t* queue, hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Waits until no item is in flight at this end. The caller must still wait for the items' requests
 * or destroy them. A |timeout_ns| of 0 means HETCOMM_TIMEOUT. TIMED_OUT: some items are still in
 * flight. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_queue_drain(hetcomm_queue_t* queue, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Requests that all items in flight at this end end with CANCELLED, like hetcomm_request_cancel.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_cancel(hetcomm_queue_t* queue)
    HETCOMM_NOEXCEPT;

/* Gets the number of items in flight at this end. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_queue_pending(hetcomm_queue_t* queue, uint32_t* out_count) HETCOMM_NOEXCEPT;

/* Destroys this end. Items of the other end that this end has not started end with ABORTED. BUSY:
 * items are in flight; drain or cancel them first. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_destroy(hetcomm_queue_t* queue)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_QUEUE_H_ */
