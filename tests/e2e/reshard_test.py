#!/usr/bin/env python3
"""Resharding between two clusters of four hosts, in network namespaces: each host's NIC and the trunk
between the clusters have limited rates.

Properties: the strategy that auto chooses is no slower than the best one that it may choose, within
30 %; its forecast is within 50 % of what is measured; it moves the tensor at no less than 0.6 of the rate
that plain TCP streams reach over the same links. docs/records/resharding.md has what a quiet machine keeps.

reshard_test.py BENCH                    what the test checks
reshard_test.py BENCH --table [OPTION..] all cases of 64 MiB, as tables, and no verdict; options of
                                         hetcomm_bench reshard may follow
reshard_test.py BENCH --delay [OPTION..] 64 KiB with 5 ms of delay, the same way
reshard_test.py BENCH --weights [OPTION..]  a model from four trainers to an engine of two ranks, by
                                         python -m hetcomm.bench_weights, and what the links allow
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time

from namespaces import Wire, need, run_ranks, sh, wait_until_up

SIDE = 4
ATTEMPTS = 3
PORT = 29500


class Clusters:
    """Hosts 0 to 3 and 4 to 7, behind a switch each, and a trunk between the switches, on which all
    takes |delay_ms| more."""

    def __init__(self, nic_mbit, trunk_mbit, delay_ms=0):
        self.nic_mbit = nic_mbit
        self.trunk_mbit = trunk_mbit
        self.delay_ms = delay_ms
        tag = f"hetcomm-reshard-{os.getpid()}"
        self.hosts = [f"{tag}-h{i}" for i in range(2 * SIDE)]
        self.switches = [f"{tag}-s{i}" for i in range(2)]
        self.wire = f"{tag}-w"
        self.delay = None

    @staticmethod
    def limit(namespace, device, mbit):
        # Above 64 KiB, so that large segments pass whole; a queue that many streams do not overflow.
        sh("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit",
           "burst", "131072", "latency", "300ms")

    def __enter__(self):
        try:
            for name in self.hosts + self.switches:
                sh("ip", "netns", "add", name)
                sh("ip", "-n", name, "link", "set", "lo", "up")
            for switch in self.switches:
                sh("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
                sh("ip", "-n", switch, "link", "set", "br0", "up")
            for i, host in enumerate(self.hosts):
                switch = self.switches[i // SIDE]
                sh("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{i}",
                   "netns", switch)
                sh("ip", "-n", host, "address", "add", f"198.18.11.{i + 1}/24", "dev", "eth0")
                sh("ip", "-n", switch, "link", "set", f"p{i}", "master", "br0")
                sh("ip", "-n", switch, "link", "set", f"p{i}", "up")
                sh("ip", "-n", host, "link", "set", "eth0", "up")
                self.limit(host, "eth0", self.nic_mbit)
                self.limit(switch, f"p{i}", self.nic_mbit)
            self.make_trunk()
            for host in self.hosts:
                wait_until_up(host, "eth0")
        except BaseException:
            self.__exit__()
            raise
        return self

    def make_trunk(self):
        if self.delay_ms == 0:
            sh("ip", "-n", self.switches[0], "link", "add", "trunk", "type", "veth", "peer", "name", "trunk",
               "netns", self.switches[1])
        else:
            sh("ip", "netns", "add", self.wire)
            for switch, end in zip(self.switches, ("end0", "end1")):
                sh("ip", "-n", switch, "link", "add", "trunk", "type", "veth", "peer", "name", end,
                   "netns", self.wire)
                sh("ip", "-n", self.wire, "link", "set", end, "up")
            self.delay = Wire(self.wire, ("end0", "end1"), self.delay_ms)
        for switch in self.switches:
            sh("ip", "-n", switch, "link", "set", "trunk", "master", "br0")
            sh("ip", "-n", switch, "link", "set", "trunk", "up")
            self.limit(switch, "trunk", self.trunk_mbit)

    def __exit__(self, *_):
        if self.delay is not None:
            self.delay.cut()
        for name in self.hosts + self.switches + ([self.wire] if self.delay_ms else []):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    def model(self):
        """The links as a file for HETCOMM_LINK_MODEL."""
        # What TCP leaves of a frame of 1514 bytes, and of its 20 bytes on the wire that tbf does not see.
        nic = int(self.nic_mbit * 1e6 / 8 * 1448 / 1514)
        trunk = int(self.trunk_mbit * 1e6 / 8 * 1448 / 1514)
        resources, hosts = [], []
        for i in range(2 * SIDE):
            resources += [{"name": f"h{i} {way}", "kind": "nic", "bytes_per_s": nic} for way in ("in", "out")]
            hosts.append({"label": f"h{i}", "cluster": "ab"[i // SIDE],
                          "nics": [{"in": [f"h{i} in"], "out": [f"h{i} out"]}]})
        resources += [{"name": f"trunk {way}", "kind": "trunk", "bytes_per_s": trunk} for way in ("ab", "ba")]
        latency = 100_000
        far = latency + int(self.delay_ms * 1e6)
        paths = [{"from": one, "to": one, "latency_ns": latency} for one in "ab"]
        paths += [{"from": way[0], "to": way[1], "latency_ns": far, "resources": [f"trunk {way}"]}
                  for way in ("ab", "ba")]
        return json.dumps({"format": "hetcomm link model", "version": 1, "source": "reshard_test",
                           "resources": resources, "clusters": [{"name": "a"}, {"name": "b"}],
                           "hosts": hosts, "paths": paths})

    def run(self, *command, limit_s=500, count=2 * SIDE):
        """Runs |command| as a rank on each of the first |count| hosts; what rank 0 prints."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as links:
            links.write(self.model())
            links.flush()
            settings = {
                "GLOO_SOCKET_IFNAME": "eth0", "HETCOMM_BOOTSTRAP_TIMEOUT": "30s", "HETCOMM_LINK_MODEL": links.name,
                "HETCOMM_CLUSTER": ["ab"[i // SIDE] for i in range(count)]
            }
            return run_ranks(self.hosts[:count], "198.18.11.1", command, settings, limit_s)

    def stream_rate(self, seconds=3):
        """Bytes per second of plain TCP streams, each host of the first cluster to one of the second."""
        receivers = [
            subprocess.Popen(["ip", "netns", "exec", host, sys.executable, __file__, "--receive"],
                             stdout=subprocess.PIPE, text=True) for host in self.hosts[SIDE:]
        ]
        for receiver in receivers:
            assert receiver.stdout.readline().strip() == "ready"
        senders = [
            subprocess.Popen(["ip", "netns", "exec", host, sys.executable, __file__, "--send",
                              f"198.18.11.{SIDE + i + 1}", str(seconds)])
            for i, host in enumerate(self.hosts[:SIDE])
        ]
        for sender in senders:
            assert sender.wait(timeout=seconds + 30) == 0
        return sum(float(receiver.communicate(timeout=30)[0]) for receiver in receivers)


def receive():
    with socket.create_server(("0.0.0.0", PORT)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        total, first, last = 0, None, None
        while True:
            piece = connection.recv(1 << 20)
            if not piece:
                break
            last = time.monotonic()
            if first is None:
                first = last
                continue  # its time is not known
            total += len(piece)
        print(total / max(last - first, 1e-9), flush=True)


def send(address, seconds):
    connection = socket.create_connection((address, PORT))
    end = time.monotonic() + seconds
    piece = bytes(1 << 20)
    while time.monotonic() < end:
        connection.sendall(piece)
    connection.close()


def faults_of(rows, streams):
    found = []
    cases = {}
    for row in rows:
        cases.setdefault(row["layouts"], {})[row["strategy"]] = row
    for layouts, by_strategy in cases.items():
        allowed = [row["median_us"] for row in by_strategy.values()
                   if "median_us" in row and "barred" not in row and row["strategy"] != "auto"]
        auto = by_strategy["auto"]
        if auto["median_us"] > 1.3 * min(allowed):
            found.append(f"{layouts}: auto ({auto['plan']}) takes {auto['median_us'] / min(allowed):.2f} of the best")
        forecast = auto["forecast_us"] / auto["median_us"]
        if not 0.5 <= forecast <= 1.5:
            found.append(f"{layouts}: the forecast is {forecast:.2f} of what is measured")
        rate = auto["bytes"] / auto["median_us"] * 1e6
        if rate < 0.6 * streams:
            found.append(f"{layouts}: {rate * 1e-6:.1f} MB/s, and plain streams {streams * 1e-6:.1f}")
    return found


def main():
    if sys.argv[1] == "--receive":
        return receive()
    if sys.argv[1] == "--send":
        return send(sys.argv[2], float(sys.argv[3]))
    bench = sys.argv[1]
    need("network namespaces with limited rates", "ip", "tc")
    if sys.argv[2:3] == ["--table"]:
        for nic, trunk in ((200, 400), (100, 1000)):
            with Clusters(nic, trunk) as clusters:
                print(f"# NICs {nic} Mbit/s, trunk {trunk} Mbit/s; plain streams "
                      f"{clusters.stream_rate() * 1e-6:.1f} MB/s", flush=True)
                print(clusters.run(bench, "reshard", "--rounds", "3", "--seconds", "0.1", *sys.argv[3:]),
                      flush=True)
        return None
    if sys.argv[2:3] == ["--delay"]:
        with Clusters(200, 400, delay_ms=5) as clusters:
            print("# NICs 200 Mbit/s, trunk 400 Mbit/s with 5 ms", flush=True)
            print(clusters.run(bench, "reshard", "-b", "64K", "--rounds", "5", "--seconds", "0.5", *sys.argv[3:]))
        return None
    if sys.argv[2:3] == ["--weights"]:
        mib, nic, trunk = 256, 200, 400
        with Clusters(nic, trunk) as clusters:
            # Each engine gets half of it over its NIC; all of it goes over the trunk.
            least = mib * 2**20 * 8 / 1e6 / min(2 * nic, trunk) * 1514 / 1448
            print(f"# {mib} MiB, NICs {nic} Mbit/s, trunk {trunk} Mbit/s: {least:.2f} s at least; plain streams "
                  f"{clusters.stream_rate() * 1e-6:.1f} MB/s", flush=True)
            print(clusters.run(sys.executable, "-m", "hetcomm.bench_weights", "--mib", str(mib), "--ways", "hetcomm",
                               "--rounds", "3", *sys.argv[3:], count=6), flush=True)
        return None
    with Clusters(200, 400) as clusters:
        for attempt in range(1, ATTEMPTS + 1):
            streams = clusters.stream_rate(1)
            rows = json.loads(clusters.run(bench, "reshard", "--format", "json", "-b", "16M", "--rounds", "3",
                                           "--seconds", "0.1", "--cases", "4x1:1x4,2x2:2x1r2",
                                           "--strategies", "auto,direct,sendrecv_allgather"))
            faults = faults_of(rows, streams)
            print(f"attempt {attempt}: {'; '.join(faults) or 'good'}", flush=True)
            if not faults:
                return None
    sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
