"""Defines plans, which move tensors from one layout to another. A plan is prepared once and
executed any number of times."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hetcomm import _closing
from hetcomm._core import Communicator, Layout, Request
from hetcomm._core import Plan as _Plan
from hetcomm._error import Error
from hetcomm.reshard.agreement import _exchange
from hetcomm.reshard.arrays import _array, _type_name

# Status codes of errors that a repeated call would raise again.
_ARGUMENTS_ARE_WRONG = {"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNSUPPORTED"}

_plans: weakref.WeakKeyDictionary[Communicator, weakref.WeakSet[Plan]] = weakref.WeakKeyDictionary()

_caches: weakref.WeakKeyDictionary[Communicator, dict[Any, Plan]] = weakref.WeakKeyDictionary()

_MOST_CACHED = 64


def close_plans(communicator: Communicator) -> None:
    """Closes all plans of a communicator, including those that :func:`redistribute` caches. Called
    by the communicator's close()."""
    _close_all(_plans.get(communicator, ()))
    _caches.pop(communicator, None)
    _plans.pop(communicator, None)


def _close_all(plans: Iterable[Plan]) -> None:
    """Closes all plans, then raises the first failure."""
    failure: Exception | None = None
    for plan in list(plans):
        try:
            plan.close()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


class Plan:
    """Moves tensors from one layout to another. A plan is prepared once and executed any number of
    times.

    All ranks that occur in a layout create the same plan, and start the same number of executions.
    Each of ``tensors`` is (source, destination, data type), or (source, destination, data type of
    the source, data type of the destination). Data types are "float32", "bfloat16",
    torch.float16... The sender converts elements. ``strategy`` is "auto", "direct", "leader",
    "gather_p2p_scatter", "sendrecv_allgather" or "bsr". ``overflow`` says how a number that is too
    large for float8_e4m3fn is converted: to the largest number ("saturate", as in PyTorch) or to
    NaN ("nan"). Sums are formed in float32 or float64, and rounded once.

    An array may occur several times in ``sources``. An element of a destination must not have the
    same address as another element of a destination or source, except for elements that keep their
    addresses.
    """

    def __init__(
        self,
        communicator: Communicator,
        tensors: Sequence[tuple[Any, ...]],
        *,
        strategy: str = "auto",
        tag: int = 0,
        slice_bytes: int = 0,
        outer: int = 0,
        in_flight: int = 1,
        landing_bytes: int = 0,
        prove: bool = False,
        overflow: str = "saturate",
        weight: int = 0,
        max_bytes_per_second: int = 0,
    ) -> None:
        own = [(each[0], each[1], _type_name(each[2]), _type_name(each[-1])) for each in tensors]
        self._rank, self._size = communicator.rank, communicator.size
        self._communicator = weakref.ref(communicator)
        self._layouts = [each[:2] for each in own]
        self._elements = self._count_elements()
        self._plan = _Plan(
            communicator,
            own,
            strategy,
            tag,
            slice_bytes,
            outer,
            in_flight,
            landing_bytes,
            prove,
            overflow,
            weight,
            max_bytes_per_second,
        )
        _plans.setdefault(communicator, weakref.WeakSet()).add(self)

    def _count_elements(self) -> list[tuple[int, int]]:
        """Returns the numbers of elements of source and destination on this rank, for each
        tensor."""
        return [(one.elements(self._rank), other.elements(self._rank)) for one, other in self._layouts]

    def rebuild(self, communicator: Communicator, ranks: Sequence[int] | None = None) -> Plan:
        """Creates the plan again after ranks were lost, in a communicator of the remaining ranks.
        Lost data is replaced by replicas. If only lost ranks held a box, raises PEER_LOST and names
        the box.

        ``ranks[r]`` is the new number of the old rank r, or -1 if it was lost. Without it, the
        ranks exchange their old numbers. In this case all ranks of ``communicator`` must call this
        method, each with its plan from the same old communicator.
        """
        if ranks is None:
            told = _exchange(communicator, {"rank": self._rank, "size": self._size}, None)
            ranks = [-1] * self._size
            for now, each in enumerate(told):
                ranks[each["rank"]] = now
        plan = object.__new__(Plan)
        plan._plan = self._plan.rebuild(communicator, list(ranks))
        plan._rank, plan._size = communicator.rank, communicator.size
        plan._communicator = weakref.ref(communicator)
        left: dict[int, Layout] = {}  # contains each layout once
        for layout in (layout for pair in self._layouts for layout in pair):
            if id(layout) not in left:
                left[id(layout)] = layout.after_loss(list(ranks))
        plan._layouts = [(left[id(one)], left[id(other)]) for one, other in self._layouts]
        plan._elements = plan._count_elements()
        _plans.setdefault(communicator, weakref.WeakSet()).add(plan)
        return plan

    def start(
        self,
        sources: Sequence[Any] = (),
        destinations: Sequence[Any] = (),
        timeout: float | None = None,
        *,
        step: int = 0,
        micro_batch: int = 0,
    ) -> Request:
        """Starts an execution. Each list has an array for each tensor, or None if this rank holds
        no elements of it. A list may be omitted if this rank holds no elements at all. ``step`` and
        ``micro_batch`` label the execution. If ranks give it different labels, they raise MISMATCH.
        A call that raises because of its arguments refuses the execution, so that the other ranks
        also raise. A call that raises BUSY or OUT_OF_MEMORY may be repeated."""
        try:
            return self._plan.start(
                self._arrays(sources), self._arrays(destinations), timeout, step, micro_batch
            )
        except Exception as error:
            if not isinstance(error, Error) or error.status in _ARGUMENTS_ARE_WRONG:
                with contextlib.suppress(Exception):  # the plan may be closed
                    self.refuse(str(error))
            raise

    def refuse(self, reason: str) -> None:
        """Refuses the next execution on this rank. On the other ranks it ends with MISMATCH and
        ``reason``. For callers that check the data before they move it."""
        self._plan.refuse(reason)

    @property
    def pending(self) -> int:
        """The number of pending executions on this rank."""
        return self._plan.pending

    def drain(self, timeout: float | None = None) -> None:
        """Waits until no execution is pending on this rank."""
        self._plan.drain(timeout)

    def cancel(self) -> None:
        """Ends the pending executions on this rank with CANCELLED."""
        self._plan.cancel()

    def facts(self) -> dict[str, Any]:
        """Returns the strategy, the forecast in seconds (0 without a link model), and the amounts
        of data that this rank sends and receives in an execution."""
        return self._plan.facts()

    def _arrays(self, arrays: Sequence[Any]) -> list[Any]:
        return [_array(array, self._communicator()) for array in arrays]

    def describe(self, format: str = "text") -> str:
        """Returns the plan of all ranks as "text", "json" (steps, bytes, forecast, reasons) or
        "svg"."""
        return self._plan.describe(format)

    def _repr_svg_(self) -> str:
        return self.describe("svg")

    def __len__(self) -> int:
        return len(self._plan)

    def close(self) -> None:
        """Closes the plan. Executions of other ranks that need this rank end with ABORTED."""
        self._plan.close()


def _cached_plan(communicator: Communicator, key: Any, make: Callable[[], Plan]) -> Plan:
    """Returns the plan for ``key``, which is created on first use. All ranks use the same plans in
    the same order, so they keep and drop the same ones."""
    cache = _caches.setdefault(communicator, {})
    plan = cache.pop(key, None)
    if plan is None:
        plan = make()
        if len(cache) >= _MOST_CACHED:
            cache.pop(next(iter(cache))).close()
    cache[key] = plan
    return plan


_closing.register(close_plans)
