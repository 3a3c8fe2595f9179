"""python -m hetcomm.bench, run as its users run it.

Proves: every operation is timed over the transport that the environment names, and against Gloo if
requested; --json has exactly the fields of hetcomm_bench. The queue during matrix multiplications
and the weights of a small model are timed too.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

FIELDS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "report_fields.cc"
LIMIT_S = 100


def bench(*options, **environment):
    done = subprocess.run([sys.executable, "-m", "hetcomm.bench", "--rounds", "2", *options],
                          capture_output=True, text=True, timeout=LIMIT_S,
                          env=dict(os.environ, **environment))
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


def fields_of(function):
    """The names that hetcomm_bench writes there, in their order."""
    body = FIELDS.read_text().split(f"Json {function}(")[1].split("\n}\n")[0]
    return re.findall(r'object\["(\w+)"\]', body)


class Others(unittest.TestCase):
    def run_module(self, module, *options):
        done = subprocess.run([sys.executable, "-m", module, *options], capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]

    def test_queue_is_timed_during_matrix_multiplications(self):
        rows = self.run_module("hetcomm.bench_queue", "--mib", "0.25", "--items", "8", "--rounds", "1",
                               "--ratios", "0.5,2")
        self.assertEqual([row[0] for row in rows], ["262144", "262144"])
        for row in rows:
            overall, compute, pure, overlap, baseline = map(float, row[1:6])
            self.assertTrue(min(overall, compute, pure, baseline) > 0 and 0 <= overlap <= 100, row)

    def test_weight_transfer_is_timed_against_gloo_and_a_checkpoint(self):
        rows = self.run_module("hetcomm.bench_weights", "--mib", "16", "--rounds", "1")
        self.assertEqual([row[0] for row in rows[1:]], ["hetcomm", "gloo", "checkpoint"])


@unittest.skipUnless(os.environ.get("HETCOMM_TEST_DEVICE"), "for a run with a device")
class OnDevice(unittest.TestCase):
    def test_operations_on_a_device_are_timed_against_manual_copies(self):
        device = os.environ["HETCOMM_TEST_DEVICE"]
        document = json.loads(bench("--json", "--compare", "gloo", "--device", device, "--import",
                                    device, "--op", "allreduce", "--op", "broadcast", "--op", "send",
                                    "--op", "redistribute", "--op", "ddp", "--op", "ddp_after",
                                    "--size", "4096",
                                    "--rounds", "1"))
        self.assertEqual([(row["test"], row["impl"]) for row in document["rows"]],
                         [(test, impl) for test in ("allreduce", "broadcast", "send",
                                                    "redistribute", "ddp",
                                                    "ddp_after") for impl in ("hetcomm", "gloo")])
        self.assertEqual({row["memory"] for row in document["rows"]}, {device})


class Bench(unittest.TestCase):
    def test_json_has_the_fields_of_hetcomm_bench(self):
        document = json.loads(bench("--json", "--compare", "gloo", "--op", "overlap", "--op",
                                    "allreduce", "--op", "init", "--size", "4096",
                                    HETCOMM_TRANSPORTS="tcp"))
        rows = document["rows"]
        self.assertEqual([(row["test"], row["impl"], row["transport"]) for row in rows],
                         [(test, impl, "tcp") for test in ("init", "overlap", "allreduce")
                          for impl in ("hetcomm", "gloo")])
        for row in rows:
            self.assertEqual(list(row), fields_of("row_object"))
            self.assertGreater(row["avg_us"], 0)
            alone = [row["idle_us"], row["compute_us"]]
            self.assertEqual(None not in alone, row["test"] == "overlap")
        ratios = document["meta"]["comparison"]["ratios"]
        self.assertEqual([ratio["test"] for ratio in ratios], ["init", "overlap", "allreduce"])
        for ratio in ratios:
            self.assertEqual(list(ratio), fields_of("ratio_object"))
            self.assertLessEqual(ratio["smallest"], ratio["ratio"])
            self.assertLessEqual(ratio["ratio"], ratio["largest"])

    def test_table_has_a_row_for_each_operation(self):
        lines = bench("--size", "1000", "--ranks", "3").splitlines()
        self.assertEqual([line.split()[:2] for line in lines[1:]],
                         [[name, "0" if name == "barrier" else "1000"] for name in (
                             "allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall",
                             "barrier", "send", "redistribute")])


if __name__ == "__main__":
    unittest.main()
