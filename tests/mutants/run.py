#!/usr/bin/env python3
"""Breaks one promise at a time and tells which breaches no test notices.

Every patch of this folder is applied to a copy of the tree, what its tests need is built there, and the
tests run. A test that fails has noticed. README.md describes the patches.

  tests/mutants/run.py                      all of them; hours on two cores
  tests/mutants/run.py handshake 'core_*'   those whose names contain a word or match a pattern
  tests/mutants/run.py --part 2/5           the second fifth of them
  tests/mutants/run.py --except FILE        without those that a file names, such as an earlier run's output
  tests/mutants/run.py --check              only see whether all patches are complete and apply
  tests/mutants/run.py --list               names and promises

The exit status is 0 when every mutant was caught. With the tests of a mutant failing on the tree as it
is, or not building, nothing is known about it, and that is an error as well.
"""

import argparse
import collections
import concurrent.futures
import fnmatch
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEYS = ("Promise", "Build", "Run", "Seconds")


@dataclass
class Mutant:
    """One patch and the fields of its head."""
    path: Path
    promise: str = ""
    targets: list = field(default_factory=list)
    commands: list = field(default_factory=list)
    seconds: int = 120
    changes_header: bool = False

    @property
    def name(self):
        return self.path.stem


class Incomplete(Exception):
    """A patch whose head lacks something."""


def read_mutant(path):
    mutant = Mutant(path)
    text = path.read_text()
    mutant.changes_header = re.search(r"^\+\+\+ b/\S+\.h$", text, re.MULTILINE) is not None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("diff ", "--- ")):
            break
        key, colon, value = line.partition(":")
        value = value.strip()
        if not line.strip():
            continue
        if not colon or key not in KEYS or not value:
            raise Incomplete(f"{path.name}:{number}: expected one of {', '.join(KEYS)}, found '{line}'")
        if key == "Promise":
            mutant.promise = value
        elif key == "Build":
            mutant.targets += value.split()
        elif key == "Run":
            mutant.commands.append(value)
        else:
            mutant.seconds = int(value)
    else:
        raise Incomplete(f"{path.name}: no patch in it")
    for key, given in (("Promise", mutant.promise), ("Build", mutant.targets), ("Run", mutant.commands)):
        if not given:
            raise Incomplete(f"{path.name}: no '{key}:'")
    return mutant


def read_all(words):
    mutants = [read_mutant(path) for path in sorted(HERE.glob("*.patch"))]
    if not words:
        return mutants
    chosen = [m for m in mutants if any(w in m.name or fnmatch.fnmatch(m.name, w) for w in words)]
    if not chosen:
        raise Incomplete(f"no mutant is called {' or '.join(words)}")
    return chosen


def patch(mutant, folder, *options):
    """Returns the output of patch(1) where it failed, else None."""
    done = subprocess.run(["patch", "-p1", "--batch", "--fuzz=1", "--no-backup-if-mismatch", *options,
                           "-i", str(mutant.path)], cwd=folder, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout if done.returncode else None


def targets_of(build):
    """The names of all targets of a build folder."""
    done = subprocess.run(["cmake", "--build", str(build), "--target", "help"], text=True, check=True,
                          stdout=subprocess.PIPE)
    return {word for line in done.stdout.splitlines() for word in re.findall(r"[\w.-]+", line)[:1]}


class Tests:
    """The tests of a build folder."""

    def __init__(self, build):
        self.build = build
        self.of_program = {}
        self.of_ctest = re.findall(r"Test +#\d+: (\S+)", self.output_of("ctest", "-N"))

    def output_of(self, *command):
        environment = {name: value for name, value in os.environ.items() if name != "HETCOMM_TEST_TIMING"}
        return subprocess.run(command, cwd=self.build, text=True, check=True, stdout=subprocess.PIPE, env=environment).stdout

    def names(self, program):
        """The names of a program's tests, without tests of time, which run by ctest only."""
        if program not in self.of_program:
            suite, names = "", []
            for line in self.output_of(program, "--gtest_list_tests").splitlines():
                name = line.split("#")[0].strip()
                if line.startswith("  "):
                    names.append(suite + name)
                elif re.fullmatch(r"\S+\.", name):
                    suite = name
            self.of_program[program] = names
        return self.of_program[program]

    def has_any(self, command):
        """Whether a command of a patch runs any test. True where its program is not built."""
        words = shlex.split(command)
        if words[0] == "ctest":
            pattern = words[words.index("-R") + 1]
            return any(re.search(pattern, name) for name in self.of_ctest)
        program = self.build / "bin" / "tests" / words[0]
        filters = [word.partition("=")[2] for word in words if word.startswith("--gtest_filter=")]
        if not filters or not program.exists():
            return True
        chosen, _, left_out = filters[-1].partition("-")

        def matches(name, patterns):
            return any(fnmatch.fnmatchcase(name, each) for each in patterns.split(":"))

        return any(matches(name, chosen or "*") and not matches(name, left_out) for name in self.names(program))


def check(mutants, build):
    """Whether every patch applies to the tree, and the build folder (unless None) has the tests that it names."""
    bad = 0
    known = targets_of(build) if build else None
    tests = Tests(build) if build else None
    for mutant in mutants:
        refusal = patch(mutant, ROOT, "--dry-run")
        named = {*mutant.targets, *(command.split()[0] for command in mutant.commands)} - {"ctest"}
        unknown = sorted(named - known) if build else []
        empty = [command for command in mutant.commands if build and not tests.has_any(command)]
        bad += bool(refusal or unknown or empty)
        if refusal:
            print(f"{mutant.name}: does not apply:\n{refusal}")
        if unknown:
            print(f"{mutant.name}: {build} has no target {' or '.join(unknown)}")
        for command in empty:
            print(f"{mutant.name}: no test is run by: {command}")
    print(f"{len(mutants) - bad} of {len(mutants)} mutants apply")
    return bad == 0


class Copy:
    """A copy of the tree, and its build folders: for changes of headers, which many sources include, sources are
    compiled together."""

    def __init__(self, folder):
        self.source = folder / "source"
        self.builds = {False: folder / "build", True: folder / "together"}

    def refresh(self):
        """Makes the copy equal to the tree; what is equal keeps its time, so that nothing is built twice."""
        self.source.mkdir(parents=True, exist_ok=True)
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.decode()
        names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
        for name in names:
            new, old = ROOT / name, self.source / name
            old.parent.mkdir(parents=True, exist_ok=True)
            content = new.read_bytes()
            if not old.exists() or old.read_bytes() != content:
                old.write_bytes(content)
            old.chmod(new.stat().st_mode)
        for old in self.source.rglob("*"):
            if old.is_file() and str(old.relative_to(self.source)) not in names:
                old.unlink()
        venv = ROOT / "build" / "venv"
        # A test of a shared library needs no linking for each change in it.
        for together, build in self.builds.items():
            configure = ["cmake", "--preset", "plain" if together else "dev", "-B", str(build),
                         "-DCMAKE_LINK_DEPENDS_NO_SHARED=ON"]
            if (venv / "bin" / "python").exists():
                configure.append(f"-DPython_EXECUTABLE={venv}/bin/python")
            subprocess.run(configure, cwd=self.source, check=True, stdout=subprocess.DEVNULL)

    def make(self, targets, together):
        """Returns the end of the output where the build failed, else None."""
        # ccache sees the same relative paths in every copy, and so compiles what is equal once.
        environment = {**os.environ, "CCACHE_BASEDIR": str(self.source.parent), "CCACHE_NOHASHDIR": "1"}
        done = subprocess.run(["cmake", "--build", str(self.builds[together]), "--target", *targets], text=True,
                              env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return "\n".join(done.stdout.splitlines()[-20:]) if done.returncode else None

    def passes(self, mutant):
        """Returns None where all tests pass, else how the first one ended."""
        build = self.builds[mutant.changes_header]
        for command in mutant.commands:
            words = shlex.split(command)
            if words[0] != "ctest":
                words[0] = str(build / "bin" / "tests" / words[0])
            else:
                words.append("--no-tests=error")
            log = (build / "mutant.log").open("w")
            process = subprocess.Popen(words, cwd=build, stdout=log, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            try:
                status = process.wait(mutant.seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"no end after {mutant.seconds} s: {command}"
            if status:
                return f"exit status {status}: {command}"
            if "[  PASSED  ] 0 tests." in (build / "mutant.log").read_text(errors="replace"):
                return f"the filter selects no test: {command}"
        return None


def try_one(copy, mutant):
    """Returns what became of a mutant, and why: 'caught', 'survived' or 'error'."""
    refusal = patch(mutant, copy.source)
    if refusal:
        return "error", f"does not apply:\n{refusal}"
    try:
        failure = copy.make(mutant.targets, mutant.changes_header)
        if failure:
            return "error", f"does not build:\n{failure}"
        noticed = copy.passes(mutant)
    finally:
        refusal = patch(mutant, copy.source, "--reverse")
        if refusal:
            raise SystemExit(f"{mutant.name} could not be taken back:\n{refusal}")
    return ("caught", noticed) if noticed else ("survived", mutant.promise)


def fail_unbroken(copies, mutants):
    """The mutants whose tests do not pass where nothing is broken, and why; by name."""
    for together in (False, True):
        targets = sorted({target for mutant in mutants if mutant.changes_header == together
                          for target in mutant.targets})
        for copy in copies if targets else ():
            failure = copy.make(targets, together)
            if failure:
                raise SystemExit(f"the tree does not build:\n{failure}")
    known = {}

    def key_of(mutant):
        return mutant.changes_header, *mutant.commands

    def try_unbroken(copy, mutant):
        known[key_of(mutant)] = copy.passes(mutant)

    share_out({key_of(mutant): mutant for mutant in mutants}.values(), copies, try_unbroken)
    return {mutant.name: known[key_of(mutant)] for mutant in mutants if known[key_of(mutant)]}


def share_out(entries, copies, act):
    """Calls act(copy, entry) for all entries: each copy takes the next one that waits."""
    waiting = collections.deque(entries)

    def work(copy):
        while True:
            try:
                entry = waiting.popleft()
            except IndexError:
                return
            act(copy, entry)

    with concurrent.futures.ThreadPoolExecutor(len(copies)) as threads:
        for finished in [threads.submit(work, copy) for copy in copies]:
            finished.result()


def run(mutants, folder, jobs):
    copies = [Copy(folder / str(number)) for number in range(jobs)]
    for copy in copies:
        copy.refresh()
    print(f"{len(mutants)} mutants; their tests must pass on the tree as it is", flush=True)
    bad = fail_unbroken(copies, mutants)
    ends = {"caught": [], "survived": [], "error": []}

    def try_and_tell(copy, entry):
        number, mutant = entry
        start = time.monotonic()
        if mutant.name in bad:
            end, why = "error", f"its tests fail without it: {bad[mutant.name]}"
        else:
            end, why = try_one(copy, mutant)
        ends[end].append(mutant.name)
        print(f"[{number}/{len(mutants)}] {end:8} {mutant.name} ({time.monotonic() - start:.0f} s) {why}", flush=True)

    # Headers last, since many sources include them, and tests of one program together.
    mutants = sorted(mutants, key=lambda each: (each.changes_header, each.commands[0].split()[0]))
    share_out(enumerate(mutants, 1), copies, try_and_tell)
    for end in ("survived", "error"):
        for name in ends[end]:
            print(f"{end}: {name}")
    print(f"{len(ends['caught'])} of {len(mutants)} mutants caught")
    return len(ends["caught"]) == len(mutants)


def part_of(text):
    """The numbers in K/N."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= parts:
        raise argparse.ArgumentTypeError(f"expected K/N with K from 1 to N, not '{text}'")
    return number, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of names, or patterns")
    parser.add_argument("--check", action="store_true", help="see whether all patches apply, and stop")
    parser.add_argument("--build", type=Path, metavar="DIR",
                        help="with --check: a build folder, which must have the tests that the patches name")
    parser.add_argument("--list", action="store_true", help="print names and promises, and stop")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N",
                        help="the K-th of N parts of the mutants, in the order of their names")
    parser.add_argument("--except", type=Path, metavar="FILE", dest="leave_out",
                        help="leave out those that a text names, such as the output of\n"
                             "an earlier run, but for survivors and errors")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), metavar="N",
                        help="mutants to try at once, each in a copy of its own (default: half the processors)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants",
                        help="for the copies of the tree and their builds (default: build/mutants)")
    arguments = parser.parse_args()
    try:
        mutants = read_all(arguments.names)
    except Incomplete as error:
        sys.exit(f"run.py: {error}")
    number, parts = arguments.part
    mutants = mutants[len(mutants) * (number - 1) // parts:len(mutants) * number // parts]
    if arguments.leave_out:
        lines = arguments.leave_out.read_text().splitlines()
        tried = {word for line in lines if not re.search(r"\b(survived|error)\b", line) for word in re.findall(r"\w+", line)}
        mutants = [mutant for mutant in mutants if mutant.name not in tried]
    if not mutants:
        sys.exit(f"run.py: part {number} of {parts} has no mutant that is not left out")
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.promise}")
        return 0
    good = check(mutants, arguments.build) if arguments.check else run(mutants, arguments.folder.resolve(), max(1, arguments.jobs))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
