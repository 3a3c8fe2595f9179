#!/usr/bin/env python3
"""Checks that every public header compiles alone, as every C and C++ version that is promised.

Each header is included twice in an otherwise empty file: once shows that it brings what it needs,
twice that its guard works. Warnings are errors. <hetcomm/mpi.h> is left out unless --mpi-include
says where <mpi.h> is.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path

C_STANDARDS = ["c99", "c11", "c17"]
CXX_STANDARDS = ["c++11", "c++14", "c++17", "c++20"]
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wundef"]
C_WARNINGS = ["-Wstrict-prototypes"]


def compile_alone(compiler, language, standard, header, include, mpi_includes):
    """The compiler's complaints about |header|; empty when there are none."""
    command = [compiler, "-x", language, f"-std={standard}", *WARNINGS]
    command += C_WARNINGS if language == "c" else []
    command += [f"-I{include}"]
    for folder in mpi_includes:
        command += ["-isystem", folder]
    command += ["-DOMPI_SKIP_MPICXX", "-fsyntax-only", "-"]
    source = f"#include <hetcomm/{header}>\n" * 2
    run = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
    if run.returncode == 0:
        return ""
    return f"<hetcomm/{header}> as {standard} by {compiler}:\n{run.stderr}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True, type=Path)
    parser.add_argument("--c-compiler", required=True)
    parser.add_argument("--cxx-compiler", required=True)
    parser.add_argument("--mpi-include", action="append", default=[])
    options = parser.parse_args()

    headers = sorted(
        path.relative_to(options.include / "hetcomm").as_posix()
        for path in (options.include / "hetcomm").rglob("*.h"))
    if not headers:
        print(f"no headers below {options.include}/hetcomm")
        return 1

    jobs = []
    for header in headers:
        if header == "mpi.h" and not options.mpi_include:
            print("skipped <hetcomm/mpi.h>: no MPI here")
            continue
        includes = options.mpi_include if header == "mpi.h" else []
        jobs += [(options.c_compiler, "c", standard, header, options.include, includes)
                 for standard in C_STANDARDS]
        jobs += [(options.cxx_compiler, "c++", standard, header, options.include, includes)
                 for standard in CXX_STANDARDS]

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        complaints = [text for text in pool.map(lambda job: compile_alone(*job), jobs) if text]
    for text in complaints:
        print(text)
    print(f"check_headers: {len(headers)} headers, {len(jobs)} compilations, {len(complaints)} failed")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
