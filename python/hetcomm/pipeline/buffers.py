"""Provides the buffers of a pipeline of PyTorch modules, and the stream in which its steps work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from hetcomm import _core


class Fetched:
    """A tensor that is being copied to the host. ``event`` completes after the copy. If it is None,
    the copy is already complete."""

    def __init__(self, value: torch.Tensor, event: Any = None) -> None:
        self._value = value
        self._event = event

    def is_here(self) -> bool:
        return self._event is None or self._event.query()

    def take(self) -> torch.Tensor:
        """Waits for the copy, and returns the tensor."""
        if self._event is not None:
            self._event.synchronize()
        return self._value


class HostBuffers:
    """Buffers in host memory. Modules on a device copy their inputs and outputs."""

    stream = 0

    def tensor(self, given: _core.PipelineTensor) -> torch.Tensor:
        if given.array is None:
            raise ValueError("the plan gives this rank a device whose memory the CPU may not touch")
        return _typed(torch.from_dlpack(given.array), given)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Encloses a run, so that its steps work in the buffers' stream."""
        yield

    def end_step(self) -> None:
        """Called when a step has enqueued its work. Waits for it if the back-end has no streams."""

    def fetch(self, value: torch.Tensor) -> Fetched:
        """Copies ``value``, which a step has made, to the host. The copy may still be in
        progress."""
        return Fetched(value.cpu())

    def lend(self, made: Iterable[torch.Tensor]) -> None:
        """Allows the caller's stream to use the tensors, which a run has made."""

    def room(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns memory for gradients that are added up."""
        return torch.empty(size, dtype=dtype, device="cpu")

    def array(self, room: torch.Tensor) -> Any:
        """Returns ``room`` in the form that the library accepts."""
        return room

    def wait(self) -> None:
        """Waits for the work of all steps."""


class DeviceBuffers(HostBuffers):
    """Buffers in memory of a PyTorch device. Steps work in the stream that is current when this is
    created."""

    def __init__(self, device: torch.device, communicator: _core.Communicator) -> None:
        from hetcomm import torch as backend

        self._context = backend.context_of(communicator)
        # This tensor has no elements. It represents its device.
        self._like = torch.empty(0, device=device)
        self.device = self._like.device
        self._module = torch.get_device_module(self.device)
        # None if the back-end has only one stream, without a handle.
        self._stream = self._current_stream()
        self.stream = self._context.stream(self._like)

    def tensor(self, given: _core.PipelineTensor) -> torch.Tensor:
        memory = self._context.bytes(self._like, given.memory)
        return _typed(memory[given.offset : given.offset + given.nbytes], given)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        current = self._current_stream()
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
            self._context.stream(self._like)  # waits for the work

    def fetch(self, value: torch.Tensor) -> Fetched:
        if value.device != self.device or not self.stream or not hasattr(self._module, "Event"):
            return super().fetch(value)
        copy = value.to("cpu", non_blocking=True)
        event = self._module.Event()
        event.record(self._current_stream())
        return Fetched(copy, event)

    def lend(self, made: Iterable[torch.Tensor]) -> None:
        current = self._current_stream()
        if current == self._stream:
            return
        for tensor in made:
            for part in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
                if part.device == self.device:
                    part.record_stream(current)

    def room(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=self.device)

    def array(self, room: torch.Tensor) -> Any:
        from hetcomm.torch import _device_array

        return _device_array(room, self._context)

    def wait(self) -> None:
        (self._module if self._stream is None else self._stream).synchronize()

    def _current_stream(self) -> Any:
        find = getattr(self._module, "current_stream", None)
        return None if find is None else find(self.device)

    # Makes |later| wait for the work in |earlier|.
    def _order(self, earlier: Any, later: Any) -> None:
        if self.stream:
            later.wait_stream(earlier)
        else:
            earlier.synchronize()


def buffers_of(
    device: torch.device, planned: int, rank: int, communicator: _core.Communicator
) -> HostBuffers:
    """Returns the buffers of a rank whose modules are on ``device``. ``planned`` is the rank's
    device number in the plan. With device 0, or modules on the CPU, the buffers are in host memory.
    Otherwise raises ValueError if the two are different devices."""
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
