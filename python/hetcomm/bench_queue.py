"""Measures the fraction of its transfers that a queue hides behind matrix multiplications. One
pipeline stage computes and pushes, the other one pulls and computes.

    python -m hetcomm.bench_queue                        # two processes on this host
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python -m hetcomm.bench_queue      # and RANK=1

For each item, each stage computes a chain of torch.mm, which takes --ratios times as long as the
transfer of an item. The baseline sends an item when it is complete, and receives one when it is
needed. Queue and baseline alternate in every round, and figures are medians. The columns are the
same as in OSU's non-blocking tests, followed by the baseline.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections import deque
from typing import Any, Callable


class _Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        import torch

        import hetcomm

        torch.set_num_threads(1)
        self._torch = torch
        self._communicator = hetcomm.Communicator.from_environment(hetcomm.Context(thread=True))
        self.first = self._communicator.rank == 0
        self._depth = arguments.depth
        self._bytes = int(arguments.mib * (1 << 20))
        self._items = arguments.items
        self._buffers = [torch.ones(self._bytes // 4) for _ in range(arguments.depth + 1)]
        side = arguments.side
        self._matrix = torch.full((side, side), 1.0 / side)
        make = self._communicator.push_queue if self.first else self._communicator.pull_queue
        self._queue = make(1 if self.first else 0, self._bytes, depth=arguments.depth)

    def close(self) -> None:
        self._communicator.barrier().wait()
        self._queue.close()
        self._communicator.close()

    def agree(self, value: float) -> float:
        """Returns the larger of both ranks' values."""
        both = self._torch.zeros(2, dtype=self._torch.float64)
        own = self._torch.tensor([value], dtype=self._torch.float64)
        self._communicator.allgather(own, both).wait()
        return float(both.max())

    def compute(self, products: int) -> None:
        result = self._matrix
        for _ in range(products):
            result = self._torch.mm(result, self._matrix)

    def product_us(self) -> float:
        self.compute(20)
        times = []
        for _ in range(9):
            start = time.perf_counter()
            self.compute(20)
            times.append((time.perf_counter() - start) / 20 * 1e6)
        return self.agree(statistics.median(times))

    def by_queue(self, products: int) -> None:
        running: deque[Any] = deque()
        ahead = 0
        for item in range(self._items):
            if not self.first:
                while ahead < self._items and len(running) < self._depth:
                    running.append(self._queue.pull(self._buffers[ahead % len(self._buffers)]))
                    ahead += 1
                running.popleft().wait()
            self.compute(products)
            if self.first:
                if len(running) == self._depth:
                    running.popleft().wait()
                running.append(self._queue.push(self._buffers[item % len(self._buffers)]))
        while running:
            running.popleft().wait()

    def by_messages(self, products: int) -> None:
        for _ in range(self._items):
            if self.first:
                self.compute(products)
                self._communicator.send(self._buffers[0], 1).wait()
            else:
                self._communicator.recv(self._buffers[0], 0).wait()
                self.compute(products)

    def time_us(self, way: Callable[[int], None], products: int) -> float:
        """Returns the microseconds per item on the slower rank."""
        self._communicator.barrier().wait()
        start = time.perf_counter()
        way(products)
        return self.agree((time.perf_counter() - start) / self._items * 1e6)


def _run(arguments: argparse.Namespace) -> None:
    bench = _Bench(arguments)
    product_us = bench.product_us()
    bench.time_us(bench.by_messages, 0)
    pure_us = statistics.median(bench.time_us(bench.by_messages, 0) for _ in range(3))
    if bench.first:
        print("# hetcomm queue, torch.mm")
        print(
            f"{'# Size':<10} {'Overall(us)':>15} {'Compute(us)':>15} {'Pure Comm.(us)':>15} "
            f"{'Overlap(%)':>11} {'Baseline(us)':>15} {'Gain':>6} {'Ideal':>6}"
        )
    for ratio in arguments.ratios:
        products = max(1, round(ratio * pure_us / product_us))
        times: dict[str, list[float]] = {"queue": [], "messages": []}
        for _ in range(arguments.rounds):
            times["queue"].append(bench.time_us(bench.by_queue, products))
            times["messages"].append(bench.time_us(bench.by_messages, products))
        overall, baseline = (statistics.median(each) for each in times.values())
        compute_us = products * product_us
        overlap = min(max(100 * (1 - (overall - compute_us) / pure_us), 0), 100)
        ideal = (compute_us + pure_us) / max(compute_us, pure_us)
        if bench.first:
            print(
                f"{bench._bytes:<10} {overall:>15.1f} {compute_us:>15.1f} {pure_us:>15.1f} "
                f"{overlap:>11.1f} {baseline:>15.1f} {baseline / overall:>6.2f} {ideal:>6.2f}",
                flush=True,
            )
    bench.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _rank(rank: int, port: int, arguments: argparse.Namespace) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.environ.setdefault("HETCOMM_SECRET", "of this benchmark alone")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    _run(arguments)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hetcomm.bench_queue", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=4, help="size of an item (4)")
    parser.add_argument("--items", type=int, default=40, help="items of a pass (40)")
    parser.add_argument("--depth", type=int, default=4, help="items under way (4)")
    parser.add_argument("--side", type=int, default=128, help="rows of the matrices (128)")
    parser.add_argument("--rounds", type=int, default=3, help="how often both ways are measured (3)")
    parser.add_argument("--ratios", type=lambda text: [float(each) for each in text.split(",")],
                        default=[0.5, 1.2, 2.5], help="computation over communication (0.5,1.2,2.5)")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        _run(arguments)
        return 0
    context = multiprocessing.get_context("spawn")
    port = _free_port()
    ranks = [context.Process(target=_rank, args=(rank, port, arguments)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return 0 if all(rank.exitcode == 0 for rank in ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
