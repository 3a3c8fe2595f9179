"""Compiles runners: programs that need the headers of a library that hetcomm does not depend on.

The result is kept in the folder of the peers, under a name that depends on source and command, and without that
folder in a temporary one, which hetcomm_bench removes.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

# Holds bench/loops and bench/peers, in the source tree and after an installation alike.
ROOT = Path(os.path.abspath(__file__)).parents[2]


class Missing(Exception):
    """Why there is no runner, or no peer."""


def capture(*command, environment=None):
    """The standard output of a command; "" if it fails."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True, timeout=30,
                              stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def compiler():
    found = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if not found:
        raise Missing("a C++ compiler is needed to build its runner (c++, g++, clang++ or $CXX)")
    return found


def first_error(text):
    """The line of a compiler's output that describes the error."""
    for line in text.splitlines():
        if "error:" in line or "undefined reference" in line:
            return "its runner cannot be compiled: " + line
    return text.strip()


class Builder:
    def __init__(self, peers_folder, scratch):
        self.folder = Path(scratch)
        if peers_folder and Path(peers_folder).is_dir():
            kept = Path(peers_folder) / "runners"
            try:
                kept.mkdir(exist_ok=True)
            except OSError:
                return
            if os.access(kept, os.W_OK):
                self.folder = kept

    def build(self, runner, command, libraries=()):
        """Compiles bench/peers/|runner|.cc by |command|, with |libraries|. Returns the path of the program."""
        command = [*map(str, command), "-x", "c++", "-std=c++17", "-O3", "-w", f"-I{ROOT}",
                   str(ROOT / "bench" / "peers" / f"{runner}.cc"), "-x", "none", *libraries,
                   "-lstdc++", "-lm", "-pthread"]
        state = hashlib.sha256(" ".join(command).encode())
        for folder in ("loops", "peers"):
            for source in sorted((ROOT / "bench" / folder).glob("*.*")):
                state.update(source.read_bytes())
        program = self.folder / f"{runner}-{state.hexdigest()[:16]}"
        if os.access(program, os.X_OK):
            return str(program)
        # Compiled under another name, so that a second hetcomm_bench never runs a part of a program.
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
