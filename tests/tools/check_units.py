#!/usr/bin/env python3
"""Checks that the units of this tree form layers, and that classes stay small.

A unit is a header with its sources: x.h, x.cc, and every x_*.cc whose longest prefix with a header is
x.h. Units depend on each other by #include. The rules:

  * a cycle (a strongly connected component) has at most MAX_CYCLE units;
  * a unit stands on at most MAX_FLOORS floors of its room (folder), counted over units that include each other;
  * a class has at most MAX_MEMBERS members and MAX_METHODS methods; a nested class counts by itself;
  * no class names a class of another unit its friend.

LARGE_CLASSES are those that are still larger. The list only gets shorter, and its figures smaller.

Usage: check_units.py [root]. Prints every violation and a summary with the largest classes; exits with
1 if there is a violation.
"""

import re
import sys
from pathlib import Path

FOLDERS = ("src", "transports", "devices", "bench", "tools", "python", "topology", "reshard", "pipeline", "planner")
MAX_CYCLE = 3
MAX_FLOORS = 12
MAX_MEMBERS = 25
MAX_METHODS = 45

# Class -> members, methods.
LARGE_CLASSES = {}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def units_of(root):
    """Maps each file (as a path from the root) to its unit: the path of its header without '.h'."""
    files = [str(p.relative_to(root)) for folder in FOLDERS if (root / folder).is_dir()
             for p in sorted((root / folder).rglob("*")) if p.suffix in (".h", ".cc")]
    headers = {name[:-2] for name in files if name.endswith(".h")}
    units = {}
    for name in files:
        stem = name.rsplit(".", 1)[0]
        if name.endswith(".cc"):
            unit = stem
            while unit not in headers and "_" in unit.rsplit("/", 1)[1]:
                unit = unit.rsplit("_", 1)[0]
            units[name] = unit if unit in headers else stem
        else:
            units[name] = stem[:-4] if stem.endswith("-inl") and stem[:-4] in headers else stem
    return units


def graph_of(root, units):
    edges = {unit: set() for unit in units.values()}
    for name, unit in units.items():
        for target in INCLUDE.findall((root / name).read_text()):
            if target in units and units[target] != unit:
                edges[unit].add(units[target])
    return edges


def components(edges):
    """Strongly connected components with more than one unit, by Tarjan's algorithm, largest first."""
    index, low, on_stack, stack, found = {}, {}, set(), [], []
    for start in sorted(edges):
        if start in index:
            continue
        work = [(start, iter(sorted(edges[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            unit, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(edges[target]))))
                    break
                if target in on_stack:
                    low[unit] = min(low[unit], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[unit])
                if low[unit] == index[unit]:
                    component = []
                    while True:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                        if component[-1] == unit:
                            break
                    if len(component) > 1:
                        found.append(sorted(component))
    return sorted(found, key=len, reverse=True)


def room_of(unit):
    """The folder of a unit."""
    return unit.rpartition("/")[0]


def floors_of(edges, cycles):
    """Maps each unit to its floor in its room: 1 if it stands on no other unit of the room. Units of a cycle share
    a floor."""
    same = {unit: tuple(cycle) for cycle in cycles for unit in cycle}
    floors = {}

    def floor(unit):
        together = same.get(unit, (unit,))
        if unit not in floors:
            below = {target for each in together for target in edges[each]
                     if target not in together and room_of(target) == room_of(unit)}
            height = 1 + max((floor(target) for target in sorted(below)), default=0)
            floors.update((each, height) for each in together)
        return floors[unit]

    for unit in sorted(edges):
        floor(unit)
    return floors


# --- classes -------------------------------------------------------------------------------------

NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
CLASS = re.compile(r"\b(?:class|struct)\s+(?:alignas\s*\([^)]*\)\s*|\[\[\w+\]\]\s*)*([A-Za-z_]\w*(?:::\w+)*)"
                   r"(?:\s+final)?\s*(?::[^;{]*)?\{")
FRIEND = re.compile(r"\bfriend\s+(?:class|struct)\s+([\w:]+)\s*;")


def without_noise(text):
    """The text without comments and literals, preprocessor lines blanked."""
    text = NOISE.sub(lambda m: " " if m.group(0)[0] == "/" else '""', text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)


def closing(text, start):
    """The position behind the brace that closes the one at |start|."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return position + 1
    return len(text)


def declarations(body):
    """The declarations of a class body, each cut off where a function's body or initializer begins."""
    current, depth, position = "", 0, 0
    while position < len(body):
        letter = body[position]
        if letter == "{":
            end = closing(body, position)
            before = current.strip()
            position = end
            # A function's body ends its declaration; braces after = or a name initialise a member.
            if re.search(r"\)\s*(const|noexcept|override|final|->\s*[\w:<>*&\s]+|:.*)*\s*$", before, re.S) and \
                    not before.rstrip().endswith("="):
                yield before
                current = ""
            else:
                current += "{}"
            continue
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
        if letter == ";" and depth == 0:
            yield current.strip()
            current = ""
        else:
            current += letter
        position += 1


def sizes(body):
    """Members and methods of a class body."""
    # Nested types are classes of their own.
    while True:
        nested = re.search(r"\b(?:class|struct|union|enum)\b[^;{()=]*\{", body)
        if not nested:
            break
        end = closing(body, nested.end() - 1)
        body = body[:nested.start()] + "__nested " + body[end:]
    members = methods = 0
    for declaration in declarations(body):
        declaration = re.sub(r"\b(public|protected|private)\s*:", "", declaration).strip()
        declaration = re.sub(r"\[\[\w+\]\]", "", declaration).strip()
        if not declaration or re.match(r"(using|typedef|friend|static_assert|template\s*<[^>]*>\s*friend|class|"
                                       r"struct|enum|static\s+constexpr(?![^=]*\()|union)\b", declaration):
            continue
        if re.match(r"__nested\s*$", declaration):
            continue
        if re.search(r"=\s*(delete|default)$", declaration):
            continue
        head = declaration.split("=")[0] if "operator" not in declaration else declaration
        head = re.sub(r"\b(alignas|GUARDED_BY|PT_GUARDED_BY|REQUIRES|decltype)\s*\([^()]*\)", "", head)
        # Function types within < > are no parameter lists.
        while re.search(r"<[^<>]*>", head):
            head = re.sub(r"<[^<>]*>", "", head)
        if "(" in head:
            methods += 1
        else:
            members += 1 + head.count(",")
    return members, methods


def classes_of(root, units):
    """(unit, class, members, methods, friends) of every class in every file."""
    for name in sorted(units):
        text = without_noise((root / name).read_text())
        for match in CLASS.finditer(text):
            body = text[match.end():closing(text, match.end() - 1) - 1]
            yield (units[name], match.group(1), *sizes(body), FRIEND.findall(body))


def size_problem(label, size, large):
    """What is wrong with a class of that |size|: its members and methods. |large| is like LARGE_CLASSES."""
    limit = (MAX_MEMBERS, MAX_METHODS)
    is_large = any(own > most for own, most in zip(size, limit))
    has = f"{label} has {size[0]} members and {size[1]} methods"
    if label not in large:
        return f"{has} (at most {limit[0]} and {limit[1]})" if is_large else ""
    if not is_large:
        return f"LARGE_CLASSES still lists {label}"
    return "" if size == large[label] else f"{has}; LARGE_CLASSES says {large[label]}"


def check(root, large=None):
    """What is wrong with the tree, its cycles and its classes. |large| is like LARGE_CLASSES."""
    large = large or {}
    problems = []
    units = units_of(root)
    edges = graph_of(root, units)
    found = components(edges)
    for unit, floor in sorted(floors_of(edges, found).items()):
        if floor > MAX_FLOORS:
            problems.append(f"{unit} stands on floor {floor} of its room (at most {MAX_FLOORS})")
    for component in found:
        if len(component) > MAX_CYCLE:
            problems.append(f"a cycle of {len(component)} units (at most {MAX_CYCLE}): {' '.join(component)}")

    classes = list(classes_of(root, units))
    at_home = {}
    for unit, name, *_ in classes:
        at_home.setdefault(name.rsplit("::", 1)[-1], set()).add(unit)
    for unit, name, members, methods, befriended in classes:
        label = f"{unit}:{name}"
        problem = size_problem(label, (members, methods), large)
        if problem:
            problems.append(problem)
        for friend in befriended:
            if unit not in at_home.get(friend.rsplit("::", 1)[-1], {unit}):
                problems.append(f"a friend from another unit: {label} {friend}")
    names = {f"{unit}:{name}" for unit, name, *_ in classes}
    problems += [f"LARGE_CLASSES lists {label}, which is gone" for label in sorted(set(large) - names)]
    return problems, found, classes


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
    problems, found, classes = check(root, LARGE_CLASSES)
    for problem in problems:
        print(problem)
    print("largest classes (members, methods):")
    for unit, name, members, methods, _ in sorted(classes, key=lambda each: -max(each[2] * 2, each[3]))[:20]:
        print(f"  {members:3} {methods:3}  {unit}:{name}")
    print(f"cycles of units: {', '.join(str(len(each)) for each in found) or 'none'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
