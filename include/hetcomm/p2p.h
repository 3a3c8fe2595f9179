/* Declares point-to-point messages.
 *
 * Messages from one rank to another on one communicator are matched in the order in which they were
 * sent, and receives in the order in which they were posted. A message may have any length,
 * including 0. The first operation that is posted to a specific peer opens a connection to it.
 *
 * A buffer belongs to the operation until the operation has completed. Until then the contents of a
 * send buffer must not change, and a receive buffer must not be read or written.
 *
 * Every operation ends: when it has done its work, at its deadline, when it is cancelled, when the
 * peer is lost, or when the communicator is aborted. In the last four cases a put may have to wait
 * for the owner of the memory (hetcomm_put).
 *
 * A call that returns a failure has rejected the operation, which then has no completion. The
 * functions that send or receive reject operations with these codes:
 *   INVALID_ARGUMENT  The options are invalid, a plain pointer is NULL or points to device memory
 *                     (hetcomm/memory.h), there are more than 2^20 buffers, or, in debug builds of
 *                     the library, a receive buffer overlaps the buffer of another pending receive.
 *   OUT_OF_RANGE      The communicator has no such rank, a buffer extends past its memory or the
 *                     address space, or the total length of the buffers exceeds 2^64 - 1 bytes.
 *
 * All other outcomes are in the status of the completion record:
 *   OK              The whole message was transferred.
 *   TRUNCATED       Only the part of the message that fits into the receive buffer was transferred.
 *   TIMED_OUT       The deadline passed.
 *   CANCELLED       The caller cancelled the operation.
 *   PEER_LOST       The peer died or left.
 *   UNREACHABLE     The peer may be alive, but no connection to it can be made.
 *   ABORTED         The communicator was aborted, or the other rank ended the operation early. In
 *                   the second case the text has that rank's number, status (CANCELLED, TIMED_OUT,
 *                   DEVICE_LOST, ...) and reason.
 *   OUT_OF_MEMORY   Memory ran out during the operation.
 *   another status  A device of this rank failed; the text names it. */
#ifndef HETCOMM_P2P_H_
#define HETCOMM_P2P_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The |source| of a receive that accepts messages from any rank of the communicator. */
#define HETCOMM_ANY_SOURCE (-1)
/* The |ignore| mask of a receive that accepts messages with any tag. */
#define HETCOMM_ANY_TAG UINT64_C(0xffffffffffffffff)
/* The |ignore| mask of a receive that accepts only messages with exactly its tag. */
#define HETCOMM_EXACT_TAG UINT64_C(0)

/* Starts to send |buffer| to rank |destination|, which may be this rank. The operation completes
 * when the buffer can be reused, which does not mean that the message was received. |options| may
 * be NULL. The top of this header lists the errors. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_send(hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
             hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
             hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to receive a message into |buffer| from rank |source| or HETCOMM_ANY_SOURCE. The operation
 * matches the first message whose tag equals |tag| in all bits that are not set in |ignore|. A
 * message that is longer than the buffer is truncated: the operation ends with TRUNCATED and
 * reports both lengths. A shorter message leaves the rest of the buffer unchanged. Buffers of
 * pending receives must not overlap. |options| may be NULL. The top of this header lists the
 * errors. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_recv(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
             hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
             hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to send one message that is gathered from |count| buffers, at most 2^20, which may be on
 * different devices. The array is copied. The receiver may use hetcomm_recv or hetcomm_recvv. A
 * |count| of 0 sends an empty message. In all other respects the call works like hetcomm_send.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_sendv(
    hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to receive one message that is scattered into |count| buffers, at most 2^20, in their
 * order. The buffers may be on different devices. The array is copied. The sender may use
 * hetcomm_send or hetcomm_sendv. In all other respects the call works like hetcomm_recv.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_recvv(
    hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Prepares a send that hetcomm_request_start can start any number of times. The call itself sends
 * nothing. It checks and copies the arguments like hetcomm_sendv. The options must not name a group
 * (INVALID_ARGUMENT). The memories of the buffers cannot be destroyed before the request (BUSY).
 * hetcomm_request_destroy destroys the request. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_send_prepare(
    hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Prepares a receive that hetcomm_request_start can start any number of times. The call checks and
 * copies the arguments like hetcomm_recvv. In all other respects it works like
 * hetcomm_send_prepare. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_recv_prepare(
    hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Waits for up to |timeout_ns| until a message has arrived that a receive with these arguments
 * would match, without receiving it. A |timeout_ns| of 0 means HETCOMM_TIMEOUT. With
 * HETCOMM_TIMEOUT_POLL the call only makes progress once. On success |*out_message| has the
 * message's source, its tag and, in bytes_sent, its length. Another thread may receive the message
 * before this one does. TIMED_OUT: there is no such message. OUT_OF_RANGE: the communicator has no
 * such rank. PEER_LOST, UNREACHABLE: |source|, or every rank that could send, is lost. ABORTED: the
 * communicator was aborted. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_probe(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
              uint64_t timeout_ns, hetcomm_completion_t* out_message) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_P2P_H_ */
