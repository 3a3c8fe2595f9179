#!/usr/bin/env python3
"""Compares backends by running train.py with each kind of parallelism and each number of ranks.

    examples/train_compare.py --ranks 2,4 --rounds 5 --plot train.svg

Every round launches each configuration once with torchrun. For each configuration the backends run
directly after one another, in an order that rotates from round to round, so that changes of the
machine's speed affect all of them. The step time of a launch is the median over its steps. Ratios
compare launches of the same round: if a ratio is above 1, the first backend is faster. Exits with 1
if a loss curve differs from that of the first run, or does not decrease. Arguments after -- are
passed to train.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
from typing import NamedTuple

# Maximum difference between two loss curves. Rounding errors grow from step to step but stay below
# it, and the effect of a wrong batch or gradient is larger.
TOLERANCE = 0.001
TRAIN = pathlib.Path(__file__).resolve().with_name("train.py")


class Setting(NamedTuple):
    ranks: int
    parallel: str


class Run(NamedTuple):
    losses: list[float]
    step_ms: float


def launch(backend: str, setting: Setting, arguments: argparse.Namespace) -> Run:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", str(setting.ranks), str(TRAIN), "--json", "--backend", backend,
               "--parallel", setting.parallel, "--steps", str(arguments.steps), *arguments.options]
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", "1")
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=arguments.timeout)
    except subprocess.TimeoutExpired:
        errors = stop(process) + f"\nit took longer than {arguments.timeout} s"
        output = ""
    lines = [line for line in output.splitlines() if line.startswith('{"losses"')]
    if process.returncode != 0 or len(lines) != 1:
        sys.exit(f"{errors}\n{backend}, {setting.parallel}, {setting.ranks} ranks: failed")
    run = json.loads(lines[0])
    return Run(run["losses"], statistics.median(run["seconds"][3:]) * 1e3)


def stop(process: subprocess.Popen[str]) -> str:
    """Terminates torchrun, which then terminates its ranks, and returns their standard error
    output. If torchrun does not end within 40 s, kills it and returns a text that says so."""
    process.terminate()
    try:
        return process.communicate(timeout=40)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        return "torchrun was killed"


def complaints(runs: dict[tuple[Setting, str], list[Run]]) -> list[str]:
    """Returns one line for each configuration that has a run whose loss curve differs from that of
    the first run, or whose loss does not decrease."""
    reference = next(iter(runs.values()))[0].losses
    found = []
    for (setting, backend), several in runs.items():
        name = f"{backend}, {setting.parallel}, {setting.ranks} ranks"
        for run in several:
            far = distance(run.losses, reference)
            if not far <= TOLERANCE:
                found.append(f"{name}: the loss curve is {far:.4f} away from that of the first run")
                break
            if not run.losses[-1] < run.losses[0]:
                found.append(f"{name}: the loss does not fall")
                break
    return found


def distance(losses: list[float], others: list[float]) -> float:
    """Returns the maximum difference in any step, or infinity if the losses cannot be compared."""
    if len(losses) != len(others):
        return math.inf
    # max() could ignore a NaN.
    gaps = [abs(a - b) for a, b in zip(losses, others)]
    return math.inf if any(map(math.isnan, gaps)) else max(gaps)


def table(runs: dict[tuple[Setting, str], list[Run]], backends: list[str]) -> str:
    first = f"{backends[0]} ms"
    lines = [f"{'ranks':>5} {'parallel':<9}{'loss':>14}{first:>13}"
             + "".join(f"  {name:<8}{'loss':>8}{'away':>9}{'ms':>9}{'ratio':>7}  (rounds)"
                       for name in backends[1:])]
    for setting in dict.fromkeys(setting for setting, _ in runs):
        own = runs[setting, backends[0]]
        losses = own[0].losses
        line = (f"{setting.ranks:>5} {setting.parallel:<9}{losses[0]:>6.3f} to {losses[-1]:.3f}"
                f"{statistics.median(run.step_ms for run in own):>13.2f}")
        for name in backends[1:]:
            others = runs[setting, name]
            ratios = sorted(b.step_ms / a.step_ms for a, b in zip(own, others))
            line += (f"  {'':<8}{others[0].losses[-1]:>8.3f}{distance(others[0].losses, losses):>9.1e}"
                     f"{statistics.median(run.step_ms for run in others):>9.2f}"
                     f"{statistics.median(ratios):>7.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        lines.append(line)
    return "\n".join(lines)


def drawing(runs: dict[tuple[Setting, str], list[Run]]) -> str:
    """Returns an SVG drawing with a loss curve and a step time bar for each configuration."""
    colours = ["#0b6e99", "#d9730d", "#448361", "#9065b0", "#c14c8a", "#d44c47", "#787774", "#cb912f"]
    top = max(max(several[0].losses) for several in runs.values())
    longest = max(statistics.median(run.step_ms for run in several) for several in runs.values())
    height = max(300, 60 + 22 * len(runs))
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<text x="20" y="20">loss by step, from {top:.2f} on, 0 below</text>',
             '<text x="460" y="20">time of a step, median</text>']
    for place, ((setting, backend), several) in enumerate(runs.items()):
        colour = colours[place % len(colours)]
        losses = several[0].losses
        points = " ".join(f"{20 + 400 * step / (len(losses) - 1):.1f},"
                          f"{height - 10 - (height - 45) * loss / top:.1f}"
                          for step, loss in enumerate(losses))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        step_ms = statistics.median(run.step_ms for run in several)
        y = 30 + 22 * place
        parts.append(f'<rect x="620" y="{y}" width="{180 * step_ms / longest:.1f}" height="16" '
                     f'fill="{colour}"/><text x="460" y="{y + 13}">{setting.ranks} ranks, '
                     f'{setting.parallel}, {backend}</text><text x="810" y="{y + 13}">'
                     f'{step_ms:.1f} ms</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="hetcomm,gloo", help="the others are compared with the first")
    parser.add_argument("--parallel", default="ddp,fsdp2")
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one launch")
    parser.add_argument("--plot", type=pathlib.Path, metavar="FILE", help="an SVG drawing")
    parser.add_argument("options", nargs="*", help="for train.py, after --")
    arguments = parser.parse_args()
    backends = arguments.backend.split(",")
    settings = [Setting(int(ranks), parallel) for ranks in arguments.ranks.split(",")
                for parallel in arguments.parallel.split(",")]

    runs: dict[tuple[Setting, str], list[Run]] = {(setting, backend): []
                                                  for setting in settings for backend in backends}
    for turn in range(arguments.rounds):
        for setting in settings:
            for place in range(len(backends)):
                backend = backends[(turn + place) % len(backends)]
                runs[setting, backend].append(launch(backend, setting, arguments))
    print(table(runs, backends))
    if arguments.plot:
        arguments.plot.write_text(drawing(runs))
    wrong = complaints(runs)
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
