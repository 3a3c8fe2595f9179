#!/usr/bin/env python3
"""Checks that the tables of files in the README.md of folders are complete and true.

A table of files is one whose first column is called "file". The names in it stand in backticks. Those
of its first column have to exist, and all that stand in its rows count as listed:

  name.h, name.cc, name   the header and sources of that name, and sources name_*.cc without a header
  folder/                 all files below the folder
  name.*, folder/*.cc     a pattern

A program that a README.md calls whole, with a link to its file, has to stand in that file as it does in the
README.md.

Every source file of the folder has to be listed, except CMakeLists.txt. So has every one in a
subfolder that some name of the table leads into, unless the subfolder has a README.md of its own.

Usage: check_readmes.py [root]. Prints one line for each fault; exits with 1 if there is any.
"""

import fnmatch
import re
import sys
from pathlib import Path, PurePosixPath

SUFFIXES = (".h", ".hpp", ".c", ".cc", ".cpp", ".inc", ".py", ".cmake")
HEADERS = (".h", ".hpp")
SKIPPED_FOLDERS = {"build", ".git", ".cache", ".venv", "third_party", "__pycache__"}
NAME = re.compile(r"`([^`\s]+)`")
PROGRAM = re.compile(r"whole program \(\[[^\]]*\]\(([^)]+)\)\).*?^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def file_tables(text):
    """The rows of all tables of files in |text|, each as a list of cells."""
    rows = []
    lines = text.splitlines()
    inside = False
    for line, following in zip(lines, lines[1:] + [""]):
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not inside and re.match(r"\|[-| :]+$", following):
            inside = cells[0].lower() == "file"
        elif inside and not re.match(r"\|[-| :]+$", line):
            rows.append(cells)
    return rows


def files_below(folder, root):
    """Source files that |folder| answers for, relative to it."""
    found = set()
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name in SKIPPED_FOLDERS or (path / "README.md").exists():
                continue
            found |= {f"{path.name}/{name}" for name in files_below(path, root)}
        elif path.suffix in SUFFIXES:
            found.add(path.name)
    return found


def without_suffix(name):
    return name[: -len(PurePosixPath(name).suffix)] if name.endswith(SUFFIXES) else name


def matches(name, path, files):
    """Whether |name|, as it stands in a table, means |path|, one of |files|."""
    if name.endswith("/"):
        return path.startswith(name)
    if "*" in name:
        return fnmatch.fnmatchcase(path, name)
    unit = without_suffix(name)
    own = without_suffix(path)
    if own == unit:
        return True
    has_header = any(own + suffix in files for suffix in HEADERS)
    belongs = any(unit + suffix in files for suffix in HEADERS)
    return belongs and not has_header and own.startswith(unit + "_")


def check_programs(readme, text, where):
    faults = []
    for name, program in PROGRAM.findall(text):
        source = readme.parent / name
        if not source.exists() or program not in source.read_text(encoding="utf-8"):
            faults.append(f"{where}: the whole program is another one than {name}")
    return faults


def check_readme(readme, root):
    text = readme.read_text(encoding="utf-8")
    where = readme.relative_to(root).as_posix()
    faults = check_programs(readme, text, where)
    if where == "README.md" and (root / "examples").is_dir() and not PROGRAM.search(text):
        faults.append(f"{where}: shows no whole program")
    rows = file_tables(text)
    if not rows:
        return faults
    files = files_below(readme.parent, root)
    first = [name for row in rows for name in NAME.findall(row[0])]
    listed = [name for row in rows for cell in row for name in NAME.findall(cell)]
    for name in first:
        exists = any(matches(name, path, files) for path in files)
        if not exists and not (readme.parent / name).exists():
            faults.append(f"{where}: `{name}` is no file of this folder")
    entered = {name.rsplit("/", 1)[0] for name in first if "/" in name}
    for path in sorted(files):
        folder = path.rpartition("/")[0]
        if folder and not any(folder == each or folder.startswith(each + "/") for each in entered):
            continue
        if not any(matches(name, path, files) for name in listed):
            faults.append(f"{where}: {path} is not in the table of files")
    return faults


def check_tree(root):
    root = Path(root).resolve()
    readmes = [path for path in sorted(root.rglob("README.md"))
               if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts)]
    return len(readmes), [fault for readme in readmes for fault in check_readme(readme, root)]


def main(arguments):
    root = Path(arguments[1]) if len(arguments) > 1 else Path(__file__).resolve().parents[2]
    count, faults = check_tree(root)
    for fault in faults:
        print(fault)
    print(f"check_readmes: {count} files, {len(faults)} faults")
    if count == 0:
        print(f"check_readmes: no README.md below {root}")
        return 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
