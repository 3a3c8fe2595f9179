"""Times the transfer of weights from a trainer to an inference engine with hetcomm and two common
methods.

    python -m hetcomm.bench_weights                      # 4 trainer ranks, 2 engine ranks, 1 GiB
    python -m hetcomm.bench_weights --mib 256 --rounds 5
    RANK=0 WORLD_SIZE=6 MASTER_ADDR=... MASTER_PORT=... python -m hetcomm.bench_weights --ways hetcomm

The trainer holds each weight in rows (FSDP2), the engine in columns (tensor-parallel). Three
methods alternate:

    hetcomm      hetcomm.reshard
    gloo         gathers on the first trainer rank and broadcasts to the engine, with Gloo
    checkpoint   saves with torch.distributed.checkpoint to /dev/shm, and loads in the engine

The column "memory" shows the maximum memory that a rank has used in addition to its weights.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

TRAINERS, ENGINES = 4, 2
WAYS = ("hetcomm", "gloo", "checkpoint")


def _weights(mib: int) -> list[tuple[int, int]]:
    """Returns the shapes of float32 weights of 16 MiB each, |mib| in total."""
    return [(2048, 2048)] * max(1, mib // 16)


def _values(rows: int, columns: int, number: int) -> Any:
    """Returns the contents of weight ``number``. Nearby elements differ."""
    import torch

    return (torch.arange(rows * columns, dtype=torch.float32) % 65521 + number).reshape(rows, columns)


def _peak_mib() -> float:
    """Returns the peak of this process's resident memory since _forget_peak(), in MiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024


def _forget_peak() -> float:
    """Resets the peak of this process's resident memory, and returns its current size in MiB."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")
    return _peak_mib()


def _rank(rank: int, arguments: argparse.Namespace, folder: str | None) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    import hetcomm.torch
    from hetcomm import reshard

    torch.set_num_threads(1)
    if folder is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group(
            "gloo", store=dist.FileStore(f"{folder}/store", TRAINERS + ENGINES), rank=rank,
            world_size=TRAINERS + ENGINES,
        )
    shapes = _weights(arguments.mib)
    trains = rank < TRAINERS
    trainers = DeviceMesh("cpu", list(range(TRAINERS)))
    engines = DeviceMesh("cpu", list(range(TRAINERS, TRAINERS + ENGINES)))
    source, target = {}, {}
    for i, (rows, columns) in enumerate(shapes):
        if trains:
            local = _values(rows, columns, i)[rank * rows // TRAINERS : (rank + 1) * rows // TRAINERS].clone()
            source[str(i)] = DTensor.from_local(local, trainers, [Shard(0)], run_check=False)
        else:
            local = torch.zeros(rows, columns // ENGINES)
            target[str(i)] = DTensor.from_local(local, engines, [Shard(1)], run_check=False)
    world = hetcomm.torch.communicator()
    transfer = reshard.StateTransfer(
        world, source if trains else None, None if trains else target,
        bucket_bytes=arguments.bucket_mib << 20,
    )
    pieces = [torch.empty(rows // TRAINERS, columns) for rows, columns in shapes[:1] * TRAINERS]
    whole = torch.empty(shapes[0])
    group = dist.new_group(list(range(TRAINERS)))
    receivers = dist.new_group([0, *range(TRAINERS, TRAINERS + ENGINES)])

    def by_hetcomm() -> None:
        transfer.run()

    def by_gloo() -> None:
        for i, (_, columns) in enumerate(shapes):
            if trains:
                own = source[str(i)].to_local()
                dist.gather(own, pieces if rank == 0 else None, dst=0, group=group)
                if rank == 0:
                    torch.cat(pieces, out=whole)
            if rank == 0 or not trains:
                dist.broadcast(whole, src=0, group=receivers)
            if not trains:
                share = columns // ENGINES
                begin = (rank - TRAINERS) * share
                target[str(i)].to_local().copy_(whole[:, begin : begin + share])

    def by_checkpoint() -> None:
        path = f"{folder or '/dev/shm'}/hetcomm-checkpoint"
        if trains:
            checkpoint.save(source, checkpoint_id=path, process_group=group, no_dist=False)
        dist.barrier()
        if not trains:
            checkpoint.load(target, checkpoint_id=path, process_group=engine_group)
        dist.barrier()
        if rank == 0:
            shutil.rmtree(path)

    engine_group = dist.new_group(list(range(TRAINERS, TRAINERS + ENGINES)))
    all_ways = {"hetcomm": by_hetcomm, "gloo": by_gloo, "checkpoint": by_checkpoint}
    ways = {name: all_ways[name] for name in arguments.ways}
    times: dict[str, list[float]] = {name: [] for name in ways}
    grown: dict[str, float] = {name: 0.0 for name in ways}
    for round_ in range(arguments.rounds + 1):
        for name, way in ways.items():
            if not trains:
                for tensor in target.values():
                    tensor.to_local().zero_()
            dist.barrier()
            before = _forget_peak()
            start = time.perf_counter()
            way()
            dist.barrier()
            grown[name] = max(grown[name], _peak_mib() - before)
            if round_ > 0:  # round 0 opens connections
                times[name].append(time.perf_counter() - start)
            for i, tensor in enumerate(target.values()):
                share = shapes[i][1] // ENGINES
                begin = (rank - TRAINERS) * share
                if not torch.equal(tensor.to_local(), _values(*shapes[i], i)[:, begin : begin + share]):
                    raise SystemExit(f"{name}: weight {i} is wrong on rank {rank}")
    most = torch.tensor([grown[name] for name in ways])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if rank == 0:
        _print(arguments, times, dict(zip(ways, most.tolist())))
    transfer.close()
    world.close()
    dist.barrier()
    os._exit(0)


def _print(
    arguments: argparse.Namespace, times: dict[str, list[float]], grown: dict[str, float]
) -> None:
    size = len(_weights(arguments.mib)) * 16 / 1024
    print(f"# {size:.2f} GiB in float32, {TRAINERS} to {ENGINES} ranks, {arguments.rounds} rounds")
    print(f"{'way':<12} {'median s':>9} {'fastest':>9} {'GB/s':>7} {'to first':>9} {'memory MiB':>11}")
    first = statistics.median(next(iter(times.values())))
    for name, each in times.items():
        median = statistics.median(each)
        rate = size * 1.073741824 / median
        print(
            f"{name:<12} {median:>9.3f} {min(each):>9.3f} {rate:>7.3f} {median / first:>9.2f} "
            f"{grown[name]:>11.0f}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hetcomm.bench_weights", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of the model (1024)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured (3)")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS),
                        help=f"which ones ({','.join(WAYS)})")
    parser.add_argument("--bucket-mib", type=int, default=256, help="size of a bucket (256)")
    arguments = parser.parse_args()
    if not set(arguments.ways) <= set(WAYS):
        parser.error(f"--ways: there are {', '.join(WAYS)}")
    if "RANK" in os.environ:
        _rank(int(os.environ["RANK"]), arguments, None)
        return 0
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, arguments, folder))
            for rank in range(TRAINERS + ENGINES)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    return 0 if all(rank.exitcode == 0 for rank in ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
