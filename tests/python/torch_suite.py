#!/usr/bin/env python3
"""Runs torch.testing._internal.distributed.distributed_test against hetcomm and against Gloo.

Every test that passes with Gloo must pass with hetcomm, but for those in
torch_suite_exclusions.txt; so must the all-to-all tests that torch keeps for MPI. Gloo runs what
fails with hetcomm. The ranks are forked, which makes the suite many times faster than spawning
them. Its tests and its skips go by the name of the backend: they are told that it is gloo, and get
hetcomm groups.

    torch_suite.py                     both backends, compared; status 1 when a test is missing
    torch_suite.py --backend hetcomm   all tests with one of them; prints the outcomes as JSON
"""

import argparse
import collections
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
SHOWN_SLOWEST = 5


def mpi_only(module):
    """Tests whose only reason to be skipped is that other backends of torch lack the operation."""
    base = module.DistributedTest._DistTestBase
    return [name for name in dir(base) if name.startswith("test_all_to_all")
            and getattr(getattr(base, name), "__unittest_skip_why__", "").startswith("Only MPI")]


def skip_before_forking(common):
    """Where there is no GPU: tests that need one are skipped without forking ranks for that."""
    import functools

    import torch

    if torch.cuda.is_available() or any(getattr(common, name, False)
                                        for name in ("TEST_HPU", "TEST_XPU")):
        return

    def early(decorate):
        @functools.wraps(decorate)
        def decorator(function):
            decorated = decorate(function)
            decorated.__unittest_skip__ = True
            decorated.__unittest_skip_why__ = "needs a GPU"
            return decorated
        return decorator

    needs_some = common.skip_if_lt_x_gpu

    def skip_if_lt_x_gpu(count, **options):
        decorate = needs_some(count, **options)
        return decorate if options.get("allow_cpu") else early(decorate)

    common.skip_if_lt_x_gpu = skip_if_lt_x_gpu
    common.skip_if_no_gpu = early(common.skip_if_no_gpu)


def make_suite(backend, pattern):
    # Read when the module is imported; so are the skips.
    os.environ["BACKEND"] = "gloo"
    os.environ.setdefault("TEMP_DIR", __import__("tempfile").mkdtemp(prefix="torch-suite-"))
    import unittest

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
    from torch.testing._internal import common_distributed

    skip_before_forking(common_distributed)
    from torch.testing._internal.distributed import distributed_test as module

    if backend == "hetcomm":
        import hetcomm.torch

        make_group = distributed_c10d._new_process_group_helper

        def make_ours(group_size, group_rank, ranks, name, *arguments, **keywords):
            ours = str(name).replace("gloo", "hetcomm")
            return make_group(group_size, group_rank, ranks, ours, *arguments, **keywords)

        distributed_c10d._new_process_group_helper = make_ours

        def monitored_barrier(group=dist.GroupMember.WORLD, timeout=None, wait_all_ranks=False):
            hetcomm.torch.monitored_barrier(group, timeout, wait_all_ranks)

        dist.monitored_barrier = monitored_barrier

        for name in mpi_only(module):
            getattr(module.DistributedTest._DistTestBase, name).__unittest_skip__ = False

    torch.set_num_threads(1)
    # A test that hangs costs this many seconds, not five minutes.
    common_distributed.TIMEOUT_DEFAULT = 60

    class Suite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            process = torch.multiprocessing.get_context("fork").Process
            self._start_processes(process)

    names = [n for n in unittest.defaultTestLoader.getTestCaseNames(Suite)
             if pattern is None or any(p in n for p in pattern)]
    return unittest.TestSuite(Suite(name) for name in names)


def run_suite(backend, pattern, verbose):
    import unittest

    class Result(unittest.TextTestResult):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            self.outcomes = {}
            self.seconds = {}

        def startTest(self, test):
            super().startTest(test)
            self.seconds[test.id().split(".")[-1]] = -time.monotonic()

        def note(self, test, outcome):
            name = test.id().split(".")[-1]
            self.outcomes[name] = outcome
            self.seconds[name] = round(self.seconds[name] + time.monotonic(), 1)

        def addSuccess(self, test):
            super().addSuccess(test)
            self.note(test, "passed")

        def addFailure(self, test, error):
            super().addFailure(test, error)
            self.note(test, "failed")

        def addError(self, test, error):
            super().addError(test, error)
            self.note(test, "failed")

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            self.note(test, "skipped")

    began = time.monotonic()
    suite = make_suite(backend, pattern)
    runner = unittest.TextTestRunner(stream=sys.stderr, verbosity=2 if verbose else 1,
                                     resultclass=Result)
    result = runner.run(suite)
    print(json.dumps({"backend": backend, "seconds": round(time.monotonic() - began, 1),
                      "outcomes": result.outcomes, "seconds_of": result.seconds}))


def exclusions():
    """Test name -> reason."""
    found = {}
    for line in (HERE / "torch_suite_exclusions.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, reason = line.split(maxsplit=1)
            found[name] = reason
    return found


def run_backend(backend, ranks, patterns):
    """Name -> outcome, and what it wrote."""
    command = [sys.executable, __file__, "--backend", backend]
    for pattern in patterns or []:
        command += ["--only", pattern]
    environment = dict(os.environ, WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1")
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"backend"')]
    if not lines:
        sys.exit(f"torch_suite: {backend} gave no result\n{done.stderr[-5000:]}")
    report = json.loads(lines[-1])
    counts = collections.Counter(report["outcomes"].values())
    slowest = sorted(report["seconds_of"].items(), key=lambda item: -item[1])[:SHOWN_SLOWEST]
    print(f"{backend}: {dict(counts)} in {report['seconds']} s; slowest: {slowest}", flush=True)
    return report["outcomes"], done.stderr


def compare(ranks, patterns):
    """Prints what is missing; the exit status."""
    ours, log = run_backend("hetcomm", ranks, patterns)
    if "passed" not in ours.values():
        sys.exit("torch_suite: no test passed with hetcomm")
    failed = [name for name, outcome in ours.items() if outcome == "failed"]
    gloo = run_backend("gloo", ranks, failed)[0] if failed else {}
    excluded = exclusions()
    # Gloo skips those that torch keeps for MPI.
    missing = [name for name in failed if name not in excluded
               and (gloo[name] == "passed" or name.startswith("test_all_to_all"))]
    for name in missing:
        print(f"fails with hetcomm, {gloo[name]} with Gloo: {name}")
    stale = [name for name in excluded if ours.get(name) == "passed"]
    for name in stale:
        print(f"passes, so that its exclusion has to go: {name}")
    if missing:
        print(log[-20000:])
    return 1 if missing or stale else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("gloo", "hetcomm"))
    parser.add_argument("--ranks", type=int, default=int(os.environ.get("WORLD_SIZE", "4")))
    parser.add_argument("--only", action="append", help="part of a test's name")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    os.environ["WORLD_SIZE"] = str(arguments.ranks)
    if arguments.backend:
        run_suite(arguments.backend, arguments.only, arguments.verbose)
        return 0
    return compare(arguments.ranks, arguments.only)


if __name__ == "__main__":
    sys.exit(main())
