"""Runs a program's callbacks as the stages of a pipeline. Does not need PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetcomm import _core
from hetcomm.pipeline.opened import opened
from hetcomm.pipeline.plans import Plan
from hetcomm.reshard.agreement import _agree


_KINDS = {
    "forward", "backward", "input_grad", "weight_grad", "recompute", "reduce_grad", "unshard", "reshard"
}


@dataclass(frozen=True)
class Gradient:
    """The gradient of one weight tensor. ``item`` is the item of the model, and ``index`` the index
    among the tensors of the item. ``layout`` says how the ranks of the stage hold the gradient, and
    ``array`` has this rank's part. Ranks whose gradients are added, such as those of a data degree,
    have different terms in ``layout``."""

    item: int
    index: int
    layout: _core.Layout
    array: Any


class Runner(_core.Pipeline):
    """Performs the steps of this rank according to a plan. All ranks of ``communicator`` create the
    object together, with the same plan.

    ``chunks`` has the callbacks of each stage of this rank, keyed by kind of step: "forward",
    "backward", "input_grad", "weight_grad" and "recompute", as the schedule requires.
    "reduce_grad", "unshard" and "reshard" are optional. A callback gets a
    :class:`hetcomm._core.PipelineAction`. Its ``inputs``, ``outputs``, ``output_grads`` and
    ``input_grads`` are arrays in buffers of the pipeline. Inputs and gradients of outputs keep
    their contents until the last step of their micro-batch. ``wrap(tensor)`` creates the array. It
    is called once for each buffer. ``tensor.array`` supports DLPack and Python's buffer protocol.
    Arrays must not be used after :meth:`set_schedule` and :meth:`close`. :meth:`run` raises the
    exception of a callback, which ends the run on all ranks.

    ``stream`` is the library's handle of a stream of this rank's device in the plan, or 0 for none.
    With a stream, callbacks other than "reduce_grad" may return before their work in it has ended.
    ``wait()`` waits for that work, and is called before buffers are freed. ``pair(first, second)``
    performs two actions that can overlap, such as "(0F7;7B3)OVERLAP_F_B", instead of their
    callbacks. Without ``pair``, the actions run one after the other.
    """

    def __init__(
        self,
        communicator: _core.Communicator,
        plan: Plan,
        chunks: Sequence[Mapping[str, Callable[[_core.PipelineAction], None]]],
        *,
        wrap: Callable[[_core.PipelineTensor], Any] | None = None,
        timeout: float | None = None,
        stream: int = 0,
        wait: Callable[[], None] | None = None,
        pair: Callable[[_core.PipelineAction, _core.PipelineAction], None] | None = None,
    ) -> None:
        own = [dict(each) for each in chunks]
        wrong = sorted({kind for each in own for kind in each} - _KINDS)
        failure = ValueError(f"there is no kind of step {wrong[0]!r}") if wrong else None
        _agree(communicator, failure, timeout)
        self._wait = wait or (lambda: None)
        super().__init__(communicator, plan.json, own, wrap or _array_of, timeout, stream, pair)
        opened(communicator, self)

    def set_schedule(self, plan: str, timeout: float | None = None) -> None:
        """Replaces the plan between two runs. Called on all ranks."""
        self._wait()
        super().set_schedule(plan, timeout)

    def close(self) -> None:
        """Closes the pipeline. Later runs of the other ranks fail."""
        self._wait()
        super().close()

    def __del__(self) -> None:
        # There is no caller that could handle an error.
        with contextlib.suppress(Exception):
            self._wait()

    def set_gradients(self, gradients: Sequence[Gradient], timeout: float | None = None) -> None:
        """Sets the gradients that runs add up from now on. They replace the previous ones. All
        ranks call this method. All ranks that hold an item must specify the gradients of its
        tensors.

        The library reads a stage's arrays when the stage has performed its last step that changes
        gradients. At the end of the run, each array holds the sum over all ranks that hold the same
        elements, even in other stages and pipelines, which may cut the tensor differently. Arrays
        must not be used in between. A step that changes an array must return only when the device's
        work on the array has ended."""
        own = [(each.item, each.index, each.layout, each.array) for each in gradients]
        super().set_gradients(own, timeout)


def _array_of(tensor: _core.PipelineTensor) -> Any:
    import numpy

    return numpy.asarray(tensor.array)
