"""Moves tensors between parallel layouts, and models between a trainer and an inference engine.

    from hetcomm import reshard

    source = reshard.layout((4096, 4096), [0, 1, 2, 3], [reshard.Shard(0)])        # FSDP on ranks 0-3
    target = reshard.layout((4096, 4096), [4, 5], [reshard.Shard(1)])              # TP on ranks 4, 5
    plan = reshard.Plan(world, [(source, target, "bfloat16")])                     # the same on all ranks
    plan.start([my_part], [None]).wait()                                           # as often as you like

``redistribute`` does it for DTensors, also between meshes that share no rank. ``transfer_state`` moves
whole state dicts. Ranks are those of the communicator.
"""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hetcomm._core import Communicator, Layout, Request
from hetcomm._core import Plan as _Plan

__all__ = [
    "Adapter",
    "Box",
    "Layout",
    "Partial",
    "Plan",
    "Replicate",
    "Shard",
    "StateDict",
    "StateTransfer",
    "StridedShard",
    "TensorSpec",
    "Zigzag",
    "close_plans",
    "layout",
    "layout_of_boxes",
    "layout_of_degrees",
    "redistribute",
    "transfer_state",
]

# --- layouts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replicate:
    """All ranks along the axis hold the same."""


@dataclass(frozen=True)
class Shard:
    """Rank i along the axis holds piece i of a dimension: equal pieces, or pieces of ``sizes``."""

    dim: int
    sizes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Zigzag:
    """Rank i holds piece i from the beginning and piece i from the end (causal context parallelism)."""

    dim: int


@dataclass(frozen=True)
class StridedShard:
    """A later axis of ``split_factor`` ranks cuts the dimension first (torch's _StridedShard)."""

    dim: int
    split_factor: int


@dataclass(frozen=True)
class Partial:
    """The tensor is the sum of what the ranks along the axis hold."""


@dataclass(frozen=True)
class Box:
    """A box that one rank holds: the elements with ``begin <= index < end``.

    Its element i, counted from ``begin``, lies ``offset + sum(i * strides)`` elements after the beginning
    of the rank's array; without ``strides`` the box is alone there, in C order.
    """

    rank: int
    begin: tuple[int, ...]
    end: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    copy: int = 0
    term: int = 0


def _mesh_of(mesh: Any) -> tuple[list[int], list[int]]:
    """Axes and ranks of nested lists of ranks, of an array of them, or of torch's DeviceMesh."""
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


def _placement_of(placement: Any, dimensions: int) -> tuple[str, int, int, list[int] | None]:
    """As _core takes it; knows torch's placements by their names."""
    kind = type(placement).__name__
    if kind == "Replicate":
        return ("replicate", 0, 1, None)
    if kind in ("Partial", "_Partial"):
        operator = getattr(placement, "reduce_op", "sum")
        if operator != "sum":
            raise ValueError(f"a tensor that is a {operator} of several is not supported, only a sum")
        return ("partial", 0, 1, None)
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
    """A layout from a mesh of ranks and a placement for each of its axes.

    ``mesh``: nested lists of ranks, an array of them, or torch's DeviceMesh. ``placements``: of this
    module or of torch. A dimension that its pieces do not divide is cut as torch.chunk does it.
    ``offset`` and ``strides``, in elements: each rank's piece is a view of a larger array.
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
) -> Layout:
    """A layout from boxes. They may reach beyond ``shape``, up to ``padded_shape``: what is there is
    neither read nor written. The tensor is the sum of ``terms`` terms."""
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
        list(shape), parts, None if padded_shape is None else list(padded_shape), terms
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
    """Activations cut as [b / d, s / (c t), h]; ``order``: how ranks are numbered, slowest first."""
    return Layout.from_degrees(
        batch, sequence, hidden, list(ranks), data, context, tensor, order, zigzag
    )


# --- plans --------------------------------------------------------------------------------------

_plans: weakref.WeakKeyDictionary[Communicator, weakref.WeakSet[Plan]] = weakref.WeakKeyDictionary()
_caches: weakref.WeakKeyDictionary[Communicator, dict[Any, Plan]] = weakref.WeakKeyDictionary()
_MOST_CACHED = 64


def close_plans(communicator: Communicator) -> None:
    """Closes all plans of a communicator, those that :func:`redistribute` keeps too. The communicator's
    close() calls it."""
    _caches.pop(communicator, None)
    _close_all(_plans.pop(communicator, ()))


def _close_all(plans: Iterable[Plan]) -> None:
    """Closes all of them, and raises the first failure afterwards."""
    failure: Exception | None = None
    for plan in list(plans):
        try:
            plan.close()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


class Plan:
    """How tensors go from one layout to another, prepared once and executed any number of times.

    All ranks that are in a layout make it alike, and start its executions in the same order. Each of
    ``tensors`` is (source, destination, data type) or (source, destination, data type of the source, of
    the destination): "float32", "bfloat16", torch.float16... Elements are converted by the sender.
    ``strategy``: "auto", "direct", "leader", "gather_p2p_scatter", "sendrecv_allgather" or "bsr".
    """

    def __init__(
        self,
        communicator: Communicator,
        tensors: Sequence[tuple[Any, ...]],
        *,
        strategy: str = "auto",
        tag: int = 0,
        slice_bytes: int = 0,
        outer: int = 0,
        in_flight: int = 1,
        landing_bytes: int = 0,
        prove: bool = False,
    ) -> None:
        own = [(each[0], each[1], _type_name(each[2]), _type_name(each[-1])) for each in tensors]
        self._plan = _Plan(
            communicator,
            own,
            strategy,
            tag,
            slice_bytes,
            outer,
            in_flight,
            landing_bytes,
            prove,
        )
        _plans.setdefault(communicator, weakref.WeakSet()).add(self)

    def start(
        self,
        sources: Sequence[Any] = (),
        destinations: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Request:
        """Starts an execution: an array, or None where this rank holds nothing, for each tensor. They
        may be left out where this rank holds nothing at all."""
        return self._plan.start(list(sources), list(destinations), timeout)

    def describe(self, format: str = "text") -> str:
        """The plan of all ranks as "text", "json" (steps, bytes, forecast, reasons) or "svg"."""
        return self._plan.describe(format)

    def _repr_svg_(self) -> str:
        return self.describe("svg")

    def __len__(self) -> int:
        return len(self._plan)

    def close(self) -> None:
        """Executions of others that need this rank end with ABORTED."""
        self._plan.close()


def _type_name(dtype: Any) -> str:
    """The name of torch.bfloat16, numpy.float32 or numpy.dtype("float32"), or a name as it is."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return "bool" if name == "bool_" else name.removeprefix("torch.")


def _cached_plan(communicator: Communicator, key: Any, make: Callable[[], Plan]) -> Plan:
    """All ranks ask for the same plans in the same order, so they keep and forget the same ones."""
    cache = _caches.setdefault(communicator, {})
    plan = cache.pop(key, None)
    if plan is None:
        plan = make()
        if len(cache) >= _MOST_CACHED:
            cache.pop(next(iter(cache))).close()
    cache[key] = plan
    return plan


# --- DTensor ------------------------------------------------------------------------------------


def redistribute(
    tensor: Any,
    mesh: Any,
    placements: Sequence[Any],
    *,
    communicator: Communicator | None = None,
    strategy: str = "auto",
    timeout: float | None = None,
) -> Any:
    """A DTensor with the contents of ``tensor`` on ``mesh``, which may share ranks with the tensor's
    own mesh or not.

    All ranks of the default group call it, or those of ``communicator``, which has their numbers. Ranks
    outside of the tensor's mesh give the DTensor with an empty part that torch makes there. Plans are
    kept, so that later calls with the same layouts only move data.
    """
    import torch
    from torch.distributed.tensor import DTensor

    if communicator is None:
        from hetcomm.torch import communicator as communicator_of

        communicator = communicator_of()
    spec = tensor._spec
    shape = tuple(spec.shape)
    key = (
        _hashable_mesh(spec.mesh),
        tuple(map(repr, spec.placements)),
        _hashable_mesh(mesh),
        tuple(map(repr, placements)),
        shape,
        tensor.dtype,
        strategy,
    )

    def make() -> Plan:
        tensors = [
            (
                layout(shape, spec.mesh, spec.placements),
                layout(shape, mesh, placements),
                tensor.dtype,
            )
        ]
        return Plan(communicator, tensors, strategy=strategy, tag=1 << 63)

    if 0 in shape:
        empty = torch.empty(_local_shape(shape, mesh, placements), dtype=tensor.dtype)
        return DTensor.from_local(
            empty, mesh, placements, run_check=False, shape=torch.Size(shape),
            stride=spec.tensor_meta.stride,
        )
    plan = _cached_plan(communicator, key, make)
    target = layout(shape, mesh, placements)
    local_shape = _local_shape(shape, mesh, placements)
    local = torch.empty(local_shape, dtype=tensor.dtype, device=tensor.to_local().device)
    own = tensor.to_local().detach().contiguous()
    rank = communicator.rank
    holds = own.numel() > 0
    gets = target.elements(rank) > 0
    try:
        plan.start([own if holds else None], [local if gets else None], timeout).wait()
    except Exception:
        # It has ended with the execution; the next call makes another one.
        _caches.get(communicator, {}).pop(key, None)
        plan.close()
        raise
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=spec.tensor_meta.stride
    )


def _hashable_mesh(mesh: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axes, ranks = _mesh_of(mesh)
    return tuple(axes), tuple(ranks)


def _local_shape(shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(shape, mesh, placements)[0])


# --- whole models -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorSpec:
    """What a rank says of one tensor: the boxes that it holds of it (``rank`` of a box is ignored), or
    the mesh and placements of all ranks."""

    shape: tuple[int, ...]
    dtype: Any
    boxes: tuple[Box, ...] = ()
    mesh: Any = None
    placements: tuple[Any, ...] = ()
    padded_shape: tuple[int, ...] | None = None


class Adapter(Protocol):
    """What :func:`transfer_state` asks a framework for."""

    def describe(self) -> Mapping[str, TensorSpec]:
        """The tensors of which this rank holds something."""

    def view(self, name: str) -> Any:
        """The array in which the boxes of the tensor lie. None at the destination: the tensor lands in a
        bucket, and is handed over by load()."""

    def load(self, name: str, box: Box, array: Any) -> None:
        """A box of a tensor has landed in a bucket; ``array`` is only lent."""

    def loaded(self, names: Sequence[str]) -> None:
        """These tensors are complete."""


class StateDict:
    """A state dict of tensors and DTensors as an :class:`Adapter`.

    At the destination tensors land where they are, or, if ``load`` is given, in buckets of which each
    box is handed to ``load(name, box, array)``.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        *,
        load: Callable[[str, Box, Any], None] | None = None,
        loaded: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._state = dict(state)
        self._load = load
        self._loaded = loaded

    def describe(self) -> dict[str, TensorSpec]:
        specs = {}
        for name, tensor in self._state.items():
            spec = getattr(tensor, "_spec", None)
            shape = tuple(tensor.shape)
            if spec is None:
                whole = Box(0, (0,) * len(shape), shape)
                specs[name] = TensorSpec(shape, tensor.dtype, (whole,))
            else:
                specs[name] = TensorSpec(
                    shape, tensor.dtype, mesh=spec.mesh, placements=tuple(spec.placements)
                )
        return specs

    def view(self, name: str) -> Any:
        if self._load is not None:
            return None
        tensor = self._state[name]
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return tensor.detach() if hasattr(tensor, "detach") else tensor

    def load(self, name: str, box: Box, array: Any) -> None:
        if self._load is not None:
            self._load(name, box, array)

    def loaded(self, names: Sequence[str]) -> None:
        if self._loaded is not None:
            self._loaded(names)


def _adapter_of(side: Any) -> Any:
    return StateDict(side) if isinstance(side, Mapping) else side


@dataclass
class _Entry:
    """One tensor that is moved."""

    source: str
    destination: str
    shape: tuple[int, ...]
    layouts: tuple[Layout, Layout]
    types: tuple[str, str]
    boxes: tuple[Box, ...]  # of this rank, at the destination
    lands: bool  # in a bucket, on this rank

    def bytes_of(self) -> int:
        return _elements(self.shape) * _ITEM_BYTES[self.types[1]]


_ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


def _elements(shape: Iterable[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


class StateTransfer:
    """A model on its way from some ranks to others, prepared once; ``run()`` moves it.

    All ranks of the communicator make it, and call ``run`` together. ``source`` and ``destination`` are
    state dicts or adapters, or None on ranks that are not on that side. ``names`` maps names of the
    destination to names of the source; tensors that only one side has are an error, unless ``strict`` is
    False. Types may differ: the sender converts. Buckets have ``bucket_bytes`` of the model, over all
    ranks; one of them lands while the one before is loaded.
    """

    def __init__(
        self,
        communicator: Communicator,
        source: Any = None,
        destination: Any = None,
        *,
        names: Mapping[str, str] | None = None,
        bucket_bytes: int = 256 << 20,
        strategy: str = "auto",
        strict: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._source = _adapter_of(source)
        self._destination = _adapter_of(destination)
        self._timeout = timeout
        self._rank = communicator.rank
        told = _exchange(communicator, self._say(names), timeout)
        entries = self._match(told, strict)
        self._buckets: list[list[_Entry]] = []
        filled = bucket_bytes
        for entry in entries:
            if filled + entry.bytes_of() > bucket_bytes:
                self._buckets.append([])
                filled = 0
            self._buckets[-1].append(entry)
            filled += entry.bytes_of()
        self._plans = [
            Plan(
                communicator,
                [(*entry.layouts, *entry.types) for entry in bucket],
                strategy=strategy,
                tag=1 << 63 | 1,
            )
            for bucket in self._buckets
        ]
        self._rooms: list[Any] = [None, None]

    def close(self) -> None:
        _close_all(self._plans)

    def run(self) -> None:
        """Moves the model once. Raises what went wrong; then it has to be made anew, on all ranks."""
        under_way: list[tuple[int, Request]] = []
        try:
            for index in range(len(self._plans)):
                if len(under_way) == 2:
                    self._finish(*under_way.pop(0))
                under_way.append((index, self._start(index)))
            while under_way:
                self._finish(*under_way.pop(0))
        except BaseException:
            # Nothing is under way when the caller hears of it.
            for _, request in under_way:
                try:
                    request.cancel()
                    request.wait()
                except Exception:  # the first failure is the one to tell
                    pass
            raise

    # What this rank tells the others.
    def _say(self, names: Mapping[str, str] | None) -> dict[str, Any]:
        said: dict[str, Any] = {"names": dict(names) if names is not None else None}
        for side, adapter in (("source", self._source), ("destination", self._destination)):
            if adapter is None:
                continue
            specs = adapter.describe()
            said[side] = {name: _spec_to_json(spec) for name, spec in specs.items()}
        return said

    def _match(self, told: list[dict[str, Any]], strict: bool) -> list[_Entry]:
        sources = _join(told, "source")
        destinations = _join(told, "destination")
        names: dict[str, str] = {}
        for each in told:
            names.update(each["names"] or {})
        wanted = {name: names.get(name, name) for name in destinations}
        missing = sorted(set(wanted.values()) - set(sources))
        unused = sorted(set(sources) - set(wanted.values()))
        if strict and (missing or unused):
            raise ValueError(
                "the two sides have different tensors; "
                f"only the destination: {missing[:5]}, only the source: {unused[:5]} "
                f"(of {len(missing)} and {len(unused)})"
            )
        entries = []
        for name, origin in wanted.items():
            if origin not in sources:
                continue
            source, destination = sources[origin], destinations[name]
            if 0 in source.shape and 0 in destination.shape:
                continue  # nothing to move
            if source.shape != destination.shape:
                raise ValueError(
                    f"{name}: the source has shape {source.shape}, the destination {destination.shape}"
                )
            target = destination.layout()
            boxes = tuple(_box_of(part) for part in target.parts(self._rank))
            lands = bool(boxes) and self._destination.view(name) is None
            if lands:
                # Each rank alone knows where a box lies in its memory.
                boxes = _dense(boxes)
                others = [_box_of(part) for part in target.parts()]
                own = iter(boxes)
                target = layout_of_boxes(
                    source.shape,
                    [next(own) if box.rank == self._rank else box for box in others],
                    padded_shape=None if destination.mesh is not None else destination.padded_shape,
                    terms=1 + max(box.term for box in others),
                )
            entries.append(
                _Entry(
                    origin,
                    name,
                    source.shape,
                    (source.layout(), target),
                    (source.dtype, destination.dtype),
                    boxes,
                    lands,
                )
            )
        return entries

    def _start(self, index: int) -> Request:
        sources, destinations = [], []
        room, at = self._room(index), 0
        for entry in self._buckets[index]:
            holds = self._source is not None and entry.layouts[0].elements(self._rank) > 0
            sources.append(self._source.view(entry.source) if holds else None)
            if entry.lands:
                count = sum(_volume(box) for box in entry.boxes)
                size = count * _ITEM_BYTES[entry.types[1]]
                destinations.append(_typed(room[at : at + size], entry.types[1]))
                at += -(-size // 64) * 64
            elif entry.boxes:
                destinations.append(self._destination.view(entry.destination))
            else:
                destinations.append(None)
        return self._plans[index].start(sources, destinations, self._timeout)

    # Memory in which a bucket lands. Two of them take turns.
    def _room(self, index: int) -> Any:
        needed = 0
        for entry in self._buckets[index]:
            if entry.lands:
                size = sum(_volume(box) for box in entry.boxes) * _ITEM_BYTES[entry.types[1]]
                needed += -(-size // 64) * 64
        own = self._rooms[index % 2]
        if own is None or len(own) < needed:
            own = self._rooms[index % 2] = _bytes(needed)
        return own

    def _finish(self, index: int, request: Request) -> None:
        request.wait()
        if self._destination is None:
            return
        room, at = self._rooms[index % 2], 0
        names = []
        for entry in self._buckets[index]:
            if not entry.boxes:
                continue
            names.append(entry.destination)
            if not entry.lands:
                continue
            item = _ITEM_BYTES[entry.types[1]]
            begin = at
            for box in entry.boxes:
                size = _volume(box) * item
                extents = [end - begin_ for begin_, end in zip(box.begin, box.end)]
                array = _typed(room[begin : begin + size], entry.types[1]).reshape(extents)
                self._destination.load(entry.destination, box, array)
                begin += size
            at += -(-(begin - at) // 64) * 64
        if names:
            self._destination.loaded(names)


def transfer_state(
    source: Any = None,
    destination: Any = None,
    *,
    communicator: Communicator | None = None,
    **options: Any,
) -> None:
    """Moves a model once, as :class:`StateTransfer`, whose options it takes. Make one of those to move it
    again and again. Without a communicator, between the ranks of torch's default group."""
    if communicator is None:
        from hetcomm.torch import communicator as communicator_of

        communicator = communicator_of()
    transfer = StateTransfer(communicator, source, destination, **options)
    try:
        transfer.run()
        communicator.barrier().wait()
    finally:
        transfer.close()


# --- what ranks tell each other -----------------------------------------------------------------


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    said: dict[str, Any] = {"shape": list(spec.shape), "dtype": _type_name(spec.dtype)}
    if spec.padded_shape is not None:
        said["padded_shape"] = list(spec.padded_shape)
    if spec.mesh is not None:
        axes, ranks = _mesh_of(spec.mesh)
        said["mesh"] = [axes, ranks]
        said["placements"] = [_placement_of(each, len(spec.shape)) for each in spec.placements]
    else:
        said["boxes"] = [[b.begin, b.end, b.offset, b.strides] for b in spec.boxes]
    return said


@dataclass
class _Joined:
    """What all ranks say of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    padded_shape: tuple[int, ...] | None
    mesh: tuple[list[int], list[int], list[Any]] | None
    boxes: list[Box]

    def layout(self) -> Layout:
        if self.mesh is not None:
            axes, ranks, placements = self.mesh
            return Layout.from_mesh(list(self.shape), axes, ranks, placements, True, 0, None)
        return layout_of_boxes(self.shape, self.boxes, padded_shape=self.padded_shape)


def _join(told: list[dict[str, Any]], side: str) -> dict[str, _Joined]:
    joined: dict[str, _Joined] = {}
    for rank, said in enumerate(told):
        for name, spec in said.get(side, {}).items():
            shape = tuple(spec["shape"])
            padded = tuple(spec["padded_shape"]) if "padded_shape" in spec else None
            mesh = (*spec["mesh"], [tuple(each) for each in spec["placements"]]) if "mesh" in spec else None
            own = joined.setdefault(name, _Joined(shape, spec["dtype"], padded, mesh, []))
            if (own.shape, own.dtype, own.padded_shape, own.mesh) != (shape, spec["dtype"], padded, mesh):
                raise ValueError(f"{name}: rank {rank} says another shape, type or mesh of the {side}")
            for begin, end, offset, strides in spec.get("boxes", ()):
                own.boxes.append(
                    Box(
                        rank,
                        tuple(begin),
                        tuple(end),
                        offset,
                        None if strides is None else tuple(strides),
                    )
                )
    for spec in joined.values():
        spec.boxes = _number_copies(spec.boxes)
    return joined


def _overlap(one: Box, other: Box) -> bool:
    pairs = zip(one.begin, one.end, other.begin, other.end)
    return all(max(b1, b2) < min(e1, e2) for b1, e1, b2, e2 in pairs)


def _number_copies(boxes: list[Box]) -> list[Box]:
    """Each box gets the first copy in which nothing of it is held yet."""
    first: dict[tuple[Any, Any], int] = {}  # copies before it have the same box
    copies: list[list[Box]] = []
    result = []
    for box in boxes:
        key = (box.begin, box.end)
        number = first.get(key, 0)
        while number < len(copies) and any(_overlap(box, other) for other in copies[number]):
            number += 1
        first[key] = number + 1
        if number == len(copies):
            copies.append([])
        copies[number].append(box)
        result.append(Box(box.rank, box.begin, box.end, box.offset, box.strides, number, 0))
    return result


def _box_of(part: tuple[Any, ...]) -> Box:
    rank, begin, end, offset, strides, copy, term = part
    return Box(rank, tuple(begin), tuple(end), offset, tuple(strides), copy, term)


def _volume(box: Box) -> int:
    return _elements(end - begin for begin, end in zip(box.begin, box.end))


def _dense(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """The same boxes behind each other."""
    result, at = [], 0
    for box in boxes:
        result.append(Box(box.rank, box.begin, box.end, at, None, box.copy, box.term))
        at += _volume(box)
    return tuple(result)


def _exchange(
    communicator: Communicator, said: dict[str, Any], timeout: float | None
) -> list[dict[str, Any]]:
    """What all ranks say, by rank."""
    text = json.dumps(said).encode()
    size = communicator.size
    lengths = _bytes(8 * size)
    communicator.allgather(bytearray(len(text).to_bytes(8, "little")), lengths, timeout=timeout).wait()
    raw = bytes(memoryview(lengths))
    counts = [int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(size)]
    longest = max(counts)
    everything = bytearray(longest * size)
    communicator.allgather(bytearray(text.ljust(longest)), everything, timeout=timeout).wait()
    return [json.loads(everything[i * longest : i * longest + counts[i]]) for i in range(size)]


# --- memory -------------------------------------------------------------------------------------


def _bytes(size: int) -> Any:
    """Bytes that NumPy, and torch where it is loaded, can look at in other types."""
    import numpy

    return numpy.empty(size, dtype=numpy.uint8)


def _typed(room: Any, dtype: str) -> Any:
    """|room| as an array of |dtype|: torch's where torch is loaded or NumPy has no such type."""
    if "torch" in sys.modules or dtype.startswith(("bfloat", "float8")):
        import torch

        return torch.from_numpy(room).view(getattr(torch, dtype))
    return room.view(dtype)
