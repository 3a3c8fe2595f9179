#!/usr/bin/env python3
"""Trains the transformer of train.py with pipeline parallelism, and compares it with one process.

    torchrun --nproc-per-node 2 examples/train_pipeline.py --stages 1,1 --schedule zb-h1 --check
    torchrun --nproc-per-node 3 examples/train_pipeline.py --stages 2,1          # the first stage on two ranks
    torchrun --nproc-per-node 3 examples/train_pipeline.py --stages 1,1/1        # two pipelines of unequal depth
    torchrun --nproc-per-node 2 examples/train_pipeline.py --stages 1,1 --schedule zb-v  # two stages on each rank

--stages separates pipelines by "/", and the stages of a pipeline by ",". Each number is the number
of ranks that share the rows of a stage. With a schedule that has multiple chunks, such as zb-v,
each rank holds that many stages. The items of the model (embedding, blocks, head) are divided
evenly among the stages. The micro-batches are divided among the pipelines in proportion to their
numbers of ranks.
With --check every rank also trains the whole model, adding the gradients of the micro-batches in
order. It compares the losses of all steps, and the parameters after the last step. They are equal
up to rounding, or bit for bit with --double, one rank per stage and one pipeline.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from hetcomm import pipeline
from train import WARM_UPS, Block


class Embed(nn.Module):
    def __init__(self, characters: int, context: int, width: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.characters(rows) + self.places(torch.arange(rows.shape[1]))


class Head(nn.Module):
    def __init__(self, characters: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x))


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def items_of(characters: int, arguments: argparse.Namespace) -> dict[str, nn.Module]:
    """Returns the items of the model by name. They have the same initial values on all ranks."""
    torch.manual_seed(arguments.seed)
    items: dict[str, nn.Module] = {"embed": Embed(characters, arguments.context, arguments.width)}
    for i in range(arguments.layers):
        items[f"blocks.{i}"] = Block(arguments.width, arguments.heads)
    items["head"] = Head(characters, arguments.width)
    return {name: each.double() if arguments.double else each for name, each in items.items()}


def evenly(count: int, parts: int) -> list[int]:
    return [count // parts + (i < count % parts) for i in range(parts)]


def holders_of_stages(arguments: argparse.Namespace, groups: int, micro_batches: int) -> list[int]:
    """Returns the group of ranks that holds each stage. A group occurs once for each chunk."""
    if arguments.schedule == "h-1f1b":  # one stage on each rank
        return list(range(groups))
    return pipeline.Schedule.named(arguments.schedule, ranks=groups, micro_batches=micro_batches,
                                   chunks=arguments.chunks).rank_of


def plan_of(arguments: argparse.Namespace, items: int) -> pipeline.Plan:
    rows = arguments.batch // arguments.micro_batches
    moved = pipeline.Tensor("x", "float64" if arguments.double else "float32",
                            (rows, arguments.context, arguments.width))
    pipelines = [[int(each) for each in one.split(",")] for one in arguments.stages.split("/")]
    ranks = [sum(each) for each in pipelines]
    plans = []
    left = arguments.micro_batches
    for number, sizes in enumerate(pipelines):
        # A pipeline gets micro-batches in proportion to its ranks. The last one gets the rest.
        own = left if number == len(ranks) - 1 else arguments.micro_batches * ranks[number] // sum(ranks)
        left -= own
        firsts = [sum(sizes[:group]) for group in range(len(sizes))]
        holders = holders_of_stages(arguments, len(sizes), own)
        if items < len(holders):
            raise SystemExit(f"{items} items are too few for {len(holders)} stages: see --layers")
        made = [pipeline.Stage(range(firsts[group], firsts[group] + sizes[group]), count, data=sizes[group])
                for group, count in zip(holders, evenly(items, len(holders)))]
        schedule: dict[str, object] = {"name": arguments.schedule}
        if arguments.schedule == "h-1f1b":
            busy, latency = arguments.link_us[0] * 1000, arguments.link_us[1] * 1000
            schedule["parameters"] = {
                "stage_ns": [int(arguments.stage_ms * 1e6)] * len(made),
                "boundaries": [{"busy_ns": busy, "latency_ns": latency}] * (len(made) - 1)}
        plans.append(pipeline.Plan.of(stages=made, tensors=[moved], micro_batches=own, micro_batch_size=rows,
                                      schedule=schedule, in_flight=arguments.in_flight, sequence=arguments.context,
                                      precision=moved.dtype, optimizer="adamw"))
    return pipeline.Plan.join(plans)


class Whole:
    """Trains the whole model in one process."""

    def __init__(self, characters: int, arguments: argparse.Namespace) -> None:
        self.items = items_of(characters, arguments)
        parameters = [each for item in self.items.values() for each in item.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=arguments.rate)
        self.micro_batches = arguments.micro_batches

    def step(self, rows: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for part in rows.chunk(self.micro_batches):
            x = part[:, :-1]
            for item in self.items.values():
                x = item(x)
            loss = loss_of(x, part[:, 1:])
            total += loss.item() / self.micro_batches
            loss.backward(torch.full_like(loss, 1 / self.micro_batches))
        self.optimizer.step()
        return total


def own_rows(plan: pipeline.Plan, rows: torch.Tensor, micro_batches: int) -> torch.Tensor:
    """Returns this rank's rows of a step: its part of each micro-batch of its pipeline."""
    number, stages = plan.place_of(dist.get_rank())
    pipelines = plan.document["pipelines"]
    first = sum(each["micro_batches"] for each in pipelines[:number])
    stage = pipelines[number]["stages"][stages[0]]
    parts = rows.chunk(micro_batches)[first:first + pipelines[number]["micro_batches"]]
    place = stage["ranks"].index(dist.get_rank())
    return torch.cat([part.chunk(len(stage["ranks"]))[place] for part in parts])


def train(arguments: argparse.Namespace) -> dict[str, object]:
    rank = dist.get_rank()
    text = "".join(path.read_text() for path in arguments.text)
    index = {character: place for place, character in enumerate(sorted(set(text)))}
    data = torch.tensor([index[character] for character in text])
    model = items_of(len(index), arguments)
    plan = plan_of(arguments, len(model))
    if rank == 0 and not arguments.json:
        print(plan, flush=True)
    names = list(model)
    number, stages = plan.place_of(rank)
    own = [plan.document["pipelines"][number]["stages"][stage]["items"] for stage in stages]
    trainer = pipeline.Pipeline(None, plan, [{name: model[name] for name in names[slice(*items)]}
                                             for items in own], loss=loss_of)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=arguments.rate)
    whole = Whole(len(index), arguments) if arguments.check else None
    chosen = torch.Generator().manual_seed(arguments.seed)
    losses, seconds, run_seconds, differences = [], [], [], []
    for step in range(arguments.steps):
        starts = torch.randint(len(data) - arguments.context - 1, (arguments.batch,), generator=chosen)
        rows = torch.stack([data[at:at + arguments.context + 1] for at in starts])
        mine = own_rows(plan, rows, arguments.micro_batches)
        began = time.perf_counter()
        optimizer.zero_grad()
        losses.append(trainer.step(mine[:, :-1], targets=mine[:, 1:], number=step))
        run_seconds.append(time.perf_counter() - began)
        optimizer.step()
        seconds.append(time.perf_counter() - began)
        if whole is not None:
            differences.append(abs(whole.step(rows) - losses[-1]))
        if rank == 0 and not arguments.json and step % 10 == 0:
            print(f"step {step:>4}  loss {losses[-1]:.3f}  {seconds[-1] * 1e3:.1f} ms", flush=True)
    result: dict[str, object] = {"losses": losses, "seconds": seconds, "run_seconds": run_seconds}
    # look_at_run() is collective. All ranks call it, because they have the same options.
    if arguments.picture is not None:
        picture = trainer.look_at_run("svg")
        if rank == 0:
            arguments.picture.write_text(picture)
    if arguments.json:
        result["run"] = json.loads(trainer.look_at_run("json"))["run"]
    if whole is not None:
        state = {f"{name}.{inner}": each for name, item in whole.items.items()
                 for inner, each in item.state_dict().items()}
        away = max(float((each - state[name]).abs().max()) for name, each in trainer.state_dict().items())
        most = torch.tensor([max(differences), away], dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        result.update(loss_difference=float(most[0]), parameter_difference=float(most[1]))
    trainer.close()
    return result


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--stages", default="1,1", metavar="N,N/N", help="ranks of each stage (1,1)")
    parser.add_argument("--schedule", default="1f1b", help="1f1b (default), zb-h1, zb-v, h-1f1b, ...")
    parser.add_argument("--chunks", type=int, metavar="N", help="stages on each rank; the schedule's own by default")
    parser.add_argument("--backend", default="hetcomm")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16, help="rows of all micro-batches of a step (16)")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--link-us", type=int, nargs=2, default=(0, 0), metavar=("BUSY", "LATENCY"),
                        help="of a boundary for a micro-batch, for h-1f1b")
    parser.add_argument("--stage-ms", type=float, default=10, help="of a stage for a micro-batch, for h-1f1b (10)")
    parser.add_argument("--in-flight", type=int, default=4, help="micro-batches under way between stages (4)")
    parser.add_argument("--context", type=int, default=64, help="characters of a row")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--double", action="store_true", help="float64")
    parser.add_argument("--check", action="store_true", help="train the whole model in each process, too")
    parser.add_argument("--text", type=pathlib.Path, nargs="+", metavar="FILE",
                        default=sorted((root / "docs").glob("*.md")), help="docs/*.md by default")
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE",
                        help="draw the last step of the first pipeline below its forecast, as SVG")
    parser.add_argument("--json", action="store_true", help="one document at the end")
    arguments = parser.parse_args()
    if arguments.batch % arguments.micro_batches != 0:
        parser.error(f"a batch of {arguments.batch} rows makes no {arguments.micro_batches} micro-batches alike")
    if arguments.schedule == "h-1f1b" and arguments.chunks not in (None, 1):
        parser.error("h-1f1b has one stage on each rank")
    if arguments.steps <= WARM_UPS:
        parser.error(f"takes more than {WARM_UPS} steps")

    dist.init_process_group(arguments.backend, timeout=timedelta(seconds=60))
    result = train(arguments)
    if dist.get_rank() == 0 and arguments.json:
        print(json.dumps(result), flush=True)
    elif dist.get_rank() == 0:
        losses, seconds = result["losses"], result["seconds"]
        assert isinstance(losses, list) and isinstance(seconds, list)
        print(f"{arguments.schedule}, {arguments.stages}: loss {losses[0]:.3f} to {losses[-1]:.3f}, "
              f"{statistics.median(seconds[WARM_UPS:]) * 1e3:.1f} ms a step")
        if arguments.check:
            print(f"beside one process: losses differ by {result['loss_difference']:.1e} at most, "
                  f"parameters by {result['parameter_difference']:.1e}")
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
