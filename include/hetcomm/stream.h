/* A stream runs operations in the order of a vendor's stream, such as a cl_command_queue, which the
 * user submits work to.
 *
 *     kernel A   submitted to the stream by the user
 *     send       posted with options.stream: starts when A has ended
 *     kernel B   submitted to the stream by the user: starts when the send has ended
 *
 * No host thread waits, neither in the call that posts the operation nor for the kernels. Work that
 * is submitted to the stream after that call waits until the operation has ended, successfully or
 * not. As always, the request reports the outcome of the operation. The library performs no copies
 * in the stream. It only records events there, and holds the stream: work that is submitted later
 * does not start until the library releases the hold.
 *
 * Order. An operation that names a stream counts as sent, posted or called when the stream reaches
 * it. Until then its message is not matched, its item is not in its queue, and a hetcomm_flush does
 * not wait for it. Its time limit starts with the call. Operations that one thread posts in one
 * stream run one after another, because the stream waits for each. Operations that different
 * threads post at the same time can run at the same time. Operations that must run at the same
 * time, such as a send and a receive with the same peer, belong in a group (hetcomm/operation.h).
 * Collective operations start in the order of their calls, with or without a stream. So do the
 * executions of one reshard plan (hetcomm/reshard.h).
 *
 * Failures. An operation can end before its stream has reached it. Like other operations, it ends
 * when its peer is lost or cannot be reached, and when its communicator is aborted. A collective
 * operation also ends when the collective operations of its communicator fail. If an operation's
 * remote memory is no longer registered, the operation ends with STALE_HANDLE within
 * HETCOMM_DETECTION_TIME. The stream does not wait for operations that end in these ways. Work that
 * was submitted to the stream before such an operation may still be running and using its memory:
 * wait for the stream before you free or reuse that memory. A receive whose message has arrived
 * still waits for its stream.
 *
 * Streams that are not held. A stream that is created with HETCOMM_STREAM_NOT_HELD is never held.
 * Operations start when the stream reaches them, but work that is submitted later does not wait for
 * them. Before submitting work that uses an operation's data, the user waits for the operation's
 * request. In this way communication can overlap with computation. Operations in such a stream can
 * run at the same time.
 *
 * Progress. Streams require a context with a progress thread (HETCOMM_PROGRESS_THREAD). The library
 * allocates pinned memory for copies when the first stream of a device that can be held is wrapped
 * or created, and whenever a communicator is created after that. With some vendors the allocation
 * waits for the device, and meanwhile no operation of the context makes progress. So wrap streams
 * before any work that waits for communication is submitted to a stream. If data needs more pinned
 * memory while a stream is held, it is copied through pageable memory.
 *
 * Calls that may wait. With many vendors, functions that allocate or free device memory, or destroy
 * a stream, wait until the device's streams are no longer held. The library's own threads defer
 * such calls while operations hold a stream. These calls of the user may wait:
 * hetcomm_memory_allocate, hetcomm_memory_destroy, hetcomm_memory_read, hetcomm_memory_write, the
 * functions that create and destroy streams, and those that destroy communicators and contexts. Do
 * not make them in a thread that must still do something before a held stream can continue.
 *
 * Rules for the caller. An operation must not depend on the stream that it holds. For instance, a
 * host thread must not wait for the stream before it starts something that the operation depends
 * on. A callback of the vendor must not call the library, because it may run inside a library call.
 * The stream also continues after an operation has failed, so check the request before using the
 * data. The library does not support streams that are being captured into graphs. */
#ifndef HETCOMM_STREAM_H_
#define HETCOMM_STREAM_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_stream hetcomm_stream_t;

/* Flag of a stream that operations do not hold. */
#define HETCOMM_STREAM_NOT_HELD 1

/* Makes a stream of device |device| from the vendor's stream |native|. For the kind "opencl"
 * |native| is a cl_command_queue, in-order or out-of-order, of the cl_context that was passed to
 * hetcomm_device_from_native. For a plug-in's kind the plug-in defines the meaning of |native|. A
 * cl_command_queue is retained until hetcomm_stream_destroy; any other |native| must exist until
 * then. |flags| is 0 or HETCOMM_STREAM_NOT_HELD.
 *   INVALID_ARGUMENT   |native| is not a stream of the device, or it is NULL and the device has no
 *                      stream whose handle is NULL (as CUDA's default stream), or |flags| has
 *                      unknown bits. Some OpenCL implementations cannot distinguish a
 *                      cl_command_queue from their other objects, and may crash if they are given
 *                      one of these.
 *   OUT_OF_RANGE       There is no such device.
 *   UNSUPPORTED        The device has no streams, or its streams cannot be held and |flags| lacks
 *                      HETCOMM_STREAM_NOT_HELD, or the context has no progress thread.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_wrap(hetcomm_context_t* context, int32_t device, void* native, uint32_t flags,
                    hetcomm_stream_t** out_stream) HETCOMM_NOEXCEPT;

/* Creates a stream of device |device|, for users who do not have one. The user submits work to it
 * with the vendor's functions and the handle from hetcomm_stream_native. |flags|, INVALID_ARGUMENT,
 * OUT_OF_RANGE and UNSUPPORTED are as for hetcomm_stream_wrap. OUT_OF_RESOURCES, DEVICE_LOST: the
 * vendor cannot create a stream. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_create(hetcomm_context_t* context, int32_t device, uint32_t flags,
                      hetcomm_stream_t** out_stream) HETCOMM_NOEXCEPT;

/* Gets the vendor's handle of the stream, which for "opencl" is a cl_command_queue. The handle
 * still belongs to the stream. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_native(const hetcomm_stream_t* stream, void** out_native) HETCOMM_NOEXCEPT;

/* Gets the device of the stream, and the flags with which the stream was made. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_stream_info(
    const hetcomm_stream_t* stream, int32_t* out_device, uint32_t* out_flags) HETCOMM_NOEXCEPT;

/* Destroys the handle. A stream from hetcomm_stream_create is destroyed once its work is done; a
 * wrapped stream still belongs to the caller. With some vendors the call also waits for other
 * streams that are held. BUSY: an operation in the stream has not ended, a prepared request names
 * the stream, or the vendor's stream has not yet reached an operation; the call has changed
 * nothing. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_stream_destroy(hetcomm_stream_t* stream)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_STREAM_H_ */
