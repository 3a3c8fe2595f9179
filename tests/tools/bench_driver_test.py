#!/usr/bin/env python3
"""The part of hetcomm_bench in Python (bench/driver), with programs that play a peer.

Properties: what --compare and --plot lack is said, with how to get it, before anything is measured; a measurement
needs no Python; a server that fails is not waited for, and its client is not started; the tables of perftest and the
answer of iperf3 become measurements; pictures draw medians, which the axis says, and averages only where they are
called so, one colour for each implementation in all pictures, and one line for each setting; an interrupted or killed
hetcomm_bench leaves nothing of its driver behind.

Usage: bench_driver_test.py PATH_OF_HETCOMM_BENCH FOLDER_OF_THE_DRIVER [unittest options]
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import bench_tool_test as tool
from bench_tool_test import bench, environment, python_with_matplotlib, wait_until

QUICK = ["-b", "8", "-e", "8", "-n", "10", "--transport", "tcp"]


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def fake_iperf3(folder, version="echo iperf 3.99", client="exit 1"):
    """A program whose server listens, and whose client does what |client| says in the shell."""
    server = ("import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(); "
              "s.accept()")
    return write_program(pathlib.Path(folder, "iperf3"), f"""#!/bin/sh
case $1 in
  --version) {version} ;;
  --server) exec {sys.executable} -c "{server}" $6 ;;
  --client) {client} ;;
esac
""")


ANSWER = json.dumps({"end": {"sum_received": {"bytes": 4_000_000, "seconds": 0.5}}})


# --- what is missing -------------------------------------------------------------------------------

class Missing(unittest.TestCase):
    """Each run would take minutes if it measured."""

    LONG = ["latency", "-b", "8", "-e", "8", "--transport", "shm", "--seconds", "100"]

    def refused(self, *words, env):
        begin = time.monotonic()
        result = bench(*words, env=env)
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertLess(time.monotonic() - begin, 60)
        return result.stderr

    def test_options_that_need_python_are_refused_without_it(self):
        with tempfile.TemporaryDirectory() as folder:
            env = environment(PATH=folder)
            del env["HETCOMM_PYTHON"]
            for words in (["--compare", "memcpy"], ["--plot", f"{folder}/x.svg"]):
                told = self.refused(*self.LONG, *words, env=env)
                for word in (words[0], "Python 3", "python3 in PATH", "HETCOMM_PYTHON"):
                    self.assertIn(word, told)
            self.assertFalse(os.path.exists(f"{folder}/x.svg"))

    def test_error_names_a_python_that_does_not_run(self):
        env = environment(HETCOMM_PYTHON="/no/such/python")
        told = self.refused(*self.LONG, "--compare", "memcpy", env=env)
        self.assertIn("/no/such/python does not run", told)

    def test_plot_without_matplotlib_is_refused_before_the_measurement(self):
        with tempfile.TemporaryDirectory() as folder:
            # Neither site-packages nor variables.
            bare = write_program(pathlib.Path(folder, "python"), f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
            env = environment(HETCOMM_PYTHON=bare)
            for words in (self.LONG, ["reshard", "--simulate"], ["reshard", "--seconds", "100"],
                          [*self.LONG, "--compare", "memcpy"]):
                told = self.refused(*words, "--plot", f"{folder}/x.svg", env=env)
                for word in ("--plot", "matplotlib", "python3-matplotlib", "pip install matplotlib",
                             "HETCOMM_PYTHON"):
                    self.assertIn(word, told)
            self.assertFalse(os.path.exists(f"{folder}/x.svg"))
            # A comparison takes the same Python.
            result = bench("bandwidth", *QUICK, "--compare", "memcpy", "--peers", folder, "--rounds", "1", env=env)
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_measurements_need_no_python(self):
        with tempfile.TemporaryDirectory() as folder:
            env = environment(PATH=folder)
            del env["HETCOMM_PYTHON"]
            for words in (["latency", *QUICK, "--format", "osu"], ["reshard", "--ranks", "2", "-b", "1K", "--seconds",
                          "0.01"], ["latency", *QUICK[:-2], "--transport", "shm,tcp", "--interleave", "--rounds",
                          "2"], ["links", "--seconds", "0.05", "--plot", f"{folder}/links.svg"]):
                result = bench(*words, env=env)
                self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("<svg", pathlib.Path(folder, "links.svg").read_text())


# --- peers -----------------------------------------------------------------------------------------

class Peers(unittest.TestCase):
    def compare(self, program, folder):
        return bench("bandwidth", *QUICK, "--compare", "iperf3", "--peer", f"iperf3={program}", "--peers", folder,
                     "--rounds", "2", "--format", "json")

    def test_peer_is_measured_beside_hetcomm(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.compare(fake_iperf3(folder, client=f"echo '{ANSWER}'"), folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        row, = (row for row in document["rows"] if row["impl"] == "iperf3-3.99")
        self.assertEqual((row["transport"], row["bytes"], row["iterations"]), ("tcp", 8, 500_000))
        self.assertAlmostEqual(row["bandwidth_MBps"], 8)
        self.assertEqual([peer["version"] for peer in document["meta"]["peers"]], ["3.99"])
        self.assertEqual(document["meta"]["comparison"]["rounds"], 2)

    def test_failing_peer_is_left_out_with_its_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.compare(fake_iperf3(folder, client="echo no route >&2; exit 1"), folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual({row["impl"] for row in document["rows"]}, {"hetcomm"})
        self.assertTrue(any("left out" in note and "no route" in note for note in document["meta"]["notes"]))

    def test_runner_compile_failure_is_reported_with_the_first_error(self):
        with tempfile.TemporaryDirectory() as folder:
            compiler = write_program(pathlib.Path(folder, "c++"),
                                     "#!/bin/sh\necho In file included >&2\necho 'x.h:1: error: no luck' >&2\nexit 1\n")
            result = bench("latency", *QUICK, "--compare", "gloo", "--peers", folder, env=environment(CXX=compiler))
        self.assertEqual(result.returncode, 1)
        self.assertIn("--compare gloo: its runner cannot be compiled: x.h:1: error: no luck", result.stderr)
        self.assertIn("hetcomm_bench: compiling runner_gloo", result.stderr)


    def test_peer_with_a_space_in_its_path_and_an_undecodable_version_is_measured(self):
        with tempfile.TemporaryDirectory(prefix="a b") as folder:
            result = self.compare(fake_iperf3(folder, client=f"echo '{ANSWER}'", version=r"printf 'iperf 3.\377'"),
                                  folder)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("iperf3-3.", {row["impl"][:9] for row in json.loads(result.stdout)["rows"]})

    def test_peer_with_a_too_long_path_does_not_stop_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            result = bench("bandwidth", *QUICK, "--compare", "mpi,memcpy", "--peer", "mpi=/" + "x" * 300, "--peers",
                           folder, "--rounds", "1", "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("memcpy", {row["impl"] for row in json.loads(result.stdout)["rows"]})


class Pairs(unittest.TestCase):
    def test_client_is_not_started_if_its_server_ends_early(self):
        for status in (0, 3):
            with tempfile.TemporaryDirectory() as folder:
                begin = time.monotonic()
                with self.assertRaisesRegex(pairs.Failed, "before it listened"):
                    pairs.output_of_client(["sh", "-c", f"exit {status}"], ["touch", f"{folder}/started"],
                                           pairs.free_port(), (-1, -1))
                self.assertLess(time.monotonic() - begin, 8)
                self.assertEqual(os.listdir(folder), [], "no client")

    def test_failing_server_ends_its_client(self):
        port = pairs.free_port()
        server = ("import socket, sys, time; s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); "
                  "s.listen(); time.sleep(1); sys.exit(5)")
        begin = time.monotonic()
        with self.assertRaisesRegex(pairs.Failed, "status 5"):
            pairs.output_of_client([sys.executable, "-c", server, str(port)], ["sleep", "60"], port, (-1, -1))
        self.assertLess(time.monotonic() - begin, 30)

    def fields(self, line):
        mark, *words = line.split()
        self.assertEqual(mark, "R")
        return {name: float(value) for name, value in (word.split("=") for word in words)}

    def test_iperf3_rate_is_reported_for_every_size(self):
        for line, size in zip(pairs.iperf3_lines(ANSWER, [(0, 1), (8, 64), (10**9, 2)]), (1, 8, 10**9)):
            measured = self.fields(line)
            self.assertAlmostEqual(measured["messages"] * size / measured["total_us"], 8)

    def test_perftest_table_is_parsed_as_a_measurement(self):
        line = " 8       1000   8.23   8213.71   8.43     \t       9.50      \t1609.67\t\t26.48 \t\t13.71 "
        measured = self.fields(pairs.perftest_line(line, "put_latency", 8, 1))
        self.assertEqual((measured["iterations"], measured["min_us"], measured["p50_us"], measured["p999_us"]),
                         (1000, 8.23, 8.43, 13.71))
        self.assertAlmostEqual(measured["total_us"], 9500)
        for other in ("", "-----", " #bytes #iterations    t_min[usec]", " 16 1000 1 2 3 4 5 6 7", " 8 1000 1 2",
                      " GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:00:02:01"):
            self.assertIsNone(pairs.perftest_line(other, "put_latency", 8, 1), other)

    def test_rates_come_from_the_column_with_more_digits(self):
        for line, test, size, rate in ((" 65536  1248  0.00  75.12   \t\t   0.001", "put_bandwidth", 65536, 78.769),
                                       (" 8  500  0.00  0.01  0.001234", "put_bandwidth", 8, 0.009872),
                                       (" 1000  500  0.00  1907.35  2.0", "bibandwidth", 1000, 2000)):
            measured = self.fields(pairs.perftest_line(line, test, size, 4))
            self.assertAlmostEqual(measured["messages"] * size / measured["total_us"], rate, delta=rate * 1e-4)
            self.assertEqual(measured["messages"], measured["iterations"] * (2 if test == "bibandwidth" else 1))


# --- pictures --------------------------------------------------------------------------------------

def row_of(test, impl, transport, **other):
    """A row of two senders."""
    row = {"test": test, "impl": impl, "transport": transport, "memory": "host", "window": 4, "bytes": 1000,
           "iterations": 100, "p50_us": 10, "avg_us": 40, "bandwidth_MBps": 50, "messages_per_s": 50_000}
    return {**dict.fromkeys(("progress", "rails", "algorithm", "staging_memory", "chunk", "depth")), **row, **other}


def document_of(*rows, **meta):
    return {"meta": {"version": "1.2.3", "host": "here", **meta}, "rows": list(rows)}


def colours(*rows):
    panels = plot.panels_of(document_of(*rows))
    return {series.name: plot.colour_of(series, panels) for panel in panels for series in panel.series}


class Pictures(unittest.TestCase):
    def test_plot_draws_medians_and_labels_them(self):
        panels = plot.panels_of(document_of(*(row_of(test, "hetcomm", "shm")
                                              for test in ("latency", "bandwidth", "msgrate"))))
        self.assertEqual([panel.series[0].spots for panel in panels], [[(1000, 10)], [(1000, 200)], [(1000, 0.2)]],
                         "not averages: 2 messages of 1000 bytes in 10 us")
        self.assertEqual([panel.unit.partition(", ")[2] for panel in panels],
                         ["median of single messages", "median of windows", "median of windows"])

    def test_plot_of_a_comparison_draws_medians_of_rounds(self):
        panel, = plot.panels_of(document_of(row_of("latency", "hetcomm", "shm"), comparison={"rounds": 15}))
        self.assertEqual(panel.series[0].spots, [(1000, 40)])
        self.assertIn("median of 15 rounds", panel.unit)

    def test_average_is_not_labelled_as_a_median(self):
        panel, = plot.panels_of(document_of(row_of("latency", "iperf3-3.12", "tcp", p50_us=None)))
        self.assertEqual(panel.series[0].spots, [(1000, 40)])
        self.assertIn("(average)", panel.series[0].name)

    def test_implementation_keeps_its_colour_in_all_plots(self):
        one = colours(row_of("latency", "hetcomm", "shm"), row_of("latency", "gloo-1.0", "tcp"),
                      row_of("bandwidth", "openmpi-5.0.11/no-cma", "shm"),
                      row_of("bandwidth", "openmpi-5.0.11/tcp", "tcp"), row_of("bandwidth", "hetcomm", "tcp"))
        self.assertEqual(len(one), 5)
        self.assertEqual(one["hetcomm shm"], one["hetcomm tcp"])
        self.assertEqual(one["openmpi-5.0.11 shm, no-cma"], one["openmpi-5.0.11 tcp"])
        self.assertEqual(len({one["hetcomm tcp"], one["openmpi-5.0.11 tcp"], one["gloo-1.0 tcp"]}), 3)
        # The second picture has additional series, in another order.
        other = colours(row_of("allreduce", "openmpi-4.1.4", "shm"), row_of("allreduce", "ucx-1.19", "shm"),
                        row_of("allreduce", "hetcomm", "shm"))
        self.assertEqual(other["openmpi-4.1.4 shm"], one["openmpi-5.0.11 tcp"])
        self.assertEqual(other["hetcomm shm"], one["hetcomm shm"])
        self.assertNotEqual(other["ucx-1.19 shm"], other["openmpi-4.1.4 shm"])

    def test_rows_without_figures_do_not_hide_the_others(self):
        empty = dict.fromkeys(("avg_us", "bandwidth_MBps", "messages_per_s"))
        for test in ("latency", "bandwidth", "msgrate"):
            for median in (10, None):
                rows = [row_of(test, "hetcomm", "shm", **empty, p50_us=median), row_of(test, "ucx-1.19", "shm")]
                for rounds in ({}, {"comparison": {"rounds": 3}}):
                    series = plot.panels_of(document_of(*rows, **rounds))[0].series
                    self.assertIn("ucx-1.19 shm", [each.name for each in series])

    def test_each_setting_has_its_own_line_in_the_plot(self):
        alone = colours(row_of("staging", "hetcomm", "tcp"), row_of("staging", "hetcomm", "tcp", chunk=65536))
        self.assertEqual(list(alone), ["hetcomm tcp", "hetcomm tcp, chunk 64K"])
        self.assertEqual(len(set(alone.values())), 2)

    def drawn(self, document, name="x.svg"):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, name)
            subprocess.run([python_with_matplotlib(), "-B", DRIVER, "plot", str(path)], input=json.dumps(document),
                           text=True, check=True, timeout=120)
            return path.read_bytes()

    def test_texts_are_escaped_and_zero_bytes_give_no_infinity(self):
        text = self.drawn(document_of(row_of("latency", "hetcomm", "shm", bytes=0), row_of("latency", "hetcomm", "shm"),
                                      host='a<b>&"c"')).decode()
        self.assertIn("a&lt;b&gt;&amp;", text)
        self.assertIn("median of single messages", text)
        self.assertIn('id="latency hetcomm shm"', text)
        self.assertNotIn("nan", text)
        self.assertNotIn("inf", text)

    def test_document_without_rows_gives_a_picture(self):
        for document in (document_of(), []):
            self.assertIn(b"</svg>", self.drawn(document))

    def test_same_document_is_drawn_identically(self):
        document = document_of(row_of("latency", "hetcomm", "shm"))
        self.assertEqual(self.drawn(document), self.drawn(document))

    def test_file_name_determines_the_picture_format(self):
        document = document_of(row_of("latency", "hetcomm", "shm"))
        for name, start in (("x.png", b"\x89PNG"), ("x.pdf", b"%PDF"), ("picture", b"<?xml")):
            self.assertTrue(self.drawn(document, name).startswith(start), name)

    def test_reshard_results_are_drawn_as_box_plots(self):
        measured = {"test": "reshard", "layouts": "4x1:1x4", "bytes": 1, "plan": "direct", "forecast_us": 90,
                    "runs": 3, "fastest_us": 70, "low_us": 80, "median_us": 101, "high_us": 120, "slowest_us": 150}
        text = self.drawn([{**measured, "strategy": "auto"}, {**measured, "strategy": "direct"},
                           {"test": "reshard", "layouts": "4x1:1x4", "strategy": "leader", "refused": "no"}]).decode()
        for word in ("auto", "direct", "leader", "not covered", "101 us", 'id="4x1:1x4 direct"'):
            self.assertIn(word, text)


# --- lifetime --------------------------------------------------------------------------------------

class Lifetime(unittest.TestCase):
    def left_behind(self, busy, number, **peer):
        """Sends a signal to hetcomm_bench while a process has |busy| in its command line."""
        mark = f"BENCH_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
        name, value = mark.split("=")

        def is_busy():
            for pid in tool.descendants_named(mark):
                try:
                    if busy.encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                        return True
                except OSError:
                    continue
            return False

        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as temporary:
            run = subprocess.Popen([tool.BENCH, "bandwidth", *QUICK, "--compare", "iperf3", "--peer",
                                    f"iperf3={fake_iperf3(folder, **peer)}", "--peers", folder],
                                   env=environment(**{name: value, "TMPDIR": temporary}), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
            self.assertTrue(wait_until(is_busy, 60), busy)
            run.send_signal(number)
            run.wait(20)
            self.assertEqual(run.returncode, -number)
            self.assertTrue(wait_until(lambda: not tool.descendants_named(mark)), tool.descendants_named(mark))
            self.assertEqual(os.listdir(temporary), [])

    def test_signal_while_the_driver_looks_for_peers_leaves_no_process(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                self.left_behind("612.25", number, version="sleep 612.25")

    def test_signal_while_a_peer_is_measured_leaves_no_process(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                self.left_behind("613.25", number, client="sleep 613.25")

    def test_no_runner_is_left_in_a_temporary_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            result = bench("bandwidth", *QUICK, "--compare", "memcpy", "--peers", f"{folder}/none", "--rounds", "1",
                           env=environment(TMPDIR=folder))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    tool.BENCH = os.path.abspath(sys.argv.pop(1))
    DRIVER = os.path.abspath(sys.argv.pop(1))
    sys.dont_write_bytecode = True
    sys.path.insert(0, DRIVER)
    import pairs
    import plot
    unittest.main(verbosity=2)
