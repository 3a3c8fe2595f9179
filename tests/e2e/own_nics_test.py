#!/usr/bin/env python3
"""NICs of two hosts, divided among the devices of a job (network namespaces; needs root and ip).

Each host has four accelerators with a NIC each, two on each of two sockets. Proves that the data of a device
  - goes over its own NIC only, if ranks of the job use all accelerators of the host, also in a job whose ranks
    introduce themselves by cards;
  - also goes over the NICs whose accelerators no rank uses, but not over the own NIC of another rank's device;
  - goes over as many NICs as HETCOMM_RAILS says, if it is set.

own_nics_test.py INFO: the program is hetcomm_info.
"""

import json
import os
import subprocess
import sys
import tempfile

from namespaces import Namespaces, need, sh, wait_until_up

NICS = 4


def accelerator(i):
    return f"0000:{i}2:00.0"


def machine():
    complexes = [{"kind": "root complex", "address": f"0000:{i}0:00.0", "numa_nodes": [i // 2], "children": [
        {"kind": "bridge", "address": f"0000:{i}1:00.0", "children": [
            {"kind": "function", "address": accelerator(i), "class": "0302"},
            {"kind": "function", "address": f"0000:{i}3:00.0", "class": "0200"}]}]} for i in range(NICS)]
    return {"format": "hetcomm topology", "version": 1,
            "numa_nodes": [{"number": i, "package": i, "processors": str(i)} for i in range(2)],
            "pci": complexes,
            "nics": [{"interface": f"eth{i}", "state": "up", "mbit_per_s": 100_000, "functions": [f"0000:{i}3:00.0"],
                      "subnets": [f"198.18.{i}.0/24"]} for i in range(NICS)],
            "accelerators": [{"address": accelerator(i)} for i in range(NICS)]}


class Hosts(Namespaces):
    def __init__(self):
        super().__init__([f"hetcomm-own-nics-{os.getpid()}-{i}" for i in range(2)])

    def make(self):
        for name in self.names:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        for i in range(NICS):
            sh("ip", "-n", self.names[0], "link", "add", f"eth{i}", "type", "veth", "peer", "name", f"eth{i}",
               "netns", self.names[1])
        for host, name in enumerate(self.names):
            for i in range(NICS):
                sh("ip", "-n", name, "address", "add", f"198.18.{i}.{host + 1}/24", "dev", f"eth{i}")
                sh("ip", "-n", name, "link", "set", f"eth{i}", "up")
        for name in self.names:
            for i in range(NICS):
                wait_until_up(name, f"eth{i}")

    def nics_used(self, info, accelerators, path, **settings):
        """Runs a rank of each host for each of |accelerators|. Returns by rank of host 0 the NICs to its counterpart."""
        count = len(accelerators)
        ranks = []
        for rank in range(2 * count):
            host, place = divmod(rank, count)
            ranks.append(subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], "unshare", "--pid", "--fork", "--kill-child", info, "explain",
                 "--device", "1", "--format", "json"],
                env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(2 * count), MASTER_ADDR="198.18.0.1",
                         MASTER_PORT="29400", HETCOMM_FAMILY="ipv4", HETCOMM_HOST_LABEL=f"host{host}",
                         HETCOMM_TRANSPORTS="tcp", HETCOMM_TOPOLOGY=path, HETCOMM_TOPOLOGY_TRUST="on",
                         HETCOMM_DEVICES=f"sim-handle:pci={accelerator(accelerators[place])}", **settings),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        outputs = [rank.communicate(timeout=60) for rank in ranks]
        assert all(rank.returncode == 0 for rank in ranks), outputs
        reports = json.loads(outputs[0][0])
        used = []
        for rank in range(count):
            (own,) = [entry for entry in reports if entry["rank"] == rank]
            (pairings,) = [peer["pairings"] for peer in own["peers"] if peer["rank"] == count + rank]
            used.append([pairing["nic"] for pairing in pairings if pairing["role"] == "paired"])
            left = {pairing["nic"] for pairing in pairings if "left to another device" in pairing["verdict"]}
            others = {f"eth{i}" for i in accelerators} - {f"eth{accelerators[rank]}"}
            assert left == (set() if "HETCOMM_RAILS" in settings else others), pairings
        return used


def main():
    (info,) = sys.argv[1:]
    need("NICs of devices", "ip", "unshare")
    with Hosts() as hosts, tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "machine.json")
        with open(path, "w") as file:
            json.dump(machine(), file)
        own = [["eth0"], ["eth1"], ["eth2"], ["eth3"]]
        assert (used := hosts.nics_used(info, range(NICS), path)) == own, used
        assert (used := hosts.nics_used(info, range(NICS), path, HETCOMM_SMALL_JOB="1")) == own, used
        used = [sorted(nics) for nics in hosts.nics_used(info, [0, 1], path)]
        assert used == [["eth0", "eth2", "eth3"], ["eth1", "eth2", "eth3"]], used
        used = hosts.nics_used(info, [2], path)
        assert [sorted(nics) for nics in used] == [[f"eth{i}" for i in range(NICS)]], used
        used = hosts.nics_used(info, [0, 1], path, HETCOMM_RAILS="2")
        assert [sorted(nics) for nics in used] == [["eth0", "eth1"], ["eth0", "eth1"]], used


if __name__ == "__main__":
    main()
