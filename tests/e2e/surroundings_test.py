"""Jobs in restricted environments, which refuse system calls, socket families, limits or file systems.

Proves, for each row of the table, with the restriction on one rank and on all: the job works, or each
rank ends with a status and a text; no rank hangs, no signal ends a rank, and no text blames a bug in
hetcomm. Jobs work without the calls that system_calls.def marks WORKS. A traced job over each transport
makes only the system calls that system_calls.def lists.

surroundings_test.py RANK quick|long [WORD]: the program is surroundings_rank. Rows whose name has WORD.
surroundings_test.py RANK trace [TRANSPORT]: over one transport, or over each that needs no hardware.
Hidden file systems and namespaces need root and unshare.
"""

import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rank_process import free_port

SKIPPED = 77
HERE = Path(__file__).resolve().parent
LIMIT_S = 80
# The loader finds a library beside a program by /proc.
LIBRARIES = str(Path(sys.argv[1]).resolve().parents[2] / "lib")
FULL_LOG = f"{tempfile.gettempdir()}/hetcomm-surroundings-{os.getpid()}.log"
# Ranks that cannot meet are told after so long; those that can have time on a busy machine.
BOOTSTRAP_S = 5
BUSY_BOOTSTRAP_S = 40
# Each of these is refused on both ranks and by both errors in the quick table: sandboxes refuse them.
OFTEN_REFUSED = {"memfd_create", "process_vm_readv", "membarrier", "pidfd_open", "mbind", "sched_setaffinity",
                 "madvise", "prctl", "epoll_create1", "eventfd2", "clone3", "getrandom", "userfaultfd"}


def system_calls():
    """Names, what is expected, and reasons."""
    return re.findall(r'^HETCOMM_CALL\((\w+), (\w+), "(.*)"\)$', (HERE / "system_calls.def").read_text(),
                      re.MULTILINE)


class Row:
    """One kind of surroundings, of the ranks |where|. |words|: arguments of the rank. |prefix|: in front of it."""

    def __init__(self, name, where, words=(), prefix=(), works=False, settings=None, unread=False):
        self.name = f"{name} on {'rank 1' if where == (1,) else 'all ranks'}"
        self.where, self.words, self.prefix, self.works = where, list(words), list(prefix), works
        self.settings = settings or {}
        self.unread = unread  # standard error is a pipe that nobody reads any more

    def run(self, program):
        """"" or what is wrong."""
        start = time.monotonic()
        try:
            return self.run_ranks(program)
        finally:
            self.seconds = time.monotonic() - start

    def run_ranks(self, program):
        environment = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
                           HETCOMM_SECRET="the secret of this test", HETCOMM_DETECTION_TIME="2s",
                           HETCOMM_BOOTSTRAP_TIMEOUT=f"{BUSY_BOOTSTRAP_S if self.works else BOOTSTRAP_S}s",
                           HETCOMM_TIMEOUT="30s" if self.works else "15s", **self.settings)
        ranks = []
        for rank in range(2):
            odd = rank in self.where
            command = [*(self.prefix if odd else []), program, *(self.words if odd else [])]
            errors = subprocess.PIPE
            if odd and self.unread:
                read_end, errors = os.pipe()
                os.close(read_end)
            ranks.append(subprocess.Popen(command, env=dict(environment, RANK=str(rank)), text=True,
                                          stdout=subprocess.PIPE, stderr=errors))
            if errors != subprocess.PIPE:
                os.close(errors)
        end = time.monotonic() + LIMIT_S
        wrong = []
        for number, rank in enumerate(ranks):
            try:
                output, errors = rank.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                rank.kill()
                output, errors = rank.communicate()
                wrong.append(f"rank {number} hangs: {output}{errors}")
                continue
            fault = self.fault_of(rank.returncode, output)
            if fault:
                wrong.append(f"rank {number} {fault}: {output}{errors}")
        return "; ".join(wrong)

    def fault_of(self, status, output):
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        if status == 0 and output.strip().endswith("ok"):
            return ""
        failure = re.search(r"^FAILED (.+): ([A-Z_]+): (.*)", output, re.MULTILINE)
        if status != 1 or not failure:
            return f"ended with status {status} and without a text"
        if self.works:
            return "does not do without it"
        if failure[2] == "INTERNAL" or len(failure[3]) < 10:
            return "says nothing to people"
        return ""


def hidden(where):
    """A command that runs its arguments with this file system hidden."""
    mounts = {"proc": "mount -t tmpfs none /proc", "sys": "mount -t tmpfs none /sys",
              "proc and sys": "mount -t tmpfs none /sys && mount -t tmpfs none /proc",
              "dev-shm": "mount -t tmpfs -o ro none /dev/shm", "tmp": "mount -t tmpfs -o ro none /var/tmp"}
    return ["unshare", "--mount", "sh", "-c", mounts[where] + ' && exec "$@"', "sh"]


def rows_of(kind):
    rows = []
    one, both = (1,), (0, 1)

    def add(quick, *arguments, **options):
        if quick or kind == "long":
            rows.append(Row(*arguments, **options))

    for name, expected, _ in system_calls():
        if expected == "KEPT":
            continue
        works = expected == "WORKS"
        for error in ("EPERM", "ENOSYS"):
            for where in (one, both):
                quick = name in OFTEN_REFUSED and (error == "EPERM") == (where == one)
                add(quick, f"{name} is {error}", where, ["refuse", error, name], works=works)
    for family in ("AF_UNIX", "AF_NETLINK", "AF_INET6"):
        for error in ("EPERM", "EAFNOSUPPORT", "ENOSYS"):
            for where in (one, both):
                add(error != "ENOSYS", f"{family} is {error}", where, ["refuse", error, f"socket:{family}"],
                    works=True)
    for where in (one, both):
        add(True, "standard error without a reader", where, works=True, unread=True,
            settings={"HETCOMM_LOG": "debug"})
        add(True, "log file at its limit", where, ["limit", "fsize", "2000000"], works=True,
            settings={"HETCOMM_LOG": "info", "HETCOMM_LOG_FILE": FULL_LOG})
        # No sandbox is as strict: local sockets, netlink, IPv6 and the ioctls.
        strict = [word for call in ("socket:AF_UNIX", "socket:AF_NETLINK", "ioctl") for word in ("refuse", "EPERM", call)]
        add(True, "no local sockets and no list of interfaces", where, strict, works=True)
        for name, value, works in (("fsize", "0", False), ("fsize", "1000000", False), ("fsize", "2000000", True),
                                   ("nofile", "12", False), ("nofile", "40", False), ("memlock", "0", True),
                                   ("as", "+1000000", False), ("as", "+60000000", False),
                                   ("data", "+1000000", False), ("data", "+40000000", False),
                                   ("stack", "65536", False), ("stack", "2000000", True)):
            add(True, f"limit {name} {value}", where, ["limit", name, value], works=works)
        if os.getuid() == 0 and shutil.which("setpriv"):
            add(False, "limit nproc 1", where, ["limit", "nproc", "1"],
                prefix=["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
    if os.getuid() == 0 and shutil.which("unshare") and subprocess.run(
            ["unshare", "--mount", "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0:
        for where in (one, both):
            for what in ("proc", "sys", "proc and sys", "dev-shm", "tmp"):
                add(what != "tmp", f"hidden {what}", where, prefix=hidden(what), works=True,
                    settings={"LD_LIBRARY_PATH": LIBRARIES})
            for space in ("ipc", "uts", "pid", "user", "cgroup"):
                fork = ["--fork"] if space == "pid" else []
                add(space == "pid", f"own {space} namespace", where,
                    prefix=["unshare", f"--{space}", *fork], works=True)
        add(False, "own network namespace", one, prefix=["unshare", "--net"])
    else:
        print("hidden file systems and namespaces are left out: not root, or no unshare")
    return rows


def run_table(program, kind, word):
    Path(FULL_LOG).write_bytes(b"x" * 2_000_000)
    try:
        return run_rows(program, kind, word)
    finally:
        Path(FULL_LOG).unlink()


def run_rows(program, kind, word):
    rows = [row for row in rows_of(kind) if word in row.name]
    start = time.monotonic()
    wrong = 0
    slowest = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=2 * (os.cpu_count() or 1)) as pool:
        for row, outcome in zip(rows, pool.map(lambda row: row.run(program), rows)):
            slowest.append((row.seconds, row.name))
            if outcome:
                wrong += 1
                print(f"{row.name}: {outcome}\n", flush=True)
    told = ", ".join(f"{name} {seconds:.1f} s" for seconds, name in sorted(slowest, reverse=True)[:5])
    print(f"{len(rows)} rows in {time.monotonic() - start:.0f} s, {wrong} wrong; the slowest: {told}")
    return 1 if wrong or not rows else 0


def trace(program, kinds):
    """The system calls of a job over each of the transports are those of the list."""
    if not shutil.which("strace"):
        print("skipped: no strace")
        return SKIPPED
    listed = {name for name, _, _ in system_calls()}
    made = set()
    with tempfile.TemporaryDirectory() as folder:
        for transports in kinds:
            row = Row("traced", (0, 1), prefix=["strace", "-f", "-ff", "-qq", "-o", f"{folder}/{transports or 'all'}"],
                      works=True, settings={"HETCOMM_TRANSPORTS": transports})
            fault = row.run(program)
            if "Operation not permitted" in fault:
                print("skipped: this process may not trace")
                return SKIPPED
            if fault:
                print(fault)
                return 1
        for path in Path(folder).iterdir():
            text = path.read_text()
            # The thread that starts the process makes the calls of its start first.
            text = text[text.find("getpgid(0)") + 1:] if "getpgid(0)" in text else text
            made |= set(re.findall(r"^(\w+)\(", text, re.MULTILINE)) - {"getpgid", "etpgid"}
    new = sorted(made - listed)
    print(f"{len(made)} system calls; not listed in system_calls.def: {', '.join(new) or 'none'}; listed and not "
          f"seen here: {', '.join(sorted(listed - made)) or 'none'}")
    return 1 if new or not made else 0


def main():
    program, kind, *rest = sys.argv[1:]
    if kind == "trace":
        return trace(program, rest or ("shm", "tcp", ""))
    return run_table(program, kind, rest[0] if rest else "")


if __name__ == "__main__":
    sys.exit(main())
