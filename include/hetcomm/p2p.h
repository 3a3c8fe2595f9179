/* Point-to-point messages.
 *
 * Messages from one rank to another on one communicator are matched in the order in which they were
 * sent, receives in the order in which they were posted. Lengths are bytes; a message has any
 * length from 0 up. Buffers belong to the operation until it has completed. Posting to a named peer
 * connects to it. Every operation ends: with its outcome, at its deadline, when it is cancelled,
 * when the peer is lost, or when the communicator is aborted. Of the last four, a put may have to
 * wait for its owner (see hetcomm_put). */
#ifndef HETCOMM_P2P_H_
#define HETCOMM_P2P_H_

#include <hetcomm/operation.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HETCOMM_ANY_SOURCE (-1)
/* As the |ignore| mask of a receive: the tag does not matter. */
#define HETCOMM_ANY_TAG UINT64_C(0xffffffffffffffff)
/* As the |ignore| mask of a receive: the tag must be the same. */
#define HETCOMM_EXACT_TAG UINT64_C(0)

/* Sends |buffer| to rank |destination|. Completes when the buffer may be reused, which does not
 * mean that it was received. |options| may be NULL. INVALID_ARGUMENT (also where a plain pointer
 * leads to memory of a device: hetcomm/memory.h), OUT_OF_RANGE (rank, or a buffer that ends past
 * its memory), OUT_OF_MEMORY: rejected, no completion will follow. A lost peer or an aborted
 * communicator is the operation's outcome, not the call's. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_send(hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
             hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
             hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Receives a message into |buffer| from rank |source| or HETCOMM_ANY_SOURCE, whose tag equals
 * |tag| in all bits that are not set in |ignore|. A longer message is cut, ends with TRUNCATED and
 * reports both lengths. Buffers of pending receives do not overlap; debug builds of the library
 * reject those that do with INVALID_ARGUMENT. Otherwise as hetcomm_send. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_recv(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
             hetcomm_buffer_t buffer, const hetcomm_operation_options_t* options,
             hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* The same with one message gathered from, or scattered into, |count| buffers, which may lie on
 * different devices. The array is copied. Either side may use either form. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_sendv(
    hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_recvv(
    hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Prepares an operation that can be started many times with hetcomm_request_start; nothing happens
 * before. The deadline counts from each start. Memories that the buffers name stay in use until the
 * request is released. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_send_prepare(
    hetcomm_communicator_t* communicator, int32_t destination, uint64_t tag,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_recv_prepare(
    hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
    const hetcomm_buffer_t* buffers, size_t count, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Looks for a message that a receive with these arguments would match, without taking it, for up to
 * |timeout_ns| (POLL: drives communication once). OK with its source, tag and bytes_sent; TIMED_OUT
 * when there is none. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_probe(hetcomm_communicator_t* communicator, int32_t source, uint64_t tag, uint64_t ignore,
              uint64_t timeout_ns, hetcomm_completion_t* out_message) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_P2P_H_ */
