"""Passes pyopencl arrays and buffers directly to any call that takes arrays.

    world.allreduce(array, into).wait()      # pyopencl.array.Array, pyopencl.Buffer

If the context was created with ``thread=True``, an operation on an array starts when the array's
queue has reached that point. Otherwise the call finishes the queue first. The queue does not wait
for the operation: wait for the request before commands in the queue use the data. A buffer has no
queue: finish the work that uses it before the call.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from hetcomm._error import Error

if TYPE_CHECKING:
    from hetcomm._core import Context, DeviceArray, Stream


_lock = threading.Lock()
# Streams in use, keyed by context and queue. Each array keeps its stream and context alive. An
# entry disappears with the last array that uses the stream.
_streams: weakref.WeakValueDictionary[tuple[int, int], Stream] = weakref.WeakValueDictionary()


def _order_of(context: Context, device: int, queue: Any) -> Stream | None:
    """Returns the stream of a queue, or None without a queue. If the context has no thread,
    finishes the queue and returns None."""
    if queue is None:
        return None
    address = queue.int_ptr
    try:
        with _lock:
            stream = _streams.get((id(context), address))
            if stream is None:
                stream = context.wrap_stream(device, address, held=False)
                _streams[id(context), address] = stream
            return stream
    except Error as error:
        if error.status != "UNSUPPORTED":  # UNSUPPORTED: the context has no thread
            raise
    queue.finish()
    return None


def array_of(owner: Any, given: Any) -> DeviceArray:
    """Returns an array for the pyopencl object ``given``, for a call of ``owner``, a communicator
    or a queue. Raises TypeError if ``owner`` has no context or ``given`` has no OpenCL memory, and
    BufferError if the array is not contiguous."""
    context = getattr(owner, "_context", None)
    buffer = getattr(given, "base_data", given)
    if context is None or not hasattr(buffer, "int_ptr") or not hasattr(buffer, "context"):
        raise TypeError(f"{type(given).__name__} gives no memory here: it has neither the buffer protocol "
                        "nor DLPack; Context.wrap() makes an array of an address")
    device = context.device_from_native("opencl", buffer.context.int_ptr)
    if buffer is given:
        return context.wrap(device, given.int_ptr, given.size, owner=given)
    if not given.flags.c_contiguous:
        raise BufferError("an array of pyopencl has to be contiguous: use array.copy()")
    stream = _order_of(context, device, given.queue)
    return context.wrap(device, buffer.int_ptr, given.nbytes, str(given.dtype), stream, given,
                        offset=given.offset)
