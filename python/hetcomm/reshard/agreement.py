"""Lets all ranks of a communicator exchange messages, and raise the same failure if any of them
fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hetcomm._core import Communicator
from hetcomm._error import Error
from hetcomm.reshard.arrays import _bytes


def _exchange(
    communicator: Communicator, said: dict[str, Any], timeout: float | None
) -> list[dict[str, Any]]:
    """Sends ``said`` to all ranks. Returns the messages of all ranks, indexed by rank."""
    text = json.dumps(said).encode()
    size = communicator.size
    lengths = _bytes(8 * size)
    communicator.allgather(bytearray(len(text).to_bytes(8, "little")), lengths, timeout=timeout).wait()
    raw = bytes(memoryview(lengths))
    counts = [int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(size)]
    longest = max(counts)
    everything = bytearray(longest * size)
    communicator.allgather(bytearray(text.ljust(longest)), everything, timeout=timeout).wait()
    return [json.loads(everything[i * longest : i * longest + counts[i]]) for i in range(size)]


def _exchange_or_raise(
    communicator: Communicator, say: Callable[[], dict[str, Any]], timeout: float | None
) -> list[dict[str, Any]]:
    """Exchanges the results of ``say()`` between all ranks. If it raises on one rank, all of
    them raise."""
    failure: Exception | None = None
    try:
        said = say()
    except Exception as error:
        failure = error
        said = {"error": _in_words(error)}
    told = _exchange(communicator, said, timeout)
    _raise_first(told, failure)
    return told


def _agree(communicator: Communicator, failure: Exception | None, timeout: float | None) -> None:
    """Waits for all ranks, and raises on all of them if one has failed. The reported reason is that
    of the lowest rank whose failure is not a consequence of another rank's failure. That rank
    raises its own exception."""
    said: dict[str, Any] = {}
    if failure is not None:
        said = {"error": _in_words(failure), "follows": _follows(failure)}
    try:
        told = _exchange(communicator, said, timeout)
    except Exception:
        if failure is not None:
            raise failure from None
        raise
    _raise_first(told, failure)


def _raise_first(told: list[dict[str, Any]], failure: Exception | None) -> None:
    failed = [said for said in told if "error" in said]
    if not failed:
        return
    # All failures may be consequences of one that no rank reports. Then the first one is used.
    first = next((said for said in failed if not said.get("follows", False)), failed[0])
    origin = next(rank for rank, said in enumerate(told) if said is first)
    if failure is not None and _in_words(failure) == first["error"]:
        raise failure
    raise RuntimeError(f"rank {origin}: {first['error']}") from failure


def _follows(error: Exception) -> bool:
    """Returns whether the failure is a consequence of one that another rank reports."""
    return isinstance(error, Error) and error.status in ("ABORTED", "PEER_LOST")


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
