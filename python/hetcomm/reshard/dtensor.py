"""Moves PyTorch DTensors between meshes, with gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from hetcomm._core import Communicator
from hetcomm.reshard.arrays import _plain
from hetcomm.reshard.layouts import Partial, Replicate, Shard, StridedShard, _layout_on, _mesh_of
from hetcomm.reshard.plans import Plan, _cached_plan, _caches


def redistribute(
    tensor: Any,
    mesh: Any,
    placements: Sequence[Any],
    *,
    communicator: Communicator | None = None,
    strategy: str = "auto",
    timeout: float | None = None,
) -> Any:
    """Returns a DTensor with the contents of ``tensor`` on ``mesh``, a DeviceMesh. The two meshes
    may share ranks. ``placements`` are PyTorch's, or those of this module that PyTorch also has.

    All ranks of ``communicator``, or of PyTorch's default group, must call it. Ranks outside the
    tensor's mesh pass the DTensor with an empty part that PyTorch creates there. Plans are cached,
    so later calls with the same layouts only move data.

    backward() moves gradients to the tensor's mesh. All ranks must call it, even those whose part
    of the result is empty. If the tensor is a sum that has not been formed yet (Partial), each of
    its ranks gets the gradient of the sum, as in PyTorch.
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
    """Converts a placement of this module to PyTorch's, the only type that a DTensor accepts."""
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
    """Returns the autograd function. It is created on first use, because PyTorch may not be
    installed."""
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
    # These are the strides of a PyTorch tensor that is not a view.
    strides = torch.empty(shape, device="meta").stride()
    device = tensor.to_local().device

    def result(local: Any) -> Any:
        if mesh.get_coordinate() is None:
            # from_local() would make a local tensor with one dimension, for which backward() fails.
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
        # Closing the plan reports the failure to the other ranks. The next call creates another
        # plan.
        _caches.get(communicator, {}).pop(key, None)
        with contextlib.suppress(Exception):  # the caller gets the first failure
            plan.close()
        raise
    return result(local)


def _hashable_mesh(mesh: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    axes, ranks = _mesh_of(mesh)
    return tuple(axes), tuple(ranks)


def _local_shape(shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]) -> tuple[int, ...]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if mesh.get_coordinate() is None:
        return (0,) * max(len(shape), 1)  # has all dimensions, so that backward() works
    return tuple(compute_local_shape_and_global_offset(shape, mesh, placements)[0])
