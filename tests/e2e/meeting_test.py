"""How the ranks of a job connect next to remains of other jobs, and which error they get if they do not.

    meeting_test.py CREATION_RANK RING [TEST...]

CREATION_RANK makes a communicator and waits (creation_rank.cc); RING is examples/ring. Proves:
  * a job restarts under its old name and port, whether the old rank 0 still computes, is stopped, or ends a
    little later and frees its port;
  * a rank with a different secret ends with PERMISSION_DENIED long before its deadline, whatever the other ports
    of the range answer; rank 0 logs at once which rank it refused, and names it again at its own deadline;
  * strangers that are silent, speak HTTP or leave halfway do not end rank 0, and the job is created;
  * a rank 0 that cannot start reports the reason to the others;
  * the limit of open files is raised only if a job needs it, and all ranks get an error if it cannot be.
"""
import os
import resource
import signal
import socket
import sys
import tempfile
import time
import unittest

from rank_process import Rank, free_port

CREATION_RANK = RING = ""
LIMIT_S = 60


class MeetingTest(unittest.TestCase):
    def setUp(self):
        self.ranks = []
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith(("HETCOMM_", "SLURM_", "TORCHELASTIC_"))}
        self.environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), HETCOMM_LOG="info",
                                HETCOMM_SECRET="the secret of this test", HETCOMM_TRANSPORTS="tcp",
                                HETCOMM_BOOTSTRAP_TIMEOUT=f"{LIMIT_S}s", HETCOMM_SPIN_TIME="0")

    def tearDown(self):
        for rank in self.ranks:
            rank.end()

    def start(self, size, ranks=None, **settings):
        """Ranks that make their communicator and wait."""
        environment = dict(self.environment, **settings)
        started = [Rank([CREATION_RANK, str(rank), "1", str(size)], environment)
                   for rank in (range(size) if ranks is None else ranks)]
        self.ranks += started
        return started

    def ring(self, rank, size, limits=None, **settings):
        environment = dict(self.environment, RANK=str(rank), WORLD_SIZE=str(size), **settings)
        command = [RING]
        if limits is not None:
            command = ["prlimit", f"--nofile={limits[0]}:{limits[1]}", RING]
        self.ranks.append(Rank(command, environment))
        return self.ranks[-1]

    def made(self, ranks):
        # Each waits for a line once its bootstrap is there.
        for rank in ranks:
            rank.expect("ready", LIMIT_S)
            rank.say()
        for rank in ranks:
            rank.expect("created", LIMIT_S)

    def failed(self, rank):
        """Waits until the rank has ended with an error. Returns its output and the seconds."""
        rank.process.wait(LIMIT_S + 10)
        for reader in rank.readers:
            reader.join()
        self.assertNotEqual(rank.process.returncode, 0)
        lines = []
        while not rank.lines.empty():
            lines.append(rank.lines.get() or "")
        return "\n".join(lines + rank.errors)

    def old_job(self, **settings):
        old = self.start(3, HETCOMM_JOB="again", **settings)
        self.made(old)
        for rank in old[1:]:
            rank.process.kill()
        return old[0]

    def test_job_restarts_while_the_old_rank_0_computes(self):
        self.old_job()
        self.made(self.start(3, HETCOMM_JOB="again"))

    def test_job_without_a_secret_restarts_while_the_old_rank_0_computes(self):
        self.environment.pop("HETCOMM_SECRET")
        self.old_job()
        self.made(self.start(3, HETCOMM_JOB="again"))

    def test_job_restarts_while_the_old_rank_0_is_stopped(self):
        self.old_job().process.send_signal(signal.SIGSTOP)
        self.made(self.start(3, HETCOMM_JOB="again"))

    def test_job_restarts_once_the_old_rank_0_frees_the_only_port(self):
        port = {"HETCOMM_STORE_PORT": str(free_port())}
        old = self.old_job(**port)
        new = self.start(3, HETCOMM_JOB="again", **port)
        time.sleep(2)
        for rank in new:
            self.assertIsNone(rank.process.poll(), rank.errors)
        old.process.kill()
        self.made(new)

    def test_rank_with_a_different_secret_is_refused_early(self):
        begin = time.monotonic()
        zero = self.ring(0, 2, HETCOMM_BOOTSTRAP_TIMEOUT="12s")
        one = self.ring(1, 2, HETCOMM_SECRET="another secret than the test's")
        text = self.failed(one)
        self.assertLess(time.monotonic() - begin, LIMIT_S / 2)
        self.assertIn("permission denied", text.lower().replace("_", " "))
        self.assertIn("does not prove the job secret", text)
        warned = [line for line in zero.errors if "store: rejected 127.0.0.1:" in line]
        self.assertTrue(warned, zero.errors)
        self.assertIn("which says that it is rank 1: the peer has another job secret", warned[0])
        self.assertIsNone(zero.process.poll(), "rank 0 has ended because of a stranger")
        text = self.failed(zero)
        self.assertIn("permission denied", text.lower().replace("_", " "))
        self.assertIn("rank 1 of 2 did not join", text)
        self.assertIn("was turned away: the peer has another job secret", text)

    def test_job_starts_despite_a_thousand_unrelated_connections(self):
        zero, = self.start(2, [0])
        zero.expect("ready", LIMIT_S)
        zero.say()
        place = ("127.0.0.1", int(self.environment["MASTER_PORT"]))
        strangers = []
        for i in range(1000):
            stranger = socket.create_connection(place, timeout=LIMIT_S)
            if i % 10 == 1:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if i % 10 == 2:
                stranger.sendall(b"\x89hetcom\x01")
            if i % 10 == 3:
                stranger.close()
            strangers.append(stranger)
        one, = self.start(2, [1])
        one.expect("ready", LIMIT_S)
        one.say()
        for rank in (zero, one):
            rank.expect("created", LIMIT_S)
        for stranger in strangers:
            stranger.close()

    def tell_of_failure(self, text, **settings):
        begin = time.monotonic()
        one = self.ring(1, 3)
        zero = self.ring(0, 3, **settings)
        two = self.ring(2, 3)
        self.assertIn(text, self.failed(zero))
        for rank in (one, two):
            told = self.failed(rank)
            self.assertIn("rank 0 has failed at 127.0.0.1:", told)
            self.assertIn(text, told)
        self.assertLess(time.monotonic() - begin, LIMIT_S / 2)

    def test_missing_secret_file_of_rank_0_is_reported_to_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            self.environment["HETCOMM_SECRET_FILE"] = f"{folder}/none"
            self.tell_of_failure("HETCOMM_SECRET_FILE", HETCOMM_SECRET="")

    def test_missing_certificate_of_rank_0_is_reported_to_the_others(self):
        self.tell_of_failure("HETCOMM_TLS", HETCOMM_TLS="on", HETCOMM_TLS_CERTIFICATE="/nonexistent")

    def test_missing_interface_of_rank_0_is_reported_to_the_others(self):
        self.environment["MASTER_ADDR"] = "localhost"
        self.environment["HETCOMM_FAMILY"] = "ipv4"
        self.tell_of_failure("no network interface matches", HETCOMM_INTERFACE="10.255.255.255/32")

    def test_descriptor_limit_is_raised_if_a_job_needs_it(self):
        size = 40
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        ranks = [self.ring(rank, size, (48, min(hard, 20000) if hard > 0 else 20000)) for rank in range(size)]
        for rank in ranks:
            self.assertEqual(rank.process.wait(2 * LIMIT_S), 0, rank.errors)
            for reader in rank.readers:
                reader.join()
        raised = [line for line in ranks[0].errors if "the limit of open files (RLIMIT_NOFILE) is raised from 48" in line]
        self.assertEqual(len(raised), 1, ranks[0].errors)

    def test_descriptor_limit_that_cannot_be_raised_is_reported_to_all(self):
        for limits, settings in (((48, 48), {}), ((48, 20000), {"HETCOMM_RAISE_LIMITS": "off"})):
            begin = time.monotonic()
            size = 50
            ranks = [self.ring(rank, size, limits, **settings) for rank in range(size)]
            for rank in ranks:
                text = self.failed(rank)
                self.assertIn("ulimit -n ", text)
                self.assertIn("out of resources", text.lower().replace("_", " "))
            self.assertLess(time.monotonic() - begin, LIMIT_S / 2)


if __name__ == "__main__":
    CREATION_RANK, RING = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
