#!/usr/bin/env python3
"""Runs the examples as jobs of several ranks.

Properties: every rank succeeds and prints that it got the data of the preceding rank.

Usage: examples_test.py PROGRAM TEXT: TEXT with {rank}, {size}, {before} and {letter} is what each
rank has to print.
"""

import os
import socket
import subprocess
import sys

SIZE = 3


def main():
    program, text = sys.argv[1:]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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
