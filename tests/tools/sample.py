#!/usr/bin/env python3
"""Draws comments or names of tests at random, for somebody who reads them aloud and marks the bad ones.

  sample.py comments [COUNT] [SEED]   comments of the product and its tools, with the code around them
  sample.py tests [COUNT] [SEED]      names of tests, with the lines after them

COUNT is 64 or 30, SEED the date, so that everybody who draws today reads the same.
"""

import datetime
import io
import random
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("include", "src", "transports", "devices", "topology", "reshard", "pipeline", "bench", "tools", "python", "examples")
LITERAL_OR_COMMENT = re.compile(
    r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|(?P<comment>//[^\n]*|/\*.*?\*/)', re.DOTALL)
NO_SENTENCE = re.compile(r"NOLINT|SPDX|clang-format|^//\s*(?:namespace|---)|^#!|^#\s*(?:noqa|pylint)|^/\*\s*\w+_H_?\s*\*/$|extern \"C\"")
TEST = re.compile(r"^\s*(?:TEST(?:_[FP])?\((\w+,\s*\w+)\)|def (test_\w+)\()", re.MULTILINE)
AROUND = 8


def comments_of_c(text):
    """Returns (first line, last line) of every block of comments; lines one below another are one block."""
    # Digits may be separated by an apostrophe, which begins no character.
    text = re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "_", text)
    blocks = []
    for match in LITERAL_OR_COMMENT.finditer(text):
        told = match.group("comment")
        if not told or NO_SENTENCE.search(told):
            continue
        first = text.count("\n", 0, match.start())
        begin = text.rfind("\n", 0, match.start()) + 1
        alone = not text[begin:match.start()].strip()
        if blocks and alone and blocks[-1][2] == match.start() - begin and blocks[-1][1] == first - 1:
            blocks[-1][1] = first + told.count("\n")
        else:
            blocks.append([first, first + told.count("\n"), match.start() - begin if alone else None])
    return [(first, last) for first, last, _ in blocks]


def comments_of_python(text):
    blocks = []
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_text = token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT)
        if (token.type == tokenize.COMMENT or is_text) and not NO_SENTENCE.search(token.string):
            first, last = token.start[0] - 1, token.end[0] - 1
            alone = not token.line[:token.start[1]].strip()
            if blocks and alone and not is_text and blocks[-1][2] and blocks[-1][1] == first - 1:
                blocks[-1][1] = last
            else:
                blocks.append([first, last, alone and not is_text])
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    return [(first, last) for first, last, _ in blocks]


def comments_of(path, text):
    return comments_of_python(text) if path.suffix == ".py" else comments_of_c(text)


def tests_of(_, text):
    return [(line, line) for line in (text.count("\n", 0, match.end()) for match in TEST.finditer(text))]


def files(folders):
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")))
    return [path for path in found if path.suffix in (".h", ".cc", ".c", ".py") and "build" not in path.relative_to(ROOT).parts]


def draw(find, folders, count, seed):
    """Returns |count| of what |find| finds, as (path, lines of the file, first, last)."""
    found = []
    for path in files(folders):
        text = path.read_text(encoding="utf-8")
        found += [(path, text.split("\n"), first, last) for first, last in find(path, text)]
    return random.Random(seed).sample(found, min(count, len(found)))


def main(arguments):
    kinds = {"comments": (comments_of, PRODUCT, 64), "tests": (tests_of, ("tests",), 30)}
    if not arguments or arguments[0] not in kinds:
        print(__doc__, file=sys.stderr)
        return 2
    find, folders, count = kinds[arguments[0]]
    count = int(arguments[1]) if len(arguments) > 1 else count
    seed = arguments[2] if len(arguments) > 2 else datetime.date.today().isoformat()
    for number, (path, lines, first, last) in enumerate(draw(find, folders, count, seed), 1):
        print(f"\n=== {number}. {path.relative_to(ROOT)}:{first + 1}")
        for index in range(max(0, first - AROUND), min(len(lines), last + 1 + AROUND)):
            print(f"{'>' if first <= index <= last else ' '} {lines[index]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
