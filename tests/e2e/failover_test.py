#!/usr/bin/env python3
"""Two ranks on the two hosts of a guest of `tools/rdma-vm --shape rails`, links that are cut and
queue pairs that break under them.

  failover_test.py [options] PROGRAM mix POINTS [PUTS]   random traffic and a model of it; POINTS
                                                         cuts and broken queue pairs at random
                                                         moments, and at least PUTS notified puts
                                                         of each rank
  failover_test.py [options] PROGRAM rail HOW            one of two rails is cut in the middle of
                                                         256 MiB (HOW: send, put, get)
  failover_test.py [options] PROGRAM tcp HOW             both rails are cut in the middle, tcp stays
  failover_test.py [options] PROGRAM all                 everything is cut for good
  failover_test.py [options] PROGRAM compute             the target computes for 5 s

Outside of a guest the last, and `mix 0`, run on this host. Settings come from the environment too.
--seed N makes the same points again; --thread: with a background thread; --set NAME=VALUE; --mib N:
another size than 256. At any moment but in `all` one way is left.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

DETECTION_S = 0.1
# The device gives up a queue pair after some 100 ms: (5 + 1) * 16.8 ms.
SETTINGS = {
    "HETCOMM_RDMA_TIMEOUT": "16ms",
    "HETCOMM_RDMA_RETRIES": "5",
    "HETCOMM_COOL_DOWN": "10ms",
    "HETCOMM_TIMEOUT": "30min",
    "HETCOMM_LOG": "info",
    # Connections of the control plane, of tcp, and those by which queue pairs find each other.
    "HETCOMM_INTERFACE": "eth2",
}


def say(text):
    print(text, flush=True)


class Fabric:
    """The cables. A rail's RDMA traffic is cut apart from the TCP that shares its link."""

    def __init__(self):
        self.ip = subprocess.Popen(
            ["nsenter", "--net=/run/netns/fabric", "ip", "-force", "-batch", "-"],
            stdin=subprocess.PIPE, text=True, bufsize=1,
        )

    def set(self, host, rail, up, tcp=False):
        for kind in ("r", "t") if tcp else ("r",):
            self.ip.stdin.write(f"link set {kind}{host}{rail} {'up' if up else 'down'}\n")
        self.ip.stdin.flush()

    def set_management(self, up):
        self.ip.stdin.write(f"link set m0 {'up' if up else 'down'}\n")
        self.ip.stdin.flush()


class Rank:
    def __init__(self, number, command, settings, port):
        self.number = number
        environment = {**os.environ, **settings, "MASTER_PORT": str(port)}
        self.process = subprocess.Popen(
            [ON_HOST, str(number), *command], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )
        self.lines = []
        self.rails = 0  # connections over rdma that it has
        self.changed = threading.Condition()  # of a recursive lock
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            line = line.rstrip()
            if OPTIONS.verbose or not re.search(r" info |BROKE|MIX", line):
                say(f"{self.number}: {line}")
            with self.changed:
                self.lines.append(line)
                self.rails += bool(re.search(r"connected over rdma", line))
                self.rails -= bool(re.search(r"connection over rdma\S* failed", line))
                self.changed.notify_all()
        with self.changed:
            self.lines.append("<end>")
            self.changed.notify_all()

    def tell(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def break_queue_pair(self, choice):
        """Returns how many there were."""
        before = len(self.all("BROKE"))
        self.tell(f"break {choice}")
        deadline = time.monotonic() + 10
        with self.changed:
            while not self.failed() and time.monotonic() < deadline:
                answers = self.all("BROKE")
                if len(answers) > before:
                    return int(answers[-1].split()[1])
                self.changed.wait(0.5)
        return 0

    def expect(self, word, limit):
        """Waits for a line that begins with word; the line."""
        deadline = time.monotonic() + limit
        at = 0
        with self.changed:
            while True:
                for line in self.lines[at:]:
                    if line.startswith(word):
                        return line
                    if line.startswith(("FAILED", "<end>")):
                        raise Wrong(f"rank {self.number}: {line}, not {word}")
                at = len(self.lines)
                if time.monotonic() > deadline:
                    raise Late(f"rank {self.number}: no {word} within {limit:g} s")
                self.changed.wait(min(limit, 0.5))

    def all(self, word):
        with self.changed:
            return [line for line in self.lines if line.startswith(word)]

    def count(self, pattern):
        with self.changed:
            return sum(1 for line in self.lines if re.search(pattern, line))

    def failed(self):
        with self.changed:
            return any(line.startswith(("FAILED", "<end>")) for line in self.lines)

    def counters(self):
        result = {}
        for line in self.all("COUNTERS"):
            words = line.split()
            result[words[1]] = {
                name: int(value) for name, value in (word.split("=") for word in words[2:])
            }
        return result


class Wrong(Exception):
    pass


class Late(Wrong):
    pass


def tree(process):
    """|process| and all below it."""
    found = [process]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process:
            found += tree(int(stat.parent.name))
    return found


def show_where(job):
    """State and kernel stack of each running thread, and the latest kernel messages."""
    for rank in job.ranks:
        for task in (t for p in tree(rank.process.pid) for t in Path(f"/proc/{p}/task").glob("*")):
            try:
                state = re.search(r"State:\s*(.*)", (task / "status").read_text()).group(1)
                say(f"WHERE rank {rank.number}, thread {task.name} {(task / 'comm').read_text().strip()}: "
                    f"{state}, system call {(task / 'syscall').read_text().strip()}")
                say((task / "stack").read_text())
            except OSError as gone:
                say(str(gone))
    said = subprocess.run(["dmesg"], stdout=subprocess.PIPE, text=True, check=False).stdout
    say("KERNEL\n" + "\n".join(said.splitlines()[-60:]))


class Job:
    def __init__(self, *arguments, **more):
        settings = {**SETTINGS, **os.environ, **more, **dict(each.split("=", 1) for each in OPTIONS.set)}
        if OPTIONS.thread:
            settings["HETCOMM_PROGRESS"] = "thread"
        port = random.SystemRandom().randrange(20000, 30000)
        command = [OPTIONS.program, *map(str, arguments)]
        self.ranks = [Rank(number, command, settings, port) for number in (0, 1)]

    def expect(self, word, limit):
        """Of both ranks; when one has failed the other has some more seconds to say so, too."""
        found = {}
        deadline = time.monotonic() + limit
        while len(found) < len(self.ranks):
            for rank in self.ranks:
                if rank in found:
                    continue
                try:
                    found[rank] = rank.expect(word, 0)
                except Late:
                    pass
            if any(rank.failed() for rank in self.ranks if rank not in found):
                deadline = min(deadline, time.monotonic() + 10)
            if len(found) < len(self.ranks) and time.monotonic() > deadline:
                late = [rank.number for rank in self.ranks if rank not in found]
                raise Late(f"ranks {late}: no {word} in time")
            time.sleep(0.02)
        return [found[rank] for rank in self.ranks]

    def tell(self, line):
        for rank in self.ranks:
            rank.tell(line)

    def end(self, limit=60):
        self.expect("DONE", limit)
        for rank in self.ranks:
            if rank.process.wait(30):
                raise Wrong(f"rank {rank.number} ended with {rank.process.returncode}")
            rank.reader.join(10)

    def kill(self):
        for rank in self.ranks:
            rank.process.kill()


def check_log(job):
    """The log has one line with the reason for each lost connection that was counted."""
    for rank in job.ranks:
        counted = sum(each["failures"] for each in rank.counters().values())
        lost = rank.count(r"connection over \S+ failed, \d+ left: \S+")
        # Those of the last moments may come after the counters were read.
        if lost < counted:
            raise Wrong(f"rank {rank.number}: {counted} connections lost, {lost} lines about it")
        again = rank.count(r"connected over rdma")
        say(f"{rank.number}: {counted} connections lost, {lost} lines, {again} made over rdma")


def mix(fabric):
    points = int(OPTIONS.arguments[0])
    puts = int(OPTIONS.arguments[1]) if len(OPTIONS.arguments) > 1 else 0
    chance = random.Random(OPTIONS.seed)
    job = Job("mix", OPTIONS.seed, puts)
    kinds = {}
    try:
        job.expect("READY", 60)
        began = time.monotonic()
        done = 0
        while done < points and not any(rank.failed() for rank in job.ranks):
            time.sleep(chance.choice((0, 0.05, 0.3, 0.8)) * chance.random())
            hit_by = time.monotonic() + 2  # where there is something to hit
            while job.ranks[0].rails == 0 and time.monotonic() < hit_by:
                time.sleep(0.01)
            kind = chance.choice(("queue pair", "queue pair", "rail", "rail", "rail and queue pair",
                                  "rail and tcp", "both rails"))
            host, rail, choice = chance.randrange(2), chance.randrange(2), chance.randrange(1000)
            length = chance.choice((0.03, 0.15, 0.3)) * (0.5 + chance.random())
            if OPTIONS.verbose:
                say(f"point {done}: {kind}, host {host}, rail {rail}, {length:.3f} s")
            kinds[kind] = kinds.get(kind, 0) + 1
            done += 1
            if kind == "queue pair":
                done -= job.ranks[host].break_queue_pair(choice) == 0
                continue
            cut = (0, 1) if kind == "both rails" else (rail,)
            for each in cut:
                fabric.set(host, each, False, kind == "rail and tcp")
            time.sleep(length / 2)
            if kind == "rail and queue pair":
                done += job.ranks[1 - host].break_queue_pair(choice) > 0
            time.sleep(length / 2)
            for each in cut:
                fabric.set(host, each, True, kind == "rail and tcp")
        say(f"{done} points in {time.monotonic() - began:.1f} s: {kinds}")
        job.tell("stop")
        job.expect("COUNTERS", 120 + puts / 20)
        job.end(60)
        if points > 0:
            check_log(job)
        for rank in job.ranks:
            say(f"{rank.number}: {rank.all('MIX')[-1]}")
            rdma = [each for name, each in rank.counters().items() if name.startswith("rdma")]
            if points == 0:
                continue
            if len(rdma) < 2 or any(each["messages"] + each["bulk"] == 0 for each in rdma):
                raise Wrong(f"rank {rank.number} did not use two rails")
            if points >= 20 and sum(each["failures"] for each in rdma) < points / 5:
                raise Wrong(f"rank {rank.number} has lost hardly any connection")
        say(f"{time.monotonic() - began:.1f} s in all")
    except Wrong:
        show_where(job)
        raise
    finally:
        job.kill()


def bulk(fabric, cut, how, bar):
    """|cut| rails go in the middle of one transfer."""
    job = Job("bulk", how, OPTIONS.mib)
    try:
        job.expect("READY", 120)
        job.ranks[1].expect("PART", 120)
        for rail in cut:
            fabric.set(1, rail, False)
        job.end(300)
        line = job.ranks[1].all("BULK")[0]
        pause = float(re.search(r"longest pause (\S+) s", line).group(1))
        counters = job.ranks[1].counters()
        over = {name: each["bulk"] >> 20 for name, each in job.ranks[0].counters().items()}
        lost = sum(each["failures"] for each in counters.values())
        say(f"rails {cut} cut in {how}: {line}; MiB over each: {over}; lost {lost}")
        if lost < len(cut):
            raise Wrong("the cut came too late")
        if pause > bar:
            raise Wrong(f"a pause of {pause} s; the bar is {bar} s")
    finally:
        job.kill()
        for rail in cut:
            fabric.set(1, rail, True)


def everything(fabric):
    detection = 4
    job = Job("cut-off", HETCOMM_DETECTION_TIME=f"{detection}s")
    try:
        job.expect("READY", 60)
        time.sleep(1)
        for rail in (0, 1):
            fabric.set(1, rail, False, True)
        fabric.set_management(False)
        job.tell("stop")
        job.end(detection + 30)
        for rank in job.ranks:
            ended = rank.all("ENDED")
            if len(ended) != 7:
                raise Wrong(f"rank {rank.number}: {len(ended)} operations ended")
            for line in ended:
                status = re.search(r"PEER_LOST|OUTCOME_UNKNOWN", line)
                seconds = re.search(r"after (\S+) s", line)
                if not status or (status.group() == "OUTCOME_UNKNOWN" and "fetch_add" not in line):
                    raise Wrong(line)
                if seconds and float(seconds.group(1)) > detection + 2:
                    raise Wrong(f"too late: {line}")
    finally:
        job.kill()
        for rail in (0, 1):
            fabric.set(1, rail, True, True)
        fabric.set_management(True)


def compute():
    OPTIONS.thread = True
    job = Job("compute", 5)
    try:
        job.end(120)
    finally:
        job.kill()


def act():
    what = OPTIONS.scenario
    how = OPTIONS.arguments[0] if OPTIONS.arguments else "send"
    fabric = Fabric() if ON_HOST == "on-host" else None
    if what == "mix":
        mix(fabric)
    elif what == "rail":
        bulk(fabric, (0,), how, DETECTION_S + 1)
    elif what == "tcp":
        bulk(fabric, (0, 1), how, DETECTION_S + 1)
    elif what == "all":
        everything(fabric)
    elif what == "compute":
        compute()
    else:
        sys.exit(__doc__)


def parse():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--thread", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("program")
    parser.add_argument("scenario")
    parser.add_argument("arguments", nargs="*")
    return parser.parse_args()


OPTIONS = parse()
ON_HOST = "on-host"
if not Path("/run/hetcomm-vm/shape").exists():
    if OPTIONS.scenario != "compute" and [OPTIONS.scenario, *OPTIONS.arguments[:1]] != ["mix", "0"]:
        say("not in a guest: the links here are not this test's to cut")
        sys.exit(77)
    ON_HOST = str(Path(__file__).resolve().parents[2] / "tools/rdma_vm/bin/on-host")
    SETTINGS["HETCOMM_INTERFACE"] = "lo"
say(f"seed {OPTIONS.seed}")
try:
    act()
except Wrong as wrong:
    say(f"WRONG {wrong}")
    sys.exit(1)
