"""Times pipelines of PyTorch modules, and compares them with PyTorch's own pipelines over Gloo and
hetcomm.

    python -m hetcomm.bench_pipeline --ranks 2 --compare gloo,hetcomm           # processes on this host
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python -m hetcomm.bench_pipeline   # and RANK=1

For each micro-batch, each rank computes for --stage-ms: one third is the forward step, one third
the gradients of inputs, and one third the gradients of weights. The computation is a sleep, since
ranks may share cores. The time of a micro-batch is the slope between runs of few and of many
micro-batches, so that filling and draining the pipeline do not count. All variants alternate in
every round. Figures are medians. Ratios compare runs of one round: above 1, hetcomm.pipeline is
faster. If PyTorch supports posting receives just before they are needed (defer_pp_recv), both
variants are run, and the faster one counts. The forecast comes from the simulator. Links take no
time, or the times of --link-us.

With --stage-ms 0, nothing is computed, and the remaining time is the overhead of an action. Then
callbacks that do nothing (hetcomm.pipeline.Runner) are also measured, without modules and autograd.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

# Maps the name of each of our schedules to the name of the PyTorch class and the number of chunks
# on each rank.
SCHEDULES = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved-1f1b": ("ScheduleInterleaved1F1B", 2),
    "interleaved-zb": ("ScheduleInterleavedZeroBubble", 2),
    "zb-v": ("ScheduleZBVZeroBubble", 2),
    "dualpipe-v": ("ScheduleDualPipeV", 2),
}
# Schedules that PyTorch does not have.
OWN = ("eager-1f1b", "virtual-1f1b", "h-1f1b", "zb-h1", "zb-h2", "looped-bfs")
KNOWN = (*SCHEDULES, *OWN)
IDLE = "callbacks that do nothing"


def _stage(torch: Any, seconds: float) -> Any:
    """Returns a module that sleeps for |seconds| for each micro-batch, in three equal parts."""
    third = seconds / 3

    def compute() -> None:
        if third > 0:
            time.sleep(third)

    class Through(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            compute()
            return x.clone()

        @staticmethod
        def backward(context: Any, grad: Any) -> Any:
            compute()
            return grad

    class Beside(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, weight: Any) -> Any:
            return weight * 0

        @staticmethod
        def backward(context: Any, grad: Any) -> Any:
            compute()
            return grad.reshape(-1)[:1]

    class Stage(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            return Through.apply(x) + Beside.apply(self.weight)

    return Stage()


class _Job:
    """Performs the measurements of one rank."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch
        import torch.distributed as dist

        import hetcomm.torch  # registers the backend

        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        self.arguments = arguments
        dist.init_process_group("gloo")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.groups = {name: dist.new_group(backend=name) for name in ("hetcomm", "gloo")}
        self.communicator = hetcomm.torch.communicator(self.groups["hetcomm"])
        self.elements = max(arguments.bytes // 4, 1)

    def close(self) -> None:
        self.dist.barrier()
        self.dist.destroy_process_group()

    def _plan(self, schedule: str, micro_batches: int) -> tuple[Any, Any]:
        """Returns the plan for |schedule|, and the schedule object."""
        from hetcomm import pipeline

        chunks = SCHEDULES.get(schedule, ("", 2 if schedule == "looped-bfs" else 1))[1]
        parameters: dict[str, Any] = {}
        if schedule == "virtual-1f1b":
            parameters["slow_boundaries"] = list(range(self.ranks - 1))
        if schedule == "h-1f1b":
            parameters["times"] = self._times(list(range(self.ranks)))
        made = pipeline.Schedule.named(schedule, ranks=self.ranks, chunks=chunks,
                                       micro_batches=micro_batches, **parameters)
        tensors = [pipeline.Tensor("x", "float32", (1, self.elements))]
        # One more than the number with which the simulation, which has no jitter, runs without
        # waits.
        needed = [self.arguments.in_flight or each + 1
                  for each in made.in_flight(self._times(made.rank_of))]
        plan = pipeline.Plan.of(
            stages=[pipeline.Stage([rank]) for rank in made.rank_of],
            boundaries=[pipeline.Boundary(i, i + 1, tensors, each) for i, each in enumerate(needed)],
            micro_batches=micro_batches, micro_batch_size=1, schedule=made)
        return plan, made

    def _own(self, schedule: str, micro_batches: int) -> tuple[Any, Callable[[], Any], Any]:
        """Returns a pipeline, a function that runs one step of it, and its schedule."""
        from hetcomm import pipeline

        plan, made = self._plan(schedule, micro_batches)
        seconds = self.arguments.stage_ms / 1e3 / made.rank_of.count(self.rank)
        modules = [_stage(self.torch, seconds) for rank in made.rank_of if rank == self.rank]
        trainer = pipeline.Pipeline(self.communicator, plan, modules,
                                    loss=lambda output, target: output.mean())
        x = self.torch.ones(micro_batches, self.elements)
        return trainer, (lambda: trainer.step(x, targets=x)), made

    def _idle(self, schedule: str, micro_batches: int) -> Callable[[], Any]:
        """Returns a function that runs one step of a pipeline whose callbacks do nothing."""
        from hetcomm import pipeline

        plan, made = self._plan(schedule, micro_batches)
        kinds = ("forward", "backward", "input_grad", "weight_grad", "recompute")
        chunk = {kind: lambda action: None for kind in kinds}
        runner = pipeline.Runner(self.communicator, plan, [chunk] * made.rank_of.count(self.rank))
        return runner.run

    def _torchs(
        self, schedule: str, backend: str, micro_batches: int, defers: bool
    ) -> Callable[[], Any]:
        from torch.distributed.pipelining import PipelineStage, schedules

        name, chunks = SCHEDULES[schedule]
        kind = getattr(schedules, name)
        stages = self.ranks * chunks
        loop = list(range(self.ranks))
        back = loop[::-1] if schedule in ("zb-v", "dualpipe-v") else loop
        rank_of = loop + (back if chunks == 2 else [])
        seconds = self.arguments.stage_ms / 1e3 / chunks
        moved = self.torch.ones(1, self.elements)
        own = [PipelineStage(_stage(self.torch, seconds), index, stages, self.torch.device("cpu"),
                             input_args=(moved.clone().requires_grad_(index > 0),),
                             output_args=(moved.clone().requires_grad_(),),
                             group=self.groups[backend])
               for index, rank in enumerate(rank_of) if rank == self.rank]
        options = {"loss_fn": lambda output, target: output.mean(), "scale_grads": False}
        if defers:
            options["defer_pp_recv"] = True
        made = kind(own if chunks == 2 else own[0], micro_batches, **options)
        x = self.torch.ones(micro_batches, self.elements)
        last = rank_of[-1] == self.rank

        def step() -> None:
            losses: list[Any] = []
            made.step(*((x,) if self.rank == 0 else ()), target=x if last else None,
                      losses=losses if last else None)

        return step

    def _times(self, rank_of: list[int]) -> dict[str, Any]:
        """Returns the times of stages and boundaries for the simulator. ``rank_of`` has the rank of
        each stage."""
        busy, latency = (int(each * 1e3) for each in self.arguments.link_us)
        third = int(self.arguments.stage_ms * 1e6 * self.ranks / len(rank_of) / 3)
        times: dict[str, Any] = {"stages": [{"forward_ns": third, "backward_ns": 2 * third,
                                             "input_grad_ns": third, "weight_grad_ns": third}]}
        if busy or latency:
            times["boundaries"] = [{"after": i, "busy_ns": busy, "latency_ns": latency}
                                   for i, (one, other) in enumerate(zip(rank_of, rank_of[1:]))
                                   if one != other]
        return times

    def _forecast_us(self, made: list[Any], **options: Any) -> float:
        return self._slope_us([each.forecast(self._times(each.rank_of), **options)["total_ns"] for each in made])

    def _replayed_us(self, trainers: list[Any]) -> float:
        """Returns the time of a micro-batch in the last steps, simulated with the measured times of
        actions."""
        return self._slope_us([json.loads(each.look_at_run("json", limit=1))["run"]["replayed_ns"] for each in trainers])

    def _slope_us(self, totals_ns: list[int]) -> float:
        few, many = self.arguments.micro_batches
        return (totals_ns[1] - totals_ns[0]) / (many - few) / 1e3

    def measure(self, schedule: str) -> dict[str, Any]:
        calls: dict[str, list[Callable[[], Any]]] = {}
        own = [self._own(schedule, each) for each in self.arguments.micro_batches]
        trainers = [trainer for trainer, _, _ in own]
        schedules = [made for _, _, made in own]
        calls["hetcomm.pipeline"] = [call for _, call, _ in own]
        replays: list[float] = []
        if self.arguments.stage_ms == 0:
            calls[IDLE] = [self._idle(schedule, each) for each in self.arguments.micro_batches]
        ways = self._ways(schedule)
        for backend in self.arguments.compare if ways else ():
            for way, defers in ways.items():
                calls[f"torch over {backend}{way}"] = [
                    self._torchs(schedule, backend, each, defers) for each in self.arguments.micro_batches
                ]
        few, many = self.arguments.micro_batches
        us: dict[str, list[float]] = {name: [] for name in calls}
        for round_ in range(self.arguments.rounds + 1):
            for name, both in calls.items():
                taken = []
                for call in both:
                    self.dist.barrier()
                    began = time.perf_counter()
                    call()
                    taken.append(time.perf_counter() - began)
                if round_ > 0:  # the first round opens connections
                    us[name].append((taken[1] - taken[0]) / (many - few) * 1e6)
                    if name == "hetcomm.pipeline" and self.arguments.stage_ms > 0:
                        replays.append(self._replayed_us(trainers))
                if self.rank == 0 and not self.arguments.json:
                    print(f"\r{schedule}, round {round_} of {self.arguments.rounds}   ", end="",
                          file=sys.stderr)
        computations = sum(cell.count(";") + 1 for cell in schedules[1].actions[self.rank] if cell)
        # PyTorch posts its receives just before their steps.
        late = self._forecast_us(schedules, level="transfers", receives_ahead=0) if ways else 0
        return {"schedule": schedule, "ranks": self.ranks, "bytes": self.elements * 4,
                "actions": computations / many,
                "stage_us": self.arguments.stage_ms * 1e3,
                "forecast_us": self._forecast_us(schedules), "torch_forecast_us": late,
                "replayed_us": statistics.median(replays or [0]), "us": self._best(us)}

    def _ways(self, schedule: str) -> dict[str, bool]:
        """Returns the variants of |schedule| in PyTorch, each with a flag that is true if it posts
        receives late. Returns an empty dict if PyTorch does not have the schedule."""
        from torch.distributed.pipelining import schedules

        if schedule not in SCHEDULES:
            return {}
        options = inspect.signature(getattr(schedules, SCHEDULES[schedule][0]).__init__).parameters
        return {"": False, ", deferred": True} if "defer_pp_recv" in options else {"": False}

    def _best(self, us: dict[str, list[float]]) -> dict[str, list[float]]:
        """Keeps the faster of PyTorch's variants for each backend."""
        best: dict[str, list[float]] = {}
        for name, times in us.items():
            base = name.removesuffix(", deferred")
            if base not in best or statistics.median(times) < statistics.median(best[base]):
                best[base] = times
        return best


def _ratios(row: dict[str, Any]) -> dict[str, float]:
    own = row["us"]["hetcomm.pipeline"]
    return {name: statistics.median(theirs / ours for ours, theirs in zip(own, us))
            for name, us in row["us"].items() if name not in ("hetcomm.pipeline", IDLE)}


def _table(rows: list[dict[str, Any]]) -> str:
    text = ("# Times of a micro-batch in ms; replayed: simulated with each step of hetcomm.pipeline as long as it was;\n"
            "# in brackets, how many times as long as hetcomm.pipeline in the same round\n"
            f"{'schedule':<18}{'stage':>8}{'forecast':>10}{'replayed':>10}{'hetcomm.pipeline':>18}"
            f"{'torch over gloo':>22}{'torch over hetcomm':>22}\n")
    for row in rows:
        ratios = _ratios(row)
        text += (f"{row['schedule']:<18}{row['stage_us'] / 1e3:>8.2f}{row['forecast_us'] / 1e3:>10.2f}"
                 f"{row['replayed_us'] / 1e3:>10.2f}"
                 f"{statistics.median(row['us']['hetcomm.pipeline']) / 1e3:>18.2f}")
        for name in ("torch over gloo", "torch over hetcomm"):
            if name in ratios:
                text += f"{statistics.median(row['us'][name]) / 1e3:>13.2f} ({ratios[name]:.3f})"
            else:
                text += f"{'-':>22}"
        text += "\n"
    for row in rows:
        if IDLE in row["us"]:
            each = ", ".join(f"{name} {statistics.median(us) / row['actions']:.1f} us"
                             for name, us in row["us"].items())
            text += f"# {row['schedule']}, an action: {each}\n"
    return text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _main(rank: int | None, arguments: argparse.Namespace) -> None:
    if rank is not None:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(arguments.ranks), MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(arguments.port))
    job = _Job(arguments)
    rows = [job.measure(each) for each in arguments.schedules]
    if job.rank == 0 and arguments.json:
        for row in rows:
            row["ratios"] = _ratios(row)
        print(json.dumps({"rows": rows, "torch": job.torch.__version__}, indent=1), flush=True)
    elif job.rank == 0:
        print("\r" + _table(rows), end="", flush=True)
    job.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="hetcomm.bench_pipeline",
                                     description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="where no launcher says it (2)")
    parser.add_argument("--schedules", default="1f1b", help=f"of {', '.join(KNOWN)} (1f1b)")
    parser.add_argument("--stage-ms", type=float, default=20, help="computation of a rank (20); 0: none")
    parser.add_argument("--micro-batches", default="16,64", help="few and many (16,64)")
    parser.add_argument("--bytes", type=int, default=4096, help="of a boundary (4096)")
    parser.add_argument("--in-flight", type=int, default=0,
                        help="items of a boundary; 0: one more than the simulation needs")
    parser.add_argument("--rounds", type=int, default=3, help="all take turns in each (3)")
    parser.add_argument("--compare", default="gloo,hetcomm",
                        help="backends of torch's own pipelining; '': none (gloo,hetcomm)")
    parser.add_argument("--link-us", type=float, nargs=2, default=(0, 0), metavar=("BUSY", "LATENCY"),
                        help="of a boundary, for the forecast and for h-1f1b")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    arguments = parser.parse_args()
    arguments.schedules = arguments.schedules.split(",")
    wrong = [each for each in arguments.schedules if each not in KNOWN]
    if wrong:
        parser.error(f"there is no schedule {wrong[0]!r} here")
    arguments.compare = [each for each in arguments.compare.split(",") if each]
    wrong = [each for each in arguments.compare if each not in ("gloo", "hetcomm")]
    if wrong:
        parser.error(f"--compare knows gloo and hetcomm, and not {wrong[0]!r}")
    arguments.micro_batches = [int(each) for each in arguments.micro_batches.split(",")]
    if len(arguments.micro_batches) != 2 or arguments.micro_batches[0] >= arguments.micro_batches[1]:
        parser.error("--micro-batches takes two numbers, the greater one last")
    if "RANK" in os.environ:
        _main(None, arguments)
        return 0
    arguments.port = _free_port()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_main, args=(rank, arguments)) for rank in range(arguments.ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return int(any(process.exitcode for process in processes))


if __name__ == "__main__":
    sys.exit(main())
