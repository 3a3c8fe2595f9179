"""Times operations of torch.distributed with hetcomm and with other backends, on one host.

    python -m hetcomm.bench --ranks 2 --compare gloo --op allreduce --op send

The program forks the ranks. For each size, the backends alternate in every round, so that changes
in the machine's speed affect all of them equally. Each figure is the median over the rounds,
measured on rank 0. All ranks begin each measurement together. HETCOMM_TRANSPORTS selects
hetcomm's transports.

"overlap" times an asynchronous allreduce that runs concurrently with arithmetic. The arithmetic
takes as long as hetcomm's allreduce alone. "ddp" times a training step of a model whose parameters
have the given size. With --device the tensors are on an accelerator, and other backends work on
copies in pinned host memory. "ddp" copies gradients there as soon as a bucket is full. "ddp_after"
copies them to host memory that is not pinned, after the backward pass. --json prints a document in
the format of hetcomm_bench, with the figures that this program measures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

import hetcomm
import hetcomm.torch  # registers the backend if no installed package does
from hetcomm import reshard

DEFAULT_SIZES = (8, 1024, 65536, 1 << 20, 16 << 20)
ROUND_SECONDS = 0.05
WARM_UPS = 3
LIMIT = timedelta(seconds=120)  # limit for one operation


Zeros = Callable[[int], torch.Tensor]  # makes a tensor of zeros, given the number of elements


class Call:
    """An operation, with the tensors that it reads and writes."""

    def __init__(self, run: Callable[[], Any], reads: list[torch.Tensor],
                 writes: list[torch.Tensor]) -> None:
        self.run, self.reads, self.writes = run, reads, writes


def _allreduce(zeros: Zeros, group: Any, size: int, ranks: int) -> Call:
    tensor = zeros(max(size // 4, 1))
    return Call(lambda: dist.all_reduce(tensor, group=group), [tensor], [tensor])


def _broadcast(zeros: Zeros, group: Any, size: int, ranks: int) -> Call:
    tensor = zeros(max(size // 4, 1))
    mine = [tensor]
    reads, writes = (mine, []) if dist.get_rank() == 0 else ([], mine)
    return Call(lambda: dist.broadcast(tensor, 0, group=group), reads, writes)


def _allgather(zeros: Zeros, group: Any, size: int, ranks: int) -> Call:
    part = zeros(max(size // 4, 1))
    whole = zeros(part.numel() * ranks)
    # Newer versions of PyTorch have this function under another name.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return Call(lambda: gather(whole, part, group=group), [part], [whole])


def _reduce_scatter(zeros: Zeros, group: Any, size: int, ranks: int) -> Call:
    part = zeros(max(size // 4 // ranks, 1))
    whole = zeros(part.numel() * ranks)
    reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return Call(lambda: reduce(part, whole, group=group), [whole], [part])


def _alltoall(zeros: Zeros, group: Any, size: int, ranks: int) -> Call:
    sent = zeros(max(size // 4 // ranks, 1) * ranks)
    received = zeros(sent.numel())
    return Call(lambda: dist.all_to_all_single(received, sent, group=group), [sent], [received])


def _barrier(zeros: Zeros, group: Any, size: int, ranks: int) -> Call:
    return Call(lambda: dist.barrier(group=group), [], [])


def _send(zeros: Zeros, group: Any, size: int, ranks: int) -> Call:
    """Sends a tensor from rank 0 to rank 1 and back. The other ranks do nothing."""
    tensor = zeros(max(size // 4, 1))
    rank = dist.get_rank()

    def ping_pong() -> None:
        if rank == 0:
            dist.send(tensor, 1, group=group)
            dist.recv(tensor, 1, group=group)
        elif rank == 1:
            dist.recv(tensor, 0, group=group)
            dist.send(tensor, 0, group=group)

    return Call(ping_pong, [tensor], [tensor])


def _redistribute(zeros: Zeros, group: Any, size: int, ranks: int) -> Call:
    """Changes a matrix from row shards to column shards, as DTensor.redistribute does. hetcomm uses
    a plan, other backends use an all-to-all of packed pieces."""
    edge = max(int((size / 4) ** 0.5) // ranks, 1) * ranks
    rows = zeros(edge * edge // ranks).reshape(edge // ranks, edge)
    columns = zeros(edge * edge // ranks).reshape(edge, edge // ranks)
    if dist.get_backend(group) == "hetcomm":
        layouts = [reshard.layout((edge, edge), range(ranks), [reshard.Shard(dimension)])
                   for dimension in (0, 1)]
        plan = reshard.Plan(hetcomm.torch.communicator(group), [(*layouts, "float32", "float32")])
        return Call(lambda: plan.start([rows], [columns]).wait(), [rows], [columns])

    def exchange() -> None:
        packed = torch.cat(rows.chunk(ranks, 1))
        dist.all_to_all_single(columns, packed, group=group)

    return Call(exchange, [rows], [columns])


def _by_hand(make: Callable[[Zeros], Call], device: str) -> Callable[[], Any]:
    """Returns an operation for a backend that supports only tensors in host memory. |make| makes it
    with pinned memory. Each call first copies its inputs from the device, and finally copies its
    results to the device."""
    call = make(lambda count: torch.zeros(count, device="cpu", pin_memory=True))
    reads = [(own, torch.zeros_like(own, device=device)) for own in call.reads]
    writes = [(own, torch.zeros_like(own, device=device)) for own in call.writes]

    def run() -> None:
        for own, there in reads:
            own.copy_(there)
        call.run()
        for own, there in writes:
            there.copy_(own)

    return run


def _run_on(device: str, name: str, make: Callable[[Zeros], Call]) -> Callable[[], Any]:
    """Returns the operation that |make| makes for the backend |name|, with tensors on |device|."""
    if device != "cpu" and name != "hetcomm":
        return _by_hand(make, device)
    return make(lambda count: torch.zeros(count, device=device)).run


OPERATIONS: dict[str, Callable[[Zeros, Any, int, int], Call]] = {
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
    "alltoall": _alltoall,
    "barrier": _barrier,
    "send": _send,
    "redistribute": _redistribute,
}


def _training_step(operation: str, device: str, name: str, group: Any,
                   size: int) -> Callable[[], None]:
    """Returns a DDP training step: forward pass, backward pass and update of a model with |size|
    bytes of parameters. For a backend that supports only tensors in host memory, gradients are
    copied there and back. "ddp" copies them in a hook as soon as a bucket is full, "ddp_after" one
    by one after the backward pass."""
    width = 1024
    layers = max(1, size // (4 * width * width))
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False)
                                  for _ in range(layers))).to(device)
    by_hand = device != "cpu" and name != "hetcomm"
    after = by_hand and operation == "ddp_after"
    if not after:
        shared = torch.nn.parallel.DistributedDataParallel(
            model, process_group=dist.new_group(backend="hetcomm") if by_hand else group,
            gradient_as_bucket_view=True)
        if by_hand:
            shared.register_comm_hook(group, _sum_on_host)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batch = torch.ones(4, width, device=device)

    def step() -> None:
        optimizer.zero_grad()
        (model if after else shared)(batch).sum().backward()
        if after:
            for parameter in model.parameters():
                _average_on_host(group, parameter.grad)
        optimizer.step()
        if device != "cpu":
            torch.accelerator.synchronize()

    return step


def _average_on_host(group: Any, gradient: torch.Tensor) -> None:
    there = gradient.cpu()
    dist.all_reduce(there, group=group)
    gradient.copy_(there.div_(dist.get_world_size(group)))


def _sum_on_host(group, bucket):  # type: ignore[no-untyped-def]  # torch checks annotations
    """Averages a bucket over |group|, whose backend supports only tensors in host memory. This is a
    DDP communication hook."""
    there = bucket.buffer().div_(dist.get_world_size(group))
    pinned = _PINNED.get(bucket.index())
    if pinned is None or pinned.numel() != there.numel():
        pinned = _PINNED[bucket.index()] = torch.empty(there.numel(), pin_memory=True)
    pinned.copy_(there)
    work = dist.all_reduce(pinned, group=group, async_op=True)
    return work.get_future().then(lambda _: there.copy_(pinned))


_PINNED: dict[int, torch.Tensor] = {}  # keyed by the bucket's number


OTHERS = ("overlap", "ddp", "ddp_after", "init", "group")


def _repeat(call: Callable[[], None], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def _agree(value: float) -> float:
    """Returns rank 0's value on all ranks."""
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(tensor, 0)
    return float(tensor[0])


class Result:
    """The times of one operation with one size: the microseconds of each round, keyed by
    backend."""

    def __init__(self, test: str, size: int, backends: list[str]) -> None:
        self.test, self.size = test, size
        self.us: dict[str, list[float]] = {name: [] for name in backends}
        self.iterations = dict.fromkeys(backends, 1)
        # For "overlap" only: the times of the operation alone, and of the arithmetic alone.
        self.idle_us: dict[str, list[float]] = {name: [] for name in backends}
        self.compute_us: dict[str, list[float]] = {name: [] for name in backends}

    def ratios(self, peer: str) -> list[float]:
        return [theirs / ours for ours, theirs in zip(self.us["hetcomm"], self.us[peer])]


def _count(once: float) -> int:
    return max(1, min(2000, int(ROUND_SECONDS / max(once, 1e-7))))


def _measure(arguments: argparse.Namespace, rank: int) -> list[Result]:
    groups = {name: dist.new_group(backend=name, timeout=LIMIT) for name in arguments.backends}
    results = []
    for operation in arguments.op:
        for size in [0] if operation == "barrier" else arguments.size:
            result = Result(operation, size, arguments.backends)
            if operation == "overlap":
                _time_overlap(result, groups, arguments.rounds)
            elif operation.startswith("ddp"):
                calls = {name: _training_step(operation, arguments.device, name, group, size)
                         for name, group in groups.items()}
                _time(result, calls, arguments.rounds)
            else:
                calls = {name: _run_on(arguments.device, name,
                                       lambda zeros, group=group: OPERATIONS[operation](
                                           zeros, group, size, arguments.ranks))
                         for name, group in groups.items()}
                _time(result, calls, arguments.rounds)
            results.append(result)
            if rank == 0 and not arguments.json:
                _print(result, arguments.backends)
    return results


def _time(result: Result, calls: dict[str, Callable[[], None]], rounds: int) -> None:
    for name, call in calls.items():
        _repeat(call, WARM_UPS)
        dist.barrier()
        result.iterations[name] = _count(_agree(_repeat(call, WARM_UPS)))
    for _ in range(rounds):
        for name, call in calls.items():
            dist.barrier()
            taken = _repeat(call, result.iterations[name])
            result.us[name].append(taken / (2 if result.test == "send" else 1) * 1e6)


def _time_overlap(result: Result, groups: dict[str, Any], rounds: int) -> None:
    tensor = torch.zeros(max(result.size // 4, 1))
    matrix = torch.ones(96, 96)
    into = torch.empty_like(matrix)

    def multiply() -> None:
        torch.mm(matrix, matrix, out=into)

    for group in groups.values():
        _repeat(lambda: dist.all_reduce(tensor, group=group), WARM_UPS)
    dist.barrier()
    alone = _agree(_repeat(lambda: dist.all_reduce(tensor, group=groups["hetcomm"]), WARM_UPS))
    products = max(1, int(alone / _agree(_repeat(multiply, 100))))

    def compute() -> None:
        for _ in range(products):
            multiply()

    def both(group: Any) -> None:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        compute()
        work.wait()

    count = _count(2 * alone)
    for _ in range(rounds):
        for name, group in groups.items():
            result.iterations[name] = count
            for call, times in ((lambda: dist.all_reduce(tensor, group=group), result.idle_us),
                                (compute, result.compute_us), (lambda: both(group), result.us)):
                dist.barrier()
                times[name].append(_repeat(call, count) * 1e6)


def _print(result: Result, backends: list[str]) -> None:
    cells = [f"{statistics.median(result.us[name]):>12.1f}" for name in backends]
    ratios = [f"{statistics.median(result.ratios(name)):>8.2f}x" for name in backends[1:]]
    alone = ""
    if result.test == "overlap":
        alone = "   alone: " + ", ".join(
            f"{name} {statistics.median(result.idle_us[name]):.1f} and "
            f"{statistics.median(result.compute_us[name]):.1f}" for name in backends)
    print(f"{result.test:<15}{result.size:>11}" + "".join(cells) + "".join(ratios) + alone,
          flush=True)


def _document(results: list[Result], arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns a document like that of hetcomm_bench --format json. Fields that are not measured
    here are null."""
    transport = os.environ.get("HETCOMM_TRANSPORTS") or "all"
    rows, ratios = [], []
    for result in results:
        for name in arguments.backends:
            us = statistics.median(result.us[name])
            rows.append({
                "test": result.test, "impl": name,
                "transport": transport if name == "hetcomm" else "tcp" if name == "gloo" else "",
                "path": "",
                "memory": "host" if arguments.device == "cpu" else arguments.device,
                "progress": "thread" if name == "hetcomm" else None,
                "ranks": arguments.ranks, "rails": None, "algorithm": None, "staging_memory": None, "stream": False,
                "window": 1,
                "bytes": result.size, "iterations": result.iterations[name],
                "min_us": None, "p50_us": None, "avg_us": us, "p99_us": None, "p999_us": None,
                "max_us": None, "stdev_us": None,
                "bandwidth_MBps": result.size / us if result.size else None,
                "messages_per_s": None,
                "idle_us": _median_or_none(result.idle_us[name]),
                "compute_us": _median_or_none(result.compute_us[name]),
                "overall_us": us if result.test == "overlap" else None,
                "chunk": None, "depth": None, "chunk_bytes": None, "copy_us": None,
                "wire_us": None, "forecast_MBps": None, "of_slower_percent": None,
                "processor_us": None, "of_cores_percent": None,
                "in_place_us": None, "in_place_wrong": None, "wrong": None,
            })
        for peer in arguments.backends[1:]:
            of_rounds = result.ratios(peer)
            ratios.append({
                "peer": peer, "test": result.test, "transport": transport, "progress": "thread",
                "placement": "", "window": 1, "bytes": result.size, "rounds": len(of_rounds),
                "hetcomm": statistics.median(result.us["hetcomm"]),
                "peer_value": statistics.median(result.us[peer]),
                "ratio": statistics.median(of_rounds), "smallest": min(of_rounds),
                "largest": max(of_rounds),
            })
    meta: dict[str, Any] = {
        "version": hetcomm.version(), "build": hetcomm.build(), "host": platform.node(),
        "command": " ".join(["hetcomm.bench", *sys.argv[1:]]), "notes": [],
        "peers": [{"name": name, "version": torch.__version__, "origin": "torch"}
                  for name in arguments.backends[1:]],
    }
    if ratios:
        meta["comparison"] = {"rounds": arguments.rounds, "placements": [], "ratios": ratios}
    return {"meta": meta, "rows": rows}


def _median_or_none(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _time_init(arguments: argparse.Namespace, rank: int) -> Result:
    """Times init_process_group over one TCP store. The backends alternate."""
    store = dist.TCPStore("127.0.0.1", arguments.port, arguments.ranks,
                          rank == 0, timeout=LIMIT)
    result = Result("init", 0, arguments.backends)
    for turn in range(arguments.rounds):
        for name in arguments.backends:
            scoped = dist.PrefixStore(f"{name}{turn}", store)
            dist.distributed_c10d._store_based_barrier(
                rank, scoped, "bench", arguments.ranks, LIMIT)
            began = time.perf_counter()
            dist.init_process_group(name, store=scoped, rank=rank, world_size=arguments.ranks,
                                    timeout=LIMIT)
            result.us[name].append((time.perf_counter() - began) * 1e6)
            dist.destroy_process_group()
    if rank == 0 and not arguments.json:
        _print(result, arguments.backends)
    return result


def _time_group(arguments: argparse.Namespace, rank: int) -> Result:
    """Times new_group over all ranks, together with the first operation of the new group. Groups
    are kept until all are timed."""
    store = dist.TCPStore("127.0.0.1", arguments.port, arguments.ranks,
                          rank == 0, timeout=LIMIT)
    result = Result("group", 0, arguments.backends)
    for name in arguments.backends:
        dist.init_process_group(name, store=dist.PrefixStore(f"group {name}", store), rank=rank,
                                world_size=arguments.ranks, timeout=LIMIT)
        dist.all_reduce(torch.ones(1))
        for _ in range(arguments.rounds):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(torch.ones(1), group=dist.new_group())
            result.us[name].append((time.perf_counter() - began) * 1e6)
        dist.destroy_process_group()
    if rank == 0 and not arguments.json:
        _print(result, arguments.backends)
    return result


def _main(rank: int, arguments: argparse.Namespace, folder: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    if arguments.module:
        importlib.import_module(arguments.module)
    results = []
    if "init" in arguments.op:
        results.append(_time_init(arguments, rank))
    if "group" in arguments.op:
        results.append(_time_group(arguments, rank))
    arguments.op = [name for name in arguments.op if name not in ("init", "group")]
    if arguments.op:
        # The default group uses Gloo, so that the barriers between rounds are the same for all
        # backends.
        dist.init_process_group("gloo", store=dist.FileStore(os.path.join(folder, "store"), -1),
                                rank=rank, world_size=arguments.ranks, timeout=LIMIT)
        results += _measure(arguments, rank)
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        pipe.send(results)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="hetcomm.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--op", action="append", choices=[*OPERATIONS, *OTHERS],
                        help=f"may be repeated; all but {', '.join(OTHERS)} unless given")
    parser.add_argument("--size", action="append", type=int, help="bytes; may be repeated")
    parser.add_argument("--compare", default="", help="other backends: gloo")
    parser.add_argument("--device", default="cpu",
                        help="where tensors are, as in cuda; other backends get copies made by hand")
    parser.add_argument("--import", dest="module", help="a module that brings the device")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    arguments = parser.parse_args()
    arguments.op = arguments.op or list(OPERATIONS)
    arguments.size = arguments.size or list(DEFAULT_SIZES)
    arguments.backends = ["hetcomm", *filter(None, arguments.compare.split(","))]
    arguments.port = _free_port()
    if arguments.device != "cpu" and "overlap" in arguments.op:
        parser.error("--op overlap is for tensors in host memory")
    if not arguments.json:
        print(f"{'operation':<15}{'bytes':>11}"
              + "".join(f"{name + ' us':>12}" for name in arguments.backends)
              + "".join(f"{name:>9}" for name in arguments.backends[1:]), flush=True)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="hetcomm-bench-") as folder:
        mine, theirs = context.Pipe(duplex=False)
        processes = [context.Process(target=_main, args=(rank, arguments, folder, theirs))
                     for rank in range(arguments.ranks)]
        for process in processes:
            process.start()
        theirs.close()
        try:
            results = mine.recv()
        except EOFError:
            results = None
        for process in processes:
            process.join()
    if results is None or any(process.exitcode for process in processes):
        return 1
    if arguments.json:
        json.dump(_document(results, arguments), sys.stdout, indent=1)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
