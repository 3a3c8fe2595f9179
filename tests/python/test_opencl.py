"""OpenCL memory through the Python package, by addresses, as a program with pyopencl has them.

Proves: buffers of a framework's context can be sent and take part in collective operations, with
ranks of two vendors and of the host; a queue orders operations after its earlier work; arrays keep
alive what they name; invalid memory, queues and contexts are refused.
"""

import ctypes
import functools
import gc
import os
import shutil
import tempfile
import unittest

import numpy

import hetcomm
from package_ranks import run

COUNT = 100_000
CL_MEM_READ_WRITE = 1
CL_MEM_REFERENCE_COUNT = 0x1105


def number(value):
    return ctypes.c_void_p(value)


class Framework:
    """A context of one of this machine's vendors."""

    def __init__(self, index, library="libOpenCL.so.1"):
        self.cl = cl = ctypes.CDLL(library)
        for name in ("clCreateContext", "clCreateBuffer", "clCreateCommandQueue", "clCreateUserEvent"):
            getattr(cl, name).restype = ctypes.c_void_p
        count = ctypes.c_uint()
        assert cl.clGetPlatformIDs(0, None, ctypes.byref(count)) == 0
        platforms = (ctypes.c_void_p * count.value)()
        assert cl.clGetPlatformIDs(count, platforms, None) == 0
        self.device = ctypes.c_void_p()
        platform = number(platforms[index % count.value])
        every = ctypes.c_ulong(0xFFFFFFFF)
        assert cl.clGetDeviceIDs(platform, every, 1, ctypes.byref(self.device), None) == 0
        self.context = cl.clCreateContext(None, 1, ctypes.byref(self.device), None, None, None)
        self.queue = cl.clCreateCommandQueue(number(self.context), self.device, ctypes.c_ulong(0), None)
        assert self.context and self.queue

    def buffer(self, array):
        made = self.cl.clCreateBuffer(number(self.context), ctypes.c_ulong(CL_MEM_READ_WRITE),
                                      ctypes.c_size_t(array.nbytes), None, None)
        assert made
        self.write(made, array)
        return made

    def write(self, buffer, array):
        assert self.cl.clEnqueueWriteBuffer(
            number(self.queue), number(buffer), 1, ctypes.c_size_t(0), ctypes.c_size_t(array.nbytes),
            array.ctypes.data_as(ctypes.c_void_p), 0, None, None) == 0
        assert self.cl.clFinish(number(self.queue)) == 0

    def read(self, buffer, like):
        array = numpy.empty_like(like)
        assert self.cl.clEnqueueReadBuffer(
            number(self.queue), number(buffer), 1, ctypes.c_size_t(0), ctypes.c_size_t(array.nbytes),
            array.ctypes.data_as(ctypes.c_void_p), 0, None, None) == 0
        return array

    def references(self, buffer):
        count = ctypes.c_uint()
        assert self.cl.clGetMemObjectInfo(number(buffer), CL_MEM_REFERENCE_COUNT,
                                          ctypes.c_size_t(4), ctypes.byref(count), None) == 0
        return count.value

    def hold(self):
        """Work that is queued from now on waits for set()."""
        event = self.cl.clCreateUserEvent(number(self.context), None)
        one = (ctypes.c_void_p * 1)(event)
        assert self.cl.clEnqueueBarrierWithWaitList(number(self.queue), 1, one, None) == 0
        return event

    def set(self, event):
        assert self.cl.clSetUserEventStatus(number(event), 0) == 0
        self.cl.clReleaseEvent(number(event))


def gives_up(world, context):
    framework = Framework(world.rank)
    device = context.device_from_native("opencl", framework.context)
    own = numpy.zeros(COUNT, numpy.float32)
    mine = context.wrap(device, framework.buffer(own), own.nbytes, "float32")
    request = world.recv(mine, 1 - world.rank)
    context.abandon_device(device, "a test")
    for call in (request.wait, lambda: world.send(mine, 1 - world.rank),
                 lambda: context.abandon_device(0)):
        try:
            call()
            raise AssertionError("it works")
        except hetcomm.Error as error:
            assert error.status in ("DEVICE_LOST", "INVALID_ARGUMENT"), error
    world.barrier().wait()
    return True


def calls(world, context):
    framework = Framework(world.rank)
    device = context.device_from_native("opencl", framework.context)
    assert context.device_from_native("opencl", framework.context) == device
    own = numpy.full(COUNT, world.rank + 1, numpy.float32)
    buffers = framework.buffer(own), framework.buffer(own * 0)
    mine, into = (context.wrap(device, one, own.nbytes, "float32") for one in buffers)
    assert mine.nbytes == own.nbytes
    world.allreduce(mine, into).wait()
    total = sum(range(1, world.size + 1))
    assert (framework.read(buffers[1], own) == total).all()
    # Between a device and the host, of the other vendor and of none.
    peer = 1 - world.rank
    if world.rank == 0:
        world.send(mine, peer).wait()
        got = numpy.empty_like(own)
        world.recv(got, peer).wait()
        assert (got == total).all()
    else:
        host = numpy.empty_like(own)
        world.recv(host, peer).wait()
        assert (host == 1).all()
        world.send(into, peer).wait()
    # Requests keep arrays, and arrays buffers.
    requests = [world.recv(context.wrap(device, buffers[1], own.nbytes, "float32"), peer),
                world.send(context.wrap(device, buffers[0], own.nbytes, "float32"), peer)]
    gc.collect()
    for request in requests:
        request.wait()
    assert (framework.read(buffers[1], own) == peer + 1).all()
    assert framework.references(buffers[0]) == 2
    del mine, into, requests, request
    gc.collect()
    assert framework.references(buffers[0]) == 1 and framework.references(buffers[1]) == 1
    return True


def ordered(world, context):
    """Operations start after the work that the queue already holds."""
    framework = Framework(world.rank)
    device = context.device_from_native("opencl", framework.context)
    stream = context.wrap_stream(device, framework.queue)
    own = numpy.full(COUNT, world.rank + 1, numpy.float32)
    buffers = framework.buffer(own), framework.buffer(own * 0)
    mine, into = (context.wrap(device, one, own.nbytes, "float32", stream) for one in buffers)
    event = framework.hold()
    request = world.allreduce(mine, into)
    assert not request.test()
    framework.set(event)
    request.wait()
    assert (framework.read(buffers[1], own) == sum(range(1, world.size + 1))).all()
    return True


class Named:
    """Has the address of an object, as pyopencl shows it."""

    def __init__(self, address, **attributes):
        self.int_ptr = address
        self.__dict__.update(attributes)


class Array:
    """The attributes of a pyopencl.array.Array that the package reads."""

    def __init__(self, base_data, like, offset=0, queue=None, c_contiguous=True):
        self.base_data, self.offset, self.queue = base_data, offset, queue
        self.nbytes, self.dtype = like.nbytes, like.dtype
        self.flags = Named(0, c_contiguous=c_contiguous)


def parts(world, context):
    """A part of a buffer is named by its offset in bytes; its neighbours stay unchanged."""
    framework = Framework(world.rank)
    device = context.device_from_native("opencl", framework.context)
    own = numpy.arange(1000, dtype=numpy.float32) + 1000 * world.rank
    buffer = framework.buffer(own)
    peer = 1 - world.rank
    part = context.wrap(device, buffer, 40, "float32", offset=400)
    assert part.nbytes == 40
    if world.rank == 0:
        world.send(part, peer).wait()
    else:
        world.recv(part, peer).wait()
        own[100:110] = numpy.arange(100, 110)
    assert (framework.read(buffer, own) == own).all()
    for offset, size in ((3961, 40), (4000, 1), (2**64 - 1, 40)):
        try:
            context.wrap(device, buffer, size, "float32", offset=offset)
        except (hetcomm.Error, ValueError):
            continue
        raise AssertionError("it was taken")
    return True


def as_they_are(world, context, has_thread):
    """Arrays and buffers of pyopencl are passed without naming their device."""
    framework = Framework(world.rank)
    own = numpy.full(COUNT, world.rank + 1, numpy.float32)
    total = sum(range(1, world.size + 1))
    buffers = [Named(framework.buffer(each), context=Named(framework.context), size=own.nbytes)
               for each in (own, own * 0)]
    finished = []
    queue = Named(framework.queue, finish=lambda: finished.append(1))
    mine, into = (Array(each, own, queue=queue) for each in buffers)
    event = framework.hold() if has_thread else None
    request = world.allreduce(mine, into)
    if has_thread:
        assert not request.test(), "the queue has not come to it"
        framework.set(event)
    request.wait()
    assert bool(finished) != has_thread
    assert (framework.read(buffers[1].int_ptr, own) == total).all()
    # A ring in one queue: nothing is held back.
    requests = [world.recv(into, (world.rank - 1) % world.size),
                world.send(mine, (world.rank + 1) % world.size)]
    for each in requests:
        each.wait()
    assert (framework.read(buffers[1].int_ptr, own) == (world.rank - 1) % world.size + 1).all()
    # A slice, and a buffer.
    small = numpy.arange(10, dtype=numpy.float32)
    world.broadcast(Array(buffers[0], small, offset=400, queue=queue), 0).wait()
    own[100:110] = 1
    assert (framework.read(buffers[0].int_ptr, own) == own).all()
    world.broadcast(buffers[0], 0).wait()
    assert (framework.read(buffers[0].int_ptr, own) == 1).all()
    part = world.split(0)
    part.broadcast(buffers[0], 1).wait()
    part.close()
    for given, kind in ((Array(buffers[0], small, c_contiguous=False), BufferError),
                        (Named(framework.queue), TypeError), (object(), TypeError)):
        try:
            world.broadcast(given, 0)
        except kind:
            continue
        raise AssertionError(f"{given} was taken")
    world.barrier().wait()
    return True


def wrong(world, context):
    framework = Framework(world.rank)
    device = context.device_from_native("opencl", framework.context)
    own = numpy.ones(COUNT, numpy.float32)
    buffer = framework.buffer(own)
    word = numpy.zeros(8, numpy.uint64)
    for call in (lambda: context.device_from_native("opencl", word.ctypes.data),
                 lambda: context.device_from_native("opencl", 0),
                 lambda: context.device_from_native("acme", framework.context),
                 lambda: context.wrap(device, word.ctypes.data, 8),
                 lambda: context.wrap(device, buffer, own.nbytes + 1),
                 lambda: context.wrap(device, buffer, 0),
                 lambda: context.wrap(device + 1, buffer, 8),
                 lambda: context.wrap_stream(device, 0),
                 lambda: context.wrap_stream(device, word.ctypes.data)):
        try:
            call()
        except hetcomm.Error as error:
            assert str(error)
            continue
        raise AssertionError("it was taken")
    for call, kind in ((lambda: context.wrap(device, buffer, 8, "float128"), ValueError),
                       (lambda: context.wrap(device, buffer, 8, "float32", object()), TypeError)):
        try:
            call()
        except kind:
            continue
        raise AssertionError("it was taken")
    # The rest goes on.
    world.allreduce(context.wrap(device, buffer, own.nbytes, "float32"),
                    into := numpy.empty_like(own)).wait()
    assert (into == world.size).all()
    return True


def loaders():
    """The OpenCL loaders that this process has loaded."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "/libOpenCL" in line}
    return sorted(paths)


def path_of_loader(world, context):
    ctypes.CDLL("libOpenCL.so.1")
    return loaders()[0]


def other_name(world, context, path):
    """The OpenCL loader of this process has another name, as in wheels that bundle it."""
    folder = tempfile.mkdtemp(prefix="hetcomm-test-")
    copy = os.path.join(folder, "libOpenCL-1a2b3c.so.1.0.0")
    with open(path, "rb") as original, open(copy, "wb") as changed:
        changed.write(original.read().replace(b"libOpenCL.so.1\0", b"libOpenCL_x.so\0"))
    try:
        framework = Framework(world.rank, copy)
        device = context.device_from_native("opencl", framework.context)
        own = numpy.ones(COUNT, numpy.float32)
        array = context.wrap(device, framework.buffer(own), own.nbytes, "float32")
        world.allreduce(array, into := numpy.empty_like(own)).wait()
        assert (into == world.size).all()
        assert loaders() == [copy], loaders()
    finally:
        shutil.rmtree(folder)
    return True


def has_opencl(world, context):
    try:
        cl = ctypes.CDLL("libOpenCL.so.1")
    except OSError:
        return False
    count = ctypes.c_uint()
    return cl.clGetPlatformIDs(0, None, ctypes.byref(count)) == 0 and count.value > 0


class OpenCl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # A child looks: a process with a vendor's run-time cannot fork.
        if run(1, has_opencl) != [True]:
            raise unittest.SkipTest("this machine has no OpenCL device")

    def test_buffers_arrive_through_every_call(self):
        self.assertEqual(run(2, calls), [True] * 2)

    def test_abandoned_device_ends_its_operations(self):
        self.assertEqual(run(2, gives_up), [True] * 2)

    def test_operations_start_after_earlier_work_of_the_queue(self):
        self.assertEqual(run(2, ordered, thread=True), [True] * 2)

    def test_part_of_a_buffer_leaves_its_neighbours_unchanged(self):
        self.assertEqual(run(2, parts), [True] * 2)

    def test_pyopencl_objects_are_accepted_without_annotation(self):
        for thread in (False, True):
            function = functools.partial(as_they_are, has_thread=thread)
            self.assertEqual(run(2, function, thread=thread), [True] * 2)

    def test_opencl_loader_with_another_name_is_found(self):
        path = run(1, path_of_loader)[0]
        self.assertEqual(run(2, functools.partial(other_name, path=path)), [True] * 2)

    def test_invalid_memory_queues_and_contexts_are_refused(self):
        self.assertEqual(run(2, wrong, thread=True), [True] * 2)


if __name__ == "__main__":
    unittest.main()
