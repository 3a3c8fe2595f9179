"""Plans: how tensors go from one layout to another, prepared once and executed any number of times."""

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

# A call that raises one of these would raise again.
_ARGUMENTS_ARE_WRONG = {"INVALID_ARGUMENT", "OUT_OF_RANGE", "UNSUPPORTED"}

_plans: weakref.WeakKeyDictionary[Communicator, weakref.WeakSet[Plan]] = weakref.WeakKeyDictionary()

_caches: weakref.WeakKeyDictionary[Communicator, dict[Any, Plan]] = weakref.WeakKeyDictionary()

_MOST_CACHED = 64


def close_plans(communicator: Communicator) -> None:
    """Closes all plans of a communicator, those that :func:`redistribute` keeps too. The communicator's
    close() calls it."""
    _close_all(_plans.get(communicator, ()))
    _caches.pop(communicator, None)
    _plans.pop(communicator, None)


def _close_all(plans: Iterable[Plan]) -> None:
    """Closes all of them, and raises the first failure afterwards."""
    failure: Exception | None = None
    for plan in list(plans):
        try:
            plan.close()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


class Plan:
    """How tensors go from one layout to another, prepared once and executed any number of times.

    All ranks that are in a layout make it alike, and start as many executions of it. Each of
    ``tensors`` is (source, destination, data type) or (source, destination, data type of the source, of
    the destination): "float32", "bfloat16", torch.float16... Elements are converted by the sender.
    ``strategy``: "auto", "direct", "leader", "gather_p2p_scatter", "sendrecv_allgather" or "bsr".
    ``overflow``: a number that float8_e4m3fn cannot hold becomes its largest one ("saturate", as in
    torch) or NaN ("nan"). Sums are formed in float32, or float64, and rounded once.

    An array may be in several places of ``sources``. No element of a destination may lie where another
    one, or one of a source, lies, but for what stays in its place.
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
        """Of the source and of the destination, on this rank."""
        return [(one.elements(self._rank), other.elements(self._rank)) for one, other in self._layouts]

    def rebuild(self, communicator: Communicator, ranks: Sequence[int] | None = None) -> Plan:
        """The plan again after ranks were lost, in a communicator of those that are left: replicas stand
        in for what was lost, and what only lost ranks held raises PEER_LOST with its box.

        ``ranks``: what each old rank is from now on, or -1. Without it the ranks tell each other, for
        which all ranks of ``communicator`` call this together, each with a plan of the same old one.
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
        left: dict[int, Layout] = {}  # each layout once
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
        """Starts an execution: an array, or None where this rank holds nothing, for each tensor. They
        may be left out where this rank holds nothing at all. ``step`` and ``micro_batch`` label it: ranks
        with other labels for it raise MISMATCH. A call that raises for its arguments refuses the
        execution, so that the other ranks raise too. One that raises BUSY or OUT_OF_MEMORY may be
        made again."""
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
        """The next execution of this rank will not take place: it ends with MISMATCH and ``reason`` on
        the other ranks. For callers that check what they move."""
        self._plan.refuse(reason)

    @property
    def pending(self) -> int:
        """The number of executions under way on this rank."""
        return self._plan.pending

    def drain(self, timeout: float | None = None) -> None:
        """Waits until no execution is under way on this rank."""
        self._plan.drain(timeout)

    def cancel(self) -> None:
        """Ends the executions under way on this rank with CANCELLED."""
        self._plan.cancel()

    def facts(self) -> dict[str, Any]:
        """Strategy, forecast in seconds (0: there is no link model), and what this rank sends and
        receives in an execution."""
        return self._plan.facts()

    def _arrays(self, arrays: Sequence[Any]) -> list[Any]:
        return [_array(array, self._communicator()) for array in arrays]

    def describe(self, format: str = "text") -> str:
        """The plan of all ranks as "text", "json" (steps, bytes, forecast, reasons) or "svg"."""
        return self._plan.describe(format)

    def _repr_svg_(self) -> str:
        return self.describe("svg")

    def __len__(self) -> int:
        return len(self._plan)

    def close(self) -> None:
        """Executions of others that need this rank end with ABORTED."""
        self._plan.close()


def _cached_plan(communicator: Communicator, key: Any, make: Callable[[], Plan]) -> Plan:
    """All ranks ask for the same plans in the same order, so they keep and forget the same ones."""
    cache = _caches.setdefault(communicator, {})
    plan = cache.pop(key, None)
    if plan is None:
        plan = make()
        if len(cache) >= _MOST_CACHED:
            cache.pop(next(iter(cache))).close()
    cache[key] = plan
    return plan


_closing.register(close_plans)
