"""Runs the callbacks of a program as the stages of a pipeline. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hetcomm import _core
from hetcomm.pipeline.opened import opened
from hetcomm.pipeline.plans import Plan
from hetcomm.reshard.agreement import _agree


_KINDS = {
    "forward", "backward", "input_grad", "weight_grad", "recompute", "reduce_grad", "unshard", "reshard"
}


class Runner(_core.Pipeline):
    """Performs the steps of this rank by a plan. All ranks of ``communicator`` make it, with the
    same plan.

    ``chunks`` has the callbacks of each stage of this rank, by kind of step: "forward", "backward",
    "input_grad", "weight_grad" and "recompute", as the schedule needs them, and if wanted
    "reduce_grad", "unshard" and "reshard". A callback gets a :class:`hetcomm._core.PipelineAction`,
    whose ``inputs``, ``outputs``, ``output_grads`` and ``input_grads`` are arrays in buffers of the
    pipeline: inputs and gradients of outputs keep their contents until the last step of their
    micro-batch. ``wrap(tensor)`` makes the array, once for each buffer; ``tensor.array`` speaks
    DLPack and Python's buffer protocol. After :meth:`set_schedule` and :meth:`close` no array may
    be used. An exception of a callback is raised by :meth:`run`, and ends it on all ranks.
    """

    def __init__(
        self,
        communicator: _core.Communicator,
        plan: Plan,
        chunks: Sequence[Mapping[str, Callable[[_core.PipelineAction], None]]],
        *,
        wrap: Callable[[_core.PipelineTensor], Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        own = [dict(each) for each in chunks]
        wrong = sorted({kind for each in own for kind in each} - _KINDS)
        failure = ValueError(f"there is no kind of step {wrong[0]!r}") if wrong else None
        _agree(communicator, failure, timeout)
        super().__init__(communicator, plan.json, own, wrap or _array_of, timeout)
        opened(communicator, self)


def _array_of(tensor: _core.PipelineTensor) -> Any:
    import numpy

    return numpy.asarray(tensor.array)
