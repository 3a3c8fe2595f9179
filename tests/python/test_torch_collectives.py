"""Collective operations of the process group.

Proves: every operation gives the result of Gloo (or of a local computation by torch, if Gloo lacks
the operation or type), for packed tensors and views, all types and operators, uneven splits and
empty tensors, coalesced, in subgroups, after shrinking, from several threads and from callbacks of
futures; operations are numbered; failures end with the reason.
"""

import json
import os
import subprocess
import sys
import threading
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import hetcomm.torch
import ranks

TYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.float16, torch.bfloat16)
LENGTHS = (0, 1, 5, 1000, 100_000)


def value(rank, length, dtype):
    """Small whole numbers, so that sums are exact in every type."""
    return ((torch.arange(length) * 7 + rank * 3) % 5).to(dtype)


def reductions(rank, size, folder):
    ranks.init(rank, size, folder)
    op = dist.ReduceOp
    for dtype in TYPES:
        for length in LENGTHS:
            parts = torch.stack([value(r, length, dtype).double() for r in range(size)])
            expected = {op.SUM: parts.sum(0), op.MAX: parts.amax(0), op.MIN: parts.amin(0)}
            for operator, result in expected.items():
                tensor = value(rank, length, dtype)
                dist.all_reduce(tensor, operator)
                assert torch.equal(tensor.double(), result), (dtype, length, operator)
                tensor = value(rank, length, dtype)
                dist.reduce(tensor, size - 1, operator)
                if rank == size - 1:
                    assert torch.equal(tensor.double(), result), (dtype, length, operator)
                part = torch.empty(length, dtype=dtype)
                dist.reduce_scatter_tensor(part, value(rank, length, dtype).repeat(size), operator)
                assert torch.equal(part.double(), result), (dtype, length, operator)
                dist.reduce_scatter(part, [value(rank, length, dtype)] * size, operator)
                assert torch.equal(part.double(), result), (dtype, length, operator)
    return True


def operators(rank, size, folder):
    ranks.init(rank, size, folder)
    op = dist.ReduceOp
    tensor = torch.tensor([1.0, 2.0]) + rank
    dist.all_reduce(tensor, op.AVG)
    assert torch.allclose(tensor, torch.tensor([1.0, 2.0]) + (size - 1) / 2)
    tensor = torch.tensor([4 * (rank + 1)])
    dist.all_reduce(tensor, op.AVG)
    assert tensor.item() == 2 * (size + 1)
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor, op.PRODUCT)
    assert tensor.item() == torch.arange(1.0, size + 1).prod().item()
    tensor = torch.tensor([1 << rank, 1])
    dist.all_reduce(tensor, op.BOR)
    assert tensor.tolist() == [(1 << size) - 1, 1]
    dist.all_reduce(tensor, op.BAND)
    assert tensor.tolist() == [(1 << size) - 1, 1]
    tensor = torch.tensor([rank])
    dist.all_reduce(tensor, op.BXOR)
    expected = 0
    for other in range(size):
        expected ^= other
    assert tensor.item() == expected
    tensor = torch.ones(3)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
    assert tensor.tolist() == [2.0 * size] * 3
    tensor = torch.complex(torch.ones(2), torch.full((2,), float(rank)))
    dist.all_reduce(tensor)
    assert tensor[0].item() == complex(size, sum(range(size)))
    return True


def movements(rank, size, folder):
    ranks.init(rank, size, folder)
    for dtype in TYPES + (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64,
                          torch.uint16):
        for length in LENGTHS:
            own = value(rank, length, dtype)
            parts = [value(r, length, dtype) for r in range(size)]

            def same(a, b):
                return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))

            lists = [torch.empty_like(own) for _ in range(size)]
            dist.all_gather(lists, own)
            assert all(map(same, lists, parts)), (dtype, length)
            whole = torch.empty(size * length, dtype=dtype)
            dist.all_gather_into_tensor(whole, own)
            assert same(whole, torch.cat(parts)), (dtype, length)
            tensor = own.clone()
            dist.broadcast(tensor, 1 % size)
            assert same(tensor, parts[1 % size]), (dtype, length)
            lists = [torch.empty_like(own) for _ in range(size)] if rank == 0 else None
            dist.gather(own, lists, 0)
            assert rank != 0 or all(map(same, lists, parts)), (dtype, length)
            tensor = torch.empty_like(own)
            dist.scatter(tensor, parts if rank == 0 else None, 0)
            assert same(tensor, own), (dtype, length)
            out = torch.empty(size * length, dtype=dtype)
            dist.all_to_all_single(out, torch.cat(parts))
            assert same(out, own.repeat(size) if length else out), (dtype, length)
    return True


def uneven(rank, size, folder):
    ranks.init(rank, size, folder)
    # Rank r sends r + i rows to rank i.
    sends = [rank + i for i in range(size)]
    recvs = [i + rank for i in range(size)]
    source = torch.cat([torch.full((n, 3), float(10 * rank + i)) for i, n in enumerate(sends)])
    out = torch.empty(sum(recvs), 3)
    dist.all_to_all_single(out, source, recvs, sends)
    expected = torch.cat([torch.full((n, 3), float(10 * i + rank)) for i, n in enumerate(recvs)])
    assert torch.equal(out, expected)
    outs = [torch.empty(n, 3) for n in recvs]
    dist.all_to_all(outs, list(source.split(sends)))
    return torch.equal(torch.cat(outs), expected)


def views(rank, size, folder):
    """Strided, transposed and expanded views give the results of packed tensors."""
    ranks.init(rank, size, folder)
    base = torch.arange(60.0).reshape(6, 10) + rank
    packed = base[:, ::2].clone()
    dist.all_reduce(packed)
    hole = base.clone()
    dist.all_reduce(hole[:, ::2])
    assert torch.equal(hole[:, ::2], packed) and torch.equal(hole[:, 1::2], base[:, 1::2])
    turned = base.clone().t()
    dist.all_reduce(turned)
    expected = base.clone()
    dist.all_reduce(expected)
    assert torch.equal(turned, expected.t())
    into = torch.zeros(6, 2 * size)
    dist.all_gather([into[:, 2 * r] for r in range(size)], torch.tensor(float(rank)).expand(6))
    assert all(bool((into[:, 2 * r] == r).all()) for r in range(size))
    assert bool((into[:, 1::2] == 0).all())
    tensor = base.clone()[:, 3]
    dist.broadcast(tensor, 0)
    assert torch.equal(tensor, torch.arange(60.0).reshape(6, 10)[:, 3])
    return True


def view_of(kind, values):
    """A tensor of the given kind whose elements are |values|, in their order."""
    if kind == "holes":
        view = torch.zeros(len(values), 2, dtype=values.dtype)[:, 0]
        return view.copy_(values)
    if kind == "transposed":
        rows = values.reshape(-1, 2)
        return torch.zeros_like(rows.t()).contiguous().t().copy_(rows)
    if kind == "expanded":
        return values[:1].clone().expand(len(values))
    if kind == "expanded twice":
        return values[:1].clone().expand(2, len(values) // 2).t()
    if kind == "negated":
        return torch._neg_view(-values)
    if kind == "empty":
        return torch.zeros(0, 3)
    return values[0].clone()  # "scalar": it has no dimension


def calls_on_views(rank, size, make, into):
    """The tensors of each operation after it has run. make(seed) makes inputs, into(seed) makes results."""
    def several(of, first):
        return [of(first + each) for each in range(size)]

    def wait(work):
        work.wait()

    def done(tensors, call):
        call(tensors)
        return tensors

    right, left = (rank + 1) % size, (rank - 1) % size

    def messages(t):
        works = [dist.isend(t[0], right), dist.irecv(t[1], left)]
        for work in works:
            work.wait()

    yield "messages", done([make(rank), into(7)], messages)
    yield "all_gather", done([make(rank), *several(into, 7)],
                             lambda t: dist.all_gather(t[1:], t[0]))
    yield "gather", done([make(rank), *several(into, 7)], lambda t: dist.gather(
        t[0], t[1:] if rank == 1 else None, 1))
    yield "scatter", done([into(7), *several(make, rank)], lambda t: dist.scatter(
        t[0], t[1:] if rank == 1 else None, 1))
    yield "reduce_scatter", done([into(7), *several(make, rank)],
                                 lambda t: dist.reduce_scatter(t[0], t[1:]))
    yield "all_to_all", done([*several(into, 7), *several(make, rank)],
                             lambda t: dist.all_to_all(t[:size], t[size:]))
    if into is not make:
        return
    yield "broadcast", done([make(rank)], lambda t: dist.broadcast(t[0], 1))
    yield "all_reduce", done([make(rank)], lambda t: dist.all_reduce(t[0]))
    yield "reduce", done([make(rank)], lambda t: dist.reduce(t[0], 1))[:1 if rank == 1 else 0]
    backend = dist.group.WORLD._get_backend(make(0).device)
    yield "all_reduce_coalesced", done([make(rank), make(rank + 1)], lambda t: wait(
        backend.allreduce_coalesced(t)))


def all_views(rank, size, folder, kind):
    """As with packed tensors.

    torch itself gives every backend a copy of a negated view, and copies results back before the
    operation has ended: it cannot be a result. Conjugated views torch refuses.
    """
    ranks.init(rank, size, folder)
    dtype = torch.float32

    def values(seed):
        if kind.startswith("expanded"):
            return torch.full((6,), float(seed + 2), dtype=dtype)
        return torch.arange(6).to(dtype) + seed

    def view(seed):
        return view_of(kind, values(seed))

    def packed(seed):
        return view(seed).resolve_neg().clone(
            memory_format=torch.contiguous_format)

    ours = calls_on_views(
        rank, size, view, packed if kind == "negated" else view)
    theirs = calls_on_views(rank, size, packed, packed)
    for (name, of_views), (other, of_packed) in zip(ours, theirs):
        assert name == other
        for mine, right in zip(of_views, of_packed):
            assert torch.equal(mine.resolve_neg(), right), (kind, name, mine, right)
    ranks.meet(rank, size, folder)
    return True


def expanded_on_one_rank(rank, size, folder):
    """One rank passes an expanded tensor, the others packed ones. All end with the same values."""
    ranks.init(rank, size, folder)
    for odd in range(size):
        tensor = torch.full((1,), float(rank)).expand(4) if rank == odd else torch.full(
            (4,), float(rank))
        dist.broadcast(tensor, 0)
        assert tensor.tolist() == [0.0] * 4, (odd, tensor)
        tensor = torch.ones(1).expand(4) if rank == odd else torch.ones(4)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [float(size)] * 4, (odd, tensor)
    # The last one counts of those that lie at one address.
    tensor = torch.zeros(1).expand(4) if rank == 1 else torch.arange(4.0)
    dist.broadcast(tensor, 0)
    return tensor.tolist() == ([3.0] * 4 if rank == 1 else [0.0, 1.0, 2.0, 3.0])


def coalesced(rank, size, folder):
    ranks.init(rank, size, folder)
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 10, 5000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    sum_of_ranks = sum(range(size))
    assert all(t.eq(float(sum_of_ranks + size * t.numel())).all() for t in tensors)
    inputs = [torch.full((n,), float(rank)) for n in (3, 40)]
    outputs = [torch.empty(n * size) for n in (3, 40)]
    with dist._coalescing_manager():
        for out, part in zip(outputs, inputs):
            dist.all_gather_into_tensor(out, part)
    for out, part in zip(outputs, inputs):
        assert torch.equal(out, torch.arange(size).repeat_interleave(part.numel()).float())
    return True


def sparse(rank, size, folder):
    ranks.init(rank, size, folder)
    index = torch.tensor([[rank, rank + 1], [0, 1]])
    tensor = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0]), (size + 2, 3))
    expected = sum(
        torch.sparse_coo_tensor(torch.tensor([[r, r + 1], [0, 1]]), torch.tensor([1.0, 2.0]),
                                (size + 2, 3)).to_dense() for r in range(size))
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), expected)
    embedding = torch.sparse_coo_tensor(torch.tensor([[rank % 2, 5]]),
                                        torch.full((2, 4), float(rank + 1)), (10, 4))
    work = dist.all_reduce(embedding, async_op=True)
    other = torch.ones(1)
    dist.all_reduce(other)
    work.wait()
    dense = embedding.to_dense()
    return bool((dense[5] == sum(range(1, size + 1))).all()) and other.item() == size


def shared_until_written(rank, size, folder):
    """A result goes to its own memory; the tensor that it was cloned from keeps its values."""
    ranks.init(rank, size, folder)
    first = torch.ones(4)
    second = torch._lazy_clone(first)
    dist.all_reduce(second)
    third = torch._lazy_clone(first)
    dist.broadcast(third if rank else torch.full((4,), 7.0), 0)
    return first.tolist() == [1.0] * 4 and second.tolist() == [size] * 4 and (
        rank == 0 or third.tolist() == [7.0] * 4)


def inference(rank, size, folder):
    """Works on strided tensors of inference mode can be awaited outside that mode."""
    ranks.init(rank, size, folder)
    with torch.inference_mode():
        tensor = torch.ones(4, 4).t()[:, :2]
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return bool((tensor == size).all())


def left_out(rank, size, folder):
    """The default group has a device, so torch notifies the ranks outside the group."""
    ranks.init(rank, size, folder)
    dist.group.WORLD.bound_device_id = torch.device("cuda:0")
    group = dist.new_group([0])
    dist.group.WORLD.bound_device_id = None
    dist.barrier()
    return (group is dist.GroupMember.NON_GROUP_MEMBER) == (rank != 0)


def groups(rank, size, folder):
    ranks.init(rank, size, folder)
    evens = dist.new_group(list(range(0, size, 2)))
    odds = dist.new_group(list(range(1, size, 2)))
    everybody = dist.new_group()
    mine = odds if rank % 2 else evens
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == sum(range(rank % 2, size, 2))
    # Two groups with the same ranks are not ordered with each other.
    first, second = torch.ones(1000), torch.ones(1000)
    order = [(first, everybody), (second, dist.group.WORLD)]
    works = [dist.all_reduce(t, group=g, async_op=True)
             for t, g in (order if rank == 0 else reversed(order))]
    for work in works:
        work.wait()
    assert first.eq(size).all() and second.eq(size).all()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [o["rank"] for o in objects] == list(range(size))
    dist.destroy_process_group(mine)
    dist.barrier()
    dist.destroy_process_group()
    return True


def in_place(rank, size, folder, transports):
    """Each rank's input is also its result, whole or in parts."""
    if transports:
        os.environ["HETCOMM_TRANSPORTS"] = transports
    ranks.init(rank, size, folder)
    for each in (1, 1000, 100_000):
        count = each * size
        mine = torch.arange(count, dtype=torch.float32) + 1e6 * rank
        right = torch.cat([torch.arange(each * rank, each * (rank + 1), dtype=torch.float32)
                           + 1e6 * other for other in range(size)])
        whole = mine.clone()
        dist.all_to_all_single(whole, whole)
        assert whole.equal(right), each
        listed = list(mine.clone().chunk(size))
        dist.all_to_all(listed, listed)
        assert torch.cat(listed).equal(right), each
        # From the second half of one tensor into its first, and further.
        shared = torch.cat([torch.zeros(count // 2), mine])
        dist.all_to_all_single(shared[:count], shared[count // 2:])
        assert shared[:count].equal(right), each
    return True


def uneven_lists(rank, size, folder):
    ranks.init(rank, size, folder)
    parts = [torch.zeros(3 * other, 2) for other in range(size)]
    dist.all_gather(parts, torch.full((3 * rank, 2), float(rank)))
    assert all(part.eq(other).all() for other, part in enumerate(parts))
    try:
        dist.all_gather([torch.zeros(4) for _ in range(size)], torch.ones(5))
        return False
    except ValueError as error:
        assert "different sizes" in str(error)
    # One that differs in what another rank sends.
    parts = [torch.zeros(3 + (rank == 0 and other == 1)) for other in range(size)]
    try:
        dist.all_gather(parts, torch.ones(3))
        return False
    except RuntimeError as error:
        return "MISMATCH" in str(error)


def timed_works(rank, size, folder):
    ranks.init(rank, size, folder)
    before = dist.all_reduce(torch.ones(3), async_op=True)
    before.wait()
    try:
        before._get_duration()
        return False
    except RuntimeError as error:
        assert "not timed" in str(error)
    dist.group.WORLD._enable_collectives_timing()
    if rank == 0:
        time.sleep(0.2)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    return work._get_duration() < 100 if rank == 0 else 100 < work._get_duration() < 5000


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def many_groups(rank, size, folder):
    """All groups use the connections of the default group. A file store would take longer than the groups."""
    port = os.path.join(folder, "port")
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
        with open(port + ".new", "w") as file:
            file.write(str(store.port))
        os.rename(port + ".new", port)
    else:
        ranks.until(lambda: os.path.exists(port))
        with open(port) as file:
            store = dist.TCPStore("127.0.0.1", int(file.read()), size, False)
    dist.init_process_group("hetcomm", store=store, rank=rank, world_size=size)
    every = torch.ones(size)
    dist.all_to_all_single(every.clone(), every)
    dist.all_reduce(torch.ones(1_000_000))
    dist.barrier()
    before = descriptors()
    groups = [dist.new_group() for _ in range(100)]
    groups += [dist.new_group(pair) for _ in range(50) for pair in ([0, 1], [3, 2])
               if rank in pair]
    for group in groups:
        tensor = torch.ones(100_000)
        dist.all_reduce(tensor, group=group)
        assert tensor.eq(dist.get_world_size(group)).all()
    there = descriptors()
    for group in groups[::2] + groups[1::2]:
        dist.destroy_process_group(group)
    for _ in range(1000):
        group = dist.new_group()
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group)
        assert tensor.eq(size).all()
        dist.destroy_process_group(group)
    dist.barrier()
    return before, there, descriptors()


def last_group(rank, size, folder):
    """The default group is destroyed first; the groups made from it keep working."""
    ranks.init(rank, size, folder)
    store = dist.FileStore(os.path.join(folder, "beside"), size)
    group = hetcomm.torch._load().create(
        store, rank, size, timedelta(seconds=20), "beside", list(range(size)), None, False)
    dist.destroy_process_group()
    tensors = [torch.ones(10)]
    group.allreduce(tensors).wait()
    return bool(tensors[0].eq(size).all())


def threads(rank, size, folder):
    ranks.init(rank, size, folder)
    count = 4
    made = [dist.new_group() for _ in range(count)]
    failures = []

    def work(index):
        try:
            for turn in range(20):
                tensor = torch.full((1 + 997 * index,), float(turn + index))
                dist.all_reduce(tensor, group=made[index])
                assert tensor.eq(float(size * (turn + index))).all()
        except Exception as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return failures == []


def callbacks(rank, size, folder):
    """Callbacks wait for operations that they start or that were watched before, and end the group."""
    ranks.init(rank, size, folder)
    group = dist.new_group()

    def sum_again(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()

    first = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(sum_again)
    second = first.then(lambda future: sum_again(torch.futures.collect_all([future]).wait()[0]))
    assert second.wait()[0].tolist() == [size**3] * 2

    # Sent after all have attached their callbacks, which would run at once otherwise.
    into = torch.zeros(2)
    slow, quick = (dist.irecv(into[tag:tag + 1], (rank - 1) % size, tag=tag).get_future()
                   for tag in (0, 1))
    waits = quick.then(lambda _: slow.wait())
    dist.barrier()
    for tag in (1, 0):
        dist.send(torch.ones(1), (rank + 1) % size, tag=tag)
    waits.wait()
    assert into.tolist() == [1, 1]

    if rank == 0:
        time.sleep(0.1)
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    work.get_future().then(lambda _: dist.destroy_process_group(group)).wait()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item()


def message_of(function):
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return "no exception"


def mismatched(rank, size, folder, kind):
    ranks.init(rank, size, folder, timeout_s=5)
    dist.barrier()
    calls = {
        "size": lambda: dist.all_reduce(torch.ones(4 + rank)),
        "type": lambda: dist.all_reduce(torch.ones(4).to(torch.float64 if rank else torch.float32)),
        "operator": lambda: dist.all_reduce(
            torch.ones(4), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM),
        "root": lambda: dist.broadcast(torch.ones(4), rank % 2),
        "order": lambda: dist.barrier() if rank else dist.all_reduce(torch.ones(4)),
    }
    began = time.monotonic()
    text = message_of(calls[kind])
    next_text = message_of(lambda: dist.all_reduce(torch.ones(1)))
    return text, next_text, time.monotonic() - began


def shrunk(rank, size, folder, flags):
    """The group continues without rank 1, whatever was pending on that rank."""
    torch.set_default_device("cpu")  # torch makes a group for this one only
    ranks.init(rank, size, folder)
    dist.barrier()
    # An abort reaches those that have not come back from it as well.
    ranks.meet(rank, size, folder)
    if rank == 1:
        return None
    pending = dist.all_reduce(torch.ones(1), async_op=True)
    group = dist.shrink_group([1], shrink_flags=flags)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=group)
    return dist.get_world_size(), tensor.item(), message_of(pending.wait)


def numbered(rank, size, folder):
    """Sequence numbers count collective operations; the time limit can be changed."""
    ranks.init(rank, size, folder)
    group = dist.group.WORLD
    # Through a group, torch asks only its own backends for these.
    backend = group._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), 0)
    counted = backend._get_sequence_number_for_group() - before
    limit = timedelta(milliseconds=700)
    backend.set_timeout(limit)
    options = backend.options
    over = os.path.join(folder, "over")
    if rank == 1:
        ranks.until(lambda: all(os.path.exists(f"{over}{r}") for r in range(size) if r != 1))
        return counted, options._timeout == limit, True
    began = time.monotonic()
    text = message_of(lambda: dist.all_reduce(torch.ones(1)))
    in_time = time.monotonic() - began < 15  # the group's first limit is 30 s
    open(f"{over}{rank}", "w").close()
    return counted, options._timeout == limit, "[" in text and in_time


def hooked(rank, size, folder):
    """The hook receives every work, also those that nobody waits for and those after one on which it fails."""
    ranks.init(rank, size, folder)
    group = dist.group.WORLD
    seen = []

    def hook(info):
        seen.append((str(info.op_type).rpartition(".")[2], info.seq, info.active_duration))
        if len(seen) == 2:
            raise ValueError("the hook's own trouble")

    backend = group._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    group._register_on_completion_hook(hook)
    dist.all_reduce(torch.ones(3), async_op=True)
    work = dist.broadcast(torch.ones(100_000), 0, async_op=True)
    dist.barrier()
    work.wait()
    dist.all_reduce(torch.ones(5), async_op=True)
    group._wait_for_pending_works()
    good = all(timedelta(0) <= duration < timedelta(seconds=20) for _, _, duration in seen)
    return good, group._has_hooks(), sorted((seq - before, name) for name, seq, _ in seen)


def profiled(rank, size, folder):
    """The profiler knows operations by their names and the sizes of their tensors."""
    ranks.init(rank, size, folder)
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 5))
        dist.all_gather_into_tensor(torch.empty(2 * size), torch.ones(2))
    return sorted((event.name, str(event.input_shapes)) for event in profile.events()
                  if event.name.startswith("hetcomm:"))


def recorded(rank, size, folder):
    """torch's flight recorder lists every operation of the group, if it is enabled."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    ranks.init(rank, size, folder)
    dist.all_reduce(torch.ones(2, 3))
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(7), 1)
    else:
        dist.recv(torch.ones(7), 0)
    dist.destroy_process_group()
    ranks.init(rank, size, folder)
    dist.all_reduce(torch.ones(4))
    dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(includeCollectives=True))
    return [(entry["is_p2p"], entry["input_sizes"], entry["retired"]) for entry in dump["entries"]]


def recorded_by_torch(rank, size, folder):
    """Since 2.15 torch attaches its own recorder, which lists each operation once and marks its end."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
    ranks.init(rank, size, folder)
    dist.all_reduce(torch.ones(2, 3))
    dist.all_reduce(torch.ones(5), async_op=True)  # nobody waits for it
    dist.barrier()
    late = dist.irecv(torch.ones(7), 1 - rank, tag=3)

    def entries():
        dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(
            includeCollectives=True, backend="hetcomm"))
        return [(entry["is_p2p"], entry["input_sizes"], entry["state"])
                for entry in dump["entries"]]

    ranks.until(lambda: [each[2] for each in entries()][:3] == ["completed"] * 3)
    before = entries()
    ranks.meet(rank, size, folder)  # nobody sends before both have looked
    dist.send(torch.ones(7), 1 - rank, tag=3)
    late.wait()
    return before, [each[2] for each in entries()]


def aborting(rank, size, folder):
    """Abort hooks run when an operation fails, before any waiter continues."""
    ranks.init(rank, size, folder)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    called = []
    backend.register_abort_hook(1, lambda: called.append(1))
    backend.register_abort_hook(2, lambda: called.append(2))
    backend.register_abort_hook(3, lambda: called.append(3))
    backend.unregister_abort_hook(2)
    dist.barrier()
    pending = dist.irecv(torch.ones(1), 1 - rank, tag=5)
    backend.set_timeout(timedelta(milliseconds=200))
    text = message_of(dist.irecv(torch.ones(1), 1 - rank).wait)
    return "TIMED_OUT" in text, called, pending.is_completed()


def gathered(rank, size, folder):
    """Gathers into one tensor, which may be strided."""
    ranks.init(rank, size, folder)
    own = torch.arange(4) + 10 * rank
    packed = torch.zeros(4 * size, dtype=torch.long) if rank == 1 else None
    dist.gather_single(own, packed, 1)
    holes = torch.zeros(4 * size, 2, dtype=torch.long)[:, 0] if rank == 1 else None
    dist.gather_single(own, holes, 1)
    try:
        dist.gather_single(own, torch.zeros(5, dtype=torch.long), rank)
        wrong = ""
    except ValueError as error:
        wrong = str(error)
    return (packed.tolist(), holes.tolist(), "5 elements are not" in wrong) if rank == 1 else None


def missing(rank, size, folder):
    """A rank is missing from the first operation of a group, which is used afterwards."""
    ranks.init(rank, size, folder, timeout_s=20)
    text = ""
    if rank != 1:
        text = message_of(lambda: hetcomm.torch.monitored_barrier(timeout=timedelta(seconds=0.5)))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return text if tensor.item() == size else "a wrong sum"


class Collectives(ranks.TestCase):
    def test_modules_import_in_any_order(self):
        """torch's entry point calls back into a module that imports torch."""
        for order in ("hetcomm.torch", "torch", "torch, hetcomm.torch", "hetcomm.torch, torch"):
            program = f"import {order}; import torch.distributed as d; print(d.Backend.backend_list)"
            ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
            self.assertIn("hetcomm", ended.stdout, ended.stderr)

    def test_reductions_give_the_exact_result(self):
        for size in (1, 2, 3, 4):
            self.all_equal(ranks.run(size, reductions), True)

    def test_every_operator_gives_the_right_result(self):
        self.all_equal(ranks.run(3, operators), True)

    def test_data_movement_operations_give_each_rank_its_values(self):
        for size in (2, 3, 4):
            self.all_equal(ranks.run(size, movements), True)

    def test_uneven_splits_arrive_intact(self):
        self.all_equal(ranks.run(3, uneven), True)

    def test_views_give_the_results_of_packed_tensors(self):
        self.all_equal(ranks.run(3, views), True)

    def test_every_kind_of_view_gives_the_results_of_packed_tensors(self):
        for kind in ("holes", "transposed", "expanded", "expanded twice", "negated",
                     "empty", "scalar"):
            with self.subTest(kind):
                self.all_equal(ranks.run(3, all_views, kind), True)

    def test_tensor_expanded_on_one_rank_is_accepted(self):
        self.all_equal(ranks.run(3, expanded_on_one_rank), True)

    def test_coalesced_operations_give_the_right_results(self):
        self.all_equal(ranks.run(3, coalesced), True)

    @unittest.skipIf(ranks.DEVICE != "cpu", "sparse tensors are in host memory")
    def test_sparse_tensors_are_summed(self):
        self.all_equal(ranks.run(3, sparse), True)

    def test_result_does_not_overwrite_the_tensor_it_was_cloned_from(self):
        self.all_equal(ranks.run(2, shared_until_written), True)

    def test_work_started_in_inference_mode_can_be_awaited_outside(self):
        self.all_equal(ranks.run(2, inference), True)

    def test_in_place_operations_give_the_same_result(self):
        for transports in ("", "tcp"):
            self.all_equal(ranks.run(4, in_place, transports), True)

    def test_lists_of_uneven_tensors_arrive_and_mismatches_raise(self):
        self.all_equal(ranks.run(3, uneven_lists), True)

    @unittest.skipUnless(hasattr(dist.ProcessGroup, "_enable_collectives_timing"),
                         "this torch cannot switch it on")
    def test_works_report_their_duration(self):
        self.all_equal(ranks.run(2, timed_works), True)

    def test_many_groups_share_the_connections_of_the_default_group(self):
        for before, there, after in ranks.run(4, many_groups):
            self.assertLess(there, 100)
            self.assertLessEqual(after, there)
            self.assertLess(there, before + 10)

    def test_subgroups_work_after_the_default_group_is_destroyed(self):
        self.all_equal(ranks.run(3, last_group), True)

    def test_rank_outside_a_group_is_not_affected(self):
        self.all_equal(ranks.run(2, left_out), True)

    def test_operations_in_subgroups_give_the_right_results(self):
        self.all_equal(ranks.run(4, groups), True)

    def test_operations_are_numbered_and_the_timeout_can_be_changed(self):
        self.all_equal(ranks.run(2, numbered), (3, True, True))

    @unittest.skipUnless(hasattr(dist, "shrink_group"), "this torch cannot shrink groups")
    def test_group_continues_after_shrinking(self):
        for flags in (0, 1):
            results = ranks.run(4, shrunk, flags)
            self.assertIsNone(results.pop(1))
            for size, total, text in results:
                self.assertEqual((size, total), (3, 5.0))
                self.assertNotEqual(text, "no exception")
                self.assertEqual("shrinks the process group" in text, flags == 1)

    def test_completion_hook_receives_every_work(self):
        self.all_equal(ranks.run(2, hooked), (True, True, [
            (0, "ALLREDUCE"), (1, "BROADCAST"), (2, "BARRIER"), (3, "ALLREDUCE")]))

    def test_profiler_names_operations_and_sizes(self):
        self.all_equal(ranks.run(2, profiled), [("hetcomm:_all_gather_base", "[[2]]"),
                                                ("hetcomm:all_reduce", "[[3, 5]]")])

    @unittest.skipUnless(ranks.TORCH == (2, 14), "2.14 has a recorder for any backend and attaches none")
    def test_flight_recorder_lists_every_operation(self):
        for rank, entries in enumerate(ranks.run(2, recorded)):
            self.assertEqual(entries, [
                (False, [[2, 3]], True), (False, [], True), (True, [] if rank else [[7]], True),
                (False, [[4]], True)])

    @unittest.skipUnless(ranks.TORCH >= (2, 15), "before 2.15 torch attaches no recorder by itself")
    def test_recorder_attached_by_torch_lists_every_operation_once(self):
        for before, after in ranks.run(2, recorded_by_torch):
            self.assertEqual(before[:3], [(False, [[2, 3]], "completed"), (False, [[5]], "completed"),
                                          (False, [], "completed")])
            self.assertEqual([each[2] for each in before[3:]], ["scheduled"])
            self.assertEqual(after, ["completed"] * 5)

    @unittest.skipUnless(hasattr(torch._C._distributed_c10d.Backend, "register_abort_hook"),
                         "this torch has no binding for them")
    def test_abort_hooks_run_before_a_waiter_continues(self):
        self.all_equal(ranks.run(2, aborting), (True, [1, 3], False))

    @unittest.skipUnless(hasattr(dist, "gather_single"), "this torch has no gather_single")
    def test_gather_into_one_tensor_gives_all_values(self):
        results = ranks.run(3, gathered)
        expected = [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]
        self.assertEqual(results[1], (expected, expected, True))

    def test_threads_use_groups_concurrently(self):
        self.all_equal(ranks.run(2, threads), True)

    def test_future_callback_can_start_operations(self):
        self.all_equal(ranks.run(3, callbacks), 3)


class Failures(ranks.TestCase):
    def test_mismatched_calls_raise_on_both_ranks(self):
        for kind in ("size", "type", "operator", "root", "order"):
            with self.subTest(kind):
                for text, next_text, seconds in ranks.run(2, mismatched, kind):
                    self.assertIn("MISMATCH", text)
                    self.assertNotEqual(next_text, "no exception")
                    self.assertLess(seconds, 5)

    def test_monitored_barrier_names_the_missing_rank(self):
        rank_0, _, rank_2 = ranks.run(3, missing)
        self.assertIn("Rank 1 failed to pass monitoredBarrier", rank_0)
        self.assertIn("Rank 1 failed to pass monitoredBarrier", rank_2)


if __name__ == "__main__":
    unittest.main()
