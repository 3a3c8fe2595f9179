#!/usr/bin/env python3
"""Kills, stops and cuts off ranks of small jobs, and checks what the others see.

Proves, over shm and tcp, in both progress modes:
  - a killed rank, rank 0 included, ends all operations that wait for it at once, also on ranks that never
    communicated with it;
  - a rank whose network is cut is declared lost within the detection time;
  - a stopped rank is not declared lost: the transfer completes after it resumes;
  - a returned buffer is never written again;
  - the others continue, and nothing is left behind: no process, file, descriptor, thread or memory.
"""
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

from rank_process import Rank, free_port

ACTOR = sys.argv.pop(1)


def memory_of(pid):
    """Names of the library's memory that a process has open or mapped; none of it is in a folder."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            pass  # closed meanwhile
    with open(f"/proc/{pid}/maps") as maps:
        found += [line.split(None, 5)[5] for line in maps if len(line.split(None, 5)) > 5]
    return {name[len("/memfd:"):].split()[0] for name in found if name.startswith("/memfd:hetcomm")}


def processes_of(job):
    """Those that run with HETCOMM_JOB=|job|, whoever started them."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if f"HETCOMM_JOB={job}".encode() in environ.read().split(b"\0"):
                    found.add(int(pid))
        except OSError:
            pass  # ended meanwhile, or another user's
    return found


class FailureTest(unittest.TestCase):
    def job(self, scenario, size, prefix=None, address="127.0.0.1", **settings):
        port = free_port()
        ranks = []
        for rank in range(size):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR=address,
                               MASTER_PORT=str(port), HETCOMM_LOG="warn")
            environment.update({"HETCOMM_" + name: value for name, value in settings.items()})
            command = (prefix(rank) if prefix else []) + [ACTOR, scenario]
            ranks.append(Rank(command, environment))
        self.addCleanup(lambda: [rank.end() for rank in ranks])
        for rank in ranks:
            rank.expect("READY", 40)
        return ranks

    def judge_lost(self, ranks, victim, within):
        for number, rank in enumerate(ranks):
            if number == victim:
                continue
            line = rank.expect("RESULT victim", within + 15)
            self.assertIn("PEER_LOST", line)
            self.assertIn("OK", rank.expect("RESULT others_receive", 30))
            self.assertIn("OK", rank.expect("RESULT others_send", 30))
            rank.expect("DONE", 30)

    def test_killed_rank_ends_operations_that_wait_for_it(self):
        for transport in ("shm", "tcp"):
            for progress in ("caller", "thread"):
                with self.subTest(transport=transport, progress=progress):
                    ranks = self.job("lost", 3, TRANSPORTS=transport, PROGRESS=progress)
                    time.sleep(0.3)
                    killed = time.monotonic()
                    ranks[2].process.kill()
                    line = ranks[0].expect("RESULT victim", 5)
                    self.assertLess(time.monotonic() - killed, 4, line)
                    self.assertIn("PEER_LOST", line)
                    self.judge_lost([ranks[1]], None, 5)

    def test_death_is_reported_to_ranks_that_never_communicated(self):
        ranks = self.job("strangers", 6)
        ranks[5].process.kill()
        for rank in ranks[:5]:
            self.assertIn("PEER_LOST", rank.expect("RESULT stranger", 10))

    def test_stopped_rank_is_not_declared_lost(self):
        jobs = {transport: self.job("silent", 2, TRANSPORTS=transport, DETECTION_TIME="2s")
                for transport in ("shm", "tcp")}
        for ranks in jobs.values():
            ranks[1].process.send_signal(signal.SIGSTOP)
        time.sleep(4.5)
        for ranks in jobs.values():
            ranks[1].process.send_signal(signal.SIGCONT)
        for transport, ranks in jobs.items():
            with self.subTest(transport=transport):
                self.assertIn("OK", ranks[1].expect("RESULT silent_receive", 60))
                self.assertIn("OK", ranks[0].expect("RESULT silent_send", 60))

    def test_stopped_sender_does_not_write_a_returned_buffer(self):
        # Side by side: each sleeps most of the time.
        jobs = {(transport, bulk): self.job("late_writer", 2, TRANSPORTS=transport, SHM_BULK=bulk)
                for transport, bulk in (("shm", "copy"), ("shm", "read"), ("tcp", "copy"))}
        stoppers = [threading.Thread(target=self.stop_now_and_then, args=(ranks[0], 9, seed))
                    for seed, ranks in enumerate(jobs.values())]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join()
        for (transport, bulk), ranks in jobs.items():
            with self.subTest(transport=transport, bulk=bulk):
                ranks[1].expect("RESULT late", 40)

    def stop_now_and_then(self, rank, seconds, seed):
        chooser = random.Random(seed)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(chooser.random() * 0.03)
            rank.process.send_signal(signal.SIGSTOP)
            time.sleep(0.03 + chooser.random() * 0.05)
            rank.process.send_signal(signal.SIGCONT)

    def wait_until_up(self, names):
        """The kernel takes a moment to notice both ends of a new cable."""
        for name in names:
            for _ in range(100):
                state = subprocess.run(["ip", "-n", name, "-o", "link", "show", "eth0"], capture_output=True,
                                       text=True).stdout
                if "LOWER_UP" in state and "state UP" in state:
                    break
                time.sleep(0.05)

    def test_rank_cut_off_from_the_network_is_declared_lost(self):
        if os.geteuid() != 0 or subprocess.run(["ip", "netns", "list"], capture_output=True).returncode:
            self.skipTest("network namespaces need root and iproute2")
        names = [f"hetcomm-{os.getpid()}-{i}" for i in range(3)]

        def ip(*arguments):
            subprocess.run(["ip", *arguments], check=True, capture_output=True)

        # Three hosts on one bridge, which stands in the first namespace.
        for name in names:
            ip("netns", "add", name)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "br0", "type", "bridge")
        ip("-n", names[0], "addr", "add", "10.77.0.1/24", "dev", "br0")
        ip("-n", names[0], "link", "set", "br0", "up")
        for i in (1, 2):
            ip("-n", names[0], "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns",
               names[i])
            ip("-n", names[0], "link", "set", f"port{i}", "master", "br0", "up")
            ip("-n", names[i], "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            ip("-n", names[i], "link", "set", "eth0", "up")
        ranks = self.job("lost", 3, prefix=lambda rank: ["ip", "netns", "exec", names[rank]],
                         address="10.77.0.1", DETECTION_TIME="3s", INTERFACE="br0,eth0")
        cut = time.monotonic()
        ip("-n", names[2], "link", "set", "eth0", "down")
        for rank in ranks[:2]:
            self.assertIn("PEER_LOST", rank.expect("RESULT victim", 10))
        self.assertLess(time.monotonic() - cut, 6)
        for rank in ranks[:2]:
            self.assertIn("OK", rank.expect("RESULT others_receive", 20))

    def listening_ports(self, ranks):
        """(address, port) of every TCP listener of the ranks."""
        inodes = set()
        for rank in ranks:
            folder = f"/proc/{rank.process.pid}/fd"
            for name in os.listdir(folder):
                target = os.readlink(os.path.join(folder, name))
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        with open("/proc/net/tcp") as table:
            rows = [line.split() for line in list(table)[1:]]
        found = []
        for row in rows:
            if row[3] == "0A" and row[9] in inodes:
                address, port = row[1].split(":")
                found.append((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
        return found

    def test_unrelated_connections_do_not_disturb_a_job(self):
        """Port scan, random bytes and half-open connections leave a job undisturbed."""
        chooser = random.Random(7)
        ranks = self.job("traffic", 3, TRANSPORTS="tcp")
        ports = self.listening_ports(ranks)
        self.assertGreaterEqual(len(ports), 3)
        held = []
        for round_number in range(40):
            for port in ports:
                stranger = socket.create_connection(port, timeout=5)
                if round_number % 4 == 0:
                    stranger.close()
                elif round_number % 4 == 1:
                    held.append(stranger)
                else:
                    stranger.sendall(bytes(chooser.randrange(256) for _ in range(chooser.randrange(1, 900))))
                    held.append(stranger)
        for rank in ranks:
            rank.expect("RESULT traffic OK", 60)
            rank.expect("DONE", 30)
        for stranger in held:
            stranger.close()

    def test_rank_with_a_wrong_secret_is_refused(self):
        port = free_port()
        ranks = []
        for rank in range(2):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                               MASTER_PORT=str(port), HETCOMM_SECRET=f"secret {rank}",
                               HETCOMM_BOOTSTRAP_TIMEOUT="3s")
            ranks.append(Rank([ACTOR, "traffic"], environment))
        self.addCleanup(lambda: [rank.end() for rank in ranks])
        for rank in ranks:
            self.assertEqual(rank.process.wait(timeout=20), 1)
            text = " ".join(list(rank.lines.queue)[:1] or [""])
            self.assertNotIn("secret 0", text)
            self.assertNotIn("secret 1", text)

    def namespaces(self, arguments):
        """Two ranks, the second in other namespaces; the text that rank 0 prints about the path."""
        ranks = self.job("traffic", 2, prefix=lambda rank: ["unshare", *arguments] if rank else [])
        ranks[0].expect("RESULT traffic OK", 60)
        text = ""
        while True:
            line = ranks[0].lines.get(timeout=20)
            if line is None or line == "END":
                return text
            text += line + "\n"

    def test_shm_works_across_pid_and_ipc_namespaces(self):
        if os.geteuid() != 0:
            self.skipTest("namespaces need root")
        text = self.namespaces(["--pid", "--ipc", "--fork", "--kill-child"])
        self.assertRegex(text, r"shm\s.*in use", text)

    def test_tcp_is_used_across_network_namespaces(self):
        """Local sockets end at the network namespace, so tcp is used, and explain says why."""
        if os.geteuid() != 0 or subprocess.run(["ip", "netns", "list"], capture_output=True).returncode:
            self.skipTest("network namespaces need root and iproute2")
        names = [f"hetcomm-{os.getpid()}-n{i}" for i in range(2)]
        for i, name in enumerate(names):
            subprocess.run(["ip", "netns", "add", name], check=True)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0",
                        "netns", names[1]], check=True)
        for i, name in enumerate(names):
            subprocess.run(["ip", "-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "eth0"], check=True)
            for device in ("eth0", "lo"):
                subprocess.run(["ip", "-n", name, "link", "set", device, "up"], check=True)
        self.wait_until_up(names)
        ranks = self.job("traffic", 2, prefix=lambda rank: ["ip", "netns", "exec", names[rank]],
                         address="10.78.0.1")
        ranks[0].expect("RESULT traffic OK", 60)
        text = ""
        while True:
            line = ranks[0].lines.get(timeout=20)
            if line is None or line == "END":
                break
            text += line + "\n"
        self.assertRegex(text, r"tcp\s.*in use", text)
        self.assertRegex(text, r"shm\s+no: .*namespace", text)

    def test_killed_and_surviving_ranks_leave_no_files_or_processes(self):
        """This holds for killed ranks and for those that continue and destroy their communicators."""
        def names():
            # Other tests, which may run now, have folders of their own.
            return {name for folder in ("/dev/shm", "/tmp") for name in os.listdir(folder)
                    if "hetcomm" in name and not name.startswith(("hetcomm-test-", "hetcomm-bench-"))}

        every_kind = {"hetcomm", "hetcomm-collective", "hetcomm-memory"}
        for transport, survivors, files in (("shm", 2, every_kind), ("shm", 0, every_kind),
                                            ("tcp", 2, {"hetcomm-memory"})):
            with self.subTest(transport=transport, survivors=survivors):
                before = names()
                job = f"left-{os.getpid()}-{transport}-{survivors}"
                ranks = self.job("left", 3, TRANSPORTS=transport, JOB=job)
                for rank in ranks:
                    held = memory_of(rank.process.pid)
                    self.assertEqual(held, files, "what the test looks for")
                self.assertEqual(processes_of(job), {rank.process.pid for rank in ranks})
                for rank in ranks[survivors:]:
                    rank.process.kill()
                for rank in ranks[:survivors]:
                    self.assertIn("PEER_LOST", rank.expect("RESULT victim", 20))
                    rank.expect("DONE", 30)
                    folder = f"/proc/{rank.process.pid}"
                    self.assertEqual(memory_of(rank.process.pid), set())
                    links = {fd: os.readlink(f"{folder}/fd/{fd}") for fd in os.listdir(f"{folder}/fd")}
                    self.assertEqual(set(links), {"0", "1", "2"}, links)
                    self.assertEqual(len(os.listdir(f"{folder}/task")), 1, "threads")
                    rank.say()
                for rank in ranks:
                    rank.process.wait(timeout=20)
                self.assertEqual(processes_of(job), set())
                self.assertEqual(names() - before, set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
