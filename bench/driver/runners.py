"""Compiles runners: programs that need the headers of a library that hetcomm does not depend on.

A runner is kept in the folder of the peers, under a name that depends on its source and command.
Without that folder, it is put into a temporary one, which hetcomm_bench removes.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# The folder that contains bench/loops and bench/peers, in the source tree and in an installation.
ROOT = Path(os.path.abspath(__file__)).parents[2]


class Missing(Exception):
    """Raised with the reason why there is no runner, or no peer."""


def capture(*command, environment=None):
    """Returns the standard output of a command, or "" if it fails."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace",
                              check=True, timeout=30, stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def compiler():
    found = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if not found:
        raise Missing("a C++ compiler is needed to build its runner (c++, g++, clang++ or $CXX)")
    return found


def first_error(text):
    """Returns a line of a compiler's output that explains why a runner cannot be compiled."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "error:" in line or "undefined reference" in line]
    line = (told[:1] or lines[-1:] or ["the compiler says nothing"])[0]
    return "its runner cannot be compiled: " + line[:300]


def drop_unfinished(folder):
    """Removes the files of compilers that were killed. The name of such a file ends with a process
    id."""
    for path in folder.glob("runner_*.*"):
        number = path.suffix[1:]
        if number.isdigit() and not os.path.exists(f"/proc/{number}"):
            path.unlink()


class Builder:
    def __init__(self, peers_folder):
        self.scratch = ""  # the temporary folder, or "" before there is one
        self.kept = None
        if not peers_folder or not os.path.isdir(peers_folder):
            return
        kept = Path(peers_folder) / "runners"
        try:
            kept.mkdir(exist_ok=True)
            if os.access(kept, os.W_OK):
                self.kept = kept
                drop_unfinished(kept)
        except OSError:
            pass  # another hetcomm_bench may remove files there at the same time

    def folder(self):
        if self.kept:
            return self.kept
        self.scratch = self.scratch or tempfile.mkdtemp(prefix="hetcomm_bench-")
        return Path(self.scratch)

    def build(self, runner, command, libraries=()):
        """Compiles bench/peers/|runner|.cc with |command| and |libraries|. Returns the path of the
        program."""
        command = [*map(str, command), "-x", "c++", "-std=c++17", "-O3", "-w", f"-I{ROOT}",
                   str(ROOT / "bench" / "peers" / f"{runner}.cc"), "-x", "none", *libraries,
                   "-lstdc++", "-lm", "-pthread"]
        state = hashlib.sha256(os.fsencode(" ".join(command)))
        for folder in ("loops", "peers"):
            for source in sorted((ROOT / "bench" / folder).glob("*.*")):
                state.update(source.read_bytes())
        program = self.folder() / f"{runner}-{state.hexdigest()[:16]}"
        if os.access(program, os.X_OK):
            return str(program)
        # The message explains the delay to users. The blank line on standard output keeps
        # hetcomm_bench from killing a silent driver. JSON may begin with blank lines.
        print(f"hetcomm_bench: compiling {runner}", file=sys.stderr, flush=True)
        print(flush=True)
        # Compiles under another name, so that a second hetcomm_bench never runs an unfinished program.
        unfinished = f"{program}.{os.getpid()}"
        try:
            done = subprocess.run([*command, "-o", unfinished], capture_output=True, text=True, errors="replace",
                                  timeout=120, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise Missing(f"its runner cannot be compiled: {error}") from error
        if done.returncode != 0:
            raise Missing(first_error(done.stderr))
        os.replace(unfinished, program)
        return str(program)
