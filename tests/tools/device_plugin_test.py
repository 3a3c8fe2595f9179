#!/usr/bin/env python3
"""A kind of device from a plug-in, as users of the tools see it.

Properties: hetcomm_info lists the device; hetcomm_bench moves its memory over shm and tcp, together with memory
of other kinds, and compares every byte; an invalid plug-in is named with the reason; if a plug-in ends the
process when it is loaded or makes a device, hetcomm_info names it, shows the rest and fails.

Usage: device_plugin_test.py HETCOMM_INFO HETCOMM_BENCH GOOD_PLUGIN BAD_PLUGIN [unittest options]
"""

import json
import os
import subprocess
import sys
import unittest

INFO, BENCH, GOOD, BAD = sys.argv[1:5]


def run(*command, **added):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HETCOMM_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False,
                          env={**clean, **added})


class Plugins(unittest.TestCase):
    def test_devices_of_a_plugin_are_listed(self):
        result = run(INFO, "--devices", "--format", "json", HETCOMM_DEVICE_PLUGINS=f"{GOOD},{BAD}",
                     HETCOMM_DEVICES="example,sim-handle,example")
        self.assertEqual(result.returncode, 0, result.stderr)
        kinds = [device["kind"] for device in json.loads(result.stdout)["devices"]]
        self.assertEqual(kinds, ["host", "example", "sim-handle", "example"])

    def test_memory_of_a_plugin_moves_over_every_transport(self):
        for memory in ("plugin:example", "host:plugin:example", "plugin:example:sim-address"):
            with self.subTest(memory):
                result = run(BENCH, "latency,bandwidth", "--memory", memory, "-e", "1M", "-f", "64",
                             "-n", "5", "--check", "--format", "json", HETCOMM_DEVICE_PLUGINS=GOOD)
                self.assertEqual(result.returncode, 0, result.stderr)
                rows = json.loads(result.stdout)["rows"]
                self.assertEqual({row["transport"] for row in rows}, {"shm", "tcp"})
                self.assertTrue(all(row["wrong"] == 0 for row in rows))
                self.assertTrue(all("example" in row["memory"] for row in rows))

    def test_staging_measures_the_requested_memory(self):
        for memory in ("plugin:example", "plugin:example:host"):
            with self.subTest(memory):
                result = run(BENCH, "staging", "--memory", memory, "-b", "1M", "-e", "1M",
                             "--transport", "shm", "--chunk", "auto", "-n", "5", "--format", "json",
                             HETCOMM_DEVICE_PLUGINS=GOOD)
                self.assertEqual(result.returncode, 0, result.stderr)
                row, = json.loads(result.stdout)["rows"]
                self.assertEqual(row["memory"].replace("plugin:", ""), memory.replace("plugin:", ""))
                self.assertGreater(row["copy_us"], 0)

    def test_error_for_an_unknown_kind_lists_the_known_ones(self):
        result = run(INFO, HETCOMM_DEVICES="acme:7", HETCOMM_DEVICE_PLUGINS=GOOD)
        self.assertEqual(result.returncode, 1)
        self.assertIn("HETCOMM_DEVICES: 'acme' is no kind of device; there are ", result.stderr)
        self.assertIn("example", result.stderr)

    def test_error_names_an_invalid_plugin_and_the_reason(self):
        for variables, text in (
                ({"HETCOMM_DEVICE_PLUGINS": "/nowhere/x.so"}, "/nowhere/x.so"),
                ({"HETCOMM_DEVICE_PLUGINS": BAD, "HETCOMM_TEST_WRONG": "version"}, "of version 2"),
                ({"HETCOMM_DEVICE_PLUGINS": BAD, "HETCOMM_TEST_WRONG": "fails", "HETCOMM_DEVICES": "bad"},
                 "the driver is older than the moon"),
                ({"HETCOMM_DEVICE_PLUGINS": GOOD, "HETCOMM_DEVICES": "example:speed=1"},
                 "'speed=1': it has no options")):
            with self.subTest(text):
                result = run(INFO, **variables)
                self.assertEqual(result.returncode, 1)
                self.assertIn(text, result.stderr)
                self.assertIn("ABI", result.stdout)

    def test_error_names_a_plugin_that_ends_the_process(self):
        result = run(INFO, HETCOMM_DEVICE_PLUGINS=f"{GOOD},{BAD}", HETCOMM_DEVICES="example",
                     HETCOMM_TEST_WRONG="crashes")
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"the plug-in {BAD} ends the process: Aborted", result.stderr)
        self.assertNotIn(f"the plug-in {GOOD} ", result.stderr)
        self.assertIn("transports", result.stdout)
        result = run(INFO, HETCOMM_DEVICE_PLUGINS=BAD, HETCOMM_DEVICES="bad",
                     HETCOMM_TEST_WRONG="crashes late")
        self.assertEqual(result.returncode, 1)
        self.assertIn("making 'bad' of HETCOMM_DEVICES ends the process", result.stderr)
        self.assertIn("transports", result.stdout)
        result = run(INFO, HETCOMM_DEVICE_PLUGINS=BAD, HETCOMM_TEST_WRONG="exits")
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"the plug-in {BAD} exits with status 0", result.stderr)
        self.assertIn("transports", result.stdout)
        # A job names it first.
        result = run(BENCH, "latency", "-e", "8", "-n", "1", HETCOMM_DEVICE_PLUGINS=BAD,
                     HETCOMM_TEST_WRONG="crashes", HETCOMM_LOG="info")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(f"loading the plug-in {BAD}", result.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[5:])
