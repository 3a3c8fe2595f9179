"""Functions that are called before a communicator closes, by those who lend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_functions: list[Callable[[Any], None]] = []


def register(function: Callable[[Any], None]) -> None:
    """``function(communicator)`` is called before each communicator closes. Modules call this once."""
    _functions.append(function)


def closing(communicator: Any) -> None:
    """Calls all functions. For whoever closes a communicator that users may have plans of."""
    for function in _functions:
        function(communicator)
