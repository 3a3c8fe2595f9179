"""Processor time of redistributions with short rows, beside NumPy's copies, in one run.

Two ranks move 16 MiB into and out of transposed, strided and float16 tensors, and the same bytes as
they lie. The difference on the rank that copies is the cost of the copy; the other rank waits for it.
It is right if numpy.copyto() of the same elements takes as much or more. All are medians of rounds in
which they take turns.

    PYTHONPATH=build/release/python python tests/python/time_reshard_rows.py [TRANSPORT] [--one-type]

--one-type leaves out conversions, whose code developers' builds do not optimise.
"""

import argparse
import os
import resource
import sys

import numpy

from hetcomm import reshard
from package_ranks import run

N = 2048
ROUNDS = 15
MARGIN = 1.15  # for medians of one copy

# By name: strides of source and destination in elements (None: dense), and their types.
ROWS = {
    "to transposed": (None, (1, N), "f4", "f4"),
    "from transposed": ((1, N), None, "f4", "f4"),
    "to every 2nd": (None, (2 * N, 2), "f4", "f4"),
    "from every 2nd": ((2 * N, 2), None, "f4", "f4"),
    "to float16": (None, None, "f4", "f2"),
    "from float16": (None, None, "f2", "f4"),
    "to float16 transposed": (None, (1, N), "f4", "f2"),
    "from float16 transposed": ((1, N), None, "f2", "f4"),
}


def processor_ms():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


def whole(rank, strides):
    return reshard.layout((N, N), [rank], [reshard.Replicate()], strides=strides)


class Move:
    """One plan from rank 0 to rank 1, with this rank's buffer."""

    def __init__(self, world, row):
        source, destination, from_type, to_type = row
        tensor = (whole(0, source), whole(1, destination), numpy.dtype(from_type).name, numpy.dtype(to_type).name)
        self.plan = reshard.Plan(world, [tensor])
        self.buffers = ([None], [None])
        layout, kind = (tensor[0], from_type) if world.rank == 0 else (tensor[1], to_type)
        self.buffers[world.rank][0] = numpy.ones(layout.elements(world.rank), kind)
        self.world = world

    def cost(self):
        self.world.barrier(timeout=60).wait()
        before = processor_ms()
        self.plan.start(*self.buffers, timeout=60).wait()
        return processor_ms() - before


def array_of(strides, kind):
    if strides is None:
        return numpy.ones((N, N), kind)
    return numpy.ones((N, N), kind).T if strides[0] == 1 else numpy.ones((N, 2 * N), kind)[:, ::2]


def copy_cost(source, target):
    before = processor_ms()
    numpy.copyto(target, source)
    return processor_ms() - before


def measure(world, _):
    moves = {name: Move(world, row) for name, row in ROWS.items()}
    # The sender converts, so that elements of the destination's type are sent.
    plain = {kind: Move(world, (None, None, kind, kind)) for kind in ("f4", "f2")}
    copies = {name: (array_of(row[0], row[2]), array_of(row[1], row[3])) for name, row in ROWS.items()}
    times = {}
    for _ in range(ROUNDS):
        for name, row in ROWS.items():
            times.setdefault((name, "move"), []).append(moves[name].cost())
            times.setdefault((name, "as it lies"), []).append(plain[row[3]].cost())
            if world.rank == 0:
                times.setdefault((name, "NumPy"), []).append(copy_cost(*copies[name]))
            world.barrier(timeout=60).wait()
    return {key: sorted(values)[len(values) // 2] for key, values in times.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", nargs="?", default="shm")
    parser.add_argument("--one-type", action="store_true")
    options = parser.parse_args()
    os.environ["HETCOMM_TRANSPORTS"] = transport = options.transport
    if options.one_type:
        for name in [name for name, row in ROWS.items() if row[2] != row[3]]:
            del ROWS[name]
    ranks = run(2, measure, limit_s=120)
    failed = []
    print(f"ms of processor time over {transport}   move   as it lies   difference   NumPy")
    for name in ROWS:
        move, plain = max(
            ((rank[name, "move"], rank[name, "as it lies"]) for rank in ranks),
            key=lambda pair: pair[0] - pair[1],
        )
        copy = ranks[0][name, "NumPy"]
        print(f"{name:30} {move:8.2f} {plain:12.2f} {move - plain:12.2f} {copy:7.2f}")
        if move - plain > MARGIN * copy:
            failed.append(name)
    if failed:
        sys.exit("slower than NumPy: " + ", ".join(failed))


if __name__ == "__main__":
    main()
