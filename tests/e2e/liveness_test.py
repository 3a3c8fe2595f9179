#!/usr/bin/env python3
"""Which ranks are declared dead, and when, in jobs whose ranks compute, stop, die and are cut off.

Proves:
  - many ranks compute in bursts of up to three detection times, communicate with others for the first time and
    are stopped for up to two detection times: no living rank is declared dead, and the control threads of all
    others log each killed rank within a second (a stopped one: a second after it resumes);
  - a partition shorter than the detection time has no consequence; a longer one is reported on both sides;
  - a route that is briefly missing causes no death; one that stays missing ends the pair with UNREACHABLE, and no
    rank dies;
  - when the interface of the control connections goes down while another one works, the job continues.

liveness_test.py RANK_PROGRAM [SECONDS [RANKS]]   SECONDS: of the first test
"""
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest

from rank_process import Rank, free_port

PROGRAM = sys.argv.pop(1)
SECONDS = float(sys.argv.pop(1)) if len(sys.argv) > 1 else 20
RANKS = int(sys.argv.pop(1)) if len(sys.argv) > 1 else 16
DETECTION = 3.0
LOST = re.compile(r"rank (\d+) lost")


class WatchedRank(Rank):
    """A rank, with the time at which it logged the death of each other rank."""

    def __init__(self, command, environment):
        self.deaths = {}
        self.resumed = 0.0
        super().__init__(command, environment)

    def logged(self, line):
        found = LOST.search(line)
        if found:
            self.deaths.setdefault(int(found.group(1)), time.monotonic())


class LivenessTest(unittest.TestCase):
    def job(self, scenario, size, prefix=None, address="127.0.0.1", **settings):
        port = free_port()
        ranks = []
        self.addCleanup(lambda: [rank.end() for rank in ranks])
        for number in range(size):
            environment = dict(os.environ, RANK=str(number), WORLD_SIZE=str(size), MASTER_ADDR=address,
                               MASTER_PORT=str(port), HETCOMM_LOG="warn",
                               HETCOMM_DETECTION_TIME=f"{DETECTION}s", HETCOMM_SECRET="the same for all")
            environment.update({"HETCOMM_" + name: value for name, value in settings.items()})
            ranks.append(WatchedRank((prefix(number) if prefix else []) + [PROGRAM, *scenario], environment))
        for rank in ranks:
            rank.expect("READY", 60)
        return ranks

    # --- many ranks -----------------------------------------------------------------------------

    def test_only_killed_ranks_are_declared_dead(self):
        seed = int(os.environ.get("HETCOMM_TEST_SEED", "1"))
        chooser = random.Random(seed)
        ranks = self.job(["live", str(3 * DETECTION)], RANKS, INTERFACE="lo")
        killed = {}
        stopped = {}  # rank: until
        end = time.monotonic() + SECONDS
        most_killed = RANKS // 3
        next_event = time.monotonic()
        while time.monotonic() < end or stopped:
            now = time.monotonic()
            for number in [n for n, until in stopped.items() if until <= now]:
                ranks[number].process.send_signal(signal.SIGCONT)
                ranks[number].resumed = time.monotonic()
                del stopped[number]
            if now >= next_event and now < end:
                next_event = now + chooser.random() * SECONDS / 20
                number = chooser.randrange(RANKS)
                if number not in killed and number not in stopped:
                    if chooser.random() < 0.3 and len(killed) < most_killed:
                        ranks[number].process.kill()
                        killed[number] = time.monotonic()
                    else:
                        stopped[number] = now + chooser.random() * 2 * DETECTION
                        ranks[number].process.send_signal(signal.SIGSTOP)
                        ranks[number].resumed = float("inf")
            time.sleep(0.02)
        time.sleep(2.5)
        slowest = 0.0
        for number, rank in enumerate(ranks):
            if number in killed:
                continue
            self.assertEqual(set(rank.deaths), set(killed),
                             f"rank {number} (seed {seed}) holds others for dead than those: {rank.errors[-5:]}")
            for victim, when in killed.items():
                # One that was stopped then, or was waking, had no chance before.
                since = when if rank.resumed < when - 1 else max(when, rank.resumed)
                if rank.deaths[victim] > when or rank.resumed == 0:
                    slowest = max(slowest, rank.deaths[victim] - since)
        print(f"{len(killed)} of {RANKS} killed, known to all after {slowest:.3f} s (seed {seed})", file=sys.stderr)
        self.assertLess(slowest, 0.85 * DETECTION)  # by silence it takes all of it
        for number, rank in enumerate(ranks):
            if number in killed:
                continue
            rank.say()
        for number, rank in enumerate(ranks):
            if number in killed:
                continue
            view = rank.expect("VIEW", 30).split()[1:]
            self.assertEqual({i for i, mark in enumerate(view) if mark == "-"}, set(killed), f"rank {number}")

    # --- networks -------------------------------------------------------------------------------

    def hosts(self, count, links=1):
        """Network namespaces on one bridge (two: on two), as hosts of a network of their own."""
        if os.geteuid() != 0 or subprocess.run(["ip", "netns", "list"], capture_output=True).returncode:
            self.skipTest("network namespaces need root and iproute2")
        names = [f"hetcomm-{os.getpid()}-{self.id().rsplit('_', 1)[-1]}-{i}" for i in range(count)]

        def ip(*arguments):
            subprocess.run(["ip", *arguments], check=True, capture_output=True)

        # The bridges have a namespace of their own.
        middle = names[0] + "m"
        for name in [middle] + names:
            ip("netns", "add", name)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
            ip("-n", name, "link", "set", "lo", "up")
        for link in range(links):
            ip("-n", middle, "link", "add", f"br{link}", "type", "bridge")
            ip("-n", middle, "link", "set", f"br{link}", "up")
            for i, name in enumerate(names):
                ip("-n", middle, "link", "add", f"p{link}-{i}", "type", "veth", "peer", "name", f"eth{link}", "netns",
                   name)
                ip("-n", middle, "link", "set", f"p{link}-{i}", "master", f"br{link}", "up")
                ip("-n", name, "addr", "add", f"10.{81 + link}.0.{i + 1}/24", "dev", f"eth{link}")
                ip("-n", name, "link", "set", f"eth{link}", "up")
        for name in names:
            for link in range(links):
                for _ in range(100):
                    state = subprocess.run(["ip", "-n", name, "-o", "link", "show", f"eth{link}"],
                                           capture_output=True, text=True).stdout
                    if "LOWER_UP" in state and "state UP" in state:
                        break
                    time.sleep(0.05)
        self.middle = middle
        return names

    def port(self, number, state, link=0):
        subprocess.run(["ip", "-n", self.middle, "link", "set", f"p{link}-{number}", state], check=True)

    def views(self, ranks):
        for rank in ranks:
            rank.say()
        return [rank.expect("VIEW", 20).split()[1:] for rank in ranks]

    def partition(self, names, share, dies):
        """Cuts off rank 3, alone on the third host. Returns the seconds until the last rank knew."""
        place = [names[0], names[0], names[1], names[2]]
        ranks = self.job(["contact", "3"], 4, prefix=lambda n: ["ip", "netns", "exec", place[n]],
                         address="10.81.0.1", INTERFACE="eth0", TRANSPORTS="tcp", TIMEOUT="30s")
        time.sleep(0.3)
        self.port(2, "down")
        cut = time.monotonic()
        told = {0: {3}, 1: {3}, 2: {3}, 3: {0, 1, 2}}
        if dies:
            while any(set(ranks[n].deaths) != told[n] for n in told) and time.monotonic() < cut + 20:
                time.sleep(0.01)
            self.assertEqual({n: set(ranks[n].deaths) for n in told}, told)
        time.sleep(max(0, cut + share * DETECTION - time.monotonic()))
        self.port(2, "up")
        time.sleep(1.5)
        for rank in ranks:
            rank.say()
        result = ranks[3].expect("RESULT", 40)
        ranks[0].expect("RESULT", 40)
        self.assertIn("PEER_LOST" if dies else "OK", result)
        views = self.views(ranks)
        if dies:
            self.assertEqual(views, [["+", "+", "+", "-"]] * 3 + [["-", "-", "-", "+"]])
        else:
            self.assertEqual([rank.deaths for rank in ranks], [{}] * 4)
            self.assertEqual(views, [["+"] * 4] * 4)
        for rank in ranks:
            rank.end()
        return max(when for rank in ranks for when in rank.deaths.values()) - cut if dies else 0

    def test_long_partition_is_reported_and_a_short_one_is_not(self):
        names = self.hosts(3)
        self.partition(names, 0.7, False)
        # Where others take the processors a rank finds its own clock late, and begins anew.
        for _ in range(3):
            seconds = self.partition(names, 1.5, True)
            if seconds < DETECTION + 1:
                break
        print(f"a partition was told to all after {seconds:.2f} s", file=sys.stderr)
        # A rank that does not get a processor for a sixth of the detection time begins anew.
        self.assertLess(seconds, 3 * DETECTION)

    def test_missing_route_makes_a_pair_unreachable_but_no_rank_dead(self):
        names = self.hosts(4)
        for gone, result in ((1.0, "OK"), (2.5 * DETECTION, "UNREACHABLE")):
            with self.subTest(gone=gone):
                ranks = self.job(["contact", "3"], 4, prefix=lambda n: ["ip", "netns", "exec", names[n]],
                                 address="10.81.0.1", INTERFACE="eth0", TRANSPORTS="tcp", TIMEOUT="30s")
                route = ["ip", "-n", names[0], "route"]
                subprocess.run(route + ["add", "unreachable", "10.81.0.4/32"], check=True)
                for rank in ranks:
                    rank.say()
                time.sleep(gone)
                subprocess.run(route + ["del", "unreachable", "10.81.0.4/32"], check=True)
                line = ranks[0].expect("RESULT", 40)
                self.assertIn(result, line)
                self.assertEqual([rank.deaths for rank in ranks], [{}] * 4)
                if result == "UNREACHABLE":
                    self.assertIn("lives, as others say", line)
                for rank in ranks:
                    rank.end()

    def test_job_continues_when_the_control_interface_goes_down(self):
        names = self.hosts(3, links=2)
        ranks = self.job(["contact", "2"], 3, prefix=lambda n: ["ip", "netns", "exec", names[n]], address="10.82.0.1",
                         INTERFACE="eth0,eth1", TRANSPORTS="tcp", TIMEOUT="30s")
        for number in range(3):
            self.port(number, "down", link=0)
        time.sleep(2.5 * DETECTION)
        for rank in ranks:
            rank.say()
        self.assertIn("OK", ranks[2].expect("RESULT", 40))
        self.assertEqual(self.views(ranks), [["+"] * 3] * 3)
        self.assertEqual([rank.deaths for rank in ranks], [{}] * 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
