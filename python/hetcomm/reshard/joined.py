"""Joins the ranks' descriptions of each tensor to a layout."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from hetcomm._core import Communicator, Layout
from hetcomm.reshard.arrays import _elements, _type_name
from hetcomm.reshard.layouts import Box, _axes_and_ranks, _box_of, _placement_of, layout_of_boxes
from hetcomm.reshard.specs import TensorSpec


def _spec_to_json(communicator: Communicator, spec: TensorSpec, meshes: list[Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"shape": list(spec.shape), "dtype": _type_name(spec.dtype)}
    if spec.padded_shape is not None:
        said["padded_shape"] = list(spec.padded_shape)
    if spec.mesh is not None:
        mesh = list(_axes_and_ranks(spec.mesh, communicator))
        if mesh not in meshes:
            meshes.append(mesh)
        said["mesh"] = meshes.index(mesh)
        said["placements"] = [_placement_of(each, len(spec.shape)) for each in spec.placements]
    else:
        said["boxes"] = [[b.begin, b.end, b.offset, b.strides, b.term] for b in spec.boxes]
    return said


@dataclass
class _Joined:
    """One tensor, as described by all ranks together."""

    shape: tuple[int, ...]
    dtype: str
    padded_shape: tuple[int, ...] | None
    first: int  # the first rank that described it
    meshes: dict[str, tuple[Any, list[Any], list[int]]]  # mesh, placements, specifying ranks
    boxes: list[Box]
    layout: Layout = None  # type: ignore[assignment]
    terms: int = 1
    divisor: int = 1

    def make_layout(self, name: str) -> None:
        if not self.meshes:
            if self.padded_shape is not None:
                self.boxes = _without_padding(name, self.boxes, self.shape, self.padded_shape)
            self.boxes = number_copies(self.boxes)
            self.terms = 1 + max((box.term for box in self.boxes), default=0)
            self.layout = layout_of_boxes(self.shape, self.boxes, terms=self.terms)
            return
        if self.boxes:
            raise ValueError(f"{name}: some ranks say a mesh, rank {self.boxes[0].rank} says boxes")
        parts: list[Box] = []
        copies = 0
        taken: dict[int, list[int]] = {}
        for (axes, ranks), placements, said in self.meshes.values():
            missing = sorted(set(ranks) - set(said))
            if missing:
                raise ValueError(f"{name}: rank {missing[0]} is in the mesh and does not describe it")
            twice = [rank for rank in ranks if rank in taken]
            if twice:
                raise ValueError(
                    f"{name}: rank {twice[0]} is in two meshes, of ranks {taken[twice[0]]} and {ranks}"
                )
            taken.update((rank, ranks) for rank in ranks)
            layout = Layout.from_mesh(
                list(self.shape), axes, ranks, [tuple(each) for each in placements], True, 0, None
            )
            if len(self.meshes) == 1:
                self.layout = layout
                self.terms = 1 + max(part[6] for part in layout.parts())
                for axis, placement in zip(axes, placements):
                    self.divisor *= axis if placement[0] == "average" else 1
                return
            own = [_box_of(part) for part in layout.parts()]
            if any(box.term > 0 for box in own):
                raise ValueError(f"{name}: a sum on several meshes, of ranks {ranks} and of others")
            parts += [replace(box, copy=box.copy + copies) for box in own]
            copies += 1 + max(box.copy for box in own)
        self.layout = layout_of_boxes(self.shape, parts)


def _join(told: list[dict[str, Any]], side: str) -> dict[str, _Joined]:
    joined: dict[str, _Joined] = {}
    for rank, said in enumerate(told):
        for name, spec in said.get(side, {}).items():
            shape = tuple(spec["shape"])
            padded = tuple(spec["padded_shape"]) if "padded_shape" in spec else None
            own = joined.setdefault(name, _Joined(shape, spec["dtype"], padded, rank, {}, []))
            for what, one, other in (
                ("shape", own.shape, shape),
                ("type", own.dtype, spec["dtype"]),
                ("padded shape", own.padded_shape, padded),
            ):
                if one != other:
                    raise ValueError(
                        f"{name}: rank {own.first} says {what} {one} of the {side}, rank {rank} {other}"
                    )
            if "mesh" in spec:
                mesh = said["meshes"][spec["mesh"]]
                key = json.dumps([mesh, spec["placements"]])
                own.meshes.setdefault(key, (mesh, spec["placements"], []))[2].append(rank)
            for begin, end, offset, strides, term in spec.get("boxes", ()):
                own.boxes.append(
                    Box(
                        rank,
                        tuple(begin),
                        tuple(end),
                        offset,
                        None if strides is None else tuple(strides),
                        term=term,
                    )
                )
    for name, spec in joined.items():
        if 0 not in spec.shape:
            spec.make_layout(f"{name}, {side}")
    return joined


class _Copy:
    """The boxes of one copy of a term."""

    def __init__(self, dimensions: int) -> None:
        import numpy

        self._begins = numpy.empty((8, dimensions), dtype=numpy.int64)
        self._ends = numpy.empty((8, dimensions), dtype=numpy.int64)
        self._count = 0

    def overlaps(self, box: Box) -> bool:
        held = self._count
        below = (self._begins[:held] < box.end).all(axis=1)
        return bool((below & (self._ends[:held] > box.begin).all(axis=1)).any())

    def add(self, box: Box) -> None:
        import numpy

        if self._count == len(self._begins):
            self._begins = numpy.concatenate([self._begins, numpy.empty_like(self._begins)])
            self._ends = numpy.concatenate([self._ends, numpy.empty_like(self._ends)])
        self._begins[self._count] = box.begin
        self._ends[self._count] = box.end
        self._count += 1


def number_copies(boxes: list[Box]) -> list[Box]:
    """Assigns to each box the number of the first copy of its term in which it overlaps no other
    box."""
    first: dict[tuple[Any, ...], int] = {}  # for each box: all copies with lower numbers hold it
    copies: dict[int, list[_Copy]] = {}  # the copies of each term
    result = []
    for box in boxes:
        own = copies.setdefault(box.term, [])
        key = (box.term, box.begin, box.end)
        number = first.get(key, 0)
        while number < len(own) and own[number].overlaps(box):
            number += 1
        first[key] = number + 1
        if number == len(own):
            own.append(_Copy(len(box.begin)))
        own[number].add(box)
        result.append(replace(box, copy=number))
    return result


def _without_padding(
    name: str, boxes: list[Box], shape: tuple[int, ...], padded_shape: tuple[int, ...]
) -> list[Box]:
    """Returns the boxes without the padding, and omits boxes that have nothing else. Elements keep
    their positions in memory. Raises ValueError if a box extends beyond the padded shape."""
    clipped = []
    for box in boxes:
        if any(end > most for end, most in zip(box.end, padded_shape)):
            raise ValueError(
                f"{name}: rank {box.rank}, box {box.begin} to {box.end}, is beyond the padded shape "
                f"{padded_shape}"
            )
        strides = box.strides
        if strides is None:
            extents = [end - begin for begin, end in zip(box.begin, box.end)]
            strides = tuple(_elements(extents[i + 1 :]) for i in range(len(extents)))
        end = tuple(min(end, extent) for end, extent in zip(box.end, shape))
        if all(first < last for first, last in zip(box.begin, end)):
            clipped.append(replace(box, end=end, strides=strides))
    return clipped
