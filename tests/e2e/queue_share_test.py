#!/usr/bin/env python3
"""Weighted queues from one host to others over its single network interface, in network namespaces.

Properties: full queues share the interface by weight, to the same rank or to several, and together use
all of it. A queue with a slow path gets the rate of that path, and the others share the rest by weight.

queue_share_test.py BENCH            the rows that the test checks
queue_share_test.py BENCH --table    more rows, as a table, and no verdict
"""

import json
import os
import sys

from namespaces import Namespaces, need, run_ranks, sh, wait_until_up

MBIT = 200  # of the first host's interface
# A busy machine stalls streams: further attempts are allowed.
ATTEMPTS = 3


class Star(Namespaces):
    """Hosts on one switch. The interface of the first sends at MBIT, and holds |latency_ms| of that;
    |into|: at what rates the switch sends to the others, 0 for no limit."""

    def __init__(self, into, latency_ms=20):
        self.into = into
        self.latency_ms = latency_ms
        self.switch = f"hetcomm-share-{os.getpid()}-s"
        self.hosts = [f"hetcomm-share-{os.getpid()}-h{i}" for i in range(len(into) + 1)]
        super().__init__([self.switch, *self.hosts])

    def make(self):
        for name in self.names:
            sh("ip", "netns", "add", name)
        sh("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        sh("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for i, host in enumerate(self.hosts):
            sh("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}",
               "netns", self.switch)
            sh("ip", "-n", host, "address", "add", f"198.18.10.{i + 1}/24", "dev", "eth0")
            for name, device in ((host, "lo"), (host, "eth0"), (self.switch, f"port{i}")):
                sh("ip", "-n", name, "link", "set", device, "up")
            sh("ip", "-n", self.switch, "link", "set", f"port{i}", "master", "bridge")
        self.shape(self.hosts[0], "eth0", MBIT)
        for i, mbit in enumerate(self.into):
            if mbit > 0:
                self.shape(self.switch, f"port{i + 1}", mbit)
        for host in self.hosts:
            wait_until_up(host, "eth0")

    def shape(self, name, device, mbit):
        burst = 131072  # above 64 KiB, so that large segments pass whole
        sh("tc", "-n", name, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit",
           "burst", str(burst), "latency", f"{self.latency_ms}ms")

    def run(self, *command, limit_s=150):
        """Runs |command| as a rank on each host; what rank 0 prints."""
        settings = {"HETCOMM_BOOTSTRAP_TIMEOUT": "20s"}
        return run_ranks(self.hosts, "198.18.10.1", command, settings, limit_s)


def share_words(weights, seconds):
    # Many small items: a large one that is under way when weights begin to count takes long.
    return ["queue", "--pattern", "share", "--weights", ",".join(map(str, weights)), "-b", "1M", "--window",
            "8", "--seconds", str(seconds), "--rounds", "1"]


def wanted_of(weights, into):
    """Bytes a second of each queue: by weight, but no more than its own way carries."""
    rates = [0] * len(weights)
    rest = MBIT * 1e6 / 8
    # No case here has several queues to a rank whose way is slow.
    open_queues = set(range(len(weights)))
    while open_queues:
        unit = rest / sum(weights[i] for i in open_queues)
        caps = {i: into[i % len(into)] * 1e6 / 8 for i in open_queues}
        slow = [i for i in open_queues if 0 < caps[i] < unit * weights[i]]
        if not slow:
            for i in open_queues:
                rates[i] = unit * weights[i]
            break
        for i in slow:
            rates[i] = caps[i]
            rest -= caps[i]
            open_queues.discard(i)
    return rates


def check(bench, weights, into, seconds=12, tolerance=0.15):
    wanted = wanted_of(weights, into)
    with Star(into) as star:
        faults = []
        for attempt in range(1, ATTEMPTS + 1):
            rows = json.loads(star.run(bench, *share_words(weights, seconds), "--format", "json"))
            rates = [row["bytes_per_second"] for row in rows]
            together = sum(rates) / (MBIT * 1e6 / 8)
            faults = [f"queue {i} of weight {weights[i]} has {rates[i] / 1e6:.1f} MB/s, wanted {wanted[i] / 1e6:.1f}"
                      for i in range(len(weights)) if abs(rates[i] / wanted[i] / together - 1) > tolerance]
            if together < 0.85:
                faults.append(f"together {100 * together:.0f} % of the interface")
            print(f"weights {weights}, ways {into}, attempt {attempt}: "
                  f"{' '.join(f'{rate / 1e6:.2f}' for rate in rates)} MB/s, {100 * together:.0f} %: "
                  f"{'; '.join(faults) or 'good'}", flush=True)
            if not faults:
                return
    sys.exit("\n".join(faults))


def main():
    bench = sys.argv[1]
    need("network namespaces with limited rates", "ip", "tc")
    if sys.argv[2:] == ["--table"]:
        for weights, into, latency_ms in (
                ([3, 1], [0], 20), ([5, 2, 1], [0], 20), ([3, 1], [0, 0], 20), ([1, 3], [0, 0], 20),
                ([3, 1], [0, 0], 300), ([5, 2, 1], [0, 0, 0], 20), ([1, 3], [0, 40], 20), ([3, 1, 1], [0, 0, 20], 20)):
            with Star(into, latency_ms) as star:
                print(f"# {MBIT} Mbit/s, which holds {latency_ms} ms; into the others: {into} Mbit/s")
                print(star.run(bench, *share_words(weights, 20)), flush=True)
        return
    check(bench, [3, 1], [0], seconds=5)
    check(bench, [3, 1], [0, 0])
    # While it is found out again whether the third one's way is slow, the others are held back alike.
    check(bench, [3, 1, 4], [0, 0, 20], tolerance=0.3)


if __name__ == "__main__":
    main()
