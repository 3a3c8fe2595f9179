"""Runs a function as several ranks, each a forked process, and gathers what they return.

The parent makes no store and no thread before it forks. Where HETCOMM_TEST_DEVICE names a type of
device, tensors are made there unless a test says where: "standin" in every test run, or "cuda" by
hand. A rank that hangs is killed, and the test fails, after a time limit. A function may kill its
own process: the exit status is then the result.
"""

import math
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

LIMIT_S = 60
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
DEVICE = os.environ.get("HETCOMM_TEST_DEVICE", "cpu")


class Died:
    """In place of a result: the rank ended without one."""

    def __init__(self, code):
        self.code = code

    def __repr__(self):
        return f"Died({self.code})"


def init(rank, size, folder, backend="hetcomm", timeout_s=30, **arguments):
    """The default group over a file in |folder|."""
    dist.init_process_group(
        backend,
        store=dist.FileStore(os.path.join(folder, "store"), -1),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
        **arguments,
    )


def without_recorder():
    """torch's recorder has hooks of its own. At the first failure it writes a file, which takes seconds."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"


def use_device():
    if DEVICE == "standin":
        import standin

        standin._set_lenient(True)  # torch itself needs that
    if DEVICE != "cpu":
        torch.set_default_device(DEVICE)


def _main(pipe, function, rank, size, folder, arguments):
    torch.set_num_threads(1)
    try:
        use_device()
        result = (True, function(rank, size, folder, *arguments))
    except BaseException:  # is shown by the parent
        result = (False, (time.monotonic(), traceback.format_exc()))
    pipe.send(result)
    if result[0]:
        # A rank that left would be lost to others, which may still be making the group.
        pipe.poll(LIMIT_S)
    # Without destructors: a test that wants a clean end makes one.
    os._exit(0)


def run(size, function, *arguments, limit_s=LIMIT_S, may_die=False):
    """Results of function(rank, size, folder, *arguments) in the order of the ranks."""
    context = multiprocessing.get_context("fork")
    folder = tempfile.mkdtemp(prefix="hetcomm-test-")
    ranks = []
    try:
        for rank in range(size):
            mine, theirs = context.Pipe()
            process = context.Process(
                target=_main, args=(theirs, function, rank, size, folder, arguments)
            )
            process.start()
            theirs.close()
            ranks.append((process, mine))
        return _collect(ranks, time.monotonic() + limit_s, may_die)
    finally:
        for process, pipe in ranks:
            process.kill()
            process.join()
            pipe.close()
        shutil.rmtree(folder, ignore_errors=True)


def _collect(ranks, deadline, may_die):
    """The results; or an error with what each rank that failed says, the first to fail first."""
    results, failures = [], []
    for rank, (process, pipe) in enumerate(ranks):
        # After a failure the others get a short time to tell theirs.
        limit = min(deadline, time.monotonic() + 5) if failures else deadline
        if not pipe.poll(max(limit - time.monotonic(), 0)):
            failures.append((math.inf, f"rank {rank} did not come to an end"))
            continue
        try:
            good, result = pipe.recv()
        except EOFError:
            process.join()
            if may_die:
                results.append(Died(process.exitcode))
            else:
                failures.append((0, f"rank {rank} died with {process.exitcode}"))
            continue
        if good:
            results.append(result)
        else:
            when, text = result
            failures.append((when, f"rank {rank}:\n{text}"))
    if failures:
        raise AssertionError("\n".join(text for _, text in sorted(failures)))
    return results


def until(condition, limit_s=20):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.002)


def meet(rank, size, folder, place="met"):
    """Returns when all ranks have called it, by files: no group takes part."""
    path = os.path.join(folder, place)
    open(f"{path}{rank}", "w").close()
    until(lambda: all(os.path.exists(f"{path}{other}") for other in range(size)))


class TestCase(unittest.TestCase):
    """With the helpers that tests of all files use."""

    def all_equal(self, results, expected):
        for rank, result in enumerate(results):
            self.assertEqual(result, expected, f"rank {rank}")
