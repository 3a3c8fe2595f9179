#!/usr/bin/env python3
"""tools/rdma-vm: the guest runs real verbs, passes output and exit status on, and leaves the host alone.

  - shapes have the NICs and hosts that they promise, and a job of two ranks runs on two hosts;
  - many commands share one boot, and none of them keeps the next one from running;
  - whatever ends the script ends its machines; two runs at once do not disturb each other.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VM = sys.argv[1]


def run(command, *options, limit=300):
    words = ["--", command] if command else []
    done = subprocess.run(
        [VM, "run", *options, *words], capture_output=True, text=True, timeout=limit
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


def a_job_runs_on_two_hosts():
    for shape, links, devices in (
        ("rails", "eth0 eth1 eth2 lo", ("rxe0 rxe1", "rxe2 rxe3")),
        ("pair", "eth0 eth1 lo", ("rxe0 rxe1",) * 2),
    ):
        result = run(
            "on-both bash -c 'echo $RANK of $WORLD_SIZE: $(ls /sys/class/net) "
            "$(ibv_devices | grep -o \"rxe[0-9]\"); exit $((RANK * 5))'; echo status $?; "
            "on-host 1 sleep 1234 & sleep 2; kill $!; sleep 2; "
            "on-host 1 pgrep -x sleep || echo and no sleep",
            "--shape", shape,
        )
        expect(f"0: 0 of 2: {links} {devices[0]}\n" in result[1], "rank 0's host", result)
        expect(f"1: 1 of 2: {links} {devices[1]}\n" in result[1], "rank 1's host", result)
        expect("status 5\n" in result[1], "the status of the rank that failed", result)
        expect("and no sleep" in result[1], "a command ends with its on-host", result)


def commands_share_a_boot():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "commands")
        file.write_text(
            "# a comment\n\nfine 20 echo it is fine\nskipped 20 exit 77\nwrong 20 exit 3\n"
            "stuck 2 trap '' TERM; (setsid -f sleep 1); sleep 1000\nlast 20 cat /proc/uptime\n"
        )
        result = run(None, "--each", str(file))
        expect(result[0] == 1, "a failure among them is one", result)
        for line in (
            "it is fine", "fine: passed", "skipped: skipped", "wrong: FAILED, exit status 3",
            "stuck: FAILED, ran past 2 s", "last: passed", "tests=5 failures=2 skipped=1 time=",
        ):
            expect(line in result[1], line, result)
        file.write_text("name without a limit\n")
        expect(run(None, "--each", str(file))[0] == 2, "a file that is none", result)


def a_command_that_hangs_is_ended():
    result = run("sleep 1000", "--timeout", "3")
    expect(result[0] == 124, "a command past its limit", result)


def machines_with(text):
    """Command lines of QEMU in which text occurs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if line.startswith("qemu-system") and text in line:
            found.append(line)
    return found


def wait_until(condition, seconds):
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.05)
    return condition()


def machines_end_with_the_script():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with tempfile.TemporaryDirectory() as folder:
            words = [VM, "run", "--shape", "pair", "--output", folder, "--", "sleep 1000"]
            script = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            two = wait_until(lambda: len(machines_with(folder)) == 2, 60)
            script.send_signal(number)
            script.wait(20)
            gone = wait_until(lambda: not machines_with(folder), 10)
            result = (script.returncode, "", f"signal {number}")
            expect(two and gone, "both machines run, and end with the script", result)


def runs_at_once_share_nothing_but_the_image():
    """On a copy of the tool that has a kernel but no image yet."""
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(VM).parent
        (Path(folder) / "tools").mkdir()
        shutil.copy(VM, Path(folder) / "tools")
        shutil.copytree(tools / "rdma_vm", Path(folder) / "tools" / "rdma_vm")
        state = Path(folder) / "build" / "rdma-vm"
        state.mkdir(parents=True)
        (state / "kernel").symlink_to(tools.parent / "build" / "rdma-vm" / "kernel")
        words = [str(Path(folder) / "tools" / "rdma-vm"), "run", "--"]
        runs = [
            subprocess.Popen([*words, f"exit {status}"], stderr=subprocess.PIPE, text=True)
            for status in (11, 12)
        ]
        errors = [each.communicate(timeout=300)[1] for each in runs]
        statuses = [each.returncode for each in runs]
        expect(statuses == [11, 12], "each has its own", (statuses, "", "".join(errors)))
        expect(os.listdir(state / "jobs") == [], "nothing is left behind", (0, "", ""))


verbs_work_and_the_host_stays_as_it_is()
shapes_have_what_they_say()
a_job_runs_on_two_hosts()
commands_share_a_boot()
a_command_that_hangs_is_ended()
machines_end_with_the_script()
runs_at_once_share_nothing_but_the_image()
