"""Splits the backward step of a part of a graph. It computes the gradients of the inputs first, and
those of the parameters later. Zero-bubble schedules need this for their I and W steps (Qi et al.,
2023).

A node of the graph is *on the way* if an input of the part can be reached from it. The first pass
visits only these nodes. It stores the gradients that arrive at nodes on the way from which
parameters off the way can be reached. The second pass begins at those nodes. If a parameter can be
reached from several such nodes, the first pass computes its gradient, because the second pass would
count the paths between these nodes twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

# Since version 2.7, a backward pass can begin at any node.
_BEGINS_ANYWHERE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)


class SplitBackward:
    """The backward step of one micro-batch, which begins at ``roots``. ``inputs`` are the leaves
    whose gradients are computed first. Keep the object until both passes are done."""

    def __init__(self, roots: Sequence[Any], inputs: Sequence[torch.Tensor]) -> None:
        self._roots = [_edge(each) for each in roots]
        self._inputs = list(inputs)
        self._root_grads: list[torch.Tensor | None] = []
        self._early: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._kept: dict[Any, tuple[torch.Tensor | None, ...]] = {}
        self._later: dict[Any, list[torch.Tensor]] = {}  # by node on the way; None: the roots
        self._find()

    def _find(self) -> None:
        ends = {get_gradient_edge(each).node for each in self._inputs}
        order = _in_order(edge.node for edge in self._roots)
        on_the_way = set()
        for node in order:
            if node in ends or any(next_ in on_the_way for next_ in _next(node)):
                on_the_way.add(node)
        beside: dict[Any, dict[Any, torch.Tensor]] = {}  # by node: parameters by own node
        for node in order:
            if node in on_the_way:
                continue
            own: dict[Any, torch.Tensor] = {}
            if hasattr(node, "variable"):
                own[node] = node.variable
            for next_ in _next(node):
                own.update(beside[next_])
            beside[node] = own
        where: dict[Any, set[Any]] = {}  # nodes on the way to a parameter, keyed by its own node
        leaves: dict[Any, torch.Tensor] = {}
        begins = [(None, edge.node) for edge in self._roots if edge.node not in on_the_way]
        for node in order:
            if node in on_the_way and node not in ends:
                begins += [(node, next_) for next_ in _next(node) if next_ not in on_the_way]
        for node, next_ in begins:
            for leaf, parameter in beside[next_].items():
                where.setdefault(leaf, set()).add(node)
                leaves[leaf] = parameter
        self._several = [leaves[leaf] for leaf, nodes in where.items() if len(nodes) > 1]
        for leaf, nodes in where.items():
            if len(nodes) == 1:
                self._later.setdefault(next(iter(nodes)), []).append(leaves[leaf])

    def input_grads(self, root_grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Returns the gradients of the inputs. The gradient is None if the roots do not depend on
        an input."""
        self._root_grads = list(root_grads)
        wanted = [*self._inputs, *self._several]
        if not wanted:
            return []

        def keeper(node: Any) -> Any:
            def keep(grads: tuple[torch.Tensor | None, ...]) -> None:
                self._kept[node] = grads

            return keep

        hooks = [node.register_prehook(keeper(node)) for node in self._later if node is not None]
        try:
            grads = torch.autograd.grad(
                self._roots, wanted, self._root_grads, retain_graph=True, allow_unused=True
            )
        finally:
            for hook in hooks:
                hook.remove()
        self._early = list(zip(self._several, grads[len(self._inputs) :]))
        return list(grads[: len(self._inputs)])

    def weight_grads(self) -> None:
        """Adds the new gradients of the parameters to their ``grad``."""
        for parameter, grad in self._early:
            _add(parameter, grad)
        for node, parameters in self._later.items():
            if node is None:
                _backward(self._roots, self._root_grads, parameters)
            elif node in self._kept:
                kept = [(GradientEdge(node, i), g) for i, g in enumerate(self._kept[node]) if g is not None]
                _backward([edge for edge, _ in kept], [grad for _, grad in kept], parameters)
        self._roots, self._inputs, self._root_grads = [], [], []
        self._early, self._several, self._kept, self._later = [], [], {}, {}


def _edge(root: Any) -> GradientEdge:
    return get_gradient_edge(root) if isinstance(root, torch.Tensor) else root


def _next(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def _in_order(begins: Iterable[Any]) -> list[Any]:
    """Returns the reachable nodes. Each node comes after its successors in the graph."""
    order: list[Any] = []
    seen: set[Any] = set()
    stack: list[tuple[Any, bool]] = [(node, False) for node in begins]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((each, False) for each in _next(node) if each not in seen)
    return order


def _backward(
    roots: Sequence[GradientEdge],
    grads: Sequence[torch.Tensor | None],
    parameters: Sequence[torch.Tensor],
) -> None:
    if not roots:
        return
    if _BEGINS_ANYWHERE:
        # This call runs the hooks of the parameters.
        torch.autograd.backward(roots, grads, inputs=list(parameters))
        return
    made = torch.autograd.grad(roots, list(parameters), list(grads), allow_unused=True)
    for parameter, grad in zip(parameters, made):
        _add(parameter, grad)


def _add(parameter: torch.Tensor, grad: torch.Tensor | None) -> None:
    if grad is None:
        return
    if parameter.grad is None:
        parameter.grad = grad.detach().clone()
    else:
        parameter.grad += grad
