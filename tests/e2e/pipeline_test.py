#!/usr/bin/env python3
"""Pipelines over two hosts whose link has a delay, in network namespaces. Computation is a timer.

Properties, for a delay of 0.45 and 0.9 of a stage's time for a micro-batch:
  * Virtual-1F1B and Eager-1F1B hide the smaller delay, and H-1F1B both: a micro-batch takes at most 3 % more
    than over the same link without the delay, measured in turns;
  * 1F1B does not: it loses at least 0.9 of what the simulator says it does;
  * over the delayed link a micro-batch is within 3 % of its forecast, counted from how much it takes beyond its
    forecast without the delay in the same run: 2 to 4 % (docs/records/pipelines.md).
A machine that others keep busy stalls timers: further attempts are allowed.

pipeline_test.py BENCH            what the test checks
pipeline_test.py BENCH --table    the rows, with more delays and schedules, and no verdict
"""

import json
import statistics
import sys

from namespaces import TwoHosts, need, run_ranks

ATTEMPTS = 3
STAGE_MS = 20
# The timer of a stage and the wire each take a little more than they are told to.
DELAYS = {0.45: 8.6, 0.9: 17.6}
SCHEDULES = "1f1b,eager-1f1b,virtual-1f1b,h-1f1b"
HIDDEN = 1.03
SHOWN = 0.9
FORECAST = 0.03


def run(link, bench, *words, limit_s=200):
    """The rows by schedule."""
    command = [bench, "pipeline", "--format", "json", "--stage-ms", str(STAGE_MS), *words]
    settings = {"HETCOMM_BOOTSTRAP_TIMEOUT": "20s"}
    text = run_ranks(link.hosts, link.address, command, settings, limit_s)
    return {row["schedule"]: row for row in json.loads(text)}


def measure(bench, delayed, plain, rounds, *words):
    """Measures both links in turns: rows by schedule of each, with the median of all rounds."""
    seen = [[], []]
    for _ in range(rounds):
        for i, link in enumerate((delayed, plain)):
            seen[i].append(run(link, bench, "--rounds", "1", *words))
    for runs in seen:
        for name, row in runs[-1].items():
            for key in ("measured_us", "forecast_us", "busy_us", "latency_us", "stage_us"):
                row[key] = statistics.median(run[name][key] for run in runs)
    return seen[0][-1], seen[1][-1]


def faults_of(part, delayed, plain):
    found = []
    # Timers and the executor take this much more without a delay, too.
    over = statistics.median(row["measured_us"] / row["forecast_us"] for row in plain.values())
    for name, row in delayed.items():
        ratio = row["measured_us"] / plain[name]["measured_us"]
        hides = name == "h-1f1b" or (part < 0.5 and name in ("eager-1f1b", "virtual-1f1b"))
        if hides and ratio > HIDDEN:
            found.append(f"{name} takes {ratio:.3f} of its time without delay")
        loss = row["measured_us"] - plain[name]["measured_us"]
        simulated = row["forecast_us"] - plain[name]["forecast_us"]
        if name == "1f1b" and loss < SHOWN * simulated:
            found.append(f"{name} loses {loss / 1e3:.1f} ms, and the simulator says {simulated / 1e3:.1f} ms")
        if abs(row["measured_us"] / row["forecast_us"] / over - 1) > FORECAST:
            found.append(f"{name} takes {row['measured_us'] / 1e3:.2f} ms, and the forecast is "
                         f"{row['forecast_us'] * over / 1e3:.2f} ms")
    return found


def describe(delayed, plain):
    return ", ".join(f"{name} {row['measured_us'] / 1e3:.2f} (forecast {row['forecast_us'] / 1e3:.2f}), "
                     f"without delay {plain[name]['measured_us'] / 1e3:.2f} ms" for name, row in delayed.items())


def check(bench, part, delay_ms):
    with TwoHosts(delay_ms) as delayed, TwoHosts(0) as plain:
        faults = []
        for attempt in range(1, ATTEMPTS + 1):
            rows = measure(bench, delayed, plain, 3, "--schedules", SCHEDULES, "--micro-batches", "64,192")
            faults = faults_of(part, *rows)
            slow = rows[0]["1f1b"]
            c = (slow["busy_us"] + slow["latency_us"]) / slow["stage_us"]
            if abs(c - part) > 0.06:
                faults.append(f"the data's way is {c:.2f} t, and {part} t is asked for")
            print(f"c = {c:.2f} t, attempt {attempt}: {describe(*rows)}: {'; '.join(faults) or 'good'}", flush=True)
            if not faults:
                return
    sys.exit("\n".join(faults))


def print_table(bench):
    print("c/t    schedule        micro-batch without delay  ratio  forecast  without delay")
    for delay_ms in (4, 8.6, 13, 17.6, 25, 40):
        with TwoHosts(delay_ms) as delayed, TwoHosts(0) as plain:
            rows = measure(bench, delayed, plain, 3, "--schedules", SCHEDULES + ",gpipe,zb-h1",
                           "--micro-batches", "64,192")
            for name, row in rows[0].items():
                other = rows[1][name]
                print(f"{(row['busy_us'] + row['latency_us']) / row['stage_us']:.2f}   {name:<14} "
                      f"{row['measured_us'] / 1e3:9.2f} ms {other['measured_us'] / 1e3:9.2f} ms "
                      f"{row['measured_us'] / other['measured_us']:6.3f} {row['forecast_us'] / 1e3:6.2f} ms "
                      f"{other['forecast_us'] / 1e3:9.2f} ms", flush=True)


def main():
    bench = sys.argv[1]
    need("network namespaces with a delay", "ip", "tc", "sysctl")
    if sys.argv[2:] == ["--table"]:
        print_table(bench)
        return
    for part, delay_ms in DELAYS.items():
        check(bench, part, delay_ms)


if __name__ == "__main__":
    main()
