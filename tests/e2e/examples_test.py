#!/usr/bin/env python3
"""Runs the examples as jobs of several ranks.

Properties: every rank succeeds and prints that it got the data of the preceding rank.

Usage: examples_test.py PROGRAM TEXT [DEVICES...]: TEXT with {rank}, {size}, {before} and {letter} is what
each rank has to print. DEVICES: ranks, as many as there are words, have these as HETCOMM_DEVICES, and
mpirun starts them, if it is here.
"""

import os
import shutil
import socket
import subprocess
import sys

SIZE = 3


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_by_mpirun(program, text, devices):
    """Each rank has a device of its own, and computes for a set time."""
    command = ["mpirun", "--oversubscribe", "--bind-to", "none"]
    for each in devices:
        command += [*([":"] if "-n" in command else []), "-n", "1", "-x", f"HETCOMM_DEVICES={each}", program, "2"]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", HETCOMM_SECRET="the secret of this test")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    expected = [text.format(rank=rank, size=len(devices)) for rank in range(len(devices))]
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not set(expected) <= set(lines):
        sys.exit(f"status {done.returncode}, expected {expected}:\n{done.stdout}\n{done.stderr}")
    # Six micro-batches of 2 ms, and the other stages that begin later and end earlier.
    step_ms = next(float(line.split()[3]) for line in lines if line.startswith("a step takes"))
    if step_ms < 2 * (6 + len(devices) - 1) * 0.99:
        sys.exit(f"a step took {step_ms} ms, less than it computes")
    print(done.stdout)


def main():
    program, text, *devices = sys.argv[1:]
    if devices:
        if shutil.which("mpirun") is None:
            print("there is no mpirun")
            sys.exit(77)
        return run_by_mpirun(program, text, devices)
    port = free_port()
    ranks = [subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(SIZE),
                                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                                       HETCOMM_SECRET="the secret of this test"))
             for rank in range(SIZE)]
    # The log may have warnings, such as of a stranger who comes to a port of the job.
    outputs = [rank.communicate(timeout=50) for rank in ranks]
    for rank, (output, log) in enumerate(outputs):
        before = (rank - 1) % SIZE
        expected = text.format(rank=rank, size=SIZE, before=before, letter="abc"[before])
        if ranks[rank].returncode != 0 or output.strip() != expected:
            sys.exit(f"rank {rank}: status {ranks[rank].returncode}, expected '{expected}':\n{output}\n{log}")
        print(output.strip())


if __name__ == "__main__":
    main()
