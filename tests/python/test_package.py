"""The Python package without torch.

Proves: NumPy arrays, bytearrays and memoryviews can be sent and take part in collective operations;
requests keep their buffers, are cancelled when dropped, and raise Error with the reason. All
threads that wait for one request get its result. The caller gets the exception that an array raises
instead of exporting its memory, or that a store raises.
"""

import concurrent.futures
import gc
import os
import pathlib
import tempfile
import threading
import time
import unittest

import numpy

try:
    import torch
except ImportError:
    torch = None

import hetcomm
from package_ranks import run, store


def messages(world, _):
    other = 1 - world.rank
    numbers = numpy.arange(10000, dtype=numpy.float64) + world.rank
    into = numpy.empty_like(numbers)
    request = world.recv(into, source=other, tag=4)
    world.send(numbers, other, tag=4).wait()
    completion = request.wait()
    assert (completion.source, completion.tag) == (other, 4)
    assert completion.bytes_received == numbers.nbytes
    assert (into == numpy.arange(10000) + other).all()
    text = bytearray(5)
    request = world.recv(text)
    world.send(b"hello", other).wait()
    request.wait()
    return bytes(text) == b"hello" and request.test()


def queues(world, _):
    other = 1 - world.rank
    sizes = [100_000 - i for i in range(20)]
    if world.rank == 0:
        with_items = world.push_queue(other, 100_000, depth=3)
        pushed = []
        for i, size in enumerate(sizes):
            if len(pushed) == 3:
                pushed.pop(0).wait()
            pushed.append(with_items.push(numpy.full(size, i, dtype=numpy.uint8)))
        with_items.drain()
        assert with_items.pending == 0
        for request in pushed:
            request.wait()
        try:
            with_items.push(numpy.zeros(100_001, dtype=numpy.uint8))
        except hetcomm.Error as error:
            assert error.status == "OUT_OF_RANGE"
        world.barrier().wait()
        with_items.close()
        return True
    to_work_on = world.pull_queue(other, 100_000, depth=3)
    buffers = [numpy.empty(100_000, dtype=numpy.uint8) for _ in range(2)]
    request = to_work_on.pull(buffers[0])
    for i, size in enumerate(sizes):
        length = request.wait().bytes_received
        assert length == size
        if i + 1 < len(sizes):
            request = to_work_on.pull(buffers[(i + 1) % 2])
        assert (buffers[i % 2][:length] == i).all()
    world.barrier().wait()
    to_work_on.close()
    return True


def failures(world, _):
    other = 1 - world.rank
    found = []
    try:
        world.recv(bytearray(4), source=other, tag=77, timeout=0.05).wait()
    except hetcomm.Error as error:
        found.append(error.status)
    small = world.recv(bytearray(2), source=other, tag=1)
    world.send(b"four", other, tag=1).wait()
    try:
        small.wait()
    except hetcomm.Error as error:
        found.append(error.status)
    request = world.recv(bytearray(4), source=other, tag=78)
    request.cancel()
    try:
        request.wait()
    except hetcomm.Error as error:
        found.append(error.status)
    for _ in range(10):
        world.recv(bytearray(100_000), source=other, tag=79)
    gc.collect()
    try:
        world.send(b"x", 5)
    except hetcomm.Error as error:
        found.append(error.status)
    return found


def collectives(world, _):
    size, rank = world.size, world.rank
    for kind in ("float32", "float64", "int64", "uint8", "int16"):
        own = (numpy.arange(1000) % 7 + rank).astype(kind)
        total = sum((numpy.arange(1000) % 7 + r).astype("int64") for r in range(size))
        into = numpy.empty_like(own)
        world.allreduce(own, into).wait()
        assert (into == total.astype(kind)).all(), kind
        world.reduce_scatter(numpy.tile(own, size), into, op="max").wait()
        assert (into == (numpy.arange(1000) % 7 + size - 1).astype(kind)).all(), kind
        whole = numpy.empty((size, 1000), kind)
        world.allgather(own, whole).wait()
        assert all((whole[r] == (numpy.arange(1000) % 7 + r).astype(kind)).all()
                   for r in range(size)), kind
        world.scan(own, into).wait()
        assert into[0] == sum(range(rank + 1)), kind
    root = numpy.full(10, rank, "int32")
    world.broadcast(root, 1).wait()
    assert (root == 1).all()
    everything = numpy.empty((size, 10), "int32") if rank == 0 else None
    world.gather(numpy.full(10, rank, "int32"), everything).wait()
    assert rank != 0 or [row[0] for row in everything] == list(range(size))
    part = numpy.empty(10, "int32")
    world.scatter(everything, part).wait()
    assert (part == rank).all()
    sends = [numpy.full(r + 1, rank, "int32") for r in range(size)]
    recvs = [numpy.empty(rank + 1, "int32") for _ in range(size)]
    world.alltoallv(sends, recvs).wait()
    return all((recv == r).all() for r, recv in enumerate(recvs))


def alone(context):
    return hetcomm.Communicator.from_store(context, 0, 1, lambda *_: None, lambda *_: None)


def in_threads(functions, limit_s=30):
    """The results of the functions, or the status of the Error that they raise."""
    results = [None] * len(functions)

    def call(index, function):
        try:
            results[index] = function()
        except hetcomm.Error as error:
            results[index] = error.status

    threads = [threading.Thread(target=call, args=each, daemon=True)
               for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
        assert not thread.is_alive(), "a thread did not come to an end"
    return results


class Exporter:
    """Exports by DLPack alone, as tensors do, or raises |refusal|."""

    def __init__(self, array, refusal=None, negative=False):
        self.array = array
        self.refusal = refusal
        self.negative = negative

    def is_neg(self):
        return self.negative

    def __dlpack__(self, **arguments):
        if self.refusal is not None:
            raise self.refusal
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldExporter(Exporter):
    """An exporter from before DLPack had versions."""

    def __dlpack__(self):
        return super().__dlpack__()


class Package(unittest.TestCase):
    def test_numpy_arrays_and_byte_buffers_arrive_intact(self):
        self.assertEqual(run(2, messages), [True, True])

    def test_queue_items_arrive_in_order(self):
        self.assertEqual(run(2, queues, thread=True), [True, True])

    def test_failed_operations_raise_errors_with_the_right_status(self):
        expected = ["TIMED_OUT", "TRUNCATED", "CANCELLED", "OUT_OF_RANGE"]
        self.assertEqual(run(2, failures), [expected, expected])

    def test_collective_operations_give_correct_results(self):
        self.assertEqual(run(3, collectives), [True] * 3)

    def test_invalid_arguments_raise(self):
        context = hetcomm.Context()
        with self.assertRaises(TypeError):
            hetcomm.Communicator.from_store(context, 0, 1, None)
        with self.assertRaises(hetcomm.Error):
            hetcomm.Context(settings="SPIN_TIME=many")
        world = alone(context)
        with self.assertRaises(TypeError):
            world.send(numpy.arange(10)[::2], 0)
        world.close()
        with self.assertRaises(ValueError):
            world.send(b"", 0)

    def test_all_threads_waiting_for_a_request_get_its_result(self):
        world = alone(hetcomm.Context())

        def tested(request):
            while not request.test():
                time.sleep(0)
            return request.wait().bytes_received

        for size in range(1, 51):
            request = world.recv(bytearray(size), source=0)
            got = in_threads([lambda: request.wait().bytes_received,
                              lambda: request.wait(20).bytes_received,
                              lambda: tested(request), lambda: tested(request),
                              lambda: world.send(bytes(size), 0).wait().bytes_sent])
            self.assertEqual(got, [size] * 5)
        for _ in range(20):
            request = world.recv(bytearray(4), source=0)
            got = in_threads([request.wait, request.wait, request.cancel, request.cancel])
            self.assertEqual(got, ["CANCELLED", "CANCELLED", None, None])
        # Who waits for a shorter time is not held by who waits for longer.
        request = world.recv(bytearray(4), source=0)
        timed_out = threading.Event()

        def wait_briefly():
            try:
                request.wait(0.02)
            finally:
                timed_out.set()

        got = in_threads([wait_briefly, request.wait,
                          lambda: timed_out.wait(20) and request.cancel()])
        self.assertEqual(got, ["TIMED_OUT", "CANCELLED", None])
        world.close()

    def exchange(self, world, value, into):
        request = world.recv(into, source=0)
        world.send(value, 0).wait()
        request.wait()

    def test_every_kind_of_array_exporter_is_accepted(self):
        world = alone(hetcomm.Context())
        numbers = numpy.arange(6, dtype="float32")
        fixed = numbers.copy()
        fixed.flags.writeable = False
        for kind in (Exporter, OldExporter, lambda array: array):
            into = numpy.zeros_like(numbers)
            self.exchange(world, kind(numbers), kind(into))
            self.assertEqual(into.tolist(), numbers.tolist())
        # The request keeps what nobody else holds.
        into = numpy.zeros(100_000)
        late = world.send(Exporter(numpy.full(100_000, 7.0)), 0)
        gc.collect()
        world.recv(into).wait()
        late.wait()
        self.assertTrue((into == 7).all())
        into = numpy.zeros_like(numbers)
        self.exchange(world, fixed, into)
        self.assertEqual(into.tolist(), numbers.tolist())
        for writable in (fixed, b"four"):
            with self.assertRaises(TypeError):
                world.recv(writable)
        for refusal in (BufferError("no"), RuntimeError("no"), KeyboardInterrupt()):
            bad = Exporter(numbers, refusal)
            for call in (lambda: world.send(bad, 0), lambda: world.recv(bad),
                         lambda: world.broadcast(bad), lambda: world.allreduce(numbers, bad),
                         lambda: world.gather(bad, into), lambda: world.alltoallv([numbers], [bad]),
                         lambda: world.alltoallv([bad], [numbers])):
                with self.assertRaises(type(refusal)) as caught:
                    call()
                self.assertIs(caught.exception, refusal)
        with self.assertRaisesRegex(BufferError, "resolve_neg"):
            world.send(Exporter(numbers, negative=True), 0)
        world.close()

    @unittest.skipIf(torch is None, "there is no torch")
    def test_torch_tensors_are_accepted(self):
        world = alone(hetcomm.Context())
        numbers = torch.arange(6.0)
        into = torch.zeros(6)
        self.exchange(world, numbers, into)
        self.assertEqual(into.tolist(), numbers.tolist())
        half = torch.zeros(6, dtype=torch.bfloat16)
        self.exchange(world, numbers.bfloat16(), half)
        self.assertEqual(half.tolist(), numbers.tolist())
        of_model = torch.zeros(6, requires_grad=True)
        conjugate = torch.ones(3, dtype=torch.complex64).conj()
        for bad in (conjugate, conjugate.imag, of_model, of_model * 2):
            with self.assertRaises(BufferError):
                world.send(bad, 0)
            with self.assertRaises(BufferError):
                world.recv(bad)
        self.exchange(world, of_model.detach(), into)
        self.assertEqual(into.tolist(), [0] * 6)
        world.close()

    def test_random_key_is_deleted_from_the_store(self):
        with tempfile.TemporaryDirectory() as folder:
            put, get = store(folder)

            def delete(key):
                (pathlib.Path(folder) / key.replace("/", "_")).unlink()

            def join(rank):
                world = hetcomm.Communicator.from_store(hetcomm.Context(), rank, 2, put, get,
                                                        timeout=20, delete=delete)
                world.barrier().wait()
                keys = os.listdir(folder)
                world.barrier().wait()
                world.close()
                return keys

            with concurrent.futures.ThreadPoolExecutor(2) as threads:
                for keys in threads.map(join, range(2)):
                    self.assertTrue(keys)
                    self.assertEqual([key for key in keys if "secret" in key], [])

    def test_store_exception_reaches_the_caller(self):
        context = hetcomm.Context()

        def make(put, get, rank=0):
            return hetcomm.Communicator.from_store(context, rank, 2, put, get, timeout=20)

        def raising(exception):
            def call(*_):
                raise exception
            return call

        nothing = lambda *_: None
        own = ValueError("the store is full")
        for rank, put, get in ((0, raising(own), nothing), (0, nothing, raising(own)),
                               (1, nothing, raising(own))):
            with self.assertRaisesRegex(hetcomm.Error, "ValueError: the store is full") as caught:
                make(put, get, rank)
            self.assertEqual(caught.exception.status, "BOOTSTRAP_FAILED")
            self.assertIs(caught.exception.__cause__, own)
        with self.assertRaisesRegex(hetcomm.Error, "returned an object of type str;") as caught:
            make(nothing, lambda *_: "text")
        self.assertIsInstance(caught.exception.__cause__, TypeError)
        for stop in (KeyboardInterrupt(), SystemExit(3)):
            for put, get in ((raising(stop), raising(ValueError())),
                             (nothing, raising(stop))):
                with self.assertRaises(type(stop)) as caught:
                    make(put, get)
                self.assertIs(caught.exception, stop)
        # The same context and store serve on.
        alone(context).close()


if __name__ == "__main__":
    unittest.main()
