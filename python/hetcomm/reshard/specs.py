"""The tensors of one rank, as a framework describes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hetcomm.reshard.arrays import _plain
from hetcomm.reshard.layouts import Box


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
