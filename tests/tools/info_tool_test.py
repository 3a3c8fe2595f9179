#!/usr/bin/env python3
"""Runs hetcomm_info as its users do.

Properties: every variable that takes a number says in which unit and range, every choice names its
values; a transport that does not exist is refused where it is set; explain says of every transport
of the build why it may or may not be taken; a rank that does not exist is one error and no output.

Usage: info_tool_test.py PATH_OF_HETCOMM_INFO [unittest options]
"""

import json
import os
import subprocess
import sys
import unittest

INFO = ""
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def info(*words, **added):
    clean = {k: v for k, v in os.environ.items()
             if k not in LAUNCHER_VARIABLES and not k.startswith("HETCOMM_")}
    return subprocess.run([INFO, *words], capture_output=True, text=True, timeout=100,
                          env={**clean, **added})


class Variables(unittest.TestCase):
    def test_values_are_told(self):
        listed = json.loads(info("--variables", "--format", "json").stdout)["variables"]
        meaning = {row["name"]: row["meaning"] for row in listed}
        self.assertIn("caller|thread", meaning["HETCOMM_PROGRESS"])
        self.assertIn("500ms", meaning["HETCOMM_TIMEOUT"])
        self.assertIn("64K to 1G", meaning["HETCOMM_SHM_RING_BYTES"])
        self.assertIn("0 to 255", meaning["HETCOMM_RDMA_TRAFFIC_CLASS"])

    def test_wrong_values_are_refused_with_the_right_ones(self):
        for value, told in (("HETCOMM_TIMEOUT=abc", "500ms"), ("HETCOMM_RAILS=0", "1 to 64"),
                            ("HETCOMM_TRANSPORTS=shmm", "self, shm, rdma, tcp")):
            with self.subTest(value):
                name, text = value.split("=")
                result = info("--transports", **{name: text})
                self.assertEqual(result.returncode, 1, result.stdout)
                self.assertIn(name, result.stderr)
                self.assertIn(told, result.stderr)


class Transports(unittest.TestCase):
    def test_blanks_in_the_list_are_nothing(self):
        self.assertEqual(info("--transports", HETCOMM_TRANSPORTS="shm, tcp").returncode, 0)

    def test_what_is_usable_says_what_was_found(self):
        listed = json.loads(info("--transports", "--format", "json").stdout)["transports"]
        reason = {row["name"]: row["reason"] for row in listed}
        self.assertEqual(set(reason), {"self", "shm", "rdma", "tcp"})
        self.assertNotIn("success", reason["self"])
        self.assertNotIn(":0,", reason["tcp"] + ",")


class Explain(unittest.TestCase):
    def test_every_transport_is_named(self):
        for added in ({}, {"HETCOMM_TRANSPORTS": "tcp"}):
            with self.subTest(added):
                result = info("explain", **added)
                self.assertEqual(result.returncode, 0, result.stderr)
                for transport in ("shm", "rdma", "tcp"):
                    self.assertEqual(result.stdout.count(f"\n    {transport} "), 2, result.stdout)
                    self.assertNotIn(f"no: {transport}:", result.stdout)
                self.assertEqual(result.stdout.count("to rank 1:"), 1, result.stdout)

    def test_a_rank_that_is_not_there_is_one_error(self):
        result = info("explain", "--rank", "5")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("rank 5"), 1, result.stderr)

    def test_a_wrong_value_is_one_error(self):
        result = info("explain", HETCOMM_RAILS="0")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


if __name__ == "__main__":
    INFO = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
