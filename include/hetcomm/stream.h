/* Streams: operations in the order of a stream of the user's, such as a cl_command_queue.
 *
 *     kernel A   put into the stream by the user
 *     send       posted with options.stream: starts when A has ended
 *     kernel B   put into the stream by the user: starts when the send has ended
 *
 * No thread of the host waits: not in the call that posts, and not for the kernels. What is put
 * into the stream after that call waits until the operation has ended, well or not; its request
 * tells how it ended, as always. The library copies nothing in the stream. It records there how
 * far the stream has come, and holds it back.
 *
 * Order. An operation that names a stream counts as sent, posted or called when the stream has
 * come to it: until then its message is not matched, its item is not in its queue, and a
 * hetcomm_flush does not wait for it. Its deadline counts from the call. Of operations that a
 * thread posts in one stream, each starts when the one before has ended, since the stream waits
 * for that; what threads post at the same time may run at the same time. Operations that shall run
 * at the same time, such as a send and a receive with the same peer, are collected in a group
 * (hetcomm/operation.h). Collective operations keep the order of their calls: one that is called
 * later, with a stream or without, starts later. So do the executions of one redistribution
 * (hetcomm/reshard.h).
 *
 * Loss. An operation whose stream has not come to it ends, as others do, when its peer is lost or
 * cannot be reached, when its communicator is aborted, and when collective operations of its
 * communicator fail that it is one of. It ends with STALE_HANDLE, within the detection time, when
 * the remote memory that it names is not registered any more. Its stream does not wait for it then.
 * What was put into the stream before it may still run, and use its memory: wait for the stream
 * before that memory is freed or used for something else. A receive whose message is here waits
 * for its stream.
 *
 * Streams that go on. A stream that is made with HETCOMM_STREAM_NOT_HELD is not held back:
 * operations start when it has come to them, and what is put into it later does not wait for them.
 * Before it uses their data, whoever puts work into the stream waits for their requests. So
 * communication can run beside computation. Operations in such a stream may run at the same time.
 *
 * Progress. Only a context that was created with HETCOMM_PROGRESS_THREAD has streams. Pinned
 * memory for copies is made when the first stream of a device is wrapped, and when a communicator
 * is created after that. With some vendors this waits for the device, and no operation of the
 * context goes on meanwhile: wrap before work is put into streams that waits for communication.
 * Data that needs more while a stream is held back goes through pageable memory.
 *
 * Calls that may wait. With many vendors a call that allocates or frees memory of a device, or ends
 * a stream, waits until the streams of the device go on. The library's own threads make no such
 * call while operations hold a stream back: what is to be freed is put off until then. The user's
 * calls may wait: hetcomm_memory_allocate, hetcomm_memory_destroy, hetcomm_memory_read,
 * hetcomm_memory_write, those that create and destroy streams, and those that destroy communicators
 * and contexts. Do not make them in a thread that has yet to do what lets a held stream go on.
 *
 * Rules for the caller. A stream that is held back must not be what an operation waits for to end:
 * a host thread that waits for the stream cannot first wait for, and then start, what the
 * operation needs. A callback of the vendor's must not call the library, as it may run within a
 * call of it. A failed operation lets the stream go on, too; look at its request before the data
 * is used. Streams that are captured into graphs are refused. */
#ifndef HETCOMM_STREAM_H_
#define HETCOMM_STREAM_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_stream hetcomm_stream_t;

/* Flag of a stream that operations do not hold back. */
#define HETCOMM_STREAM_NOT_HELD 1

/* Makes a stream of device |device| of what its vendor calls |native|: a cl_command_queue, in order
 * or not, for a device of the kind "opencl", of the context that hetcomm_device_from_native was
 * given; for a kind that a plug-in brings what the plug-in says. A cl_command_queue is retained
 * until hetcomm_stream_destroy; anything else has to stay until then. |flags| is 0 or
 * HETCOMM_STREAM_NOT_HELD.
 *   INVALID_ARGUMENT   |native| is NULL and the device has no stream of that name (CUDA's default
 *                      stream is one), or is no stream of the device; or |flags| has unknown ones.
 *                      Not every vendor's OpenCL tells a cl_command_queue from its other objects:
 *                      it may crash for one.
 *   OUT_OF_RANGE       There is no such device.
 *   UNSUPPORTED        The device has no streams, or none that can be held back, or the context was
 *                      created without HETCOMM_PROGRESS_THREAD.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_wrap(hetcomm_context_t* context, int32_t device, void* native, uint32_t flags,
                    hetcomm_stream_t** out_stream) HETCOMM_NOEXCEPT;

/* Makes a stream of device |device|, for users who have none. What hetcomm_stream_native gives is
 * put work into by the vendor's own means. |flags|, INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED: as
 * above. OUT_OF_RESOURCES, DEVICE_LOST: the vendor has no stream. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_create(hetcomm_context_t* context, int32_t device, uint32_t flags,
                      hetcomm_stream_t** out_stream) HETCOMM_NOEXCEPT;

/* Gives what the vendor calls the stream: for "opencl" a cl_command_queue. It stays the stream's.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_stream_native(const hetcomm_stream_t* stream, void** out_native) HETCOMM_NOEXCEPT;

/* Destroys the handle. The stream ends with its work if hetcomm_stream_create made it; a wrapped
 * one stays the caller's. With some vendors the call also waits for other streams that are held
 * back. BUSY: an operation in the stream has not ended, a prepared request names the stream, or
 * the vendor's stream has not yet come to where an operation was put; then nothing has changed.
 * NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_stream_destroy(hetcomm_stream_t* stream)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_STREAM_H_ */
