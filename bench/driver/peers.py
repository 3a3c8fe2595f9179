"""Finds the libraries to compare with, and describes how each is launched.

hetcomm_bench sends a Question in JSON. It has "works" (test, transport, ranks, bind, iterations,
points, words), "with" (names of peers), "folder" (of installed peers, may be ""), "paths" (name
and path of installations to use instead of those found) and "program" (hetcomm_bench itself).

The reply has "implementations", "complaints" (the reason for each peer that cannot be used) and
"scratch" (a temporary folder that hetcomm_bench removes at the end, or ""). For each work, an
implementation has a "refusal", or "processes" with command, environment and core. In a command,
"{meeting}" is a placeholder for a name that is new in each launch.
"""

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import pairs
from runners import Builder, Missing, capture, compiler

COLLECTIVES = {"allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "reduce", "barrier"}
OTHER_TRANSPORT = "not over this transport"


@dataclass
class Implementation:
    name: str
    version: str
    origin: str
    refusal: Callable
    processes: Callable
    transport: str = ""  # the only transport that the peer supports; "" if it uses the work's


@dataclass
class Question:
    works: list
    folder: str
    paths: list
    program: str
    builder: Builder = field(init=False)

    def __post_init__(self):
        self.builder = Builder(self.folder)

    def given(self, name):
        return [path for peer, path in self.paths if peer == name]


def process(command, environment=None, cpu=-1):
    return {"command": [str(word) for word in command], "environment": environment or {}, "cpu": cpu}


def cpu_of_rank(work, rank):
    """Returns the core to which hetcomm would bind the rank, or -1 if it would not bind the rank."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[rank] if work["bind"] and work["ranks"] <= len(cpus) else -1


def is_crowded(work):
    return work["ranks"] > len(os.sched_getaffinity(0))


def is_one_sided(work):
    return work["test"].startswith(("put_", "get_", "fetch_add_"))


def refuse_devices(work):
    return "its runner has host memory only" if work["test"].startswith("stag") else ""


def refuse_beyond_pairs(work):
    if work["test"] == "msgrate":
        return "its runner has two ranks; msgrate is compared with mpi"
    return "overlap is compared with mpi" if work["test"] == "overlap" else refuse_devices(work)


def refuse_one_sided(work):
    return "its runner has no one-sided operations" if is_one_sided(work) else refuse_devices(work)


def two_ranks(runner, work, environment, bound):
    """Returns the two processes of a runner, which connect to each other (bench/peers/meeting.h)."""
    return [process([runner, f"rank={rank}", "meeting={meeting}", *work["words"]], environment,
                    cpu_of_rank(work, rank) if bound else -1) for rank in range(2)]


def nic():
    """Returns the first NIC of HETCOMM_RDMA_NIC, such as "mlx5_0" or "mlx5_0:1", or "" if the variable is not set."""
    return os.environ.get("HETCOMM_RDMA_NIC", "").partition(",")[0]


# --- UCX: over shared memory by copies and with single copy (cma), over TCP, and over verbs -------

UCX_VARIANTS = (("/posix", "posix,self", "shm"), ("/posix,cma", "posix,cma,self", "shm"), ("/tcp", "tcp", "tcp"),
                ("/rc_verbs", "rc_v,self", "rdma"))


def ucx_prefix(question):
    header = "include/ucp/api/ucp.h"
    for given in question.given("ucx")[:1]:
        if not (Path(given) / header).exists():
            raise Missing(f"{given} has no {header}")
        return given
    if question.folder:
        # The Python package contains UCX in this folder.
        for found in sorted(Path(question.folder).glob(f"ucx/lib/*/site-packages/libucx/{header}")):
            return str(found)[:-len(header) - 1]
    if Path("/usr", header).exists():
        return "/usr"
    raise Missing("no UCX found: no headers in /usr/include (libucx-dev), nothing in build/peers "
                  "(`make peers` installs it)")


def find_ucx(question):
    prefix = ucx_prefix(question)
    command, libraries, environment = [compiler()], ["-lucp", "-lucs"], {}
    if prefix != "/usr":
        lib = f"{prefix}/lib"
        command.append(f"-I{prefix}/include")
        libraries = [f"-L{lib}", f"-Wl,-rpath,{lib},--disable-new-dtags", *libraries]
        # UCX's modules are next to the library. Without these variables, the tools of this
        # UCX would load the modules of the system's UCX.
        environment = {"UCX_MODULE_DIR": f"{lib}/ucx", "LD_LIBRARY_PATH": lib}
    told = re.search(r"(?:Library version: |# Version )(\S+)",
                     capture(f"{prefix}/bin/ucx_info", "-v", environment=environment))
    version = told.group(1) if told else "unknown"
    runner = question.builder.build("runner_ucx", command, libraries)
    for suffix, transports, over in UCX_VARIANTS:
        yield Implementation(f"ucx-{version}{suffix}", version, prefix,
                             lambda work, over=over: refuse_ucx(work, over),
                             lambda work, transports=transports, over=over: two_ranks(
                                 runner, work, {**environment, **ucx_environment(transports, over)}, True))


def refuse_ucx(work, over):
    if over != (work["transport"] if work["transport"] in ("tcp", "rdma") else "shm"):
        return OTHER_TRANSPORT
    if work["test"].startswith("put_notify_"):
        return "it has no put that notifies"
    return "it has no collective operations" if work["test"] in COLLECTIVES else refuse_beyond_pairs(work)


def ucx_environment(transports, over):
    environment = {"UCX_TLS": transports, "UCX_WARN_UNUSED_ENV_VARS": "n"}
    if over == "tcp":
        environment["UCX_NET_DEVICES"] = "lo"
    if over == "rdma" and nic():
        environment["UCX_NET_DEVICES"] = nic() if ":" in nic() else f"{nic()}:1"
    if over == "rdma" and os.environ.get("HETCOMM_RDMA_GID_INDEX"):
        environment["UCX_IB_GID_INDEX"] = os.environ["HETCOMM_RDMA_GID_INDEX"]
    return environment


# --- MPI: Open MPI 4 and 5, Intel MPI, MPICH. Each is measured with its defaults, and also without
# single copy (cross-memory attach), which is slower on some machines ------------------------------

@dataclass
class Mpi:
    kind: str
    version: str
    launcher: Path
    mpicc: Path

    @property
    def prefix(self):
        return self.mpicc.parent.parent

    def is_old(self):
        return self.version.startswith("4.")

    def variants(self):
        """Returns the variants as tuples: suffix of the name, options, environment, and whether it
        uses TCP."""
        if self.kind == "intelmpi":
            shm = {"I_MPI_FABRICS": "shm"}
            return [("", [], shm, False), ("/no-cma", [], {**shm, "I_MPI_SHM_CMA": "0"}, False),
                    ("/tcp", [], {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}, True)]
        if self.kind == "mpich":
            return [("", [], {}, False), ("/no-cma", [], {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}, False)]
        no_cma = ["btl_vader_single_copy_mechanism", "none"] if self.is_old() else ["smsc", "^cma"]
        tcp = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
        return [("", [], {}, False), ("/no-cma", ["--mca", *no_cma], {}, False), ("/tcp", tcp, {}, True)]

    def placement(self, work):
        """Returns options and environment that bind the ranks in the same way as hetcomm's ranks."""
        crowded = is_crowded(work)
        bound = work["bind"] and not crowded
        if self.kind == "openmpi":
            options = []
            if crowded:
                # If there are more ranks than cores, a waiting rank must yield to the others.
                options = ["--mca", "mpi_yield_when_idle", "1",
                           *(["--oversubscribe"] if self.is_old() else ["--map-by", ":OVERSUBSCRIBE"])]
            # Without these variables Open MPI refuses to run as root.
            return ([*options, "--bind-to", "core" if bound else "none"],
                    {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        if self.kind == "mpich":
            return (["-bind-to", "core"] if bound else [], {})
        environment = {"I_MPI_ROOT": str(self.prefix), "LD_LIBRARY_PATH": f"{self.prefix}/lib"}
        if not bound:
            environment["I_MPI_PIN"] = "0"
        if crowded:
            environment["I_MPI_THREAD_YIELD"] = "2"
        return [], environment

    def processes(self, runner, work, options, environment):
        placed, more = self.placement(work)
        return [process([self.launcher, "-np", work["ranks"], *placed, *options, runner, *work["words"]],
                        {**environment, **more})]

    def build(self, builder):
        # The packaged mpicc of Intel MPI refers to the machine that built it, so the compiler is
        # called directly.
        if self.kind == "intelmpi":
            return builder.build("runner_mpi", [compiler(), f"-I{self.prefix}/include"],
                                 [f"-L{self.prefix}/lib", "-lmpi",
                                  f"-Wl,-rpath,{self.prefix}/lib,--disable-new-dtags"])
        return builder.build("runner_mpi", [self.mpicc])


MPI_MARKS = (("openmpi", r"\(Open(?: MPI|RTE)\)\s*([^\s,)]+)", r"Open MPI|OpenRTE"),
             ("intelmpi", r"Version\s*([^\s,)]+)", r"Intel\(R\) MPI"),
             ("mpich", r"Version:\s*([^\s,)]+)", "HYDRA"))


def identify_mpi(path):
    """Returns the MPI at |path|: a prefix, a folder with programs, or an mpicc."""
    mpicc = Path(path)
    if mpicc.is_dir():
        mpicc = mpicc / ("bin/mpicc" if (mpicc / "bin/mpicc").exists() else "mpicc")
    for name in ("mpiexec.hydra", "mpirun", "mpiexec"):
        launcher = mpicc.parent / name
        told = capture(launcher, "--version") if launcher.exists() else ""
        for kind, version, mark in MPI_MARKS:
            if re.search(mark, told):
                found = re.search(version, told)
                return Mpi(kind, found.group(1) if found else "", launcher, mpicc)
    raise Missing(f"there is no known mpirun beside {mpicc}")


def find_mpi(question):
    candidates = question.given("mpi")
    if not candidates and question.folder:
        candidates = [f"{question.folder}/{name}" for name in ("openmpi", "impi", "mpich")
                      if Path(question.folder, name, "bin/mpicc").exists()]
    if not candidates:
        candidates = list(filter(None, [shutil.which("mpicc")]))
    if not candidates:
        raise Missing("no MPI found: no mpicc in PATH, nothing in build/peers (`make peers` installs it)")
    complaint = None
    for candidate in candidates:
        try:
            mpi = identify_mpi(candidate)
            runner = mpi.build(question.builder)
        except Missing as missing:
            complaint = missing
            continue
        for suffix, options, environment, over_tcp in mpi.variants():
            yield Implementation(
                f"{mpi.kind}-{mpi.version}{suffix}", mpi.version, str(mpi.launcher),
                lambda work, tcp=over_tcp: (OTHER_TRANSPORT if tcp != (work["transport"] == "tcp")
                                            else refuse_one_sided(work)),
                lambda work, mpi=mpi, runner=runner, options=options, environment=environment: mpi.processes(
                    runner, work, options, environment))
    if complaint:
        raise complaint


# --- Gloo: messages over TCP ----------------------------------------------------------------------

def find_gloo(question):
    try:
        runner = question.builder.build("runner_gloo", [compiler()], ["-lgloo"])
    except Missing as missing:
        if "gloo/" in str(missing) or "-lgloo" in str(missing):
            raise Missing("no Gloo found: its headers and library (libgloo-dev) are not installed") from missing
        raise
    version = capture("dpkg-query", "-W", "-f", "${Version}\n", "libgloo-dev").partition("\n")[0] or "unknown"
    # The distribution's version contains the date of the source, which serves as Gloo's version.
    dated = re.search(r"git(.{1,8})", version)
    # The processes are not bound, because each has a separate thread for the network.
    yield Implementation(f"gloo-{dated.group(1) if dated else version}", version, "libgloo-dev", refuse_gloo,
                         lambda work: two_ranks(runner, work, {}, False), "tcp")


def refuse_gloo(work):
    if work["test"] == "reduce_scatter":
        return "it has no such reduce_scatter"
    if work["test"] in COLLECTIVES and work["ranks"] != 2:
        return "its runner has two ranks"
    return refuse_one_sided(work) or refuse_beyond_pairs(work)


# --- programs without a runner ---------------------------------------------------------------------

def pair(peer, program, work, **more):
    """Returns a process that runs a server and a client (pairs.py)."""
    told = {"test": work["test"], "points": work["points"], "iterations": work["iterations"],
            "cpus": [cpu_of_rank(work, rank) for rank in range(2)], **more}
    return [process([sys.executable, "-B", os.path.dirname(os.path.abspath(__file__)), peer, program,
                     json.dumps(told)])]


def find_iperf3(question):
    program = next(iter(question.given("iperf3")), None) or shutil.which("iperf3")
    told = capture(program, "--version").split() if program else []
    if len(told) < 2:
        raise Missing("no iperf3 found: the program is not in PATH")
    yield Implementation(f"iperf3-{told[1]}", told[1], program,
                         lambda work: "" if work["test"] == "bandwidth" else "iperf3 measures bandwidth only",
                         lambda work: pair("iperf3", program, work), "tcp")


def find_perftest(_):
    program = shutil.which("ib_write_lat")
    if not program:
        raise Missing("no perftest found: ib_write_lat is not in PATH (package perftest)")
    devices = Path("/sys/class/infiniband")
    if not devices.is_dir() or not any(devices.iterdir()):
        raise Missing("no RDMA device here: /sys/class/infiniband is empty")
    # The tool ends with status 1 after it has printed its version, but capture() expects 0.
    version = pairs.version_in(capture("/bin/sh", "-c", '"$0" --version; exit 0', program))
    yield Implementation(f"perftest-{version}", version, program, refuse_perftest,
                         lambda work: pair("perftest", shutil.which(perftest_tool(work)), work,
                                           device=perftest_device()),
                         "rdma")


def perftest_tool(work):
    return pairs.PERFTEST[work["test"]].split()[0]


def refuse_perftest(work):
    if work["test"] not in pairs.PERFTEST:
        return "it has nothing like it"
    if not shutil.which(perftest_tool(work)):
        return f"there is no {perftest_tool(work)} in PATH"
    return "it has no empty messages" if any(size == 0 for size, _ in work["points"]) else ""


def perftest_device():
    name, _, port = nic().partition(":")
    index = os.environ.get("HETCOMM_RDMA_GID_INDEX", "auto")
    return [*(["-d", name] if name else []), *(["-i", port] if port else []),
            *(["-x", index] if index not in ("", "auto") else [])]


def find_memcpy(question):
    yield Implementation("memcpy", os.confstr("CS_GNU_LIBC_VERSION") or "unknown", "the C library",
                         lambda work: "" if work["test"] in ("bandwidth", "put_bandwidth", "get_bandwidth")
                         else "memcpy measures bandwidth only",
                         lambda work: [process([question.program, "--runner", "copy=1", *work["words"]], {},
                                               cpu_of_rank(work, 0))], "memory")


FIND = {"ucx": find_ucx, "mpi": find_mpi, "gloo": find_gloo, "iperf3": find_iperf3, "memcpy": find_memcpy,
        "perftest": find_perftest}


def describe(implementation, works):
    def part(work):
        refusal = implementation.refusal(work)
        return {"refusal": refusal} if refusal else {"processes": implementation.processes(work)}
    return {"name": implementation.name, "version": implementation.version, "origin": implementation.origin,
            "transport": implementation.transport, "works": [part(work) for work in works]}


def find(document):
    """Returns the reply to a Question, in the form that is described at the top of this file."""
    names = document.pop("with")
    question = Question(**document)
    implementations, complaints = [], {}
    for name in names:
        try:
            for implementation in FIND[name](question):
                implementations.append(describe(implementation, question.works))
        except (Missing, OSError, ValueError) as problem:
            complaints[name] = str(problem)
    return {"implementations": implementations, "complaints": complaints, "scratch": question.builder.scratch}


def answer(question, out):
    json.dump(find(json.load(question)), out)
    out.write("\n")
    return 0
