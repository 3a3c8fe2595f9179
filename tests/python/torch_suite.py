#!/usr/bin/env python3
"""Runs torch.testing._internal.distributed.distributed_test against hetcomm and against Gloo.

Every test that passes with Gloo must pass with hetcomm, but for those in torch_suite_exclusions.txt.
The ranks are forked, which makes the suite many times faster than spawning them. Its tests and its
skips go by the name of the backend: they are told that it is gloo, and get hetcomm groups.

    torch_suite.py                     both backends, compared; status 1 when a test is missing
    torch_suite.py --backend hetcomm   one of them; prints a line of JSON with the outcomes
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


def make_suite(backend, pattern):
    # Read when the module is imported; so are the skips.
    os.environ["BACKEND"] = "gloo"
    os.environ.setdefault("TEMP_DIR", __import__("tempfile").mkdtemp(prefix="torch-suite-"))
    import unittest

    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
    from torch.testing._internal import common_distributed
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

        def note(self, test, outcome):
            self.outcomes[test.id().split(".")[-1]] = outcome

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
                      "outcomes": result.outcomes}))


def exclusions():
    """Test name -> reason."""
    found = {}
    for line in (HERE / "torch_suite_exclusions.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, reason = line.split(maxsplit=1)
            found[name] = reason
    return found


def outcomes_of(backend, arguments):
    command = [sys.executable, __file__, "--backend", backend]
    for pattern in arguments.only or []:
        command += ["--only", pattern]
    environment = dict(os.environ, WORLD_SIZE=str(arguments.ranks), OMP_NUM_THREADS="1")
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"backend"')]
    if not lines:
        sys.exit(f"torch_suite: {backend} gave no result\n{done.stderr[-5000:]}")
    report = json.loads(lines[-1])
    counts = {}
    for outcome in report["outcomes"].values():
        counts[outcome] = counts.get(outcome, 0) + 1
    print(f"{backend}: {counts} in {report['seconds']} s", flush=True)
    return report["outcomes"], done.stderr


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
    gloo, _ = outcomes_of("gloo", arguments)
    ours, log = outcomes_of("hetcomm", arguments)
    excluded = exclusions()
    missing = sorted(name for name, outcome in gloo.items()
                     if outcome == "passed" and ours.get(name) != "passed" and name not in excluded)
    for name in missing:
        print(f"passes with Gloo, {ours.get(name)} with hetcomm: {name}")
    if missing:
        print(log[-20000:])
    if not any(outcome == "passed" for outcome in gloo.values()):
        sys.exit("torch_suite: no test passed with Gloo")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
