"""Schedules are those of torch.distributed.pipelining.

Properties: for every schedule of the installed torch, and a grid of ranks, chunks and micro-batches, the
order of computations is torch's, and what torch refuses is refused; torch reads what is written here, at
the level of transfers too.

Usage: test_schedules.py PATH_OF_HETCOMM_INFO [unittest options]
"""

import csv
import io
import itertools
import logging
import os
import subprocess
import sys
import unittest

try:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    from torch.distributed.pipelining.schedules import _Action
except ImportError as error:
    print(f"skipped: this torch does not show its schedules: {error}")
    sys.exit(77)

INFO = ""

# The schedules, and the chunks of a rank that they are tried with.
SCHEDULES = {
    "GPipe": (1,),
    "1F1B": (1,),
    "LoopedBFS": (2, 3),
    "Interleaved1F1B": (2, 3),
    "InterleavedZeroBubble": (2, 4),
    "ZBVZeroBubble": (2,),
    "DualPipeV": (2,),
}


def written(name, ranks, chunks, micro_batches, *more):
    """The rows that hetcomm writes, or None if it refuses."""
    done = subprocess.run(
        [INFO, "schedule", name, "--ranks", str(ranks), "--chunks", str(chunks),
         "--micro-batches", str(micro_batches), "--format", "csv", *more],
        capture_output=True, text=True, timeout=60)
    if done.returncode == 1 and done.stderr.startswith("hetcomm_info: question: "):
        return None
    if done.returncode != 0:
        raise AssertionError(f"{name}: exit status {done.returncode}: {done.stderr}")
    return list(csv.reader(io.StringIO(done.stdout)))


def order_of_torch(name, ranks, chunks, micro_batches):
    """The computations of each rank in torch's order, or None if torch refuses."""
    try:
        order = get_schedule_ops(name, ranks, micro_batches, chunks if chunks > 1 else None)
    except ValueError:
        return None
    rows = [[str(action) for action in row if action is not None and "REDUCE" not in str(action)]
            for row in order]
    if name == "1F1B":
        # Some releases count the forward steps of the last rank from 1.
        last = rows[-1]
        forward = iter(range(micro_batches))
        rows[-1] = [f"{ranks - 1}F{next(forward)}" if "F" in cell else cell for cell in last]
    return rows


class Orders(unittest.TestCase):
    def test_orders_are_those_of_torch(self):
        compared = refused = 0
        for name, all_chunks in SCHEDULES.items():
            grid = itertools.product((1, 2, 3, 4, 8), all_chunks, (1, 2, 4, 6, 8, 16, 17))
            for ranks, chunks, micro_batches in grid:
                with self.subTest(name, ranks=ranks, chunks=chunks, micro_batches=micro_batches):
                    theirs = order_of_torch(name, ranks, chunks, micro_batches)
                    if name == "1F1B" and micro_batches < ranks:
                        continue  # torch refuses it for reasons of its own
                    ours = written(name, ranks, chunks, micro_batches)
                    self.assertEqual(ours, theirs)
                    compared += theirs is not None
                    refused += theirs is None
        self.assertGreater(compared, 250)
        self.assertGreater(refused, 10)

    def test_torch_reads_what_is_written(self):
        for name, level in itertools.product(SCHEDULES, ("compute", "transfers")):
            with self.subTest(name, level=level):
                rows = written(name, 2, SCHEDULES[name][0], 8, "--level", level)
                for cell in itertools.chain(*rows):
                    self.assertEqual(str(_Action.from_str(cell)), cell)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    INFO = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
