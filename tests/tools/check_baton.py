#!/usr/bin/env python3
"""Checks that clang refuses a touch without the baton.

Each case is a few lines that call an annotated function. Those that hold the baton compile, and the
others fail with an error of the thread-safety analysis.
"""

import argparse
import shutil
import subprocess
import sys

SKIPPED = 77
WARNINGS = ["-Wthread-safety", "-Werror=thread-safety"]

HEAD = """
#include "src/core/memory/registration.h"
#include "src/core/progress/engine.h"
#include "transports/transport.h"
using namespace hetcomm;
"""

# Each case says what is tried, whether it compiles, and the body of a function.
CASES = [
    ("a call with the baton", True,
     "const Engine::Baton baton(engine); engine.drain();"),
    ("a call without the baton", False,
     "engine.drain();"),
    ("a call after the baton was given up", False,
     "{ const Engine::Baton baton(engine); } engine.drain();"),
    ("a call with a baton that was taken over", True,
     "if (!engine.try_lock_as_user()) return; const Engine::Held held(engine); engine.drain();"),
    ("a call with a baton that may not have been taken", False,
     "static_cast<void>(engine.try_lock_as_user()); engine.drain();"),
    ("a baton that is not given up", False,
     "engine.lock();"),
    ("a wait with the baton", False,
     "const Engine::Baton baton(engine); engine.wait(0, [] { return true; });"),
    ("a member that the baton guards", False,
     "memory.mapped = nullptr;"),
    ("a call of a transport", False,
     "transport.progress();"),
    ("a lambda that needs the baton, called without it", False,
     "const auto drain = [&]() HETCOMM_UNDER_BATON { engine.drain(); }; drain();"),
]


def complaint(compiler, includes, body):
    """What the compiler says of a function with |body|; empty when it compiles."""
    source = (f"{HEAD}void touch(Engine& engine, RemoteMemory& memory, Transport& transport);\n"
              f"void touch(Engine& engine, RemoteMemory& memory, Transport& transport) {{\n"
              "  static_cast<void>(engine), static_cast<void>(memory), static_cast<void>(transport);\n"
              f"  {body}\n}}\n")
    command = [compiler, "-x", "c++", "-std=c++20", "-D_GNU_SOURCE", *WARNINGS, *includes,
               "-fsyntax-only", "-"]
    run = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
    return run.stderr if run.returncode != 0 else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--compiler", default="clang++")
    options = parser.parse_args()

    if shutil.which(options.compiler) is None:
        print(f"skipped: there is no {options.compiler} here")
        return SKIPPED
    includes = [f"-I{options.root}", f"-I{options.root}/include"]
    faults = 0
    for what, compiles, body in CASES:
        said = complaint(options.compiler, includes, body)
        if compiles == (said == "") and (compiles or "-Wthread-safety" in said):
            continue
        faults += 1
        print(f"{what}: {'does not compile' if said else 'compiles'}\n{said}")
    print(f"{len(CASES)} cases, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
