"""Shared by the tests in network namespaces."""

import os
import shutil
import subprocess
import sys
import time

SKIPPED = 77


def sh(*words):
    subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def need(what, *tools):
    """Skips the test, |what|, unless this process may make network namespaces and has |tools|."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in tools):
        print(f"{what} need root, {', '.join(tools[:-1])} and {tools[-1]}")
        sys.exit(SKIPPED)
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        print("network namespaces cannot be made here: " + probe.stderr.strip())
        sys.exit(SKIPPED)


class Namespaces:
    """The network namespaces |names|, for the time of a `with`. A subclass adds and joins them in make()."""

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
    """Returns when |device| of namespace |name| has a carrier."""
    deadline = time.monotonic() + 10
    while True:
        shown = subprocess.run(["ip", "-n", name, "link", "show", device], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        if "state UP" in shown:
            return
        assert time.monotonic() < deadline, f"{name}: {device} does not come up"
        time.sleep(0.05)


class Wire:
    """A wire in namespace |name| between its interfaces |ends| that delays frames by |delay_ms|."""

    def __init__(self, name, ends, delay_ms):
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "slow_wire.py")
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen(["ip", "netns", "exec", name, sys.executable, program, *ends, str(delay_ms)],
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().strip() == "ready"

    def cut(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def run_ranks(hosts, address, command, settings, limit_s, cores=None):
    """Runs |command| as a rank in each namespace of |hosts|, over tcp; what rank 0 prints. |address|: of
    the first host. |settings|: environment of all ranks, where a list has a value for each. |cores|: each
    rank has one of these."""
    ranks = []
    for i, host in enumerate(hosts):
        own = {name: value[i] if isinstance(value, list) else value for name, value in settings.items()}
        environment = dict(os.environ, RANK=str(i), WORLD_SIZE=str(len(hosts)), MASTER_ADDR=address,
                           MASTER_PORT="29400", HETCOMM_SECRET="the secret of this test",
                           HETCOMM_HOST_LABEL=f"h{i}", HETCOMM_TRANSPORTS="tcp", HETCOMM_FAMILY="ipv4", **own)
        pinned = ["taskset", "-c", str(cores[i % len(cores)])] if cores else []
        ranks.append(subprocess.Popen(["ip", "netns", "exec", host, *pinned, *command], env=environment,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        results = [rank.communicate(timeout=limit_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, results):
        assert rank.returncode == 0, errors
    return results[0][0]
