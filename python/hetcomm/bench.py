"""Times operations of torch.distributed, hetcomm beside other backends, on one host.

    python -m hetcomm.bench --ranks 2 --compare gloo --op allreduce --op send

The ranks are forked. For every size the backends take turns, round by round, so that a change of the
machine's speed meets all of them; a figure is the median of the rounds. The time of an operation is
that of rank 0, which all ranks enter together. HETCOMM_TRANSPORTS chooses hetcomm's transports.

Of "overlap" it is that of an asynchronous allreduce and of arithmetic beside it, which takes as long
as hetcomm's allreduce alone. --json has the form of hetcomm_bench's, with what was measured here.
"""

from __future__ import annotations

import argparse
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
import hetcomm.torch  # registers the backend where no installed package does

DEFAULT_SIZES = (8, 1024, 65536, 1 << 20, 16 << 20)
ROUND_SECONDS = 0.05
WARM_UPS = 3
LIMIT = timedelta(seconds=120)  # for one operation


def _allreduce(group: Any, size: int, ranks: int) -> Callable[[], None]:
    tensor = torch.zeros(max(size // 4, 1))
    return lambda: dist.all_reduce(tensor, group=group)


def _broadcast(group: Any, size: int, ranks: int) -> Callable[[], None]:
    tensor = torch.zeros(max(size // 4, 1))
    return lambda: dist.broadcast(tensor, 0, group=group)


def _allgather(group: Any, size: int, ranks: int) -> Callable[[], None]:
    part = torch.zeros(max(size // 4, 1))
    whole = torch.zeros(part.numel() * ranks)
    # Newer versions of torch have another name for it.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return lambda: gather(whole, part, group=group)


def _reduce_scatter(group: Any, size: int, ranks: int) -> Callable[[], None]:
    part = torch.zeros(max(size // 4 // ranks, 1))
    whole = torch.zeros(part.numel() * ranks)
    reduce = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return lambda: reduce(part, whole, group=group)


def _alltoall(group: Any, size: int, ranks: int) -> Callable[[], None]:
    sent = torch.zeros(max(size // 4 // ranks, 1) * ranks)
    received = torch.zeros_like(sent)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def _barrier(group: Any, size: int, ranks: int) -> Callable[[], None]:
    return lambda: dist.barrier(group=group)


def _send(group: Any, size: int, ranks: int) -> Callable[[], None]:
    """There and back between ranks 0 and 1; the others wait for the next round."""
    tensor = torch.zeros(max(size // 4, 1))
    rank = dist.get_rank()

    def ping_pong() -> None:
        if rank == 0:
            dist.send(tensor, 1, group=group)
            dist.recv(tensor, 1, group=group)
        elif rank == 1:
            dist.recv(tensor, 0, group=group)
            dist.send(tensor, 0, group=group)

    return ping_pong


OPERATIONS: dict[str, Callable[[Any, int, int], Callable[[], None]]] = {
    "allreduce": _allreduce,
    "broadcast": _broadcast,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
    "alltoall": _alltoall,
    "barrier": _barrier,
    "send": _send,
}


def _repeat(call: Callable[[], None], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count


def _agree(value: float) -> float:
    """The value of rank 0."""
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(tensor, 0)
    return float(tensor[0])


class Result:
    """One operation of one size: what each round took, in us, by backend."""

    def __init__(self, test: str, size: int, backends: list[str]) -> None:
        self.test, self.size = test, size
        self.us: dict[str, list[float]] = {name: [] for name in backends}
        self.iterations = dict.fromkeys(backends, 1)
        # Of "overlap": the operation alone, and the arithmetic alone.
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
            else:
                calls = {name: OPERATIONS[operation](group, size, arguments.ranks)
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
    """As hetcomm_bench --format json; null is what this program does not measure."""
    transport = os.environ.get("HETCOMM_TRANSPORTS") or "all"
    rows, ratios = [], []
    for result in results:
        for name in arguments.backends:
            us = statistics.median(result.us[name])
            rows.append({
                "test": result.test, "impl": name,
                "transport": transport if name == "hetcomm" else "tcp" if name == "gloo" else "",
                "path": "", "memory": "host",
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
    """init_process_group over one TCP store, each backend in turn."""
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
    """new_group over all ranks and its first operation; groups stay until all are timed."""
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
    results = []
    if "init" in arguments.op:
        results.append(_time_init(arguments, rank))
    if "group" in arguments.op:
        results.append(_time_group(arguments, rank))
    arguments.op = [name for name in arguments.op if name not in ("init", "group")]
    if arguments.op:
        # Gloo's own barriers between rounds are the same for all.
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
    parser.add_argument("--op", action="append", choices=[*OPERATIONS, "overlap", "init", "group"],
                        help="may be repeated; all but overlap, init and group unless given")
    parser.add_argument("--size", action="append", type=int, help="bytes; may be repeated")
    parser.add_argument("--compare", default="", help="other backends: gloo")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    arguments = parser.parse_args()
    arguments.op = arguments.op or list(OPERATIONS)
    arguments.size = arguments.size or list(DEFAULT_SIZES)
    arguments.backends = ["hetcomm", *filter(None, arguments.compare.split(","))]
    arguments.port = _free_port()
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
