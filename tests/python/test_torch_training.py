"""Training above the process group: torch's own parallelism, on hetcomm and on Gloo.

Proves: data, sharded, tensor and pipeline parallel training, distributed checkpoints, objects,
device meshes, subgroups and functional collectives give with hetcomm what they give with Gloo. Both
live side by side in one job: hetcomm is the default group, Gloo a second one over the same ranks.
Where torch makes the groups of a mesh for the default backend only, each has its own job.
Models and data are whole numbers and steps powers of two, so that sums are exact and results are
compared bit by bit; where a method rounds by itself (Adam, PowerSGD, norms, averages of bfloat16)
they are compared within its rounding.

Left out, as torch 2.13 cannot do it with Gloo either: batched_powerSGD_hook (an assertion of its
own fails), bf16_compress_hook by its name (DDP wants CUDA), DDP overlapped with
ZeroRedundancyOptimizer, symmetric memory.
"""

import inspect
import io
import os
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor)
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import ranks

WIDTH = 8
STEP = 1 / 8
# Else the groups of a mesh are of the default group's backend.
OVERRIDES = "backend_override" in inspect.signature(init_device_mesh).parameters


class World:
    """One of the two backends, over all ranks."""

    def __init__(self, rank, size, folder, backend, group):
        self.rank, self.size, self.backend, self.group = rank, size, backend, group
        self.device = ranks.DEVICE if backend == "hetcomm" else "cpu"
        self.folder = os.path.join(folder, backend)

    def mesh(self, shape, names):
        options = {"backend_override": {name: self.backend for name in names}} if OVERRIDES else {}
        return init_device_mesh(self.device, shape, mesh_dim_names=names, **options)


def whole(*shape, seed):
    """Small whole numbers, the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-2, 3, shape, generator=generator, device="cpu").float()
    return values.to(torch.get_default_device())


def whole_parameters(model):
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(whole(*parameter.shape, seed=seed))
    return model


def make_model():
    return whole_parameters(nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH)))


def batch(rank, step):
    return whole(4, WIDTH, seed=1000 + 10 * step + rank)


def loss_of(output, step=0):
    return (output * whole(*output.shape, seed=2000 + step)).sum()


def train(world, model, optimizer, steps=2, before_step=None):
    """Results of all steps."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(batch(world.rank, step)), step)
        loss.backward()
        if before_step is not None:
            before_step(step)
        optimizer.step()
        losses.append(loss.detach())
    return losses


def weights(model):
    """Whole tensors, also of parameters that are sharded."""
    def of(tensor):
        return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()
    return {name: of(parameter) for name, parameter in model.named_parameters()}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=STEP)


# --- data parallel -------------------------------------------------------------------------------


def ddp(world):
    found = {}
    for name, options in {
        "plain": {},
        "static graph": {"static_graph": True},
        "views of buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": 1e-4},
        "unused parameters": {"find_unused_parameters": True},
    }.items():
        model = DistributedDataParallel(make_model(), process_group=world.group, **options)
        found[name] = train(world, model, sgd(model)), weights(model)
    model = DistributedDataParallel(make_model(), process_group=world.group)
    optimizer = sgd(model)
    with model.no_sync():
        loss_of(model(batch(world.rank, 0))).backward()
    train(world, model, optimizer, steps=1)
    found["accumulated"] = weights(model)
    return found


def ddp_sparse(world):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20, WIDTH, sparse=True)
            self.linear = nn.Linear(WIDTH, 2)

        def forward(self, words):
            return self.linear(self.table(words))

    model = DistributedDataParallel(whole_parameters(Words()), process_group=world.group)
    optimizer = sgd(model)
    for step in range(2):
        optimizer.zero_grad()
        words = torch.tensor([world.rank, step, 7, 7, 10 + world.rank])
        loss_of(model(words), step).backward()
        assert model.module.table.weight.grad.is_sparse
        optimizer.step()
    return weights(model)


def ddp_hooks(world):
    found = {}

    # DDP knows torch's own one by its name and takes it with CUDA only.
    def bfloat16_hook(group, bucket):
        return default_hooks.bf16_compress_hook(group, bucket)

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook, bfloat16_hook):
        model = DistributedDataParallel(make_model(), process_group=world.group)
        model.register_comm_hook(world.group, hook)
        found[hook.__name__] = train(world, model, sgd(model), steps=1), weights(model)
    return found


def ddp_power_sgd(world):
    found = {}
    for name, hook in {
        "PowerSGD": powerSGD_hook.powerSGD_hook,
        "fp16": default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    }.items():
        model = DistributedDataParallel(make_model(), process_group=world.group)
        state = powerSGD_hook.PowerSGDState(world.group, matrix_approximation_rank=2,
                                            start_powerSGD_iter=2, min_compression_rate=1)
        model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        found[name] = train(world, model, optimizer, steps=4), weights(model)
    return found


def ddp_join(world):
    """Rank r has r + 1 batches."""
    model = DistributedDataParallel(make_model(), process_group=world.group)
    optimizer = sgd(model)
    done = 0
    with model.join(divide_by_initial_world_size=False):
        for step in range(world.rank + 1):
            optimizer.zero_grad()
            loss_of(model(batch(world.rank, step)), step).backward()
            optimizer.step()
            done += 1
    assert done == world.rank + 1
    return weights(model)


def zero(world):
    found = {}
    for name, kind, options in (("SGD", torch.optim.SGD, {"lr": STEP, "momentum": 0.5}),
                                ("Adam", torch.optim.Adam, {"lr": 1e-3})):
        for views in (False, True):
            model = DistributedDataParallel(make_model(), process_group=world.group)
            optimizer = ZeroRedundancyOptimizer(
                model.parameters(), kind, process_group=world.group,
                parameters_as_bucket_view=views, **options)
            losses = train(world, model, optimizer)
            optimizer.consolidate_state_dict(to=0)
            state = optimizer.state_dict()["state"] if world.rank == 0 else None
            found[name, views] = losses, weights(model), state
    return found


def zero_join(world):
    """DDP and the optimizer join together."""
    model = DistributedDataParallel(make_model(), process_group=world.group)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD,
                                        process_group=world.group, lr=STEP)
    with Join([model, optimizer]):
        for step in range(1 + world.rank % 2):
            optimizer.zero_grad()
            loss_of(model(batch(world.rank, step)), step).backward()
            optimizer.step()
    return weights(model)


# --- sharded -------------------------------------------------------------------------------------


def shard(model, mesh, **options):
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp(world):
    found = {}
    for name, mesh in (("sharded", world.mesh((world.size,), ("shard",))),
                       ("hybrid", world.mesh((2, world.size // 2), ("copies", "shard")))):
        for reshard in (True, False):
            model = shard(make_model(), mesh, reshard_after_forward=reshard)
            losses = train(world, model, sgd(model))
            assert isinstance(model[0].weight, DTensor)
            found[name, reshard] = losses, weights(model)
    return found


def fsdp_mixed(world):
    found = {}
    mesh = world.mesh((world.size,), ("shard",))
    for reduced in (torch.float32, torch.bfloat16):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
        model = shard(make_model(), mesh, mp_policy=policy)
        found[reduced] = train(world, model, sgd(model), steps=1), weights(model)
    return found


def fsdp_clipped(world):
    mesh = world.mesh((world.size,), ("shard",))
    model = shard(make_model(), mesh)
    norms = []
    train(world, model, torch.optim.AdamW(model.parameters(), lr=1e-3), before_step=lambda _:
          norms.append(clip_grad_norm_(model.parameters(), 1.0).full_tensor()))
    return norms, weights(model)


def fsdp_state(world):
    """A whole state from one rank into shards, trained, and back."""
    model = shard(make_model(), world.mesh((world.size,), ("shard",)))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    train(world, model, sgd(model), steps=1)
    saved = get_model_state_dict(model, options=options)
    assert bool(saved) == (world.rank == 0)
    other = shard(make_model(), world.mesh((2, world.size // 2), ("copies", "shard")))
    set_model_state_dict(other, saved, options=StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True))
    loaded = weights(other)
    same(loaded, weights(model))
    return loaded, train(world, other, sgd(other), steps=1), weights(other)


# --- tensors and tensor parallel -----------------------------------------------------------------


def dtensors(world):
    line = world.mesh((world.size,), ("x",))
    plane = world.mesh((2, world.size // 2), ("y", "x"))
    left, right = whole(12, 9, seed=1), whole(9, 7, seed=2)
    found = {"local": left @ right}
    # Rows and columns do not divide by the number of ranks.
    for a in (Shard(0), Shard(1), Replicate()):
        for b in (Shard(0), Shard(1), Replicate()):
            product = distribute_tensor(left, line, [a]) @ distribute_tensor(right, line, [b])
            found[str((a, b))] = product.full_tensor()
            same(found[str((a, b))], found["local"])
    turned = distribute_tensor(left, line, [Shard(0)]).redistribute(placements=[Shard(1)])
    found["turned"] = turned.to_local(), turned.full_tensor()
    partial = DTensor.from_local(whole(8, 8, seed=world.rank), line, [Partial()])
    found["partial"] = (partial.redistribute(placements=[Shard(0)]).to_local(),
                        partial.redistribute(placements=[Replicate()]).to_local())
    for operator in ("max", "min", "avg"):
        partial = DTensor.from_local(whole(8, 8, seed=world.rank), line, [Partial(operator)])
        found[operator] = partial.full_tensor()
    split = distribute_tensor(left, plane, [Shard(0), Shard(1)])
    found["plane"] = split.to_local(), split.sum(0).full_tensor(), split.full_tensor()
    linear = distribute_module(whole_parameters(nn.Linear(9, 9)), line)
    found["module"] = linear(distribute_tensor(left, line, [Shard(0)])).full_tensor()
    return found


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 16)
        self.down = nn.Linear(16, WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


def tensor_parallel(world):
    found = {}
    mesh = world.mesh((world.size,), ("tensor",))
    model = parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    loss = loss_of(model(batch(0, 0)))
    loss.backward()
    grads = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    alone = make_model()
    loss_of(alone(batch(0, 0))).backward()
    same(grads, {name: p.grad for name, p in alone.named_parameters()})
    found["columns and rows"] = loss.detach(), grads

    plane = world.mesh((2, world.size // 2), ("data", "tensor"))
    model = parallelize_module(make_model(), plane["tensor"],
                               {"0": ColwiseParallel(), "2": RowwiseParallel()})
    model = shard(model, plane["data"])
    optimizer = sgd(model)
    row = world.rank // (world.size // 2)
    loss_of(model(batch(row, 0))).backward()
    optimizer.step()
    found["sharded as well"] = weights(model)
    return found


def sequence_parallel(world):
    mesh = world.mesh((world.size,), ("tensor",))
    model = parallelize_module(whole_parameters(Block()), mesh, {
        "norm": SequenceParallel(sequence_dim=0),
        "up": PrepareModuleInput(input_layouts=[Shard(0)], desired_input_layouts=[Replicate()]),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    })
    parallelize_module(model.up, mesh, ColwiseParallel())
    own = whole(8, WIDTH, seed=3).chunk(world.size)[world.rank]
    output = model(own)
    loss_of(output).backward()
    return output.detach(), {n: p.grad.full_tensor() for n, p in model.named_parameters()}


# --- pipelines -----------------------------------------------------------------------------------

MICRO_BATCHES = 8


def layer_at(place):
    """A permutation with signs: whole numbers stay small through all layers."""
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(WIDTH).roll(place + 1, 0) * (-1) ** place)
    return layer


def pipeline(world, schedule, stages_per_rank, v_shaped):
    """Losses, outputs and gradients of this rank; every stage is one layer."""
    count = world.size * stages_per_rank
    places = [world.rank + i * world.size for i in range(stages_per_rank)]
    if v_shaped:
        places[1] = count - 1 - world.rank
    layers = {place: layer_at(place) for place in places}
    stages = [pipelining.PipelineStage(layers[place], place, count, torch.device(world.device),
                                       group=world.group) for place in places]
    of_many = issubclass(schedule, pipelining.schedules.PipelineScheduleMulti)
    run = schedule(stages if of_many else stages[0], MICRO_BATCHES,
                   loss_fn=lambda output, target: (output * target).sum())
    alone = nn.Sequential(*map(layer_at, range(count)))
    found = []
    for step in range(2):
        rows = whole(MICRO_BATCHES * 2, WIDTH, seed=step)
        target = whole(MICRO_BATCHES * 2, WIDTH, seed=100 + step)
        (alone(rows) * target).sum().backward()
        for layer in alone:
            layer.weight.grad /= MICRO_BATCHES  # as a schedule does at each step's end
        losses = []
        inputs = [rows] if 0 in places else []
        ends = {"target": target, "losses": losses} if count - 1 in places else {}
        output = run.step(*inputs, **ends)
        found.append((losses, output.detach() if ends else None))
    grads = {place: layer.weight.grad for place, layer in layers.items()}
    same(grads, {place: alone[place].weight.grad for place in places})
    return found, grads


def pipelines(world):
    schedules = pipelining.schedules
    if "scale_grads" not in inspect.signature(schedules.Schedule1F1B).parameters:
        return Unable("pipelines of this torch do not scale gradients, and hang with Gloo")
    found = {}
    for schedule, stages, v_shaped in (
        (schedules.ScheduleGPipe, 1, False),
        (schedules.Schedule1F1B, 1, False),
        (schedules.ScheduleInterleaved1F1B, 2, False),
        (schedules.ScheduleLoopedBFS, 2, False),
        (schedules.ScheduleInterleavedZeroBubble, 2, False),
        (schedules.ScheduleZBVZeroBubble, 2, True),
    ):
        found[schedule.__name__] = pipeline(world, schedule, stages, v_shaped)
    return found


# --- checkpoints ---------------------------------------------------------------------------------


def checkpoints(world):
    """Saved from shards over all ranks, loaded into shards of another mesh."""
    model = shard(make_model(), world.mesh((world.size,), ("shard",)))
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP, momentum=0.5)
    train(world, model, optimizer, steps=1)
    states = get_state_dict(model, optimizer)
    state = {"model": states[0], "optimizer": states[1], "step": 7}
    checkpoint.save(state, checkpoint_id=world.folder, process_group=world.group)
    later = world.folder + "-later"
    checkpoint.async_save(state, checkpoint_id=later, process_group=world.group).result(60)
    found = []
    for folder in (world.folder, later):
        other = shard(nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, WIDTH)),
                      world.mesh((2, world.size // 2), ("copies", "shard")))
        theirs = torch.optim.SGD(other.parameters(), lr=1.0, momentum=0.25)
        states = get_state_dict(other, theirs)
        loaded = {"model": states[0], "optimizer": states[1], "step": 0}
        checkpoint.load(loaded, checkpoint_id=folder, process_group=world.group)
        set_state_dict(other, theirs, model_state_dict=loaded["model"],
                       optim_state_dict=loaded["optimizer"])
        same(weights(other), weights(model))
        assert loaded["step"] == 7 and theirs.param_groups[0]["momentum"] == 0.5
        train(world, other, theirs, steps=1)
        found.append(weights(other))
    return found


# --- objects, meshes, groups ---------------------------------------------------------------------


def objects(world):
    group, rank, size = world.group, world.rank, world.size
    own = {"rank": rank, "text": "x" * (1000 * rank), "tensor": torch.arange(rank + 1)}
    gathered = [None] * size
    dist.all_gather_object(gathered, own, group=group)
    at_root = [None] * size if rank == 1 else None
    dist.gather_object(own, at_root, dst=1, group=group)
    told = [own, "second", None] if rank == 2 else [None] * 3
    dist.broadcast_object_list(told, src=2, group=group)
    part = [None]
    dist.scatter_object_list(part, [("for", r) for r in range(size)] if rank == 0 else None, src=0,
                             group=group)
    passed = [None]
    if rank == 0:
        dist.send_object_list([own], dst=size - 1, group=group)
    if rank == size - 1:
        dist.recv_object_list(passed, src=0, group=group)
    assert part == [("for", rank)]
    return gathered, at_root, told, part, passed


def meshes(world):
    plane = world.mesh((2, world.size // 2), ("rows", "columns"))
    found = [plane.get_coordinate(), plane.mesh]
    for name in ("rows", "columns"):
        sub = plane[name]
        group = sub.get_group()
        assert dist.get_backend(group) == world.backend
        tensor = torch.tensor([float(world.rank)])
        dist.all_reduce(tensor, group=group)
        found += [tensor, sub.get_local_rank(), dist.get_process_group_ranks(group)]
    flat = functional.all_gather_tensor(torch.tensor([world.rank]), 0, plane["columns"])
    return found + [functional.wait_tensor(flat)]


def subgroups(world):
    found = []
    for members in ([0, 1], [1, 2, 3], [3, 0], [2]):
        group = dist.new_group(members, backend=world.backend)
        if world.rank in members:
            tensor = torch.tensor([1 << world.rank])
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == sum(1 << member for member in members)
            found.append(tensor)
            dist.destroy_process_group(group)
    mine, _ = dist.new_subgroups(2, backend=world.backend)
    pairs, _ = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]], backend=world.backend)
    for group in (mine, pairs):
        whole_of = torch.empty(2, dtype=torch.long)
        dist.all_gather_into_tensor(whole_of, torch.tensor([world.rank]), group=group)
        found.append(whole_of)
    return found


def functionals(world):
    group, rank, size = world.group, world.rank, world.size
    tensors = [whole(size * 2, 3, seed=rank), whole(size, seed=10 + rank)]
    first = tensors[0]
    found = [functional.all_reduce(first, operator, group) for operator in ("sum", "max", "min")]
    found += [
        functional.all_gather_tensor(first, 1, group),
        functional.reduce_scatter_tensor(first, "sum", 0, group),
        functional.broadcast(first, 1, group),
        functional.all_to_all_single(first, None, None, group),
        *functional.all_reduce_coalesced(tensors, "sum", group),
        *functional.all_gather_into_tensor_coalesced(tensors, group),
        *functional.reduce_scatter_tensor_coalesced(tensors, "sum", [0, 0], group),
        functional.permute_tensor(first.flatten(), [(r + 1) % size for r in range(size)], group),
    ]
    # Rank r sends r + i + 1 rows to rank i.
    counts = [rank + i + 1 for i in range(size)]
    found.append(functional.all_to_all_single(whole(sum(counts), 2, seed=rank), counts, counts,
                                              group))
    for call in (
        lambda x: functional.all_gather_tensor_autograd(x, 0, group),
        lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group),
        lambda x: functional.all_to_all_single_autograd(x, None, None, group),
    ):
        leaf = first.clone().requires_grad_()
        output = call(leaf)
        loss_of(output).backward()
        found += [output.detach(), leaf.grad]
    return [tensor + 0 for tensor in found]  # waited for


# --- comparing -----------------------------------------------------------------------------------


def same(ours, theirs, rounding=None, where="result"):
    """Fails unless they are equal: bit by bit, or within (relative, absolute) |rounding|."""
    assert type(ours) is type(theirs), f"{where}: {type(ours)} and {type(theirs)}"
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, where
        if rounding is None:
            assert torch.equal(ours, theirs), f"{where}:\n{ours}\n{theirs}"
        else:
            torch.testing.assert_close(ours, theirs, rtol=rounding[0], atol=rounding[1],
                                       msg=lambda text: f"{where}: {text}")
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key in ours:
            same(ours[key], theirs[key], rounding, f"{where}[{key!r}]")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, pair in enumerate(zip(ours, theirs)):
            same(*pair, rounding, f"{where}[{i}]")
    else:
        assert ours == theirs, f"{where}: {ours} and {theirs}"


class Unable:
    """In place of results."""

    def __init__(self, reason):
        self.reason = reason


# What torch and Gloo say where a version, or a build, of theirs lacks something.
LACKS = {
    "Invalid scalar type": "nothing to compare with: the Gloo of this torch lacks a type",
    "Cannot use ReduceOp.AVG with Gloo": "nothing to compare with: this Gloo has no average",
    "'Stream' object has no attribute 'record_event'": "FSDP2 of this torch wants CUDA",
}
# On a device. Gloo's job runs on the host.
ON_DEVICE = {
    ddp_sparse: "the device has no sparse tensors",
    ddp_power_sgd: "the device draws other random numbers than the host",
}


def on_host(results):
    """The same results, with all tensors in host memory."""
    def of(tensor):
        whole = tensor.wait() if isinstance(tensor, functional.AsyncCollectiveTensor) else tensor
        return whole.cpu()
    return torch.utils._pytree.tree_map_only(torch.Tensor, of, results)


def run(function, world):
    torch.set_default_device(world.device)
    try:
        return on_host(function(world))
    except (AttributeError, RuntimeError) as error:
        for text, reason in LACKS.items():
            if text in str(error):
                return Unable(reason)
        raise


def compare(rank, size, folder, function, rounding):
    ranks.init(rank, size, folder)
    gloo = dist.new_group(backend="gloo")
    results = {}
    for backend, group in (("hetcomm", dist.group.WORLD), ("gloo", gloo)):
        assert dist.get_backend(group) == backend
        torch.manual_seed(0)
        results[backend] = run(function, World(rank, size, folder, backend, group))
        if isinstance(results[backend], Unable):
            return results[backend]
    same(results["hetcomm"], results["gloo"], rounding)
    dist.barrier()
    dist.destroy_process_group()
    return True


def run_alone(rank, size, folder, function, backend):
    """The results of one backend, which is the default group's, as bytes."""
    ranks.init(rank, size, folder, backend)
    torch.manual_seed(0)
    buffer = io.BytesIO()
    torch.save(run(function, World(rank, size, folder, backend, dist.group.WORLD)), buffer)
    return buffer.getvalue()


class Training(ranks.TestCase):
    def skip_unless_able(self, result):
        if isinstance(result, Unable):
            self.skipTest(result.reason)

    def compare_jobs(self, function, rounding, size):
        jobs = [[torch.load(io.BytesIO(result), weights_only=False)
                 for result in ranks.run(size, run_alone, function, backend)]
                for backend in ("hetcomm", "gloo")]
        for job in jobs:
            self.skip_unless_able(job[0])
        for ours, theirs in zip(*jobs):
            same(ours, theirs, rounding)

    def compare(self, function, rounding=None, size=4):
        if not OVERRIDES:
            self.compare_jobs(function, rounding, size)
            return
        results = ranks.run(size, compare, function, rounding)
        self.skip_unless_able(results[0])
        self.all_equal(results, True)


def add(name, function, *arguments, **keywords):
    def test(self):
        if ranks.DEVICE != "cpu" and function in ON_DEVICE:
            self.skipTest(ON_DEVICE[function])
        self.compare(function, *arguments, **keywords)
    setattr(Training, f"test_{name}_matches_gloo", test)


for each in (ddp, ddp_sparse, ddp_hooks, zero_join, fsdp, fsdp_state, dtensors,
             tensor_parallel, pipelines, checkpoints, objects, meshes, subgroups, functionals):
    add(each.__name__, each)
SINGLE = (1e-5, 1e-5)
BFLOAT16 = (2e-2, 2e-2)
add("ddp_join", ddp_join, SINGLE)  # divides by three
add("zero", zero, SINGLE)
add("ddp_power_sgd", ddp_power_sgd, (1e-2, 1e-2))
add("fsdp_clipped", fsdp_clipped, SINGLE)
add("fsdp_mixed", fsdp_mixed, BFLOAT16)
add("sequence_parallel", sequence_parallel, SINGLE)
# Two ranks have one order only.
add("two_ranks_power_sgd", ddp_power_sgd, size=2)
add("two_ranks_zero", zero, size=2)

if __name__ == "__main__":
    unittest.main()
