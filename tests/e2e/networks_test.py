"""Ranks in two network namespaces, as two hosts that a link joins (needs root and ip).

Proves: a rank offers the address by which it reaches rank 0's store, whatever other interfaces its
host has; a rank that can only offer loopback says so; the store listens only on the address that
MASTER_ADDR names; two ranks without a common transport get an error and do not wait; hosts that
have only link-local IPv6 addresses connect by them, even with a second such link.

networks_test.py RING: the program is examples/ring.
"""

import os
import shutil
import subprocess
import sys
import time

from namespaces import Namespaces, sh

SKIPPED = 77
FAR = ("198.18.6.1", "198.18.6.2")
OFFERS = ("self, tcp, tcp#1", "self, shm")  # of ranks 0 and 1, where they differ


class Hosts(Namespaces):
    """Each has a first interface that leads nowhere, and a second one to the other host."""

    def __init__(self):
        super().__init__([f"hetcomm-networks-{os.getpid()}-{i}" for i in range(2)])

    def make(self):
        for name in self.names:
            sh("ip", "netns", "add", name)
        for i, name in enumerate(self.names):
            sh("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "end0")
            sh("ip", "-n", name, "address", "add", "198.19.0.1/24", "dev", "eth0")
            for device in ("lo", "eth0", "end0"):
                sh("ip", "-n", name, "link", "set", device, "up")
        sh("ip", "-n", self.names[0], "link", "add", "eth1", "type", "veth", "peer", "name", "eth1",
           "netns", self.names[1])
        for name, address in zip(self.names, FAR):
            sh("ip", "-n", name, "address", "add", address + "/24", "dev", "eth1")
            sh("ip", "-n", name, "link", "set", "eth1", "up")

    def run(self, program, common=None, **settings):
        """Exit statuses and outputs; rank 1 has |settings|, rank 0 tcp where they name transports."""
        common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": FAR[0], "MASTER_PORT": "29400",
                  "HETCOMM_SECRET": "the secret of this test", "HETCOMM_FAMILY": "ipv4", "HETCOMM_LOG": "info",
                  "HETCOMM_BOOTSTRAP_TIMEOUT": "10s", **(common or {})}
        ranks = []
        for rank, name in enumerate(self.names):
            environment = dict(common, RANK=str(rank), **(settings if rank == 1 else {}))
            if rank == 0 and "HETCOMM_TRANSPORTS" in settings:
                environment["HETCOMM_TRANSPORTS"] = "tcp"
            ranks.append(subprocess.Popen(["ip", "netns", "exec", name, program], env=environment,
                                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                          text=True))
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
        return [rank.returncode for rank in ranks], outputs


class LinkLocalHosts(Hosts):
    """Two links, with the addresses that the kernel gives them. The numbers of the interfaces differ."""

    def make(self):
        for i, name in enumerate(self.names):
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
            for spare in range(i):
                sh("ip", "-n", name, "link", "add", f"spare{spare}", "type", "veth", "peer", "name",
                   f"end{spare}")
        for device in ("eth1", "eth2"):
            sh("ip", "-n", self.names[0], "link", "add", device, "type", "veth", "peer", "name", device,
               "netns", self.names[1])
            for name in self.names:
                sh("ip", "-n", name, "link", "set", device, "up")

    def address(self, device, host=0):
        deadline = time.monotonic() + 10
        while True:
            words = subprocess.run(["ip", "-n", self.names[host], "-6", "-o", "address", "show", "dev", device, "scope",
                                    "link"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
            if "inet6" in words and "tentative" not in words:
                return words[words.index("inet6") + 1].split("/")[0]
            assert time.monotonic() < deadline, f"{device} gets no address"
            time.sleep(0.05)


def meet_by_link_local_addresses(program):
    with LinkLocalHosts() as hosts:
        for device in ("eth1", "eth2"):
            hosts.address(device, host=1)  # is there
            address = f"{hosts.address(device)}%{device}"
            settings = {"MASTER_ADDR": address, "HETCOMM_FAMILY": "any", "HETCOMM_TRANSPORTS": "tcp"}
            statuses, outputs = hosts.run(program, common=settings)
            text = "\n".join(outputs)
            assert statuses == [0, 0], text
            assert f"%{device}]:29400" in outputs[0], text


def main():
    (program,) = sys.argv[1:]
    if os.geteuid() != 0 or shutil.which("ip") is None:
        print("network namespaces need root and ip")
        sys.exit(SKIPPED)
    meet_by_link_local_addresses(program)
    with Hosts() as hosts:
        statuses, outputs = hosts.run(program)
        text = "\n".join(outputs)
        assert statuses == [0, 0], text
        assert f"store: rank 0 listens on {FAR[0]}:29400" in outputs[0], text
        for output, address in zip(outputs, FAR):
            assert f"control plane listens on {address}:" in output, text
            assert "loopback addresses only" not in output, text
        # Rank 0 reaches it, or both give up: either way it was told why.
        statuses, outputs = hosts.run(program, HETCOMM_INTERFACE="lo")
        assert "this rank has loopback addresses only to offer" in outputs[1], "\n".join(outputs)
        assert "loopback addresses only" not in outputs[0], "\n".join(outputs)
        # Who sends and who only receives are told alike, before and when an operation ends.
        start = time.monotonic()
        statuses, outputs = hosts.run(program, HETCOMM_TRANSPORTS="shm", HETCOMM_DETECTION_TIME="3s")
        text = "\n".join(outputs)
        assert time.monotonic() - start < 10, text
        for status, output, mine, theirs in zip(statuses, outputs, OFFERS, reversed(OFFERS)):
            assert status not in (None, 0), text
            assert f"offers {mine}, rank " in output, text
            assert f"offers {theirs}: no transport joins them" in output, text
            # The other rank may have ended with that reason before this one came to it.
            assert "no transport reaches it" in output or "its process is gone" in output, text
        assert "no transport reaches it" in text, text


if __name__ == "__main__":
    main()
