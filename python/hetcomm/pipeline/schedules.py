"""Defines schedules: the order in which each rank performs its steps for the micro-batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hetcomm._core import draft_schedule

_UNITS = {"stages": [{"forward_ns": 1_000_000, "backward_ns": 2_000_000}]}
_FORMAT = {"format": "hetcomm schedule question", "version": 1}


class Schedule:
    """A pipeline schedule. The constructor checks it. If a schedule lacks a step, has a step twice,
    or deadlocks, the constructor raises :class:`hetcomm.Error`, which names the rank and the
    action.

    Create one by name, from actions, or from text in the CSV format of
    torch.distributed.pipelining::

        Schedule.named("interleaved-1f1b", ranks=4, chunks=2, micro_batches=16)
        Schedule.from_actions([["0F0", "0B0"], ["1F0", "1B0"]])
        Schedule.from_csv(pathlib.Path("schedule.csv").read_text())

    ``times`` says how long steps and transfers take, in nanoseconds, as pipeline/README.md
    describes. Without it, each forward step takes 1 ms, each backward step 2 ms, and transfers take
    no time.
    """

    def __init__(self, question: Mapping[str, Any]) -> None:
        self._question = {**_FORMAT, **question}
        self._answer = json.loads(draft_schedule(json.dumps(self._question), "json"))

    @classmethod
    def named(
        cls,
        name: str,
        *,
        ranks: int,
        micro_batches: int,
        chunks: int | None = None,
        **parameters: Any,
    ) -> Schedule:
        """Returns the schedule with ``name``, such as "1f1b", "h-1f1b" or "zb-v". ``chunks`` is the
        number of stages on each rank. It defaults to 1, or to 2 for schedules that need several.
        ``parameters`` are ``warmups``, ``slow_boundaries``, ``recomputed_stages``, ``epsilon_ppm``,
        ``order``, ``whole_backward``, ``effort`` and ``seed``, if the schedule supports them.
        ``times`` is also accepted, and ``limits`` for "arranged", which searches for a schedule
        under a limit."""
        outer = {key: parameters.pop(key) for key in ("times", "limits", "memory") if key in parameters}
        counts = {"name": name, "ranks": ranks, "micro_batches": micro_batches}
        if chunks is not None:
            counts["chunks"] = chunks
        return cls({"schedule": {**counts, **parameters}, **outer})

    @classmethod
    def from_actions(
        cls, actions: Sequence[Sequence[str]], rank_of: Sequence[int] | None = None
    ) -> Schedule:
        """Returns the schedule with a list of cells for each rank. ``rank_of`` has the rank of each
        stage. By default it is the rank that computes for the stage."""
        schedule: dict[str, Any] = {"actions": [list(each) for each in actions]}
        if rank_of is not None:
            schedule["rank_of"] = list(rank_of)
        return cls({"schedule": schedule})

    @classmethod
    def from_csv(cls, text: str, rank_of: Sequence[int] | None = None) -> Schedule:
        """Returns the schedule in a CSV text with one line for each rank."""
        schedule: dict[str, Any] = {"csv": text}
        if rank_of is not None:
            schedule["rank_of"] = list(rank_of)
        return cls({"schedule": schedule})

    @property
    def actions(self) -> list[list[str]]:
        """The cells of each rank, such as "0F3" or "(0F7;7B3)OVERLAP_F_B"."""
        return self._answer["schedule"]["actions"]

    @property
    def rank_of(self) -> list[int]:
        """The rank of each stage."""
        return self._answer["schedule"]["rank_of"]

    @property
    def peaks(self) -> list[int]:
        """The maximum number of live activations of each rank, or with ``memory``, the maximum in
        its unit."""
        return self._answer["peaks"]

    @property
    def has_times(self) -> bool:
        """True if the schedule was made with times of stages and boundaries."""
        return "times" in self._question

    def csv(self, level: str = "compute", **options: Any) -> str:
        """Returns the CSV text, with one line for each rank. ``level`` is "compute", "transfers"
        (with sends and receives) or "waits". ``options`` are ``receives_ahead``, ``send_waits``,
        ``send_buffers`` and ``reductions``. PyTorch adds transfers to "compute" by itself. From
        version 2.15 on, it accepts a file with transfers only at the level "waits" with
        ``send_waits="at_once"``."""
        return draft_schedule(json.dumps({**self._question, "level": level, **options}), "csv")

    def forecast(self, times: Mapping[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Returns the simulator's result: the time of an iteration, of each rank and of the
        critical path."""
        return json.loads(draft_schedule(json.dumps(self._with(times, options)), "json"))["forecast"]

    def in_flight(self, times: Mapping[str, Any] | None = None, **options: Any) -> list[int]:
        """Returns the number of items in flight from each stage to the next with which no step
        waits for a free buffer."""
        return json.loads(draft_schedule(json.dumps(self._with(times, options)), "json"))["in_flight"]

    def draw(self, times: Mapping[str, Any] | None = None, format: str = "svg", **options: Any) -> str:
        """Returns a Gantt chart as "svg", a table as "text", or a Chrome "trace"."""
        return draft_schedule(json.dumps(self._with(times, options)), format)

    def _with(self, times: Mapping[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any]:
        question = {"times": _UNITS, **self._question, **options}
        if times is not None:
            question["times"] = dict(times)
        return question

    def _repr_svg_(self) -> str:
        return self.draw()

    def __str__(self) -> str:
        return self.draw(format="text")

    def __repr__(self) -> str:
        steps = sum(len(each) for each in self.actions)
        return f"<Schedule: {len(self.actions)} ranks, {len(self.rank_of)} stages, {steps} actions>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.actions == other.actions and self.rank_of == other.rank_of

    def __hash__(self) -> int:
        return hash(json.dumps([self.actions, self.rank_of]))
