#!/usr/bin/env python3
"""Runs the C example of pipelines over two clusters, by mpirun: two hosts (network namespaces) that a link with a
limited rate and a delay joins.

Properties: plans with a data degree of 2 in one cluster and 1 in the other, with two pipelines of unequal depth, and
with several stages of a rank run to their end, and no step is faster than its computation and the link allow.

pipeline_clusters_test.py EXAMPLE INFO      the test
pipeline_clusters_test.py EXAMPLE INFO --table  the time of a step by plan and schedule beside its forecast; no verdict
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from namespaces import TwoHosts, need

DELAY_MS = 9
MBIT = 1000
STAGE_MS = 21  # 7 forward, 14 backward
ELEMENTS = 4096
LIMIT_S = 120


def boundary(source, destination, samples):
    return {"from": source, "to": destination, "tensors": [{
        "name": "x", "type": "float32", "shape": [samples, ELEMENTS], "cut": {"data": 0}}]}


def pipeline(stages, schedule, micro_batches, samples=2):
    """|stages|: lists of ranks, which share each sample group by data parallelism."""
    made = [{"items": [i, i + 1], "ranks": ranks, "chunk": stages[:i].count(ranks), "degrees": {"data": len(ranks)}}
            for i, ranks in enumerate(stages)]
    return {"micro_batches": micro_batches, "micro_batch_size": samples, "stages": made, "schedule": {"name": schedule},
            "boundaries": [boundary(i, i + 1, samples) for i in range(len(stages) - 1)]}


def plan(pipelines, ranks):
    items = max(each["stages"][-1]["items"][1] for each in pipelines)
    for each in pipelines:
        each["stages"][-1]["items"][1] = items
    return {"format": "hetcomm pipeline plan", "version": 1, "cluster": {"hash": "two"},
            "model": {"hash": "none", "items": items},
            "training": {"global_batch": sum(each["micro_batches"] * each["micro_batch_size"] for each in pipelines),
                         "sequence": 1, "precision": "float32", "optimizer": "none"},
            "ranks": [{"host": "", "device": 0}] * ranks, "pipelines": pipelines, "gradients": {"weight": "samples"}}


# By name: the plan, the ranks of the first host, and the stages of each rank.
CASES = {
    "degrees": (plan([pipeline([[0, 1], [2]], "1f1b", 16)], 3), 2, 1),
    "degrees, zero bubble": (plan([pipeline([[0, 1], [2]], "zb-h1", 16)], 3), 2, 1),
    "two pipelines": (plan([pipeline([[0], [1], [3]], "1f1b", 16), pipeline([[2], [4]], "1f1b", 12)], 5), 3, 1),
    "a V": (plan([pipeline([[0], [1], [1], [0]], "zb-v", 16)], 2), 1, 2),
}


def wrapper(folder, link, first_ranks):
    """A program that starts its arguments on the host of its rank."""
    lines = ["#!/bin/sh", f'if [ "$OMPI_COMM_WORLD_RANK" -lt {first_ranks} ]; then host=0; else host=1; fi']
    for i, host in enumerate(link.hosts):
        own = f"HETCOMM_CLUSTER=c{i} HETCOMM_HOST_LABEL=h{i}"
        lines.append(f'if [ $host = {i} ]; then exec ip netns exec {host} env {own} "$@"; fi')
    path = pathlib.Path(folder, "on_host")
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def forecast_ms(info, path, made, number, first):
    """What a step of pipeline |number| takes by the simulator, with the link behind each stage that ends a cluster."""
    own = made["pipelines"][number]
    stages = own["stages"]
    slow = [i for i in range(len(stages) - 1)
            if (max(stages[i]["ranks"]) < first) != (max(stages[i + 1]["ranks"]) < first)]
    busy_us = ELEMENTS * 4 * own["micro_batch_size"] * 8 / MBIT
    links = ",".join(f"{i}={busy_us:.0f}us+{DELAY_MS}ms" for i in slow)
    words = [info, "schedule", path, "--forward", f"{STAGE_MS / 3}ms", "--backward", f"{STAGE_MS * 2 / 3}ms",
             "--format", "json"]
    if links:
        words += ["--boundary", links]
    words += ["--pipeline", str(number)]
    answer = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return answer["forecast"]["total_ns"] / 1e6


def main():
    example, info = sys.argv[1:3]
    wants_table = "--table" in sys.argv
    need("two clusters", "ip", "tc", "sysctl", "mpirun")
    faults = []
    with tempfile.TemporaryDirectory() as folder, TwoHosts(DELAY_MS, MBIT) as link:
        for name, (made, first, chunks) in CASES.items():
            path = str(pathlib.Path(folder, f"{name}.json"))
            pathlib.Path(path).write_text(json.dumps(made))
            expected = max(forecast_ms(info, path, made, i, first) for i in range(len(made["pipelines"])))
            command = [shutil.which("mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n",
                       str(len(made["ranks"])), wrapper(folder, link, first), example, str(STAGE_MS), path, str(chunks)]
            environment = {**os.environ, "MASTER_ADDR": link.address, "MASTER_PORT": "29500", "HETCOMM_FAMILY": "ipv4",
                           "HETCOMM_SECRET": "of this machine alone"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            took = re.search(r"a step takes ([0-9.]+) ms", done.stdout)
            if done.returncode != 0 or took is None:
                faults.append(f"{name}: {done.stdout}{done.stderr}")
                continue
            ms = float(took.group(1))
            print(f"{name:<24} a step takes {ms:8.1f} ms, forecast {expected:8.1f} ms, {ms / expected:.2f}", flush=True)
            if not wants_table and ms < 0.97 * expected:
                faults.append(f"{name}: {ms} ms, and the forecast is {expected} ms")
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
