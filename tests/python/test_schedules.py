"""Schedules are those of torch.distributed.pipelining.

Properties: for every schedule of the installed torch, and a grid of ranks, chunks and micro-batches, the
order of computations is torch's, and what torch refuses is refused; torch reads what is written here, at
the level of transfers too; the most activations that live at a time are those that torch counts, from 2.15
on by itself, and before by its rule.

Usage: test_schedules.py PATH_OF_HETCOMM_INFO [unittest options]
"""

import csv
import functools
import io
import itertools
import json
import logging
import os
import subprocess
import sys
import unittest
import unittest.mock

try:
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
    from torch.distributed.pipelining import schedules as torch_schedules
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


class Ordered:
    """What torch's analysis reads of a schedule."""

    def __init__(self, rows, micro_batches):
        self.pipeline_order = {rank: [_Action.from_str(cell) if cell else None for cell in row]
                               for rank, row in enumerate(rows)}
        self._n_microbatches = micro_batches


def live_by_rule(row):
    """The most activations of a rank: each lives from the cell of its F to that of its B or W, with both."""
    begins, ends = {}, {}
    for place, cell in enumerate(row):
        for part in cell.split(")")[0].lstrip("(").split(";"):
            stage = "".join(itertools.takewhile(str.isdigit, part))
            kind, micro_batch = part[len(stage):len(stage) + 1], part[len(stage) + 1:]
            if kind == "F":
                begins[stage, micro_batch] = place
            elif kind in ("B", "W"):
                ends[stage, micro_batch] = place
    assert set(begins) == set(ends)
    return max(sum(begins[key] <= place <= ends[key] for key in begins) for place in range(len(row)))


def live_by_torch(rows, rank, micro_batches):
    stages = sorted({int("".join(itertools.takewhile(str.isdigit, cell.lstrip("(")))) for cell in rows[rank] if cell})
    analyze = torch_schedules.analyze_pipeline_activation_liveness
    plan = analyze(Ordered(rows, micro_batches), pp_rank=rank, stage_indices=stages, granularity="stage_microbatch")
    return plan.num_slots


class Orders(unittest.TestCase):
    def test_peaks_of_live_activations_match_torch(self):
        more = {"h-1f1b": ("--forward", "10ms", "--boundary", "0=1ms+25ms"), "eager-1f1b": (), "zb-h1": (), "zb-h2": ()}
        for name, (ranks, micro_batches) in itertools.product([*SCHEDULES, *more], ((2, 4), (4, 16))):
            chunks = SCHEDULES.get(name, (1,))[0]
            with self.subTest(name, ranks=ranks, micro_batches=micro_batches):
                rows = written(name, ranks, chunks, micro_batches, *more.get(name, ()))
                told = json.loads(subprocess.run(
                    [INFO, "schedule", name, "--ranks", str(ranks), "--chunks", str(chunks), "--micro-batches",
                     str(micro_batches), "--format", "json", *more.get(name, ())], capture_output=True, text=True,
                    check=True).stdout)
                self.assertEqual(told["peaks"], [live_by_rule(row) for row in rows])
                if hasattr(torch_schedules, "analyze_pipeline_activation_liveness"):
                    self.assertEqual(told["peaks"], [live_by_torch(rows, rank, micro_batches) for rank in range(ranks)])

    def test_schedule_orders_match_torch(self):
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

    def test_torch_parses_written_schedules(self):
        for name, level in itertools.product(SCHEDULES, ("compute", "transfers")):
            with self.subTest(name, level=level):
                rows = written(name, 2, SCHEDULES[name][0], 8, "--level", level)
                for cell in itertools.chain(*rows):
                    self.assertEqual(str(_Action.from_str(cell)), cell)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    # Torch makes a stage for each order, by this function, which takes most of the time, and sets all that it reads.
    unittest.mock.create_autospec = functools.cache(unittest.mock.create_autospec)
    INFO = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
