/* A queue moves items from one rank to another, in order and asynchronously. It hides a slow link
 * behind computation (HetAuto, section 5.1).
 *
 *   hetcomm_queue_create(..., HETCOMM_QUEUE_PUSH, ...)      hetcomm_queue_create(..., _PULL, ...)
 *     push(item 0), push(item 1), ...              -->        pull(item 0), pull(item 1), ...
 *
 * Item n that one rank pushes goes into the buffer of pull n of the other. Push and pull return at
 * once with a request. A pull tells the other rank at once which buffer it has. An item that is
 * pushed later is then sent without announcement or request. So post the next pull before working
 * on the item that has arrived. Copies of items from and to devices overlap with their transfer
 * over the network.
 *
 * At most |depth| items are under way at each end. A further push or pull returns BUSY, and the
 * caller waits for its oldest request first.
 *
 * A queue moves items while its rank computes, so it needs a context with HETCOMM_PROGRESS_THREAD
 * (hetcomm/context.h).
 *
 * The completion record of an item has a status of messages (hetcomm/p2p.h), or one of these:
 *   CANCELLED  The item was cancelled here. Items before and behind it are not touched.
 *   ABORTED    The other rank ended the item; the text has its rank, its status and its reason, and
 *              the next pull gets the next item. Or the other rank destroyed its end; items that
 *              were under way before that still arrive.
 *   MISMATCH   The other rank created its end with another size or depth; the text has both.
 *   TRUNCATED  The item was pushed into a pull with a shorter buffer. The pull ends with
 *              ABORTED. */
#ifndef HETCOMM_QUEUE_H_
#define HETCOMM_QUEUE_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The two ends of a queue. */
enum { HETCOMM_QUEUE_PUSH = 1, HETCOMM_QUEUE_PULL = 2 };

/* Largest |depth| of a queue. */
#define HETCOMM_QUEUE_MAX_DEPTH UINT32_C(1024)
/* Largest |weight| of a queue. */
#define HETCOMM_QUEUE_MAX_WEIGHT UINT32_C(1000)

typedef struct hetcomm_queue hetcomm_queue_t;

typedef struct hetcomm_queue_options {
  /* The caller sets it to sizeof(hetcomm_queue_options_t). */
  size_t struct_size;
  /* Distinguishes queues in one direction between the same two ranks. Ends with the same tag are
   * paired in the order in which each rank created its ends. */
  uint64_t tag;
  /* Largest size of an item in bytes; at least 1. Both ranks give the same number. */
  uint64_t max_item_bytes;
  /* Largest number of items that are under way at a time. 0: 4. Both ranks give the same number. */
  uint32_t depth;
  /* Queues from this rank over one network interface share its rate in proportion to their weights,
   * while each of them has at least some MiB waiting. 0: a weight of 1. At most
   * HETCOMM_QUEUE_MAX_WEIGHT. Queues to ranks of this host share only with others to the same rank.
   * If the path of a queue is slow beyond the interface, the queue gets what that path carries, and
   * the others share the rest. The library finds this out within some seconds, and checks it again
   * from time to time: the others then wait for the slow queue for about 250 ms. Only the pushing
   * end sets a weight; the pulling end has 0. */
  uint32_t weight;
  /* Highest rate at which items leave, in bytes per second. After a pause the queue may exceed it,
   * by 20 ms at this rate or by 16 KiB. 0: there is no limit. Only the pushing end sets a rate; the
   * pulling end has 0. */
  uint64_t max_bytes_per_second;
} hetcomm_queue_options_t;

/* Creates this rank's |end| of a queue, HETCOMM_QUEUE_PUSH or HETCOMM_QUEUE_PULL. Rank |peer|,
 * which may be this rank, creates the other end. The call does not wait for the other end: items
 * wait instead. The communicator cannot be destroyed before the queue (BUSY).
 *   INVALID_ARGUMENT  |end| is neither of the two, |options| is NULL or wrong, max_item_bytes is 0,
 *                     or the pulling end has a weight or a rate.
 *   OUT_OF_RANGE      There is no rank |peer|; max_item_bytes is 2^48 or more; the depth is more
 *                     than HETCOMM_QUEUE_MAX_DEPTH, or the weight more than
 *                     HETCOMM_QUEUE_MAX_WEIGHT.
 *   UNSUPPORTED       The context has no progress thread.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_create(
    hetcomm_communicator_t* communicator, int32_t peer, int32_t end,
    const hetcomm_queue_options_t* options, hetcomm_queue_t** out_queue) HETCOMM_NOEXCEPT;

/* Pushes the bytes of |buffer|, in host or device memory, as the next item. The request completes
 * when the buffer may be reused, which does not mean that the item was pulled. |options| may be
 * NULL.
 *   BUSY              |depth| items are under way. As the status of a completion record: this end
 *                     has given up thousands of items that the other end has not pulled.
 *   INVALID_ARGUMENT  |queue| is the pulling end. Other reasons are as for hetcomm_send.
 *   OUT_OF_RANGE      The item is longer than max_item_bytes. Other reasons are as for
 *                     hetcomm_send.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_push(
    hetcomm_queue_t* queue, hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Pulls the next item into |buffer|, in host or device memory. |buffer| must have room for the
 * item. It may be shorter than max_item_bytes if the next item is known to be shorter, too. The
 * completion says how long the item is; the rest of the buffer has no defined contents. |options|
 * may be NULL.
 *   BUSY              |depth| items are under way. As the status of a completion record: this end
 *                     has given up thousands of items that were never pushed.
 *   INVALID_ARGUMENT  |queue| is the pushing end, or the buffer is empty. Other reasons are as for
 *                     hetcomm_recv.
 *   OUT_OF_RANGE      The buffer is longer than max_item_bytes. Other reasons are as for
 *                     hetcomm_recv.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_pull(
    hetcomm_queue_t* queue, hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Waits until no item is under way at this end. The caller still has to wait for the items'
 * requests or destroy them. |timeout_ns| 0: HETCOMM_TIMEOUT. TIMED_OUT: some items are still under
 * way. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_queue_drain(hetcomm_queue_t* queue, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Asks to end all items under way at this end with CANCELLED, as hetcomm_request_cancel does.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_cancel(hetcomm_queue_t* queue)
    HETCOMM_NOEXCEPT;

/* Gives the number of items under way at this end. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_queue_pending(hetcomm_queue_t* queue, uint32_t* out_count) HETCOMM_NOEXCEPT;

/* Destroys this end. Items of the other end that this end has not begun end with ABORTED. BUSY:
 * items are under way; drain or cancel them first. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_destroy(hetcomm_queue_t* queue)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_QUEUE_H_ */
