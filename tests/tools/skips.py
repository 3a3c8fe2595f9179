#!/usr/bin/env python3
"""Tells how many single tests the last run of ctest has skipped, and why: ctest counts its entries only.

skips.py BUILD_FOLDER
"""
import collections
import re
import sys
from pathlib import Path

ENTRY = re.compile(r"^\d+/\d+ Test(?:ing)?: (\S+)")
# What tests/support/skips.cc prints, and unittest.
REASON = re.compile(r"^skipped (\d+): (.*)")
ALL = re.compile(r"^skipped in all: (\d+) of (\d+)")
PYTHON = re.compile(r"^OK \(skipped=(\d+)\)")


def read(lines):
    """Skipped tests by entry, and by reason with the entries."""
    entries = collections.Counter()
    reasons = collections.Counter()
    places = collections.defaultdict(set)
    entry = "?"
    for line in lines:
        if found := ENTRY.match(line):
            entry = found[1]
        elif found := ALL.match(line):
            entries[entry] += int(found[1])
        elif found := REASON.match(line):
            reasons[found[2]] += int(found[1])
            places[found[2]].add(entry)
        elif found := PYTHON.match(line):
            entries[entry] += int(found[1])
            reason = "(Python tests: ctest -V tells why)"
            reasons[reason] += int(found[1])
            places[reason].add(entry)
    return entries, reasons, places


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    log = Path(sys.argv[1]) / "Testing" / "Temporary" / "LastTest.log"
    entries, reasons, places = read(log.read_text(errors="replace").splitlines())
    print(f"{sum(entries.values())} single tests in {len(entries)} entries were skipped")
    for reason, count in reasons.most_common():
        where = sorted(places[reason])
        more = f" and {len(where) - 3} more" if len(where) > 3 else ""
        print(f"  {count}: {reason} [{', '.join(where[:3])}{more}]")


if __name__ == "__main__":
    main()
