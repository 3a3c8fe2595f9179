"""Creates hosts as network namespaces of this machine, connects them by links with a rate and a
delay, and runs jobs on them."""

import os
import shutil
import subprocess
import sys
import time


def sh(*words):
    subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def lack_of(*tools):
    """Returns the reason why this process cannot create network namespaces with |tools|, or ""."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed (Debian: iproute2, procps, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return "" if probe.returncode == 0 else "network namespaces cannot be made here: " + probe.stderr.strip()


class Namespaces:
    """Manages the network namespaces |names|. A subclass creates and connects them in make(), which
    a `with` statement calls. The end of the statement deletes them."""

    def __init__(self, names):
        self.names = names

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def wait_until_up(name, device):
    """Waits until |device| of namespace |name| has a carrier. Raises RuntimeError after 10 s."""
    deadline = time.monotonic() + 10
    while True:
        shown = subprocess.run(["ip", "-n", name, "link", "show", device], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        if "state UP" in shown:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{name}: {device} does not come up")
        time.sleep(0.05)


class Wire:
    """Connects the interfaces |ends| of namespace |name| by a wire that delays frames by
    |delay_ms|."""

    def __init__(self, name, ends, delay_ms):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow_wire.py")
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(["ip", "netns", "exec", name, sys.executable, program, *ends, str(delay_ms)],
                                        stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{program} has ended")

    def cut(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class TwoHosts(Namespaces):
    """Creates two hosts and connects them by a wire that delays frames by |delay_ms|, or directly
    if |delay_ms| is 0. Each host sends at most |mbit| Mbit/s; 0 means no limit."""

    address = "198.18.12.1"  # address of the first host
    made = 0

    def __init__(self, delay_ms, mbit=0):
        TwoHosts.made += 1
        tag = f"hetcomm-{os.getpid()}-{TwoHosts.made}"
        self.hosts = [f"{tag}-h{i}" for i in range(2)]
        self.between = f"{tag}-w"
        self.delay_ms = delay_ms
        self.mbit = mbit
        self.wire = None
        super().__init__([*self.hosts, self.between])

    def make(self):
        for name in self.names:
            sh("ip", "netns", "add", name)
            sh("ip", "-n", name, "link", "set", "lo", "up")
        ends = ("end0", "end1")
        if self.delay_ms == 0:
            sh("ip", "-n", self.hosts[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
               self.hosts[1])
        for i, (host, end) in enumerate(zip(self.hosts, ends)):
            if self.delay_ms > 0:
                sh("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", end, "netns", self.between)
                sh("ip", "-n", self.between, "link", "set", end, "up")
            sh("ip", "-n", host, "address", "add", f"198.18.12.{i + 1}/24", "dev", "eth0")
            sh("ip", "-n", host, "link", "set", "eth0", "up")
            # Every kernel provides Reno. BBR, the default of some kernels, spreads a message over
            # half a round trip.
            sh("ip", "netns", "exec", host, "sysctl", "-qw", "net.ipv4.tcp_slow_start_after_idle=0",
               "net.ipv4.tcp_congestion_control=reno")
            if self.mbit > 0:
                # The burst exceeds 64 KiB, so that large segments are not split.
                sh("tc", "-n", host, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", f"{self.mbit}mbit",
                   "burst", "131072", "latency", "300ms")
        if self.delay_ms > 0:
            self.wire = Wire(self.between, ends, self.delay_ms)
        for host in self.hosts:
            wait_until_up(host, "eth0")

    def __exit__(self, *_):
        if self.wire is not None:
            self.wire.cut()
        super().__exit__()


def run_ranks(hosts, address, command, settings, limit_s, cores=None):
    """Runs |command| over tcp as one rank for each entry of |hosts|. The entries are names of
    namespaces and may repeat. |address| is the address of the first host. |settings| are
    environment variables of all ranks; a list has one value for each rank. If |cores| are given,
    each rank is bound to one of them, in rotation.

    Returns the output of rank 0. Raises RuntimeError with the error output of a rank that fails,
    and subprocess.TimeoutExpired if a rank takes longer than |limit_s| seconds."""
    ranks = []
    try:
        for i, host in enumerate(hosts):
            own = {name: value[i] if isinstance(value, list) else value for name, value in settings.items()}
            environment = dict(os.environ, RANK=str(i), WORLD_SIZE=str(len(hosts)), MASTER_ADDR=address,
                               MASTER_PORT="29400", HETCOMM_SECRET="of this machine alone",
                               HETCOMM_HOST_LABEL=f"h{hosts.index(host)}", HETCOMM_TRANSPORTS="tcp",
                               HETCOMM_FAMILY="ipv4", **own)
            pinned = ["taskset", "-c", str(cores[i % len(cores)])] if cores else []
            ranks.append(subprocess.Popen(["ip", "netns", "exec", host, *pinned, *command], env=environment,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        results = [rank.communicate(timeout=limit_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, results):
        if rank.returncode != 0:
            raise RuntimeError(errors.strip() or f"a rank has ended with status {rank.returncode}")
    return results[0][0]
