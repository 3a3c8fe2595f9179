#!/usr/bin/env python3
"""hetcomm_bench affinity between two hosts (network namespaces; needs root, ip and tc).

Properties: with two devices, a fast NIC next to each and slow ones far away, the near NICs carry at least 1.5
times as much as the far ones, and 1.5 times as much as one NIC for both (2 on a quiet machine); the table
names for each device the NICs that a person would choose; a host without a NIC gets an error.

affinity_test.py BENCH: the program is hetcomm_bench.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

from namespaces import Namespaces, sh, wait_until_up

SKIPPED = 77
NEAR = 400  # Mbit/s
FAR = 200
RATES = [NEAR, NEAR, FAR, FAR]
RANKS = 2  # of each host, one for each device


def address(host, nic):
    return f"198.18.{nic}.{host + 1}"


def machine():
    """Below two switches of NUMA node 0 stand an accelerator and a quick NIC each; node 1 has the slow NICs."""
    complexes = []
    for i in range(2):
        complexes.append({"kind": "root complex", "address": f"0000:{i}0:00.0", "numa_nodes": [0], "children": [
            {"kind": "bridge", "address": f"0000:{i}0:01.0", "children": [
                {"kind": "function", "address": f"0000:{i}1:00.0", "class": "0302"},
                {"kind": "function", "address": f"0000:{i}2:00.0", "class": "0200"}]}]})
    complexes.append({"kind": "root complex", "address": "0000:80:00.0", "numa_nodes": [1], "children": [
        {"kind": "function", "address": f"0000:8{i}:00.0", "class": "0200"} for i in (1, 2)]})
    functions = ["0000:02:00.0", "0000:12:00.0", "0000:81:00.0", "0000:82:00.0"]
    return {"format": "hetcomm topology", "version": 1,
            "numa_nodes": [{"number": 0, "processors": "0"}, {"number": 1, "processors": "1"}],
            "pci": complexes,
            "nics": [{"interface": f"eth{i}", "state": "up", "mbit_per_s": RATES[i], "functions": [functions[i]],
                      "subnets": [f"198.18.{i}.0/24"]} for i in range(len(RATES))],
            "accelerators": [{"address": f"0000:{i}1:00.0"} for i in range(2)]}


class Hosts(Namespaces):
    def __init__(self):
        super().__init__([f"hetcomm-affinity-{os.getpid()}-{i}" for i in range(2)])

    def make(self):
        for name in self.names:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        for i in range(len(RATES)):
            sh("ip", "-n", self.names[0], "link", "add", f"eth{i}", "type", "veth", "peer", "name", f"eth{i}",
               "netns", self.names[1])
        for host, name in enumerate(self.names):
            for i, rate in enumerate(RATES):
                sh("ip", "-n", name, "address", "add", address(host, i) + "/24", "dev", f"eth{i}")
                sh("ip", "-n", name, "link", "set", f"eth{i}", "up")
                sh("tc", "-n", name, "qdisc", "add", "dev", f"eth{i}", "root", "tbf", "rate", f"{rate}mbit",
                   "burst", "64k", "limit", "4m")
        for name in self.names:
            for i in range(len(RATES)):
                wait_until_up(name, f"eth{i}")

    def run(self, bench, *words, **settings):
        ranks = []
        for rank in range(2 * RANKS):
            host = rank // RANKS
            ranks.append(subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], bench, "affinity", "--transport", "tcp", *words],
                env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(2 * RANKS), MASTER_ADDR=address(0, 0),
                         MASTER_PORT="29400", HETCOMM_FAMILY="ipv4", HETCOMM_HOST_LABEL=f"host{host}",
                         **settings),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        outputs = [rank.communicate(timeout=60) for rank in ranks]
        return [rank.returncode for rank in ranks], outputs


def check_names(rows):
    assert [(row["from"], row["to"]) for row in rows] == [(0, 2), (1, 3)], rows
    for i, row in enumerate(rows):
        assert row["device"] == f"acc{i} 0000:{i}1:00.0", row
        assert (row["near"]["nic"], row["near"]["distance"]) == (f"eth{i}", "switch"), row
        assert row["far"]["distance"] == "other" and row["one"]["nic"] == "eth0", row
    assert {row["far"]["nic"] for row in rows} == {"eth2", "eth3"}, rows


def main():
    (bench,) = sys.argv[1:]
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "tc")):
        print("network namespaces need root, ip and tc")
        sys.exit(SKIPPED)
    with Hosts() as hosts, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "machine.json")
        with open(path, "w") as file:
            json.dump(machine(), file)
        trusted = {"HETCOMM_TOPOLOGY": path, "HETCOMM_TOPOLOGY_TRUST": "on"}
        # The best of a few: other work on the machine only makes the quick NICs slower.
        for attempt in range(3):
            status, outputs = hosts.run(bench, "--format", "json", "--seconds", "0.3", "--rounds", "3", **trusted)
            assert status == [0] * len(status), outputs
            result = json.loads(outputs[0][0])
            check_names(result["rows"])
            print(f"near over far {result['near_over_far']:.2f}, over one {result['near_over_one']:.2f}", flush=True)
            if min(result["near_over_far"], result["near_over_one"]) >= 1.5:
                break
        else:
            raise AssertionError(result)
        status, outputs = hosts.run(bench, "--seconds", "0.1", "--rounds", "1", **trusted)
        assert status == [0] * len(status), outputs
        table = outputs[0][0].splitlines()
        assert len(table) == 4 and table[0].startswith("ranks"), table
        assert [out for out, _ in outputs[1:]] == [""] * 3, outputs
        with open(path, "w") as file:
            json.dump({"format": "hetcomm topology", "version": 1}, file)
        status, outputs = hosts.run(bench, **trusted)
        assert any(status) and "has no NIC that is up" in "".join(errors for _, errors in outputs), outputs


if __name__ == "__main__":
    main()
