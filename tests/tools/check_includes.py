#!/usr/bin/env python3
"""Checks that every source includes what it uses, so that it compiles by itself.

A build with HETCOMM_UNITY compiles the sources of a module together, so that one source may live on the includes
of another. This reads the text only: a name that one header of the tree defines, or that belongs to a header of the
standard library, needs that header among the file's includes and theirs.

  * a type, a constant or an enumerator of the tree: names that begin with a capital, and kNames;
  * the names of NAMES in namespace std.

Usage: check_includes.py [root]. Prints one line for each fault; exits with 1 if there is any.
"""

import re
import sys
from pathlib import Path

from check_units import without_noise

FOLDERS = ("include", "src", "transports", "devices", "topology", "reshard", "bench", "tools", "python/src")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
TYPE = re.compile(r"^(?:template\s*<[^;{]*>\s*)?(?:class|struct|enum class|enum|union)\s+(?:\[\[\w+\]\]\s*|HETCOMM_\w+(?:\([^)]*\))?\s+)*"
                  r"([A-Z]\w+)(?:\s+final)?\s*(?::[^:;{][^;{]*)?\{", re.MULTILINE)
ALIAS = re.compile(r"^using\s+([A-Z]\w+)\s*=", re.MULTILINE)
CONSTANT = re.compile(r"^(?:inline\s+)?constexpr\s[^=;(]*?\b(k[A-Z]\w*)\b", re.MULTILINE)
DECLARED = re.compile(r"\b(?:class|struct|enum class|enum)\s+([A-Z]\w+)\s*(?:;|:\s*\w+\s*;)")
WORD = re.compile(r"(?<![\w:.>])(?:[A-Z]|k[A-Z])\w*\b")
STD = re.compile(r"\bstd::(\w+)")
# A class of torch is known by its last name inside of a class that extends it.
FOREIGN = re.compile(r"\b(?:c10d|c10|at|torch)::(\w+)")
# Names of the standard library, by header.
NAMES = {
    "algorithm": "sort stable_sort find_if any_of all_of none_of count_if lower_bound upper_bound min_element max_element "
                 "clamp transform reverse equal copy_n remove_if fill_n",
    "array": "array", "atomic": "atomic atomic_flag", "chrono": "chrono", "condition_variable": "condition_variable",
    "deque": "deque", "filesystem": "filesystem", "functional": "function", "future": "future promise",
    "latch": "latch", "limits": "numeric_limits", "list": "list", "map": "map multimap",
    "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared", "mutex": "mutex lock_guard scoped_lock unique_lock once_flag",
    "new": "bad_alloc", "numeric": "accumulate iota", "optional": "optional nullopt", "set": "set multiset", "span": "span",
    "string": "string to_string", "string_view": "string_view", "thread": "thread", "tuple": "tuple tie",
    "unordered_map": "unordered_map", "unordered_set": "unordered_set", "variant": "variant visit", "vector": "vector",
}
# Headers that have the names of others too, by the standard.
ALSO = {"mutex": {"shared_mutex"}, "string_view": {"string"}, "array": {"span"}}
HEADER_OF = {name: header for header, names in NAMES.items() for name in names.split()}


class File:
    """What the text of a source or header says."""

    def __init__(self, text):
        found = INCLUDE.findall(text)
        self.own = [own for own, _ in found if own]
        self.system = {system for _, system in found if system}
        code = INCLUDE.sub("", without_noise(text))
        self.defined = {*TYPE.findall(code), *ALIAS.findall(code), *CONSTANT.findall(code)}
        self.declared = set(DECLARED.findall(code))
        self.words = set(WORD.findall(code))
        # Anything that is declared inside of the file in any other way is its own.
        self.local = set(re.findall(r"(?:class|struct|enum class|enum|union|using|typename|typename\.\.\.|#define)\s+(?:\w+::)*(\w+)", code)) \
            | set(re.findall(r"\b(k[A-Z]\w*)\s*(?:=|,|\{|\})", code)) | set(FOREIGN.findall(code))
        self.std = set(STD.findall(code))


def read(root):
    files = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cc") and "build" not in path.relative_to(root).parts:
                files[path.relative_to(root).as_posix()] = File(path.read_text(encoding="utf-8"))
    return files


def reached(files, name):
    """Returns the files of the tree that |name| includes, itself among them, and the system's headers."""
    seen, todo, system = set(), [name], set()
    while todo:
        at = todo.pop()
        if at in seen or at not in files:
            continue
        seen.add(at)
        system |= files[at].system
        for header in files[at].own:
            todo.append(header if header in files else f"include/{header}")
        todo += [f"include/{header}" for header in files[at].system]
    return seen, system


def check_tree(root):
    files = read(root)
    homes = {}
    for name, file in files.items():
        if name.endswith(".h"):
            for word in file.defined:
                homes.setdefault(word, []).append(name)
    homes = {word: found[0] for word, found in homes.items() if len(found) == 1}
    faults = []
    for name, file in files.items():
        seen, system = reached(files, name)
        declared = set().union(*(files[each].declared | files[each].local for each in seen))
        for word in sorted(file.words & homes.keys()):
            if homes[word] not in seen and word not in declared:
                faults.append(f"{name}: {word} is in {homes[word]}, which is not included")
        for used in sorted(file.std & HEADER_OF.keys()):
            header = HEADER_OF[used]
            if not ({header} | ALSO.get(header, set())) & system:
                faults.append(f"{name}: std::{used} needs <{header}>")
    return faults


def main(arguments):
    root = Path(arguments[1]) if len(arguments) > 1 else Path(__file__).resolve().parents[2]
    faults = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"check_includes: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
