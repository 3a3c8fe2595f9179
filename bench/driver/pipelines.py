"""Measures pipelines over links of several delays and rates, and compares them with PyTorch's own.

Each link connects two hosts, which are network namespaces of this machine. Each host has half of
the ranks. All links are measured in turn, round by round. Without links, the ranks are processes
of this host. hetcomm.bench_pipeline runs PyTorch's pipelines in Python, and the same torch
modules with hetcomm.pipeline.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys

from hosts import TwoHosts, lack_of, run_ranks

# Time for a run to start its processes, and torch in them.
START_S = 120
MEASURED = ("measured_us", "forecast_us", "replayed_us", "undelayed_us", "overhead_us", "stage_us", "busy_us", "latency_us")
BACKENDS = ("gloo", "hetcomm")


class Place:
    """Runs jobs on two hosts that a link connects, or on this host."""

    def __init__(self, question, link):
        self.question = question
        self.link = link

    def run(self, command, limit_s):
        """Runs |command| as a job. Returns the output of rank 0."""
        ranks = self.question["ranks"]
        if self.link is None:
            ended = subprocess.run([*command, "--ranks", str(ranks)], capture_output=True, text=True, timeout=limit_s,
                                   check=False)
            if ended.returncode != 0:
                raise RuntimeError(ended.stderr.strip())
            return ended.stdout
        hosts = [self.link.hosts[2 * rank // ranks] for rank in range(ranks)]
        # Each host has only the interface eth0 in addition to its loopback interface.
        settings = {"GLOO_SOCKET_IFNAME": "eth0", "HETCOMM_BOOTSTRAP_TIMEOUT": "20s"}
        return run_ranks(hosts, self.link.address, command, settings, limit_s)

    def named(self):
        if self.link is None:
            return "this host"
        rate = f", {self.link.mbit} Mbit/s" if self.link.mbit else ""
        return f"{self.link.delay_ms:g} ms{rate}"

    def about(self):
        if self.link is None:
            return {}
        return {"delay_ms": self.link.delay_ms, "rate_mbit": self.link.mbit}


def say(text):
    """Reports progress to hetcomm_bench, which would otherwise take a long silence for a hang."""
    print(f"progress: {text}", flush=True)


def limit_of(place, question, rounds):
    """Returns the time limit of a job: the time to start it, and a multiple of the time that all
    computation and transfers would take in sequence."""
    item_s = question["stage_ms"] * 1e-3
    if place.link is not None:
        item_s += 2 * place.link.delay_ms * 1e-3
        item_s += 2 * question["bytes"] * 8e-6 / place.link.mbit if place.link.mbit else 0
    steps = sum(question["micro_batches"]) * len(question["schedules"]) * rounds
    return START_S + 8 * item_s * steps


def words_of(question):
    return ["--schedules", ",".join(question["schedules"]), "--stage-ms", str(question["stage_ms"]),
            "--micro-batches", ",".join(map(str, question["micro_batches"]))]


def measure_round(place, question):
    """Returns the rows of one round over hetcomm, as hetcomm_bench itself measures them."""
    command = [question["program"], "pipeline", "--format", "json", "--rounds", "1", *words_of(question),
               *question["words"],
               "--compute", question["compute"], "-b", str(question["bytes"])]
    if question["in_flight"]:
        command += ["--window", str(question["in_flight"])]
    return json.loads(place.run(command, limit_of(place, question, 1)))


def joined(rounds):
    """Merges the corresponding rows of several rounds into one row, with medians and all times."""
    rows = []
    for same in zip(*rounds):
        row = dict(same[-1])
        for key in MEASURED:
            row[key] = statistics.median(each[key] for each in same)
        for key in ("times_us", "runs_us", "replayed_runs_us"):
            row[key] = [one for each in same for one in each[key]]
        rows.append(row)
    return rows


def compare_torch(place, question, rows):
    """Adds to |rows| the times of torch modules with hetcomm.pipeline and with torch's own pipelining."""
    slowest = max(rows, key=lambda row: row["busy_us"] + row["latency_us"])
    command = [sys.executable, "-m", "hetcomm.bench_pipeline", "--json", *words_of(question),
               "--bytes", str(question["bytes"]), "--rounds", str(question["rounds"]),
               "--in-flight", str(question["in_flight"]), "--compare", ",".join(BACKENDS),
               "--link-us", str(slowest["busy_us"]), str(slowest["latency_us"])]
    # Torch's own pipelines run over each backend. Some run a second time, with receives that are posted late.
    limit_s = limit_of(place, question, (question["rounds"] + 1) * (1 + 2 * len(BACKENDS)))
    compared = json.loads(place.run(command, limit_s))
    for row, other in zip(rows, compared["rows"]):
        row["torch_version"] = compared["torch"]
        row["torch_us"] = {name: statistics.median(us) for name, us in other["us"].items()}
        row["torch_ratios"] = other["ratios"]
        row["torch_forecast_us"] = other["torch_forecast_us"]
        row["torch_replayed_us"] = other["replayed_us"]


def measure_all(question):
    links = [(delay, rate) for rate in question["rates_mbit"] for delay in question["delays_ms"]]
    with contextlib.ExitStack() as stack:
        places = [Place(question, stack.enter_context(TwoHosts(*link))) for link in links]
        places = places or [Place(question, None)]
        rounds = [[] for _ in places]
        for number in range(question["rounds"]):
            for place, own in zip(places, rounds):
                say(f"{place.named()}, round {number + 1} of {question['rounds']}")
                own.append(measure_round(place, question))
        rows = []
        for place, own in zip(places, rounds):
            of_place = joined(own)
            if question["compares_torch"]:
                say(f"{place.named()}, torch")
                compare_torch(place, question, of_place)
            rows += [{**place.about(), **row} for row in of_place]
        return rows


def with_ratio(row, name):
    """Returns a simulated time as text, and the measured time as a multiple of it."""
    ratio = f"({row['measured_us'] / row[name]:.3f})" if row[name] else ""
    return f"{row[name] / 1e3:8.2f} {ratio:<7}"


def table_of(rows):
    """Returns the rows as text: times in milliseconds."""
    text = ("# Times of a micro-batch in ms: as measured; as simulated, and replayed, which is simulated with each step as\n"
            "# long as it was (and what was measured as multiples of these); as simulated over links that take no time;\n"
            "# of the slowest boundary, the time on the link and the time until arrival\n")
    has_links = "delay_ms" in rows[0]
    named = [name for name in ("hetcomm.pipeline", *(f"torch over {each}" for each in BACKENDS))
             if any(name in row.get("torch_us", {}) for row in rows)]
    if named:
        text += ("# Then torch modules: by hetcomm.pipeline, and by torch's own pipelining, with how many times as "
                 "long as\n# hetcomm.pipeline it takes in the same round\n")
    text += ("delay   rate " if has_links else "") + (
        "schedule          ranks   stage    busy latency in flight measured forecast         replayed         undelayed")
    text += "".join(f"{name:>28}" if name != "hetcomm.pipeline" else f"{name:>18}" for name in named) + "\n"
    for row in rows:
        if has_links:
            text += f"{row['delay_ms']:5g} {row['rate_mbit'] or '-':>6} "
        forecast, replayed = (with_ratio(row, name) for name in ("forecast_us", "replayed_us"))
        text += (f"{row['schedule']:<18}{row['ranks']:5} {row['stage_us'] / 1e3:7.2f} {row['busy_us'] / 1e3:7.2f} "
                 f"{row['latency_us'] / 1e3:7.2f} {row['in_flight']:9} {row['measured_us'] / 1e3:8.2f} "
                 f"{forecast} {replayed} {row['undelayed_us'] / 1e3:9.2f}")
        for name in named:
            us = row.get("torch_us", {}).get(name)
            if name == "hetcomm.pipeline":
                text += f"{us / 1e3:18.2f}" if us else f"{'-':>18}"
            else:
                text += f"{us / 1e3:20.2f} ({row['torch_ratios'][name]:.3f})" if us else f"{'-':>28}"
        text += "\n"
    return text


def answer(source, sink):
    """Reads a question. Prints lines of progress, then the rows and their table as JSON."""
    question = json.load(source)
    if question["delays_ms"]:
        lack = lack_of("ip", "tc", "sysctl", "unshare")
        if lack:
            print(f"--delays and --rates join hosts on this machine: {lack}", file=sys.stderr)
            return 1

    if question["compares_torch"]:
        from hetcomm import bench_pipeline
        unknown = [each for each in question["schedules"] if each not in bench_pipeline.KNOWN]
        if unknown:
            print(f"--compare torch has no schedule '{unknown[0]}', only {', '.join(bench_pipeline.KNOWN)}",
                  file=sys.stderr)
            return 1

    def end(*_):
        # The exit deletes the namespaces.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    try:
        rows = measure_all(question)
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        print(getattr(error, "stderr", "") or error, file=sys.stderr)
        return 1
    print(json.dumps({"rows": rows, "table": table_of(rows)}), file=sink, flush=True)
    return 0
