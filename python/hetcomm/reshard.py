"""Moves tensors between parallel layouts, and models between a trainer and an inference engine.

    from hetcomm import reshard

    source = reshard.layout((4096, 4096), [0, 1, 2, 3], [reshard.Shard(0)])        # FSDP on ranks 0-3
    target = reshard.layout((4096, 4096), [4, 5], [reshard.Shard(1)])              # TP on ranks 4, 5
    plan = reshard.Plan(world, [(source, target, "bfloat16")])                     # the same on all ranks
    plan.start([my_part], [None]).wait()                                           # as often as you like

``redistribute`` does it for DTensors, also between meshes that share no rank. ``transfer_state`` moves
whole state dicts. Ranks are those of the communicator; those of a DeviceMesh are translated where the
communicator is a process group's. Arrays and tensors are contiguous, and in host memory; tensors of torch
may be on devices where the communicator is hetcomm.torch.communicator()'s.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hetcomm._core import Communicator, Layout, Request
from hetcomm._core import Plan as _Plan
from hetcomm._error import Error

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

# A call that raises one of these would raise again.
_ARGUMENTS_ARE_WRONG = {"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNSUPPORTED"}

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
    """The tensor is the sum of what the ranks along the axis hold, or with "avg" their average."""

    reduce_op: str = "sum"


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


def _axes_and_ranks(mesh: Any, communicator: Communicator) -> tuple[list[int], list[int]]:
    """The mesh by ranks of ``communicator``: a DeviceMesh has those of torch's default group."""
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
    """As _core takes it; knows torch's placements by their names."""
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
    divisor: int = 1,
) -> Layout:
    """A layout from boxes. They may reach beyond ``shape``, up to ``padded_shape``: what is there is
    neither read nor written. The tensor is the sum of ``terms`` terms, divided by ``divisor``. Boxes
    of one rank that lie over each other in its array can be a source, and no destination."""
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
    _close_all(_plans.get(communicator, ()))
    _caches.pop(communicator, None)
    _plans.pop(communicator, None)


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

    All ranks that are in a layout make it alike, and start as many executions of it. Each of
    ``tensors`` is (source, destination, data type) or (source, destination, data type of the source, of
    the destination): "float32", "bfloat16", torch.float16... Elements are converted by the sender.
    ``strategy``: "auto", "direct", "leader", "gather_p2p_scatter", "sendrecv_allgather" or "bsr".
    ``overflow``: a number that float8_e4m3fn cannot hold becomes its largest one ("saturate", as in
    torch) or NaN ("nan"). Sums are formed in float32, or float64, and rounded once.

    An array may be in several places of ``sources``. No element of a destination may lie where another
    one, or one of a source, lies, but for what stays in its place.
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
        overflow: str = "saturate",
        weight: int = 0,
        max_bytes_per_second: int = 0,
    ) -> None:
        own = [(each[0], each[1], _type_name(each[2]), _type_name(each[-1])) for each in tensors]
        self._rank, self._size = communicator.rank, communicator.size
        self._communicator = weakref.ref(communicator)
        self._layouts = [each[:2] for each in own]
        self._elements = self._count_elements()
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
            overflow,
            weight,
            max_bytes_per_second,
        )
        _plans.setdefault(communicator, weakref.WeakSet()).add(self)

    def _count_elements(self) -> list[tuple[int, int]]:
        """Of the source and of the destination, on this rank."""
        return [(one.elements(self._rank), other.elements(self._rank)) for one, other in self._layouts]

    def rebuild(self, communicator: Communicator, ranks: Sequence[int] | None = None) -> Plan:
        """The plan again after ranks were lost, in a communicator of those that are left: replicas stand
        in for what was lost, and what only lost ranks held raises PEER_LOST with its box.

        ``ranks``: what each old rank is from now on, or -1. Without it the ranks tell each other, for
        which all ranks of ``communicator`` call this together, each with a plan of the same old one.
        """
        if ranks is None:
            told = _exchange(communicator, {"rank": self._rank, "size": self._size}, None)
            ranks = [-1] * self._size
            for now, each in enumerate(told):
                ranks[each["rank"]] = now
        plan = object.__new__(Plan)
        plan._plan = self._plan.rebuild(communicator, list(ranks))
        plan._rank, plan._size = communicator.rank, communicator.size
        plan._communicator = weakref.ref(communicator)
        left: dict[int, Layout] = {}  # each layout once
        for layout in (layout for pair in self._layouts for layout in pair):
            if id(layout) not in left:
                left[id(layout)] = layout.after_loss(list(ranks))
        plan._layouts = [(left[id(one)], left[id(other)]) for one, other in self._layouts]
        plan._elements = plan._count_elements()
        _plans.setdefault(communicator, weakref.WeakSet()).add(plan)
        return plan

    def start(
        self,
        sources: Sequence[Any] = (),
        destinations: Sequence[Any] = (),
        timeout: float | None = None,
        *,
        step: int = 0,
        micro_batch: int = 0,
    ) -> Request:
        """Starts an execution: an array, or None where this rank holds nothing, for each tensor. They
        may be left out where this rank holds nothing at all. ``step`` and ``micro_batch`` label it: ranks
        with other labels for it raise MISMATCH. A call that raises for its arguments refuses the
        execution, so that the other ranks raise too. One that raises BUSY or OUT_OF_MEMORY may be
        made again."""
        try:
            return self._plan.start(
                self._arrays(sources), self._arrays(destinations), timeout, step, micro_batch
            )
        except Exception as error:
            if not isinstance(error, Error) or error.status in _ARGUMENTS_ARE_WRONG:
                with contextlib.suppress(Exception):  # the plan may be closed
                    self.refuse(str(error))
            raise

    def refuse(self, reason: str) -> None:
        """The next execution of this rank will not take place: it ends with MISMATCH and ``reason`` on
        the other ranks. For callers that check what they move."""
        self._plan.refuse(reason)

    @property
    def pending(self) -> int:
        """The number of executions under way on this rank."""
        return self._plan.pending

    def drain(self, timeout: float | None = None) -> None:
        """Waits until no execution is under way on this rank."""
        self._plan.drain(timeout)

    def cancel(self) -> None:
        """Ends the executions under way on this rank with CANCELLED."""
        self._plan.cancel()

    def facts(self) -> dict[str, Any]:
        """Strategy, forecast in seconds (0: there is no link model), and what this rank sends and
        receives in an execution."""
        return self._plan.facts()

    def _arrays(self, arrays: Sequence[Any]) -> list[Any]:
        return [_array(array, self._communicator()) for array in arrays]

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
    """A DTensor with the contents of ``tensor`` on ``mesh``, a DeviceMesh, which may share ranks with the
    tensor's own mesh or not. ``placements``: torch's, or those of this module that torch has too.

    All ranks of the default group call it, or those of ``communicator``. Ranks outside of the tensor's
    mesh give the DTensor with an empty part that torch makes there. Plans are kept, so that later calls
    with the same layouts only move data.

    Gradients go back the same way: backward() moves them to the tensor's mesh, so that all ranks call
    it, those whose part of the result is empty too. A sum that nobody had formed gets its gradient on
    each of its ranks, as in torch.
    """
    import torch

    if communicator is None:
        from hetcomm.torch import communicator as communicator_of

        communicator = communicator_of()
    own = tuple(_torch_placement(each) for each in placements)
    options = (communicator, strategy, timeout)
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _with_gradient().apply(tensor, mesh, own, options)
    return _move(tensor, mesh, own, *options)


def _torch_placement(placement: Any) -> Any:
    """torch's placement for one of this module, since a DTensor has no other."""
    from torch.distributed.tensor import placement_types

    if isinstance(placement, placement_types.Placement):
        return placement
    if isinstance(placement, Replicate):
        return placement_types.Replicate()
    if isinstance(placement, Partial):
        return placement_types.Partial()
    if isinstance(placement, Shard) and placement.sizes is None:
        return placement_types.Shard(placement.dim)
    if isinstance(placement, StridedShard):
        return placement_types._StridedShard(placement.dim, split_factor=placement.split_factor)
    raise ValueError(f"{placement!r}: torch has no such placement, and the result is a DTensor")


_gradient_function: Any = None


def _with_gradient() -> Any:
    """The autograd function, made where torch is there."""
    global _gradient_function
    if _gradient_function is not None:
        return _gradient_function
    import torch
    from torch.distributed.tensor import Replicate as TorchReplicate

    class Redistribute(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Any, mesh: Any, placements: Any, options: Any) -> Any:
            ctx.mesh, ctx.options = tensor.device_mesh, options
            ctx.placements = tuple(
                TorchReplicate() if each.is_partial() else each for each in tensor.placements
            )
            return _move(tensor, mesh, placements, *options)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return _move(gradient, ctx.mesh, ctx.placements, *ctx.options), None, None, None

    _gradient_function = Redistribute
    return Redistribute


def _move(
    tensor: Any,
    mesh: Any,
    placements: tuple[Any, ...],
    communicator: Communicator,
    strategy: str,
    timeout: float | None,
) -> Any:
    import torch
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    spec = tensor._spec
    shape = tuple(spec.shape)
    # As torch lays out a tensor that is not a view.
    strides = torch.empty(shape, device="meta").stride()
    device = tensor.to_local().device

    def result(local: Any) -> Any:
        if mesh.get_coordinate() is None:
            # from_local() would give it a part of one dimension, for which backward() fails.
            meta = TensorMeta(torch.Size(shape), strides, tensor.dtype)
            return DTensor(local, DTensorSpec(mesh, placements, tensor_meta=meta), requires_grad=False)
        return DTensor.from_local(
            local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides
        )

    local_shape = _local_shape(shape, mesh, placements)
    if 0 in shape:
        return result(torch.empty(local_shape, dtype=tensor.dtype, device=device))
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
        layouts = (
            _layout_on(communicator, shape, spec.mesh, spec.placements),
            _layout_on(communicator, shape, mesh, placements),
        )
        return Plan(communicator, [(*layouts, tensor.dtype)], strategy=strategy, tag=1 << 63)

    plan = _cached_plan(communicator, key, make)
    try:
        own = _plain(tensor.to_local().contiguous())
        local = torch.empty(local_shape, dtype=tensor.dtype, device=device)
        held, wanted = plan._elements[0]
        if (own.numel(), local.numel()) != (held, wanted):
            raise ValueError(
                f"rank {communicator.rank}: torch has {own.numel()} elements of the source and "
                f"{local.numel()} of the result, the layouts have {held} and {wanted}"
            )
        plan.start([own if held else None], [local if wanted else None], timeout).wait()
    except BaseException:
        # It has ended, and others hear of it; the next call makes another one.
        _caches.get(communicator, {}).pop(key, None)
        with contextlib.suppress(Exception):  # the first failure is the one to tell
            plan.close()
        raise
    return result(local)


def _plain(tensor: Any) -> Any:
    """The tensor as it is moved: without its history, and after what is still under way for it."""
    tensor = tensor.wait() if hasattr(tensor, "wait") else tensor  # AsyncCollectiveTensor
    return tensor.detach() if hasattr(tensor, "detach") else tensor


def _array(array: Any, communicator: Communicator) -> Any:
    """What the plans of |communicator| take for an array, or a tensor on a device."""
    if not _lies_on_a_device(array):
        return array
    from hetcomm.torch import device_array

    return device_array(array, communicator)


def _lies_on_a_device(array: Any) -> bool:
    kind = getattr(getattr(array, "device", None), "type", None)
    if isinstance(kind, str):  # a tensor
        return kind != "cpu"
    if hasattr(array, "__dlpack_device__"):
        return array.__dlpack_device__()[0] != 1  # that of a CPU
    return hasattr(array, "__cuda_array_interface__")


def _hashable_mesh(mesh: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axes, ranks = _mesh_of(mesh)
    return tuple(axes), tuple(ranks)


def _local_shape(shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if mesh.get_coordinate() is None:
        return (0,) * max(len(shape), 1)  # with as many dimensions, so that backward() works there
    return tuple(compute_local_shape_and_global_offset(shape, mesh, placements)[0])


# --- whole models -------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorSpec:
    """What a rank says of one tensor: the boxes that it holds of it, or a mesh that this rank is in, and
    its placements. Ranks may say different meshes, which share no rank: each of them holds the tensor.
    ``rank`` and ``copy`` of a box are ignored; boxes of different ``term`` are terms of a sum."""

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
        """A box of a tensor, without its padding, has landed in a bucket; ``array`` is only lent."""

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
        return {name: self._describe(name, tensor) for name, tensor in self._state.items()}

    def _describe(self, name: str, tensor: Any) -> TensorSpec:
        if not hasattr(tensor, "shape") or not hasattr(tensor, "dtype"):
            raise TypeError(f"{name} is no tensor but {type(tensor).__name__}")
        self._check_memory(name, tensor)
        shape = tuple(tensor.shape)
        spec = getattr(tensor, "_spec", None)
        if spec is None:
            return TensorSpec(shape, tensor.dtype, (Box(0, (0,) * len(shape), shape),))
        return TensorSpec(shape, tensor.dtype, mesh=spec.mesh, placements=tuple(spec.placements))

    def _check_memory(self, name: str, tensor: Any) -> None:
        """Buckets take what fits nowhere else."""
        if self._load is not None:
            return
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        contiguous = (
            local.is_contiguous() if hasattr(local, "is_contiguous") else local.flags.c_contiguous
        )
        if not contiguous:
            raise ValueError(
                f"{name} is not contiguous: give its base, or an adapter that says the strides of boxes"
            )

    def view(self, name: str) -> Any:
        if self._load is not None:
            return None
        tensor = self._state[name]
        return _plain(tensor.to_local() if hasattr(tensor, "to_local") else tensor)

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


# Of each of the two buckets that are under way.
_LANDING_BYTES = 32 << 20

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


def _count(array: Any) -> int | None:
    """The elements of an array or a tensor; None where it does not say."""
    count = array.numel() if hasattr(array, "numel") else getattr(array, "size", None)
    return count if isinstance(count, int) else None


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
        told = _exchange_or_raise(communicator, lambda: self._say(communicator, names), timeout)
        self._buckets: list[list[_Entry]] = []
        self._plans: list[Plan] = []
        self._rooms: list[Any] = [None, None]
        failure: Exception | None = None
        try:
            self._fill_buckets(self._match(told, strict), bucket_bytes)
            self._make_plans(communicator, strategy)
            self._check_views()
        except Exception as error:
            failure = error
        try:
            _agree(communicator, failure, timeout)
        except BaseException:
            with contextlib.suppress(Exception):
                self.close()
            raise

    def _fill_buckets(self, entries: list[_Entry], bucket_bytes: int) -> None:
        filled = bucket_bytes
        for entry in entries:
            if filled + entry.bytes_of() > bucket_bytes:
                self._buckets.append([])
                filled = 0
            self._buckets[-1].append(entry)
            filled += entry.bytes_of()

    def _make_plans(self, communicator: Communicator, strategy: str) -> None:
        for bucket in self._buckets:
            try:
                plan = Plan(
                    communicator,
                    [(*entry.layouts, *entry.types) for entry in bucket],
                    strategy=strategy,
                    tag=1 << 63 | 1,
                    landing_bytes=_LANDING_BYTES,
                )
            except Error as error:
                # A plan numbers its tensors, where it has several.
                known = re.match(r"tensor (\d+): ", str(error))
                name = bucket[int(known[1]) if known else 0].destination
                text = str(error).removesuffix(f" [{error.status}]")
                raise Error(error.status, f"{name}: {text[known.end() if known else 0:]}") from error
            self._plans.append(plan)

    def _check_views(self) -> None:
        """An array that is too short is told by its tensor's name, before anything moves."""
        for entry in (entry for bucket in self._buckets for entry in bucket):
            views = [("source", self._source, entry.source, entry.layouts[0])]
            if not entry.lands:
                views.append(
                    ("destination", self._destination, entry.destination, entry.layouts[1])
                )
            for side, adapter, name, layout in views:
                needed = layout.elements(self._rank)
                held = _count(adapter.view(name)) if needed > 0 else None
                if held is None or held >= needed:
                    continue
                raise ValueError(
                    f"{name}: the array of the {side} has {held} elements, and the boxes of rank "
                    f"{self._rank} need {needed}"
                )

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
            # Nothing is under way when the caller hears of it, and others do not wait for this rank.
            for _, request in under_way:
                with contextlib.suppress(Exception):  # the first failure is the one to tell
                    request.cancel()
                    request.wait()
            with contextlib.suppress(Exception):
                self.close()
            raise

    # What this rank tells the others.
    def _say(self, communicator: Communicator, names: Mapping[str, str] | None) -> dict[str, Any]:
        meshes: list[Any] = []  # each once
        said: dict[str, Any] = {"names": dict(names) if names is not None else None, "meshes": meshes}
        for side, adapter in (("source", self._source), ("destination", self._destination)):
            if adapter is None:
                continue
            specs = adapter.describe()
            said[side] = {
                name: _spec_to_json(communicator, spec, meshes) for name, spec in specs.items()
            }
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
            target = destination.layout
            boxes = tuple(_box_of(part) for part in target.parts(self._rank))
            lands = bool(boxes) and self._destination.view(name) is None
            if lands:
                # Each rank alone knows where a box lies in its memory.
                boxes = _dense(boxes)
                own = iter(boxes)
                target = layout_of_boxes(
                    source.shape,
                    [
                        next(own) if box.rank == self._rank else box
                        for box in map(_box_of, target.parts())
                    ],
                    terms=destination.terms,
                    divisor=destination.divisor,
                )
            entries.append(
                _Entry(
                    origin,
                    name,
                    source.shape,
                    (source.layout, target),
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
        try:
            return self._plans[index].start(sources, destinations, self._timeout)
        except (Error, TypeError, ValueError) as error:
            self._raise_named(index, error)
            raise

    def _raise_named(self, index: int, error: Exception) -> None:
        """Raises ``error`` with the name of the tensor that it tells the number of, if it does."""
        found = re.search(r"\btensor (\d+)\b", str(error))
        if found is None or int(found[1]) >= len(self._buckets[index]):
            return
        entry = self._buckets[index][int(found[1])]
        name = entry.source if "source" in str(error)[: found.start()] else entry.destination
        text = f"{str(error)[: found.start()]}{name!r}{str(error)[found.end() :]}"
        if isinstance(error, Error):
            raise Error(error.status, text.removesuffix(f" [{error.status}]")) from error
        raise type(error)(text) from error

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
    failure: Exception | None = None
    try:
        transfer.run()
    except Exception as error:
        failure = error
    finally:
        with contextlib.suppress(Exception):
            transfer.close()
    # Nobody goes on before all have the model, or know that one has not.
    _agree(communicator, failure, options.get("timeout"))


# --- what ranks tell each other -----------------------------------------------------------------


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
    """What all ranks say of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    padded_shape: tuple[int, ...] | None
    first: int  # the rank that said so first
    meshes: dict[str, tuple[Any, list[Any], list[int]]]  # mesh, placements, the ranks that said it
    boxes: list[Box]
    layout: Layout = None  # type: ignore[assignment]
    terms: int = 1
    divisor: int = 1

    def make_layout(self, name: str) -> None:
        if not self.meshes:
            if self.padded_shape is not None:
                self.boxes = _without_padding(name, self.boxes, self.shape, self.padded_shape)
            self.boxes = _number_copies(self.boxes)
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


def _number_copies(boxes: list[Box]) -> list[Box]:
    """Each box gets the first copy of its term in which nothing of it is held yet."""
    first: dict[tuple[Any, ...], int] = {}  # copies before it have the same box
    copies: dict[int, list[_Copy]] = {}  # by term
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


def _box_of(part: tuple[Any, ...]) -> Box:
    rank, begin, end, offset, strides, copy, term = part
    return Box(rank, tuple(begin), tuple(end), offset, tuple(strides), copy, term)


def _volume(box: Box) -> int:
    return _elements(end - begin for begin, end in zip(box.begin, box.end))


def _without_padding(
    name: str, boxes: list[Box], shape: tuple[int, ...], padded_shape: tuple[int, ...]
) -> list[Box]:
    """The boxes as far as they are in the tensor, where they are in memory."""
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


def _dense(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """The same boxes behind each other."""
    result, at = [], 0
    for box in boxes:
        result.append(replace(box, offset=at, strides=None))
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


def _exchange_or_raise(
    communicator: Communicator, say: Callable[[], dict[str, Any]], timeout: float | None
) -> list[dict[str, Any]]:
    """What all ranks say. Where saying it fails on one rank, all of them raise."""
    failure: Exception | None = None
    try:
        said = say()
    except Exception as error:
        failure = error
        said = {"error": _in_words(error)}
    told = _exchange(communicator, said, timeout)
    _raise_first(told, failure)
    return told


def _agree(communicator: Communicator, failure: Exception | None, timeout: float | None) -> None:
    """Raises the first reason on all ranks: that of the lowest rank whose failure is no consequence of
    another's. The rank itself raises its exception. Waits for all of them."""
    said: dict[str, Any] = {}
    if failure is not None:
        said = {"error": _in_words(failure), "follows": _follows(failure)}
    try:
        told = _exchange(communicator, said, timeout)
    except Exception:
        if failure is not None:
            raise failure from None
        raise
    _raise_first(told, failure)


def _raise_first(told: list[dict[str, Any]], failure: Exception | None) -> None:
    failed = [said for said in told if "error" in said]
    if not failed:
        return
    # A consequence of what no rank tells may be all that there is.
    first = next((said for said in failed if not said.get("follows", False)), failed[0])
    origin = next(rank for rank, said in enumerate(told) if said is first)
    if failure is not None and _in_words(failure) == first["error"]:
        raise failure
    raise RuntimeError(f"rank {origin}: {first['error']}") from failure


def _follows(error: Exception) -> bool:
    """Another rank has told of it."""
    return isinstance(error, Error) and error.status in ("ABORTED", "PEER_LOST")


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


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
