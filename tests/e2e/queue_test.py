#!/usr/bin/env python3
"""Queues between two clusters that a slow link joins, in network namespaces.

Properties: computation hides the time on the link as far as HetAuto's schedules can hide it, and the
gain over blocking messages is the one that the schedule predicts. Computation is a timer at 1 Gbit/s,
and a loop that keeps its core busy at 200 Mbit/s. On a quiet machine both are met within 10 and 5 %
(docs/records/queues.md); the test tolerates other work on the machine.

queue_test.py BENCH            the rows that the test checks
queue_test.py BENCH --table    more rows, as a table, and no verdict
"""

import json
import os
import subprocess
import sys

from namespaces import need, run_ranks, sh, wait_until_up

WITHIN = 0.85
HIDDEN_PERCENT = 85
ATTEMPTS = 3


class Link:
    """Two hosts, and a link between them of |mbit| each way."""

    def __init__(self, mbit):
        self.mbit = mbit
        self.hosts = [f"hetcomm-queue-{os.getpid()}-h{i}" for i in range(2)]

    def __enter__(self):
        try:
            for host in self.hosts:
                sh("ip", "netns", "add", host)
                sh("ip", "-n", host, "link", "set", "lo", "up")
            sh("ip", "-n", self.hosts[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0",
               "netns", self.hosts[1])
            for i, host in enumerate(self.hosts):
                sh("ip", "-n", host, "address", "add", f"198.18.9.{i + 1}/24", "dev", "eth0")
                sh("ip", "-n", host, "link", "set", "eth0", "up")
                burst = 131072  # above 64 KiB, so that large segments pass whole
                sh("tc", "-n", host, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                   f"{self.mbit}mbit", "burst", str(burst), "latency", "20ms")
            for host in self.hosts:
                wait_until_up(host, "eth0")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)

    def run(self, *command, limit_s=150, devices=None):
        """Runs |command| as a rank on each host, each on a core of its own; what rank 0 prints.
        |devices|: HETCOMM_DEVICES of each."""
        settings = {"HETCOMM_BOOTSTRAP_TIMEOUT": "20s"}
        if devices is not None:
            settings["HETCOMM_DEVICES"] = devices
        cores = sorted(os.sched_getaffinity(0))
        return run_ranks(self.hosts, "198.18.9.1", command, settings, limit_s, cores)


def describe(row):
    name = f"{row['pattern']} {row['compute']}"
    return name + (f" warm-up {row['warmup']}" if "warmup" in row else "")


def faults_of(row):
    """What is wrong with a row: its gain, and for what can be hidden wholly its overlap."""
    found = []
    gain, ideal = row["gain"], row["ideal_gain"]
    if gain < WITHIN * ideal:
        found.append(f"gain {gain:.2f}, of {ideal:.2f} that the schedule promises")
    compute, communication = row["compute_us"], row["communication_us"]
    hidden = {3: 0.45, 4: 0.9}.get(row.get("warmup"), 0.9)
    if row["compute"] == "timer" and communication <= hidden * compute and row["overlap_percent"] < HIDDEN_PERCENT:
        found.append(f"overlap {row['overlap_percent']:.1f} %")
    return found


def check(bench, mbit, *words):
    """A machine that others keep busy stalls streams: further attempts are allowed."""
    with Link(mbit) as link:
        faults = []
        for attempt in range(1, ATTEMPTS + 1):
            rows = json.loads(link.run(bench, "queue", "--format", "json", *words))
            faults = [f"{describe(row)}: {fault}" for row in rows for fault in faults_of(row)]
            print(f"{mbit} Mbit/s, attempt {attempt}: {'; '.join(faults) or 'good'}", flush=True)
            if not faults:
                return
    sys.exit("\n".join(faults))


def device_row(bench, link, out, into, size_mib=8):
    """A stream of items from a device to another, whose copies are held to |out| and |into| MB/s: the
    row, and the time of an item in the slowest of the three phases."""
    rates = [out, into]
    devices = [f"sim-handle:bandwidth={rate * 1e6 / 2**20:.2f}M" for rate in rates]
    text = link.run(bench, "queue", "--format", "json", "--memory", "sim-handle", "--pattern", "stream",
                    "--compute", "timer", "--ratios", "0.01", "-b", f"{size_mib}M", "--rounds", "1",
                    "--seconds", "8", devices=devices)
    slowest = min(out, into, link.mbit / 8)
    return json.loads(text)[0], size_mib * 2**20 / slowest


DEVICE_RATES = ((20, 60), (60, 20), (60, 60), (25, 25))


def check_devices(bench, mbit):
    """Copies from the device, the wire and copies to the device overlap."""
    with Link(mbit) as link:
        for out, into in DEVICE_RATES[:1]:
            period = 0
            for attempt in range(1, ATTEMPTS + 1):
                row, slowest_us = device_row(bench, link, out, into)
                period = row["queue_us"] / slowest_us
                print(f"devices at {out} and {into} MB/s, {mbit} Mbit/s, attempt {attempt}: "
                      f"{period:.2f} of the slowest phase", flush=True)
                if period <= 1.2:
                    break
            if period > 1.2:
                sys.exit(f"an item takes {period:.2f} of the slowest phase")


def main():
    bench = sys.argv[1]
    need("network namespaces with limited rates", "ip", "tc", "taskset")
    if sys.argv[2:] == ["--table"]:
        for mbit, size, compute in ((1000, "4M", "timer"), (200, "2M", "timer,burn")):
            with Link(mbit) as link:
                print(f"# {mbit} Mbit/s")
                print(link.run(bench, "queue", "-b", size, "--compute", compute, "--ratios", "0.5,1.2,2.5",
                               limit_s=500), flush=True)
        with Link(200) as link:
            for out, into in DEVICE_RATES:
                row, slowest_us = device_row(bench, link, out, into)
                print(f"D2H {out} MB/s, wire 25 MB/s, H2D {into} MB/s: {row['queue_us'] / 1e3:.1f} ms an item, "
                      f"{row['queue_us'] / slowest_us:.3f} of the slowest phase", flush=True)
        return
    check_devices(bench, 200)
    check(bench, 1000, "-b", "4M", "--compute", "timer", "--ratios", "0.5,1.2", "--rounds", "2",
          "--seconds", "0.5")
    check(bench, 200, "-b", "2M", "--compute", "burn", "--pattern", "stream", "--ratios", "0.5,1.2",
          "--rounds", "2", "--seconds", "0.6")


if __name__ == "__main__":
    main()
