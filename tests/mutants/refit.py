#!/usr/bin/env python3
"""Moves patches to where their code is now.

A patch that does not apply any more is searched for in the whole tree: the lines that it takes out, or
those around a place where it only adds, have to stand somewhere exactly once, whatever their indentation.
Names that have changed can be given, so that lines which differ in them only are found.

Usage: refit.py [--rename OLD=NEW ...]... Rewrites the patches that it can move, and prints those that it
cannot; exits with 1 if there are any.
"""

import argparse
import difflib
import re
import sys
from pathlib import Path

import run

ROOT = run.ROOT
FOLDERS = ("include", "src", "transports", "devices", "topology", "reshard", "pipeline", "bench", "tools", "python")
CONTEXT = 3


def read_tree():
    return {str(path.relative_to(ROOT)): path.read_text().split("\n")
            for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in (".h", ".cc", ".c", ".py")}


def hunks_of(text):
    """(path, lines) of every hunk; a line keeps its first character: blank, + or -."""
    path, lines = None, None
    for line in text.split("\n"):
        if line.startswith("+++ "):
            path, lines = line[6:], None
        elif line.startswith("@@"):
            if lines:
                yield path, lines
            lines = []
        elif line.startswith(("diff ", "--- ")):
            if lines:
                yield path, lines
            lines = None
        elif lines is not None and line[:1] in (" ", "+", "-"):
            lines.append(line)
    if lines:
        yield path, lines


def renamed(line, names):
    for old, new in names:
        line = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, line)
    return line


def normal(line):
    return " ".join(line.split())


def find(tree, needle, preferred):
    """Places (path, index) where the lines of |needle| stand one after the other."""
    found = []
    first = needle[0]
    for path, lines in tree.items():
        for i in range(len(lines) - len(needle) + 1):
            if lines[i] == first and lines[i:i + len(needle)] == needle:
                found.append((path, i))
    near = [place for place in found if place[0] == preferred]
    return near if near else found


def trims(lines):
    """The hunk with less and less context, as (lines cut at the front, at the end)."""
    front = next(i for i, line in enumerate(lines) if line[0] != " ")
    back = next(i for i, line in enumerate(reversed(lines)) if line[0] != " ")
    cuts = [(f, b) for f in range(front + 1) for b in range(back + 1)]
    return sorted(cuts, key=lambda cut: cut[0] + cut[1])


def refit_hunk(tree, plain, path, lines, names):
    """The path, the index and the two texts of the hunk where it fits now. None: nowhere, or twice."""
    lines = [line[0] + renamed(line[1:], names) for line in lines]
    for front, back in trims(lines):
        kept = lines[front:len(lines) - back]
        old = [line[1:] for line in kept if line[0] != "+"]
        if not any(normal(line) for line in old):
            continue
        places = find(plain, [normal(line) for line in old], path)
        if len(places) != 1:
            continue
        where, index = places[0]
        now = tree[where][index:index + len(old)]
        new, position, indent = [], 0, 0
        for line in kept:
            if line[0] != "+":
                indent = (len(now[position]) - len(now[position].lstrip())) - (len(line[1:]) - len(line[1:].lstrip()))
                if line[0] == " ":
                    new.append(now[position])
                position += 1
            else:
                text = line[1:]
                new.append(" " * indent + text if indent >= 0 else text[min(-indent, len(text) - len(text.lstrip())):])
        return where, index, now, new
    return None


def refit(mutant, tree, plain, names):
    """The text of the patch where it fits now; None if some part of it fits nowhere."""
    text = mutant.path.read_text()
    head = text[:re.search(r"^(diff|---) ", text, re.M).start()]
    after = {}
    for path, lines in hunks_of(text):
        found = refit_hunk(tree, plain, path, lines, names)
        if found is None:
            return None
        where, index, old, new = found
        after.setdefault(where, []).append((index, old, new))
    parts = []
    for path, changes in sorted(after.items()):
        changed = list(tree[path])
        for index, old, new in sorted(changes, reverse=True):
            changed[index:index + len(old)] = new
        parts.append(f"diff --git a/{path} b/{path}\n")
        parts += [line + "\n" for line in difflib.unified_diff(tree[path], changed, f"a/{path}", f"b/{path}", lineterm="", n=CONTEXT)]
    return "\n".join(renamed(line, names) for line in head.split("\n")) + "".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    names = [rename.split("=", 1) for rename in parser.parse_args().rename]
    tree = read_tree()
    plain = {path: [normal(line) for line in lines] for path, lines in tree.items()}
    lost = 0
    for mutant in run.read_all([]):
        if run.patch(mutant, ROOT, "--dry-run") is None:
            continue
        text = refit(mutant, tree, plain, names)
        if text is None:
            print(f"{mutant.path.name}: fits nowhere, or in several places")
            lost += 1
        else:
            mutant.path.write_text(text)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
