/* A stream runs operations in the order of a user's stream, such as a cl_command_queue.
 *
 *     kernel A   put into the stream by the user
 *     send       posted with options.stream: starts when A has ended
 *     kernel B   put into the stream by the user: starts when the send has ended
 *
 * No host thread waits, neither in the call that posts nor for the kernels. Work that is put into
 * the stream after that call waits until the operation has ended, successfully or not. As always,
 * the request tells how the operation ended. The library copies nothing in the stream. It only
 * records there how far the stream has come, and holds the stream back.
 *
 * Order. An operation that names a stream counts as sent, posted or called when the stream reaches
 * it. Until then its message is not matched, its item is not in its queue, and a hetcomm_flush does
 * not wait for it. Its deadline counts from the call. Operations that one thread posts in one
 * stream run one after the other, since the stream waits for each. Operations that several threads
 * post at the same time may run at the same time. Operations that have to run at the same time,
 * such as a send and a receive with the same peer, belong in a group (hetcomm/operation.h).
 * Collective operations keep the order of their calls: one that is called later, with a stream or
 * without, starts later. The executions of one redistribution also keep theirs (hetcomm/reshard.h).
 *
 * Loss. An operation can end before its stream has reached it. Like other operations, it ends when
 * its peer is lost or cannot be reached, and when its communicator is aborted. A collective
 * operation also ends when those of its communicator fail. If the remote memory that an operation
 * names is no longer registered, the operation ends with STALE_HANDLE, within
 * HETCOMM_DETECTION_TIME. The stream does not wait for operations that end in these ways. Work that
 * was put into the stream before such an operation may still run and use its memory: wait for the
 * stream before that memory is freed or used for something else. A receive whose message has
 * arrived still waits for its stream.
 *
 * Streams that go on. A stream that is made with HETCOMM_STREAM_NOT_HELD is not held back.
 * Operations start when the stream reaches them, and work that is put into it later does not wait
 * for them. The user waits for the request of an operation before putting work into the stream that
 * uses its data. So communication can run beside computation. Operations in such a stream may run
 * at the same time.
 *
 * Progress. Only a context that was created with HETCOMM_PROGRESS_THREAD has streams. The library
 * allocates pinned memory for copies when the first stream of a device is wrapped, and when a
 * communicator is created after that. With some vendors this waits for the device, and no operation
 * of the context makes progress until then. So wrap streams before work that waits for
 * communication is put into any stream. If data needs more pinned memory while a stream is held
 * back, it goes through pageable memory.
 *
 * Calls that may wait. With many vendors a call that allocates or frees memory of a device, or ends
 * a stream, waits until the streams of the device go on. The library's own threads make no such
 * call while operations hold a stream back, but defer it. The user's calls may wait:
 * hetcomm_memory_allocate, hetcomm_memory_destroy, hetcomm_memory_read, hetcomm_memory_write, those
 * that create and destroy streams, and those that destroy communicators and contexts. Do not make
 * them in a thread whose next actions a held stream waits for.
 *
 * Rules for the caller. An operation must not depend on the stream that it holds back. For
 * instance, a host thread must not wait for the stream before it starts something that the
 * operation needs. A callback of the vendor must not call the library, since it may run inside a
 * library call. A failed operation lets the stream go on, too: look at its request before the data
 * is used. The library refuses streams that are captured into graphs. */
#ifndef HETCOMM_STREAM_H_
#define HETCOMM_STREAM_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_stream hetcomm_stream_t;

/* Flag of a stream that operations do not hold back. */
#define HETCOMM_STREAM_NOT_HELD 1

/* Makes a stream of device |device| from the vendor's stream |native|. For the kind "opencl"
 * |native| is a cl_command_queue, in order or not, of the context that hetcomm_device_from_native
 * was given. For a plug-in's kind the plug-in defines what |native| is. A cl_command_queue is
 * retained until hetcomm_stream_destroy; any other |native| has to exist until then. |flags| is 0
 * or HETCOMM_STREAM_NOT_HELD.
 *   INVALID_ARGUMENT   |native| is no stream of the device, or is NULL and the device has no stream
 *                      with the handle NULL (CUDA's default stream has it); or |flags| has unknown
 *                      bits. Not every vendor's OpenCL can tell a cl_command_queue from its other
 *                      objects: it may crash when it is given one of these.
 *   OUT_OF_RANGE       There is no such device.
 *   UNSUPPORTED        The device has no streams, or none that can be held back, or the context was
 *                      created without HETCOMM_PROGRESS_THREAD.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_wrap(hetcomm_context_t* context, int32_t device, void* native, uint32_t flags,
                    hetcomm_stream_t** out_stream) HETCOMM_NOEXCEPT;

/* Makes a stream of device |device|, for users who have none. The user puts work into it by the
 * vendor's functions, with the handle from hetcomm_stream_native. |flags|, INVALID_ARGUMENT,
 * OUT_OF_RANGE and UNSUPPORTED are as for hetcomm_stream_wrap. OUT_OF_RESOURCES, DEVICE_LOST: the
 * vendor cannot make a stream. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_create(hetcomm_context_t* context, int32_t device, uint32_t flags,
                      hetcomm_stream_t** out_stream) HETCOMM_NOEXCEPT;

/* Gives the vendor's handle of the stream: for "opencl" a cl_command_queue. It still belongs to the
 * stream. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_native(const hetcomm_stream_t* stream, void** out_native) HETCOMM_NOEXCEPT;

/* Gives the device of the stream, and the flags with which it was made. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_stream_info(
    const hetcomm_stream_t* stream, int32_t* out_device, uint32_t* out_flags) HETCOMM_NOEXCEPT;

/* Destroys the handle. If hetcomm_stream_create made the stream, it ends once its work is done; a
 * wrapped one stays the caller's. With some vendors the call also waits for other streams that are
 * held back. BUSY: an operation in the stream has not ended, a prepared request names the stream,
 * or the vendor's stream has not yet reached an operation. Then nothing has changed. NULL is
 * accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_stream_destroy(hetcomm_stream_t* stream)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_STREAM_H_ */
