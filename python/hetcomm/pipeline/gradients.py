"""Adds up the gradients of the parts of a model that several ranks hold: along the data and context
degrees of a stage, in several pipelines, and where stages share an item, such as tied embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hetcomm._core import Communicator
from hetcomm.pipeline.plans import Plan


_DEGREES: dict[str, Any] = {"data": 1, "context": 1, "tensor": 1, "expert": 1, "order": "dct"}


def degrees_of(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the degrees of a stage, also those that its document leaves out."""
    return {**_DEGREES, **stage.get("degrees", {})}


def place_of(stage: Mapping[str, Any], rank: int) -> dict[str, int]:
    """Returns the place of ``rank`` in ``stage`` along each degree."""
    degrees = degrees_of(stage)
    names = {"d": "data", "c": "context", "t": "tensor"}
    index = stage["ranks"].index(rank)
    place: dict[str, int] = {}
    for letter in reversed(degrees["order"]):  # the last one is the fastest
        name = names[letter]
        place[name] = index % degrees[name]
        index //= degrees[name]
    return place


def holders(plan: Plan) -> dict[int, dict[int, list[int]]]:
    """Returns, for each item, the ranks that hold the same part of it: by their places along the
    tensor degree. Raises ValueError if pipelines share an item by different tensor degrees."""
    found: dict[int, dict[int, list[int]]] = {}
    degrees: dict[int, int] = {}
    shared = {
        each["item"]: {(holder.get("pipeline", 0), holder["stage"]) for holder in each["holders"]}
        for each in plan.document.get("shared", [])
    }
    for number, pipeline in enumerate(plan.document["pipelines"]):
        for index, stage in enumerate(pipeline["stages"]):
            items = set(range(*stage["items"]))
            items |= {item for item, places in shared.items() if (number, index) in places}
            tensor = degrees_of(stage)["tensor"]
            for item in sorted(items):
                if degrees.setdefault(item, tensor) != tensor:
                    raise ValueError(
                        f"item {item} has the tensor degrees {degrees[item]} and {tensor}: their "
                        "gradients cannot be added here"
                    )
                for rank in stage["ranks"]:
                    place = place_of(stage, rank)["tensor"]
                    ranks = found.setdefault(item, {}).setdefault(place, [])
                    if rank not in ranks:
                        ranks.append(rank)
    return found


class Holders:
    """Who holds which part of the model. Raises ValueError if pipelines share an item by different
    tensor degrees."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._holders = holders(plan)
        self._rank = rank

    def sets(self) -> list[tuple[int, ...]]:
        """Returns the sets of several ranks that hold the same."""
        found = {tuple(sorted(each)) for parts in self._holders.values() for each in parts.values()}
        return sorted(ranks for ranks in found if len(ranks) > 1)

    def ranks_of(self, item: int) -> tuple[int, ...]:
        """Returns the ranks that hold the same part of ``item`` as this one."""
        for ranks in self._holders[item].values():
            if self._rank in ranks:
                return tuple(sorted(ranks))
        raise ValueError(f"rank {self._rank} does not hold item {item}")

    def first_of(self, item: int, is_parted: bool) -> int:
        """Returns the rank on which a parameter of ``item`` counts, among those that hold the same
        of it."""
        if is_parted:
            return self.ranks_of(item)[0]
        return min(min(ranks) for ranks in self._holders[item].values())


class Sums:
    """Sums of gradients over the ranks that hold the same. Collective: all ranks of
    ``communicator`` make it, with the same plan."""

    def __init__(self, communicator: Communicator, who: Holders) -> None:
        self._who = who
        self._own: dict[tuple[int, ...], Communicator] = {}
        for round_ in _disjoint(who.sets()):
            color = next((i for i, ranks in enumerate(round_) if communicator.rank in ranks), -1)
            made = communicator.split(color, communicator.rank)
            if made is not None:
                self._own[round_[color]] = made

    def communicators(self) -> list[Communicator]:
        return list(self._own.values())

    def add(self, grads: Mapping[int, Sequence[torch.Tensor]], timeout: float | None) -> None:
        """Sums ``grads``, those of each item of this rank, in place."""
        self._over_ranks(grads, lambda own, flat: own.allreduce(flat, flat, "sum", timeout=timeout))

    def broadcast(self, tensors: Mapping[int, Sequence[torch.Tensor]], timeout: float | None) -> None:
        """Gives ``tensors`` the values of the first rank that holds them."""
        self._over_ranks(tensors, lambda own, flat: own.broadcast(flat, 0, timeout=timeout))

    def _over_ranks(
        self,
        tensors: Mapping[int, Sequence[torch.Tensor]],
        start: Callable[[Communicator, torch.Tensor], Any],
    ) -> None:
        by_ranks: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for item in sorted(tensors):
            ranks = self._who.ranks_of(item)
            if len(ranks) > 1:
                by_ranks.setdefault(ranks, []).extend(tensors[item])
        started = []
        for ranks in sorted(by_ranks):
            for same in _by_type(by_ranks[ranks]):
                flat = torch.cat([each.detach().reshape(-1) for each in same]).to("cpu").contiguous()
                started.append((start(self._own[ranks], flat), flat, same))
        with torch.no_grad():
            for request, flat, same in started:
                request.wait()
                begin = 0
                for each in same:
                    each.copy_(flat[begin : begin + each.numel()].view(each.shape))
                    begin += each.numel()

    def close(self) -> None:
        for each in self._own.values():
            each.close()
        self._own.clear()


def _by_type(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for each in tensors:
        found.setdefault(each.dtype, []).append(each)
    return [found[dtype] for dtype in sorted(found, key=str)]


def _disjoint(sets: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Returns the sets in rounds, so that no rank is in two sets of a round."""
    rounds: list[list[tuple[int, ...]]] = []
    for ranks in sets:
        for round_ in rounds:
            if not any(set(ranks) & set(other) for other in round_):
                round_.append(ranks)
                break
        else:
            rounds.append([ranks])
    return rounds
