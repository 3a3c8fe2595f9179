/* Queues: an ordered, bounded, asynchronous way from one rank to another, which hides a slow link
 * behind computation (HetAuto, section 5.1).
 *
 *   hetcomm_queue_create(..., HETCOMM_QUEUE_PUSH, ...)      hetcomm_queue_create(..., _PULL, ...)
 *     push(item 0), push(item 1), ...              -->        pull(item 0), pull(item 1), ...
 *
 * Item n that one rank pushes goes into the buffer of pull n of the other. Push and pull return at
 * once with a request. A pull tells its buffer to the other rank as soon as it is made, so that an
 * item which is pushed later leaves without being announced or asked for: who pulls posts the next
 * pull before it works on the item that has come. The copies of items from and to devices, and
 * their way over the network, overlap.
 *
 * At most |depth| items are under way at each end. A further push or pull returns BUSY, and the
 * caller waits for its oldest request first.
 *
 * A queue moves items while its rank computes, so that it needs a context with the progress option
 * |thread| (hetcomm/context.h).
 *
 * All else that can happen to an item is the status in its completion record, as for messages
 * (hetcomm/p2p.h), and besides:
 *   CANCELLED  The item was cancelled here. Items before and behind it are not touched.
 *   ABORTED    The other rank ended the item; the text has its rank, its status and its reason, and
 *              the next pull gets the next item. Or it destroyed its end; items that were under way
 *              before arrive.
 *   MISMATCH   The other rank created its end with another size or depth; the text has both.
 *   TRUNCATED  The item was pushed into a pull with a shorter buffer. The pull ends with
 *              ABORTED. */
#ifndef HETCOMM_QUEUE_H_
#define HETCOMM_QUEUE_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which end of a queue this rank has. */
enum { HETCOMM_QUEUE_PUSH = 1, HETCOMM_QUEUE_PULL = 2 };

/* The most items under way that a queue can have. */
#define HETCOMM_QUEUE_MAX_DEPTH UINT32_C(1024)
/* The most that a queue can weigh. */
#define HETCOMM_QUEUE_MAX_WEIGHT UINT32_C(1000)

typedef struct hetcomm_queue hetcomm_queue_t;

typedef struct hetcomm_queue_options {
  /* The caller sets it to sizeof(hetcomm_queue_options_t). */
  size_t struct_size;
  /* Tells queues in one direction between the same two ranks apart. Two queues with the same tag
   * are joined in the order in which each rank created its ends. */
  uint64_t tag;
  /* An item has at most so many bytes, and at least 1. The other rank says the same. */
  uint64_t max_item_bytes;
  /* The most items that are under way at a time. 0: 4. Both ranks give the same number. */
  uint32_t depth;
  /* Queues from this rank over one network interface share it in proportion to their weights, while
   * each has some MiB in total waiting; 0: 1. At most HETCOMM_QUEUE_MAX_WEIGHT. Queues to ranks of
   * this host share with others to the same rank only. Where the way of a queue is slow beyond the
   * interface, it has what that carries, and the others share the rest. This is found out within
   * some seconds, and checked again from time to time: others then wait for the slow one for some
   * 250 ms. The pushing end says it; the pulling end has 0. */
  uint32_t weight;
  /* Items leave at this rate at most, in bytes a second, but for 20 ms of it or 16 KiB after a
   * pause; 0: without a limit. The pushing end says it; the pulling end has 0. */
  uint64_t max_bytes_per_second;
} hetcomm_queue_options_t;

/* Creates this rank's |end| of a queue, HETCOMM_QUEUE_PUSH or HETCOMM_QUEUE_PULL, whose other end
 * rank |peer| creates, which may be this rank. Does not wait for it: items wait instead. The
 * communicator cannot be destroyed before the queue (BUSY).
 *   INVALID_ARGUMENT  |end| is none, |options| is NULL or wrong, max_item_bytes is 0, or the
 *                     pulling end has a weight or a rate.
 *   OUT_OF_RANGE      There is no rank |peer|; max_item_bytes is 2^48 or more; the depth is more
 *                     than HETCOMM_QUEUE_MAX_DEPTH, or the weight more than
 *                     HETCOMM_QUEUE_MAX_WEIGHT.
 *   UNSUPPORTED       The context's progress is not |thread|.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_create(
    hetcomm_communicator_t* communicator, int32_t peer, int32_t end,
    const hetcomm_queue_options_t* options, hetcomm_queue_t** out_queue) HETCOMM_NOEXCEPT;

/* Pushes the bytes of |buffer|, in host or device memory, as the next item. The request completes
 * when the buffer may be reused, which does not mean that the item was pulled. |options| may be
 * NULL.
 *   BUSY              |depth| items are under way. In the completion record: thousands of items
 *                     were given up here that the other end has not pulled.
 *   INVALID_ARGUMENT  It is the pulling end, or as for hetcomm_send.
 *   OUT_OF_RANGE      The item is longer than max_item_bytes, or as for hetcomm_send.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_push(
    hetcomm_queue_t* queue, hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Pulls the next item into |buffer|, in host or device memory, which has room for it; |buffer| may
 * be shorter than max_item_bytes where the next item is known to be. The completion says how long
 * the item is; the rest of the buffer has no defined contents. |options| may be NULL.
 *   BUSY              |depth| items are under way, or this end has given up thousands of items that
 *                     were never pushed (then in the completion).
 *   INVALID_ARGUMENT  It is the pushing end, the buffer is empty, or as for hetcomm_recv.
 *   OUT_OF_RANGE      The buffer is longer than max_item_bytes, or as for hetcomm_recv.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_pull(
    hetcomm_queue_t* queue, hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Waits until no item is under way at this end. Their requests still have to be waited for or
 * destroyed. |timeout_ns| 0: HETCOMM_TIMEOUT. TIMED_OUT: some still are. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_queue_drain(hetcomm_queue_t* queue, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Asks to end all items under way at this end with CANCELLED, as hetcomm_request_cancel.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_cancel(hetcomm_queue_t* queue)
    HETCOMM_NOEXCEPT;

/* The number of items under way at this end. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_queue_pending(hetcomm_queue_t* queue, uint32_t* out_count) HETCOMM_NOEXCEPT;

/* Destroys this end. The items of the other end that this one has not begun end with ABORTED. BUSY:
 * items are under way; drain or cancel them first. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_queue_destroy(hetcomm_queue_t* queue)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_QUEUE_H_ */
