"""Shared by the tests in network namespaces, which are those of hetcomm_bench."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "driver"))

# pylint: disable=wrong-import-position,unused-import
from hosts import Namespaces, TwoHosts, Wire, lack_of, run_ranks, sh, wait_until_up  # noqa: E402,F401

SKIPPED = 77


def need(what, *tools):
    """Skips the test, |what|, unless this process may make network namespaces and has |tools|."""
    lack = lack_of(*tools)
    if lack:
        print(f"{what}: {lack}")
        sys.exit(SKIPPED)
