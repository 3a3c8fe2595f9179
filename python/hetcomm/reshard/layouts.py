"""Makes layouts, which say which rank holds which boxes of a tensor, from placements, boxes or
parallel degrees."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetcomm._core import Communicator, Layout
from hetcomm.reshard.arrays import _elements


@dataclass(frozen=True)
class Replicate:
    """All ranks along the axis hold the same data."""


@dataclass(frozen=True)
class Shard:
    """Rank i along the axis holds piece i of dimension ``dim``. Pieces are equal, or have the given
    ``sizes``."""

    dim: int
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Zigzag:
    """Rank i holds the i-th piece from the beginning and the i-th from the end (causal context
    parallelism)."""

    dim: int


@dataclass(frozen=True)
class StridedShard:
    """The dimension is cut as if a later axis of ``split_factor`` ranks had cut it before this one,
    as in PyTorch's _StridedShard."""

    dim: int
    split_factor: int


@dataclass(frozen=True)
class Partial:
    """The tensor is the sum of the data along the axis, or with "avg" their average."""

    reduce_op: str = "sum"


@dataclass(frozen=True)
class Box:
    """A box that one rank holds: the elements with ``begin <= index < end``.

    Element i of the box, counted from ``begin``, is element ``offset + sum(i * strides)`` of the
    rank's array. Without ``strides``, the elements of the box are contiguous, in C order.
    """

    rank: int
    begin: tuple[int, ...]
    end: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    copy: int = 0
    term: int = 0


def _mesh_of(mesh: Any) -> tuple[list[int], list[int]]:
    """Returns the axes and ranks of a mesh, which is given as nested lists of ranks, an array of
    them, or PyTorch's DeviceMesh."""
    ranks = getattr(mesh, "mesh", mesh)
    ranks = ranks.tolist() if hasattr(ranks, "tolist") else ranks
    axes: list[int] = []
    level = ranks
    while isinstance(level, Sequence):
        axes.append(len(level))
        level = level[0] if len(level) > 0 else None
    flat: list[Any] = list(ranks)
    for _ in axes[1:]:
        flat = [rank for row in flat for rank in row]
    return axes, [int(rank) for rank in flat]


def _axes_and_ranks(mesh: Any, communicator: Communicator) -> tuple[list[int], list[int]]:
    """Returns the axes and ranks of a mesh. Translates the ranks of a DeviceMesh, which are those
    of PyTorch's default group, to ranks of ``communicator``."""
    axes, ranks = _mesh_of(mesh)
    module = sys.modules.get("hetcomm.torch")
    known = module.ranks_of(communicator) if module is not None and hasattr(mesh, "mesh") else None
    if known is None:
        return axes, ranks
    place = {rank: i for i, rank in enumerate(known)}
    for rank in ranks:
        if rank not in place:
            raise ValueError(f"rank {rank} is in the mesh, and not in the group of the communicator")
    return axes, [place[rank] for rank in ranks]


def _layout_on(
    communicator: Communicator, shape: Sequence[int], mesh: Any, placements: Sequence[Any]
) -> Layout:
    axes, ranks = _axes_and_ranks(mesh, communicator)
    own = [_placement_of(each, len(shape)) for each in placements]
    return Layout.from_mesh(list(shape), axes, ranks, own, True, 0, None)


def _placement_of(placement: Any, dimensions: int) -> tuple[str, int, int, list[int] | None]:
    """Converts a placement to the form that _core takes. Recognizes PyTorch's placements by their
    names."""
    kind = type(placement).__name__
    if kind == "Replicate":
        return ("replicate", 0, 1, None)
    if kind in ("Partial", "_Partial"):
        operator = getattr(placement, "reduce_op", "sum")
        if operator not in ("sum", "avg"):
            raise ValueError(
                f"a tensor that is a {operator} of several is not supported, only a sum and an average"
            )
        return ("average" if operator == "avg" else "partial", 0, 1, None)
    dim = getattr(placement, "dim", None)
    if dim is None:
        raise TypeError(f"{placement!r} is no placement")
    dim = dim + dimensions if dim < 0 else dim
    if not 0 <= dim < max(dimensions, 1):
        raise ValueError(f"{placement!r}: the tensor has {dimensions} dimensions")
    if kind in ("_StridedShard", "StridedShard"):
        return ("strided_shard", dim, placement.split_factor, None)
    if kind == "Zigzag":
        return ("zigzag", dim, 1, None)
    sizes = getattr(placement, "sizes", None)
    return ("shard", dim, 1, None if sizes is None else list(sizes))


def layout(
    shape: Sequence[int],
    mesh: Any,
    placements: Sequence[Any],
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
) -> Layout:
    """Returns a layout from a mesh of ranks and a placement for each of its axes.

    ``mesh`` is given as nested lists of ranks, an array of them, or PyTorch's DeviceMesh.
    ``placements`` are from this module or from PyTorch. A dimension that cannot be cut equally is
    cut as in torch.chunk. With ``offset`` and ``strides``, in elements, each rank's piece is a view
    of a larger array.
    """
    axes, ranks = _mesh_of(mesh)
    own = [_placement_of(each, len(shape)) for each in placements]
    return Layout.from_mesh(
        list(shape), axes, ranks, own, True, offset, None if strides is None else list(strides)
    )


def layout_of_boxes(
    shape: Sequence[int],
    boxes: Iterable[Box],
    *,
    padded_shape: Sequence[int] | None = None,
    terms: int = 1,
    divisor: int = 1,
) -> Layout:
    """Returns a layout from boxes. Boxes may extend beyond ``shape``, up to ``padded_shape``. The
    elements there are neither read nor written. The tensor is the sum of ``terms`` terms, divided
    by ``divisor``. If boxes of one rank overlap in its array, the layout can be a source, but not a
    destination."""
    parts = [
        (
            box.rank,
            list(box.begin),
            list(box.end),
            box.offset,
            None if box.strides is None else list(box.strides),
            box.copy,
            box.term,
        )
        for box in boxes
    ]
    return Layout.from_parts(
        list(shape), parts, None if padded_shape is None else list(padded_shape), terms, divisor
    )


def layout_of_degrees(
    batch: int,
    sequence: int,
    hidden: int,
    ranks: Sequence[int],
    *,
    data: int = 1,
    context: int = 1,
    tensor: int = 1,
    order: str = "dct",
    zigzag: bool = False,
) -> Layout:
    """Returns a layout of activations, cut as [batch / data, sequence / (context * tensor),
    hidden]. ``order`` is the order in which ranks are numbered: the first degree varies slowest."""
    return Layout.from_degrees(
        batch, sequence, hidden, list(ranks), data, context, tensor, order, zigzag
    )


def _box_of(part: tuple[Any, ...]) -> Box:
    rank, begin, end, offset, strides, copy, term = part
    return Box(rank, tuple(begin), tuple(end), offset, tuple(strides), copy, term)


def _volume(box: Box) -> int:
    return _elements(end - begin for begin, end in zip(box.begin, box.end))


def _dense(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """Returns the boxes, stored one after another in the array."""
    result, at = [], 0
    for box in boxes:
        result.append(replace(box, offset=at, strides=None))
        at += _volume(box)
    return tuple(result)
