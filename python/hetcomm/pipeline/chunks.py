"""Holds the stages of a rank as PyTorch modules, and the data that steps keep for later ones."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import get_device_states, set_device_states

from hetcomm.pipeline.gradients import Holders, degrees_of, place_of
from hetcomm.pipeline.plans import Plan
from hetcomm.pipeline.split import SplitBackward

# A stage is a module, or a mapping from names of items in the whole model to modules. The items are
# called one after another.
StageModule = Union[nn.Module, Mapping[str, nn.Module]]


class Saved:
    """Holds the data that the backward step of a micro-batch needs."""

    def __init__(self) -> None:
        self.has_graph = False
        self.leaves: list[torch.Tensor] = []
        self.roots: list[Any] = []
        self.root_grads: list[torch.Tensor] = []
        self.split: SplitBackward | None = None
        self._random: tuple[torch.Tensor, Any, Any] | None = None

    def keep_random_state(self, device: torch.device) -> None:
        states: tuple[Any, Any] = ([], [])
        if device.type != "cpu":
            states = get_device_states(torch.empty(0, device=device))
        self._random = (torch.get_rng_state(), *states)

    @contextlib.contextmanager
    def random_state(self, device: torch.device) -> Iterator[None]:
        """Repeats the random numbers of the forward step. Restores the generators afterwards."""
        assert self._random is not None
        state, devices, states = self._random
        with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
            torch.set_rng_state(state)
            if devices:
                set_device_states(devices, states, device_type=device.type)
            yield


class Chunk:
    """One stage of this rank."""

    def __init__(
        self,
        module: StageModule,
        stage: int,
        rank: int,
        pipeline: Mapping[str, Any],
        plan: Plan,
    ) -> None:
        own = pipeline["stages"][stage]
        self.stage = stage
        self.is_first = stage == 0
        self.is_last = stage == len(pipeline["stages"]) - 1
        self.saved: dict[int, Saved] = {}
        self.recomputes = False
        self._reshards = False
        self.items = dict(module) if isinstance(module, Mapping) else {"": module}
        for name, each in self.items.items():
            if not isinstance(each, nn.Module):
                raise TypeError(f"stage {stage}: {name or 'it'} is a {type(each).__name__}, no module")
            if isinstance(each, DistributedDataParallel):
                self.items[name] = each.module
        self._all_items = list(range(*own["items"]))
        self._is_whole = not isinstance(module, Mapping)
        if not self._is_whole and len(self.items) != len(self._all_items):
            raise ValueError(
                f"stage {stage} has {len(self._all_items)} items in the plan, and {len(self.items)} modules"
            )
        # A stage given without names counts as one item, the first one of the stage.
        self.by_item = dict(zip(self._all_items, self.items.values()))
        degrees = degrees_of(own)
        samples = pipeline["micro_batch_size"] / (degrees["data"] * degrees["context"])
        self.share = samples / plan.document["training"]["global_batch"]
        # Ranks along the tensor degree compute the same loss.
        self.counts = place_of(own, rank)["tensor"] == 0
        self._find_tensors(pipeline)
        parameters = [each for module in self.items.values() for each in module.parameters()]
        self.has_parameters = bool(parameters)
        self.device = parameters[0].device if parameters else torch.device("cpu")
        self._fsdp = [
            each
            for module in self.items.values()
            for each in module.modules()
            if hasattr(each, "set_requires_gradient_sync")
        ]
        self.has_fsdp = bool(self._fsdp)
        self.fsdp_parameters = {
            each for module in self._fsdp for each in module.parameters() if hasattr(each, "placements")
        }
        self._in_plan = own
        self._stage_ranks = set(own["ranks"])
        self._always_recomputes = own.get("recompute", False)
        if degrees["expert"] > 1:
            raise ValueError(f"stage {stage} has an expert degree: experts are not added up here")
        if own.get("zero", 0) > 0 and not self.has_fsdp:
            raise ValueError(f"stage {stage} has ZeRO {own['zero']}: use FSDP2, or another optimizer")
        self._left = 0

    def _find_tensors(self, pipeline: Mapping[str, Any]) -> None:
        self.input_has_grad: list[bool] = []
        self.output_has_grad: list[bool] = []
        self._output_names: list[str] = []
        for boundary in pipeline["boundaries"]:
            for tensor in boundary["tensors"]:
                has_grad = tensor.get("gradient", True)
                if boundary["to"] == self.stage:
                    self.input_has_grad.append(has_grad)
                if boundary["from"] == self.stage:
                    self.output_has_grad.append(has_grad)
                    self._output_names.append(tensor["name"])

    def needs_arguments(self) -> bool:
        """Returns True if the stage's first module cannot be called without an argument."""
        try:
            parameters = inspect.signature(next(iter(self.items.values())).forward).parameters.values()
        except (TypeError, ValueError):  # compiled code may have no signature
            return False
        return any(
            each.default is each.empty
            and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
            for each in parameters
        )

    def holds(self, item: int, who: Holders) -> bool:
        return any(each is self._in_plan for each in who.stages_of(item))

    def check_holders(self, who: Holders) -> None:
        """Raises ValueError if the gradients of this stage cannot be added up."""
        for item in self._all_items:
            if self._is_whole and who.stages_of(item) != who.stages_of(self._all_items[0]):
                raise ValueError(
                    f"stage {self.stage}: others hold some of its items: give {{name: module}}, with a "
                    "module for each item"
                )
            module = self.by_item.get(item, next(iter(self.items.values())))
            is_fsdp = any(each in self.fsdp_parameters for each in module.parameters())
            if is_fsdp and not who.ranks_of(item) <= self._stage_ranks:
                raise ValueError(f"stage {self.stage} has FSDP2, and other stages hold its item {item}")

    def set_actions(self, cells: Sequence[str]) -> None:
        """Determines which kinds of steps the schedule has for this stage. Raises ValueError if the
        schedule splits the backward steps of a stage with FSDP2."""
        steps = [part for cell in cells for part in _parts_of(cell)]
        own = {kind for stage, kind in steps if stage == self.stage}
        self.recomputes = "R" in own or self._always_recomputes
        had_reshards, self._reshards = self._reshards, "RESHARD" in own
        for each in self._fsdp if had_reshards and not self._reshards else ():
            each.set_reshard_after_backward(True)  # type: ignore[operator]
        if self.has_fsdp and "W" in own:
            raise ValueError(
                f"stage {self.stage}: FSDP2 needs whole backward steps, and the schedule splits them"
            )

    def begin(self, micro_batches: int) -> None:
        """Begins a training step."""
        self.saved.clear()
        self._left = micro_batches
        for each in self._fsdp:
            each.set_requires_gradient_sync(False)  # type: ignore[operator]
            if self._reshards:
                each.set_reshard_after_backward(False)  # type: ignore[operator]

    def end(self) -> None:
        """Ends a run. Forward steps leave the parameters of an FSDP2 module gathered, so this
        method shards them again."""
        self.saved.clear()
        self.reshard()

    def unshard(self) -> None:
        for each in self._fsdp:
            each.unshard()  # type: ignore[operator]

    def reshard(self) -> None:
        for each in self._fsdp:
            each.reshard()  # type: ignore[operator]

    @contextlib.contextmanager
    def next_backward(self) -> Iterator[None]:
        """Encloses a backward step. In the last one of a run, FSDP2 sums the gradients of all
        micro-batches."""
        self._left -= 1
        for each in self._fsdp:
            each.set_is_last_backward(self._left == 0)  # type: ignore[operator]
            each.set_requires_gradient_sync(self._left == 0)  # type: ignore[operator]
        yield

    def __call__(self, *arguments: Any) -> Any:
        for module in self.items.values():
            result = module(*arguments)
            arguments = result if isinstance(result, tuple) else (result,)
        return result

    def check_outputs(self, outputs: Sequence[Any], buffers: Sequence[torch.Tensor]) -> None:
        if len(outputs) != len(buffers):
            raise ValueError(
                f"stage {self.stage} returned {len(outputs)} tensors, and {len(buffers)} leave it in "
                "the plan"
            )
        for name, output, buffer in zip(self._output_names, outputs, buffers):
            if output.shape != buffer.shape or output.dtype != buffer.dtype:
                raise ValueError(
                    f"stage {self.stage} returned a {_described(output)} for '{name}', which is a "
                    f"{_described(buffer)} in the plan"
                )


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} tensor of shape {list(tensor.shape)}"


def _parts_of(cell: str) -> Iterator[tuple[int, str]]:
    """Yields the stages and kinds of the actions of a cell."""
    for part in cell.split(")")[0].lstrip("(").split(";"):
        stage = "".join(itertools.takewhile(str.isdigit, part))
        if stage:
            yield int(stage), part[len(stage) :].rstrip("0123456789")


def has_backward(cells: Sequence[str]) -> bool:
    """Returns True if a rank with these actions performs backward steps."""
    return any(kind in ("B", "I") for cell in cells for _, kind in _parts_of(cell))
