"""The Python package without torch.

Proves: NumPy arrays, bytearrays and memoryviews go as messages and through collective operations;
requests keep their buffers, are cancelled when dropped, and raise Error with the reason.
"""

import gc
import multiprocessing
import pathlib
import tempfile
import time
import traceback
import unittest

import numpy

import hetcomm


def store(folder):
    """put and get over files."""
    root = pathlib.Path(folder)

    def put(key, value):
        path = root / key.replace("/", "_")
        path.with_suffix(".new").write_bytes(value)
        path.with_suffix(".new").rename(path)

    def get(key, seconds):
        path = root / key.replace("/", "_")
        deadline = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        return path.read_bytes()

    return put, get


def main(pipe, function, rank, size, folder):
    try:
        put, get = store(folder)
        context = hetcomm.Context()
        world = hetcomm.Communicator.from_store(context, rank, size, put, get, timeout=20)
        result = function(world)
        world.barrier().wait()
        world.close()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def run(size, function, limit_s=60):
    context = multiprocessing.get_context("fork")
    started = []
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=main, args=(theirs, function, rank, size, folder))
            process.start()
            theirs.close()
            started.append((process, mine))
        deadline = time.monotonic() + limit_s
        for process, pipe in started:
            if not pipe.poll(max(0, deadline - time.monotonic())):
                results.append((False, "did not come to an end"))
            else:
                results.append(pipe.recv())
        for process, _ in started:
            process.kill()
            process.join()
    for rank, (good, result) in enumerate(results):
        if not good:
            raise AssertionError(f"rank {rank}: {result}")
    return [result for _, result in results]


def messages(world):
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


def failures(world):
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


def collectives(world):
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


class Package(unittest.TestCase):
    def test_messages(self):
        self.assertEqual(run(2, messages), [True, True])

    def test_failures(self):
        expected = ["TIMED_OUT", "TRUNCATED", "CANCELLED", "OUT_OF_RANGE"]
        self.assertEqual(run(2, failures), [expected, expected])

    def test_collectives(self):
        self.assertEqual(run(3, collectives), [True] * 3)

    def test_refusals(self):
        context = hetcomm.Context()
        with self.assertRaises(TypeError):
            hetcomm.Communicator.from_store(context, 0, 1, None)
        with self.assertRaises(hetcomm.Error):
            hetcomm.Context(settings="SPIN_TIME=many")
        world = hetcomm.Communicator.from_store(context, 0, 1, lambda *_: None, lambda *_: None)
        with self.assertRaises(TypeError):
            world.send(numpy.arange(10)[::2], 0)
        world.close()
        with self.assertRaises(ValueError):
            world.send(b"", 0)


if __name__ == "__main__":
    unittest.main()
