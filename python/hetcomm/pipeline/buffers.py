"""Where the buffers of a pipeline of torch modules lie, and the stream in which its steps work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from hetcomm import _core


class HostBuffers:
    """Buffers in memory of the host. Modules on a device copy what they read and write."""

    stream = 0

    def tensor(self, given: _core.PipelineTensor) -> torch.Tensor:
        if given.array is None:
            raise ValueError("the plan gives this rank a device whose memory the CPU may not touch")
        return _typed(torch.from_dlpack(given.array), given)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """A run, whose steps work in the stream."""
        yield

    def end_step(self) -> None:
        """A step has enqueued its work."""

    def wait(self) -> None:
        """Waits for the work of all steps, before buffers are freed."""


class DeviceBuffers(HostBuffers):
    """Buffers in memory of a torch device. Steps work in the stream that is current there now."""

    def __init__(self, device: torch.device, communicator: _core.Communicator) -> None:
        from hetcomm import torch as backend

        self._context = backend.context_of(communicator)
        # Of no elements: it stands for its device.
        self._like = torch.empty(0, device=device)
        self.device = self._like.device
        self._module = torch.get_device_module(self.device)
        self._stream = self._module.current_stream(self.device)
        self.stream = self._context.stream(self._like)

    def tensor(self, given: _core.PipelineTensor) -> torch.Tensor:
        memory = self._context.bytes(self._like, given.memory)
        return _typed(memory[given.offset : given.offset + given.nbytes], given)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        current = self._module.current_stream(self.device)
        if current == self._stream:
            yield
            return
        self._order(current, self._stream)
        try:
            with self._module.stream(self._stream):
                yield
        finally:
            self._order(self._stream, current)

    def end_step(self) -> None:
        if not self.stream:
            self._context.stream(self._like)  # waits

    def wait(self) -> None:
        self._stream.synchronize()

    # Has |later| wait for the work in |earlier|.
    def _order(self, earlier: Any, later: Any) -> None:
        if self.stream:
            later.wait_stream(earlier)
        else:
            earlier.synchronize()


def buffers_of(
    device: torch.device, planned: int, rank: int, communicator: _core.Communicator
) -> HostBuffers:
    """Returns the buffers of a rank whose modules are on ``device``, and which has the device number
    ``planned`` in the plan. Raises ValueError where these are different devices."""
    if planned == 0 or device.type == "cpu":
        return HostBuffers()
    from hetcomm.torch import device_index

    number = device_index(device, communicator)
    if number != planned:
        raise ValueError(
            f"the plan gives rank {rank} device {planned}, and its modules are on {device}, which is "
            f"device {number} here (hetcomm.torch.device_index)"
        )
    return DeviceBuffers(device, communicator)


def _typed(memory: torch.Tensor, given: _core.PipelineTensor) -> torch.Tensor:
    return memory.view(getattr(torch, given.type)).view(list(given.shape))
