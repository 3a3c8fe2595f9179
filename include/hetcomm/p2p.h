/* Declares point-to-point messages.
 *
 * Messages from one rank to another on one communicator are matched in the order in which they were
 * sent, receives in the order in which they were posted. A message may have any length from 0 up.
 * Posting to a named peer connects to it.
 *
 * A buffer belongs to the operation until it has completed. The contents of a send buffer must not
 * change, and nobody may read or write a receive buffer.
 *
 * Every operation ends: with its outcome, at its deadline, when it is cancelled, when the peer is
 * lost, or when the communicator is aborted. In the last four cases a put may have to wait for its
 * owner (hetcomm_put).
 *
 * A call that returns a failure has rejected the operation, and no completion will follow. The
 * functions that send or receive reject with:
 *   INVALID_ARGUMENT  The options are wrong, a plain pointer is NULL or leads to memory of a device
 *                     (hetcomm/memory.h), there are more than 2^20 buffers, or, in debug builds of
 *                     the library, a receive buffer overlaps that of another pending receive.
 *   OUT_OF_RANGE      The communicator has no such rank, a buffer ends past its memory or the
 *                     address space, or the buffers together are longer than 2^64 - 1 bytes.
 *
 * All other outcomes are in the status of the completion record:
 *   OK              The whole message was moved.
 *   TRUNCATED       The part of the message that fits was moved.
 *   TIMED_OUT       The deadline passed.
 *   CANCELLED       The caller cancelled the operation.
 *   PEER_LOST       The peer died or left.
 *   UNREACHABLE     The peer may be alive, but no connection to it can be made.
 *   ABORTED         The communicator was aborted, or the other rank ended the operation early: the
 *                   text has that rank's number, status (CANCELLED, TIMED_OUT, DEVICE_LOST, ...)
 *                   and reason.
 *   OUT_OF_MEMORY   Memory ran out while the operation was carried out.
 *   another status  A device of this rank failed; the text names it. */
#ifndef HETCOMM_P2P_H_
#define HETCOMM_P2P_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The |source| of a receive that takes messages from any rank of the communicator. */
#define HETCOMM_ANY_SOURCE (-1)
/* The |ignore| mask of a receive that takes messages with any tag. */
#define HETCOMM_ANY_TAG UINT64_C(0xffffffffffffffff)
/* The |ignore| mask of a receive that takes only messages with an equal tag. */
#define HETCOMM_EXACT_TAG UINT64_C(0)

/* Starts to send |buffer| to rank |destination|, which may be this rank. The operation completes
 * when the buffer may be reused, which does not mean that the message was received. |options| may
 * be NULL. The top of this header lists the errors. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_send(hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
             hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
             hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to receive a message into |buffer| from rank |source| or HETCOMM_ANY_SOURCE. The operation
 * takes the first message whose tag equals |tag| in all bits that are not set in |ignore|. A longer
 * message is cut: the operation ends with TRUNCATED and reports both lengths. A shorter one leaves
 * the rest of the buffer unchanged. Buffers of pending receives must not overlap. |options| may be
 * NULL. The top of this header lists the errors. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_recv(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
             hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
             hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to send one message that is gathered from |count| buffers, at most 2^20, which may lie on
 * different devices. The array is copied. The receiver may use hetcomm_recv or hetcomm_recvv.
 * |count| 0 sends an empty message. Otherwise the call works like hetcomm_send. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_sendv(
    hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Starts to receive one message that is scattered into |count| buffers, at most 2^20, in their
 * order. They may lie on different devices. The array is copied. The sender may use hetcomm_send or
 * hetcomm_sendv. Otherwise the call works like hetcomm_recv. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_recvv(
    hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Prepares a send that hetcomm_request_start can start any number of times. The call itself sends
 * nothing. It checks and copies the arguments, as hetcomm_sendv does. The options may not name a
 * group (INVALID_ARGUMENT). A memory that the buffers name cannot be destroyed until the request is
 * (BUSY). hetcomm_request_destroy ends the request. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_send_prepare(
    hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Prepares a receive that hetcomm_request_start can start any number of times. The call checks and
 * copies the arguments, as hetcomm_recvv does. Otherwise the call works like hetcomm_send_prepare.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_recv_prepare(
    hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Looks for a message that a receive with these arguments would match, and does not take it. Waits
 * for such a message for up to |timeout_ns|. 0 means HETCOMM_TIMEOUT. With HETCOMM_TIMEOUT_POLL the
 * call drives communication once. On success |*out_message| has the source, the tag and, in
 * bytes_sent, the length. Another thread may receive the message before this one does. TIMED_OUT:
 * there is no such message. OUT_OF_RANGE: the communicator has no such rank. PEER_LOST,
 * UNREACHABLE: |source|, or every rank that could send, is lost. ABORTED: the communicator was
 * aborted. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_probe(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
              uint64_t timeout_ns, hetcomm_completion_t* out_message) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_P2P_H_ */
