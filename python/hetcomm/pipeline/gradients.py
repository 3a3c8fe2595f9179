"""Determines which ranks hold which parts of a model, and whose gradients are added up: along the
data and context degrees of a stage, over several pipelines, and over stages that share an item,
such as tied embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from hetcomm._core import Layout
from hetcomm.pipeline.buffers import HostBuffers
from hetcomm.pipeline.plans import Plan
from hetcomm.reshard.arrays import _elements
from hetcomm.reshard.layouts import Box, layout_of_boxes
from hetcomm.reshard.specs import TensorSpec


_DEGREES: dict[str, Any] = {"data": 1, "context": 1, "tensor": 1, "expert": 1, "order": "dct"}


def degrees_of(stage: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the degrees of a stage, including those that its document omits."""
    return {**_DEGREES, **stage.get("degrees", {})}


def place_of(stage: Mapping[str, Any], rank: int) -> dict[str, int]:
    """Returns the index of ``rank`` in ``stage`` along each degree."""
    degrees = degrees_of(stage)
    names = {"d": "data", "c": "context", "t": "tensor"}
    index = stage["ranks"].index(rank)
    place: dict[str, int] = {}
    for letter in reversed(degrees["order"]):  # the last letter varies fastest
        name = names[letter]
        place[name] = index % degrees[name]
        index //= degrees[name]
    return place


class Holders:
    """Records which stages hold which items of the model, and where ``rank`` is in them."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._rank = rank
        self._stages: dict[int, list[Mapping[str, Any]]] = {}  # keyed by item
        shared: dict[tuple[int, int], set[int]] = {}
        for each in plan.document.get("shared", []):
            for holder in each["holders"]:
                place = (holder.get("pipeline", 0), holder["stage"])
                shared.setdefault(place, set()).add(each["item"])
        for number, pipeline in enumerate(plan.document["pipelines"]):
            for index, stage in enumerate(pipeline["stages"]):
                items = set(range(*stage["items"])) | shared.get((number, index), set())
                for item in items:
                    self._stages.setdefault(item, []).append(stage)

    def stages_of(self, item: int) -> list[Mapping[str, Any]]:
        """Returns the stages of all pipelines that hold ``item``."""
        return self._stages[item]

    def ranks_of(self, item: int) -> set[int]:
        """Returns the ranks that hold ``item`` or a part of it."""
        return {rank for stage in self._stages[item] for rank in stage["ranks"]}

    def is_added(self, item: int) -> bool:
        """Returns True if the gradients of ``item`` are sums over several ranks."""
        terms = {}
        for stage in self._stages[item]:
            degrees = degrees_of(stage)
            terms[tuple(stage["ranks"])] = degrees["data"] * degrees["context"]
        return sum(terms.values()) > 1

    def is_first(self, item: int, is_cut: bool) -> bool:
        """Returns True if this rank is the first one that holds its part of ``item``. If
        ``is_cut``, each rank along the tensor degree has a different part."""
        stage = self._stages[item][0]
        if self._rank not in stage["ranks"]:
            return False
        place = place_of(stage, self._rank)
        return place["data"] == place["context"] == 0 and (is_cut or place["tensor"] == 0)

    def own_stage(self, item: int) -> Mapping[str, Any]:
        """Returns the first stage in which this rank holds ``item``."""
        return next(each for each in self._stages[item] if self._rank in each["ranks"])

    def has_one_tensor_degree(self, item: int) -> bool:
        return len({degrees_of(each)["tensor"] for each in self._stages[item]}) == 1


@dataclass(frozen=True)
class Cut:
    """Describes how the ranks of a stage hold a parameter: the whole shape, and the boxes of each
    index along the tensor degree. A box is stored in the rank's own tensor, whose elements are in C
    order."""

    shape: tuple[int, ...]
    boxes: tuple[tuple[Box, ...], ...]

    def is_whole(self) -> bool:
        """Returns True if each rank along the tensor degree has the whole parameter."""
        return all(len(each) == 1 and _extent(each[0]) == self.shape for each in self.boxes)

    def layout(self, stage: Mapping[str, Any]) -> Layout:
        """Returns the layout of the parameter's gradient. Ranks along the data and context degrees
        have terms of a sum. Ranks along the tensor degree have boxes or copies."""
        degrees = degrees_of(stage)
        boxes = []
        for rank in stage["ranks"]:
            place = place_of(stage, rank)
            term = place["data"] * degrees["context"] + place["context"]
            copy = place["tensor"] if self.is_whole() else 0
            boxes += [
                replace(box, rank=rank, term=term, copy=copy) for box in self.boxes[place["tensor"]]
            ]
        return layout_of_boxes(self.shape, boxes, terms=degrees["data"] * degrees["context"])

    def spec(self, dtype: torch.dtype, place: int) -> TensorSpec:
        """Describes the parameter itself, as it is held by ranks with index ``place`` along the
        tensor degree."""
        return TensorSpec(self.shape, dtype, self.boxes[place])


# The sizes and types of an item's parameters, keyed by the index along the tensor degree.
ItemSizes = Mapping[int, Sequence[tuple[int, str]]]
Sizes = dict[int, dict[int, list[tuple[int, str]]]]  # keyed by item


def type_of(index: int, sizes: ItemSizes) -> str:
    """Returns the type of parameter ``index`` on the first rank along the tensor degree that has
    it."""
    return next(each[index][1] for _, each in sorted(sizes.items()) if index < len(each))


def cut_of(
    parameter: nn.Parameter | None, item: int, index: int, who: Holders, sizes: ItemSizes
) -> Cut:
    """Returns how the stage of this rank holds ``parameter``, which is parameter ``index`` of
    ``item``. ``parameter`` is None if only other ranks have it. Raises ValueError if stages have
    different tensor degrees, and the way in which they cut the parameter is not specified."""
    degree = degrees_of(who.own_stage(item))["tensor"]
    known = None if parameter is None else _known_cut(parameter)
    if parameter is not None and known is not None:
        dimension, blocks = known
        if hasattr(parameter, "placements"):
            return _chunks(tuple(parameter.shape), dimension, degree)
        whole = list(parameter.shape)
        if whole[dimension] % blocks != 0:
            raise ValueError(
                f"item {item}: a parameter of shape {whole} has a `partition_stride` of {blocks}, which "
                f"does not divide its dimension {dimension}"
            )
        whole[dimension] *= degree
        return _blocks(tuple(whole), dimension, degree, blocks)
    if who.has_one_tensor_degree(item):
        # Different indices along the tensor degree may hold different elements. The same index in
        # different stages holds the same elements.
        ends = [0]
        for place in range(degree):
            own = sizes.get(place, ())
            ends.append(ends[-1] + (own[index][0] if index < len(own) else 0))
        return _between((ends[-1],), 0, ends)
    if parameter is None:
        raise ValueError(
            f"item {item}: stages with different tensor degrees hold it, and some of their ranks have "
            "more parameters than others"
        )
    own_shape = tuple(_local(parameter).shape) or (1,)
    if is_cut(parameter):
        raise ValueError(
            f"item {item}: stages with different tensor degrees hold it, and a parameter of shape "
            f"{list(own_shape)} does not say which dimension they cut: set its `partition_dim`"
        )
    if getattr(parameter, "sequence_parallel", False):
        raise ValueError(
            f"item {item}: stages with different tensor degrees hold it, and the gradient of a parameter "
            f"of shape {list(own_shape)} is a part of a sum (`sequence_parallel`)"
        )
    return Cut(own_shape, ((Box(0, (0,) * len(own_shape), own_shape),),) * degree)


def is_cut(parameter: nn.Parameter) -> bool:
    """Returns True if the ranks along the tensor degree have different parts of the parameter."""
    if getattr(parameter, "tensor_model_parallel", False):
        return True
    return any(each.is_shard() for each in getattr(parameter, "placements", ()))


def _known_cut(parameter: nn.Parameter) -> tuple[int, int] | None:
    """Returns the dimension that the tensor degree cuts, and the number of blocks that are cut
    separately (Megatron-LM's ``partition_stride``). Returns None if the parameter specifies no
    dimension."""
    if not is_cut(parameter):
        return None
    if hasattr(parameter, "placements"):
        shards = [each for each in parameter.placements if not each.is_replicate()]
        plain = len(shards) == 1 and type(shards[0]).__name__ == "Shard"
        return (shards[0].dim % parameter.dim(), 1) if plain else None
    dimension = getattr(parameter, "partition_dim", -1)
    return None if dimension < 0 else (dimension, getattr(parameter, "partition_stride", 1))


def _chunks(shape: tuple[int, ...], dimension: int, degree: int) -> Cut:
    """Cuts in the same way as torch.chunk: the last chunks may be smaller, or empty."""
    size = -(-shape[dimension] // degree)
    return _between(shape, dimension, [min(i * size, shape[dimension]) for i in range(degree + 1)])


def _between(shape: tuple[int, ...], dimension: int, ends: Sequence[int]) -> Cut:
    """Cuts the dimension at ``ends``. Each index along the tensor degree gets the elements between
    two consecutive ends."""
    return Cut(
        shape,
        tuple(
            (_slab(shape, dimension, begin, end),) if end > begin else ()
            for begin, end in zip(ends, ends[1:])
        ),
    )


def _blocks(shape: tuple[int, ...], dimension: int, degree: int, blocks: int) -> Cut:
    """Cuts each of ``blocks`` equal blocks of the dimension into one piece for each index along the
    tensor degree. The pieces of an index are stored one after another."""
    length = shape[dimension] // (degree * blocks)
    own = list(shape)
    own[dimension] = length * blocks
    strides = tuple(_elements(own[i + 1 :]) for i in range(len(own)))
    places = []
    for place in range(degree):
        pieces = []
        for block in range(blocks):
            begin = (block * degree + place) * length
            slab = _slab(shape, dimension, begin, begin + length)
            pieces.append(replace(slab, offset=block * length * strides[dimension], strides=strides))
        places.append(tuple(pieces))
    return Cut(shape, tuple(places))


def _extent(box: Box) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in zip(box.begin, box.end))


def _slab(shape: tuple[int, ...], dimension: int, begin: int, end: int) -> Box:
    first = tuple(begin if d == dimension else 0 for d in range(len(shape)))
    last = tuple(end if d == dimension else each for d, each in enumerate(shape))
    return Box(0, first, last)


@dataclass
class HeldParameter:
    """A parameter of an item that is held by several ranks, or by several modules of this rank."""

    item: int
    index: int  # index among the parameters of the item
    alike: list[nn.Parameter]  # this rank's copies, with equal contents; empty if it has none
    chunks: set[int]  # chunks of this rank that hold the item
    cut: Cut | None = None  # None if only this rank has the parameter
    type: str = ""  # name of the data type, if |cut| is set
    left: set[int] = field(default_factory=set)  # chunks whose gradients are not complete
    room: torch.Tensor | None = None  # memory for the gradient that is added up over ranks

    def copy(self) -> torch.Tensor:
        """Returns a copy of the parameter's contents in host memory, or an empty tensor if this
        rank has none."""
        if not self.alike:
            return torch.empty(0, dtype=getattr(torch, self.type), device="cpu")
        return _local(self.alike[0].detach()).to("cpu", copy=True).reshape(-1).contiguous()

    def make_room(self, buffers: HostBuffers) -> Any:
        """Allocates ``room``, whose contents are added up over ranks. Returns it in the form that
        the library accepts."""
        size = _local(self.alike[0]).numel() if self.alike else 0
        self.room = buffers.room(size, getattr(torch, self.type))
        return buffers.array(self.room)

    def begin(self) -> None:
        self.left = set(self.chunks)

    def begin_with_nothing(self) -> None:
        """Begins a step in which this rank has no backward steps. It adds zero to the gradients of
        other ranks."""
        self.left = set()
        if self.room is not None:
            self.room.zero_()

    def finish(self, chunk: int) -> None:
        """Called when the steps of ``chunk`` have computed their part of the gradient. After the
        last chunk, fills ``room``."""
        if self.room is None or chunk not in self.left:
            return
        self.left.remove(chunk)
        if self.left:
            return
        grads = self._grads()
        if not grads:
            # All holders send the same amount of data, even if only some of them have used the
            # parameter.
            self.room.zero_()
            return
        self.room.copy_(grads[0].reshape(-1))
        for other in grads[1:]:
            self.room += other.reshape(-1).to(self.room.device)

    def take(self) -> None:
        """Stores the sum as the gradient, if there were backward steps."""
        if self.room is None:
            grads = self._grads()
            self._share(sum(grads[1:], grads[0].clone()) if grads else None)
        elif self.alike and not self.left:
            self._share(self.room.view(_local(self.alike[0]).shape))

    def _grads(self) -> list[torch.Tensor]:
        return [grad_of(each) for each in self.alike if each.grad is not None]

    def _share(self, total: torch.Tensor | None) -> None:
        if total is None:
            return
        for each in self.alike:
            if each.grad is None:
                each.grad = torch.zeros_like(each)
            _local(each.grad).copy_(total)


class Copies:
    """Presents parameters as an adapter for :func:`hetcomm.reshard.transfer_state`. They are moved
    through host memory, since parameters need not be contiguous."""

    def __init__(self, held: Sequence[HeldParameter], who: Holders, rank: int) -> None:
        self._held = {f"{each.item}.{each.index}": each for each in held}
        self._places = {
            name: place_of(who.own_stage(each.item), rank)["tensor"] for name, each in self._held.items()
        }
        self._arrays = {name: each.copy() for name, each in self._held.items()}

    def describe(self) -> dict[str, TensorSpec]:
        return {
            name: each.cut.spec(getattr(torch, each.type), self._places[name])  # type: ignore[union-attr]
            for name, each in self._held.items()
        }

    def view(self, name: str) -> torch.Tensor:
        return self._arrays[name]

    def load(self, name: str, box: Box, array: Any) -> None:
        raise AssertionError("tensors have their own memory")

    def loaded(self, names: Sequence[str]) -> None:
        """Copies the data that has arrived to the parameters."""
        with torch.no_grad():
            for name in names:
                for each in self._held[name].alike:
                    local = _local(each)
                    local.copy_(self._arrays[name].view(local.shape))


def grad_of(parameter: nn.Parameter) -> torch.Tensor:
    """Returns this rank's part of the gradient. If the gradient of a DTensor is still a sum over
    the mesh, forms the sum first."""
    grad = parameter.grad
    placements = getattr(parameter, "placements", None)
    if placements is not None and tuple(grad.placements) != tuple(placements):  # type: ignore[union-attr]
        grad = parameter.grad = grad.redistribute(placements=placements)  # type: ignore[union-attr]
    return _local(grad)  # type: ignore[arg-type]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def check_alike(item: int, modules: Sequence[nn.Module]) -> None:
    """Raises ValueError if the modules of one item have parameters of different shapes."""
    shapes = [[tuple(each.shape) for each in module.parameters()] for module in modules]
    for other in shapes[1:]:
        if other != shapes[0]:
            raise ValueError(
                f"item {item} has modules with different parameters on this rank: of the shapes "
                f"{shapes[0]}, and {other}"
            )
