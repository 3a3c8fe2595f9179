"""Moves tensors between parallel layouts, and models between a trainer and an inference engine.

    from hetcomm import reshard

    source = reshard.layout((4096, 4096), [0, 1, 2, 3], [reshard.Shard(0)])        # FSDP on ranks 0-3
    target = reshard.layout((4096, 4096), [4, 5], [reshard.Shard(1)])              # TP on ranks 4, 5
    plan = reshard.Plan(world, [(source, target, "bfloat16")])                     # the same on all ranks
    plan.start([my_part], [None]).wait()                                           # any number of times

``redistribute`` moves DTensors, even between meshes that share no rank. ``transfer_state`` moves
whole state dicts. Ranks are those of the communicator. If it comes from
hetcomm.torch.communicator(), ranks of a DeviceMesh are translated, and tensors may also be on
devices. Otherwise arrays and tensors must be in host memory. They must always be contiguous.
"""

from __future__ import annotations

from hetcomm._core import Layout
from hetcomm.reshard.layouts import (
    Box,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    Zigzag,
    layout,
    layout_of_boxes,
    layout_of_degrees,
)
from hetcomm.reshard.plans import Plan, close_plans
from hetcomm.reshard.dtensor import redistribute
from hetcomm.reshard.specs import Adapter, StateDict, TensorSpec
from hetcomm.reshard.state import StateTransfer, transfer_state

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
