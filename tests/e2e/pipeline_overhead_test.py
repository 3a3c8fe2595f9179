#!/usr/bin/env python3
"""What a pipeline costs beside the computation: the wall time of an action, two ranks of this host over shared
memory, 4 KiB from stage to stage, 1F1B, nothing computed.

Properties: an action takes at most 20 us with callbacks in C, and at most 150 us with callbacks in Python.
A machine that others keep busy stalls processes: further attempts are allowed.

pipeline_overhead_test.py BENCH         with callbacks in C
pipeline_overhead_test.py python        with callbacks in Python, by hetcomm.bench_pipeline; says also what torch takes
"""

import json
import os
import statistics
import subprocess
import sys

ATTEMPTS = 3
MOST_US = 20
MOST_PYTHON_US = 150
LIMIT_S = 400


def rows_of(command, environment):
    ranks = [subprocess.Popen(command, env={**os.environ, **environment, "RANK": str(rank), "WORLD_SIZE": "2"},
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, said):
        if rank.returncode != 0:
            sys.exit(f"{' '.join(command)}: {errors[-2000:]}")
    return json.loads(said[0][0])


def in_c(bench, environment):
    row, = rows_of([bench, "pipeline", "--schedules", "1f1b", "--compute", "none", "--micro-batches", "1000,11000",
                    "--rounds", "3", "--transport", "shm", "--format", "json"], environment)
    return {"callbacks in C": row["overhead_us"]}


def in_python(environment):
    said = rows_of([sys.executable, "-m", "hetcomm.bench_pipeline", "--stage-ms", "0", "--micro-batches", "1000,11000",
                    "--rounds", "3", "--compare", "gloo", "--json"], environment)
    row, = said["rows"]
    return {name: statistics.median(us) / row["actions"] for name, us in row["us"].items()}


def main():
    is_python = sys.argv[1] == "python"
    most = MOST_PYTHON_US if is_python else MOST_US
    took = 0
    for attempt in range(1, ATTEMPTS + 1):
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29540 + attempt),
                       "HETCOMM_SECRET": "of this machine alone"}
        times = in_python(environment) if is_python else in_c(sys.argv[1], environment)
        took = times["callbacks that do nothing" if is_python else "callbacks in C"]
        print(f"attempt {attempt}: " + ", ".join(f"{name} {us:.1f} us" for name, us in times.items()), flush=True)
        if took <= most:
            return
    sys.exit(f"an action takes {took:.1f} us, and {most} us are the most")


if __name__ == "__main__":
    main()
