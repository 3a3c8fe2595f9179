"""The suite of the table catches plug-ins that break one promise each.

Usage: device_suite_test.py <device_test> <strict_device_plugin>. The plug-in passes as it is; with
HETCOMM_TEST_WRONG it fails the test that is named here.
"""

import os
import re
import subprocess
import sys

WRONG = {
    "find": "FindCoversExactlyTheAllocation",
    "leak": "FreedMemoryIsReturnedAndNoLongerFound",
    "hide": "FailedCopyIsNotReportedAsSuccess",
}


def failed_tests(program: str, plugin: str, wrong: str | None) -> set[str]:
    environment = dict(os.environ, HETCOMM_TEST_PLUGIN=plugin)
    environment.pop("HETCOMM_TEST_WRONG", None)
    if wrong is not None:
        environment["HETCOMM_TEST_WRONG"] = wrong
    done = subprocess.run([program, "--gtest_filter=*/EveryDevice.*/example"], env=environment,
                          capture_output=True, text=True, timeout=100)
    if "[  PASSED  ]" not in done.stdout:
        sys.exit(f"{wrong}: the suite did not run to its end:\n{done.stdout}\n{done.stderr}")
    return set(re.findall(r"\[  FAILED  \] \S*EveryDevice\.(\w+)/example", done.stdout))


def main() -> None:
    program, plugin = sys.argv[1:]
    if failed := failed_tests(program, plugin, None):
        sys.exit(f"the plug-in is right, and fails {sorted(failed)}")
    for wrong, expected in WRONG.items():
        failed = failed_tests(program, plugin, wrong)
        if expected not in failed:
            sys.exit(f"{wrong}: {expected} passes; failed: {sorted(failed)}")


main()
