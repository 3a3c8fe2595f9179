#!/usr/bin/env python3
"""tools/rdma-vm: the guest runs real verbs, passes output and exit status on, and leaves the host alone."""

import subprocess
import sys
import tempfile
from pathlib import Path

VM = sys.argv[1]


def run(command, *options, limit=300):
    done = subprocess.run(
        [VM, "run", *options, "--", command], capture_output=True, text=True, timeout=limit
    )
    return done.returncode, done.stdout, done.stderr


def expect(condition, what, result):
    if not condition:
        sys.exit(f"{what}\nstatus {result[0]}\n{result[1]}\n{result[2]}")


def verbs_work_and_the_host_stays_as_it_is():
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        output.mkdir()
        untouched = Path(folder, "untouched")
        result = run(
            "ibv_rc_pingpong -d rxe0 -g 1 -n 100 >/dev/null & sleep 1; "
            "ibv_rc_pingpong -d rxe0 -g 1 -n 100 192.0.2.1 || exit 1; wait; "
            f"echo guest >{untouched}; echo guest >{output}/kept; "
            "printf 'no newline at the end'; exit 42",
            "--output", str(output),
        )
        expect(result[0] == 42, "the command's status is passed on", result)
        expect("100 iters" in result[1], "messages cross a queue pair", result)
        expect(result[1].endswith("no newline at the end"), "output is passed on as it is", result)
        expect(not untouched.exists(), "the host's files stay as they are", result)
        expect(Path(output, "kept").read_text() == "guest\n", "but for the output folder", result)


def shapes_have_what_they_say():
    result = run("rdma link", "--shape", "two")
    expect("rxe0" in result[1] and "rxe1" in result[1], "two NICs", result)
    result = run(
        "for nic in /sys/class/net/eth*; do cat $(dirname $(readlink -f $nic/device))/numa_node; done",
        "--shape", "numa",
    )
    expect(sorted(result[1].split()) == ["0", "1"], "a NIC on each of two nodes", result)


def a_command_that_hangs_is_ended():
    result = run("sleep 1000", "--timeout", "3")
    expect(result[0] == 124, "a command past its limit", result)


verbs_work_and_the_host_stays_as_it_is()
shapes_have_what_they_say()
a_command_that_hangs_is_ended()
