#!/usr/bin/env python3
"""Runs hetcomm_bench shortly, as its users do.

Properties: every format holds what it promises and --check finds every byte right; bad options end
with status 2 and a text that names them; a missing peer is named and costs only itself; no run
leaves a process behind, not even one that is interrupted; a rank that dies ends the run; a simulation of flows
confirms the choice of a resharding plan.

Usage: bench_tool_test.py PATH_OF_HETCOMM_BENCH [unittest options]
"""

import csv
import io
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

BENCH = ""
SHORT = ["-b", "8", "-e", "64K", "-f", "16", "--seconds", "0.002"]
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_SIZE", "PMIX_RANK",
                      "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "HETCOMM_TRANSPORTS")
FIELDS = ("test impl transport memory window bytes iterations min_us p50_us avg_us p99_us p999_us "
          "bandwidth_MBps wrong").split()


def environment(**added):
    clean = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
    return {**clean, "HETCOMM_PYTHON": sys.executable, **added}


def python_with_matplotlib():
    for python in (os.environ.get("HETCOMM_PYTHON"), sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if python and subprocess.run([python, "-c", "import matplotlib.figure"], capture_output=True).returncode == 0:
            return python
    raise unittest.SkipTest("no Python with matplotlib (python3-matplotlib)")


def bench(*words, env=None, timeout=120):
    return subprocess.run([BENCH, *words], capture_output=True, text=True, timeout=timeout,
                          env=env or environment())


def descendants_named(marker):
    """Processes whose environment has |marker|: those of one run."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


class Runs(unittest.TestCase):
    def run_ok(self, *words, **options):
        result = bench(*words, **options)
        self.assertEqual(result.returncode, 0, result.stderr + result.stdout)
        return result.stdout


class Formats(Runs):
    def test_json_has_every_field_and_no_wrong_byte(self):
        for test in ("latency", "bandwidth", "bibandwidth", "msgrate"):
            with self.subTest(test):
                document = json.loads(self.run_ok(test, *SHORT, "--check", "--format", "json"))
                self.assertLessEqual({"version", "host", "command", "peers"}, set(document["meta"]))
                self.assertTrue(document["rows"])
                for row in document["rows"]:
                    self.assertLessEqual(set(FIELDS), set(row))
                    self.assertEqual(row["wrong"], 0, row)
                    self.assertEqual(row["test"], test)
                    self.assertIsNone(row["progress"])  # as the environment says
                    self.assertGreater(row["avg_us"], 0)
                    self.assertLessEqual(row["min_us"], row["p50_us"])
                    self.assertLessEqual(row["p50_us"], row["p99_us"])
                    self.assertLessEqual(row["p99_us"], row["p999_us"])
                transports = {row["transport"] for row in document["rows"]}
                self.assertEqual(transports, {"shm", "tcp"})

    def test_collective_operations_give_the_right_bytes(self):
        in_place = {"allreduce", "reduce_scatter", "allgather"}
        tests = in_place | {"alltoall", "broadcast", "reduce", "barrier"}
        for transport in ("shm", "tcp"):
            with self.subTest(transport):
                rows = json.loads(self.run_ok("collectives", *SHORT, "--ranks", "3", "--transport",
                                              transport, "--format", "json"))["rows"]
                self.assertEqual({row["test"] for row in rows}, tests)
                for row in rows:
                    self.assertEqual(row["wrong"], 0, row)
                    self.assertGreater(row["avg_us"], 0)
                    self.assertEqual(row["in_place_wrong"], 0 if row["test"] in in_place else None)
                    if row["test"] == "alltoall":
                        self.assertEqual(row["bytes"] % 12, 0)  # a part for each rank

    def test_collective_table_has_both_bandwidths(self):
        table = self.run_ok("allreduce", "-b", "1M", "-e", "1M", "--ranks", "4", "--seconds",
                            "0.002", "--transport", "shm")
        names, row = [line.split() for line in table.splitlines() if line.strip()][-2:]
        self.assertEqual(names[-1], "#wrong")
        self.assertEqual(row[2:6], ["262144", "float", "sum", "-1"], table)
        # 2 (n - 1) / n of the size crosses the busiest link.
        self.assertAlmostEqual(float(row[8]) / float(row[7]), 1.5, delta=0.05)

    def test_one_sided_operations_move_the_right_bytes(self):
        tests = {"put_latency", "put_bandwidth", "put_notify_latency", "put_notify_bandwidth",
                 "get_latency", "get_bandwidth", "fetch_add_latency", "fetch_add_rate"}
        for transport, path in (("shm", "direct"), ("tcp", "message")):
            with self.subTest(transport):
                rows = json.loads(self.run_ok("put,put_notify,get,fetch_add", *SHORT, "--check",
                                              "--window", "4", "--transport", transport,
                                              "--format", "json"))["rows"]
                self.assertEqual({row["test"] for row in rows}, tests)
                for row in rows:
                    self.assertEqual(row["wrong"], 0, row)
                    self.assertEqual((row["transport"], row["path"]), (transport, path), row)
                    self.assertEqual(row["window"], 1 if row["test"].endswith("latency") else 4)
                    self.assertGreater(row["avg_us"], 0)
                    if row["test"].startswith("fetch_add"):
                        self.assertEqual(row["bytes"], 8)

    def test_one_sided_operations_of_any_size_move_data_intact(self):
        rows = json.loads(self.run_ok("put_latency", "-b", "1", "-e", "70001", "-f", "2.3",
                                      "--seconds", "0.001", "--check", "--format", "json"))["rows"]
        self.assertGreater(len(rows), 20)
        self.assertTrue(all(row["wrong"] == 0 for row in rows), rows)

    def test_one_sided_operations_with_a_progress_thread_move_data_intact(self):
        rows = json.loads(self.run_ok("put,get,put_notify_latency", *SHORT, "--check", "--progress",
                                      "thread", "--format", "json"))["rows"]
        self.assertTrue(all(row["wrong"] == 0 for row in rows), rows)

    def test_one_sided_operations_on_device_memory_move_data_intact(self):
        for memory in ("sim-handle", "host:sim-address"):
            with self.subTest(memory):
                rows = json.loads(self.run_ok("put_bandwidth,get_latency,put_notify", "-b", "8",
                                              "-e", "1M", "-f", "64", "--seconds", "0.002",
                                              "--window", "4", "--memory", memory, "--check",
                                              "--format", "json"))["rows"]
                self.assertTrue(all(row["wrong"] == 0 and row["memory"] == memory for row in rows))

    def test_staging_is_measured_by_chunk(self):
        env = environment(HETCOMM_DEVICES="sim-handle:bandwidth=200M")
        rows = json.loads(self.run_ok("staging", "-b", "1M", "-e", "1M", "--chunk", "64K,256K",
                                      "--window", "2", "--transport", "shm", "--check", "--format",
                                      "json", env=env))["rows"]
        self.assertEqual([row["chunk"] for row in rows], [65536, 262144])
        for row in rows:
            self.assertEqual((row["wrong"], row["memory"]), (0, "sim-handle"))
            # 2^20 bytes at 200 * 2^20 a second: neither can be faster than the device.
            self.assertGreaterEqual(row["copy_us"], 4900)
            self.assertGreaterEqual(row["avg_us"], 4900)
            self.assertGreater(row["wire_us"], 0)
            self.assertLess(row["forecast_MBps"], 2**20 / row["copy_us"])
            self.assertGreater(row["processor_us"], 0)
            self.assertGreater(row["of_cores_percent"], 0)

    def test_staged_collectives_are_measured(self):
        rows = json.loads(self.run_ok("staged_allreduce,staged_allgather", "-b", "1M", "-e", "1M",
                                      "--chunk", "auto", "--transport", "shm", "--memory",
                                      "sim-handle", "--seconds", "0.02", "--format",
                                      "json"))["rows"]
        self.assertEqual([row["test"] for row in rows], ["staged_allreduce", "staged_allgather"])
        for row in rows:
            self.assertEqual((row["wrong"], row["in_place_wrong"], row["window"]), (0, 0, 1))
            self.assertGreater(row["copy_us"], 0)
            self.assertGreater(row["wire_us"], 0)
            self.assertGreater(row["of_cores_percent"], 0)
            self.assertIsNone(row["forecast_MBps"])

    def test_staging_is_measured_by_depth(self):
        env = environment(HETCOMM_DEVICES="sim-handle:bandwidth=200M")
        rows = json.loads(self.run_ok("staging", "-b", "1M", "-e", "1M", "--chunk", "64K",
                                      "--depth", "1,auto", "--window", "1", "--transport", "shm",
                                      "--check", "--format", "json", env=env))["rows"]
        self.assertEqual([(row["depth"], row["wrong"]) for row in rows], [(1, 0), (None, 0)])

    def test_transports_and_rails_are_measured_in_turn(self):
        document = json.loads(self.run_ok("latency", *SHORT, "--transport", "shm,tcp",
                                          "--interleave", "--rounds", "3", "--format", "json"))
        ratios = document["meta"]["comparison"]["ratios"]
        self.assertEqual([(r["peer"], r["transport"], r["bytes"], r["rounds"]) for r in ratios],
                         [("hetcomm/tcp", "shm", size, 3) for size in (8, 128, 2048, 32768)])
        for ratio in ratios:
            # So lies the quotient of two medians of an odd number of rounds, too.
            for each in (ratio["ratio"], ratio["peer_value"] / ratio["hetcomm"]):
                self.assertGreaterEqual(each, 0.999 * ratio["smallest"])
                self.assertLessEqual(each, 1.001 * ratio["largest"])
        self.assertEqual([(row["impl"], row["transport"]) for row in document["rows"]],
                         [("hetcomm", "shm")] * 4 + [("hetcomm/tcp", "tcp")] * 4)
        text = self.run_ok("bandwidth", *SHORT, "--transport", "tcp", "--rails", "2,1",
                           "--interleave", "--rounds", "2")
        self.assertIn("at most 2 rails", text)
        self.assertIn("hetcomm/tcp, rails 1", text)

    def test_pinned_and_pageable_chunks_are_measured_in_turn(self):
        arguments = ("bandwidth", "-b", "64K", "-e", "64K", "-n", "5", "--transport", "shm", "--memory",
                     "sim-address:sim-handle", "--staging-memory", "pinned,pageable", "--check")
        text = self.run_ok(*arguments)
        for kind in ("pinned", "pageable"):
            self.assertIn(f"staged through {kind} memory", text)
        rows = json.loads(self.run_ok(*arguments, "--interleave", "--rounds", "2", "--format", "json"))["rows"]
        self.assertEqual([(row["impl"], row["staging_memory"], row["wrong"]) for row in rows],
                         [("hetcomm", "pinned", 0), ("hetcomm/shm, pageable", "pageable", 0)])

    def test_plain_pointers_to_any_memory_are_measured(self):
        for memory in ("host", "sim-address"):
            rows = json.loads(self.run_ok("pointer_latency", "-n", "5", "--transport", "shm", "--memory", memory,
                                          "--format", "json"))["rows"]
            self.assertEqual([(row["test"], row["memory"]) for row in rows], [("pointer_latency", memory)])
            self.assertTrue(all(0.1 < row["avg_us"] < 10_000 for row in rows))

    def test_messages_in_stream_order_are_measured(self):
        for memory in ("sim-address", "sim-handle:sim-address"):
            rows = json.loads(self.run_ok(
                "latency,bandwidth,bibandwidth,msgrate,post_latency", "-b", "8", "-e", "8", "-n", "20", "--ranks", "2",
                "--transport", "shm", "--memory", memory, "--stream", "--check", "--format", "json"))["rows"]
            self.assertEqual([(row["test"], row["stream"], row["progress"], row["wrong"]) for row in rows],
                             [("latency", True, "thread", 0), ("bandwidth", True, "thread", 0),
                              ("bibandwidth", True, "thread", 0), ("msgrate", True, "thread", 0),
                              ("post_latency", True, "thread", None)])
            self.assertTrue(all(row["avg_us"] > 0 for row in rows))
        text = self.run_ok("post_latency", "--memory", "sim-handle", "--transport", "tcp", "-n", "50")
        self.assertIn("in the order of a stream", text)

    def test_collectives_on_device_memory_give_correct_results(self):
        for stream in ((), ("--stream",)):
            rows = json.loads(self.run_ok("collectives", "-b", "120000", "-e", "120000", "--ranks", "3", "--seconds",
                                          "0.005", "--transport", "shm", "--memory", "sim-handle:sim-address",
                                          *stream, "--format", "json"))["rows"]
            self.assertEqual(len(rows), 7)
            self.assertEqual({(row["wrong"], row["memory"]) for row in rows}, {(0, "sim-handle:sim-address")})
            self.assertEqual({row["in_place_wrong"] for row in rows} - {None}, {0})

    def test_algorithms_are_measured_in_turn(self):
        document = json.loads(self.run_ok("allgather", "-b", "4K", "-e", "4K", "--ranks", "3",
                                          "--algorithm", "chosen,ring,pairwise", "--interleave",
                                          "--transport", "shm", "--seconds", "0.005", "--rounds",
                                          "2", "--format", "json"))
        self.assertEqual([(row["impl"], row["algorithm"], row["wrong"])
                          for row in document["rows"]],
                         [("hetcomm", "chosen", 0), ("hetcomm/shm, ring", "ring", 0),
                          ("hetcomm/shm, pairwise", "pairwise", 0)])
        result = bench("allgather", *SHORT, "--algorithm", "clever")
        self.assertEqual(result.returncode, 1)
        self.assertIn("pairwise, ring, two_level", result.stderr)

    def test_bandwidth_is_bytes_over_time(self):
        rows = json.loads(self.run_ok("bandwidth", *SHORT, "--window", "4", "--transport", "shm",
                                      "--format", "json"))["rows"]
        self.assertEqual([row["bytes"] for row in rows], [8, 128, 2048, 32768])
        for row in rows:
            self.assertEqual(row["window"], 4)
            self.assertEqual(row["iterations"] % 4, 0)
            self.assertAlmostEqual(row["bandwidth_MBps"], row["bytes"] / row["avg_us"],
                                   delta=row["bandwidth_MBps"] * 1e-3)

    def test_requested_number_of_iterations_is_run(self):
        rows = json.loads(self.run_ok("latency", "-b", "8", "-e", "8", "-n", "123", "-w", "0",
                                      "--transport", "shm", "--format", "json"))["rows"]
        self.assertEqual(rows[0]["iterations"], 123)

    def test_csv_has_the_fields_of_json(self):
        lines = list(csv.DictReader(io.StringIO(self.run_ok("latency", *SHORT, "--format", "csv"))))
        self.assertEqual(len(lines), 8)
        for line in lines:
            self.assertLessEqual(set(FIELDS), set(line))
            self.assertGreater(float(line["avg_us"]), 0)

    def test_table_describes_the_measurement(self):
        text = self.run_ok("latency", *SHORT, "--check")
        for words in ("one way", "t_typical[usec]", "99.9%[usec]", "transport", "path", "#wrong"):
            self.assertIn(words, text)

    def test_osu_table_has_two_columns(self):
        text = self.run_ok("latency", *SHORT, "--transport", "shm", "--format", "osu")
        self.assertIn("# Size", text)
        figures = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
        self.assertEqual([int(line[0]) for line in figures], [8, 128, 2048, 32768])
        self.assertTrue(all(float(line[1]) > 0 for line in figures))

    def test_output_and_plot_are_written_to_files(self):
        env = environment(HETCOMM_PYTHON=python_with_matplotlib())
        with tempfile.TemporaryDirectory() as folder:
            output, plot = f"{folder}/r.json", f"{folder}/r.svg"
            text = self.run_ok("latency,bandwidth", *SHORT, "--format", "json", "-o", output,
                               "--plot", plot, env=env)
            self.assertEqual(text, "")
            self.assertEqual(len(json.loads(pathlib.Path(output).read_text())["rows"]), 16)
            root = xml.etree.ElementTree.parse(plot).getroot()
            drawn = {group.get("id") for group in root.iter("{http://www.w3.org/2000/svg}g")}
            self.assertLessEqual({f"{test} hetcomm {transport}" for test in ("latency", "bandwidth")
                                  for transport in ("shm", "tcp")}, drawn)

    def test_unwritable_file_is_refused_before_the_measurement(self):
        with tempfile.TemporaryDirectory() as folder:
            for option in ("--plot", "-o"):
                started = time.monotonic()
                done = bench("latency", "-b", "8", "-e", "8", "--seconds", "100", option,
                             f"{folder}/missing/r")
                self.assertEqual(done.returncode, 1)
                self.assertIn("cannot write", done.stderr)
                self.assertLess(time.monotonic() - started, 60)
            kept = pathlib.Path(folder, "kept")
            kept.write_text("old")
            done = bench("latency", "-b", "8", "-e", "8", "-o", str(kept), "--plot",
                         f"{folder}/missing/r")
            self.assertEqual(done.returncode, 1)
            self.assertEqual(kept.read_text(), "old")

    def test_overlap_is_measured_in_both_progress_modes(self):
        rows = json.loads(self.run_ok("overlap", "-b", "64K", "-e", "256K", "--transport", "shm",
                                      "--seconds", "0.01", "--check", "--format", "json"))["rows"]
        self.assertEqual({row["progress"] for row in rows}, {"caller", "thread"})
        for row in rows:
            self.assertEqual(row["wrong"], 0)
            self.assertGreater(row["idle_us"], 0)
            self.assertGreater(row["compute_us"], 0)

    def test_messages_in_device_memory_arrive_intact(self):
        for memory in ("sim-handle", "sim-address", "host:sim-handle", "sim-address:host"):
            with self.subTest(memory):
                rows = json.loads(self.run_ok("bandwidth", *SHORT, "--memory", memory, "--check",
                                              "--format", "json"))["rows"]
                self.assertTrue(all(row["wrong"] == 0 and row["memory"] == memory for row in rows))

    def test_five_ranks_exchange_correct_data(self):
        rows = json.loads(self.run_ok("msgrate", "--ranks", "5", "-b", "8", "-e", "1K", "-f", "128",
                                      "--seconds", "0.005", "--check", "--format", "json"))["rows"]
        self.assertTrue(all(row["ranks"] == 5 and row["wrong"] == 0 for row in rows))

    def test_empty_messages_are_measured(self):
        rows = json.loads(self.run_ok("latency,bandwidth", "-b", "0", "-e", "1", "--check",
                                      "--seconds", "0.002", "--format", "json"))["rows"]
        self.assertEqual({row["bytes"] for row in rows}, {0, 1})


class Pipelines(Runs):
    def run_pipeline(self, *words):
        text = self.run_ok("pipeline", "--micro-batches", "6,12", "--rounds", "2", "--format", "json", *words)
        return {row["schedule"]: row for row in json.loads(text)}

    def test_every_schedule_is_measured_beside_its_forecast(self):
        names = ["gpipe", "1f1b", "eager-1f1b", "virtual-1f1b", "h-1f1b", "looped-bfs", "interleaved-1f1b",
                 "interleaved-zb", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "four-phase", "forward-only"]
        rows = self.run_pipeline("--schedules", ",".join(names), "--stage-ms", "1")
        self.assertEqual(list(rows), names)
        for name, row in rows.items():
            with self.subTest(name):
                self.assertEqual((row["ranks"], len(row["times_us"])), (2, 2))
                # Each rank sleeps so long for a micro-batch; forward-only leaves the gradients out.
                asked_us = 1000 / 3 if name == "forward-only" else 1000
                self.assertGreater(row["forecast_us"], 0.99 * asked_us)
                for runs, time in zip(row["runs_us"], row["times_us"]):
                    for micro_batches, run in zip((6, 12), runs):
                        self.assertGreater(run, micro_batches * 0.99 * asked_us)
                    self.assertAlmostEqual(time, (runs[1] - runs[0]) / 6)
                # No run is simulated as shorter than the steps of one rank.
                self.assertEqual(len(row["replayed_runs_us"]), 2)
                for runs in row["replayed_runs_us"]:
                    for micro_batches, run in zip((6, 12), runs):
                        self.assertGreater(run, micro_batches * 0.99 * asked_us)
                slopes = [(runs[1] - runs[0]) / 6 for runs in row["replayed_runs_us"]]
                self.assertAlmostEqual(row["replayed_us"], statistics.median(slopes))
                self.assertGreater(row["latency_us"], 0)
                self.assertGreaterEqual(row["in_flight"], 1)

    def test_pipeline_without_computation_has_a_forecast_of_zero(self):
        rows = self.run_pipeline("--schedules", "1f1b", "--compute", "none", "--ranks", "3")
        self.assertEqual(rows["1f1b"]["ranks"], 3)
        self.assertEqual(rows["1f1b"]["forecast_us"], 0)
        self.assertEqual((rows["1f1b"]["replayed_us"], rows["1f1b"]["replayed_runs_us"]), (0, []))

    def test_requested_window_and_item_size_are_used(self):
        rows = self.run_pipeline("--schedules", "1f1b", "--stage-ms", "0.5", "--window", "5", "-b", "64K")
        self.assertEqual((rows["1f1b"]["in_flight"], rows["1f1b"]["item_bytes"]), (5, 65536))
        self.assertIn("forecast", self.run_ok("pipeline", "--micro-batches", "2,4", "--rounds", "1", "--stage-ms",
                                              "0.1"))


    def test_plot_has_every_schedule(self):
        env = environment(HETCOMM_PYTHON=python_with_matplotlib())
        with tempfile.TemporaryDirectory() as folder:
            plot = f"{folder}/p.svg"
            self.run_ok("pipeline", "--micro-batches", "2,4", "--rounds", "1", "--stage-ms", "0.1", "--schedules",
                        "1f1b,zb-h1", "--plot", plot, env=env)
            root = xml.etree.ElementTree.parse(plot).getroot()
            drawn = {each.get("id") for each in root.iter()}
            self.assertLessEqual({"1f1b measured", "zb-h1 measured"}, drawn)


class Simulation(Runs):
    def test_auto_is_within_five_percent_of_the_best_plan(self):
        """The simulation of flows knows nothing of the forecasts by which auto chooses."""
        cases = ["16x1:1x16", "8x2:4x4", "4x4:2x2r4", "2x2p4:4x4", "1x1:1x1r16"]
        rows = json.loads(self.run_ok("reshard", "--simulate", "--cases", ",".join(cases), "--format",
                                      "json"))
        plans = {}
        for row in rows:
            plans.setdefault((row["scenario"], row["layouts"]), {})[row["strategy"]] = row
        self.assertEqual(len(plans), 7 * len(cases))
        slowest = 0
        for where, plan in plans.items():
            with self.subTest(where):
                times = {strategy: row["median_us"] for strategy, row in plan.items()
                         if "refused" not in row and "barred" not in row}
                best = min(time for strategy, time in times.items() if strategy != "auto")
                self.assertGreater(best, 0)
                self.assertLessEqual(times["auto"], 1.05 * best, times)
                slowest = max(slowest, max(times.values()) / best)
        self.assertGreater(slowest, 1.3, "strategies that all take the same time tell nothing")


class Overlap(Runs):
    """Rates, which other work of the machine changes."""

    def test_copies_and_wire_overlap(self):
        """One after the other, copies out and in would be half of the slower one's rate."""
        env = environment(HETCOMM_DEVICES="sim-handle:bandwidth=200M")
        best = 0
        for _ in range(4):  # others may be busy here
            row, = json.loads(self.run_ok("staging", "-b", "4M", "-e", "4M", "--window", "1",
                                          "--chunk", "auto", "--transport", "shm", "--format",
                                          "json", env=env))["rows"]
            self.assertIsNone(row["chunk"])
            self.assertGreater(row["chunk_bytes"], 0)
            self.assertLessEqual(row["chunk_bytes"], 2**19)
            self.assertGreater(row["forecast_MBps"], 0)
            best = max(best, row["of_slower_percent"])
            if best >= 80:
                break
        self.assertGreaterEqual(best, 80)

    def test_single_chunk_does_not_overlap(self):
        env = environment(HETCOMM_DEVICES="sim-handle:bandwidth=200M")
        row, = json.loads(self.run_ok("staging", "-b", "1M", "-e", "1M", "--chunk", "64K",
                                      "--depth", "1", "--window", "1", "--transport", "shm",
                                      "--format", "json", env=env))["rows"]
        self.assertLess(row["of_slower_percent"], 70)


class Hosts(unittest.TestCase):
    TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "two-hosts"

    def setUp(self):
        if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
            self.skipTest("network namespaces need root, ip and tc")
        probe = f"hetcomm-probe-{os.getpid()}"
        made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
        if made.returncode:
            self.skipTest(f"no network namespaces: {made.stderr.strip()}")
        subprocess.run(["ip", "netns", "del", probe], check=True)

    def run_tool(self, *words, **added):
        process = subprocess.Popen([self.TOOL, *words], stdout=subprocess.PIPE, text=True,
                                   stderr=subprocess.PIPE, env=environment(**added))
        out, errors = process.communicate(timeout=120)
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        self.assertNotIn(f"hetcomm-{process.pid}-", left)
        return process.returncode, out, errors


class Links(Hosts):
    @staticmethod
    def namespaces():
        """Those of links, with the process that made each."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        return [(name, int(maker)) for name, maker in re.findall(r"(hetcomm-(\d+)-\d+-[hw]\S*)", listed)]

    def left_over(self):
        """Those whose maker has gone. Other tests may have some of their own meanwhile."""
        return [name for name, maker in self.namespaces() if not pathlib.Path(f"/proc/{maker}").exists()]

    def test_pipelines_are_measured_over_every_link(self):
        """The delay shows in the latency, and the rate in the time that the link is busy."""
        done = bench("pipeline", "--delays", "0,3", "--rates", "0,40", "--micro-batches", "2,4", "--rounds", "2",
                     "--stage-ms", "1", "--schedules", "1f1b,h-1f1b", "--ranks", "4", "-b", "200K", "--format", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)
        self.assertEqual([(row["delay_ms"], row["rate_mbit"], row["schedule"]) for row in rows],
                         [(delay, rate, name) for rate in (0, 40) for delay in (0, 3) for name in ("1f1b", "h-1f1b")])
        for row in rows:
            self.assertEqual((row["ranks"], len(row["times_us"]), len(row["replayed_runs_us"])), (4, 2, 2))
            if row["delay_ms"]:
                self.assertGreater(row["latency_us"], 3000)
            if row["rate_mbit"]:
                # A burst of 128 KiB passes at once, and is there again after 26 ms without traffic.
                self.assertGreater(row["busy_us"], (200 - 128) * 1024 * 8 / 40)
        self.assertEqual(self.left_over(), [])

    def test_table_has_a_line_for_each_link_and_schedule(self):
        done = bench("pipeline", "--delays", "2", "--micro-batches", "2,4", "--rounds", "1", "--stage-ms", "1",
                     "--schedules", "1f1b,gpipe")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual([line.split()[:3] for line in lines[-2:]], [["2", "-", "1f1b"], ["2", "-", "gpipe"]])
        self.assertEqual(lines[-3].split()[:3], ["delay", "rate", "schedule"])

    def test_interrupted_run_leaves_no_namespace_and_no_process(self):
        for number in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(number):
                marker = f"HETCOMM_BENCH_TEST_RUN={os.getpid()}-{number}"
                env = environment(HETCOMM_BENCH_TEST_RUN=marker.partition("=")[2])
                run = subprocess.Popen([BENCH, "pipeline", "--delays", "1,2", "--rounds", "50", "--schedules", "1f1b"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
                deadline = time.monotonic() + 30
                made = []
                while len(made) < 6 and time.monotonic() < deadline:
                    time.sleep(0.1)
                    makers = descendants_named(marker)
                    made = [name for name, maker in self.namespaces() if maker in makers]
                self.assertEqual(len(made), 6)
                run.send_signal(number)
                run.wait(timeout=30)
                while (self.left_over() or descendants_named(marker)) and time.monotonic() < deadline:
                    time.sleep(0.1)
                self.assertEqual((self.left_over(), descendants_named(marker)), ([], []))

    def test_failure_of_a_rank_is_reported(self):
        done = bench("pipeline", "--delays", "1", "--schedules", "nothing", "--rounds", "1")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("nothing", done.stderr)


class TwoHosts(Hosts):
    def test_missing_requirements_are_named(self):
        self.assertEqual(subprocess.run([self.TOOL, "--help"], capture_output=True).returncode, 0)
        self.assertEqual(subprocess.run([self.TOOL], capture_output=True).returncode, 2)
        with open(self.TOOL) as script:
            nobody = subprocess.run(["bash", "-s", "--", "true"], stdin=script, user=65534,
                                    capture_output=True, text=True)
        self.assertEqual(nobody.returncode, 1)
        self.assertIn("need root", nobody.stderr)

    def test_two_level_collectives_over_multi_rank_clusters_give_correct_data(self):
        status, out, errors = self.run_tool(
            "--ranks", "2", BENCH, "allreduce,alltoall", "-b", "4K", "-e", "4K", "--algorithm",
            "two_level", "--transport", "auto", "--seconds", "0.005", "--format", "json")
        self.assertEqual(status, 0, errors)
        self.assertEqual([(row["ranks"], row["wrong"]) for row in json.loads(out)["rows"]],
                         [(4, 0)] * 2)

    def test_exit_status_is_that_of_the_ranks(self):
        for command, expected in (("exit 0", 0), ("exit $((RANK * 7))", 7), ("exit 3", 3)):
            self.assertEqual(self.run_tool("bash", "-c", command)[0], expected, command)


class SlowWire(Hosts):
    """Rates, which other work of the machine changes."""

    def test_copies_and_a_slow_wire_overlap(self):
        best = 0
        for _ in range(4):  # others may be busy here
            status, out, errors = self.run_tool(
                "--rate", "1000", BENCH, "staging", "-b", "4M", "-e", "4M", "--window", "1",
                "--chunk", "auto", "--transport", "tcp", "--format", "json",
                HETCOMM_DEVICES="sim-handle:bandwidth=120M")
            self.assertEqual(status, 0, errors)
            row, = json.loads(out)["rows"]
            self.assertLess(row["bytes"] / row["wire_us"], 130)  # the link is as slow as that
            best = max(best, row["of_slower_percent"])
            if best >= 75:
                break
        # A third, were it one after the other.
        self.assertGreaterEqual(best, 75)


class Usage(unittest.TestCase):
    def test_errors_name_the_invalid_option(self):
        cases = {
            ("latnecy",): "latnecy",
            ("latency", "--no-such-option"): "--no-such-option",
            ("latency", "-b", "many"): "many",
            ("latency", "-b", "2K", "-e", "1K"): "2K",
            ("latency", "-e", "8G"): "2G",
            ("latency", "-f", "1"): "-f",
            ("latency", "-n", "0"): "--iterations",
            ("latency", "--memory", "disk"): "disk",
            ("latency", "--format", "xml"): "xml",
            ("latency", "--bind", "socket"): "socket",
            ("latency", "--progress", "magic"): "magic",
            ("latency", "--compare", "nccl"): "nccl",
            ("latency", "--compare", "mpi", "--peer", "gloo=/x"): "gloo=/x",
            ("overlap", "--memory", "host:sim-handle"): "overlap",
            ("put", "--memory", "sim-handle"): "put_latency",
            ("fetch_add", "--memory", "host:sim-address"): "fetch_add",
            ("put", "-b", "0"): "put_latency",
            ("staging", "--memory", "sim-address"): "sim-handle",
            ("staging", "--chunk", "64K,some"): "some",
            ("staging", "--chunk", "1K"): "4K to 1G",
            ("staging", "--depth", "17"): "17",
            ("latency", "--rails", "0"): "0",
            ("bandwidth", "--staging-memory", "pined"): "pinned",
            ("latency", "--memory", "opencl:x"): "x",
            ("latency", "--stream"): "--memory",
            ("post_latency", "--memory", "host:sim-handle"): "both sides",
            ("put_latency", "--stream"): "put_latency",
            ("latency", "--stream", "--memory", "sim-handle", "--progress", "caller"): "thread",
            ("latency", "--stream", "--memory", "sim-handle", "--compare", "mpi"): "--compare",
            ("latency", "--algorithm", "ring"): "latency is none",
            ("allreduce", "--algorithm", "ring", "--compare", "mpi"): "--compare",
            ("latency", "--transport", "tcp", "--interleave"): "--interleave",
            ("latency", "--rails", "1,2", "--interleave", "--compare", "mpi"): "--compare",
            ("latency", "somewhere", "--listen"): "--listen",
            ("latency", "somewhere", "--compare", "mpi"): "--compare",
            ("latency", "--ranks", "1"): "--ranks",
            ("latency", "--transport", "shm,pigeon"): "pigeon",
            ("latency,links",): "links is measured alone",
            ("queue", "--format", "csv"): "csv",
            ("latency", "--pattern", "stream"): "are for queue",
            ("queue", "--pattern", "stream", "--weights", "3,1"): "--weights",
            ("queue", "--ratios", "0.5,1000"): "--ratios",
            ("latency", "--cases", "1x1:1x1"): "are for reshard",
            ("latency", "--schedules", "1f1b"): "are for pipeline",
            ("pipeline", "--ratios", "2"): "are for queue",
            ("pipeline", "--compute", "timer,burn"): "one --compute",
            ("queue", "--compute", "none"): "--compute none is for pipeline",
            ("pipeline", "--micro-batches", "9,9"): "--micro-batches",
            ("pipeline", "--micro-batches", "9"): "--micro-batches",
            ("pipeline", "--compare", "mpi"): "with torch only",
            ("pipeline", "--compare", "torch,mpi"): "with torch only",
            ("pipeline", "--compare", "torch", "--compute", "burn"): "--compute timer",
            ("latency", "--compare", "torch"): "for pipeline",
            ("queue", "--compare", "torch"): "for pipeline",
            ("latency", "--delays", "1"): "are for pipeline",
            ("pipeline", "--delays", "-1"): "--delays",
            ("pipeline", "--delays", "1", "--transport", "shm"): "over tcp",
            ("pipeline", "--compare", "torch", "--transport", "tcp"): "takes no --transport",
            ("pipeline", "--rates", "fast"): "--rates",
            ("reshard", "--cases", "1x1:1x1,4x"): "4x",
            ("reshard", "--strategies", "direct,leadr"): "did you mean 'leader'",
            ("latency", "here", "there"): "there",
        }
        for words, named in cases.items():
            with self.subTest(words):
                result = bench(*words)
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(named, result.stderr)
                self.assertEqual(result.stdout, "")

    def test_typo_suggests_the_nearest_word(self):
        for words, told in ((("latnecy",), "'latency'"), (("all_reduce",), "'allreduce'"),
                            (("latency", "--compair", "mpi"), "'--compare'"),
                            (("latency", "--format", "jsn"), "'json'"),
                            (("latency", "--transport", "tpc"), "'tcp'")):
            with self.subTest(words):
                self.assertIn(f"did you mean {told}?", bench(*words).stderr)
        self.assertNotIn("did you mean", bench("latency", "--format", "parquet").stderr)

    def test_options_are_accepted_in_any_order_and_in_short_form(self):
        for words in (("--transport", "shm,tcp", "latency"), ("latency", "--transport=shm,tcp"),
                      ("--transport", "shm", "--transport", "tcp", "latency")):
            with self.subTest(words), tempfile.TemporaryDirectory() as folder:
                output = pathlib.Path(folder, "rows")
                result = bench(*words, "-b", "8", "-e", "64", "-f", "8", "-n", "3", "-w", "1", "--format", "json",
                               "-o", str(output))
                self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
                self.assertEqual([(row["transport"], row["bytes"], row["iterations"])
                                  for row in json.loads(output.read_text())["rows"]],
                                 [("shm", 8, 3), ("shm", 64, 3), ("tcp", 8, 3), ("tcp", 64, 3)])

    def test_help_has_every_section(self):
        text = bench("--help").stdout
        for section in ("SYNOPSIS", "TESTS", "OPTIONS", "OUTPUT", "ENVIRONMENT", "EXIT STATUS",
                        "EXAMPLES"):
            self.assertIn(section, text)
        self.assertTrue(all(len(line) <= 84 for line in text.splitlines()))
        for option in ("-b,--begin", "-e,--end", "-f,--factor", "-n,--iterations", "-w,--warmup", "--seconds",
                       "--window", "--ranks", "--transport", "--nic", "--memory", "--chunk", "--depth",
                       "--staging-memory", "--rails", "--algorithm", "--interleave", "--progress", "--stream", "--bind",
                       "--check", "--listen", "-p,--port", "--compare", "--rounds", "--peers", "--peer", "--pattern",
                       "--compute", "--warmups", "--ratios", "--weights", "--schedules", "--stage-ms", "--micro-batches", "--cases", "--strategies", "--slice",
                       "--simulate", "--format", "-o,--output", "--plot", "--timeout", "-h,--help", "-V,--version"):
            self.assertIn(f"\n  {option} ", text)
        self.assertIn("hetcomm_bench", bench("--version").stdout)

    def test_error_names_an_unwritable_output_file(self):
        result = bench("latency", *SHORT, "--transport", "shm", "-o", "/no/such/folder/file")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/no/such/folder/file", result.stderr)

    def test_unused_interface_gives_a_warning(self):
        words = ["put_latency", "-e", "8", "--seconds", "0.002", "--nic", "mlx5_7"]
        result = bench(*words, "--transport", "shm")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("--transport rdma", result.stderr)
        # Over rdma it is used: whether there is one or not.
        self.assertNotIn("--nic", bench(*words, "--transport", "rdma").stderr)


class Comparison(unittest.TestCase):
    def test_error_names_a_missing_peer(self):
        with tempfile.TemporaryDirectory() as folder:
            env = environment(PATH=folder, CXX="/no/such/compiler")
            for peer in ("mpi", "iperf3", "gloo", "perftest"):
                with self.subTest(peer):
                    result = bench("bandwidth", *SHORT, "--compare", peer, "--peers", folder,
                                   env=env)
                    self.assertEqual(result.returncode, 1, result.stdout)
                    self.assertIn(f"--compare {peer}:", result.stderr)
                    self.assertIn("nothing to compare with", result.stderr)

    def test_reason_for_leaving_out_every_peer_is_given(self):
        result = bench("latency", *SHORT, "--compare", "memcpy")
        self.assertEqual(result.returncode, 1)
        self.assertIn("memcpy is left out of latency", result.stderr)

    def test_no_folder_is_made_for_missing_peers(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = pathlib.Path(folder) / "none"
            bench("latency", "-e", "8", "--seconds", "0.002", "--transport", "shm", "--rounds", "1",
                  "--compare", "gloo,ucx", "--peers", str(missing))
            self.assertFalse(missing.exists())

    def test_missing_peer_does_not_stop_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            result = bench("bandwidth", *SHORT, "--transport", "shm", "--compare", "memcpy,mpi",
                           "--peers", folder, "--rounds", "2", "--format", "json",
                           env=environment(PATH=folder))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("--compare mpi:", result.stderr)
            document = json.loads(result.stdout)
            self.assertEqual({row["impl"] for row in document["rows"]}, {"hetcomm", "memcpy"})
            self.assertEqual(document["meta"]["comparison"]["rounds"], 2)
            self.assertTrue(any("mpi" in note for note in document["meta"]["notes"]))

    def test_memcpy_is_compared_with_puts_and_gets(self):
        with tempfile.TemporaryDirectory() as folder:
            result = bench("put,get", "-b", "8", "-e", "64K", "--seconds", "0.002", "--compare",
                           "memcpy", "--peers", folder, "--rounds", "2", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertEqual({row["test"] for row in rows if row["impl"] == "memcpy"},
                         {"put_bandwidth", "get_bandwidth"})
        self.assertTrue(all(row["bandwidth_MBps"] > 0 for row in rows))

    @unittest.skipUnless(os.path.exists("/usr/include/ucp/api/ucp.h"), "no libucx-dev")
    def test_ucx_runs_the_same_one_sided_operations(self):
        with tempfile.TemporaryDirectory() as folder:
            result = bench("put,get,fetch_add,put_notify_latency", *SHORT, "--transport", "shm",
                           "--check", "--compare", "ucx", "--peers", folder, "--peer", "ucx=/usr",
                           "--rounds", "1", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertTrue(all(row["wrong"] == 0 for row in document["rows"]), result.stdout)
        self.assertEqual({row["test"] for row in document["rows"] if "posix" in row["impl"]},
                         {"put_latency", "put_bandwidth", "get_latency", "get_bandwidth",
                          "fetch_add_latency", "fetch_add_rate"})
        self.assertTrue(any("notifies" in note for note in document["meta"]["notes"]))

    @unittest.skipUnless(shutil.which("mpicc"), "no mpicc in PATH")
    def test_mpi_runs_the_same_operations(self):
        with tempfile.TemporaryDirectory() as folder:
            result = bench("latency", *SHORT, "--transport", "shm", "--check", "--compare", "mpi",
                           "--peers", folder, "--rounds", "2", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        peers = {row["impl"] for row in document["rows"]} - {"hetcomm"}
        self.assertGreaterEqual(len(peers), 2, "as it comes and without single copy")
        self.assertTrue(all(row["wrong"] == 0 for row in document["rows"]))
        sizes = {(row["impl"], row["bytes"]) for row in document["rows"]}
        self.assertEqual(len(sizes), 4 * (len(peers) + 1))
        self.assertEqual({peer["name"] for peer in document["meta"]["peers"]}, peers)


    def test_peers_run_the_same_collective_operations(self):
        with tempfile.TemporaryDirectory() as folder:
            result = bench("allreduce,allgather", *SHORT, "--compare", "mpi,gloo", "--peers", folder,
                           "--rounds", "1", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        rows = json.loads(result.stdout)["rows"]
        self.assertGreaterEqual(len({row["impl"] for row in rows}), 2)
        self.assertTrue(all(row["wrong"] == 0 and row["in_place_wrong"] == 0 for row in rows))


class Lifetime(unittest.TestCase):
    def test_interrupted_run_leaves_no_process(self):
        mark = f"BENCH_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
        name, value = mark.split("=")
        run = subprocess.Popen([BENCH, "latency", "-n", "1000000000", "--transport", "tcp"],
                               env=environment(**{name: value}), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        self.assertTrue(wait_until(lambda: len(descendants_named(mark)) >= 3))
        run.send_signal(signal.SIGINT)
        run.wait(20)
        self.assertTrue(wait_until(lambda: not descendants_named(mark)), descendants_named(mark))

    def test_rank_that_dies_ends_the_run(self):
        mark = f"BENCH_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
        name, value = mark.split("=")
        run = subprocess.Popen([BENCH, "latency", "-n", "1000000000", "--transport", "tcp"],
                               env=environment(**{name: value}), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
        self.assertTrue(wait_until(lambda: len(descendants_named(mark)) >= 3))
        victim = max(pid for pid in descendants_named(mark) if pid != run.pid)
        os.kill(victim, signal.SIGKILL)
        _, errors = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 1)
        self.assertIn("signal 9", errors)
        self.assertTrue(wait_until(lambda: not descendants_named(mark)), descendants_named(mark))


class Places(unittest.TestCase):
    def test_launcher_variables_form_a_job(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = [subprocess.Popen([BENCH, "latency", *SHORT, "--check", "--format", "json"],
                                  env=environment(RANK=str(rank), WORLD_SIZE="2",
                                                  MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for rank in range(2)]
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.assertEqual(outputs[1][0], "", "rank 0 reports")
        self.assertTrue(all(row["wrong"] == 0 for row in json.loads(outputs[0][0])["rows"]))

    def test_listener_and_host_both_report(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        sides = [["--listen"], ["latency,overlap", "localhost", "-b", "8", "-e", "4K", "-f", "8",
                                "--seconds", "0.002"]]
        runs = [subprocess.Popen([BENCH, *words, "-p", port, "--format", "json"], env=environment(),
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for words in sides]
        outputs = [run.communicate(timeout=120) for run in runs]
        self.assertEqual([run.returncode for run in runs], [0, 0], outputs)
        listener, client = (json.loads(output)["rows"] for output, _ in outputs)
        self.assertEqual([(r["test"], r["bytes"], r["avg_us"]) for r in listener],
                         [(r["test"], r["bytes"], r["avg_us"]) for r in client])
        self.assertTrue(listener)

    def test_connecting_to_a_missing_listener_times_out(self):
        with socket.socket() as probe:  # bound, and nobody listens
            probe.bind(("127.0.0.1", 0))
            begin = time.monotonic()
            result = bench("latency", "127.0.0.1", "-e", "8", "--timeout", "2", "-p",
                           str(probe.getsockname()[1]), timeout=60)
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("finding the other ranks", result.stderr)
        self.assertLess(time.monotonic() - begin, 20)


if __name__ == "__main__":
    BENCH = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
