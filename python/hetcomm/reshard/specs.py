"""Defines the interface through which a framework describes the tensors of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hetcomm.reshard.arrays import _plain
from hetcomm.reshard.layouts import Box


@dataclass(frozen=True)
class TensorSpec:
    """One rank's description of a tensor: its boxes, or a mesh that contains the rank, with
    placements. Ranks may specify different meshes without common ranks. Each mesh then holds the
    whole tensor. ``rank`` and ``copy`` of a box are ignored. Boxes with different ``term`` are
    terms of a sum."""

    shape: tuple[int, ...]
    dtype: Any
    boxes: tuple[Box, ...] = ()
    mesh: Any = None
    placements: tuple[Any, ...] = ()
    padded_shape: tuple[int, ...] | None = None


class Adapter(Protocol):
    """The functions of a framework that :func:`transfer_state` calls."""

    def describe(self) -> Mapping[str, TensorSpec]:
        """Returns the tensors of which this rank holds a part."""

    def view(self, name: str) -> Any:
        """Returns the array that contains the boxes of the tensor. At the destination, None means
        that the tensor is received in a bucket, from which it is passed to load()."""

    def load(self, name: str, box: Box, array: Any) -> None:
        """Loads a box of a tensor, without its padding, that has been received in a bucket.
        ``array`` is valid only during the call."""

    def loaded(self, names: Sequence[str]) -> None:
        """Called when all boxes of these tensors have been received."""


class StateDict:
    """A state dict of tensors and DTensors as an :class:`Adapter`.

    At the destination, tensors are received in their own memory. If ``load`` is given, they are
    received in buckets, and each box is passed to ``load(name, box, array)``.
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
        """Raises ValueError if the tensor is not contiguous. With ``load``, nothing is checked,
        because the tensor is received in a bucket."""
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
