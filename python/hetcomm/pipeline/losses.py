"""Computes the mean loss of a run over all ranks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch

from hetcomm import Error, _core
from hetcomm.pipeline.buffers import Fetched, HostBuffers


class Losses:
    """Adds up the losses of the micro-batches over the ranks of ``communicator`` while other steps
    run."""

    def __init__(self, communicator: _core.Communicator, buffers: HostBuffers) -> None:
        self._communicator = communicator
        self._buffers = buffers
        self._own: list[tuple[int, torch.Tensor, float]] = []
        self._fetched: Fetched | None = None
        self._sum: tuple[Any, torch.Tensor] | None = None
        self.begin(False, False)

    def begin(self, has_own: bool, predicts: bool) -> None:
        """Begins a run. ``has_own`` is true if this rank computes losses that count. ``predicts``
        is true if the run needs no losses."""
        self._own, self._fetched = [], None
        self._waits_for_own = has_own and not predicts
        self._predicts = predicts
        self.is_under_way = False  # true from the first step of the run until total() returns

    def add(self, micro_batch: int, loss: torch.Tensor, factor: float) -> None:
        self._own.append((micro_batch, loss.detach().clone().reshape(()), factor))

    def complete(self) -> None:
        """Called when this rank has computed all its losses. Their work on the device may still be
        in progress."""
        if self._own:
            self._own.sort(key=lambda each: each[0])
            self._fetched = self._buffers.fetch(torch.stack([loss for _, loss, _ in self._own]))
        else:
            self._start()

    def move_on(self) -> None:
        """Called when a step of the run has ended. Starts the sum if this rank's losses are on the
        host, or if it has none. Does not wait for the losses."""
        self.is_under_way = True
        if self._sum is None and (
            not self._waits_for_own or (self._fetched is not None and self._fetched.is_here())
        ):
            self._start()

    def total(self, left: Callable[[], float | None]) -> tuple[float, float]:
        """Returns the sum of loss times factor over all ranks, and the sum of the factors. ``left``
        returns the seconds left for the call, or None if there is no limit. Raises ValueError if
        some ranks predict and others evaluate."""
        if self._sum is None:
            self._start()
        assert self._sum is not None
        request, sums = self._sum
        _wait(request, left)
        self._sum = None
        self.is_under_way = False
        if 0 < sums[2] < self._communicator.size:
            raise ValueError("some ranks predict, and others evaluate")
        return float(sums[0]), float(sums[1])

    def fail(self, reason: str) -> None:
        """Called when the run has failed on this rank. The other ranks stop waiting for its losses."""
        with contextlib.suppress(Exception):
            self._communicator.abort(reason)
        self._own, self._fetched = [], None
        if self._sum is not None:
            request, _ = self._sum
            self._sum = None
            with contextlib.suppress(Exception):
                request.wait()

    def close(self) -> None:
        """If a sum is in progress, ends it on all ranks."""
        if self._sum is not None:
            self.fail("the pipeline was closed")

    def _start(self) -> None:
        own = torch.zeros(3, dtype=torch.float64, device="cpu")
        own[2] = float(self._predicts)
        if self._fetched is not None:
            for loss, (_, _, factor) in zip(self._fetched.take().tolist(), self._own):
                own[0] += loss * factor
                own[1] += factor
            self._fetched = None
        total = torch.empty_like(own)
        # The sum has no timeout, because it may take as long as the run.
        self._sum = (self._communicator.allreduce(own, total, "sum", timeout=math.inf), total)


def _wait(request: Any, left: Callable[[], float | None]) -> None:
    """Waits for ``request``, which has no time limit of its own. Waits in short intervals, so that
    signals are handled."""
    while True:
        limit = left()
        try:
            request.wait(0.05 if limit is None else min(limit, 0.05))
            return
        except Error as error:
            if error.status != "TIMED_OUT" or (limit is not None and limit <= 0.05):
                raise
