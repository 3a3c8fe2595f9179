#!/usr/bin/env python3
"""Checks what clang-format leaves alone in sources: the length and the beginning of comments.

  * a line has at most 100 columns, unless it belongs to a raw string;
  * no comment begins with a word of BEGINNINGS: these begin fragments, not sentences.

Usage: check_comments.py [root]. Prints one line for each fault; exits with 1 if there is any.
"""

import re
import sys
from pathlib import Path

FOLDERS = ("include", "src", "transports", "devices", "topology", "reshard", "pipeline", "bench", "tools", "python", "examples",
           "tests")
SUFFIXES = (".h", ".cc", ".c")
COLUMNS = 100
BEGINNINGS = re.compile(r"(?:^\s*//|^\s*/\*|\S\s+//|\S\s+/\*)\s(What|How|Whether|Why|Of|Whoever|So many)\b")
RAW = re.compile(r'R"(\w*)\(.*?\)\1"', re.DOTALL)


def lines_of(path):
    """The lines of |path|; those of raw strings are empty."""
    text = path.read_text(encoding="utf-8")
    return RAW.sub(lambda match: "\n" * match.group(0).count("\n"), text).split("\n")


def begins_a_comment(lines, index):
    """Whether the comment in line |index| goes on with none of the line before."""
    line = lines[index]
    if not re.match(r"\s*//", line):
        return True
    return index == 0 or not re.match(r"\s*//", lines[index - 1]) or lines[index - 1].rstrip().endswith("//")


def check_tree(root):
    faults = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or "build" in path.relative_to(root).parts:
                continue
            where = path.relative_to(root).as_posix()
            lines = lines_of(path)
            for number, line in enumerate(lines, 1):
                if len(line) > COLUMNS:
                    faults.append(f"{where}:{number}: {len(line)} columns; {COLUMNS} are the most")
                found = BEGINNINGS.search(line)
                if found and begins_a_comment(lines, number - 1):
                    faults.append(f"{where}:{number}: a comment begins with '{found.group(1)}'")
    return faults


def main(arguments):
    root = Path(arguments[1]) if len(arguments) > 1 else Path(__file__).resolve().parents[2]
    faults = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"check_comments: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
