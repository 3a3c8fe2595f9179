"""Keeps a list of functions to call before a communicator closes, such as those that close its
plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_functions: list[Callable[[Any], None]] = []


def register(function: Callable[[Any], None]) -> None:
    """Adds ``function``, which is called with each communicator before it closes. A module calls
    this only once."""
    _functions.append(function)


def closing(communicator: Any) -> None:
    """Calls all registered functions. Must be called before a communicator with plans is closed."""
    for function in _functions:
        function(communicator)
