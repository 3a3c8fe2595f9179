#!/usr/bin/env python3
"""Trains the transformer of examples/train_pipeline.py over two clusters, by torchrun: two hosts (network
namespaces) that a link with a limited rate and a delay joins.

Properties: losses and parameters are those of one process: bit for bit in float64 with one rank a stage and one
pipeline, to 1e-10 with a data degree of 2 in one cluster and 1 in the other and with two pipelines of unequal
depth, and to rounding in float32.

train_clusters_test.py                       what the test checks
train_clusters_test.py --table [--plot FILE] the time of a step by schedule and delay beside its forecast; no verdict
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import sys

from namespaces import TwoHosts, need, run_ranks

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
LIMIT_S = 300
MBIT = 400
DELAY_MS = 5
SMALL = ["--layers", "2", "--width", "64", "--context", "32", "--steps", "8"]
CASES = [
    # Stages, ranks of each host, options, and the largest differences of losses and of parameters.
    ("1,1", (1, 1), ["--schedule", "zb-h1", "--double"], 0, 0),
    ("1,1", (1, 1), ["--schedule", "h-1f1b", "--link-us", "2000", "5000", "--double"], 0, 0),
    ("2,1", (2, 1), ["--double"], 1e-10, 1e-10),
    ("1,1/1", (2, 1), ["--double"], 1e-10, 1e-10),
    # A parameter that no step changes differs by some 8e-3.
    ("2,1", (2, 1), [], 1e-4, 1e-3),
]


def train(link, per_host, *options, cores=None):
    """What rank 0 says. |per_host|: the ranks of each host, of which torchrun on it starts all."""
    command = [sys.executable, "-m", "torch.distributed.run", str(EXAMPLES / "train_pipeline.py"), "--json", *options]
    settings = {"PET_NNODES": "2", "PET_NODE_RANK": ["0", "1"], "PET_NPROC_PER_NODE": [str(each) for each in per_host],
                "PET_MASTER_ADDR": link.address, "PET_MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}
    text = run_ranks(link.hosts, link.address, command, settings, LIMIT_S, cores)
    line, = [each for each in text.splitlines() if each.startswith('{"losses"')]
    return json.loads(line)


def check():
    faults = []
    with TwoHosts(DELAY_MS, MBIT) as link:
        for stages, per_host, options, most_loss, most_parameter in CASES:
            said = train(link, per_host, "--stages", stages, "--check", *SMALL, *options)
            loss, parameter, losses = said["loss_difference"], said["parameter_difference"], said["losses"]
            told = (f"stages {stages}, {' '.join(options)}: losses {losses[0]:.3f} to {losses[-1]:.3f} differ by {loss:.1e} "
                    f"at most, parameters by {parameter:.1e}")
            print(told, flush=True)
            if loss > most_loss or parameter > most_parameter or not losses[-1] < losses[0]:
                faults.append(told)
    sys.exit("\n".join(faults) or 0)


# --- times ----------------------------------------------------------------------------------------

SCHEDULES = ("1f1b", "eager-1f1b", "h-1f1b", "zb-h1")
PARTS = (0, 0.5, 1)  # of a stage's time for a micro-batch: the way of its data
MICRO_BATCHES = 32
MODEL = ["--stages", "1,1", "--layers", "4", "--width", "192", "--context", "64", "--batch", "64",
         "--micro-batches", str(MICRO_BATCHES), "--steps", "15"]
ITEM_BYTES = 2 * 64 * 192 * 4  # rows of a micro-batch, context, width, float32
WARM_UPS = 5


def step_ms(said):
    return statistics.median(said["run_seconds"][WARM_UPS:]) * 1e3


def forecast_ms(schedule, stages, busy_ns, latency_ns):
    """What the simulator says of a step whose stages take |stages|, as a run of them without delay has shown."""
    from hetcomm import pipeline

    known = [{key: value for key, value in stage.items() if key != "backward_ns"} for stage in stages]
    times = {"stages": known, "forward": [{"busy_ns": busy_ns, "latency_ns": latency_ns}]}
    made = pipeline.Schedule.named(schedule, ranks=2, micro_batches=MICRO_BATCHES, times=times)
    return made.forecast(times)["total_ns"] / 1e6


def measure(delays_ms, busy_ns, stage_ns):
    """The rows of the table: each delay in turns, with a limited rate; the first one is 0."""
    rows = []
    stages = {}  # by schedule, without delay
    base_ns = {}
    for delay_ms in delays_ms:
        with TwoHosts(delay_ms, MBIT) as link:
            for schedule in SCHEDULES:
                latency_us = int(delay_ms * 1000)
                said = train(link, (1, 1), *MODEL, "--schedule", schedule, "--link-us", str(busy_ns // 1000),
                             str(latency_us), "--stage-ms", str(stage_ns / 1e6), cores=(0, 1))
                if delay_ms == 0:
                    stages[schedule] = said["run"]["stages"]
                    base_ns[schedule] = max((said["run"]["transfer_ns"][0] or 0) - busy_ns, 0)
                forecast = forecast_ms(schedule, stages[schedule], busy_ns, base_ns[schedule] + int(delay_ms * 1e6))
                rows.append({"schedule": schedule, "delay_ms": delay_ms, "step_ms": step_ms(said),
                             "forecast_ms": forecast})
                print(f"{delay_ms:6.2f} {schedule:<12} {rows[-1]['step_ms']:9.1f} {forecast:9.1f} "
                      f"{rows[-1]['step_ms'] / forecast:7.3f}", flush=True)
    return rows


def draw(rows, path):
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hetcomm"}):
        figure = Figure(figsize=(7, 5), layout="constrained")
        axes = figure.subplots()
        for schedule, colour in zip(SCHEDULES, ("#c1272d", "#0072b2", "#009e73", "#e69f00")):
            own = [row for row in rows if row["schedule"] == schedule]
            delays = [row["delay_ms"] for row in own]
            axes.plot(delays, [row["step_ms"] for row in own], color=colour, marker="o", label=schedule)
            axes.plot(delays, [row["forecast_ms"] for row in own], color=colour, linestyle=(0, (5, 3)), linewidth=1)
        axes.set_xlabel("delay of the link between the clusters in each direction, ms")
        axes.set_ylabel("time of a step, ms; dashed: forecast")
        axes.set_ylim(bottom=0)
        axes.grid(color="#e3e3e3", linewidth=0.6)
        axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--plot", metavar="FILE")
    arguments = parser.parse_args()
    need("network namespaces with a delay", "ip", "tc", "sysctl", "taskset")
    if not arguments.table:
        return check()
    if arguments.plot and importlib.util.find_spec("matplotlib") is None:
        sys.exit("--plot needs matplotlib (pip install matplotlib)")
    busy_ns = int(ITEM_BYTES * 8e3 / MBIT)
    with TwoHosts(0) as link:
        alone = train(link, (1, 1), *MODEL, cores=(0, 1))
    stage_ns = max(each["forward_ns"] + each["backward_ns"] for each in alone["run"]["stages"])
    print(f"a stage takes {stage_ns / 1e6:.2f} ms for a micro-batch, and its data {busy_ns / 1e6:.2f} ms at {MBIT} Mbit/s\n"
          "delay  schedule      step[ms] forecast   ratio", flush=True)
    delays = [round(max(part * stage_ns - busy_ns, 0) / 1e6, 2) for part in PARTS]
    rows = measure(sorted({0.0, *delays}), busy_ns, stage_ns)
    if arguments.plot:
        draw(rows, arguments.plot)


if __name__ == "__main__":
    main()
