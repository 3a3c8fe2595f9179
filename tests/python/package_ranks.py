"""Runs a function as several ranks of a communicator without torch, each a forked process."""

import multiprocessing
import pathlib
import tempfile
import time
import traceback

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


def _main(pipe, function, rank, size, folder, thread):
    try:
        put, get = store(folder)
        context = hetcomm.Context(thread=thread)
        world = hetcomm.Communicator.from_store(context, rank, size, put, get, timeout=20)
        result = function(world, context)
        world.barrier().wait()
        world.close()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def run(size, function, thread=False, limit_s=60):
    """Results of function(world, context) in the order of the ranks. thread: contexts have one."""
    context = multiprocessing.get_context("fork")
    started = []
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_main, args=(theirs, function, rank, size, folder, thread)
            )
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
