#!/usr/bin/env python3
"""Compares the functions that the public headers declare with what else must name them.

  exports  the library exports each of them, and the names that they had before (compat.h), and nothing else;
           with --alone it links no other library of this tree;
  covered  each of them is called by the tests of bad input (bad_input_*.cc).

  variables  compares the variables that each layer declares (variables.h) with its own table, and the tables
             with what src/capi/variables.h joins.

--header names the one header of a library of its own. Without it, those of OWN_LIBRARIES are left out.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

OWN_LIBRARIES = {"hetcomm/mpi.h", "hetcomm/pipeline.h"}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DECLARATION = re.compile(r"\bHETCOMM_API\b[^;{}()]*?\b(hetcomm_\w+)\s*\(")
# A call, or a function that is handed to one.
CALL = re.compile(r"\b(hetcomm_\w+)\s*[(,]")
FORMER = re.compile(r"^#define (hetcomm_\w+) (hetcomm_\w+)$", re.MULTILINE)
# One API declaration each; a declaration that DECLARATION cannot read must not go unnoticed.
MARK = re.compile(r"^(?!\s*#).*\bHETCOMM_API\b", re.MULTILINE)


def declared(include, only):
    """Names of all functions in the headers below |include|, or in the one that is named |only|."""
    names = set()
    for header in sorted(include.glob("*.h")):
        if header.name != only if only else f"{include.name}/{header.name}" in OWN_LIBRARIES:
            continue
        text = COMMENT.sub(" ", header.read_text(encoding="utf-8"))
        found = DECLARATION.findall(text)
        marks = len(MARK.findall(text))
        if len(found) != marks:
            sys.exit(f"{header}: {marks} times HETCOMM_API, but {len(found)} functions")
        names.update(found)
    if not names:
        sys.exit(f"no functions below {include}")
    return names


def former(include, only):
    """The names that functions had before, each with the name of now; none without a compat.h."""
    if only or not (include / "compat.h").exists():
        return {}
    names = dict(FORMER.findall((include / "compat.h").read_text(encoding="utf-8")))
    if not names:
        sys.exit("no names in compat.h")
    return names


def exported(nm, library):
    """Names of all symbols that |library| offers to the dynamic linker."""
    run = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True,
                         check=True)
    return {line.split()[-1].partition("@")[0] for line in run.stdout.splitlines() if line.strip()}


def needed(readelf, library):
    """Names of the libraries that |library| links."""
    run = subprocess.run([readelf, "--dynamic", library], capture_output=True, text=True, check=True)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", run.stdout))


def called(tests):
    """Names of all hetcomm functions that the bad-input tests call."""
    names = set()
    for source in tests.glob("bad_input_*"):
        names.update(CALL.findall(COMMENT.sub(" ", source.read_text(encoding="utf-8"))))
    return names


def check_variables(root):
    """Says which variables and tables nobody lists. Returns whether there are any."""
    bad = False
    listed = (root / "src/capi/variables.h").read_text(encoding="utf-8")
    declarations = 0
    for header in sorted(root.glob("**/variables.h")):
        below = header.relative_to(root)
        if below.parts[0] in ("build", "tests") or below.match("src/capi/variables.h"):
            continue
        text = header.read_text(encoding="utf-8")
        declared_here = re.findall(r"^inline constexpr Variable (k\w+)\(", text, re.MULTILINE)
        tables = re.findall(r"^inline constexpr const Variable\* (k\w+)\[\] = \{(.*?)\};", text,
                            re.MULTILINE | re.DOTALL)
        in_tables = [name for _, table in tables for name in re.findall(r"&(k\w+)", table)]
        bad = report(f"{below}: in no table", set(declared_here) - set(in_tables)) or bad
        bad = report(f"{below}: twice", {n for n in in_tables if in_tables.count(n) > 1}) or bad
        for table, _ in tables:
            if f"variable::{table}" not in listed:
                bad = report("not in src/capi/variables.h", [table]) or bad
        declarations += len(declared_here)
    if declarations == 0:
        sys.exit(f"no variables below {root}")
    print(f"check_api variables: {declarations} variables, {'failed' if bad else 'good'}")
    return bad


def report(what, names):
    for name in sorted(names):
        print(f"{what}: {name}")
    return bool(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", type=Path)
    parser.add_argument("--header")
    commands = parser.add_subparsers(dest="command", required=True)
    exports = commands.add_parser("exports")
    exports.add_argument("--nm", default="nm")
    exports.add_argument("--library", required=True)
    exports.add_argument("--readelf", default="readelf")
    exports.add_argument("--alone", action="store_true", help="the library links no other of this tree")
    covered = commands.add_parser("covered")
    covered.add_argument("--tests", required=True, type=Path)
    commands.add_parser("variables").add_argument("--root", required=True, type=Path)
    options = parser.parse_args()

    if options.command == "variables":
        return 1 if check_variables(options.root) else 0
    names = declared(options.include, options.header)
    if options.command == "exports":
        symbols = exported(options.nm, options.library)
        old = former(options.include, options.header)
        bad = report("in compat.h, but no function", set(old.values()) - names)
        bad = report("a former name that is declared again", set(old) & names) or bad
        bad = report("declared but not exported", (names | set(old)) - symbols) or bad
        bad = report("exported but not declared", symbols - names - set(old)) or bad
        if options.alone:
            others = {name for name in needed(options.readelf, options.library) if "hetcomm" in name}
            bad = report("linked though it has to stand alone", others) or bad
    else:
        bad = report("no test of bad input calls", names - called(options.tests))
    print(f"check_api {options.command}: {len(names)} functions, {'failed' if bad else 'good'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
