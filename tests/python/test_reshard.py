"""Resharding from Python, with torch.

Proves: NumPy arrays and tensors move between layouts made from meshes, boxes and degrees; DTensors
move between meshes that share all, some or no ranks; state dicts arrive in parameters or buckets,
with other names and types; plans describe themselves; the communicator under a process group works
with hetcomm and with Gloo, and ends with its group; gradients flow back; plans are rebuilt without a
lost rank; mismatches soon raise on all ranks, with the reason; overlapping boxes and arrays raise,
with the name of the tensor; sums are rounded once, as in allreduce, and averages are divided;
conversions overflow as in torch.
"""

import gc
import json
import os
import time
import unittest

import numpy
import torch
import torch._dynamo  # here once: an optimizer or a DTensor loads it, in each rank
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, placement_types

import hetcomm
import hetcomm.torch
from hetcomm import reshard
from hetcomm.reshard.joined import number_copies
from ranks import init, run


def layouts(rank, size, folder):
    init(rank, size, folder)
    world = hetcomm.torch.communicator()
    assert world is hetcomm.torch.communicator()
    whole = numpy.arange(12 * 10, dtype=numpy.float32).reshape(12, 10)
    rows = reshard.layout(whole.shape, [0, 1], [reshard.Shard(0)])
    columns = reshard.layout(whole.shape, [[2], [3]], [reshard.Shard(1, (7, 3)), Replicate()])
    assert "rank" in str(rows).lower(), str(rows)
    assert (rows.elements(1), rows.elements(3), columns.elements(2)) == (60, 0, 84)
    plan = reshard.Plan(world, [(rows, columns, numpy.float32)], prove=True)
    own = whole[rank * 6 : rank * 6 + 6].copy() if rank < 2 else None
    part = [None, None, numpy.zeros((12, 7), "f4"), numpy.zeros((12, 3), "f4")][rank]
    for _ in range(3):
        plan.start([own], [part], timeout=20).wait()
    if rank >= 2:
        expected = whole[:, :7] if rank == 2 else whole[:, 7:]
        assert numpy.array_equal(part, expected)
    steps = json.loads(plan.describe("json"))
    assert steps["shape"] == [12, 10] and len(steps["stages"]) >= 1, steps
    assert plan.describe("svg").startswith("<svg"), plan.describe("svg")[:80]
    assert "bytes" in plan.describe()
    # Boxes in larger arrays: the columns of the fused array of rank 3.
    fused = torch.zeros(10, 20)
    boxes = [reshard.Box(3, (0, 0), (12, 10), offset=5, strides=(1, 20))]
    wide = reshard.layout_of_boxes((12, 10), boxes)
    plan2 = reshard.Plan(world, [(rows, wide, "float32")], strategy="direct")
    plan2.start([own], [fused] if rank == 3 else []).wait()
    if rank == 3:
        assert torch.equal(fused[:, 5:17], torch.from_numpy(whole.T)), fused
        assert fused[:, :5].sum() == 0 and fused[:, 17:].sum() == 0
    activations = reshard.layout_of_degrees(4, 8, 2, [0, 1, 2, 3], data=2, tensor=2)
    try:
        reshard.Plan(world, [(rows, activations, "float32")])
        raise AssertionError("layouts of different shapes")
    except hetcomm.Error as error:
        assert "shape" in str(error)
    plan3 = reshard.Plan(world, [(activations, reshard.layout((4, 8, 2), [2], [Replicate()]), "int32")])
    mine = numpy.full((2, 4, 2), rank, dtype=numpy.int32)
    all_ = numpy.zeros((4, 8, 2), dtype=numpy.int32)
    plan3.start([mine], [all_] if rank == 2 else []).wait()
    if rank == 2:
        assert (all_[:2, :4] == 0).all() and (all_[:2, 4:] == 1).all()
        assert (all_[2:, :4] == 2).all() and (all_[2:, 4:] == 3).all()
    try:
        plan3.start([mine.astype(numpy.float32)], [])
        raise AssertionError("another type")
    except TypeError as error:
        assert "data type" in str(error)
    dist.barrier()
    dist.destroy_process_group()  # closes the plans
    try:
        plan.start([own], [part])
        raise AssertionError("the group is gone")
    except ValueError as error:
        assert "closed" in str(error)
    return True


def dtensors(rank, size, folder, backend):
    init(rank, size, folder, backend=backend)
    torch.manual_seed(1)
    whole = torch.randn(24, 18)
    meshes = [
        DeviceMesh("cpu", [0, 1]),
        DeviceMesh("cpu", [2, 3]),
        DeviceMesh("cpu", [1, 2, 3]),
        DeviceMesh("cpu", [[0, 1], [2, 3]]),
    ]
    specs = [
        (meshes[0], [Shard(0)]),
        (meshes[1], [Shard(1)]),
        (meshes[2], [Shard(0)]),
        (meshes[3], [Shard(0), Shard(0)]),
        (meshes[3], [Shard(1), Replicate()]),
        (meshes[1], [Replicate()]),
        (meshes[2], [Shard(1)]),
    ]
    moved = distribute_tensor(whole, *specs[0], src_data_rank=None)
    for _ in range(2):
        for mesh, placements in specs:
            moved = reshard.redistribute(moved, mesh, placements, timeout=20)
            assert moved.shape == whole.shape and tuple(moved.placements) == tuple(placements)
            expected = distribute_tensor(whole, mesh, placements, src_data_rank=None)
            if mesh.get_coordinate() is not None:
                assert torch.equal(moved.to_local(), expected.to_local()), (rank, placements)
    # A sum that nobody has formed.
    part = DTensor.from_local(whole * (rank + 1), meshes[0], [Partial()], run_check=False)
    summed = reshard.redistribute(part, meshes[1], [Shard(0)], timeout=20)
    if rank >= 2:
        expected = (whole + whole * 2)[(rank - 2) * 12 : (rank - 1) * 12]
        assert torch.equal(summed.to_local(), expected)
    dist.barrier()
    dist.destroy_process_group()
    return True


def states(rank, size, folder):
    """Ranks 0 to 2 train, ranks 3 and 4 have a fused model, ranks 4 and 5 take buckets."""
    init(rank, size, folder)
    torch.manual_seed(2)
    model = {
        "q": torch.randn(8, 6),
        "k": torch.randn(4, 6),
        "tied": torch.randn(30, 6),
        "scale": torch.randn(()),
        "steps": torch.arange(5),
    }
    trainers = DeviceMesh("cpu", [0, 1, 2])
    source = None
    if rank < 3:
        source = {name: tensor for name, tensor in model.items() if name in ("scale", "steps")}
        for name in ("q", "k", "tied"):
            source[name] = distribute_tensor(model[name], trainers, [Shard(0)], src_data_rank=None)

    class Fused:
        """Rows of q and k behind each other, halves of both on each of two ranks; the embedding is
        padded to 32 rows."""

        def __init__(self):
            self.qk = torch.zeros(6, 6, dtype=torch.bfloat16)
            self.embedding = torch.full((16, 6), -1.0)
            self.scale = torch.zeros(())
            self.steps = torch.zeros(5, dtype=torch.int64)
            self.names = []

        def describe(self):
            half = rank - 3
            q = reshard.Box(0, (4 * half, 0), (4 * half + 4, 6), strides=(6, 1))
            k = reshard.Box(0, (2 * half, 0), (2 * half + 2, 6), offset=24, strides=(6, 1))
            rows = reshard.Box(0, (16 * half, 0), (16 * half + 16, 6))
            return {
                "attention.q": reshard.TensorSpec((8, 6), torch.bfloat16, (q,)),
                "attention.k": reshard.TensorSpec((4, 6), torch.bfloat16, (k,)),
                "tied": reshard.TensorSpec((30, 6), torch.float32, (rows,), padded_shape=(32, 6)),
                "scale": reshard.TensorSpec((), torch.float32, (reshard.Box(0, (), ()),)),
                "steps": reshard.TensorSpec((5,), torch.int64, (reshard.Box(0, (0,), (5,)),)),
            }

        def view(self, name):
            fused = {"attention.q": self.qk, "attention.k": self.qk, "tied": self.embedding}
            return fused.get(name, getattr(self, name, None))

        def loaded(self, names):
            self.names += names

    names = {"attention.q": "q", "attention.k": "k"}
    world = hetcomm.torch.communicator()
    engine = Fused() if rank in (3, 4) else None
    for bucket_bytes in (1, 300, 1 << 20):
        transfer = reshard.StateTransfer(
            world, source, engine, names=names, bucket_bytes=bucket_bytes, timeout=20
        )
        for again in range(2):
            transfer.run()
            if engine is not None:
                half = rank - 3
                assert sorted(engine.names) == sorted(engine.describe()), engine.names
                engine.names.clear()
                assert torch.equal(engine.qk[:4], model["q"][4 * half : 4 * half + 4].bfloat16())
                assert torch.equal(engine.qk[4:], model["k"][2 * half : 2 * half + 2].bfloat16())
                rows = min(30, 16 * half + 16) - 16 * half
                assert torch.equal(engine.embedding[:rows], model["tied"][16 * half : 16 * half + rows])
                assert (engine.embedding[rows:] == -1).all()
                assert engine.scale == model["scale"] and torch.equal(engine.steps, model["steps"])
                engine.qk.zero_()
                engine.embedding.fill_(-1)
        dist.barrier()
        transfer.close()
    # Into buckets: rank 5 gets everything, rank 4 the halves of some.
    got = {}
    target = None
    if rank >= 4:
        pair = DeviceMesh("cpu", [4, 5], _init_backend=False)
        state = {name: torch.empty_like(tensor) for name, tensor in model.items()}
        state["q"] = DTensor.from_local(torch.empty(8, 3), pair, [Shard(1)], run_check=False)

        def load(name, box, array):
            got.setdefault(name, torch.zeros(model[name].shape, dtype=model[name].dtype))
            place = tuple(slice(b, e) for b, e in zip(box.begin, box.end))
            got[name][place] = array

        target = reshard.StateDict(state, load=load)
    reshard.transfer_state(source, target, bucket_bytes=500, timeout=20)
    if rank >= 4:
        assert sorted(got) == sorted(model), got.keys()
        for name, tensor in model.items():
            mine = slice(3 * (rank - 4), 3 * (rank - 4) + 3) if name == "q" else ...
            here = (slice(None), mine) if name == "q" else ...
            assert torch.equal(got[name][here], tensor[here]), name
    # What does not fit is told to all.
    wrong = {"q": torch.zeros(8, 6), "other": torch.zeros(3)} if rank == 5 else None
    try:
        reshard.transfer_state(source, wrong, timeout=20)
        raise AssertionError("different names")
    except ValueError as error:
        assert "other" in str(error) and "tied" in str(error), error

    # What fails on one rank while tensors move is raised on all, with the name of the tensor.
    class Short(reshard.StateDict):
        def view(self, name):
            whole = super().view(name)
            return whole[:1] if rank == 2 and name == "q" else whole

    for _ in range(5):
        try:
            reshard.transfer_state(Short(source) if rank < 3 else None, target, timeout=20)
            raise AssertionError("a short source")
        except (RuntimeError, ValueError) as error:
            assert "q: the array of the source" in str(error) and "rank 2" in str(error), error
    dist.barrier()
    dist.destroy_process_group()
    return True


def one_rank(rank, size, folder):
    """Layouts are cut as torch cuts them, even if sizes do not divide, and for strided shards of FSDP2."""
    for ranks in (1, 2, 3, 4, 6):
        for split in (1, 2, 4):
            for extent in range(1, 61):
                cut = placement_types._StridedShard(0, split_factor=split)
                wanted, _ = cut._split_tensor(torch.arange(extent), ranks, with_padding=False)
                made = reshard.layout((extent,), list(range(ranks)), [cut])
                for place in range(ranks):
                    parts = sorted((part[3], part[1][0], part[2][0]) for part in made.parts(place))
                    got = [i for _, begin, end in parts for i in range(begin, end)]
                    assert got == wanted[place].tolist(), (ranks, split, extent, place, got)
    # Many boxes are numbered in time.
    boxes = [reshard.Box(i, (i % 512, 0), (i % 512 + 1, 4)) for i in range(1024)]
    durations = []
    for _ in range(5):  # a busy machine does not delay each
        start = time.monotonic()
        numbered = number_copies(boxes)
        durations.append(time.monotonic() - start)
    assert min(durations) < 1, durations
    assert [box.copy for box in numbered] == [0] * 512 + [1] * 512
    return True


def gradients(rank, size, folder):
    """redistribute() returns a DTensor like torch's, and gradients flow back through it."""
    init(rank, size, folder)
    first, second = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [2, 3])
    whole = torch.arange(24.0).reshape(4, 6)
    x = distribute_tensor(whole, first, [Shard(0)], src_data_rank=None).requires_grad_()
    y = reshard.redistribute(x, second, [reshard.Shard(1)], timeout=20)
    assert tuple(y.placements) == (Shard(1),) and y.requires_grad
    if rank >= 2:
        assert torch.equal(y.to_local(), whole[:, 3 * (rank - 2) : 3 * (rank - 1)])
    local = y.to_local()
    (local * local).sum().backward()
    if rank < 2:
        assert torch.equal(x.grad.to_local(), 2 * whole[2 * rank : 2 * rank + 2]), x.grad
    # A sum: each term has the gradient of the sum.
    term = DTensor.from_local(whole.clone(), first, [Partial()], run_check=False).requires_grad_()
    z = reshard.redistribute(term, second, [Replicate()], timeout=20)
    local = z.to_local()
    (3 * local).sum().backward()
    if rank < 2:
        assert torch.equal(term.grad.to_local(), torch.full((4, 6), 3.0)), term.grad
    # Of a transposed tensor the values, with strides that are true.
    turned = distribute_tensor(whole, first, [Shard(0)], src_data_rank=None).t()
    moved = reshard.redistribute(turned, second, [Shard(0)], timeout=20)
    assert moved.is_contiguous() and moved.stride() == (4, 1), moved.stride()
    if rank >= 2:
        assert torch.equal(moved.to_local(), whole.t()[3 * (rank - 2) : 3 * (rank - 1)])
    for wrong in (reshard.Zigzag(0), reshard.Shard(0, (1, 3))):
        try:
            reshard.redistribute(x, second, [wrong])
            raise AssertionError("torch has no such placement")
        except ValueError as error:
            assert "no such placement" in str(error), error
    dist.barrier()
    dist.destroy_process_group()
    return True


def raises(wanted, call, *words):
    start = time.monotonic()
    try:
        call()
    except wanted as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{error}: lacks {missing}"
        assert time.monotonic() - start < 15, f"{error}: came late"
        return str(error)
    raise AssertionError("nothing was raised")


class Terms:
    """One of the two terms of a sum, held by one rank."""

    def __init__(self, rank):
        self.rank, self.values = rank, torch.full((2, 3), float(rank + 1))

    def describe(self):
        return {"w": reshard.TensorSpec((2, 3), torch.float32, (reshard.Box(0, (0, 0), (2, 3), term=self.rank),))}

    def view(self, name):
        return self.values


def models(rank, size, folder):
    """A model's description decides what moves. An error on one rank soon reaches all ranks."""
    init(rank, size, folder)
    world = hetcomm.torch.communicator()
    summed = {"w": torch.zeros(2, 3)} if rank == 3 else None
    reshard.transfer_state(Terms(rank) if rank < 2 else None, summed, timeout=20)
    assert rank != 3 or (summed["w"] == 3).all(), summed
    # Two engines, each on a mesh of its own.
    whole = torch.arange(24.0).reshape(6, 4)
    trainers = DeviceMesh("cpu", [0, 1])
    source = {"w": distribute_tensor(whole, trainers, [Shard(0)], src_data_rank=None)}
    engines = [DeviceMesh("cpu", [2, 3], _init_backend=False), DeviceMesh("cpu", [4, 5], _init_backend=False)]
    target = None
    if rank >= 2:
        part = torch.zeros(6, 2) if rank < 4 else torch.zeros(3, 4)
        target = {"w": DTensor.from_local(part, engines[rank // 2 - 1], [Shard(1 if rank < 4 else 0)],
                                          run_check=False)}
    reshard.transfer_state(source if rank < 2 else None, target, timeout=20)
    if rank in (2, 3):
        assert torch.equal(target["w"].to_local(), whole[:, 2 * (rank - 2) : 2 * (rank - 1)])
    if rank >= 4:
        assert torch.equal(target["w"].to_local(), whole[3 * (rank - 4) : 3 * (rank - 3)])

    # A rank of the mesh that does not know the tensor; a state dict with something else; a tensor with
    # gaps; an engine whose load() fails.
    plain = {"w": torch.zeros(6, 4)} if rank == 4 else None
    move = reshard.transfer_state
    raises(ValueError, lambda: move(source if rank == 0 else None, plain), "w, source", "rank 1")
    odd = {"w": 7} if rank == 4 else None
    raises((TypeError, RuntimeError), lambda: move(source if rank < 2 else None, odd), "w is no tensor",
           "" if rank == 4 else "rank 4")
    gaps = {"w": torch.zeros(4, 6).t()} if rank == 4 else None
    raises((ValueError, RuntimeError), lambda: move(source if rank < 2 else None, gaps), "not contiguous",
           "" if rank == 4 else "rank 4")

    def load(name, box, array):
        raise OSError("no room")

    full = reshard.StateDict({"w": torch.zeros(6, 4)}, load=load) if rank == 4 else None
    raises((OSError, RuntimeError), lambda: move(source if rank < 2 else None, full), "no room",
           "" if rank == 4 else "rank 4")
    # The group works as before.
    dist.barrier()
    # In the padding of what is handed over there are no bytes of others: there is no padding.
    boxes = []

    class Padded:
        def describe(self):
            rows = reshard.Box(0, (0, 0), (8, 4))
            return {"w": reshard.TensorSpec((6, 4), torch.float32, (rows,), padded_shape=(8, 4))}

        def view(self, name):
            return None

        def load(self, name, box, array):
            boxes.append((box.begin, box.end))
            assert torch.equal(array, whole)

        def loaded(self, names):
            pass

    move(source if rank < 2 else None, Padded() if rank == 5 else None)
    assert rank != 5 or boxes == [((0, 0), (6, 4))], boxes
    dist.barrier()
    # Ranks of a mesh are torch's, those of a communicator its own.
    some = dist.new_group([2, 3, 4, 5])
    if rank >= 2:
        inner = hetcomm.torch.communicator(some)
        assert inner.rank == rank - 2
        own = distribute_tensor(whole, engines[0], [Shard(0)], src_data_rank=None)
        moved = reshard.redistribute(own, engines[1], [Shard(1)], communicator=inner, timeout=20)
        if rank >= 4:
            assert torch.equal(moved.to_local(), whole[:, 2 * (rank - 4) : 2 * (rank - 3)])
        outside = DeviceMesh("cpu", [0, 2], _init_backend=False)
        raises(ValueError, lambda: reshard.redistribute(own, outside, [Shard(0)], communicator=inner),
               "rank 0 is in the mesh")
    dist.barrier()
    dist.destroy_process_group()
    return True


def again(rank, size, folder, backend):
    """Repeated groups leave nothing behind. A closed communicator is made again."""
    used = []
    for number in range(6):
        place = f"{folder}/{number}"
        os.makedirs(place, exist_ok=True)
        init(rank, size, place, backend=backend)
        mesh, other = DeviceMesh("cpu", [0]), DeviceMesh("cpu", [1])
        x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)], src_data_rank=None)
        moved = reshard.redistribute(x, other, [Shard(0)], timeout=20)
        assert rank == 0 or moved.to_local().tolist() == [0, 1, 2, 3]
        if backend == "gloo":
            dist.barrier()
            hetcomm.torch.communicator().close()
            dist.barrier()
            moved = reshard.redistribute(x, other, [Shard(0)], timeout=20)
            assert rank == 0 or moved.to_local().tolist() == [0, 1, 2, 3]
        dist.barrier()
        del x, moved, mesh, other
        dist.destroy_process_group()
        gc.collect()
        used.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
    assert used[5][0] <= used[2][0] + 3 and used[5][1] <= used[2][1] + 1, used
    return True


def rebuilt(rank, size, folder):
    """A plan is rebuilt without a rank whose part another rank also holds."""
    init(rank, size, folder)
    world = hetcomm.torch.communicator()
    held = [reshard.Box(0, (0,), (4,)), reshard.Box(1, (4,), (8,)), reshard.Box(2, (4,), (8,), copy=1)]
    source = reshard.layout_of_boxes((8,), held)
    target = reshard.layout_of_boxes((8,), [reshard.Box(3, (0,), (8,))])
    plan = reshard.Plan(world, [(source, target, "int32")])
    alone = reshard.Plan(world, [(reshard.layout_of_boxes((8,), held[:2]), target, "int32")])
    left = world.split(0 if rank != 1 else -1, rank)
    if rank != 1:
        new = plan.rebuild(left)
        held_now = [(4, 0), (4, 0), (0, 8)][left.rank]
        assert new._elements == [held_now], (new._elements, held_now)
        values = numpy.arange(4, dtype=numpy.int32) + (4 if rank == 2 else 0)
        result = numpy.zeros(8, dtype=numpy.int32)
        new.start([values if rank < 3 else None], [result if rank == 3 else None], 20).wait()
        assert rank != 3 or result.tolist() == list(range(8)), result
        raises(hetcomm.Error, lambda: alone.rebuild(left), "rank 1", "[4:8]")
        new.close()
        left.close()
    dist.barrier()
    dist.destroy_process_group()
    return True


def memory(rank, size, folder):
    """Overlapping memory is refused on all ranks, with the name of the tensor."""
    init(rank, size, folder)
    world = hetcomm.torch.communicator()
    over = [reshard.Box(0, (0,), (4,)), reshard.Box(0, (4,), (8,))]
    whole = reshard.layout((8,), [1], [reshard.Replicate()])
    target = reshard.layout_of_boxes((8,), over)
    text = raises(hetcomm.Error, lambda: reshard.Plan(world, [(whole, target, "float32")]), "rank 0")
    assert "[4:8]" in text and "INVALID_ARGUMENT" in text, text

    class Held:
        def __init__(self, name, shape, boxes, array):
            self.name, self.spec = name, reshard.TensorSpec(shape, torch.float32, tuple(boxes))
            self.array = array

        def describe(self):
            return {self.name: self.spec}

        def view(self, name):
            return self.array

        def load(self, name, box, array):
            raise AssertionError("it has arrays")

        def loaded(self, names):
            pass

    # Boxes of the destination whose offsets were forgotten.
    boxes = [reshard.Box(0, (0,), (4,)), reshard.Box(0, (4,), (8,))]
    source = {"layers.3.w": torch.arange(8.0)} if rank == 0 else None
    wrong = Held("layers.3.w", (8,), boxes, torch.full((8,), -1.0)) if rank == 1 else None
    text = raises(Exception, lambda: reshard.transfer_state(source, wrong, timeout=20), "layers.3.w")
    assert "rank 1" in text and "[4:8]" in text, text
    # An array that is too short.
    short = {"layers.3.w": torch.zeros(8)} if rank == 1 else None
    if rank == 1:
        short = Held("layers.3.w", (8,), [reshard.Box(0, (0,), (8,))], torch.zeros(7))
    text = raises(Exception, lambda: reshard.transfer_state(source, short, timeout=20), "layers.3.w")
    assert "7 elements" in text and "rank 1" in text, text
    # In its own memory only what stays is moved.
    rows = reshard.layout((64, 64), [0, 1], [reshard.Shard(0)])
    columns = reshard.layout((64, 64), [0, 1], [reshard.Shard(1)])
    own = torch.arange(2048.0).reshape(32, 64) + 2048 * rank
    before = own.clone()
    plan = reshard.Plan(world, [(rows, columns, "float32")])
    raises(hetcomm.Error, lambda: plan.start([own], [own.view(64, 32)], 20), "overlaps")
    assert torch.equal(own, before)
    stays = reshard.Plan(world, [(rows, rows, "float32")])
    stays.start([own], [own], 20).wait()
    assert torch.equal(own, before)
    dist.barrier()
    dist.destroy_process_group()
    return True


def numbers(rank, size, folder):
    """Sums equal those of allreduce; averages are divided; overflow is that of torch."""
    init(rank, size, folder)
    world = hetcomm.torch.communicator()
    everyone = list(range(size))
    one = reshard.layout((1,), everyone, [reshard.Partial()])
    for dtype, big in ((torch.bfloat16, 256.0), (torch.float16, 2048.0)):
        plan = reshard.Plan(world, [(one, reshard.layout((1,), [0], [reshard.Replicate()]), dtype)])
        term = torch.tensor([big if rank == 0 else 1.0], dtype=dtype)
        total, reduced = torch.zeros(1, dtype=dtype), torch.zeros(1, dtype=dtype)
        plan.start([term], [total if rank == 0 else None], 20).wait()
        world.allreduce(term, reduced, timeout=20).wait()
        assert rank != 0 or total.item() == reduced.item(), (total, reduced)
    count = 100_000
    generator = torch.Generator().manual_seed(rank)
    term = torch.randn(count, generator=generator).bfloat16()
    terms = [
        torch.randn(count, generator=torch.Generator().manual_seed(each)).bfloat16()
        for each in everyone
    ]
    exact = terms[0].float()
    for each in terms[1:]:
        exact = exact + each.float()
    spread = reshard.layout((count,), everyone, [reshard.Partial()])
    whole = reshard.layout((count,), [0], [reshard.Replicate()])
    for strategy in ("direct", "leader", "auto"):
        for slice_bytes in (0, 10_000):
            options = {"strategy": strategy, "slice_bytes": slice_bytes}
            for dtype in (torch.bfloat16, torch.float32):
                plan = reshard.Plan(world, [(spread, whole, torch.bfloat16, dtype)], **options)
                total = torch.zeros(count, dtype=dtype)
                plan.start([term], [total if rank == 0 else None], 20).wait()
                assert rank != 0 or torch.equal(total, exact.to(dtype)), (strategy, slice_bytes, dtype)
    reduced = torch.zeros_like(term)
    world.allreduce(term, reduced, timeout=20).wait()
    assert torch.equal(reduced, exact.bfloat16()), int((reduced != exact.bfloat16()).sum())
    # DTensor's averages.
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
    part = DTensor.from_local(term, mesh, [Partial("avg"), Partial()], run_check=False)
    averaged = reshard.redistribute(part, mesh, [Replicate(), Shard(0)], timeout=20)
    place = rank % 2
    right = (exact / 2).bfloat16()[place * count // 2 : (place + 1) * count // 2]
    assert torch.equal(averaged.to_local(), right)
    # Conversions.
    numbers = [448.0, 460.0, 500.0, -1e30, float("inf"), -float("inf"), float("nan"), 0.3, 70000.0]
    held = torch.tensor(numbers)
    shape = (len(numbers),)
    source = reshard.layout(shape, [0], [reshard.Replicate()])
    target = reshard.layout(shape, [1], [reshard.Replicate()])
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16):
        plan = reshard.Plan(world, [(source, target, torch.float32, dtype)])
        moved = torch.zeros(shape, dtype=dtype)
        plan.start([held if rank == 0 else None], [moved if rank == 1 else None], 20).wait()
        if rank == 1:
            own = held.to(dtype).float()
            if (2, 13) > tuple(map(int, torch.__version__.split(".")[:2])) and dtype == torch.float8_e4m3fn:
                own = own.clone()
                own[2:6] = torch.tensor([448.0, -448.0, 448.0, -448.0])
                own[8] = 448.0
            assert torch.equal(moved.float().nan_to_num(7), own.nan_to_num(7)), (dtype, moved, own)
    plan = reshard.Plan(world, [(source, target, "float32", "float8_e4m3fn")], overflow="nan")
    moved = torch.zeros(shape, dtype=torch.float8_e4m3fn)
    plan.start([held if rank == 0 else None], [moved if rank == 1 else None], 20).wait()
    assert rank != 1 or moved.float().isnan().tolist() == [False, False] + [True] * 5 + [False, True]
    raises(ValueError, lambda: reshard.Plan(world, [(source, target, "float32")], overflow="x"), "overflow")
    dist.barrier()
    dist.destroy_process_group()
    return True


def calls(rank, size, folder, backend):
    """Calls of one plan that do not match."""
    init(rank, size, folder, backend)
    world = hetcomm.torch.communicator()
    one, other = ([reshard.layout((4, 6), [each], [reshard.Replicate()])] for each in (0, 1))
    plan = reshard.Plan(world, [(*one, *other, "float32")], in_flight=2)
    whole, part = numpy.arange(24, dtype="f4").reshape(4, 6), numpy.zeros((4, 6), "f4")
    sources, parts = ([whole], []) if rank == 0 else ([], [part])
    # An array that is not contiguous, one that is too short, another type: the other rank hears of each.
    for wrong in (whole.T, whole[:2], whole.astype("f8")):
        for refuses in (0, 1):
            if rank == refuses:
                bad = ([wrong], []) if rank == 0 else ([], [wrong])
                raises((ValueError, TypeError, BufferError, hetcomm.Error), lambda: plan.start(*bad))
            else:
                raises(hetcomm.Error, lambda: plan.start(sources, parts, 30).wait(),
                       f"rank {refuses} has refused", "MISMATCH")
    plan.start(sources, parts, 20, step=1, micro_batch=2).wait()
    assert rank == 0 or numpy.array_equal(part, whole)
    # BUSY is told to nobody.
    world.barrier(timeout=20).wait()
    if rank == 0:
        requests = [plan.start(sources, timeout=20) for _ in range(2)]
        assert plan.pending == 2
        raises(hetcomm.Error, lambda: plan.start(sources), "BUSY")
        raises(hetcomm.Error, lambda: plan.drain(0.05), "TIMED_OUT")
        plan.cancel()
        plan.drain(20)
        for request in requests:
            raises(hetcomm.Error, request.wait, "CANCELLED")
        world.barrier(timeout=20).wait()
    else:
        world.barrier(timeout=20).wait()
        for _ in range(2):
            raises(hetcomm.Error, lambda: plan.start([], parts, 20).wait(), "rank 0 has given up")
    facts = plan.facts()
    assert facts["bytes_sent" if rank == 0 else "bytes_received"] == 96, facts
    assert facts["strategy"] != "auto" and facts["messages_sent"] == (rank == 0), facts
    plan.start(sources, parts, 20).wait()
    raises(hetcomm.Error, lambda: plan.start(sources, parts, 20, step=1, micro_batch=rank).wait(),
           "micro-batch 1", "MISMATCH")
    plan.close()
    raises(ValueError, lambda: plan.start(sources, parts), "closed")
    # Both send.
    swapped = [(*one, *other, "float32")] if rank == 0 else [(*other, *one, "float32")]
    plan = reshard.Plan(world, swapped)
    raises(hetcomm.Error, lambda: plan.start([whole], timeout=60).wait(), "another plan", "MISMATCH")
    world.barrier(timeout=20).wait()
    dist.destroy_process_group()
    return True


class Reshard(unittest.TestCase):
    def test_overlapping_memory_is_refused_on_all_ranks(self):
        self.assertEqual(run(2, memory), [True] * 2)

    def test_sums_match_allreduce_and_averages_are_divided(self):
        self.assertEqual(run(4, numbers), [True] * 4)
    def test_mismatched_calls_raise_on_both_ranks(self):
        self.assertEqual(run(2, calls, "gloo"), [True] * 2)

    def test_layouts_are_split_as_torch_splits_them(self):
        self.assertEqual(run(1, one_rank), [True])

    def test_gradients_flow_back_through_redistribute(self):
        self.assertEqual(run(4, gradients), [True] * 4)

    def test_state_dicts_arrive_and_an_error_on_one_rank_reaches_all(self):
        self.assertEqual(run(6, models), [True] * 6)

    def test_plan_is_rebuilt_without_a_lost_rank(self):
        self.assertEqual(run(4, rebuilt), [True] * 4)

    def test_repeated_groups_do_not_leak(self):
        self.assertEqual(run(2, again, "gloo"), [True] * 2)

    def test_arrays_move_between_different_layouts(self):
        self.assertEqual(run(4, layouts), [True] * 4)

    def test_dtensors_move_between_meshes(self):
        for backend in ("hetcomm", "gloo"):
            with self.subTest(backend=backend):
                self.assertEqual(run(4, dtensors, backend), [True] * 4)

    def test_trained_weights_arrive_in_fused_models_and_buckets(self):
        self.assertEqual(run(6, states), [True] * 6)


if __name__ == "__main__":
    unittest.main()
