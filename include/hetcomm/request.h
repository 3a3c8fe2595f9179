/* A request stands for one asynchronous operation.
 *
 *   submit OK --> pending --exactly once--> complete --wait or test reports it--> destroyed
 *
 * A call that starts an operation, such as hetcomm_send, gives a request that is used once: the
 * call that reports its completion destroys it, and later use returns STALE_HANDLE. A prepared
 * request (hetcomm_send_prepare) goes back to idle instead, can be started again, and ends with
 * hetcomm_request_destroy. A request that has completed outlives its communicator. No request
 * outlives its context.
 *
 * The return value of these functions says whether the call worked. The status in the completion
 * record says whether the operation worked.                                                     */
#ifndef HETCOMM_REQUEST_H_
#define HETCOMM_REQUEST_H_

#include <hetcomm/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An opaque handle that encodes a slot and a generation; it is not an address. The library
 * recognizes a destroyed handle: all functions below return STALE_HANDLE for it, however often its
 * slot is reused. */
typedef struct hetcomm_request hetcomm_request_t;

/* Time limits are in nanoseconds from the call. Each function says what 0 means. */
#define HETCOMM_TIMEOUT_DEFAULT UINT64_C(0)
/* The call drives communication once and does not wait. */
#define HETCOMM_TIMEOUT_POLL UINT64_C(1)
#define HETCOMM_TIMEOUT_INFINITE UINT64_C(0xffffffffffffffff)

/* Record of how an operation ended. Frozen layout: it has no struct_size and never grows. */
typedef struct hetcomm_completion {
  /* OK, TRUNCATED, TIMED_OUT, CANCELLED, PEER_LOST, ABORTED and others; the functions that start
   * operations say which. */
  hetcomm_status_t status;
  /* Receive: rank of the sender, or -1 if no message was matched. Send, put and collective
   * operation: this rank. Get and atomic: not meaningful. */
  int32_t source;
  /* Send and receive: tag of the message. Other operations: 0. */
  uint64_t tag;
  /* Send and receive: bytes that the sender sent. One-sided operation: bytes that were moved.
   * Collective operation: length of all send buffers of this rank. Not meaningful when the
   * operation failed, except with TRUNCATED. */
  uint64_t bytes_sent;
  /* Receive: bytes that were written to the receive buffer. Send and one-sided operation: equal to
   * bytes_sent. Collective operation: length of all receive buffers of this rank. Not meaningful
   * when the operation failed, except with TRUNCATED. */
  uint64_t bytes_received;
  /* Text about what went wrong: operation, peer, transport and reason; "" if nothing did. Borrowed
   * until this thread's next hetcomm call. */
  const char* text;
} hetcomm_completion_t;

/* Drives communication once and reports whether the operation has ended. PENDING: it still runs.
 * OK: it has ended, and |*out_completion| says how. The request is then destroyed, or idle again if
 * it was prepared. |out_completion| may be NULL. STALE_HANDLE: the request was destroyed, perhaps
 * because another thread has just reported it. INVALID_ARGUMENT: |request| is NULL, or was prepared
 * and not started. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_test(
    hetcomm_request_t* request, hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Waits until the operation has ended and reports it, as hetcomm_request_test does. TIMED_OUT: it
 * still runs after |timeout_ns|, and the request stays valid. With a |timeout_ns| of 0 or
 * HETCOMM_TIMEOUT_INFINITE the call waits until the operation ends, which it does at its own
 * deadline at the latest. Where several threads wait for one request, one of them gets the report
 * and the others get STALE_HANDLE. Other errors are those of hetcomm_request_test. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_request_wait(hetcomm_request_t* request, uint64_t timeout_ns,
                     hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Waits until one of |count| requests has ended, reports it as hetcomm_request_test does, and
 * writes its place in the array to |*out_index|. If several have ended it reports any one of them.
 * The array is not changed: the caller replaces the reported entry, by NULL or by another request,
 * before it waits again. NULL entries are skipped. |out_completion| may be NULL. |timeout_ns| is as
 * for hetcomm_request_wait.
 *
 * A call that has to sleep looks at all |count| entries first. It looks at them again whenever
 * operations that are not in the array have ended. So the time to wait for many requests, one call
 * for each, may grow with the square of their number. If the order does not matter, call
 * hetcomm_request_wait for one request after the other: its cost does not grow this way.
 *   TIMED_OUT         None has ended; all requests stay valid.
 *   STALE_HANDLE      An entry was destroyed, such as the one that was reported last. The call may
 *                     report another entry instead, if one has ended.
 *   INVALID_ARGUMENT  All entries are NULL, the requests belong to several contexts, or one was
 *                     prepared and not started. The call may report an entry that has ended
 *                     instead.
 *   OUT_OF_RANGE      |count| is 2^32 - 1 or more.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_request_wait_any(size_t count, hetcomm_request_t* const* requests, uint64_t timeout_ns,
                         size_t* out_index, hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Asks to end the operation with CANCELLED. It still completes exactly once, perhaps with its
 * normal outcome. Once it has completed, nothing uses its memory any more. The call changes nothing
 * if the request is complete or idle, and returns OK. STALE_HANDLE: the request was destroyed.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_cancel(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

/* Starts a prepared request. BUSY: it runs, or has ended and was not reported yet.
 * INVALID_ARGUMENT: it is not a prepared one, its communicator was destroyed, or, in debug builds
 * of the library, its buffers overlap those of another pending receive. STALE_HANDLE: it was
 * destroyed. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_start(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

/* Destroys the request without waiting. A running operation continues, and its outcome is not
 * reported; its buffers stay in use until it has ended. An operation that waits for its group is
 * cancelled. STALE_HANDLE: the request was destroyed before. NULL is accepted. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_destroy(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_REQUEST_H_ */
