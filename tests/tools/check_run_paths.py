#!/usr/bin/env python3
"""Checks where the loader looks for the libraries of every program and library that was built.

An entry of a run path that is empty or relative means the current directory, in which somebody else may
have put a library. The same holds for a needed library that is named with a relative path.

Usage: check_run_paths.py FOLDER...  Prints every violation; exits with 1 if there is one, or if there is
nothing to check. --self-test FOLDER CC: builds wrong files there, and expects them to be told.
"""

import re
import subprocess
import sys
from pathlib import Path


def elf_files(folders):
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def faults_of(path):
    shown = subprocess.run(["readelf", "-dW", str(path)], check=True, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    faults = []
    for kind, value in re.findall(r"\((RUNPATH|RPATH|NEEDED)\)[^\[]*\[(.*)\]$", shown, re.MULTILINE):
        if kind == "NEEDED":
            if "/" in value and not value.startswith("/"):
                faults.append(f"{path}: needs '{value}' below the current directory")
            continue
        for entry in value.split(":"):
            if not entry.startswith(("/", "$ORIGIN", "${ORIGIN}")):
                faults.append(f"{path}: {kind} '{value}' has the entry '{entry}', the current directory")
                break
    return faults


def self_test(folder, compiler):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "empty.c"
    source.write_text("int hetcomm_nothing;\n")
    for path, wrong in (("::", True), ("/usr/lib:", True), ("lib", True), ("$ORIGIN:../lib", True),
                        ("$ORIGIN/../lib:/usr/lib", False)):
        library = folder / "libempty.so"
        subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library), "-Wl,-rpath," + path],
                       check=True)
        told = faults_of(library)
        assert bool(told) == wrong, f"'{path}': {told}"
    print("self-test passed")


def main():
    if sys.argv[1] == "--self-test":
        self_test(*sys.argv[2:])
        return
    files = list(elf_files(sys.argv[1:]))
    faults = [fault for path in files for fault in faults_of(path)]
    print("\n".join([*faults, f"{len(files)} programs and libraries, {len(faults)} violations"]))
    sys.exit(1 if faults or not files else 0)


if __name__ == "__main__":
    main()
