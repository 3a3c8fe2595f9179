/* A request represents one asynchronous operation.
 *
 *   submit OK --> pending --exactly once--> complete --wait or test reports it--> destroyed
 *
 * A call that starts an operation, such as hetcomm_send, returns a request that is used once: the
 * call that reports its completion destroys it, and later calls with it return STALE_HANDLE. A
 * prepared request (hetcomm_send_prepare) becomes idle instead, can be started again, and is
 * destroyed by hetcomm_request_destroy. A completed request remains valid after its communicator is
 * destroyed. No request remains valid after its context is destroyed.
 *
 * The return value of these functions says whether the call worked. The status in the completion
 * record says whether the operation worked. */
#ifndef HETCOMM_REQUEST_H_
#define HETCOMM_REQUEST_H_

#include <hetcomm/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An opaque handle that encodes a slot and a generation; it is not an address. All functions below
 * return STALE_HANDLE for a destroyed request, even if its slot has been reused. */
typedef struct hetcomm_request hetcomm_request_t;

/* Time limits are in nanoseconds from the time of the call. The comment of each function defines
 * the meaning of 0. */
#define HETCOMM_TIMEOUT_DEFAULT UINT64_C(0)
/* The call makes progress once and does not wait. */
#define HETCOMM_TIMEOUT_POLL UINT64_C(1)
#define HETCOMM_TIMEOUT_INFINITE UINT64_C(0xffffffffffffffff)

/* The outcome of an operation. The structure's layout is frozen: it has no struct_size and never
 * grows. */
typedef struct hetcomm_completion {
  /* OK, TRUNCATED, TIMED_OUT, CANCELLED, PEER_LOST, ABORTED or another code; the comments of the
   * functions that start operations list them. */
  hetcomm_status_t status;
  /* Receive: rank of the sender, or -1 if no message was matched. Send, put and collective
   * operation: this rank. Get and atomic: not meaningful. */
  int32_t source;
  /* Send and receive: tag of the message. Other operations: 0. */
  uint64_t tag;
  /* Send and receive: bytes that the sender sent. One-sided operation: bytes that were transferred.
   * Collective operation: total length of this rank's send buffers. Not meaningful when the
   * operation failed, except with TRUNCATED. */
  uint64_t bytes_sent;
  /* Receive: bytes that were written to the receive buffer. Send and one-sided operation: equal to
   * bytes_sent. Collective operation: total length of this rank's receive buffers. Not meaningful
   * when the operation failed, except with TRUNCATED. */
  uint64_t bytes_received;
  /* Text with the operation, peer, transport and reason of a failure; "" if the operation
   * succeeded. The string is borrowed until this thread's next hetcomm call. */
  const char* text;
} hetcomm_completion_t;

/* Makes progress once and reports whether the operation has ended. PENDING: it is still running.
 * OK: it has ended, and |*out_completion| has the outcome. The request is then destroyed, or idle
 * again if it was prepared. |out_completion| may be NULL. STALE_HANDLE: the request was destroyed,
 * perhaps because another thread has just reported its completion. INVALID_ARGUMENT: |request| is
 * NULL, or was prepared and not started. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_test(
    hetcomm_request_t* request, hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Waits until the operation has ended and reports its outcome like hetcomm_request_test. TIMED_OUT:
 * the operation is still running after |timeout_ns|, and the request stays valid. With a
 * |timeout_ns| of 0 or HETCOMM_TIMEOUT_INFINITE the call waits until the operation ends, at the
 * latest at the operation's own deadline. If multiple threads wait for one request, one of them
 * gets the outcome and the others get STALE_HANDLE. Other errors are those of hetcomm_request_test.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_request_wait(hetcomm_request_t* request, uint64_t timeout_ns,
                     hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Waits until one of |count| requests has ended, reports it like hetcomm_request_test, and writes
 * its index in the array to |*out_index|. If more than one has ended, it reports any one of them.
 * The call does not change the array: before waiting again, the caller must replace the reported
 * entry by NULL or by another request. NULL entries are skipped. |out_completion| may be NULL.
 * |timeout_ns| is as for hetcomm_request_wait.
 *
 * A call that has to sleep first checks all |count| entries. It checks them again whenever
 * operations that are not in the array have ended. So if one call is made for each of n requests,
 * the total time can grow with the square of n. If the order does not matter, call
 * hetcomm_request_wait for each request in turn, which takes linear time.
 *   TIMED_OUT         None has ended; all requests stay valid.
 *   STALE_HANDLE      An entry was destroyed, such as the one that was reported last. If another
 *                     entry has ended, the call may report that entry instead.
 *   INVALID_ARGUMENT  All entries are NULL, the requests belong to different contexts, or one was
 *                     prepared but not started. If an entry has ended, the call may report that
 *                     entry instead.
 *   OUT_OF_RANGE      |count| is 2^32 - 1 or more.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_request_wait_any(size_t count, hetcomm_request_t* const* requests, uint64_t timeout_ns,
                         size_t* out_index, hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Requests that the operation end with CANCELLED. The operation still completes exactly once,
 * perhaps with its normal outcome. Once it has completed, its memory is no longer used. If the
 * request is complete or idle, the call has no effect and returns OK. STALE_HANDLE: the request was
 * destroyed. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_cancel(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

/* Starts a prepared request. BUSY: it is running, or it has ended but was not reported yet.
 * INVALID_ARGUMENT: it is not a prepared request, its communicator was destroyed, or, in debug
 * builds of the library, its buffers overlap those of another pending receive. STALE_HANDLE: it was
 * destroyed. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_start(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

/* Destroys the request without waiting. A running operation continues, but its outcome is not
 * reported, and its buffers stay in use until it has ended. An operation whose group was not
 * started yet is cancelled. STALE_HANDLE: the request is already destroyed. NULL is accepted.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_destroy(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_REQUEST_H_ */
