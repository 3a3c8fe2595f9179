#!/usr/bin/env python3
"""Checks that the arrows between the folders of this tree point down.

Every source file belongs to the layer with the longest matching path below. It may include what
that layer lists, files of its own layer, and the system's headers. The rules:

  * a file includes only what its layer lists; a file outside of all layers is an error;
  * a forward declaration counts as an include: it names only classes of layers that the file may see, but for
    those of NAMED_UPWARDS, a list that only gets shorter;
  * includes of this tree are written from the repository's root (or <hetcomm/...>), and exist;
  * a library's headers are included only where THIRD_PARTY says, so that a vendor is named in one
    folder;
  * extern "C" stands only where a C ABI is made.

Usage: check_layers.py [root]. Prints one line for each violation; exits with 1 if there is any.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

PUBLIC = "include/hetcomm/"
PLAN_PUBLIC = "include/hetcomm_plan/"
BASE = "src/base/"
SYSTEM = "src/system/"
# What people read: JSON, pictures, rates. Tools, benchmarks and tests may use it.
PRESENT = "src/present/"
LINKS = "topology/links/"
NET = "src/net/"
LIVENESS = "src/liveness/"
REDUCE = "src/reduce/reduce.h"
BOOTSTRAP_API = ("src/bootstrap/bootstrap.h", "src/bootstrap/digest_exchange.h",
                 "src/bootstrap/variables.h")
DEVICE_API = "devices/device.h"
TRANSPORT_API = ("transports/transport.h", "transports/abilities.h", "transports/types.h",
                 "transports/variables.h")
# The constructors of the named devices and transports: for src/capi, and for those who define them.
DEVICE_REGISTRY = "devices/registry.h"
# Types and constants of the public API are shared words, usable in every layer. Its functions are
# not: nothing below src/capi could link with them.
PUBLIC_TYPES = "include/hetcomm/"
EVERYTHING = ""
# What every room of core sees.
CORE_BELOW = [PUBLIC_TYPES, BASE, SYSTEM, PRESENT, NET, "topology/", DEVICE_API, *TRANSPORT_API]

# The rooms of peer.
PEER_BELOW = CORE_BELOW + [LIVENESS, "src/core/device/", "src/core/progress/", "src/core/memory/"]
PEER_CONNECTION = ["src/core/peer/sharing/", "src/core/peer/rails/", "src/core/peer/wire/"]
PEER_TIE = ["src/core/peer/matching/", "src/core/peer/pair_services.h", "src/core/peer/association.h"]

# The rooms of job.
JOB_BELOW = PEER_BELOW + [*BOOTSTRAP_API, "src/core/peer/"]

# Path prefix -> what may be included, as path prefixes from the root. A trailing "<x>" stands for
# each subfolder as a layer of its own: transports/tcp does not see transports/shm.
LAYERS = {
    "include/hetcomm/": [PUBLIC],
    # Declares what libhetcomm_plan has taken over.
    "include/hetcomm/compat.h": [PUBLIC, PLAN_PUBLIC],
    PLAN_PUBLIC: [PUBLIC],
    "src/base/": [PUBLIC_TYPES],
    SYSTEM: [PUBLIC_TYPES, BASE, PRESENT],
    PRESENT: [PUBLIC_TYPES, BASE],
    "src/net/": [PUBLIC_TYPES, BASE, SYSTEM],
    "src/reduce/": [PUBLIC_TYPES, BASE],
    "src/bootstrap/": [PUBLIC_TYPES, BASE, SYSTEM, NET],
    "devices/device.h": [PUBLIC_TYPES, BASE, SYSTEM],
    "devices/device.cc": [PUBLIC_TYPES, BASE, SYSTEM, DEVICE_API],
    "devices/variables.h": [PUBLIC_TYPES, BASE, SYSTEM],
    "devices/registry.h": [PUBLIC_TYPES, BASE, SYSTEM, DEVICE_API],
    # The simulation calculates as the host does.
    "devices/sim/": [PUBLIC_TYPES, BASE, SYSTEM, DEVICE_API, DEVICE_REGISTRY, REDUCE],
    "devices/<x>/": [PUBLIC_TYPES, BASE, SYSTEM, DEVICE_API, DEVICE_REGISTRY],
    "transports/": [PUBLIC_TYPES, BASE, SYSTEM, NET, DEVICE_API],
    "transports/<x>/": [PUBLIC_TYPES, BASE, SYSTEM, NET, DEVICE_API, *TRANSPORT_API],
    # A file beside the folders belongs to none.
    "topology/": [],
    LINKS: [PUBLIC_TYPES, BASE, PRESENT],
    "topology/machine/": [PUBLIC_TYPES, BASE, PRESENT, LINKS],
    "topology/read/": [PUBLIC_TYPES, BASE, SYSTEM, PRESENT, LINKS, "topology/machine/"],
    LIVENESS: [PUBLIC_TYPES, BASE, SYSTEM, NET],
    "src/core/device/": CORE_BELOW,
    "src/core/progress/": CORE_BELOW + ["src/core/device/"],
    "src/core/memory/": CORE_BELOW + ["src/core/device/", "src/core/progress/"],
    "src/core/peer/sharing/": PEER_BELOW,
    "src/core/peer/rails/": PEER_BELOW + ["src/core/peer/sharing/"],
    "src/core/peer/wire/": PEER_BELOW + ["src/core/peer/sharing/", "src/core/peer/rails/"],
    "src/core/peer/matching/": PEER_BELOW + PEER_CONNECTION,
    "src/core/peer/pair_services": PEER_BELOW + PEER_CONNECTION + ["src/core/peer/matching/",
                                                                  "src/core/peer/variables.h"],
    "src/core/peer/association": PEER_BELOW + PEER_CONNECTION + ["src/core/peer/matching/",
                                                                 "src/core/peer/pair_services.h"],
    "src/core/peer/transfer/": PEER_BELOW + PEER_CONNECTION + PEER_TIE,
    "src/core/peer/access/": PEER_BELOW + PEER_CONNECTION + PEER_TIE + ["src/core/peer/transfer/"],
    "src/core/peer/": PEER_BELOW + ["src/core/peer/"],
    "src/core/job/membership/": JOB_BELOW,
    "src/core/job/paths/": JOB_BELOW + ["src/core/job/membership/"],
    "src/core/job/": JOB_BELOW + ["src/core/job/"],
    "src/core/context/": JOB_BELOW + ["src/core/job/"],
    "src/core/collectives/": CORE_BELOW + [REDUCE, "src/core/device/", "src/core/progress/",
                                           "src/core/memory/", "src/core/peer/", "src/core/job/",
                                           "src/core/context/"],
    "src/core/communicator/": CORE_BELOW + [LIVENESS, *BOOTSTRAP_API, REDUCE, "src/core/"],
    # A file beside the rooms belongs to none.
    "src/core/": [],
    # Pure: no clock, no file, no environment.
    "reshard/": [PUBLIC_TYPES, BASE, PRESENT, LINKS],
    "pipeline/": [],
    "pipeline/schedule/": [PUBLIC_TYPES, BASE, PRESENT],
    "pipeline/simulate/": [PUBLIC_TYPES, BASE, PRESENT, LINKS, "reshard/", "pipeline/schedule/"],
    "pipeline/arrange/": [PUBLIC_TYPES, BASE, "pipeline/schedule/", "pipeline/simulate/"],
    "pipeline/outlook/": [PUBLIC_TYPES, BASE, PRESENT, "pipeline/schedule/", "pipeline/simulate/",
                          "pipeline/arrange/"],
    "pipeline/plan/": [PUBLIC_TYPES, BASE, PRESENT, "reshard/", "pipeline/schedule/"],
    "pipeline/joint/": [PUBLIC_TYPES, BASE, PRESENT, LINKS, "reshard/", "pipeline/schedule/",
                        "pipeline/simulate/", "pipeline/outlook/", "pipeline/plan/"],
    # A user of the library, as a trainer is.
    "pipeline/execute/": [PUBLIC, BASE, PRESENT, "reshard/", "pipeline/schedule/", "pipeline/plan/"],
    "planner/": [PUBLIC_TYPES, BASE, PRESENT, LINKS, "reshard/", "pipeline/schedule/",
                 "pipeline/simulate/"],
    "src/queue/": [PUBLIC_TYPES, BASE, SYSTEM, "src/core/"],
    "src/reshard/": [PUBLIC_TYPES, BASE, SYSTEM, REDUCE, "src/core/", "reshard/", LINKS],
    "src/wall/": [PUBLIC_TYPES, BASE],
    "src/capi/": [EVERYTHING],
    "src/plan_capi/": [PUBLIC_TYPES, PLAN_PUBLIC, BASE, "src/wall/", LINKS, "topology/machine/", "reshard/",
                       "pipeline/schedule/", "pipeline/outlook/", "pipeline/plan/", "pipeline/joint/"],
    "src/pipeline_capi/": [PUBLIC, BASE, "src/wall/", "pipeline/plan/", "pipeline/execute/"],
    "src/mpi/": [PUBLIC],
    # Programs for people. What several of them share lies in tools/common.
    "tools/common/": [PUBLIC, PLAN_PUBLIC, PRESENT],
    "tools/<x>/": [PUBLIC, PLAN_PUBLIC, PRESENT, "tools/common/"],
    "bench/": [PUBLIC, PLAN_PUBLIC, PRESENT, "tools/common/", "tools/links/"],
    "examples/": [PUBLIC, PLAN_PUBLIC],
    "python/": [PUBLIC, PLAN_PUBLIC],
    "tests/capi/": [PUBLIC, PLAN_PUBLIC, "tests/support/"],
    "tests/install/": [PUBLIC, PLAN_PUBLIC],
    "tests/": [EVERYTHING],
}

# Another library's headers -> the layers that may include them.
THIRD_PARTY = {
    "fmt/": ["src/", "devices/", "transports/", "topology/", "reshard/", "pipeline/", "planner/",
             "bench/", "tools/", "tests/"],
    "nlohmann/": ["src/core/job/membership/transport_costs.cc", "src/core/job/paths/pairing_report.cc",
                  "bench/", "tools/", PRESENT, LINKS,
                  "topology/machine/",
                  "reshard/", "pipeline/outlook/", "pipeline/plan/", "pipeline/execute/",
                  "planner/", "tests/"],
    "CLI/": ["bench/", "tools/", "tests/"],
    "openssl/": ["src/net/", "tests/unit/", "tests/support/certificates.h"],
    "hwloc": ["topology/read/"],
    "mpi.h": ["src/mpi/", "include/hetcomm/mpi.h", "tests/e2e/", "examples/", "tools/common/mpi/",
              "bench/peers/runner_mpi"],
    "gtest/": ["tests/"],
    "gmock/": ["tests/"],
    "benchmark/": ["tests/", "bench/"],
    "hwy/": ["src/reduce/", "tests/unit/reduce/"],
    "infiniband/": ["transports/rdma/", "tests/e2e/failover/queue_pairs"],
    "rdma/": ["transports/rdma/"],
    "ucp/": ["transports/ucx/", "bench/peers/runner_ucx"],
    "gloo/": ["bench/peers/runner_gloo"],
    "ucs/": ["transports/ucx/"],
    "uct/": ["transports/ucx/"],
    "cuda": ["devices/cuda/"],
    "nccl": ["devices/cuda/"],
    "cufile": ["devices/cuda/"],
    "nvml": ["devices/cuda/"],
    "hip/": ["devices/hip/"],
    "rccl/": ["devices/hip/"],
    "hsa/": ["devices/hip/"],
    "CL/": ["devices/opencl/"],
    "level_zero/": ["devices/level_zero/"],
    "sycl/": ["devices/sycl/"],
    "acl/": ["devices/ascend/"],
    "Python.h": ["python/"],
    "pybind11/": ["python/"],
    "nanobind/": ["python/"],
    "torch/": ["python/", "tests/python/"],
    "ATen/": ["python/", "tests/python/"],
    "c10/": ["python/", "tests/python/"],
}

# C and POSIX headers; C++ ones have no dot. Anything else that ends in .h belongs in THIRD_PARTY.
SYSTEM_FOLDERS = ("sys/", "linux/", "net/", "netinet/", "netpacket/", "arpa/", "asm/", "bits/")
SYSTEM_HEADERS = set("""
    assert.h complex.h ctype.h errno.h fenv.h float.h inttypes.h iso646.h limits.h locale.h math.h
    setjmp.h signal.h stdalign.h stdarg.h stdatomic.h stdbool.h stddef.h stdint.h stdio.h stdlib.h
    stdnoreturn.h string.h tgmath.h threads.h time.h uchar.h wchar.h wctype.h
    cpuid.h cxxabi.h dirent.h dlfcn.h elf.h endian.h byteswap.h execinfo.h fcntl.h features.h
    fnmatch.h ftw.h getopt.h glob.h grp.h ifaddrs.h immintrin.h x86intrin.h arm_neon.h libgen.h
    link.h malloc.h mqueue.h netdb.h numa.h numaif.h poll.h pthread.h pwd.h regex.h resolv.h
    sched.h semaphore.h spawn.h stdio_ext.h strings.h syscall.h sysexits.h syslog.h termios.h
    ucontext.h unistd.h utime.h wait.h
    """.split())

C_ABI_FOLDERS = ("include/", "src/capi/", "src/plan_capi/", "src/pipeline_capi/", "src/mpi/", "examples/",
                 "python/", "bench/", "tools/", "tests/")
SOURCE_SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp", ".inc"}
SKIPPED_FOLDERS = {"build", ".git", ".cache", ".venv", "third_party"}

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
EXTERN_C = re.compile(r'\bextern\s+"C"')
# At the beginning of a line, so that nested classes are left out.
FORWARD = re.compile(r"^(?:class|struct)[ ]+(\w+);", re.MULTILINE)
DEFINITION = re.compile(
    r"^(?:class|struct)[ ]+(?:alignas\(\w+\)[ ]+)?(\w+)(?:[ ]+final)?(?:[ ]*:[^:;]|[ ]*\{)", re.MULTILINE)

# Path -> classes of layers above that it still names.
NAMED_UPWARDS = {}


@dataclass(frozen=True)
class Violation:
    path: str
    line: int
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.text}"


def without_comments(text):
    """The same text, and the same lines, with comments blanked."""

    def blank(match):
        token = match.group()
        return re.sub(r"[^\n]", " ", token) if token.startswith(("//", "/*")) else token

    return TOKEN.sub(blank, text)


def layer_of(path):
    """(prefix of the layer that holds |path|, what it may include); None outside of all layers."""
    best = None
    for pattern, allowed in LAYERS.items():
        parent, is_family, rest = pattern.partition("<x>")
        if is_family:
            match = re.match(re.escape(parent) + "[^/]+" + re.escape(rest), path)
            prefix = match.group() if match else None
        else:
            prefix = pattern if path.startswith(pattern) else None
        if prefix is not None and (best is None or len(prefix) > len(best[0])):
            best = (prefix, allowed)
    return best


def starts_with_any(path, prefixes):
    return any(path.startswith(prefix) for prefix in prefixes)


def check_library_include(path, name):
    """What is wrong with |path| including <name>, a header from outside of this tree."""
    for prefix, where in THIRD_PARTY.items():
        if name.startswith(prefix):
            if starts_with_any(path, where):
                return None
            return f"<{name}> may be included in {', '.join(where)} only"
    if "." not in name.rsplit("/", 1)[-1]:
        return None
    if name.startswith(SYSTEM_FOLDERS) or name in SYSTEM_HEADERS:
        return None
    return f"<{name}> is no known header: say in THIRD_PARTY or SYSTEM_HEADERS who may include it"


def check_tree_include(root, path, layer, target):
    """What is wrong with |path| including |target|, a path from the root of this tree."""
    prefix, allowed = layer
    if not (root / target).is_file():
        return f'"{target}" is no file: write the path from the repository\'s root'
    target_layer = layer_of(target)
    if target_layer is not None and target_layer[0] == prefix:
        return None
    if starts_with_any(target, allowed):
        return None
    return f"{prefix} must not include {target}"


def definitions(root, paths):
    """Maps the name of each class to the headers that define one of that name."""
    found = {}
    for path in paths:
        if path.endswith(".h") and not path.startswith("tests/"):
            text = without_comments((root / path).read_text(encoding="utf-8", errors="replace"))
            for name in DEFINITION.findall(text):
                found.setdefault(name, []).append(path)
    return found


def check_forward(path, layer, name, defined):
    """What is wrong with |path| naming class |name|."""
    prefix, allowed = layer
    places = defined.get(name, [])
    for place in places:
        target = layer_of(place)
        if starts_with_any(place, allowed) or (target is not None and target[0] == prefix):
            return None
    if not places or name in NAMED_UPWARDS.get(path, ()):
        return None
    return f"{prefix} must not name {name} of {places[0]}"


def check_file(root, path, defined):
    layer = layer_of(path)
    if layer is None:
        return [Violation(path, 1, "belongs to no layer: add its folder to LAYERS")]
    text = without_comments((root / path).read_text(encoding="utf-8", errors="replace"))
    found = []

    def report(offset, problem):
        found.append(Violation(path, text.count("\n", 0, offset) + 1, problem))

    for match in INCLUDE.finditer(text):
        bracket, name = match.groups()
        if bracket == '"':
            problem = check_tree_include(root, path, layer, name)
        elif name.startswith(("hetcomm/", "hetcomm_plan/")):
            problem = (check_library_include(path, "mpi.h") if name == "hetcomm/mpi.h"
                       else check_tree_include(root, path, layer, "include/" + name))
        else:
            problem = check_library_include(path, name)
        if problem:
            report(match.start(), problem)
    if not path.startswith("tests/"):
        named = set(FORWARD.findall(text))
        for name in sorted(NAMED_UPWARDS.get(path, set()) - named):
            report(0, f"NAMED_UPWARDS still lists {name}")
        for match in FORWARD.finditer(text):
            problem = check_forward(path, layer, match.group(1), defined)
            if problem:
                report(match.start(), problem)
    if not path.startswith(C_ABI_FOLDERS):
        for match in EXTERN_C.finditer(text):
            report(match.start(), 'extern "C" stands only in ' + ", ".join(C_ABI_FOLDERS[:3]))
    return found


def sources(root):
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.suffix in SOURCE_SUFFIXES and SKIPPED_FOLDERS.isdisjoint(relative.parts):
            yield relative.as_posix()


def check_tree(root):
    root = Path(root)
    paths = list(sources(root))
    defined = definitions(root, paths)
    return len(paths), [violation for path in paths for violation in check_file(root, path, defined)]


def main(arguments):
    root = Path(arguments[1]) if len(arguments) > 1 else Path(__file__).resolve().parents[2]
    count, violations = check_tree(root)
    for violation in violations:
        print(violation)
    print(f"check_layers: {count} files, {len(violations)} violations")
    if count == 0:
        print("check_layers: no source files below " + str(root))
        return 1
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
