"""Moves whole models from a trainer to an inference engine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetcomm._core import Communicator, Layout, Request
from hetcomm._error import Error
from hetcomm.reshard.agreement import _agree, _exchange_or_raise
from hetcomm.reshard.arrays import _ITEM_BYTES, _bytes, _count, _elements, _typed
from hetcomm.reshard.joined import _join, _spec_to_json
from hetcomm.reshard.layouts import Box, _box_of, _dense, _volume, layout_of_boxes
from hetcomm.reshard.plans import Plan, _close_all
from hetcomm.reshard.specs import _adapter_of


@dataclass
class _Entry:
    """One tensor to move."""

    source: str
    destination: str
    shape: tuple[int, ...]
    layouts: tuple[Layout, Layout]
    types: tuple[str, str]
    boxes: tuple[Box, ...]  # this rank's boxes at the destination
    lands: bool  # true if this rank receives it in a bucket

    def bytes_of(self) -> int:
        return _elements(self.shape) * _ITEM_BYTES[self.types[1]]

# The limit of the landing memory of a plan. Two buckets, each with a plan, are moved at the same
# time.
_LANDING_BYTES = 32 << 20


class StateTransfer:
    """Moves a model from some ranks to others. It is prepared once, and each ``run()`` moves the
    model.

    All ranks of the communicator create it together, and call ``run`` together. ``source`` and
    ``destination`` are state dicts or adapters, or None on ranks that are not on that side.
    ``names`` maps names of the destination to names of the source. A tensor that exists only on one
    side is an error, unless ``strict`` is False. If types differ, the sender converts. A bucket
    holds at most ``bucket_bytes`` of the model, over all ranks, or a single larger tensor. One
    bucket is received while the previous one is loaded.
    """

    def __init__(
        self,
        communicator: Communicator,
        source: Any = None,
        destination: Any = None,
        *,
        names: Mapping[str, str] | None = None,
        bucket_bytes: int = 256 << 20,
        strategy: str = "auto",
        strict: bool = True,
        timeout: float | None = None,
    ) -> None:
        self._source = _adapter_of(source)
        self._destination = _adapter_of(destination)
        self._timeout = timeout
        self._rank = communicator.rank
        told = _exchange_or_raise(communicator, lambda: self._say(communicator, names), timeout)
        self._buckets: list[list[_Entry]] = []
        self._plans: list[Plan] = []
        self._rooms: list[Any] = [None, None]
        failure: Exception | None = None
        try:
            self._fill_buckets(self._match(told, strict), bucket_bytes)
            self._make_plans(communicator, strategy)
            self._check_views()
        except Exception as error:
            failure = error
        try:
            _agree(communicator, failure, timeout)
        except BaseException:
            with contextlib.suppress(Exception):
                self.close()
            raise

    def _fill_buckets(self, entries: list[_Entry], bucket_bytes: int) -> None:
        filled = bucket_bytes
        for entry in entries:
            if filled + entry.bytes_of() > bucket_bytes:
                self._buckets.append([])
                filled = 0
            self._buckets[-1].append(entry)
            filled += entry.bytes_of()

    def _make_plans(self, communicator: Communicator, strategy: str) -> None:
        for bucket in self._buckets:
            try:
                plan = Plan(
                    communicator,
                    [(*entry.layouts, *entry.types) for entry in bucket],
                    strategy=strategy,
                    tag=1 << 63 | 1,
                    landing_bytes=_LANDING_BYTES,
                )
            except Error as error:
                # If the plan has several tensors, the text of the error contains the index of the
                # tensor.
                known = re.match(r"tensor (\d+): ", str(error))
                name = bucket[int(known[1]) if known else 0].destination
                text = str(error).removesuffix(f" [{error.status}]")
                raise Error(error.status, f"{name}: {text[known.end() if known else 0:]}") from error
            self._plans.append(plan)

    def _check_views(self) -> None:
        """Checks the arrays before data moves. If one is too short, raises ValueError with the name
        of the tensor."""
        for entry in (entry for bucket in self._buckets for entry in bucket):
            views = [("source", self._source, entry.source, entry.layouts[0])]
            if not entry.lands:
                views.append(
                    ("destination", self._destination, entry.destination, entry.layouts[1])
                )
            for side, adapter, name, layout in views:
                needed = layout.elements(self._rank)
                held = _count(adapter.view(name)) if needed > 0 else None
                if held is None or held >= needed:
                    continue
                raise ValueError(
                    f"{name}: the array of the {side} has {held} elements, and the boxes of rank "
                    f"{self._rank} need {needed}"
                )

    def close(self) -> None:
        _close_all(self._plans)

    def run(self) -> None:
        """Moves the model once. If it raises, all ranks have to create a new StateTransfer."""
        under_way: list[tuple[int, Request]] = []
        try:
            for index in range(len(self._plans)):
                if len(under_way) == 2:
                    self._finish(*under_way.pop(0))
                under_way.append((index, self._start(index)))
            while under_way:
                self._finish(*under_way.pop(0))
        except BaseException:
            # Ends all executions before the caller gets the exception, and closes the plans, so
            # that no other rank waits for this one.
            for _, request in under_way:
                with contextlib.suppress(Exception):  # the caller gets the first failure
                    request.cancel()
                    request.wait()
            with contextlib.suppress(Exception):
                self.close()
            raise

    # Returns the description of this rank's tensors for the other ranks.
    def _say(self, communicator: Communicator, names: Mapping[str, str] | None) -> dict[str, Any]:
        meshes: list[Any] = []  # contains each mesh once
        said: dict[str, Any] = {"names": dict(names) if names is not None else None, "meshes": meshes}
        for side, adapter in (("source", self._source), ("destination", self._destination)):
            if adapter is None:
                continue
            specs = adapter.describe()
            said[side] = {
                name: _spec_to_json(communicator, spec, meshes) for name, spec in specs.items()
            }
        return said

    def _match(self, told: list[dict[str, Any]], strict: bool) -> list[_Entry]:
        sources = _join(told, "source")
        destinations = _join(told, "destination")
        names: dict[str, str] = {}
        for each in told:
            names.update(each["names"] or {})
        wanted = {name: names.get(name, name) for name in destinations}
        missing = sorted(set(wanted.values()) - set(sources))
        unused = sorted(set(sources) - set(wanted.values()))
        if strict and (missing or unused):
            raise ValueError(
                "the two sides have different tensors; "
                f"only the destination: {missing[:5]}, only the source: {unused[:5]} "
                f"(of {len(missing)} and {len(unused)})"
            )
        entries = []
        for name, origin in wanted.items():
            if origin not in sources:
                continue
            source, destination = sources[origin], destinations[name]
            if 0 in source.shape and 0 in destination.shape:
                continue  # nothing to move
            if source.shape != destination.shape:
                raise ValueError(
                    f"{name}: the source has shape {source.shape}, the destination {destination.shape}"
                )
            target = destination.layout
            boxes = tuple(_box_of(part) for part in target.parts(self._rank))
            lands = bool(boxes) and self._destination.view(name) is None
            if lands:
                # The position of a box in memory matters only to its own rank, so this change need
                # not be reported to the other ranks.
                boxes = _dense(boxes)
                own = iter(boxes)
                target = layout_of_boxes(
                    source.shape,
                    [
                        next(own) if box.rank == self._rank else box
                        for box in map(_box_of, target.parts())
                    ],
                    terms=destination.terms,
                    divisor=destination.divisor,
                )
            entries.append(
                _Entry(
                    origin,
                    name,
                    source.shape,
                    (source.layout, target),
                    (source.dtype, destination.dtype),
                    boxes,
                    lands,
                )
            )
        return entries

    def _start(self, index: int) -> Request:
        sources, destinations = [], []
        room, at = self._room(index), 0
        for entry in self._buckets[index]:
            holds = self._source is not None and entry.layouts[0].elements(self._rank) > 0
            sources.append(self._source.view(entry.source) if holds else None)
            if entry.lands:
                count = sum(_volume(box) for box in entry.boxes)
                size = count * _ITEM_BYTES[entry.types[1]]
                destinations.append(_typed(room[at : at + size], entry.types[1]))
                at += -(-size // 64) * 64
            elif entry.boxes:
                destinations.append(self._destination.view(entry.destination))
            else:
                destinations.append(None)
        try:
            return self._plans[index].start(sources, destinations, self._timeout)
        except (Error, TypeError, ValueError) as error:
            self._raise_named(index, error)
            raise

    def _raise_named(self, index: int, error: Exception) -> None:
        """If the text of ``error`` contains the index of a tensor, raises the error with the
        tensor's name instead."""
        found = re.search(r"\btensor (\d+)\b", str(error))
        if found is None or int(found[1]) >= len(self._buckets[index]):
            return
        entry = self._buckets[index][int(found[1])]
        name = entry.source if "source" in str(error)[: found.start()] else entry.destination
        text = f"{str(error)[: found.start()]}{name!r}{str(error)[found.end() :]}"
        if isinstance(error, Error):
            raise Error(error.status, text.removesuffix(f" [{error.status}]")) from error
        raise type(error)(text) from error

    # Returns the array in which a bucket is received. The buckets alternate between two arrays.
    def _room(self, index: int) -> Any:
        needed = 0
        for entry in self._buckets[index]:
            if entry.lands:
                size = sum(_volume(box) for box in entry.boxes) * _ITEM_BYTES[entry.types[1]]
                needed += -(-size // 64) * 64
        own = self._rooms[index % 2]
        if own is None or len(own) < needed:
            own = self._rooms[index % 2] = _bytes(needed)
        return own

    def _finish(self, index: int, request: Request) -> None:
        request.wait()
        if self._destination is None:
            return
        room, at = self._rooms[index % 2], 0
        names = []
        for entry in self._buckets[index]:
            if not entry.boxes:
                continue
            names.append(entry.destination)
            if not entry.lands:
                continue
            item = _ITEM_BYTES[entry.types[1]]
            begin = at
            for box in entry.boxes:
                size = _volume(box) * item
                extents = [end - begin_ for begin_, end in zip(box.begin, box.end)]
                array = _typed(room[begin : begin + size], entry.types[1]).reshape(extents)
                self._destination.load(entry.destination, box, array)
                begin += size
            at += -(-(begin - at) // 64) * 64
        if names:
            self._destination.loaded(names)


def transfer_state(
    source: Any = None,
    destination: Any = None,
    *,
    communicator: Communicator | None = None,
    **options: Any,
) -> None:
    """Moves a model once, with the options of :class:`StateTransfer`. To move it repeatedly, create
    a StateTransfer. Without a communicator, the ranks are those of PyTorch's default group."""
    if communicator is None:
        from hetcomm.torch import communicator as communicator_of

        communicator = communicator_of()
    transfer = StateTransfer(communicator, source, destination, **options)
    failure: Exception | None = None
    try:
        transfer.run()
    except Exception as error:
        failure = error
    finally:
        with contextlib.suppress(Exception):
            transfer.close()
    # All ranks wait here until each has the model, or until all have been notified that one has
    # failed.
    _agree(communicator, failure, options.get("timeout"))
