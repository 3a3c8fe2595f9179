"""Moves tensors between processes and accelerators that do not share a vendor, a host or a cluster.

    context = hetcomm.Context()
    world = hetcomm.Communicator.from_environment(context)   # uses torchrun's variables
    request = world.recv(array, source=0)                     # a NumPy, DLPack or PyTorch array
    print(request.wait().bytes_received)

Each operation returns a :class:`Request`. A call that fails raises :class:`Error` with the reason.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hetcomm._error import Error

if TYPE_CHECKING:
    from hetcomm._core import Communicator, Completion, Context, Queue, Request, build, version

__all__ = ["Communicator", "Completion", "Context", "Error", "Queue", "Request", "build", "version"]


def __getattr__(name: str) -> Any:
    # The extension module is loaded on first use. PyTorch imports this package whenever PyTorch
    # itself is imported. That import must not fail, or spend time on a module that is not used.
    if name in __all__:
        from hetcomm import _core

        return getattr(_core, name)
    if name in ("pipeline", "reshard"):
        return importlib.import_module(f"hetcomm.{name}")
    if name == "__version__":
        from hetcomm import _core

        return _core.version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
