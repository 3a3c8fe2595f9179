#!/usr/bin/env python3
"""Trains a small decoder-only, character-level transformer on the project's own documents.

    torchrun --nproc-per-node 2 examples/train.py --backend hetcomm --parallel fsdp2

All ranks start with the same model, and divide a batch that does not depend on the number of ranks.
So runs with the same seed have the same loss curve, up to rounding. train_compare.py compares such
runs.
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
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WARM_UPS = 3  # times of the first steps, which set up buffers and connections, are ignored


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, characters: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the loss of predicting each character of |rows| from those before it."""
        x = self.characters(rows[:, :-1]) + self.places(torch.arange(rows.shape[1] - 1))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), rows[:, 1:].flatten())


def distribute(model: Transformer, parallel: str) -> nn.Module:
    if parallel == "ddp":
        return DistributedDataParallel(model)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


class Batches(torch.utils.data.Dataset):
    """This rank's rows of every step. Loading the rows of a step takes |load_ms| ms of CPU time."""

    def __init__(self, data: torch.Tensor, arguments: argparse.Namespace) -> None:
        chosen = torch.Generator().manual_seed(arguments.seed)
        self.data, self.context, self.load_ms = data, arguments.context, arguments.load_ms
        self.starts = torch.stack([torch.randint(len(data) - arguments.context, (arguments.batch,),
                                                 generator=chosen)[dist.get_rank()::dist.get_world_size()]
                                   for _ in range(arguments.steps)])

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, step: int) -> torch.Tensor:
        end = time.perf_counter() + self.load_ms / 1e3
        while time.perf_counter() < end:
            pass
        return torch.stack([self.data[at:at + self.context + 1] for at in self.starts[step]])


def train(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Returns, for every step, the mean loss over all ranks and this rank's time in seconds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    text = "".join(path.read_text() for path in arguments.text)
    index = {character: place for place, character in enumerate(sorted(set(text)))}
    data = torch.tensor([index[character] for character in text])

    torch.manual_seed(arguments.seed)
    model = distribute(Transformer(len(index), arguments.context, arguments.width, arguments.layers,
                                   arguments.heads), arguments.parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate)
    batches = iter(torch.utils.data.DataLoader(Batches(data, arguments), batch_size=None,
                                               num_workers=arguments.workers))
    losses, seconds = [], []
    for step in range(arguments.steps):
        began = time.perf_counter()
        rows = next(batches)
        loss = model(rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
        if rank == 0 and not arguments.json and step % 10 == 0:
            print(f"step {step:>4}  loss of rank 0 {losses[-1]:.3f}  {seconds[-1] * 1e3:.1f} ms",
                  flush=True)
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean)
    return {"losses": (mean / size).tolist(), "seconds": seconds}


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="hetcomm", help="hetcomm (default), gloo, ...")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="rows of all ranks together")
    parser.add_argument("--workers", type=int, default=0, help="processes of each rank that load data (0)")
    parser.add_argument("--load-ms", type=float, default=0, help="what loading the data of a step takes (0)")
    parser.add_argument("--context", type=int, default=64, help="characters of a row")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", type=pathlib.Path, nargs="+", metavar="FILE",
                        default=sorted((root / "docs").glob("*.md")), help="docs/*.md by default")
    parser.add_argument("--json", action="store_true", help="one document at the end")
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend, timeout=timedelta(seconds=60))
    size = dist.get_world_size()
    if arguments.steps <= WARM_UPS or arguments.batch % size != 0:
        parser.error(f"takes more than {WARM_UPS} steps, and a batch that {size} ranks can share")
    run = train(arguments)
    if dist.get_rank() == 0 and arguments.json:
        print(json.dumps(run), flush=True)
    elif dist.get_rank() == 0:
        step_ms = statistics.median(run["seconds"][WARM_UPS:]) * 1e3
        print(f"{arguments.backend}, {arguments.parallel}, {size} ranks: loss {run['losses'][0]:.3f} "
              f"to {run['losses'][-1]:.3f}, {step_ms:.1f} ms a step")
    dist.barrier()  # with Gloo, a rank can crash on exit if others have already exited
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
