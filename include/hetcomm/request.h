/* Request: one asynchronous operation.
 *
 *   submit OK --> pending --exactly once--> complete --wait/test reports it--> released
 *
 * A request made by hetcomm_send and its kin is used once: the call that reports its completion
 * releases it, and later use returns STALE_HANDLE. A prepared request (hetcomm_send_prepare) goes
 * back to idle instead, can be started again, and ends with hetcomm_request_release.
 *
 * "Did the call work" is the return value; "did the operation work" is the completion record.  */
#ifndef HETCOMM_REQUEST_H_
#define HETCOMM_REQUEST_H_

#include <hetcomm/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An opaque handle: a slot and a generation, not an address to follow. */
typedef struct hetcomm_request hetcomm_request_t;

/* Time limits, nanoseconds from the call. 0 means the default everywhere. */
#define HETCOMM_TIMEOUT_DEFAULT UINT64_C(0)
#define HETCOMM_TIMEOUT_POLL UINT64_C(1) /* do not wait at all                   */
#define HETCOMM_TIMEOUT_INFINITE UINT64_C(0xffffffffffffffff)

/* How an operation ended. Frozen layout. */
typedef struct hetcomm_completion {
  hetcomm_status_t status; /* OK, TRUNCATED, TIMED_OUT, CANCELLED, PEER_LOST, ABORTED, ...       */
  int32_t source;          /* receive: rank of the sender, -1 if none matched; send: own rank   */
  uint64_t tag;            /* tag of the message                                                */
  uint64_t bytes_sent;     /* length that the sender sent                                       */
  uint64_t bytes_received; /* bytes delivered into the receive buffer; send: equals bytes_sent  */
  const char* text;        /* "" or what went wrong: operation, peer, transport, reason. Borrowed
                              until this thread's next hetcomm call                             */
} hetcomm_completion_t;

/* Drives communication once; PENDING if the operation is still running, OK with the record when it
 * has ended (whatever its outcome) and the request is released (prepared: idle again).
 * |out_completion| may be NULL. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_test(
    hetcomm_request_t* request, hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Waits until the operation has ended. TIMED_OUT after |timeout_ns| (the request is still pending
 * and valid); otherwise as hetcomm_request_test. |timeout_ns| 0 or INFINITE: until it ends; it
 * always does, by its own deadline. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_request_wait(hetcomm_request_t* request, uint64_t timeout_ns,
                     hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Waits until one of |count| requests has ended and reports it; NULL entries are passed over.
 * INVALID_ARGUMENT when all are NULL. All must belong to one context and have been started; a
 * request that cannot be waited for is reported unless another one has ended. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_request_wait_any(size_t count, hetcomm_request_t* const* requests, uint64_t timeout_ns,
                         size_t* out_index, hetcomm_completion_t* out_completion) HETCOMM_NOEXCEPT;

/* Asks to end the operation with CANCELLED. It still completes exactly once, perhaps with its
 * normal outcome; its memory is quiet when it has. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_cancel(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

/* Starts a prepared request. BUSY while it runs. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_start(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

/* Gives the handle back without waiting. A running operation goes on and ends unseen; its buffers
 * stay in use until then. NULL is accepted. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_request_release(hetcomm_request_t* request)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_REQUEST_H_ */
