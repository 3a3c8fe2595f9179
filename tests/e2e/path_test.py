"""Operations over networks that fail silently (network namespaces; needs root, ip and tc).

Proves, if only short packets pass (the hosts use jumbo frames, the network between them does not):
short messages arrive; long operations of every kind end with UNREACHABLE on both ranks and the
connection's reason; the first stall warning and the text of a deadline contain that reason and name
the rank. All operations succeed with links that go down and up in turn, idle and busy, and while a
rank is stopped.

path_test.py RANK CASE...: the program is path_rank. Cases: short, defaults, flaps, stops.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

from namespaces import sh, wait_until_up

SKIPPED = 77
JUMBO = 9000
DETECTION_S = 2


class Network:
    """Two named hosts and the network between them."""

    def __init__(self):
        self.hosts = [f"hetcomm-path-{os.getpid()}-{i}" for i in range(2)]
        self.middle = f"hetcomm-path-{os.getpid()}-m"

    def __enter__(self):
        for name in [*self.hosts, self.middle]:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        self.join()
        return self

    def __exit__(self, *_):
        for name in [*self.hosts, self.middle]:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def start(self, program, *words, **settings):
        common = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR=self.address, MASTER_PORT="29400",
                      HETCOMM_SECRET="the secret of this test", HETCOMM_FAMILY="ipv4",
                      HETCOMM_TRANSPORTS="tcp", **settings)
        return [subprocess.Popen(["ip", "netns", "exec", name, program, *map(str, words)],
                                 env=dict(common, RANK=str(rank), HETCOMM_HOST_LABEL=f"h{rank}"),
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                for rank, name in enumerate(self.hosts)]

    def run(self, program, *words, limit_s=120, **settings):
        """The output and log of the ranks."""
        ranks = self.start(program, *words, **settings)
        return finish(ranks, limit_s)


def finish(ranks, limit_s):
    try:
        return [rank.communicate(timeout=limit_s)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


class BlackHole(Network):
    """A router between the hosts drops frames that are longer than 1,514 bytes."""

    address = "198.18.0.2"

    def join(self):
        sh("ip", "netns", "exec", self.middle, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        for i, name in enumerate(self.hosts):
            sh("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns",
               self.middle)
            for host, device, own in ((name, "eth0", 2), (self.middle, f"port{i}", 1)):
                sh("ip", "-n", host, "link", "set", device, "mtu", str(JUMBO), "up")
                sh("ip", "-n", host, "address", "add", f"198.18.{i}.{own}/24", "dev", device)
            sh("ip", "-n", name, "route", "add", "default", "via", f"198.18.{i}.1")
            sh("tc", "-n", self.middle, "qdisc", "add", "dev", f"port{i}", "root", "tbf", "rate", "10gbit",
               "burst", "1600", "latency", "50ms", "mtu", "1514")
        for name in self.hosts:
            wait_until_up(name, "eth0")


class TwoLinks(Network):
    address = "198.18.0.1"

    def join(self):
        for i in range(2):
            sh("ip", "-n", self.hosts[0], "link", "add", f"eth{i}", "type", "veth", "peer", "name", f"eth{i}",
               "netns", self.hosts[1])
            for host, name in enumerate(self.hosts):
                sh("ip", "-n", name, "address", "add", f"198.18.{i}.{host + 1}/24", "dev", f"eth{i}")
                sh("ip", "-n", name, "link", "set", f"eth{i}", "up")
        for name in self.hosts:
            for i in range(2):
                wait_until_up(name, f"eth{i}")

    def link(self, i, state):
        sh("ip", "-n", self.hosts[0], "link", "set", f"eth{i}", state)


REASON = re.compile(r"answered nothing for [0-9.]+ s|[0-9]+ bytes were not acknowledged")


def outcome(output, name):
    """Status and text of that operation."""
    found = re.findall(rf"^{name} ([A-Z_]+) ?(.*)$", output, re.MULTILINE)
    assert len(found) == 1, output
    return found[0]


def expect_unreachable(outputs, *names):
    for rank, (output, name) in enumerate(zip(outputs, names)):
        status, text = outcome(output, name)
        assert status == "UNREACHABLE", output
        assert f"rank {1 - rank}" in text and REASON.search(text) and "MTU" in text, output


def only_short_packets(program):
    settings = {"HETCOMM_DETECTION_TIME": f"{DETECTION_S}s", "HETCOMM_STALL_TIME": "1s"}
    with BlackHole() as network:
        start = time.monotonic()
        outputs = network.run(program, "send", 120, 8, 1000, 1200, 4000, **settings)
        took = time.monotonic() - start
        for output in outputs:
            for size in (8, 1000, 1200):
                assert outcome(output, size)[0] == "OK", output
            # The warning comes before anything has ended.
            assert output.index("no progress for") < output.index("UNREACHABLE"), output
        # A short message has left when its send ends.
        expect_unreachable(outputs, "end", 4000)
        # Four connections, each of which is given up after three quarters of the detection time.
        assert took < 30, took
        warning = re.search(r"no progress for.*\n.*receive from rank 1, .*", outputs[0])
        assert warning and REASON.search(warning[0]), outputs[0]
        # By rendezvous, over streams of their own; a collective operation; a put.
        outputs = network.run(program, "send", 120, 1_000_000, **settings)
        expect_unreachable(outputs, 1_000_000, 1_000_000)
        outputs = network.run(program, "allreduce", 120, 1_000_000, **settings)
        for output in outputs:
            status, text = outcome(output, "allreduce")
            assert status in ("UNREACHABLE", "ABORTED"), output
            assert REASON.search(text) and "MTU" in text, output
        outputs = network.run(program, "put", 120, 1_000_000, **settings)
        status, text = outcome(outputs[0], "put")
        assert status == "UNREACHABLE" and REASON.search(text), outputs[0]
        # A deadline that comes before says what is known by then.
        outputs = network.run(program, "send", 3, 4000, **settings)
        status, text = outcome(outputs[0], "end")
        assert status == "TIMED_OUT" and "rank 1" in text and REASON.search(text), outputs[0]
        status, text = outcome(outputs[1], 4000)
        assert status == "TIMED_OUT" and "rank 0" in text, outputs[1]


def with_defaults(program):
    with BlackHole() as network:
        start = time.monotonic()
        outputs = network.run(program, "send", 120, 8, 4000, HETCOMM_STALL_TIME="5s")
        took = time.monotonic() - start
        expect_unreachable(outputs, "end", 4000)
        print(f"unreachable after {took:.1f} s")
        assert took < 41 + 5, took  # the ranks start and end in this time too
        warning = re.search(r"no progress for.*\n.*receive from rank 1, .*", outputs[0])
        assert warning and REASON.search(warning[0]), outputs[0]


def flaps(program, seconds=60):
    for words in (("idle", seconds), ("busy", seconds, 200_000), ("busy", seconds, 8)):
        with TwoLinks() as network:
            ranks = network.start(program, *words, HETCOMM_DETECTION_TIME="3s", HETCOMM_COOL_DOWN="200ms")
            end = time.monotonic() + seconds - 5
            time.sleep(2)
            turn = 0
            while time.monotonic() < end:
                network.link(turn % 2, "down")
                time.sleep(2.5)
                network.link(turn % 2, "up")
                time.sleep(1.5)
                turn += 1
            for output in finish(ranks, 120):
                assert f"{words[0]} OK" in output, output


def stops(program, seconds=60):
    for words in (("idle", seconds + 6), ("busy", seconds + 6, 200_000), ("busy", seconds + 6, 8)):
        with TwoLinks() as network:
            ranks = network.start(program, *words)
            time.sleep(4)
            # ip netns exec becomes the program.
            ranks[1].send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            ranks[1].send_signal(signal.SIGCONT)
            for output in finish(ranks, 120):
                assert f"{words[0]} OK" in output, output


CASES = {"short": only_short_packets, "defaults": with_defaults, "flaps": flaps, "stops": stops}


def main():
    program, *names = sys.argv[1:]
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        print("network namespaces need root, ip and tc")
        sys.exit(SKIPPED)
    for name in names:
        CASES[name](program)


if __name__ == "__main__":
    main()
