"""Runs PyTorch modules as the stages of a pipeline."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from hetcomm import _core
from hetcomm.pipeline.buffers import HostBuffers, buffers_of
from hetcomm.pipeline.chunks import Chunk, Saved, StageModule, has_backward
from hetcomm.pipeline.gradients import (
    Copies,
    HeldParameter,
    Holders,
    Sizes,
    _local,
    check_alike,
    cut_of,
    degrees_of,
    grad_of,
    is_cut,
    place_of,
    type_of,
)
from hetcomm.pipeline.losses import Losses
from hetcomm.pipeline.opened import opened
from hetcomm.pipeline.plans import Plan
from hetcomm.pipeline.runner import Gradient, Runner
from hetcomm.pipeline.schedules import Schedule
from hetcomm.pipeline.split import _BEGINS_ANYWHERE, SplitBackward
from hetcomm.reshard.agreement import _agree, _exchange
from hetcomm.reshard.arrays import _type_name
from hetcomm.reshard.state import transfer_state

_Ended = TypeVar("_Ended")


class Pipeline:
    """Trains the stages of this rank according to a pipeline plan.

    All ranks of ``communicator`` create the object together, with the same plan. ``communicator``
    is a :class:`hetcomm.Communicator`, a PyTorch process group, or None for the default group.
    ``modules`` has the module of each stage of this rank. It may also be a single module. A stage
    may also be given as {name: module}, with the items of the stage in order, keyed by their names
    in the whole model. :meth:`state_dict` then uses these names, and gradients of items that
    several stages or pipelines hold are added up. ``shared`` has the shared items that this rank
    holds in addition to those of its stages: {item: (name in the whole model, module)}. If the
    module of another item also has one of their weights, as with a tied head, its gradient is added
    up with the shared item.

    The first stage's module gets the arguments of a micro-batch. Each later one gets the tensors of
    the plan's boundaries, in the plan's order. A module returns a tensor, or as many tensors as
    leave the stage in the plan. ``loss(output, *targets)`` returns the mean loss of a micro-batch.
    Without ``loss``, the last module gets the targets after its inputs, and returns the loss.

    The input tensors of a stage are in buffers of the pipeline, and keep their contents until the
    last step of their micro-batch. Clone tensors that a module keeps longer. Buffers are on the
    device that the plan assigns to the rank (:func:`hetcomm.torch.device_index`). The rank's
    modules must be on this device. Its steps work in the stream that is current when the pipeline
    is created. With device 0, the buffers are in host memory, regardless of the modules' device.
    ``device`` is the PyTorch device of stages that have no parameters. By default it is the device
    of the other stages, or the CPU if the plan has device 0.

    Gradients are those of the mean over the global batch. Each rank's part is weighted by its
    samples, or by the ``weights`` of the step if the plan says "tokens". With "tokens", set the
    plan's ``sequence``, which keeps gradients in the range of short number formats until the sum of
    the weights is known. At the end of a step, gradients are added up over the ranks that hold the
    same parameters, in a fixed order. A stage therefore does not need DistributedDataParallel. If a
    stage has this wrapper, the pipeline uses the module inside it. FSDP2 inside a stage sums the
    gradients itself, and averages them unless its divide factor is set to 1
    (``set_gradient_divide_factor``). With ``broadcast``, ranks that hold the same parameters get
    those of the first such rank, except for parameters of FSDP2.

    ``pair(first, second)`` is called for two steps that can overlap, as in the schedule dualpipe-v.
    Its arguments are functions that perform the steps. ``pair`` calls both, in any order. It may
    run them in other streams, if it synchronizes these with the current stream before and after.
    Without ``pair``, the steps run one after the other.

    UNSHARD and RESHARD in a schedule call ``unshard()`` and ``reshard()`` of the FSDP2 modules of
    their stage. Backward steps then leave the parameters gathered until RESHARD.

    A schedule that splits backward steps visits some nodes of the graph twice. Hooks on activations
    are then called twice for gradients of parameters, and hooks on parameters that a stage uses in
    several places are not called.
    """

    def __init__(
        self,
        communicator: Any,
        plan: Plan,
        modules: Sequence[StageModule] | StageModule,
        *,
        loss: Callable[..., torch.Tensor] | None = None,
        shared: Mapping[int, tuple[str, nn.Module]] | None = None,
        broadcast: bool = True,
        device: torch.device | str | int | None = None,
        pair: Callable[[Callable[[], None], Callable[[], None]], None] | None = None,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(communicator, _core.Communicator):
            from hetcomm.torch import communicator as communicator_of

            communicator = communicator_of(communicator)
        self._plan = plan
        self._timeout = timeout
        self._pair = pair
        self._loss = loss
        self._shared = dict(shared or {})
        self._rank = communicator.rank
        self._run = _Run()
        self._is_running = False
        self._agree(communicator, lambda: self._prepare(modules, device, communicator))
        self._own = communicator.split(0, self._rank)
        own = [_callbacks(weakref.ref(self), each) for each in self._chunks]
        at = self._buffers
        self._losses = Losses(self._own, at)
        self._core = Runner(
            self._own,
            plan,
            own,
            wrap=at.tensor,
            timeout=timeout,
            stream=at.stream,
            wait=at.wait,
            pair=_pair_of(pair, own),
        )
        opened(communicator, self)
        self._added: list[HeldParameter] = []
        self.update_gradients()
        if broadcast:
            self._broadcast()

    def update_gradients(self) -> None:
        """Determines again which gradients are added up. Collective: call it on all ranks after
        parameters have been replaced, frozen, or unfrozen (``requires_grad``)."""
        held: list[HeldParameter] = []
        gradients: list[Gradient] = []

        def look_up() -> None:
            for each in self._held(lambda parameter: parameter.requires_grad, sizes):
                held.append(each)
                if each.cut is not None:
                    array = each.make_room(self._buffers)
                    layout = each.cut.layout(self._who.own_stage(each.item))
                    gradients.append(Gradient(each.item, each.index, layout, array))

        sizes = self._sizes(lambda parameter: parameter.requires_grad)
        self._agree(self._own, look_up)
        self._core.set_gradients(gradients, self._timeout)
        self._added = held
        self._known = self._shared_trainable()

    # Copies the parameters of the first rank that holds them to all other ranks that hold them.
    def _broadcast(self) -> None:
        sizes = self._sizes(lambda _: True)
        sides: list[Copies] = []

        def look_up() -> None:
            held = self._held(lambda _: True, sizes)
            with torch.no_grad():
                for each in held:
                    for other in each.alike[1:]:
                        other.copy_(each.alike[0])
            among = [each for each in held if each.cut is not None]
            first = [
                each
                for each in among
                if self._who.is_first(each.item, not each.cut.is_whole())  # type: ignore[union-attr]
            ]
            sides.extend(Copies(some, self._who, self._rank) for some in (first, among))

        self._agree(self._own, look_up)
        transfer_state(*sides, communicator=self._own, timeout=self._timeout)

    # Returns the sizes and types of the parameters of items that several ranks hold: {item: {index
    # along the tensor degree: [(size, type), ...]}}. Collective. Raises ValueError on all ranks if
    # ranks with the same index differ.
    def _sizes(self, is_wanted: Callable[[nn.Parameter], bool]) -> Sizes:
        own = {}
        for item, alike in self._alike_by_item():
            if not self._who.is_added(item):
                continue
            place = place_of(self._who.own_stage(item), self._rank)["tensor"]
            sizes = [
                (_local(same[0]).numel(), _type_name(same[0].dtype)) for same in alike if is_wanted(same[0])
            ]
            own[item] = {"place": place, "sizes": sizes}
        sizes: Sizes = {}
        first: dict[tuple[int, int], int] = {}  # first rank, by item and tensor index
        for rank, told in enumerate(_exchange(self._own, {"held": list(own.items())}, self._timeout)):
            for item, each in told["held"]:
                known = sizes.setdefault(item, {}).setdefault(each["place"], each["sizes"])
                other = first.setdefault((item, each["place"]), rank)
                # All ranks compare the same data, so all of them raise.
                if known != each["sizes"] and self._who.has_one_tensor_degree(item):
                    raise ValueError(
                        f"item {item}: rank {other} has parameters of other sizes or types, or others that "
                        f"are frozen, than rank {rank}"
                    )
        return sizes

    # Returns the parameters that satisfy is_wanted(parameter) and that other ranks also hold, or
    # that several modules of this rank hold.
    def _held(self, is_wanted: Callable[[nn.Parameter], bool], sizes: Sizes) -> list[HeldParameter]:
        held = []
        users = [
            {each for module in chunk.items.values() for each in module.parameters()}
            for chunk in self._chunks
        ]
        for item, alike in self._alike_by_item():
            wanted = [same for same in alike if is_wanted(same[0])]
            chunks = {i for i, chunk in enumerate(self._chunks) if chunk.holds(item, self._who)}
            if not self._who.is_added(item):
                held += [
                    HeldParameter(item, index, same, chunks)
                    for index, same in enumerate(wanted)
                    if len(same) > 1
                ]
                continue
            for i, chunk in enumerate(self._chunks):
                # The sum would start before this chunk has computed its part of the gradient.
                if i not in chunks and any(not users[i].isdisjoint(same) for same in wanted):
                    raise ValueError(
                        f"stage {chunk.stage} has a parameter of item {item} among its own: name the item "
                        "and its stages in the plan's `shared`"
                    )
            # Some ranks along the tensor degree may have fewer parameters than others.
            count = max(len(each) for each in sizes[item].values())
            for index in range(count):
                same = wanted[index] if index < len(wanted) else []
                cut = cut_of(same[0] if same else None, item, index, self._who, sizes[item])
                if 0 not in cut.shape:
                    held.append(HeldParameter(item, index, same, chunks, cut, type_of(index, sizes[item])))
        return held

    # Calls check() on all ranks. If it raises on one rank, all of them raise.
    def _agree(self, communicator: _core.Communicator, check: Callable[[], None]) -> None:
        failure: Exception | None = None
        try:
            check()
        except Exception as error:
            failure = error
        _agree(communicator, failure, self._timeout)

    def _prepare(
        self,
        modules: Sequence[StageModule] | StageModule,
        device: torch.device | str | int | None,
        communicator: Any,
    ) -> None:
        given = [modules] if isinstance(modules, (nn.Module, Mapping)) else list(modules)
        number, stages = self._plan.place_of(self._rank)
        if len(given) != len(stages):
            raise ValueError(
                f"rank {self._rank} has {len(stages)} stages in the plan, and {len(given)} modules"
            )
        self._pipeline = self._plan.document["pipelines"][number]
        self._chunks = [
            Chunk(module, stage, self._rank, self._pipeline, self._plan)
            for module, stage in zip(given, stages)
        ]
        self._who = Holders(self._plan, self._rank)
        wanted = _shared_items(self._plan, number, stages)
        if wanted != set(self._shared):
            raise ValueError(
                f"rank {self._rank} holds the shared items {sorted(wanted)} beside its stages, and `shared` "
                f"has {sorted(self._shared)}"
            )
        for chunk in self._chunks:
            chunk.check_holders(self._who)
        for item, modules in self._modules_by_item().items():
            check_alike(item, modules)
        if self._pair is not None and not callable(self._pair):
            raise TypeError("`pair` is no function")
        self._set_actions(self._plan)
        self._place(device, communicator)

    # Determines the device of the rank's buffers, and of its stages without parameters.
    def _place(self, given: torch.device | str | int | None, communicator: Any) -> None:
        planned = self._plan.document["ranks"][self._rank].get("device", 0)
        devices = {chunk.device for chunk in self._chunks if chunk.has_parameters}
        if given is not None:
            given = torch.empty(0, device=given).device  # adds the device's index
            devices.add(given)
        if planned != 0 and len(devices) > 1:
            raise ValueError(
                f"the plan gives rank {self._rank} one device, and its modules are on "
                f"{', '.join(sorted(map(str, devices)))}"
            )
        if planned != 0 and not devices:
            raise ValueError(
                f"the plan gives rank {self._rank} device {planned}, and its modules have no parameters: "
                "say with `device` where they work"
            )
        device = given or (next(iter(devices)) if planned != 0 else torch.device("cpu"))
        self._buffers: HostBuffers = buffers_of(device, planned, self._rank, communicator)
        for chunk in self._chunks:
            if not chunk.has_parameters:
                chunk.device = device

    # --- steps -------------------------------------------------------------------------------

    def step(
        self,
        *inputs: Any,
        targets: Any = None,
        weights: Sequence[float] | None = None,
        lengths: Sequence[int] | None = None,
        number: int = 0,
        scale: float = 1.0,
        timeout: float | None = None,
    ) -> float:
        """Performs a training step, and returns the mean loss of the global batch on all ranks.
        Adds the gradients to existing ones.

        Ranks of the first stage need ``inputs``. Ranks of the last stage need ``targets``, one
        tensor or a tuple. Both are tensors with this rank's rows of all micro-batches, or lists
        with a value for each micro-batch. ``weights`` are the numbers of tokens in this rank's part
        of each micro-batch. Ranks of the last stage pass them if the plan says "tokens".
        ``lengths`` are the lengths of the micro-batches, if the plan has lengths. ``number`` is the
        number of the step, the same on all ranks. The gradients are multiplied by ``scale``, as
        gradient scalers require.

        An exception of a module is raised on its rank. The other ranks raise :class:`hetcomm.Error`
        with its text. A call that rejects its arguments, with ValueError or INVALID_ARGUMENT,
        begins no step. The other ranks then wait until this rank calls again."""
        with self._begun(inputs, targets, weights, scale):
            self._check_gradients()
            before = {each: each.grad for each in self.parameters()}

            def end(left: _Countdown) -> float:
                self._buffers.lend(_local(each.grad) for each in before if each.grad is not None)
                self._buffers.lend(each.room for each in self._added if each.room is not None)
                return self._finish(left)

            try:
                for parameter in before:
                    parameter.grad = None
                for chunk in self._chunks:
                    chunk.begin(self._pipeline["micro_batches"])
                self._begin_sums()
                total = self._run_to(end, number, timeout, False, lengths)
            except BaseException:
                for parameter, grad in before.items():
                    parameter.grad = grad
                raise
        for parameter, grad in before.items():
            if grad is not None:
                parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)
        return total

    def evaluate(
        self,
        *inputs: Any,
        targets: Any = None,
        weights: Sequence[float] | None = None,
        lengths: Sequence[int] | None = None,
        number: int = 0,
        timeout: float | None = None,
    ) -> float:
        """Performs the forward steps without gradients, and returns the mean loss on all ranks.
        Does not change the mode of modules: call ``eval()`` before."""
        with self._begun(inputs, targets, weights):
            return self._run_to(lambda left: self._mean_loss(left)[0], number, timeout, True, lengths)

    def predict(
        self,
        *inputs: Any,
        lengths: Sequence[int] | None = None,
        number: int = 0,
        timeout: float | None = None,
    ) -> list[Any]:
        """Performs the forward steps without gradients. Returns the output of each micro-batch on
        the ranks of the last stage, and an empty list on the others."""
        with self._begun(inputs, None, None, keeps_outputs=True):

            def end(left: _Countdown) -> list[Any]:
                self._losses.total(left)
                outputs = [self._run.outputs[i] for i in sorted(self._run.outputs)]
                self._buffers.lend(_tensors_of(outputs))
                return outputs

            return self._run_to(end, number, timeout, True, lengths)

    def set_schedule(
        self, plan: Plan | str | Schedule | Mapping[str, Any], timeout: float | None = None
    ) -> None:
        """Replaces the plan with one that has another schedule (:meth:`Plan.with_schedule`), or
        sets the given schedule for all pipelines. Collective. If the call fails, the pipeline keeps
        its plan."""
        if not isinstance(plan, Plan):
            schedule, plan = plan, self._plan
            for number in range(len(plan.document["pipelines"])):
                plan = plan.with_schedule(schedule, number)
        try:
            self._agree(self._own, lambda: self._set_actions(plan))
            self._core.set_schedule(plan.json, timeout)
        except BaseException:
            self._set_actions(self._plan)
            raise
        self._plan = plan
        self._pipeline = plan.document["pipelines"][plan.place_of(self._rank)[0]]

    def cancel(self, reason: str = "no reason given") -> None:
        """Ends the current run, or if there is none, the next one, on all ranks. May be called from
        any thread."""
        self._core.cancel(reason)

    # --- the model ---------------------------------------------------------------------------

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields this rank's parameters with their names in the whole model."""
        seen = set()
        for name, module in self._named_modules():
            for inner, parameter in module.named_parameters():
                if parameter not in seen:
                    seen.add(parameter)
                    yield _joined(name, inner), parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        for _, parameter in self.named_parameters():
            yield parameter

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of this rank's stages and shared items, keyed by names in the whole
        model. Raises ValueError if two stages use one name for different modules, or if both are
        given without names."""
        state: dict[str, Any] = {}
        for name, module in self._distinct_modules():
            state.update({_joined(name, inner): value for inner, value in module.state_dict().items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads this rank's part of ``state``, which may be the state of the whole model. Raises
        KeyError if something is missing, and ValueError like :meth:`state_dict`."""
        for name, module in self._distinct_modules():
            keys = {inner: _joined(name, inner) for inner in module.state_dict()}
            missing = [key for key in keys.values() if key not in state]
            if missing:
                raise KeyError(f"the state has no {missing[0]!r}")
            module.load_state_dict({inner: state[key] for inner, key in keys.items()})

    def _named_modules(self) -> list[tuple[str, nn.Module]]:
        own = [each for chunk in self._chunks for each in chunk.items.items()]
        return [*own, *self._shared.values()]

    # Returns the modules and their names. Raises ValueError if stages use one name for two modules.
    def _distinct_modules(self) -> list[tuple[str, nn.Module]]:
        own = [(name, chunk) for chunk in self._chunks for name in chunk.items]
        for (name, chunk), (other_name, other) in itertools.combinations(own, 2):
            if name == other_name and chunk.items[name] is not other.items[name]:
                what = f"an item called {name!r}" if name else "a module without a name"
                raise ValueError(
                    f"stages {chunk.stage} and {other.stage} both have {what}: give {{name: module}}, with "
                    "names of the whole model"
                )
        return self._named_modules()

    def grad_norm(self, norm_type: float = 2.0, timeout: float | None = None) -> tuple[float, bool]:
        """Returns the norm of the whole model's gradients, and whether any of them is infinite or
        NaN. Collective. A parameter that is copied on all ranks of a tensor degree counts once. A
        parameter that is cut among these ranks must have ``tensor_model_parallel = True`` or be a
        DTensor."""
        highest = math.isinf(norm_type)
        own = torch.zeros(1, dtype=torch.float64, device="cpu")
        wrong = torch.zeros(1, dtype=torch.float64, device="cpu")
        for parameter in self.parameters():
            if parameter.grad is not None:
                wrong += float(not bool(torch.isfinite(_local(parameter.grad)).all()))
        for grad in self._counted():
            if grad.numel() == 0:
                continue
            # Some devices do not support float64.
            wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
            part = torch.linalg.vector_norm(grad.detach(), norm_type, dtype=wide).item()
            own[0] = max(float(own[0]), part) if highest else float(own[0]) + part**norm_type
        own = self._total(own, "max" if highest else "sum", timeout)
        wrong = self._total(wrong, "sum", timeout)
        norm = float(own) if highest else float(own) ** (1 / norm_type)
        return norm, bool(wrong > 0)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, timeout: float | None = None
    ) -> tuple[float, bool]:
        """Scales the gradients down so that their norm is at most ``max_norm``. Returns the result
        of :meth:`grad_norm` before scaling. Changes nothing if a gradient is infinite or NaN."""
        norm, wrong = self.grad_norm(norm_type, timeout)
        factor = max_norm / (norm + 1e-6)
        if factor < 1 and not wrong:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        return norm, wrong

    # --- facts -------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def is_first(self) -> bool:
        """True if this rank has the first stage, and needs inputs."""
        return any(each.is_first for each in self._chunks)

    @property
    def is_last(self) -> bool:
        """True if this rank has the last stage, and needs targets."""
        return any(each.is_last for each in self._chunks)

    def facts(self) -> dict[str, Any]:
        """Returns statistics of this rank: runs, times of callbacks and waits, and bytes of
        buffers."""
        return self._core.facts()

    def trace(self, format: str = "json") -> str:
        """Returns the start and end of each step of the last run, as "json" or "chrome"."""
        return self._core.trace(format)

    def look_at_run(
        self,
        format: str = "text",
        *,
        limit: int | None = None,
        may_split: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Compares the last step with its forecast, like :meth:`Plan.look_at_run`. Collective.
        Returns the result for this rank's pipeline. Call it before an evaluation, since the
        evaluation's trace replaces that of the step."""
        own, _ = self._plan.place_of(self._rank)
        traces = self._traces(timeout)[own]
        return self._plan.look_at_run(traces, own, format, limit=limit, may_split=may_split)

    def propose_schedule(
        self,
        times: Sequence[Mapping[str, Any] | None] | None = None,
        *,
        limit: int | None = None,
        may_split: bool = False,
        timeout: float | None = None,
    ) -> Plan | None:
        """Returns the plan with better schedules for the times of the last step, or None if there
        are none. Collective: all ranks get the same plan, for :meth:`set_schedule`. ``limit`` and
        ``may_split`` are as for :meth:`Plan.look_at_run`. ``times`` has the earlier times of each
        pipeline. With ``times``, only times that have changed by more than 10 % count. Stages with
        FSDP2 get no split backward steps."""
        plan = self._plan
        for number, traces in enumerate(self._traces(timeout)):
            known = times[number] if times else None
            told = self._plan.look_at_run(
                traces, number, "json", times=known, limit=limit, may_split=may_split
            )
            proposal = json.loads(told)["proposal"]
            if proposal is not None:
                plan = plan.with_schedule(proposal["schedule"], number, proposal["in_flight"])
        return None if plan is self._plan else plan

    # Returns the traces of all ranks, grouped by pipeline.
    def _traces(self, timeout: float | None) -> list[list[str]]:
        own, _ = self._plan.place_of(self._rank)
        said = {"pipeline": own, "trace": self._core.trace("json")}
        told = _exchange(self._own, said, self._timeout if timeout is None else timeout)
        found: list[list[str]] = [[] for _ in self._plan.document["pipelines"]]
        for each in told:
            found[each["pipeline"]].append(each["trace"])
        return found

    def close(self) -> None:
        """Closes the pipeline. Later runs of the other ranks fail."""
        self._core.close()
        self._losses.close()
        self._own.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # --- internal ----------------------------------------------------------------------------

    def _set_actions(self, plan: Plan) -> None:
        number, _ = plan.place_of(self._rank)
        outline = plan.outline["pipelines"][number]
        group = outline["group_of_stage"][self._chunks[0].stage]
        cells = outline["actions"][group]
        self._trains = has_backward(cells)
        self._adds = any(has_backward(each) for one in plan.outline["pipelines"] for each in one["actions"])
        for chunk in self._chunks:
            chunk.set_actions(cells)

    # Keeps the inputs and results of a run until the run has ended.
    @contextlib.contextmanager
    def _begun(
        self,
        inputs: Sequence[Any],
        targets: Any,
        weights: Sequence[float] | None,
        scale: float = 1.0,
        keeps_outputs: bool = False,
    ) -> Iterator[None]:
        if self._is_running:
            raise RuntimeError("a run of this pipeline is under way")
        run = self._run_of(inputs, targets, weights, scale, keeps_outputs)
        self._is_running = True
        self._run = run
        try:
            yield
        finally:
            self._run = _Run()
            self._is_running = False
            for chunk in self._chunks:
                chunk.end()

    def _run_of(
        self,
        inputs: Sequence[Any],
        targets: Any,
        weights: Sequence[float] | None,
        scale: float,
        keeps_outputs: bool,
    ) -> _Run:
        count = self._pipeline["micro_batches"]
        run = _Run()
        if self.is_first:
            first = next(each for each in self._chunks if each.is_first)
            if not inputs and not first.is_last and first.needs_arguments():
                raise ValueError(f"rank {self._rank} has the first stage, and there are no inputs")
            run.inputs = _micro_batches(inputs, count, "inputs")
        if self.is_last and targets is not None:
            run.targets = _micro_batches(
                targets if isinstance(targets, tuple) else (targets,), count, "targets"
            )
        by_tokens = self._plan.document["gradients"].get("weight", "samples") == "tokens"
        if weights is not None and not by_tokens:
            raise ValueError("the plan's gradients count by samples, and there are weights")
        if weights is not None and len(weights) != count:
            raise ValueError(f"there are {len(weights)} weights for {count} micro-batches")
        if by_tokens and weights is None and self.is_last and not keeps_outputs:
            raise ValueError("the plan's gradients count by tokens, and there are no weights")
        if targets is None and self._loss is not None and self.is_last and not keeps_outputs:
            raise ValueError(f"rank {self._rank} has the last stage, and there are no targets for `loss`")
        run.weights = None if weights is None else [float(each) for each in weights]
        run.is_weighted = by_tokens
        if by_tokens:
            training = self._plan.document["training"]
            run.whole = float(training["global_batch"] * max(training["sequence"], 1))
        run.scale = scale
        run.keeps_outputs = keeps_outputs
        return run

    def _end_step(self) -> None:
        self._buffers.end_step()
        self._losses.move_on()

    def _forward(self, chunk: Chunk, action: Any) -> None:
        saves = not action.evaluates
        recomputes = saves and chunk.recomputes
        saved = Saved()
        with torch.set_grad_enabled(saves and not recomputes):
            if recomputes:
                saved.keep_random_state(chunk.device)
            outputs = self._call(chunk, action, saved)
        if not saves or recomputes:
            # Within torch.autocast, a later step with gradients would otherwise use cached
            # conversions of parameters that have no history.
            torch.clear_autocast_cache()
        # Buffers must have no autograd history, because they are reused.
        with torch.no_grad():
            for output, buffer in zip(outputs, action.outputs):
                buffer.copy_(output)
        if saves:
            chunk.saved[action.micro_batch] = saved

    def _recompute(self, chunk: Chunk, action: Any) -> None:
        saved = chunk.saved[action.micro_batch]
        with torch.enable_grad(), saved.random_state(chunk.device):
            self._call(chunk, action, saved, again=True)

    # Calls the module. Stores the data for its backward step in |saved|. Returns the tensors that
    # leave the stage.
    def _call(
        self, chunk: Chunk, action: Any, saved: Saved, again: bool = False
    ) -> Sequence[torch.Tensor]:
        run = self._run
        arguments = []
        for tensor, has_grad in zip(action.inputs, chunk.input_has_grad):
            # Each micro-batch needs a separate leaf, since several micro-batches use the buffer.
            argument = tensor.detach().to(chunk.device)
            if has_grad and torch.is_grad_enabled():
                argument.requires_grad_()
            arguments.append(argument)
        saved.has_graph = torch.is_grad_enabled()
        saved.leaves = [each for each, has_grad in zip(arguments, chunk.input_has_grad) if has_grad]
        if chunk.is_first:
            arguments = [*run.inputs[action.micro_batch], *arguments]
        targets: Sequence[Any] = ()
        if chunk.is_last and run.targets is not None:
            targets = run.targets[action.micro_batch]
            if self._loss is None:
                arguments = [*arguments, *targets]
        result = chunk(*arguments)
        if chunk.is_last:
            self._keep_result(chunk, action, saved, result, targets, again)
            return ()
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        if not again:
            chunk.check_outputs(outputs, action.outputs)
        if torch.is_grad_enabled():
            # Outputs are not stored, so that those that the graph does not need can be freed.
            saved.roots = [
                _root(output) if output.requires_grad else None
                for output, has_grad in zip(outputs, chunk.output_has_grad)
                if has_grad
            ]
        return outputs

    def _keep_result(
        self,
        chunk: Chunk,
        action: Any,
        saved: Saved,
        result: Any,
        targets: Sequence[Any],
        again: bool,
    ) -> None:
        run = self._run
        if run.keeps_outputs:
            run.outputs[action.micro_batch] = _cloned(result)
            return
        loss = result if self._loss is None else self._loss(result, *targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ValueError("the loss of a micro-batch has to be a tensor of one element")
        factor = chunk.share if run.weights is None else run.weights[action.micro_batch]
        # The loss of a micro-batch with weight 0 may be NaN.
        if not again and factor != 0 and chunk.counts:
            self._losses.add(action.micro_batch, loss, factor)
        run.results += not again
        if run.results == self._pipeline["micro_batches"] and chunk.counts and not again:
            self._losses.complete()
        if factor == 0 and chunk.has_fsdp and saved.has_graph:
            saved.roots, saved.root_grads = self._begins_with_nothing(chunk, result)
            return
        saved.roots = [_root(loss) if loss.requires_grad and factor != 0 else None]
        saved.root_grads = [torch.full_like(loss.detach(), factor / run.whole * run.scale)]

    # Returns the roots and gradients for a micro-batch with weight 0. FSDP2 sums gradients in the
    # last backward step, so even such a micro-batch has one. The loss may be NaN, so the step
    # begins with zeros at the results of the module.
    def _begins_with_nothing(self, chunk: Chunk, result: Any) -> tuple[list[Any], list[torch.Tensor]]:
        if self._loss is None and not bool(torch.isfinite(result)):
            raise ValueError(
                f"stage {chunk.stage} has FSDP2, and the loss of a micro-batch that counts nothing is no "
                "finite number: give the pipeline `loss`, apart from the module"
            )
        made = [each for each in _tensors_of(result) if each.requires_grad]
        return [_root(each) for each in made], [torch.zeros_like(each) for each in made]

    # Returns the roots and gradients with which the backward step of a micro-batch begins.
    def _begins(self, chunk: Chunk, action: Any) -> tuple[list[Any], list[torch.Tensor]]:
        saved = chunk.saved[action.micro_batch]
        if not saved.has_graph:  # the stage recomputes, but the schedule has no step for it
            self._recompute(chunk, action)
        grads = saved.root_grads
        if not chunk.is_last:
            # These are copies, because autograd may store them as gradients of parameters.
            grads = [each.to(chunk.device, copy=True) for each in action.output_grads]
        pairs = [(root, grad) for root, grad in zip(saved.roots, grads) if root is not None]
        return [root for root, _ in pairs], [grad for _, grad in pairs]

    def _backward(self, chunk: Chunk, action: Any) -> None:
        roots, grads = self._begins(chunk, action)
        saved = chunk.saved.pop(action.micro_batch)
        with chunk.next_backward():
            if roots:
                torch.autograd.backward(roots, grads)
        _write([each.grad for each in saved.leaves], action.input_grads)

    def _input_grad(self, chunk: Chunk, action: Any) -> None:
        roots, grads = self._begins(chunk, action)
        saved = chunk.saved[action.micro_batch]
        saved.split = SplitBackward(roots, saved.leaves)
        _write(saved.split.input_grads(grads), action.input_grads)
        saved.roots, saved.root_grads, saved.leaves = [], [], []

    def _weight_grad(self, chunk: Chunk, action: Any) -> None:
        split = chunk.saved.pop(action.micro_batch).split
        assert split is not None
        split.weight_grads()

    def _unshard(self, chunk: Chunk, action: Any) -> None:
        chunk.unshard()

    def _reshard(self, chunk: Chunk, action: Any) -> None:
        chunk.reshard()

    def _begin_sums(self) -> None:
        if self._trains or not self._adds:
            for each in self._added:
                each.begin()
            return
        # This rank computes no gradients, but receives the sums.
        with self._buffers.working():
            for each in self._added:
                each.begin_with_nothing()
        if self._added:
            self._buffers.wait()  # the library reads them without synchronizing

    # Fills in the gradients of a stage that are added up over ranks. All its micro-batches are
    # done.
    def _reduce_grad(self, chunk: Chunk, action: Any) -> None:
        number = self._chunks.index(chunk)
        with torch.no_grad():
            for each in self._added:
                each.finish(number)
        if self._added:
            self._buffers.wait()  # the library reads them now

    # Ends the pipeline on all ranks, including ranks that are waiting for losses.
    def _fail(self, error: BaseException) -> None:
        reason = f"rank {self._rank}: {type(error).__name__}: {error}"[:400]
        self._losses.fail(reason)
        with contextlib.suppress(Exception):
            self._core.cancel(reason)

    # Copies the summed gradients into the parameters. In a weighted run, also divides all gradients
    # by the sum of the weights. Returns the mean loss.
    def _finish(self, left: _Countdown) -> float:
        with torch.no_grad():
            for each in self._added:
                each.take()
        loss, weight = self._mean_loss(left)
        if self._run.is_weighted and weight > 0:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(weight / self._run.whole)
        return loss

    # Raises ValueError if the gradients to add up differ from those on which all ranks have agreed.
    def _check_gradients(self) -> None:
        if list(map(id, self._shared_trainable())) != list(map(id, self._known)):
            raise ValueError(
                "parameters were replaced, frozen or unfrozen: call update_gradients() on all ranks"
            )

    # Returns the parameters whose gradients are added up, over ranks or over modules of this rank.
    def _shared_trainable(self) -> list[nn.Parameter]:
        return [
            parameter
            for item, alike in self._alike_by_item()
            for same in alike
            if same[0].requires_grad and (len(same) > 1 or self._who.is_added(item))
            for parameter in same
        ]

    # Yields each item with its parameters. Each parameter is a list of this rank's copies. Omits
    # parameters that FSDP2 adds up, and parameters of earlier items.
    def _alike_by_item(self) -> Iterator[tuple[int, list[list[nn.Parameter]]]]:
        seen = self._fsdp_parameters()
        for item, modules in self._modules_by_item().items():
            alike = []
            for each in zip(*(module.parameters() for module in modules)):
                same = [one for one in dict.fromkeys(each) if one not in seen]
                seen.update(same)
                if same:
                    alike.append(same)
            yield item, alike

    def _fsdp_parameters(self) -> set[nn.Parameter]:
        return {each for chunk in self._chunks for each in chunk.fsdp_parameters}

    # Returns the modules that hold each item on this rank, with shared items first.
    def _modules_by_item(self) -> dict[int, list[nn.Module]]:
        found: dict[int, list[nn.Module]] = {}
        for chunk in self._chunks:
            for item, module in chunk.by_item.items():
                found.setdefault(item, []).append(module)
        for item, (_, module) in self._shared.items():
            found.setdefault(item, []).append(module)
        shared = {each["item"] for each in self._plan.document.get("shared", [])}
        return dict(sorted(found.items(), key=lambda each: (each[0] not in shared, each[0])))

    # Returns True if this rank has losses that count.
    def _has_losses(self) -> bool:
        return any(each.is_last and each.counts for each in self._chunks)

    # Returns the mean loss over all ranks, and the sum of the weights.
    def _mean_loss(self, left: _Countdown) -> tuple[float, float]:
        total, weight = self._losses.total(left)
        return (total / weight if self._run.is_weighted and weight > 0 else total), weight

    def _run_steps(
        self, number: int, timeout: float | None, evaluates: bool, lengths: Sequence[int] | None
    ) -> None:
        with self._buffers.working():
            self._core.run(number, timeout, evaluates, None if lengths is None else list(lengths))

    # Performs a run, and returns the result of end(time left). If the run or end() fails after the
    # first step, notifies the other ranks, so that their calls end.
    def _run_to(
        self,
        end: Callable[[_Countdown], _Ended],
        number: int,
        timeout: float | None,
        evaluates: bool,
        lengths: Sequence[int] | None,
    ) -> _Ended:
        left = None if timeout is None else _Countdown(timeout)
        self._losses.begin(self._has_losses(), self._run.keeps_outputs)
        try:
            self._run_steps(number, timeout, evaluates, lengths)
            return end(left or _Countdown(self._timeout))
        except BaseException as error:
            if self._core.has_ended or self._losses.is_under_way:
                self._fail(error)
            raise

    def _total(self, own: torch.Tensor, op: str, timeout: float | None) -> torch.Tensor:
        total = torch.empty_like(own)
        self._own.allreduce(own.contiguous(), total, op, timeout=timeout).wait()
        return total

    # Yields the gradients that this rank includes in the norm. Each gradient is included on one
    # rank only.
    def _counted(self) -> Iterator[torch.Tensor]:
        for each in self._fsdp_parameters():
            if each.grad is not None and _is_first_replica(each):
                yield _local(each.grad)
        for item, alike in self._alike_by_item():
            for same in alike:
                first = same[0]
                if first.grad is None:
                    continue
                grad = grad_of(first)  # all ranks of a DTensor's mesh have to take part
                if self._who.is_first(item, is_cut(first)):
                    yield grad


def _callbacks(
    pipeline: weakref.ref[Pipeline], chunk: Chunk
) -> dict[str, Callable[[_core.PipelineAction], None]]:
    """Returns the callbacks of a stage. They do not keep the pipeline alive."""

    def calling(name: str) -> Callable[[_core.PipelineAction], None]:
        def call(action: _core.PipelineAction) -> None:
            try:
                getattr(pipeline(), name)(chunk, action)
                pipeline()._end_step()
            except Exception as error:
                if hasattr(error, "add_note"):
                    error.add_note(
                        f"in the {action.kind} step of micro-batch {action.micro_batch} in stage "
                        f"{action.stage}"
                    )
                raise

        return call

    kinds = (
        "forward", "recompute", "backward", "input_grad", "weight_grad", "reduce_grad", "unshard", "reshard"
    )
    return {kind: calling(f"_{kind}") for kind in kinds}


def _pair_of(
    pair: Callable[[Callable[[], None], Callable[[], None]], None] | None,
    callbacks: Sequence[Mapping[str, Callable[[_core.PipelineAction], None]]],
) -> Callable[[_core.PipelineAction, _core.PipelineAction], None] | None:
    """Returns a function that performs two actions through ``pair`` and the callbacks of the
    stages, or None without ``pair``."""
    if pair is None:
        return None

    def call(first: _core.PipelineAction, second: _core.PipelineAction) -> None:
        left = [first, second]

        def perform(action: _core.PipelineAction) -> None:
            if action not in left:
                raise RuntimeError(f"`pair` has called the {action.kind} step of stage {action.stage} twice")
            left.remove(action)
            callbacks[action.chunk][action.kind](action)

        pair(lambda: perform(first), lambda: perform(second))
        if left:
            raise RuntimeError(f"`pair` has not performed the {left[0].kind} step of stage {left[0].stage}")

    return call


class _Run:
    """The inputs and results of a run of the pipeline."""

    def __init__(self) -> None:
        self.inputs: list[tuple[Any, ...]] = []
        self.targets: list[tuple[Any, ...]] | None = None
        self.weights: list[float] | None = None
        self.is_weighted = False
        # With weights, the number of tokens of a step according to the plan. Gradients are first
        # divided by it. At the end they are divided by the sum of the weights over this number, so
        # that short number formats do not overflow.
        self.whole = 1.0
        self.scale = 1.0
        self.results = 0  # number of results of the last stage's forward steps
        self.keeps_outputs = False
        self.outputs: dict[int, Any] = {}


class _Countdown:
    """Returns the seconds that are left of a time limit, or None without a limit."""

    def __init__(self, timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout

    def __call__(self) -> float | None:
        return None if self._end is None else max(self._end - time.monotonic(), 0.001)


def _shared_items(plan: Plan, pipeline: int, stages: Sequence[int]) -> set[int]:
    """Returns the shared items that ``stages`` hold in addition to their own items."""
    found = set()
    for each in plan.document.get("shared", []):
        for holder in each["holders"]:
            if holder.get("pipeline", 0) == pipeline and holder["stage"] in stages:
                own = plan.document["pipelines"][pipeline]["stages"][holder["stage"]]["items"]
                if each["item"] not in range(*own):
                    found.add(each["item"])
    return found


def _cloned(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.detach().clone()
    if isinstance(result, (tuple, list)):
        return type(result)(_cloned(each) for each in result)
    return result


def _tensors_of(result: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors that :func:`_cloned` copies."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for each in result:
            yield from _tensors_of(each)


def _is_first_replica(parameter: nn.Parameter) -> bool:
    """Returns True if this rank has the first replica of its shard of a DTensor."""
    place = parameter.device_mesh.get_coordinate()  # type: ignore[attr-defined]
    placements = parameter.placements  # type: ignore[attr-defined]
    return all(at == 0 for at, each in zip(place, placements) if each.is_replicate())


def _root(tensor: torch.Tensor) -> Any:
    """Returns the root at which a backward step begins. If PyTorch supports it, the root does not
    keep the tensor alive."""
    return get_gradient_edge(tensor) if _BEGINS_ANYWHERE else tensor


def _write(grads: Sequence[torch.Tensor | None], buffers: Sequence[torch.Tensor]) -> None:
    for grad, buffer in zip(grads, buffers):
        if grad is None:
            buffer.zero_()
        else:
            buffer.copy_(grad)


def _micro_batches(values: Sequence[Any], count: int, what: str) -> list[tuple[Any, ...]]:
    """Returns the arguments of each micro-batch."""
    columns = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.dim() == 0 or value.size(0) % count != 0:
                raise ValueError(
                    f"{what} of shape {list(value.shape)} have no rows for {count} micro-batches alike"
                )
            columns.append(list(value.split(value.size(0) // count)))
        elif isinstance(value, (list, tuple)):
            if len(value) != count:
                raise ValueError(f"{what}: there are {len(value)} values for {count} micro-batches")
            columns.append(list(value))
        else:
            columns.append([value] * count)
    return [tuple(column[i] for column in columns) for i in range(count)]


def _joined(name: str, inner: str) -> str:
    return f"{name}.{inner}" if name else inner
