#!/usr/bin/env python3
"""Installs a build tree into a temporary prefix and uses it as a stranger would.

Steps, each a test of its own that needs the first:
  install        installs, then moves the prefix: what follows proves that nothing depends on it
  contents       headers, library, packages and licence are there; only hetcomm_* is exported; no
                 file contains a path of the source or the build tree
  pkg-config     compiles and runs consumer/main.c with the flags of pkg-config
  cmake-package  builds and runs consumer/ with find_package(hetcomm)
  tools          the installed tools start; hetcomm_bench finds its driver in Python and compiles a runner from the
                 sources beside it
  plugin         examples/device_plugin.c, built by the command that it shows, brings its device to
                 the installed tools
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

CONSUMER = Path(__file__).resolve().parent / "consumer"


def fail(message):
    sys.exit(f"check_install: {message}")


def run(*command, env=None):
    """Runs |command| and returns what it printed; a failure ends the test with its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, capture_output=True, check=False,
                          env={**os.environ, **(env or {})})
    if done.returncode != 0:
        fail(f"{' '.join(words)} returned {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def only_match(prefix, pattern):
    found = sorted(prefix.rglob(pattern))
    if len(found) != 1:
        fail(f"expected one {pattern} in {prefix}, found {[str(path) for path in found]}")
    return found[0]


def install(options):
    shutil.rmtree(options.work, ignore_errors=True)
    first = options.work / "first"
    run(options.cmake, "--install", options.build, "--prefix", first)
    first.rename(options.prefix)


def check_exports(library):
    symbols = run("nm", "-D", "--defined-only", library).split("\n")
    names = [line.split()[-1] for line in symbols if line]
    strangers = [name for name in names if not name.startswith("hetcomm_")]
    if strangers or not names:
        fail(f"{library.name} exports {strangers or 'nothing'}")
    return len(names)


def contents(options):
    public = options.source / "include"
    for header in public.rglob("*.h"):
        relative = header.relative_to(public)
        if relative.name != "mpi.h" and not (options.prefix / "include" / relative).is_file():
            fail(f"{relative} is not installed")
    for pattern in ("hetcomm.pc", "hetcomm_plan.pc", "hetcomm_pipeline.pc", "hetcommConfig.cmake",
                    "hetcommConfigVersion.cmake", "LICENSE"):
        only_match(options.prefix, pattern)

    exported = 0
    for name in ("libhetcomm", "libhetcomm_plan", "libhetcomm_pipeline"):
        library = only_match(options.prefix, f"{name}.so.{options.version}")
        exported += check_exports(library)
        dynamic = run("readelf", "-d", library)
        soname = f"{name}.so.{options.version.split('.')[0]}"
        if f"[{soname}]" not in dynamic:
            fail(f"SONAME is not {soname}:\n{dynamic}")
        if "libmpi" in dynamic:
            fail(f"{name} needs MPI:\n{dynamic}")

    run(sys.executable, options.source / "tests/tools/check_run_paths.py", options.prefix)

    forbidden = [str(options.source).encode(), str(options.build).encode(), b"/work/first"]
    for path in options.prefix.rglob("*"):
        # Debug information of a development build names sources; text files never may.
        if path.is_file() and path.suffix in (".h", ".pc", ".cmake"):
            for text in forbidden:
                if text in path.read_bytes():
                    fail(f"{path} contains {text.decode()}")
    print(f"{exported} exported symbols")


def check_output(options, output):
    words = output.split()
    if len(words) < 2 or not words[0].startswith(options.version):
        fail(f"expected version {options.version} and a name, got {output!r}")
    print(output.strip())


def pkg_config(options):
    pc_folder = only_match(options.prefix, "hetcomm.pc").parent
    env = {"PKG_CONFIG_PATH": str(pc_folder)}
    for package, source in (("hetcomm", "main.c"), ("hetcomm_plan", "plan.c"),
                            ("hetcomm_pipeline", "pipeline.c")):
        version = run("pkg-config", "--modversion", package, env=env).strip()
        if version != options.version:
            fail(f"{package}.pc says {version}, not {options.version}")
        flags = run("pkg-config", "--cflags", "--libs", package, env=env).split()
        library_folder = run("pkg-config", "--variable=libdir", package, env=env).strip()
        program = options.work / f"{package}-consumer"
        run(options.c_compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", CONSUMER / source, *flags,
            "-o", program)
        check_output(options, run(program, env={"LD_LIBRARY_PATH": library_folder}))


def cmake_package(options):
    build = options.work / "consumer-cmake"
    run(options.cmake, "-S", CONSUMER, "-B", build, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={options.prefix}", f"-DCMAKE_C_COMPILER={options.c_compiler}")
    run(options.cmake, "--build", build)
    # The rpath that CMake writes into a build tree must do: no LD_LIBRARY_PATH here.
    for program in ("consumer", "plan_consumer", "pipeline_consumer"):
        check_output(options, run(build / program))


def tools(options):
    programs = sorted((options.prefix / "bin").glob("*"))
    for program in programs:
        run(program, "--help")
    print(f"{len(programs)} tools start: {', '.join(program.name for program in programs)}")
    data = options.prefix / "share" / "hetcomm" / "bench"
    if not (data / "driver" / "peers.py").is_file():
        fail(f"{data} has no driver")
    compared = run(options.prefix / "bin" / "hetcomm_bench", "bandwidth", "-b", "64K", "-e", "64K", "-n", "5",
                   "--transport", "shm", "--compare", "memcpy", "--rounds", "1", "--peers", options.work / "none",
                   "--format", "csv", env={"HETCOMM_PYTHON": sys.executable})
    if "bandwidth,memcpy," not in compared:
        fail(f"hetcomm_bench does not compare:\n{compared}")
    included = run(options.c_compiler, "-x", "c++", "-std=c++17", f"-I{options.prefix / 'share' / 'hetcomm'}", "-M",
                   data / "peers" / "runner.h", data / "peers" / "meeting.h")
    if str(data / "loops" / "run.h") not in included:
        fail(f"the sources of the runners are not those of {data}:\n{included}")
    if list(data.rglob("__pycache__")):
        fail(f"a run has written into {data}")


def plugin(options):
    pc_folder = only_match(options.prefix, "hetcomm.pc").parent
    flags = run("pkg-config", "--cflags", "hetcomm", env={"PKG_CONFIG_PATH": str(pc_folder)}).split()
    library = options.work / "libexample.so"
    run(options.c_compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
        options.source / "examples" / "device_plugin.c", "-o", library, *flags)
    env = {"HETCOMM_DEVICE_PLUGINS": str(library), "HETCOMM_DEVICES": "example"}
    listed = run(options.prefix / "bin" / "hetcomm_info", "--devices", env=env)
    if "example: host memory with handles for names" not in listed:
        fail(f"hetcomm_info does not list the plug-in's device:\n{listed}")
    run(options.prefix / "bin" / "hetcomm_bench", "latency", "--transport", "shm", "--memory",
        "plugin:example", "-e", "1M", "-f", "64", "-n", "5", "--check", env=env)
    print("the plug-in's device is listed, and its memory moves")


STEPS = {"install": install, "contents": contents, "pkg-config": pkg_config,
         "cmake-package": cmake_package, "tools": tools, "plugin": plugin}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, type=Path)
    parser.add_argument("--build", required=True, type=Path)
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--c-compiler", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("step", choices=STEPS)
    options = parser.parse_args()
    options.work = options.build / "install-test"
    options.prefix = options.work / "prefix"
    STEPS[options.step](options)


if __name__ == "__main__":
    main()
