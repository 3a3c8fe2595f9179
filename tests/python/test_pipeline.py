"""Pipelines of torch modules.

Properties: for every named schedule the gradients are, bit for bit, those of the whole model in one
process that adds the micro-batches' gradients in the schedule's order; the loss is the same on all
ranks. Data parallel stages, pipelines of unequal depth, shared items, weights by tokens, recomputed
steps, several lengths, several tensors between stages and past one, DDP and FSDP2 give the gradients of the
whole model. Evaluation, prediction,
state, norm of gradients and changes of the schedule do what they say. An exception of a module is
raised on its rank, and told on the others. A schedule made here runs in torch's own pipelining, and
those of torch run here.
"""

import json
import math
import os
import signal
import time
import unittest
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, PrepareModuleInput, parallelize_module,
)

import hetcomm
import hetcomm.torch
from hetcomm import pipeline
from hetcomm.pipeline.split import _BEGINS_ANYWHERE, SplitBackward
from ranks import TORCH, Died, TestCase, init, run

WIDTH = 6
ROWS = 3  # of a micro-batch


class Block(nn.Module):
    """An item: a residual block whose weights are used in several ways."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first = nn.Linear(WIDTH, 2 * WIDTH)
        self.second = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(self.norm(x))))


def blocks(count, seed=7):
    torch.manual_seed(seed)
    return {f"blocks.{i}": Block().double() for i in range(count)}


def rows_of(count, seed=11):
    made = torch.Generator().manual_seed(seed)
    return (torch.randn(count, WIDTH, dtype=torch.float64, generator=made),
            torch.randn(count, WIDTH, dtype=torch.float64, generator=made))


def loss_of(output, target):
    return ((output - target) ** 2).mean()


def through(model, x):
    for module in model.values():
        x = module(x)
    return x


def reference(model, inputs, targets, shares, orders):
    """The mean loss, and the gradients as they are when each item adds those of the micro-batches in
    an order of its own. |shares|: by how much each micro-batch counts."""
    losses = []
    grads = []  # by micro-batch
    for x, target, share in zip(inputs, targets, shares):
        loss = loss_of(through(model, x), target)
        names = {f"{name}.{inner}": each for name, module in model.items()
                 for inner, each in module.named_parameters()}
        found = torch.autograd.grad(loss, list(names.values()),
                                    torch.full_like(loss, share))
        losses.append(loss.item() * share)
        grads.append(dict(zip(names, found)))
    added = {}
    for item, name in enumerate(model):
        for key in grads[0]:
            if not key.startswith(f"{name}."):
                continue
            first, *others = orders[item]
            added[key] = grads[first][key].clone()
            for each in others:
                added[key] += grads[each][key]
    return sum(losses), added


def weight_orders(plan, items):
    """For each item the micro-batches in the order in which its stage adds their gradients."""
    made = plan.outline["pipelines"][0]
    stages = plan.document["pipelines"][0]["stages"]
    orders = []
    for item in range(items):
        stage = next(i for i, each in enumerate(stages) if each["items"][0] <= item < each["items"][1])
        cells = made["actions"][made["group_of_stage"][stage]]
        parts = [part for cell in cells for part in cell.split(")")[0].lstrip("(").split(";")]
        orders.append([int(part[len(str(stage)) + 1:]) for part in parts
                       if part.startswith((f"{stage}W", f"{stage}B"))])
    return orders


def tensor(**more):
    return pipeline.Tensor("x", "float64", (ROWS, WIDTH), **more)


def plan_of(rank_of, schedule, micro_batches, items_of=2, **more):
    stages = [pipeline.Stage([rank], items_of) for rank in rank_of]
    return pipeline.Plan.of(stages=stages, tensors=[tensor()], micro_batches=micro_batches,
                            micro_batch_size=ROWS, schedule=schedule, **more)


def own_modules(model, plan, rank):
    names = list(model)
    stages = plan.document["pipelines"][plan.place_of(rank)[0]]["stages"]
    return [{name: model[name] for name in names[slice(*stage["items"])]}
            for stage in stages if rank in stage["ranks"]]


def grads_of(trainer):
    return {name: each.grad for name, each in trainer.named_parameters()}


def start(rank, size, folder):
    torch.set_num_threads(1)
    init(rank, size, folder)


def stop():
    dist.barrier()
    dist.destroy_process_group()


# --- schedules -----------------------------------------------------------------------------------

# By name: how stages are dealt to ranks, and parameters.
SCHEDULES = {
    "gpipe": ("loop", 1, {}),
    "1f1b": ("loop", 1, {}),
    "eager-1f1b": ("loop", 1, {}),
    "virtual-1f1b": ("loop", 1, {"slow_boundaries": [0]}),
    "h-1f1b": ("loop", 1, {}),
    "looped-bfs": ("loop", 2, {}),
    "interleaved-1f1b": ("loop", 2, {}),
    "interleaved-zb": ("loop", 2, {}),
    "zb-h1": ("loop", 1, {}),
    "zb-h2": ("loop", 1, {}),
    "zb-v": ("v", 2, {}),
    "dualpipe-v": ("v", 2, {}),
    "four-phase": ("loop", 1, {"recomputed_stages": [0]}),
}


# All of them take a minute: HETCOMM_TEST_LONG=1, or the ctest entries with the label `long`.
CHECKED = SCHEDULES if "HETCOMM_TEST_LONG" in os.environ else ("1f1b", "h-1f1b", "zb-v")


def schedule_of(name, ranks):
    order, chunks, parameters = SCHEDULES[name]
    parameters = dict(parameters)
    if name == "h-1f1b":
        parameters["stage_ns"] = [100] * ranks
        parameters["boundaries"] = [{"busy_ns": 20, "latency_ns": 60}] * (ranks - 1)
    rank_of = list(range(ranks))
    if chunks == 2:
        rank_of += rank_of[::-1] if order == "v" else rank_of
    return rank_of, {"name": name, "parameters": parameters}


def every_schedule(rank, size, folder):
    start(rank, size, folder)
    for name in CHECKED:
        rank_of, schedule = schedule_of(name, size)
        micro_batches = 2 * size + (0 if name in ("interleaved-1f1b", "interleaved-zb") else 1)
        plan = plan_of(rank_of, schedule, micro_batches)
        items = 2 * len(rank_of)
        model = blocks(items)
        x, y = rows_of(micro_batches * ROWS)
        expected_loss, expected = reference(
            model, x.split(ROWS), y.split(ROWS), [1 / micro_batches] * micro_batches,
            weight_orders(plan, items))
        with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
            for step in range(2):  # the second one begins with the buffers of the first
                for each in trainer.parameters():
                    each.grad = None
                # All ranks may have all rows: only the first and the last stage look.
                loss = trainer.step(x, targets=y, number=step)
                assert abs(loss - expected_loss) < 1e-12, (name, loss, expected_loss)
                for key, grad in grads_of(trainer).items():
                    assert torch.equal(grad, expected[key]), (name, key, grad - expected[key])
            assert trainer.facts()["runs"] == 2
            evaluated = trainer.evaluate(x, targets=y)
            assert abs(evaluated - expected_loss) < 1e-12, name
            outputs = trainer.predict(x)
            assert len(outputs) == (micro_batches if trainer.is_last else 0)
            for part, output in zip(x.split(ROWS), outputs):
                assert torch.equal(output, through(model, part)), name
            assert not any(each.saved for each in trainer._chunks)
    stop()
    return True


def training(rank, size, folder):
    """Adam over several steps: the state follows that of the whole model."""
    start(rank, size, folder)
    plan = plan_of(range(size), "zb-h1", 6)
    model, whole = blocks(2 * size), blocks(2 * size)
    trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
    own = torch.optim.Adam(trainer.parameters(), 0.01)
    all_parameters = [each for module in whole.values() for each in module.parameters()]
    other = torch.optim.Adam(all_parameters, 0.01)
    for step in range(4):
        x, y = rows_of(6 * ROWS, step)
        own.zero_grad()
        loss = trainer.step(x, targets=y, number=step)
        own.step()
        other.zero_grad()
        expected, grads = reference(whole, x.split(ROWS), y.split(ROWS), [1 / 6] * 6,
                                    weight_orders(plan, 2 * size))
        for name, module in whole.items():
            for inner, each in module.named_parameters():
                each.grad = grads[f"{name}.{inner}"]
        other.step()
        assert loss == expected or abs(loss - expected) < 1e-12
    state = trainer.state_dict()
    known = {f"{name}.{inner}": value for name, module in whole.items()
             for inner, value in module.state_dict().items()}
    assert set(state) == {key for key in known
                          if key.split(".")[1] in (str(2 * rank), str(2 * rank + 1))}, set(state)
    for key, value in state.items():
        assert torch.equal(value, known[key]), key
    fresh = {f"{name}.{inner}": value for name, module in blocks(2 * size, 99).items()
             for inner, value in module.state_dict().items()}
    trainer.load_state_dict(fresh)
    assert all(torch.equal(value, fresh[key]) for key, value in trainer.state_dict().items())
    try:
        trainer.load_state_dict({})
        raise AssertionError("a state without names")
    except KeyError as error:
        assert "blocks." in str(error)
    trainer.close()
    stop()
    return True


def accumulation(rank, size, folder):
    """Two steps add their gradients, also where ranks hold the same."""
    start(rank, size, folder)
    stages = [pipeline.Stage([0, 1], 2, data=2), pipeline.Stage([2], 2)]
    plan = pipeline.Plan.of(stages=stages, tensors=[pipeline.Tensor("x", "float64", (4, WIDTH))],
                            micro_batches=4, micro_batch_size=4)
    model = blocks(4)
    x, y = rows_of(16)
    _, expected = reference(model, x.split(4), y.split(4), [1 / 4] * 4, [range(4)] * 4)
    # Each rank of the first stage has its rows of every micro-batch.
    mine = torch.cat([part.chunk(2)[rank % 2] for part in x.split(4)])
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
        for step in range(2):
            trainer.step(mine, targets=y, number=step)
        for key, grad in grads_of(trainer).items():
            assert torch.allclose(grad, 2 * expected[key], atol=1e-12, rtol=1e-10), key
        norm, wrong = trainer.grad_norm()
        whole = math.sqrt(sum(float((2 * each).pow(2).sum()) for each in expected.values()))
        assert not wrong and abs(norm - whole) < 1e-10, (norm, whole)
        highest, _ = trainer.grad_norm(math.inf)
        assert abs(highest - max(float((2 * each).abs().max()) for each in expected.values())) < 1e-12
        trainer.clip_grad_norm_(whole / 2)
        assert abs(trainer.grad_norm()[0] - whole / 2) < 1e-5
        if rank == 1:
            next(trainer.parameters()).grad[0] = math.inf
        assert trainer.grad_norm()[1]
    stop()
    return True


def unequal_pipelines(rank, size, folder):
    """Two pipelines of different depth and numbers of micro-batches share the model."""
    start(rank, size, folder)
    deep = plan_of([0, 1], "1f1b", 3)
    shallow = pipeline.Plan.of(stages=[pipeline.Stage([0], 4)], micro_batches=5,
                               micro_batch_size=ROWS)
    plan = pipeline.Plan.join([deep, shallow])
    model = blocks(4)
    x, y = rows_of(8 * ROWS)
    expected_loss, expected = reference(model, x.split(ROWS), y.split(ROWS), [1 / 8] * 8,
                                        [range(8)] * 4)
    mine = slice(0, 3 * ROWS) if rank < 2 else slice(3 * ROWS, 8 * ROWS)
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
        for step in range(3):
            for each in trainer.parameters():
                each.grad = None
            loss = trainer.step(x[mine], targets=y[mine], number=step)
            assert abs(loss - expected_loss) < 1e-12
        for key, grad in grads_of(trainer).items():
            assert torch.allclose(grad, expected[key], atol=1e-12, rtol=1e-10), key
    try:
        pipeline.Pipeline(None, plan, nn.Sequential(*model.values()), loss=loss_of)
        raise AssertionError("a stage without names whose items others hold")
    except (ValueError, RuntimeError) as error:
        # The others' stages alone would do.
        assert isinstance(error, ValueError) == (rank == 2), error
        assert "{name: module}" in str(error), error
    stop()
    return True


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, WIDTH, dtype=torch.float64))

    def forward(self, x):
        return self.weight[x]


class Head(nn.Module):
    """Uses an embedding again."""

    def __init__(self, embedding):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self._embedding = [embedding]  # no part of this item

    def forward(self, x):
        return self.scale * x @ self._embedding[0].weight.T


def tied_embeddings(rank, size, folder):
    start(rank, size, folder)
    for rank_of in ([0, 1], [0, 1, 1, 0]):
        torch.manual_seed(3)
        embedding = Embedding()
        other = Embedding()
        other.load_state_dict(embedding.state_dict())
        inner = len(rank_of) - 2
        model = {"embedding": embedding, **blocks(inner), "head": Head(embedding)}
        rows = torch.randint(5, (12,), generator=torch.Generator().manual_seed(1))
        loss_fn = nn.functional.cross_entropy
        loss = sum(loss_fn(through(model, part), part) for part in rows.split(ROWS)) / 4
        names = {f"{name}.{inner_}": each for name, module in model.items()
                 for inner_, each in module.named_parameters()}
        expected = dict(zip(names, torch.autograd.grad(loss, list(names.values()))))
        last = len(rank_of) - 1
        plan = pipeline.Plan.of(
            stages=[pipeline.Stage([each]) for each in rank_of], tensors=[tensor()],
            micro_batches=4, micro_batch_size=ROWS,
            schedule="1f1b" if last == 1 else "zb-v",
            shared=[{"item": 0, "holders": [{"pipeline": 0, "stage": 0},
                                            {"pipeline": 0, "stage": last}]}])
        mine = {"embedding": embedding, **{name: model[name] for name in model if name != "embedding"}}
        shared = {}
        if rank == rank_of[last]:
            # A copy, or the same module where both stages are on one rank.
            held = other if last == 1 else embedding
            mine["head"] = Head(held)
            shared = {0: ("embedding", held)}
        with pipeline.Pipeline(None, plan, own_modules(mine, plan, rank), loss=loss_fn,
                               shared=shared) as trainer:
            value = trainer.step(rows, targets=rows)
            assert abs(value - loss.item()) < 1e-12
            norm = math.sqrt(sum(float(each.pow(2).sum()) for each in expected.values()))
            assert abs(trainer.grad_norm()[0] - norm) < 1e-10
            # A state of the whole model reaches all copies.
            state = {f"{name}.{inner_}": each + 1 for name, module in model.items()
                     for inner_, each in module.state_dict().items()}
            trainer.load_state_dict(state)
            for module in (mine["embedding"], *(each for _, each in shared.values())):
                if rank == 0 or module is not mine["embedding"]:
                    assert torch.equal(module.weight, state["embedding.weight"])
            dist.barrier()
            with torch.no_grad():
                for each in trainer.parameters():
                    each -= 1
            if rank == 0:
                assert torch.allclose(embedding.weight.grad, expected["embedding.weight"], atol=1e-12)
            if rank == rank_of[last]:
                _, held = shared[0]
                assert torch.allclose(held.weight.grad, expected["embedding.weight"], atol=1e-12)
    stop()
    return True


class TiedHead(nn.Module):
    """Has the embedding's weight among its own parameters, as most models do."""

    def __init__(self, embedding):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.weight = embedding.weight

    def forward(self, x):
        return self.scale * x @ self.weight.T


def tied_parameters(rank, size, folder):
    """The head's ranks have a data degree. Copies begin alike, whatever ranks have drawn."""
    start(rank, size, folder)
    torch.manual_seed(3)
    embedding = Embedding()
    head = TiedHead(embedding)
    rows = torch.randint(5, (16,), generator=torch.Generator().manual_seed(1))
    loss_fn = nn.functional.cross_entropy
    loss = sum(loss_fn(head(embedding(part)), part) for part in rows.split(4)) / 4
    expected = torch.autograd.grad(loss, [embedding.weight, head.scale])
    plan = pipeline.Plan.of(
        stages=[pipeline.Stage([0]), pipeline.Stage([1, 2], data=2)],
        tensors=[pipeline.Tensor("x", "float64", (4, WIDTH))], micro_batches=4, micro_batch_size=4,
        shared=[{"item": 0, "holders": [{"pipeline": 0, "stage": 0}, {"pipeline": 0, "stage": 1}]}])
    if rank > 0:
        torch.manual_seed(100 + rank)
        embedding = Embedding()
        head = TiedHead(embedding)
        rows = torch.cat([part.chunk(2)[rank - 1] for part in rows.split(4)])
    modules = {"embedding": embedding} if rank == 0 else {"head": head}
    shared = {} if rank == 0 else {0: ("embedding", embedding)}
    with pipeline.Pipeline(None, plan, modules, loss=loss_fn, shared=shared) as trainer:
        value = trainer.step(rows, targets=rows)
        assert abs(value - loss.item()) < 1e-12, (value, loss)
        assert torch.allclose(embedding.weight.grad, expected[0], atol=1e-12)
        if rank > 0:
            assert torch.allclose(head.scale.grad, expected[1], atol=1e-12)
    try:
        pipeline.Pipeline(None, plan, modules, loss=loss_fn)
        raise AssertionError("rank 1 does not give the shared item")
    except (ValueError, RuntimeError) as error:
        # Two ranks fail; each learns of the first one.
        assert isinstance(error, ValueError) or rank != 1, error
        assert "holds the shared items [0]" in str(error), error
    stop()
    return True


class Whole(nn.Module):
    """Checks that what a stage gets has no history."""

    def __init__(self):
        super().__init__()
        self.block = Block().double()
        self.checks = False

    def forward(self, x):
        assert not self.checks or (x.is_leaf and x.grad_fn is None)
        return self.block(x)


def degrees(rank, size, folder):
    """Ranks of a tensor degree hold copies here, those of a context degree parts of the sequence."""
    start(rank, size, folder)
    stages = [pipeline.Stage([0, 1], tensor=2), pipeline.Stage([2, 3], context=2, recompute=True)]
    moved = pipeline.Tensor("x", "float64", (ROWS, 4, WIDTH), context=1)
    plan = pipeline.Plan.of(stages=stages, tensors=[moved], micro_batches=4, micro_batch_size=ROWS)
    torch.manual_seed(9)
    model = {"0": Whole(), "1": Whole()}
    made = torch.Generator().manual_seed(2)
    x, y = (torch.randn(4 * ROWS, 4, WIDTH, dtype=torch.float64, generator=made) for _ in range(2))
    expected_loss, expected = reference(model, x.split(ROWS), y.split(ROWS), [1 / 4] * 4, [range(4)] * 2)
    if rank >= 2:
        y = y.chunk(2, 1)[rank - 2]
    for module in model.values():
        module.checks = True
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
        for step in range(3):
            for each in trainer.parameters():
                each.grad = None
            loss = trainer.step(x, targets=y, number=step, scale=2.0)
            assert abs(loss - expected_loss) < 1e-12, (loss, expected_loss)
            for key, grad in grads_of(trainer).items():
                assert torch.allclose(grad, 2 * expected[key], atol=1e-12), key
        norm = math.sqrt(sum(float((2 * each).pow(2).sum()) for each in expected.values()))
        assert abs(trainer.grad_norm()[0] - norm) < 1e-10
        dist.barrier()  # a cancel ends what slower ranks still add up
        if rank == 3:
            trainer.cancel("seen enough")
        try:
            trainer.step(x, targets=y, number=3)
            raise AssertionError("it was cancelled")
        except hetcomm.Error as error:
            assert "seen enough" in str(error), error
    for wrong, text in ((pipeline.Stage([0, 1], data=2, expert=2), "expert"),
                        (pipeline.Stage([0, 1], tensor=2, zero=1), "ZeRO")):
        refused = pipeline.Plan.of(stages=[wrong, stages[1]],
                                   tensors=[pipeline.Tensor("x", "float64", (4, 4, WIDTH), context=1)],
                                   micro_batches=4, micro_batch_size=4)
        try:
            pipeline.Pipeline(None, refused, own_modules(model, refused, rank), loss=loss_of)
            raise AssertionError(text)
        except (ValueError, RuntimeError) as error:
            assert text in str(error), error
    stop()
    return True


class Copied(torch.autograd.Function):
    """What ranks of a tensor degree read: they add up its gradients."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def parts_of(whole, blocks, dim, place, degree):
    return torch.cat([each.chunk(degree, dim)[place] for each in whole.chunk(blocks, dim)], dim)


class Gated(nn.Module):
    """A block that ranks may cut: two matrices, and a vector by rows, a matrix by columns."""

    def __init__(self, place=0, degree=1, group=None, marks=True):
        super().__init__()
        self.group = group
        self.norm = nn.LayerNorm(WIDTH).double()
        names = {"both": (4 * WIDTH, WIDTH), "bias": (4 * WIDTH,), "down": (WIDTH, 2 * WIDTH)}
        for name, shape in names.items():
            whole = torch.randn(shape, dtype=torch.float64)
            dim = int(name == "down")
            blocks = 1 if name == "down" else 2
            own = nn.Parameter(parts_of(whole, blocks, dim, place, degree))
            if degree > 1:
                own.tensor_model_parallel = True
                if marks:
                    own.partition_dim, own.partition_stride = dim, blocks
            setattr(self, name, own)

    def forward(self, x):
        inner = self.norm(x)
        inner = inner if self.group is None else Copied.apply(inner, self.group)
        gate, up = (inner @ self.both.T + self.bias).chunk(2, -1)
        out = (torch.tanh(gate) * up) @ self.down.T
        return x + (out if self.group is None else Added.apply(out, self.group))


def unequal_tensor_degrees(rank, size, folder):
    """Pipelines of tensor degrees 2 and 1, which has a data degree, begin alike and add gradients."""
    start(rank, size, folder)
    group = dist.new_group([0, 1])
    cut = pipeline.Plan.of(stages=[pipeline.Stage([0, 1], 2, tensor=2)], micro_batches=3,
                           micro_batch_size=4)
    whole = pipeline.Plan.of(stages=[pipeline.Stage([0, 1], 2, data=2)], micro_batches=2,
                             micro_batch_size=4)
    plan = pipeline.Plan.join([cut, whole])
    torch.manual_seed(5)
    reference_model = {"0": Gated(), "1": Gated()}
    torch.manual_seed(5 if rank < 2 else 50 + rank)  # the second pipeline gets them from the first
    own = ((rank, 2, group) if rank < 2 else ())
    model = {"0": Gated(*own), "1": Gated(*own)}
    x, y = rows_of(20)
    expected_loss, expected = reference(reference_model, x.split(4), y.split(4), [1 / 5] * 5,
                                        [range(5)] * 2)
    if rank < 2:
        x, y = x[:12], y[:12]
    else:
        x, y = (torch.cat([part.chunk(2)[rank - 2] for part in each[12:].split(4)]) for each in (x, y))
    with pipeline.Pipeline(None, plan, model, loss=loss_of) as trainer:
        for step in range(2):
            for each in trainer.parameters():
                each.grad = None
            loss = trainer.step(x, targets=y, number=step)
            assert abs(loss - expected_loss) < 1e-12, (loss, expected_loss)
            for key, grad in grads_of(trainer).items():
                known = expected[key]
                if rank < 2 and "norm" not in key:
                    known = parts_of(known, 1 if "down" in key else 2, int("down" in key), rank, 2)
                assert torch.allclose(grad, known, atol=1e-12), key
        norm = math.sqrt(sum(float(each.pow(2).sum()) for each in expected.values()))
        assert abs(trainer.grad_norm()[0] - norm) < 1e-10
    def refused(text, change):
        model = {"0": Gated(*own), "1": Gated(*own)}
        if rank < 2:
            change(model["1"])
        try:
            pipeline.Pipeline(None, plan, model, loss=loss_of)
            raise AssertionError(text)
        except (ValueError, RuntimeError) as error:
            assert text in str(error), error

    refused("partition_dim", lambda block: delattr(block.bias, "partition_dim"))
    refused("which does not divide its dimension 0",
            lambda block: setattr(block.bias, "partition_stride", 5))
    refused("sequence_parallel",
            lambda block: setattr(block.norm.weight, "sequence_parallel", True))
    stop()
    return True


def tensors_of_a_mesh(rank, size, folder):
    """Stages cut by torch's tensor parallelism, beside a pipeline that does not cut."""
    start(rank, size, folder)
    group = dist.new_group([0, 1])
    cut = pipeline.Plan.of(stages=[pipeline.Stage([0, 1], 2, tensor=2)], micro_batches=3,
                           micro_batch_size=4)
    whole = pipeline.Plan.of(stages=[pipeline.Stage([0], 2)], micro_batches=2, micro_batch_size=4)
    plan = pipeline.Plan.join([cut, whole])
    known = blocks(2, seed=5)
    model = blocks(2, seed=5 if rank < 2 else 50)
    if rank < 2:
        mesh = DeviceMesh.from_group(group, "cpu")
        for block in model.values():
            parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    x, y = rows_of(20)
    expected_loss, expected = reference(known, x.split(4), y.split(4), [1 / 5] * 5, [range(5)] * 2)
    mine = slice(0, 12) if rank < 2 else slice(12, 20)
    with pipeline.Pipeline(None, plan, model, loss=loss_of) as trainer:
        for step in range(2):
            for each in trainer.parameters():
                each.grad = None
            loss = trainer.step(x[mine], targets=y[mine], number=step)
            assert abs(loss - expected_loss) < 1e-12, (loss, expected_loss)
            for key, grad in grads_of(trainer).items():
                grad = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
                assert torch.allclose(grad, expected[key], atol=1e-12), key
        norm = math.sqrt(sum(float(each.pow(2).sum()) for each in expected.values()))
        assert abs(trainer.grad_norm()[0] - norm) < 1e-10
    stop()
    return True


class Parts(nn.Module):
    """Has a part of its own on each rank of a tensor degree, and says nothing of it."""

    def __init__(self, place):
        super().__init__()
        self.own = nn.Parameter(torch.full((4 - place,), 1.0 + place, dtype=torch.float64))
        if place == 0:
            self.more = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        return x * sum(each.sum() for each in self.parameters())


def parts_of_unequal_sizes(rank, size, folder):
    start(rank, size, folder)
    plan = pipeline.Plan.of(stages=[pipeline.Stage([0, 1, 2, 3], data=2, tensor=2)], micro_batches=2,
                            micro_batch_size=4)
    place = rank % 2
    module = Parts(place)
    if rank >= 2:  # which get those of the first ranks
        for each in module.parameters():
            each.data.zero_()
    x, y = rows_of(8)
    mine = [torch.cat([part.chunk(2)[rank // 2] for part in each.split(4)]) for each in (x, y)]
    alone = Parts(place)
    loss = sum(loss_of(alone(one), other) for one, other in zip(x.split(4), y.split(4))) / 2
    loss.backward()
    with pipeline.Pipeline(None, plan, {"0": module}, loss=loss_of) as trainer:
        trainer.step(mine[0], targets=mine[1])
        for one, other in zip(module.parameters(), alone.parameters()):
            assert torch.equal(one, other)
            assert torch.allclose(one.grad, other.grad, atol=1e-12), (one.grad, other.grad)
    stop()
    return True


def frozen(rank, size, folder):
    """Parameters are frozen and unfrozen between steps."""
    start(rank, size, folder)
    plan = pipeline.Plan.of(stages=[pipeline.Stage([0, 1], 2, data=2)], micro_batches=2,
                            micro_batch_size=4)
    model = blocks(2)
    x, y = rows_of(8)
    mine = [torch.cat([part.chunk(2)[rank] for part in each.split(4)]) for each in (x, y)]
    _, expected = reference(model, x.split(4), y.split(4), [1 / 2] * 2, [range(2)] * 2)
    with pipeline.Pipeline(None, plan, model, loss=loss_of) as trainer:
        weight = model["blocks.0"].first.weight
        for requires_grad in (True, False, True):
            if weight.requires_grad != requires_grad:
                weight.requires_grad_(requires_grad)
                try:
                    trainer.step(mine[0], targets=mine[1])
                    raise AssertionError("it knows other gradients")
                except ValueError as error:
                    assert "update_gradients" in str(error), error
                trainer.update_gradients()
            for each in trainer.parameters():
                each.grad = None
            trainer.step(mine[0], targets=mine[1])
            for key, grad in grads_of(trainer).items():
                if key == "blocks.0.first.weight" and not requires_grad:
                    assert grad is None
                else:
                    assert torch.allclose(grad, expected[key], atol=1e-12), key
        # A rank that does it alone.
        if rank == 1:
            weight.requires_grad_(False)
        try:
            trainer.update_gradients()
            raise AssertionError("the ranks differ")
        except ValueError as error:
            assert "item 0: rank 0 has parameters of other sizes" in str(error), error
        weight.requires_grad_(True)
        trainer.step(mine[0], targets=mine[1])
    stop()
    return True


def late_users(rank, size, folder):
    """A stage uses a parameter of another one's item, and the plan does not say so."""
    start(rank, size, folder)
    both = [pipeline.Stage([0, 1], data=2)] * 2
    tensors = [pipeline.Tensor("x", "float64", (4, WIDTH))]
    shared = [{"item": 0, "holders": [{"pipeline": 0, "stage": each} for each in range(2)]}]
    rows = torch.randint(5, (8,), generator=torch.Generator().manual_seed(1))
    mine = torch.cat([part.chunk(2)[rank] for part in rows.split(4)])
    loss_fn = nn.functional.cross_entropy
    for said in ([], shared):
        torch.manual_seed(3)
        embedding = Embedding()
        modules = [{"embedding": embedding}, {"head": TiedHead(embedding)}]
        loss = sum(loss_fn(modules[1]["head"](embedding(part)), part) for part in rows.split(4)) / 2
        expected, = torch.autograd.grad(loss, [embedding.weight])
        plan = pipeline.Plan.of(stages=both, tensors=tensors, micro_batches=2, micro_batch_size=4,
                                schedule="looped-bfs", shared=said)
        try:
            with pipeline.Pipeline(None, plan, modules, loss=loss_fn,
                                   shared={0: ("embedding", embedding)} if said else None) as trainer:
                assert said
                trainer.step(mine, targets=mine)
                assert torch.allclose(embedding.weight.grad, expected, atol=1e-12)
        except ValueError as error:
            assert not said and "stage 1 has a parameter of item 0" in str(error), error
    stop()
    return True


def token_weights(rank, size, folder):
    """Micro-batches count by their tokens, and those of two pipelines alike."""
    start(rank, size, folder)
    one = plan_of([0, 1], "1f1b", 3, weight="tokens")
    plan = pipeline.Plan.join([one, plan_of([0, 1], "1f1b", 2, weight="tokens")])
    model = blocks(4)
    x, y = rows_of(5 * ROWS)
    tokens = [5.0, 1.0, 2.0, 9.0, 0.0]
    expected_loss, expected = reference(model, x.split(ROWS), y.split(ROWS),
                                        [each / sum(tokens) for each in tokens], [range(5)] * 4)
    first = rank < 2
    mine = slice(0, 3 * ROWS) if first else slice(3 * ROWS, 5 * ROWS)
    def mean(output, target):
        # As of a micro-batch without tokens.
        return output.sum() * math.nan if torch.equal(target, y[-ROWS:]) else loss_of(output, target)

    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=mean) as trainer:
        weights = (tokens[:3] if first else tokens[3:]) if trainer.is_last else None
        evaluated = trainer.evaluate(x[mine], targets=y[mine], weights=weights)
        loss = trainer.step(x[mine], targets=y[mine], weights=weights)
        assert abs(loss - expected_loss) < 1e-12, (loss, expected_loss)
        assert evaluated == loss, (evaluated, loss)
        for key, grad in grads_of(trainer).items():
            assert torch.allclose(grad, expected[key], atol=1e-12, rtol=1e-10), key
    stop()
    return True


def one_trains(rank, size, folder):
    """A pipeline without backward steps adds nothing to the gradients, and has those of the other one."""
    start(rank, size, folder)
    plan = pipeline.Plan.join([plan_of([0, 1], "1f1b", 3), plan_of([0, 1], "1f1b", 2)])
    model = blocks(4)
    x, y = rows_of(5 * ROWS)
    _, expected = reference(model, x[:3 * ROWS].split(ROWS), y[:3 * ROWS].split(ROWS), [1 / 5] * 3, [range(3)] * 4)
    mine = slice(0, 3 * ROWS) if rank < 2 else slice(3 * ROWS, 5 * ROWS)
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
        trainer.step(x[mine], targets=y[mine])
        trainer.set_schedule(plan.with_schedule("forward-only", 1))
        for parameter in trainer.parameters():
            parameter.grad = None
        trainer.step(x[mine], targets=y[mine])
        for key, grad in grads_of(trainer).items():
            assert torch.allclose(grad, expected[key], atol=1e-12, rtol=1e-10), key
    # A rank whose modules of one item have different parameters.
    plan = plan_of([0, 1, 2, 3, 3, 2, 1, 0], "zb-v", 4, items_of=1, shared=[
        {"item": 0, "holders": [{"pipeline": 0, "stage": 0}, {"pipeline": 0, "stage": 7}]}])
    model = {str(i): nn.Linear(WIDTH, WIDTH).double() for i in range(8)}
    for other, text in ((nn.Linear(WIDTH, WIDTH, bias=False).double(), "different parameters on this rank"),
                        (nn.Linear(WIDTH, WIDTH).double(), "none")):
        shared = {0: ("0", other)} if rank == 0 else None
        try:
            pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of, shared=shared).close()
            told = "none"
        except (ValueError, RuntimeError) as error:
            told = str(error)
        assert text in told, told
        dist.barrier()
    stop()
    return True


def many_tokens(rank, size, folder):
    """Thousands of tokens in a micro-batch do not take gradients out of the range of float16."""
    start(rank, size, folder)
    stages = [pipeline.Stage([each], 2) for each in range(2)]
    plan = pipeline.Plan.of(stages=stages, tensors=[pipeline.Tensor("x", "float16", (ROWS, WIDTH))], micro_batches=3,
                            micro_batch_size=ROWS, schedule="1f1b", weight="tokens", sequence=65536)
    model = blocks(4)
    x, y = rows_of(3 * ROWS)
    tokens = [65536.0 * ROWS, 16384.0 * ROWS, 65536.0 * ROWS]
    _, expected = reference(model, x.split(ROWS), y.split(ROWS), [each / sum(tokens) for each in tokens], [range(3)] * 4)
    own = own_modules(model, plan, rank)
    for module in own[0].values():
        module.half()
    with pipeline.Pipeline(None, plan, own, loss=loss_of) as trainer:
        trainer.step(x.half(), targets=y.half(), weights=tokens if trainer.is_last else None)
        for key, grad in grads_of(trainer).items():
            assert torch.allclose(grad.double(), expected[key], atol=5e-3, rtol=5e-2), (key, grad, expected[key])
    stop()
    return True


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return nn.functional.dropout(self.linear(x), 0.5)


def recomputed(rank, size, folder):
    """Recomputed steps have the random numbers of their forward steps."""
    start(rank, size, folder)
    results = []
    for recomputed_stages in ([], [0, 1]):
        schedule = {"name": "four-phase", "parameters": {"recomputed_stages": recomputed_stages}}
        plan = plan_of([0, 1], schedule, 4, items_of=1)
        torch.manual_seed(5)
        model = {"0": Noisy(), "1": Noisy()}
        x, y = rows_of(4 * ROWS)
        with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
            torch.manual_seed(rank)
            loss = trainer.step(x, targets=y)
            results.append((loss, grads_of(trainer), torch.get_rng_state()))
            assert model[str(rank)].calls == (8 if recomputed_stages else 4)
    (loss, grads, state), (other_loss, other_grads, other_state) = results
    assert loss == other_loss
    assert all(torch.equal(grads[key], other_grads[key]) for key in grads)
    assert torch.equal(state, other_state), "the numbers behind the step differ"
    stop()
    return True


def lengths(rank, size, folder):
    start(rank, size, folder)
    known = [2, 4, 8]
    moved = pipeline.Tensor("x", "float64", (ROWS, 8, WIDTH), varies=1)
    plan = pipeline.Plan.of(stages=[pipeline.Stage([each], 2) for each in range(size)],
                            tensors=[moved], micro_batches=4, micro_batch_size=ROWS, lengths=known)
    model = blocks(2 * size)
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
        for step in range(5):
            made = torch.Generator().manual_seed(step)
            chosen = [known[int(torch.randint(3, (1,), generator=made))] for _ in range(4)]
            x = [torch.randn(ROWS, each, WIDTH, dtype=torch.float64, generator=made) for each in chosen]
            y = [torch.randn(ROWS, each, WIDTH, dtype=torch.float64, generator=made) for each in chosen]
            for each in trainer.parameters():
                each.grad = None
            # The rank that loads the data knows them.
            loss = trainer.step(x, targets=y, number=step, lengths=chosen if rank == 0 else None)
            expected_loss, expected = reference(model, x, y, [1 / 4] * 4, [range(4)] * (2 * size))
            assert abs(loss - expected_loss) < 1e-12
            for key, grad in grads_of(trainer).items():
                assert torch.equal(grad, expected[key]), key
    stop()
    return True


def schedule_changes(rank, size, folder):
    start(rank, size, folder)
    plan = plan_of(range(size), "1f1b", 6)
    model = blocks(2 * size)
    x, y = rows_of(6 * ROWS)
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
        made = pipeline.Schedule.named("zb-h1", ranks=size, micro_batches=6)
        for schedule in ("gpipe", "zb-h2", made, "1f1b"):
            changed = plan.with_schedule(schedule)
            trainer.set_schedule(changed)
            assert trainer.plan == changed
            for each in trainer.parameters():
                each.grad = None
            trainer.step(x, targets=y)
            _, expected = reference(model, x.split(ROWS), y.split(ROWS), [1 / 6] * 6,
                                    weight_orders(changed, 2 * size))
            for key, grad in grads_of(trainer).items():
                assert torch.equal(grad, expected[key]), (schedule, key)
        steps = json.loads(trainer.trace())["steps"]
        assert len(steps) == 12, len(steps)
        assert "traceEvents" in json.loads(trainer.trace("chrome"))
        try:
            trainer.set_schedule(plan_of(range(size), "1f1b", 5))
            raise AssertionError("another number of micro-batches")
        except hetcomm.Error as error:
            assert "micro-batches" in str(error), error
        trainer.step(x, targets=y)
    stop()
    return True


class Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(2 * ctx.seconds)
        return grad, None


class Slow(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()
        self.seconds = seconds

    def forward(self, x):
        return Sleeping.apply(self.linear(x), self.seconds)


def proposals(rank, size, folder):
    """The traces of a run tell how long its stages took, on all ranks of all pipelines alike."""
    start(rank, size, folder)
    plan = pipeline.Plan.join([plan_of([0, 1], "gpipe", 4, items_of=1),
                               plan_of([0, 1], "1f1b", 4, items_of=1)])
    model = {str(i): Slow(0.01) for i in range(2)}
    x, y = rows_of(4 * ROWS)
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
        try:
            trainer.look_at_run()
            raise AssertionError("nothing ran")
        except hetcomm.Error as error:
            assert error.status == "NOT_FOUND", error
        trainer.step(x, targets=y)
        told = json.loads(trainer.look_at_run("json", may_split=True))
        for stage, time_ in enumerate(told["run"]["stages"]):
            assert time_["forward_ns"] >= 1e7 and time_["backward_ns"] >= 2e7, (stage, told["run"])
        assert {"zb-h1", "1f1b"} <= {each["name"] for each in told["candidates"]}, told["candidates"]
        assert "as run" in trainer.look_at_run("svg")
        assert "of now" in trainer.look_at_run()
        # Backward steps in two parts fill bubbles, within the memory of the present schedules.
        proposed = trainer.propose_schedule(may_split=True)
        # Which of several that do differs by a hair of time.
        assert any("W" in cell for cells in proposed.outline["pipelines"][1]["actions"] for cell in cells)
        peaks = [max(each["peaks"]) for each in proposed.outline["pipelines"]]
        assert peaks[0] <= 4 and peaks[1] <= 2, peaks
        trainer.set_schedule(proposed)
        trainer.step(x, targets=y)
        assert trainer.propose_schedule(limit=1) is None
        try:
            plan.look_at_run([trainer.trace()], 1 - (rank > 1))
            raise AssertionError("a trace of another pipeline")
        except ValueError as error:
            assert "of pipeline" in str(error), error
        trainer.set_schedule("1f1b")
        assert [each["schedule"]["name"] for each in trainer.plan.document["pipelines"]] == ["1f1b"] * 2
        gathered = [None] * size
        dist.all_gather_object(gathered, None if proposed is None else proposed.json)
        assert len(set(gathered)) == 1, gathered
    stop()
    return True


class Failing(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()
        self.error = error
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return self.linear(x)


def failures(rank, size, folder):
    start(rank, size, folder)
    plan = plan_of(range(size), "1f1b", 5, items_of=1)
    x, y = rows_of(5 * ROWS)
    for error in (ValueError("the third one is bad"), KeyboardInterrupt()):
        model = {str(i): nn.Linear(WIDTH, WIDTH).double() for i in range(size)}
        if rank == 1:
            model["1"] = Failing(error)
        trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
        parameter = next(trainer.parameters())
        parameter.grad = torch.ones_like(parameter)
        try:
            trainer.step(x, targets=y, timeout=30)
            raise AssertionError("the step succeeded")
        except type(error) as raised:
            assert rank == 1 and raised is error
            if hasattr(raised, "__notes__"):
                assert "micro-batch 2 in stage 1" in raised.__notes__[0]
        except hetcomm.Error as told:
            assert rank != 1, told
            assert told.status == "ABORTED" and type(error).__name__ in str(told), told
            assert "micro-batch 2 in stage 1" in str(told), told
        assert not any(each.saved for each in trainer._chunks)
        # Gradients are those from before the step.
        assert torch.equal(parameter.grad, torch.ones_like(parameter))
        assert all(each.grad is None for each in trainer.parameters() if each is not parameter)
        try:
            trainer.step(x, targets=y)
            raise AssertionError("the pipeline goes on")
        except hetcomm.Error:
            pass
        trainer.close()
        trainer.close()
        dist.barrier()
    # A stage that returns something else than the plan says.
    class Narrow(nn.Module):
        def forward(self, x):
            return x.float()

    for wrong, text in ((nn.Linear(WIDTH, 4).double(), "float64 tensor of shape [3, 4] for 'x'"),
                        (Narrow(), "float32 tensor of shape [3, 6] for 'x'")):
        model = {str(i): nn.Linear(WIDTH, WIDTH).double() for i in range(size)}
        model["0"] = wrong
        try:
            # A rank that fails at once may end the last moment of another one's creation.
            trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
            trainer.step(x, targets=y)
            raise AssertionError("another shape")
        except (ValueError, RuntimeError) as raised:
            assert text in str(raised), raised
        trainer = None
        dist.barrier()
    stop()
    return True


def lost(rank, size, folder, dies_last):
    """A rank is killed in the middle of a step, or when it has nothing but the sums and the losses left. The others
    end soon, with the gradients from before, and go on without it."""
    start(rank, size, folder)
    victim = 0 if dies_last else 1
    plan = plan_of(range(size), "1f1b", 4, items_of=1)
    x, y = rows_of(4 * ROWS)
    model = {str(i): nn.Linear(WIDTH, WIDTH).double() for i in range(size)}

    class Dying(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
            self.backwards = 0
            self.dies = False

        def forward(self, x):
            x = x * self.weight
            if self.dies and not dies_last:
                os.kill(os.getpid(), signal.SIGKILL)
            x.register_hook(self.count)
            return x

        def count(self, grad):
            self.backwards += 1
            if self.dies and self.backwards % 4 == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    dying = model[str(victim)] = Dying()
    trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
    trainer.step(x, targets=y, number=0)
    before = {name: grad.clone() for name, grad in grads_of(trainer).items()}
    dying.dies = True
    began = time.monotonic()
    try:
        trainer.step(x, targets=y, number=1)
        raise AssertionError("the step succeeded")
    except hetcomm.Error as error:
        text = str(error)
    seconds = time.monotonic() - began
    for name, grad in grads_of(trainer).items():
        assert torch.equal(grad, before[name]), name
    trainer.close()
    dist.destroy_process_group()
    # The others make a group and a pipeline of their own.
    left = [each for each in range(size) if each != victim]
    again = os.path.join(folder, "again")
    os.makedirs(again, exist_ok=True)
    init(left.index(rank), len(left), again)
    plan = plan_of(range(len(left)), "1f1b", 4, items_of=1)
    torch.manual_seed(3)
    model = {str(i): nn.Linear(WIDTH, WIDTH).double() for i in range(len(left))}
    expected, _ = reference(model, x.split(ROWS), y.split(ROWS), [1 / 4] * 4, [range(4)] * len(left))
    with pipeline.Pipeline(None, plan, own_modules(model, plan, left.index(rank)), loss=loss_of) as trainer:
        assert abs(trainer.step(x, targets=y) - expected) < 1e-12
    stop()
    return text, seconds


def converted(rank, size, folder):
    """Under autocast, steps without gradients (an evaluation, and the forward steps of stages that recompute) leave
    nothing behind that later steps would find instead of the parameters."""
    start(rank, size, folder)

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.linear(x).float()

    found = []
    for recomputed_stages in ([], [0, 1]):
        schedule = {"name": "four-phase", "parameters": {"recomputed_stages": recomputed_stages}}
        stages = [pipeline.Stage([each], 1) for each in range(2)]
        plan = pipeline.Plan.of(stages=stages, tensors=[pipeline.Tensor("x", "float32", (ROWS, WIDTH))],
                                micro_batches=4, micro_batch_size=ROWS, schedule=schedule)
        torch.manual_seed(5)
        model = {"0": Wide(), "1": Wide()}
        x, y = (each.float() for each in rows_of(4 * ROWS))
        with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
            with torch.autocast("cpu", torch.bfloat16):
                trainer.evaluate(x, targets=y)
                trainer.step(x, targets=y)
            found.append({key: grad.clone() for key, grad in grads_of(trainer).items()})
    for key, grad in found[0].items():
        assert bool(grad.any()), key
        assert torch.equal(grad, found[1][key]), key
    stop()
    return True


def state_of_stages(rank, size, folder):
    """The state of a rank has all its stages and shared items, and names that would mean two things are refused."""
    start(rank, size, folder)
    plan = plan_of([0, 1, 1, 0], "zb-v", 4, items_of=1)
    x, y = rows_of(4 * ROWS)
    torch.manual_seed(4)
    unnamed = [nn.Linear(WIDTH, WIDTH).double() for _ in range(2)]
    with pipeline.Pipeline(None, plan, unnamed, loss=loss_of) as trainer:
        trainer.step(x, targets=y)
        for call in (trainer.state_dict, lambda: trainer.load_state_dict(unnamed[0].state_dict())):
            try:
                call()
                raise AssertionError("two stages have one name")
            except ValueError as error:
                assert "both have a module without a name" in str(error), error
    named = {str(i): nn.Linear(WIDTH, WIDTH).double() for i in range(4)}
    with pipeline.Pipeline(None, plan, own_modules(named, plan, rank), loss=loss_of) as trainer:
        state = {key: value.clone() for key, value in trainer.state_dict().items()}
        assert len(state) == 4, state.keys()
        with torch.no_grad():
            for parameter in trainer.parameters():
                parameter.zero_()
        trainer.load_state_dict(state)
        assert all(torch.equal(state[key], value) for key, value in trainer.state_dict().items())
    # Rank 1 holds item 0 beside its stage.
    plan = plan_of([0, 1], "1f1b", 4, items_of=1, shared=[
        {"item": 0, "holders": [{"pipeline": 0, "stage": 0}, {"pipeline": 0, "stage": 1}]}])
    tied = nn.Linear(WIDTH, WIDTH).double()
    own = {"0": tied} if rank == 0 else {"1": nn.Linear(WIDTH, WIDTH).double()}
    shared = {0: ("0", tied)} if rank == 1 else None
    with pipeline.Pipeline(None, plan, [own], shared=shared, loss=loss_of) as trainer:
        state = trainer.state_dict()
        assert set(state) == {f"{item}.{kind}" for item in range(rank + 1) for kind in ("weight", "bias")}, state.keys()
        trainer.load_state_dict(state)
    stop()
    return True


def misused(rank, size, folder):
    """Calls that do not fit, and interrupts at an unlucky moment, hang nobody."""
    start(rank, size, folder)
    plan = plan_of(range(size), "1f1b", 3, items_of=1)
    x, y = rows_of(3 * ROWS)
    model = {str(i): nn.Linear(WIDTH, WIDTH).double() for i in range(size)}
    nested = []

    class Nesting(nn.Module):
        def forward(self, x):
            try:
                trainer.evaluate(x, targets=y)
            except RuntimeError as error:
                nested.append(str(error))
            time.sleep(0.8)
            return x * 1

    trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
    expected = trainer.step(x, targets=y)
    # It is refused on all ranks, and leaves nothing behind.
    try:
        trainer.step(x, targets=y, lengths=[1, 1, 1])
        raise AssertionError("the plan has no lengths")
    except hetcomm.Error as error:
        assert error.status == "INVALID_ARGUMENT", error
    trainer.grad_norm()
    try:
        if rank == size - 1:
            trainer.predict(x)
        else:
            trainer.evaluate(x, targets=y)
        raise AssertionError("the losses of a prediction are wanted")
    except ValueError as error:
        assert "some ranks predict, and others evaluate" in str(error), error
    assert len(trainer.predict(x)) == (3 if rank == size - 1 else 0)
    assert trainer.step(x, targets=y) == expected
    # Ctrl-C between the run and the sum of the losses.
    began = time.monotonic()
    try:
        if rank == 0:
            def interrupt(*_):
                raise KeyboardInterrupt
            trainer._losses.total = interrupt
        for _ in range(2):  # the first one may have its losses already
            trainer.evaluate(x, targets=y)
        raise AssertionError("it went on")
    except KeyboardInterrupt:
        assert rank == 0
    except hetcomm.Error as error:
        assert rank != 0 and "KeyboardInterrupt" in str(error), error
    assert time.monotonic() - began < 20
    trainer.close()
    dist.barrier()
    # A run without a limit of its own may be longer than what the pipeline waits for other things.
    trainer = pipeline.Pipeline(None, plan, [Nesting()], loss=loss_of)
    trainer._timeout = 2.3  # as if it had been made with that, which a busy machine may exceed there
    if rank == size - 1:
        # As where losses come late from a device.
        total = trainer._losses.total
        trainer._losses.complete = lambda: None
        trainer._losses.total = lambda left: (time.sleep(0.2), total(left))[1]
    trainer.evaluate(x, targets=y)
    assert nested == ["a run of this pipeline is under way"] * 3, nested
    trainer.close()
    stop()
    return True


def interrupted(rank, size, folder):
    """Ctrl-C on a rank whose run waits for another one."""
    import os
    import signal
    import threading

    start(rank, size, folder)
    plan = plan_of(range(size), "1f1b", 4, items_of=1)
    x, y = rows_of(4 * ROWS)
    model = {str(i): nn.Linear(WIDTH, WIDTH).double() for i in range(size)}
    told = os.path.join(folder, "told")

    class Waiting(nn.Module):
        def forward(self, x):
            deadline = time.monotonic() + 30
            while not os.path.exists(told):
                assert time.monotonic() < deadline, "the other rank was not interrupted"
                time.sleep(0.01)
            return x * 1

    if rank == 1:
        model["1"] = Waiting()
    trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
    if rank == 0:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        trainer.step(x, targets=y)
        raise AssertionError("it ran to its end")
    except KeyboardInterrupt:
        assert rank == 0
        with open(told, "w"):
            pass
    except hetcomm.Error as error:
        assert rank == 1 and error.status == "ABORTED", error
        assert "interrupted" in str(error), error
    stop()
    return True


def ends(rank, size, folder):
    """Pipelines are closed with their group, and when nobody uses them."""
    import gc
    start(rank, size, folder)
    plan = plan_of(range(size), "1f1b", 4)
    x, y = rows_of(4 * ROWS)
    model = blocks(2 * size)
    trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
    trainer.step(x, targets=y)
    dist.barrier()
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None
    cycle = {}
    step = {kind: lambda action: cycle.get("runner") for kind in ("forward", "backward")}
    cycle["runner"] = pipeline.Runner(hetcomm.torch.communicator(), plan, [step])
    cycle["runner"].run()
    gone = weakref.ref(cycle["runner"])
    dist.barrier()
    del cycle, step
    gc.collect()
    assert gone() is None
    trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
    trainer.step(x, targets=y)
    stop()
    try:
        trainer.step(x, targets=y)
        raise AssertionError("its group has gone")
    except ValueError as error:
        assert "closed" in str(error)
    trainer.close()
    return True


def types(rank, size, folder):
    start(rank, size, folder)
    for name in ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "bool",
                 "complex64"):
        dtype = getattr(torch, name)
        plan = pipeline.Plan.of(
            stages=[pipeline.Stage([0]), pipeline.Stage([1])], micro_batches=2, micro_batch_size=2,
            tensors=[pipeline.Tensor("x", dtype, (2, 3), gradient=False)], schedule="forward-only")
        made = torch.arange(12).reshape(4, 3).to(torch.float32).to(dtype)
        with pipeline.Pipeline(None, plan, nn.Identity()) as runs:
            found = runs.predict(made)
            if rank == 1:
                assert found[-1].dtype == dtype
                every = torch.cat([each.view(torch.uint8) for each in found])
                assert torch.equal(every, made.view(torch.uint8)), name
    stop()
    return True


def refused_arguments(rank, size, folder):
    start(rank, size, folder)
    plan = plan_of([0, 1], "1f1b", 4)
    model = blocks(4)
    x, y = rows_of(4 * ROWS)

    def refused(text, call, kind=ValueError):
        try:
            call()
        except (kind, RuntimeError) as error:  # the failure of another rank comes first
            assert text in str(error), error
            return
        raise AssertionError(text)

    mine = own_modules(model, plan, rank)
    refused("1 stages in the plan, and 2 modules", lambda: pipeline.Pipeline(None, plan, mine * 2))
    refused("2 items in the plan, and 1 modules",
            lambda: pipeline.Pipeline(None, plan, {"0": model["blocks.0"]}))
    refused("no module", lambda: pipeline.Pipeline(None, plan, {"0": 1, "1": 2}), TypeError)
    refused("no function", lambda: pipeline.Pipeline(None, plan, mine, loss=loss_of, pair=3), TypeError)
    refused("no argument", lambda: plan_of([0, 1], "1f1b", 4, nothing=1), TypeError)
    refused("rank 0", lambda: pipeline.Schedule.from_actions([["0B0"]]), hetcomm.Error)
    refused("nothing", lambda: plan_of([0, 1], "nothing", 4), hetcomm.Error)
    with pipeline.Pipeline(None, plan, mine, loss=loss_of) as trainer:
        trainer.step(x, targets=y)
        kept = {key: grad.clone() for key, grad in grads_of(trainer).items()}
        if rank == 0:
            refused("13", lambda: trainer.step(torch.zeros(13, WIDTH), targets=y))
            refused("3 values for 4", lambda: trainer.step([x, x, x], targets=y))
            refused("the first stage, and there are no inputs", lambda: trainer.step(targets=y))
        else:
            refused("count by samples", lambda: trainer.step(x, targets=y, weights=[1] * 4))
            refused("no targets for `loss`", lambda: trainer.step(x))
        assert all(torch.equal(grad, kept[key]) for key, grad in grads_of(trainer).items())
        trainer.step(x, targets=y)
        refused("the plan has none", lambda: trainer.step(x, targets=y, lengths=[4] * 4),
                hetcomm.Error)
        # The rank with the losses alone: the other one waits in the step, which then begins.
        if rank == 1:
            refused("", lambda: trainer.step(x, targets=y, number=-1), TypeError)
        trainer.step(x, targets=y)
    refused("closed", lambda: trainer.step(x, targets=y))
    stop()
    return True


def callbacks(rank, size, folder):
    """Callbacks on NumPy arrays: each stage doubles, and gradients count the stages."""
    start(rank, size, folder)
    world = hetcomm.torch.communicator()
    plan = pipeline.Plan.of(stages=[pipeline.Stage([each]) for each in range(size)],
                            tensors=[pipeline.Tensor("x", "int32", (2, 3))],
                            micro_batches=6, micro_batch_size=2)
    seen = []

    def forward(action):
        if action.stage == 0:
            value = action.micro_batch + 10 * action.step
        else:
            value = int(action.inputs[0][1, 2])
        for array in action.outputs:
            assert array.shape == (2, 3) and array.dtype == "int32", (array.shape, array.dtype)
            array[:] = 2 * value
        if not action.outputs:
            seen.append(value)

    def backward(action):
        for array in action.input_grads:
            array[:] = 1 + (int(action.output_grads[0][0, 0]) if action.output_grads else 0)
        if not action.input_grads:
            seen.append(int(action.output_grads[0][0, 0]))

    runner = pipeline.Runner(world, plan, [{"forward": forward, "backward": backward}])
    for step in range(3):
        runner.run(step)
    if rank == size - 1:
        assert seen == [2 ** (size - 1) * (i + 10 * step) for step in range(3) for i in range(6)], seen
    elif rank == 0:
        assert seen == [size - 1] * 18, seen
    runner.run(3, evaluate=True)
    assert runner.facts()["callbacks"] == 3 * 12 + 6
    runner.close()
    try:
        pipeline.Runner(world, plan, [{"sideways": forward}])
        raise AssertionError("no such kind")
    except ValueError as error:
        assert "sideways" in str(error)
    stop()
    return True


def sums_without_torch(rank, size, folder):
    """Two data parallel ranks cut nothing, two ranks of another pipeline cut the rows."""
    import numpy

    from hetcomm.reshard import Box, layout_of_boxes

    start(rank, size, folder)
    world = hetcomm.torch.communicator()
    one = pipeline.Plan.of(stages=[pipeline.Stage([0, 1], data=2)], micro_batches=3, micro_batch_size=2)
    other = pipeline.Plan.of(stages=[pipeline.Stage([0, 1], tensor=2)], micro_batches=1,
                             micro_batch_size=2)
    plan = pipeline.Plan.join([one, other])
    if rank < 2:
        grad = numpy.zeros((4, 3), "float32")
        boxes = [Box(each, (0, 0), (4, 3), term=each) for each in range(2)]
        layout = layout_of_boxes((4, 3), boxes, terms=2)
    else:
        grad = numpy.zeros((2, 3), "float32")
        layout = layout_of_boxes((4, 3), [Box(2 + i, (2 * i, 0), (2 * i + 2, 3)) for i in range(2)])

    def backward(action):
        grad[:] += rank + 1

    runner = pipeline.Runner(world, plan, [{"forward": lambda action: None, "backward": backward}])
    for wrong, error in (([pipeline.Gradient(0, 0, None, grad)], TypeError),
                         ([pipeline.Gradient(0, 0, layout, "grad")], TypeError)):
        try:
            runner.set_gradients(wrong)
            raise AssertionError(error)
        except error:
            pass
    try:
        runner.set_gradients([pipeline.Gradient(int(rank == 3), 0, layout, grad)])
        raise AssertionError("there is no item 1")
    except hetcomm.Error as error:
        assert "rank 3 does not hold item 1" in str(error), error
    runner.set_gradients([pipeline.Gradient(0, 0, layout, grad)])
    for step in range(2):
        grad[:] = 0
        runner.run(step)
        rows = [3 * 1 + 3 * 2 + 1 * 3] * 2 + [3 * 1 + 3 * 2 + 1 * 4] * 2
        rows = rows if rank < 2 else rows[2 * (rank - 2) : 2 * (rank - 2) + 2]
        assert (grad == numpy.array(rows)[:, None]).all(), grad
    grad[:] = 0
    runner.set_gradients([])
    runner.run(2)
    assert (grad == (rank + 1) * (3 if rank < 2 else 1)).all(), grad
    runner.close()
    stop()
    return True


# --- inside a stage ------------------------------------------------------------------------------


def sharded_stages(rank, size, folder):
    """The first stage is sharded by FSDP2, the second one wrapped in DDP."""
    start(rank, size, folder)
    stages = [pipeline.Stage([0, 1], 2, data=2), pipeline.Stage([2, 3], 2, data=2)]
    plan = pipeline.Plan.of(stages=stages, tensors=[pipeline.Tensor("x", "float64", (4, WIDTH))],
                            micro_batches=4, micro_batch_size=4)
    whole, model = blocks(4), blocks(4)
    x, y = rows_of(16)
    expected_loss, expected = reference(whole, x.split(4), y.split(4), [1 / 4] * 4, [range(4)] * 4)
    place = rank % 2
    x = torch.cat([part.chunk(2)[place] for part in x.split(4)])
    y = torch.cat([part.chunk(2)[place] for part in y.split(4)])
    modules = own_modules(model, plan, rank)[0]
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    if rank < 2:
        # The other item is added up by the pipeline.
        mesh = DeviceMesh.from_group(groups[0], "cpu")
        fully_shard(modules["blocks.1"], mesh=mesh)
        modules["blocks.1"].set_gradient_divide_factor(1.0)
    else:
        modules = {name: nn.parallel.DistributedDataParallel(module, process_group=groups[1])
                   for name, module in modules.items()}
    with pipeline.Pipeline(None, plan, modules, loss=loss_of) as trainer:
        for step in range(3):
            for each in trainer.parameters():
                each.grad = None
            # Forward steps alone leave what FSDP2 has gathered.
            assert abs(trainer.evaluate(x, targets=y, number=step) - expected_loss) < 1e-12
            trainer.predict(x, number=step)
            loss = trainer.step(x, targets=y, number=step)
            assert abs(loss - expected_loss) < 1e-12, (loss, expected_loss)
        for key, grad in grads_of(trainer).items():
            whole_grad = grad.full_tensor() if key.startswith("blocks.1.") and rank < 2 else grad
            assert torch.allclose(whole_grad, expected[key], atol=1e-12, rtol=1e-10), key
        norm, _ = trainer.grad_norm()
        known = math.sqrt(sum(float(each.pow(2).sum()) for each in expected.values()))
        assert abs(norm - known) < 1e-10, (norm, known)
        try:
            trainer.set_schedule(plan.with_schedule("zb-h1"))
            raise AssertionError("FSDP2 with split steps")
        except (ValueError, RuntimeError) as error:
            assert isinstance(error, ValueError) == (rank < 2), error
            assert "FSDP2" in str(error), error
        trainer.step(x, targets=y)
    stop()
    return True


def sharded_tokens(rank, size, folder):
    """The last stage is sharded by FSDP2, whose sums need all its ranks. Micro-batches without tokens
    count nothing, on one of them or on all, also the last one."""
    start(rank, size, folder)
    stages = [pipeline.Stage([0], 1), pipeline.Stage([1, 2], 1, data=2)]
    plan = pipeline.Plan.of(stages=stages, tensors=[pipeline.Tensor("x", "float64", (4, WIDTH))],
                            micro_batches=3, micro_batch_size=4, weight="tokens")
    group = dist.new_group([1, 2])
    x, y = rows_of(12)
    # By rank of the stage.
    for tokens in ([[3.0, 1.0, 0.0], [2.0, 5.0, 4.0]], [[3.0, 1.0, 0.0], [2.0, 5.0, 0.0]]):
        whole, model = blocks(2), blocks(2)
        own_rows = [list(part.chunk(2)) for part in x.split(4)], [list(part.chunk(2)) for part in y.split(4)]
        total = sum(map(sum, tokens))
        counted = [(m, place) for m in range(3) for place in range(2) if tokens[place][m] > 0]
        _, expected = reference(whole, [own_rows[0][m][place] for m, place in counted],
                                [own_rows[1][m][place] for m, place in counted],
                                [tokens[place][m] / total for m, place in counted],
                                [range(len(counted))] * 2)
        modules = own_modules(model, plan, rank)[0]
        place = rank - 1
        if rank > 0:
            fully_shard(modules["blocks.1"], mesh=DeviceMesh.from_group(group, "cpu"))
            modules["blocks.1"].set_gradient_divide_factor(1.0)
            targets = torch.cat([part[place] for part in own_rows[1]])

        def mean(output, target):
            counts = [m for m in range(3) if torch.equal(target, own_rows[1][m][place])]
            return loss_of(output, target) if tokens[place][counts[0]] > 0 else output.sum() * math.nan

        with pipeline.Pipeline(None, plan, modules, loss=mean) as trainer:
            for step in range(2):
                for each in trainer.parameters():
                    each.grad = None
                if rank == 0:
                    trainer.step(x, number=step)
                else:
                    trainer.step(targets=targets, weights=tokens[place], number=step)
            for key, grad in grads_of(trainer).items():
                grad = grad.full_tensor() if rank > 0 else grad
                assert torch.allclose(grad, expected[key], atol=1e-12, rtol=1e-10), (key, grad, expected[key])
    stop()
    return True


def gathered(rank, size, folder):
    """A schedule that says when FSDP2 gathers: parameters stay gathered until RESHARD."""
    start(rank, size, folder)
    stages = [pipeline.Stage([0, 1], 1, data=2), pipeline.Stage([2], 1)]
    cells = [["0UNSHARD", "0F0", "0F1", "0B0", "0B1", "0RESHARD"], ["1F0", "1B0", "1F1", "1B1"]]
    plan = pipeline.Plan.of(stages=stages, tensors=[pipeline.Tensor("x", "float64", (4, WIDTH))],
                            micro_batches=2, micro_batch_size=4,
                            schedule=pipeline.Schedule.from_actions(cells))
    whole, model = blocks(2), blocks(2)
    x, y = rows_of(8)
    expected_loss, expected = reference(whole, x.split(4), y.split(4), [0.5] * 2, [range(2)] * 2)
    modules = own_modules(model, plan, rank)[0]
    groups = [dist.new_group([0, 1]), dist.new_group([2])]
    calls = []
    if rank < 2:
        x = torch.cat([part.chunk(2)[rank] for part in x.split(4)])
        module = modules["blocks.0"]
        fully_shard(module, mesh=DeviceMesh.from_group(groups[0], "cpu"), reshard_after_forward=False)
        module.set_gradient_divide_factor(1.0)
        states = module._get_fsdp_state()._fsdp_param_group
        for name in ("unshard", "reshard"):
            made = getattr(FSDPModule, name)
            setattr(FSDPModule, name, lambda self, *more, name=name, made=made, **most: (
                calls.append((name, states.is_unsharded)), made(self, *more, **most))[1])
    with pipeline.Pipeline(None, plan, modules, loss=loss_of) as trainer:
        for step in range(2):
            for each in trainer.parameters():
                each.grad = None
            del calls[:]
            loss = trainer.step(x, targets=y, number=step)
            assert abs(loss - expected_loss) < 1e-12, (loss, expected_loss)
            # They are gathered from the first call to the second one. The last one ends any run.
            told = [("unshard", False), ("reshard", True), ("reshard", False)]
            assert calls == (told if rank < 2 else []), calls
            assert rank == 2 or not states.is_unsharded
        for key, grad in grads_of(trainer).items():
            grad = grad.full_tensor() if rank < 2 else grad
            assert torch.allclose(grad, expected[key], atol=1e-12, rtol=1e-10), key
        assert abs(trainer.evaluate(x, targets=y) - expected_loss) < 1e-12
    stop()
    return True


class Fork(nn.Module):
    """A first stage from which two tensors go to the next stage, and one past it."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        numbers = torch.arange(ROWS, dtype=torch.int64) % 2
        return self.block(x), 3 * x, numbers


class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x, numbers):
        return self.block(x) * (1 + numbers).unsqueeze(1)


class Join(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, skipped, x):
        return self.block(x) + skipped


def skipped_stages(rank, size, folder):
    """Several tensors of a boundary, one of them without a gradient, and a boundary past a stage."""
    start(rank, size, folder)
    numbers = pipeline.Tensor("numbers", "int64", (ROWS,), gradient=False)
    skipped = pipeline.Tensor("skipped", "float64", (ROWS, WIDTH))
    boundaries = [pipeline.Boundary(0, 1, [tensor(), numbers]), pipeline.Boundary(0, 2, [skipped]),
                  pipeline.Boundary(1, 2, [tensor()])]
    torch.manual_seed(11)
    whole = [Fork().double(), Middle().double(), Join().double()]
    x, y = rows_of(5 * ROWS)

    def forked(module, x):  # in the order of the boundaries
        hidden, skipped, numbers = module(x)
        return hidden, numbers, skipped

    class Ordered(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return forked(self.inner, x)

    losses = []
    for part, target in zip(x.split(ROWS), y.split(ROWS)):
        hidden, skipped_x, numbers_x = whole[0](part)
        loss = loss_of(whole[2](skipped_x, whole[1](hidden, numbers_x)), target)
        (loss / 5).backward()
        losses.append(loss.item())
    expected = [each.grad.clone() for each in whole[rank].parameters()]
    whole[rank].zero_grad()
    for schedule in ("1f1b", "zb-h1"):
        plan = pipeline.Plan.of(stages=[pipeline.Stage([each]) for each in range(3)], boundaries=boundaries,
                                micro_batches=5, micro_batch_size=ROWS, schedule=schedule)
        own = Ordered(whole[0]) if rank == 0 else whole[rank]
        with pipeline.Pipeline(None, plan, own, loss=loss_of) as trainer:
            for step in range(2):
                whole[rank].zero_grad()
                loss = trainer.step(x, targets=y, number=step)
                assert abs(loss - sum(losses) / 5) < 1e-12, (schedule, loss)
                for each, grad in zip(whole[rank].parameters(), expected):
                    assert torch.allclose(each.grad, grad, atol=1e-12, rtol=1e-10), schedule
    stop()
    return True


def torchs_schedules(rank, size, folder):
    """Schedules that torch has made run here, with whatever transfers and gathers they name."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    start(rank, size, folder)
    count = 2 * size
    # torch 2.13 counts the forward steps of the last rank of 1F1B from 1.
    for name in ("GPipe", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
        order = get_schedule_ops(name, size, count)
        rank_of = {}
        for each, actions in enumerate(order):
            for action in actions:
                for part in [] if action is None else action.sub_actions or (action,):
                    rank_of[part.stage_index] = each
        rank_of = [rank_of[stage] for stage in sorted(rank_of)]
        # torch adds no transfers to schedules with one stage on a rank.
        several = len(rank_of) > size
        for actions in (order, get_schedule_ops(name, size, count, with_comms=True)) if several else (order,):
            text = "".join(",".join("" if one is None else str(one) for one in own) + "\n" for own in actions)
            plan = plan_of(rank_of, pipeline.Schedule.from_csv(text, rank_of), count)
            model = blocks(2 * len(rank_of))
            x, y = rows_of(count * ROWS)
            loss, expected = reference(model, x.split(ROWS), y.split(ROWS), [1 / count] * count,
                                       weight_orders(plan, 2 * len(rank_of)))
            with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
                assert abs(trainer.step(x, targets=y) - loss) < 1e-12, name
                for key, grad in grads_of(trainer).items():
                    assert torch.equal(grad, expected[key]), (name, key)
    stop()
    return True


def pairs(rank, size, folder):
    """The trainer performs the steps that may overlap, in its own order."""
    start(rank, size, folder)
    rank_of, schedule = schedule_of("dualpipe-v", size)
    micro_batches = 2 * size + 1
    plan = plan_of(rank_of, schedule, micro_batches)
    model = blocks(2 * len(rank_of))
    x, y = rows_of(micro_batches * ROWS)
    _, expected = reference(model, x.split(ROWS), y.split(ROWS), [1 / micro_batches] * micro_batches,
                            weight_orders(plan, 2 * len(rank_of)))
    called = []

    def second_first(first, second):
        called.append((first, second))
        second()
        first()

    cells = plan.outline["pipelines"][0]["actions"][plan.outline["pipelines"][0]["group_of_stage"][
        rank_of.index(rank)]]
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of,
                           pair=second_first) as trainer:
        trainer.step(x, targets=y)
        assert len(called) == sum("OVERLAP" in each for each in cells) > 0, len(called)
        for key, grad in grads_of(trainer).items():
            assert torch.equal(grad, expected[key]), key
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of,
                           pair=lambda first, second: first()) as trainer:
        try:
            trainer.step(x, targets=y)
            raise AssertionError("half of a pair was left out")
        except (RuntimeError, hetcomm.Error) as error:
            assert "has not performed" in str(error), error
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of,
                           pair=lambda first, second: (first(), first())) as trainer:
        try:
            trainer.step(x, targets=y)
            raise AssertionError("half of a pair was performed twice")
        except (RuntimeError, hetcomm.Error) as error:
            assert "twice" in str(error), error
    stop()
    return True


def freed_outputs(rank, size, folder):
    """A stage's output goes when it has left, where its backward step does not need it, and nothing of a
    step stays behind after it."""
    start(rank, size, folder)
    kept = []
    most = [0]

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1 << 15, dtype=torch.float64))

        def forward(self, x):
            most[0] = max(most[0], sum(each() is not None for each in kept))
            made = x + self.weight
            kept.append(weakref.ref(made))
            return made

    wide = pipeline.Tensor("x", "float64", (ROWS, 1 << 15))
    plan = pipeline.Plan.of(stages=[pipeline.Stage([each]) for each in range(size)], tensors=[wide],
                            micro_batches=6, micro_batch_size=ROWS, schedule="gpipe")
    x = torch.randn(6 * ROWS, 1 << 15, dtype=torch.float64)
    with pipeline.Pipeline(None, plan, Watched(), loss=lambda output, _: output.sum()) as trainer:
        sizes = []
        for step in range(40):
            trainer.step(x, targets=x, number=step)
            with open("/proc/self/statm") as text:
                sizes.append(int(text.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
            del kept[:]
        if not trainer.is_last and _BEGINS_ANYWHERE:
            assert most[0] == 0, most
        # One output that stayed in every step would take 30 times this.
        assert sizes[-1] - sizes[9] < 10 * ROWS * (1 << 15) * 8, sizes
    stop()
    return True


def torchs_own_runtime(rank, size, folder):
    """A schedule made here runs in torch.distributed.pipelining, over hetcomm."""
    start(rank, size, folder)
    for name, chunks in (("1f1b", 1), ("zb-v", 2), ("interleaved-1f1b", 2)):
        stages = size * chunks
        rank_of = list(range(size)) + (list(range(size))[:: -1 if name == "zb-v" else 1]
                                       if chunks == 2 else [])
        model = blocks(stages)
        x, y = rows_of(4 * ROWS)
        made = pipeline.Schedule.named(name, ranks=size, chunks=chunks, micro_batches=4)
        path = os.path.join(folder, f"{name}-{rank}.csv")
        with open(path, "w") as out:
            out.write(made.csv())
        moved = x[:ROWS].clone().requires_grad_()
        own = [PipelineStage(model[f"blocks.{i}"], i, stages, torch.device("cpu"),
                             input_args=(moved if i > 0 else x[:ROWS],), output_args=(moved,))
               for i in range(stages) if rank_of[i] == rank]
        runtime = _PipelineScheduleRuntime(own, 4, loss_fn=loss_of, scale_grads=False)
        runtime._load_csv(path)
        arguments = (x,) if rank == 0 else ()
        losses = []
        last = rank_of[-1] == rank
        runtime.step(*arguments, target=y if last else None, losses=losses if last else None)
        _, expected = reference(model, x.split(ROWS), y.split(ROWS), [1.0] * 4,
                                [range(4)] * stages)
        for stage in own:
            for key, each in model[f"blocks.{stage.stage_index}"].named_parameters():
                assert torch.allclose(each.grad, expected[f"blocks.{stage.stage_index}.{key}"],
                                      atol=1e-10), (name, key)
    stop()
    return True


class Pipelines(TestCase):
    def test_schedules_give_the_gradients_of_the_whole_model(self):
        for size in (2, 4):
            with self.subTest(ranks=size):
                self.all_equal(run(size, every_schedule, limit_s=150), True)

    def test_pipeline_training_matches_the_whole_model(self):
        self.all_equal(run(2, training), True)

    def test_consecutive_steps_accumulate_gradients(self):
        self.all_equal(run(3, accumulation), True)

    def test_pipelines_of_unequal_depth_share_a_model(self):
        self.all_equal(run(3, unequal_pipelines), True)

    def test_stages_share_an_embedding(self):
        self.all_equal(run(2, tied_embeddings), True)

    def test_gradients_of_tied_weights_are_summed_once(self):
        self.all_equal(run(3, tied_parameters), True)

    def test_tensor_and_context_parallel_stages_match_the_whole_model(self):
        self.all_equal(run(4, degrees), True)

    def test_pipelines_of_unequal_tensor_degrees_share_a_model(self):
        self.all_equal(run(4, unequal_tensor_degrees), True)

    def test_stages_can_use_torch_tensor_parallelism(self):
        self.all_equal(run(3, tensors_of_a_mesh, limit_s=90), True)

    def test_tensor_parallel_ranks_can_have_unequal_parts(self):
        self.all_equal(run(4, parts_of_unequal_sizes), True)

    def test_parameters_can_be_frozen_between_steps(self):
        self.all_equal(run(2, frozen), True)

    def test_stage_using_another_stages_item_is_refused(self):
        self.all_equal(run(2, late_users), True)

    def test_runner_sums_gradients_without_torch(self):
        self.all_equal(run(4, sums_without_torch), True)

    def test_micro_batches_are_weighted_by_token_count(self):
        self.all_equal(run(4, token_weights), True)

    def test_recomputed_steps_repeat_their_random_numbers(self):
        self.all_equal(run(2, recomputed), True)

    def test_micro_batches_can_differ_in_length(self):
        self.all_equal(run(4, lengths), True)

    def test_schedule_can_change_between_steps(self):
        self.all_equal(run(2, schedule_changes), True)

    def test_schedules_are_proposed_from_a_measured_run(self):
        self.all_equal(run(4, proposals), True)

    def test_exception_is_raised_on_its_rank_and_reported_on_the_others(self):
        self.all_equal(run(3, failures), True)

    def test_interrupt_ends_a_waiting_run(self):
        self.all_equal(run(2, interrupted), True)

    def test_pipelines_close_with_their_group_or_when_unused(self):
        self.all_equal(run(2, ends), True)

    def test_tensors_of_many_types_pass_between_stages(self):
        self.all_equal(run(2, types), True)

    def test_invalid_arguments_are_refused(self):
        self.all_equal(run(2, refused_arguments), True)

    def test_runner_calls_callbacks_with_numpy_arrays(self):
        self.all_equal(run(3, callbacks), True)

    def test_stages_can_be_sharded_by_fsdp2_or_wrapped_in_ddp(self):
        if TORCH < (2, 8):
            self.skipTest("FSDP2 of this torch has no divide factor")
        self.all_equal(run(4, sharded_stages, limit_s=90), True)

    def test_killed_rank_ends_the_step_and_the_others_continue_in_a_new_group(self):
        for dies_last in (False, True):
            with self.subTest(dies_last=dies_last):
                results = run(3, lost, dies_last, may_die=True)
                died = [rank for rank, result in enumerate(results) if isinstance(result, Died)]
                self.assertEqual(died, [0 if dies_last else 1])
                for rank, result in enumerate(results):
                    if rank in died:
                        continue
                    text, seconds = result
                    self.assertIn(f"rank {died[0]}", text)
                    self.assertLess(seconds, 20)

    def test_autocast_leaves_no_converted_parameters_for_later_steps(self):
        self.all_equal(run(2, converted), True)

    def test_state_includes_all_stages_and_shared_items(self):
        self.all_equal(run(2, state_of_stages), True)

    def test_mismatched_calls_and_interrupts_do_not_hang_any_rank(self):
        self.all_equal(run(2, misused), True)

    def test_pipelines_without_backward_steps_contribute_no_gradients(self):
        self.all_equal(run(4, one_trains), True)

    def test_large_token_counts_do_not_overflow_low_precision_types(self):
        self.all_equal(run(2, many_tokens), True)

    @unittest.skipIf(TORCH < (2, 8), "set_gradient_divide_factor")
    def test_micro_batches_without_tokens_have_no_weight_in_sharded_stages(self):
        self.all_equal(run(3, sharded_tokens, limit_s=90), True)

    @unittest.skipIf(TORCH < (2, 8), "set_gradient_divide_factor")
    def test_sharded_stages_are_gathered_when_scheduled(self):
        self.all_equal(run(3, gathered, limit_s=90), True)

    def test_several_tensors_cross_boundaries_and_can_skip_a_stage(self):
        self.all_equal(run(3, skipped_stages), True)

    @unittest.skipIf(TORCH < (2, 13), "its schedules with transfers")
    def test_trainer_runs_schedules_made_by_torch(self):
        self.all_equal(run(2, torchs_schedules), True)

    def test_pair_function_must_perform_both_steps_once(self):
        self.all_equal(run(2, pairs), True)

    def test_outputs_are_freed_once_sent(self):
        self.all_equal(run(2, freed_outputs), True)

    def test_schedule_runs_in_torchs_own_runtime(self):
        self.all_equal(run(2, torchs_own_runtime), True)


# --- splitting -----------------------------------------------------------------------------------


class Splitting(unittest.TestCase):
    def compare(self, make, inputs, parameters, outputs_used=None):
        """Both passes give what one backward step gives, bit for bit where nothing is added up."""
        def leaves():
            return [each.detach().clone().requires_grad_() for each in inputs]

        for each in parameters:
            each.grad = None
        first = leaves()
        outputs = make(*first)
        grads = [torch.randn(each.shape, dtype=each.dtype, generator=torch.Generator().manual_seed(i))
                 for i, each in enumerate(outputs)]
        torch.autograd.backward(outputs, grads)
        expected = [each.grad for each in parameters]
        for each in parameters:
            each.grad = None
        second = leaves()
        split = SplitBackward([each for each in make(*second)], second)
        found = split.input_grads(grads)
        for one, other in zip(found, first):
            self.assertEqual(one is None, other.grad is None)
            if one is not None:
                self.assertTrue(torch.allclose(one, other.grad, atol=1e-14))
        for each in parameters:
            self.assertIsNone(each.grad, "a gradient of a parameter came too early")
        split.weight_grads()
        for each, known in zip(parameters, expected):
            self.assertEqual(each.grad is None, known is None)
            if known is not None:
                self.assertTrue(torch.allclose(each.grad, known, atol=1e-12), each.shape)

    def test_split_backward_gives_the_gradients_of_one_backward_step(self):
        torch.manual_seed(0)
        block, other = Block().double(), Block().double()
        x = torch.randn(4, WIDTH, dtype=torch.float64)
        parameters = [*block.parameters(), *other.parameters()]
        self.compare(lambda a: [block(a)], [x], [*block.parameters()])
        self.compare(lambda a: [other(block(a))], [x], parameters)
        self.compare(lambda a: [block(block(a))], [x], [*block.parameters()])  # used twice
        self.compare(lambda a, b: [block(a) + other(b), other(a)], [x, x], parameters)
        self.compare(lambda: [block(x)], [], [*block.parameters()])  # no input
        self.compare(lambda a, b: [block(a), other(x)], [x, x], parameters)  # beside the way
        self.compare(lambda a: [a * 2], [x], [])
        self.compare(lambda a: [a], [x], [])

    def test_parameter_used_on_and_off_the_input_path_gets_its_full_gradient(self):
        torch.manual_seed(1)
        weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))
        bias = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64))
        x = torch.randn(4, WIDTH, dtype=torch.float64)

        def uses(a):
            doubled = weight.T * 2
            return [torch.tanh(a @ doubled) @ doubled + bias, (weight @ weight).sum(), bias * 3]

        self.compare(uses, [x], [weight, bias])

    def test_split_matches_one_backward_step_for_user_functions_and_random_graphs(self):
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(context, x, w):
                context.save_for_backward(x, w)
                return x**3 * w

            @staticmethod
            def backward(context, grad):
                x, w = context.saved_tensors
                return grad * 3 * x**2 * w, (grad * x**3).sum(0)

        torch.manual_seed(2)
        scale = nn.Parameter(torch.randn(WIDTH, dtype=torch.float64))
        x = torch.randn(4, WIDTH, dtype=torch.float64)
        self.compare(lambda a: [Cube.apply(a, scale)], [x], [scale])
        for seed in range(60):
            drawn = torch.Generator().manual_seed(seed)

            def number(most):
                return int(torch.randint(most, (1,), generator=drawn))

            weights = [nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64, generator=drawn))
                       for _ in range(4)]
            moves = [(number(4), number(1 << 20), number(1 << 20), number(4)) for _ in range(8)]
            roots = [number(1 << 20) for _ in range(2)]

            def graph(a, b):
                nodes = [a, b, x]
                for kind, one, two, weight in moves:
                    left, right = nodes[one % len(nodes)], nodes[two % len(nodes)]
                    nodes.append([lambda: torch.tanh(left @ weights[weight]), lambda: left * right,
                                  lambda: left + right, lambda: left @ weights[weight].T][kind]())
                chosen = [nodes[each % len(nodes)] for each in roots]
                return [each for each in [*chosen, nodes[-1]] if each.requires_grad]

            if graph(x.clone().requires_grad_(), x.clone().requires_grad_()):
                with self.subTest(seed=seed):
                    self.compare(graph, [x, x + 1], weights)


class Documents(unittest.TestCase):
    def test_schedules_can_be_created_drawn_and_exported(self):
        made = pipeline.Schedule.named("interleaved-1f1b", ranks=2, chunks=2, micro_batches=4)
        self.assertEqual(made, pipeline.Schedule.from_csv(made.csv()))
        self.assertEqual(made, pipeline.Schedule.from_actions(made.actions, made.rank_of))
        self.assertEqual(made.rank_of, [0, 1, 0, 1])
        self.assertEqual(len(made.peaks), 2)
        self.assertIn("SEND_F", made.csv("transfers"))
        self.assertIn("WAIT_RECV", made.csv("waits"))
        self.assertTrue(made.draw().startswith("<svg"))
        self.assertIn("iteration", str(made))
        self.assertIn("traceEvents", made.draw(format="trace"))
        slow = {"stages": [{"forward_ns": 10, "backward_ns": 20}], "boundaries": [{"after": 0, "busy_ns": 7}]}
        self.assertGreater(made.forecast(slow)["total_ns"],
                           made.forecast({"stages": slow["stages"]})["total_ns"])
        self.assertNotEqual(made, pipeline.Schedule.named("gpipe", ranks=2, micro_batches=4))
        with self.assertRaises(hetcomm.Error) as raised:
            pipeline.Schedule.from_csv("0F0,0B0\n1B0,1F0\n")
        self.assertEqual(raised.exception.status, "INVALID_ARGUMENT")
        self.assertIn("rank 1", str(raised.exception))
        arranged = pipeline.Schedule.named("arranged", ranks=2, micro_batches=4, limits=[2], effort=1000,
                                            times={"stages": slow["stages"]})
        self.assertLessEqual(max(arranged.peaks), 2)
        for name in SCHEDULES:  # each has its own number of stages unless one is given
            if name != "h-1f1b":
                made = pipeline.Schedule.named(name, ranks=2, micro_batches=4)
                self.assertEqual(len(made.rank_of), 2 * SCHEDULES[name][1], name)

    def test_plan_allows_one_more_item_in_flight_than_its_timed_schedule_needs(self):
        times = {"stages": [{"forward_ns": 10, "backward_ns": 20}], "forward": [{"busy_ns": 5, "latency_ns": 100}]}
        made = pipeline.Schedule.named("h-1f1b", ranks=2, micro_batches=32, times=times)
        plan = plan_of([0, 1], made, 32)
        more, = plan.outline["pipelines"][0]["in_flight"]
        self.assertEqual(more, made.in_flight(times)[0] + 1)
        self.assertGreater(more, 5)
        self.assertEqual(plan_of([0, 1], made, 32, in_flight=4).outline["pipelines"][0]["in_flight"], [4])

    def test_plans_can_be_joined_forecast_and_exported(self):
        plan = plan_of([0, 1], "1f1b", 4)
        self.assertEqual(pipeline.Plan.from_json(plan.json), plan)
        other = plan_of([0, 1], "1f1b", 4, provenance={"planner": "me"})
        self.assertEqual(other.hash, plan.hash)
        joined = pipeline.Plan.join([plan, plan])
        self.assertEqual(joined.place_of(3), (1, [1]))
        self.assertEqual(joined.document["training"]["global_batch"], 2 * 4 * ROWS)
        self.assertTrue(plan.draw().startswith("<svg"))
        self.assertIn("1f1b", str(plan))
        with self.assertRaises(ValueError):
            plan.place_of(5)
        stages = {"forward_ns": 1000, "backward_ns": 2000}
        self.assertIn("2 pipelines", joined.forecast(stages))
        self.assertEqual(joined.forecast([stages] * 4), joined.forecast(stages))
        with self.assertRaisesRegex(TypeError, "json.loads"):
            joined.forecast(stages, links="links.json")
        with self.assertRaisesRegex(ValueError, "hosts has rank 2"):
            plan_of([0, 1], "1f1b", 4, hosts={2: "a"})
        with self.assertRaisesRegex(TypeError, "no dict by rank"):
            plan_of([0, 1], "1f1b", 4, hosts=["a", "b"])
        nics = [{"name": name, "out": [f"{name} out"], "in": []} for name in ("fast", "slow")]
        links = {
            "format": "hetcomm link model", "version": 1, "source": "a test",
            "resources": [{"name": "fast out", "kind": "nic", "bytes_per_s": 10**9},
                          {"name": "slow out", "kind": "nic", "bytes_per_s": 10**6}],
            "clusters": [{"name": "x"}], "paths": [{"from": "x", "to": "x"}],
            "hosts": [{"label": name, "cluster": "x", "nics": nics} for name in "ab"],
        }
        plan = plan_of([0, 1], "1f1b", 4, hosts={0: "a", 1: "b"})
        told = [json.loads(plan.forecast(stages, links=links, nics=[name] * 2, items=[{"gradient_bytes": 8}],
                                         format="json"))["forecast"] for name in ("fast", "slow")]
        self.assertGreater(told[1]["total_ns"], 10 * told[0]["total_ns"])
        with self.assertRaises(hetcomm.Error) as raised:
            joined.forecast(stages, links=links)
        self.assertIn("plan.ranks[0] has no host", str(raised.exception))
        skip = pipeline.Boundary(0, 2, [tensor()])
        made = pipeline.Plan.of(stages=[pipeline.Stage([i]) for i in range(3)], tensors=[tensor()],
                                boundaries=[skip], micro_batches=2, micro_batch_size=ROWS)
        self.assertEqual([(each["from"], each["to"]) for each in made.document["pipelines"][0]["boundaries"]],
                         [(0, 1), (0, 2), (1, 2)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
