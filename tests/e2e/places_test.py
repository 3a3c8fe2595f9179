#!/usr/bin/env python3
"""Where the library's own threads run, and near which NUMA node it requests its memory.

Properties, on a host that a trusted topology file divides into two nodes of one processor each: the progress
and the control thread run on the processors of the first NIC's node, and the caller's thread stays where it was;
HETCOMM_PROGRESS_CPUS selects others, or none; no thread ever leaves the processors that the launcher allowed; the
library requests memory of node 0, which the kernel has, and a refused node changes nothing; an invalid list is
refused by name.

places_test.py BENCH: the program is hetcomm_bench.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

SKIPPED = 77


def machine(folder, node):
    path = pathlib.Path(folder) / f"node{node}.json"
    path.write_text(json.dumps({
        "format": "hetcomm topology", "version": 1,
        "numa_nodes": [{"number": number, "processors": str(number)} for number in range(2)],
        "nics": [{"interface": "hetnic0", "state": "up", "mbit_per_s": 100000, "numa_nodes": [node]}]}))
    return {"HETCOMM_TOPOLOGY": str(path), "HETCOMM_TOPOLOGY_TRUST": "on"}


def allowed(task):
    for line in (task / "status").read_text().splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return line.split()[1]
    raise AssertionError(task)


class Job:
    """Two ranks that exchange messages until the test ends them."""

    def __init__(self, bench, transport, prefix=(), **settings):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HETCOMM_")}
        self.ranks = [subprocess.Popen(
            [*prefix, bench, "bandwidth", "--transport", transport, "-b", "64K", "-e", "64K", "--seconds", "20"],
            env={**clean, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                 "HETCOMM_SECRET": "the secret of this test", "HETCOMM_PROGRESS": "thread", **settings},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for rank in range(2)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
        for rank in self.ranks:
            rank.communicate(timeout=30)

    def threads(self):
        """Processors of the first rank's main thread and of its two other threads, once these have started."""
        folder = pathlib.Path("/proc") / str(self.ranks[0].pid) / "task"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            tasks = sorted(folder.iterdir(), key=lambda task: int(task.name))
            if len(tasks) >= 4:  # main, progress, control, the store's
                time.sleep(0.3)
                return allowed(tasks[0]), sorted(allowed(task) for task in tasks[1:])
            assert self.ranks[0].poll() is None, self.ranks[0].communicate()
            time.sleep(0.05)
        raise AssertionError("the threads of rank 0 did not start")

    def policies(self):
        maps = pathlib.Path("/proc") / str(self.ranks[0].pid) / "numa_maps"
        return maps.read_text() if maps.exists() else None


def check_threads(bench, folder):
    with Job(bench, "tcp", **machine(folder, 0)) as job:
        main, others = job.threads()
        assert main == "0-1" and others.count("0") == 2, (main, others)
    with Job(bench, "tcp", **machine(folder, 1)) as job:
        main, others = job.threads()
        assert main == "0-1" and others.count("1") == 2, (main, others)
    for value, expected in (("none", 0), ("", 2), ("0", 2)):
        with Job(bench, "tcp", HETCOMM_PROGRESS_CPUS=value, **machine(folder, 0)) as job:
            main, others = job.threads()
            assert main == "0-1" and others.count("0") == expected, (value, main, others)
    # The launcher's binding counts for more than the NIC's node, and than what is named.
    for settings in ({}, {"HETCOMM_PROGRESS_CPUS": "0"}):
        with Job(bench, "tcp", prefix=("taskset", "-c", "1"), **machine(folder, 0), **settings) as job:
            main, others = job.threads()
            assert {main, *others} == {"1"}, (main, others)


def check_memory(bench, folder):
    for transport in ("shm", "tcp"):
        with Job(bench, transport, **machine(folder, 0)) as job:
            job.threads()
            maps = job.policies()
            if maps is None:
                print("this kernel has no numa_maps: policies are not checked")
                return
            assert "prefer" in maps, (transport, maps)
    with Job(bench, "tcp", HETCOMM_LOG="debug", **machine(folder, 1)) as job:
        job.threads()
        refused = not (pathlib.Path("/sys/devices/system/node") / "node1").exists()
        if refused:
            assert "prefer" not in job.policies()


def check_errors(bench):
    for value in ("x", "3-1", "0,,x"):
        result = subprocess.run([bench, "latency", "--transport", "tcp", "-e", "8", "--seconds", "0.01"],
                                env={**os.environ, "HETCOMM_PROGRESS_CPUS": value}, capture_output=True, text=True,
                                timeout=60)
        assert result.returncode != 0 and "HETCOMM_PROGRESS_CPUS" in result.stderr, (value, result)


def main():
    (bench,) = sys.argv[1:]
    if not {0, 1} <= os.sched_getaffinity(0):
        print("this needs processors 0 and 1")
        sys.exit(SKIPPED)
    os.sched_setaffinity(0, {0, 1})
    with tempfile.TemporaryDirectory() as folder:
        check_threads(bench, folder)
        check_memory(bench, folder)
    check_errors(bench)


if __name__ == "__main__":
    main()
