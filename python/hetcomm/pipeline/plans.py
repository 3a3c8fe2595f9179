"""Defines pipeline plans: which ranks hold which part of a model, and which tensors are sent
between them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hetcomm._core import draft_forecast, draft_pipeline, draft_schedule
from hetcomm.pipeline.schedules import Schedule
from hetcomm.reshard.arrays import _type_name


@dataclass(frozen=True)
class Stage:
    """A part of the model: the next ``items`` items. The ``ranks`` divide it according to the
    degrees. Stages with the same ranks are chunks of these ranks."""

    ranks: Sequence[int]
    items: int = 1
    data: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1
    order: str = "dct"
    zigzag: bool = False
    zero: int = 0
    recompute: bool = False
    live_limit: int = 0


@dataclass(frozen=True)
class Tensor:
    """A tensor that is sent from one stage to another for each micro-batch: its whole shape, and
    the dimension that each degree of a stage cuts. ``varies`` is the dimension whose length is the
    length of the micro-batch."""

    name: str
    dtype: Any
    shape: Sequence[int]
    data: int | None = 0
    context: int | None = None
    tensor: int | None = None
    varies: int | None = None
    gradient: bool = True

    def document(self) -> dict[str, Any]:
        cut = {name: getattr(self, name) for name in ("data", "context", "tensor")}
        document = {
            "name": self.name,
            "type": _type_name(self.dtype),
            "shape": list(self.shape),
            "cut": {name: dimension for name, dimension in cut.items() if dimension is not None},
            "gradient": self.gradient,
        }
        if self.varies is not None:
            document["varies"] = self.varies
        return document


@dataclass(frozen=True)
class Boundary:
    """The tensors that are sent from a stage to a later one. ``in_flight`` is the number of items
    in flight in each direction. 0 lets the library choose: at least one more than the schedule
    needs."""

    source: int
    destination: int
    tensors: Sequence[Tensor]
    in_flight: int = 0
    strategy: str = "auto"
    slice_bytes: int = 0

    def document(self) -> dict[str, Any]:
        return {
            "from": self.source,
            "to": self.destination,
            "tensors": [each.document() for each in self.tensors],
            "in_flight": self.in_flight,
            "strategy": self.strategy,
            "slice_bytes": self.slice_bytes,
        }


@dataclass(frozen=True)
class Plan:
    """A pipeline plan: a document that is the same on all ranks (pipeline/README.md). The
    constructor checks it. For an invalid plan it raises :class:`hetcomm.Error`, which names the
    entry, or the rank and the action."""

    document: Mapping[str, Any]
    _outline: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_outline", json.loads(draft_pipeline(self.json)))

    @classmethod
    def of(
        cls,
        *,
        stages: Sequence[Stage],
        micro_batches: int,
        micro_batch_size: int,
        tensors: Sequence[Tensor] = (),
        boundaries: Sequence[Boundary] = (),
        schedule: str | Schedule | Mapping[str, Any] = "1f1b",
        in_flight: int = 0,
        lengths: Sequence[int] = (),
        devices: Mapping[int, int] | None = None,
        hosts: Mapping[int, str] | None = None,
        shared: Sequence[Mapping[str, Any]] = (),
        weight: str = "samples",
        **names: Any,
    ) -> Plan:
        """Returns the plan of one pipeline. ``tensors`` are sent between any two consecutive
        stages, with ``in_flight`` items in flight. 0 means one more than the schedule needs, given
        its times if it has any. ``boundaries`` replace these boundaries, or add others.
        ``schedule`` is a name, a :class:`Schedule`, or {"name": ..., "parameters": ...}. Valid
        keyword arguments in ``names`` are ``sequence``, ``precision``, ``optimizer``, ``cluster``,
        ``model`` and ``provenance``."""
        ends = {(each.source, each.destination) for each in boundaries}
        between = [
            Boundary(stage, stage + 1, tensors, in_flight)
            for stage in range(len(stages) - 1)
            if tensors and (stage, stage + 1) not in ends
        ]
        ordered = sorted([*between, *boundaries], key=lambda each: (each.source, each.destination))
        if isinstance(schedule, Schedule) and schedule.has_times:
            needed = schedule.in_flight()
            ordered = [
                replace(each, in_flight=needed[each.source] + 1)
                if each.in_flight == 0 and each.destination == each.source + 1 <= len(needed)
                else each
                for each in ordered
            ]
        pipeline: dict[str, Any] = {
            "micro_batches": micro_batches,
            "micro_batch_size": micro_batch_size,
            "stages": _stages(stages),
            "schedule": _schedule(schedule),
            "boundaries": [each.document() for each in ordered],
        }
        if lengths:
            pipeline["lengths"] = list(lengths)
        ranks = 1 + max((rank for each in stages for rank in each.ranks), default=-1)
        for name, given in (("hosts", hosts), ("devices", devices)):
            if given is not None and not isinstance(given, Mapping):
                raise TypeError(f"{name} is a {type(given).__name__}, and no dict by rank")
            strange = sorted(set(given or ()) - set(range(ranks)))
            if strange:
                raise ValueError(f"{name} has rank {strange[0]}, and the stages have ranks 0 to {ranks - 1}")
        document = {
            "format": "hetcomm pipeline plan",
            "version": 1,
            "cluster": {"hash": names.get("cluster", "")},
            "model": {
                "hash": names.get("model", ""),
                "items": sum(each.items for each in stages),
            },
            "training": {
                "global_batch": micro_batches * micro_batch_size,
                "sequence": names.get("sequence", 0),
                "precision": names.get("precision", ""),
                "optimizer": names.get("optimizer", ""),
            },
            "ranks": [
                {"host": (hosts or {}).get(rank, ""), "device": (devices or {}).get(rank, 0)}
                for rank in range(ranks)
            ],
            "pipelines": [pipeline],
            "shared": [dict(each) for each in shared],
            "gradients": {"weight": weight},
        }
        if "provenance" in names:
            document["provenance"] = names["provenance"]
        unknown = set(names) - {
            "cluster", "model", "sequence", "precision", "optimizer", "provenance"
        }
        if unknown:
            raise TypeError(f"Plan.of() has no argument {sorted(unknown)[0]!r}")
        return cls(document)

    @classmethod
    def join(cls, plans: Sequence[Plan]) -> Plan:
        """Returns a plan with the pipelines of several plans side by side. The plans use separate
        ranks: the ranks of the second plan follow those of the first."""
        joined = json.loads(plans[0].json)
        for plan in plans[1:]:
            more = json.loads(plan.json)
            first = len(joined["ranks"])
            pipelines = len(joined["pipelines"])
            for pipeline in more["pipelines"]:
                for stage in pipeline["stages"]:
                    stage["ranks"] = [first + rank for rank in stage["ranks"]]
            for item in more["shared"]:
                for holder in item["holders"]:
                    holder["pipeline"] = holder.get("pipeline", 0) + pipelines
                known = [each for each in joined["shared"] if each["item"] == item["item"]]
                if known:
                    known[0]["holders"] += item["holders"]
                else:
                    joined["shared"].append(item)
            joined["pipelines"] += more["pipelines"]
            joined["ranks"] += more["ranks"]
            joined["training"]["global_batch"] += more["training"]["global_batch"]
        return cls(joined)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Returns the plan in a JSON document."""
        return cls(json.loads(text))

    def with_schedule(
        self,
        schedule: str | Schedule | Mapping[str, Any],
        pipeline: int = 0,
        in_flight: Sequence[int] | None = None,
    ) -> Plan:
        """Returns the plan with another schedule, for :meth:`Pipeline.set_schedule`. ``in_flight``
        has the number of items in flight from each stage to the next. None leaves the numbers
        unchanged."""
        document = json.loads(self.json)
        document["pipelines"][pipeline]["schedule"] = _schedule(schedule)
        for boundary in document["pipelines"][pipeline]["boundaries"] if in_flight else ():
            if boundary["to"] == boundary["from"] + 1:
                boundary["in_flight"] = in_flight[boundary["from"]]
        return replace(self, document=document)

    @property
    def json(self) -> str:
        """The text of the document, for files and for other programs."""
        return json.dumps(self.document, sort_keys=True, indent=1) + "\n"

    @property
    def hash(self) -> str:
        """The hash that ranks compare. Plans that differ only in their provenance have the same
        hash."""
        return self._outline["hash"]

    @property
    def outline(self) -> dict[str, Any]:
        """Properties derived from the plan: groups of ranks, actions, activations, and items in
        flight."""
        return self._outline

    def place_of(self, rank: int) -> tuple[int, list[int]]:
        """Returns the pipeline of ``rank``, and the rank's stages."""
        for number, pipeline in enumerate(self.document["pipelines"]):
            own = [i for i, stage in enumerate(pipeline["stages"]) if rank in stage["ranks"]]
            if own:
                return number, own
        raise ValueError(f"the plan has no rank {rank}")

    def forecast(
        self,
        stages: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        links: Mapping[str, Any] | None = None,
        nics: Sequence[str] = (),
        items: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        overlap_ppm: int = 0,
        format: str = "text",
    ) -> str:
        """Simulates a step of all pipelines together. Returns the result as "text", "json", "svg"
        or a Chrome "trace".

        ``stages`` is a list with the times of each stage, pipeline by pipeline, or a single entry
        for all stages: ``{"forward_ns": ..., "backward_ns": ...}``. Steps without a time take no
        time. ``links`` is a link model as a dict, in the format of ``hetcomm_bench links --format
        json``, with the hosts of the plan's ranks (``hosts`` of :meth:`of`). Without ``links``,
        transfers take no time. ``nics`` has the NIC of each rank. By default ranks use the first
        NIC of their hosts. ``items`` is a list with the bytes of each item of the model, or a
        single entry for all items: ``{"gradient_bytes": ..., "weight_bytes": ...}``. Gradients are
        summed over all ranks that hold the item. Weights are gathered where a schedule has
        UNSHARD."""
        if links is not None and not isinstance(links, Mapping):
            raise TypeError(f"links are a {type(links).__name__}, and no dict: use json.loads(text)")
        question: dict[str, Any] = {
            "format": "hetcomm forecast question",
            "version": 1,
            "plan": self.document,
            "times": {"stages": _listed(stages), "overlap_ppm": overlap_ppm},
        }
        if links is not None:
            question["links"] = {"model": links}
            if nics:
                question["links"]["nics"] = list(nics)
        if items:
            question["items"] = _listed(items)
        return draft_forecast(json.dumps(question), format)

    def look_at_run(
        self,
        traces: Sequence[str],
        pipeline: int = 0,
        format: str = "text",
        *,
        times: Mapping[str, Any] | None = None,
        limit: int | None = None,
        may_split: bool = False,
    ) -> str:
        """Compares a run of ``pipeline`` with its forecast. ``traces`` are the traces of its ranks
        in the format "json", at least one for each stage. ``times`` are as for
        :meth:`Schedule.forecast`.

        Returns "text", "json", or an "svg" that shows the run below its forecast. The JSON document
        has the times of steps and transfers, the simulated time of a run with these step times
        ("replayed_ns"), the times that differ by more than 10 % from ``times``, and a better
        schedule ("proposal", for :meth:`with_schedule`). A proposed schedule stays within the live
        limits of the stages, and keeps at most ``limit`` activations on a rank (None: as many as
        the rank that keeps most now). It splits backward steps only if the current schedule does,
        or with ``may_split``."""
        made = self._outline["pipelines"][pipeline]
        question: dict[str, Any] = {
            "format": "hetcomm schedule question",
            "version": 1,
            "schedule": {"actions": made["actions"], "rank_of": made["group_of_stage"]},
            "traces": [json.loads(each) for each in traces],
            "may_split": may_split,
        }
        if times is not None:
            question["times"] = times
        stages = self.document["pipelines"][pipeline]["stages"]
        if len(stages) > 1:
            question["in_flight"] = made["stage_in_flight"]
        question["stage_limits"] = [stage.get("live_limit", 0) for stage in stages]
        if limit is not None:
            question["limits"] = [limit]
        for trace in question["traces"]:
            if trace["pipeline"] != pipeline:
                raise ValueError(
                    f"a trace is of pipeline {trace['pipeline']}, and this is about pipeline {pipeline}"
                )
        return draft_schedule(json.dumps(question), format)

    def draw(self) -> str:
        """Returns a Gantt chart of the schedule as SVG."""
        return draft_pipeline(self.json, "svg")

    def _repr_svg_(self) -> str:
        return self.draw()

    def __str__(self) -> str:
        return draft_pipeline(self.json, "text")

    def __hash__(self) -> int:
        return hash(self.hash)


def _listed(given: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(each) for each in ([given] if isinstance(given, Mapping) else given)]


def _stages(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = []
    begin = 0
    for each in stages:
        ranks = list(each.ranks)
        documents.append(
            {
                "items": [begin, begin + each.items],
                "chunk": sum(other["ranks"] == ranks for other in documents),
                "ranks": ranks,
                "degrees": {
                    "data": each.data,
                    "context": each.context,
                    "tensor": each.tensor,
                    "expert": each.expert,
                    "order": each.order,
                    "zigzag": each.zigzag,
                },
                "zero": each.zero,
                "recompute": each.recompute,
                "live_limit": each.live_limit,
            }
        )
        begin += each.items
    return documents


def _schedule(schedule: str | Schedule | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(schedule, str):
        return {"name": schedule}
    if isinstance(schedule, Schedule):
        return {"actions": schedule.actions}
    return dict(schedule)
