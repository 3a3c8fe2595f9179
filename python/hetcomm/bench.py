"""Times operations of torch.distributed, hetcomm beside other backends, on one host.

    python -m hetcomm.bench --ranks 2 --compare gloo --op allreduce --op send

The ranks are forked. For every size the backends take turns, round by round, so that a change of the
machine's speed meets all of them; a figure is the median of the rounds, its spread the distance of
the quartiles. The time of an operation is that of rank 0, which all ranks enter together.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

import hetcomm.torch  # registers the backend where no installed package does

DEFAULT_SIZES = (8, 1024, 65536, 1 << 20, 16 << 20)
ROUND_SECONDS = 0.05
WARM_UPS = 3


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


def _measure(arguments: argparse.Namespace, rank: int) -> list[dict[str, Any]]:
    groups = {name: dist.new_group(backend=name) for name in arguments.backends}
    rows = []
    for operation in arguments.op:
        for size in [0] if operation == "barrier" else arguments.size:
            calls = {name: OPERATIONS[operation](group, size, arguments.ranks)
                     for name, group in groups.items()}
            counts = {}
            for name, call in calls.items():
                _repeat(call, WARM_UPS)
                dist.barrier()
                once = _agree(_repeat(call, WARM_UPS))
                counts[name] = max(1, min(2000, int(ROUND_SECONDS / max(once, 1e-7))))
            times: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(arguments.rounds):
                for name, call in calls.items():
                    dist.barrier()
                    taken = _repeat(call, counts[name])
                    times[name].append(taken / (2 if operation == "send" else 1) * 1e6)
            row: dict[str, Any] = {"op": operation, "bytes": size, "ranks": arguments.ranks}
            for name, values in times.items():
                low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else (
                    values * 3)
                row[name] = {"us": round(middle, 2), "spread_us": round(high - low, 2)}
            rows.append(row)
            if rank == 0 and not arguments.json:
                _print(row, arguments.backends)
    return rows


def _print(row: dict[str, Any], backends: list[str]) -> None:
    ours = row["hetcomm"]["us"]
    cells = [f"{row[name]['us']:>12.1f}" for name in backends]
    ratios = [f"{row[name]['us'] / ours:>8.1f}x" for name in backends if name != "hetcomm"]
    print(f"{row['op']:<15}{row['bytes']:>11}" + "".join(cells) + "".join(ratios), flush=True)


def _time_init(arguments: argparse.Namespace, rank: int, folder: str) -> dict[str, Any]:
    """init_process_group over one TCP store, each backend in turn."""
    store = dist.TCPStore("127.0.0.1", arguments.port, arguments.ranks,
                          rank == 0, timeout=timedelta(seconds=60))
    row: dict[str, Any] = {"op": "init", "bytes": 0, "ranks": arguments.ranks}
    times: dict[str, list[float]] = {name: [] for name in arguments.backends}
    for turn in range(arguments.rounds):
        for name in arguments.backends:
            scoped = dist.PrefixStore(f"{name}{turn}", store)
            dist.distributed_c10d._store_based_barrier(
                rank, scoped, "bench", arguments.ranks, timedelta(seconds=60))
            began = time.perf_counter()
            dist.init_process_group(name, store=scoped, rank=rank, world_size=arguments.ranks)
            times[name].append((time.perf_counter() - began) * 1e6)
            dist.destroy_process_group()
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        row[name] = {"us": round(middle, 1), "spread_us": round(high - low, 1)}
    if rank == 0 and not arguments.json:
        _print(row, arguments.backends)
    return row


def _main(rank: int, arguments: argparse.Namespace, folder: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    rows = []
    if "init" in arguments.op:
        rows.append(_time_init(arguments, rank, folder))
    arguments.op = [name for name in arguments.op if name != "init"]
    if arguments.op:
        # Gloo's own barriers between rounds are the same for all.
        dist.init_process_group("gloo", store=dist.FileStore(os.path.join(folder, "store"), -1),
                                rank=rank, world_size=arguments.ranks)
        rows += _measure(arguments, rank)
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        pipe.send(rows)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="hetcomm.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--op", action="append", choices=[*OPERATIONS, "init"],
                        help="may be repeated; all but init unless given")
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
            rows = mine.recv()
        except EOFError:
            rows = None
        for process in processes:
            process.join()
    if rows is None or any(process.exitcode for process in processes):
        return 1
    if arguments.json:
        json.dump({"version": 1, "backends": arguments.backends, "results": rows}, sys.stdout)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
