"""Keeps a list of the pipelines of each communicator, so that they are closed before it."""

from __future__ import annotations

import weakref
from typing import Any

from hetcomm import _closing
from hetcomm._core import Communicator

_opened: weakref.WeakKeyDictionary[Communicator, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()


def opened(communicator: Communicator, pipeline: Any) -> None:
    """Adds a pipeline that has to be closed before ``communicator``."""
    _opened.setdefault(communicator, weakref.WeakSet()).add(pipeline)


def close_all(communicator: Communicator) -> None:
    """Closes the pipelines of a communicator. Called by the communicator's close()."""
    for pipeline in list(_opened.pop(communicator, ())):
        pipeline.close()


_closing.register(close_all)
