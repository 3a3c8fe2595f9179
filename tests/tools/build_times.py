#!/usr/bin/env python3
"""How long each file of a build took, from the log that Ninja keeps.

build_times.py BUILD_FOLDER [--top N]

Writes a line for each output to BUILD_FOLDER/times.txt, slowest first, and prints the first N lines and
the sum by folder. A time is from start to end, so that it also counts what ran beside.
"""

import argparse
import collections
import sys
from pathlib import Path


def read_log(text):
    """{output: seconds} of the last time that each output was made."""
    seconds = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if line.startswith("#") or len(fields) < 4:
            continue
        # One command may make several outputs: it counts once, under the first of them.
        seconds[(fields[0], fields[1], fields[4] if len(fields) > 4 else fields[3])] = fields[3]
    times = {}
    for (start, end, _), output in seconds.items():
        times[output] = (int(end) - int(start)) / 1000
    return times


def folder_of(output):
    """The folder that an output is made for: src/core of src/core/CMakeFiles/x.dir/job.cc.o."""
    return output.split("/CMakeFiles/")[0] if "/CMakeFiles/" in output else str(Path(output).parent)


def sums_by_folder(times):
    """[(seconds, files, folder)], largest first."""
    total, count = collections.Counter(), collections.Counter()
    for output, seconds in times.items():
        total[folder_of(output)] += seconds
        count[folder_of(output)] += 1
    return sorted(((total[f], count[f], f) for f in total), reverse=True)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--top", type=int, default=15)
    options = parser.parse_args(arguments)
    log = options.folder / ".ninja_log"
    if not log.exists():
        print(f"build_times: {log} is missing; was {options.folder} built by Ninja?", file=sys.stderr)
        return 1
    times = read_log(log.read_text())
    lines = [f"{seconds:8.1f} s  {output}" for output, seconds in sorted(times.items(), key=lambda t: (-t[1], t[0]))]
    (options.folder / "times.txt").write_text("\n".join(lines) + "\n")
    print(f"Slowest files of {options.folder} (all: {options.folder / 'times.txt'}):")
    print("\n".join(lines[:options.top]))
    print("Seconds by folder:")
    for seconds, files, folder in sums_by_folder(times)[:options.top]:
        print(f"{seconds:8.1f} s  {files:4d} files  {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
