"""Converts arrays and tensors for plans, and allocates memory for buckets."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from hetcomm._core import Communicator


def _type_name(dtype: Any) -> str:
    """Returns the name of torch.bfloat16, numpy.float32 or numpy.dtype("float32"). Returns a string
    unchanged."""
    if isinstance(dtype, str):
        return dtype
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return "bool" if name == "bool_" else name.removeprefix("torch.")


def _plain(tensor: Any) -> Any:
    """Returns the tensor without its autograd history. Waits if an asynchronous collective
    operation on it is in progress."""
    tensor = tensor.wait() if hasattr(tensor, "wait") else tensor  # for AsyncCollectiveTensor
    return tensor.detach() if hasattr(tensor, "detach") else tensor


def _array(array: Any, communicator: Communicator) -> Any:
    """Returns |array| in a form that plans of |communicator| accept. It may be a tensor on a
    device."""
    if not _lies_on_a_device(array):
        return array
    from hetcomm.torch import device_array

    return device_array(array, communicator)


def _lies_on_a_device(array: Any) -> bool:
    kind = getattr(getattr(array, "device", None), "type", None)
    if isinstance(kind, str):  # a PyTorch tensor
        return kind != "cpu"
    if hasattr(array, "__dlpack_device__"):
        return array.__dlpack_device__()[0] != 1  # DLPack's device type of the CPU
    return hasattr(array, "__cuda_array_interface__")

_ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


def _count(array: Any) -> int | None:
    """Returns the number of elements of an array or a tensor, or None if it is not available."""
    count = array.numel() if hasattr(array, "numel") else getattr(array, "size", None)
    return count if isinstance(count, int) else None


def _elements(shape: Iterable[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _bytes(size: int) -> Any:
    """Returns an array of |size| bytes, which NumPy and PyTorch can view as other types."""
    import numpy

    return numpy.empty(size, dtype=numpy.uint8)


def _typed(room: Any, dtype: str) -> Any:
    """Returns the bytes |room| as an array of |dtype|. It is a PyTorch tensor if PyTorch is loaded
    or NumPy does not have the type."""
    if "torch" in sys.modules or dtype.startswith(("bfloat", "float8")):
        import torch

        return torch.from_numpy(room).view(getattr(torch, dtype))
    return room.view(dtype)
