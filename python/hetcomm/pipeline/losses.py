"""The mean loss of a run, over all ranks."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from hetcomm import _core
from hetcomm.pipeline.buffers import Fetched, HostBuffers


class Losses:
    """Adds up the losses of the micro-batches over the ranks of ``communicator``. The sum is on its
    way while other steps run."""

    def __init__(self, communicator: _core.Communicator, buffers: HostBuffers) -> None:
        self._communicator = communicator
        self._buffers = buffers
        self._own: list[tuple[int, torch.Tensor, float]] = []
        self._fetched: Fetched | None = None
        self._sum: tuple[Any, torch.Tensor] | None = None

    def begin(self, has_own: bool) -> None:
        """Begins a run. ``has_own``: this rank makes losses that count."""
        self._own, self._fetched = [], None
        # It may be under way since a run that was refused.
        if not has_own and self._sum is None:
            self._start()

    def add(self, micro_batch: int, loss: torch.Tensor, factor: float) -> None:
        self._own.append((micro_batch, loss.detach().clone().reshape(()), factor))

    def complete(self) -> None:
        """This rank has made all its losses, whose work may be under way."""
        if self._own:
            self._own.sort(key=lambda each: each[0])
            self._fetched = self._buffers.fetch(torch.stack([loss for _, loss, _ in self._own]))
        else:
            self._start()

    def move_on(self) -> None:
        """Starts the sum if this rank's losses have come to the host. Does not wait for them."""
        if self._fetched is not None and self._fetched.is_here():
            self._start()

    def total(self, timeout: float | None) -> tuple[float, float]:
        """Returns the sum of loss times factor over all ranks, and that of the factors."""
        if self._sum is None:
            self._start()
        assert self._sum is not None
        request, sums = self._sum
        self._sum = None
        request.wait(timeout)
        return float(sums[0]), float(sums[1])

    def fail(self, reason: str) -> None:
        """The run has failed here: the other ranks need not wait for this one's losses."""
        with contextlib.suppress(Exception):
            self._communicator.abort(reason)
        self._own, self._fetched = [], None
        if self._sum is not None:
            request, _ = self._sum
            self._sum = None
            with contextlib.suppress(Exception):
                request.wait()

    def close(self) -> None:
        """Ends the sum that is under way, if there is one, on all ranks."""
        if self._sum is not None:
            self.fail("the pipeline was closed")

    def _start(self) -> None:
        own = torch.zeros(2, dtype=torch.float64, device="cpu")
        if self._fetched is not None:
            for loss, (_, _, factor) in zip(self._fetched.take().tolist(), self._own):
                own[0] += loss * factor
                own[1] += factor
            self._fetched = None
        total = torch.empty_like(own)
        # It may last as long as the run.
        self._sum = (self._communicator.allreduce(own, total, "sum", timeout=math.inf), total)
