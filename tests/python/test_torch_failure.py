"""Failures in a job of four ranks that runs collective operations.

Proves: a killed or stopped rank, mismatched calls, receives that are too small, an abort, a group
that ends with pending work, a rank that never joins and a timeout each raise torch's
DistBackendError with its reason on every rank that waits for a work or its future, in bounded time;
a refused argument raises ValueError. The surviving ranks stay alive, their other groups keep
working, and the group can be made again over the same store, also with a new process in place of a
killed rank. Forked children have no effect. The random key of a job without a secret is deleted
from the store.

Failures of messages between two ranks are in test_torch_messages.py.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import timedelta

import torch
import torch._dynamo  # here once: an optimizer or a DTensor loads it, in each rank
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hetcomm.torch
import ranks

SIZE = 4
LOST = 2
SURVIVORS = [0, 1, 3]
BIG = 2_000_000


def setUpModule():
    ranks.without_recorder()  # how long ranks take is measured here


def timed(function, raises=dist.DistBackendError):
    """The text of the exception that |function| raises, and the duration. Any other exception is a failure."""
    began = time.monotonic()
    try:
        function()
        text = "no exception"
    except raises as error:
        assert type(error) is raises, type(error)
        text = str(error)
    return text, time.monotonic() - began


def sum_of_ones(group=None):
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def make_again(rank, size, folder):
    dist.destroy_process_group()
    ranks.init(rank, size, folder)
    return sum_of_ones()


def state_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def is_dead(pid):
    try:
        return state_of(pid) == "Z"
    except OSError:
        return True


def init_over(store, rank, size, timeout_s=30):
    dist.init_process_group(
        "hetcomm", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))


def tell(path, value):
    """Whoever sees the file finds it complete."""
    with open(path + ".new", "w") as file:
        file.write(str(value))
    os.rename(path + ".new", path)


def told(path):
    ranks.until(lambda: os.path.exists(path))
    with open(path) as file:
        return int(file.read())


def tcp_store(folder, is_master):
    known = os.path.join(folder, "port")
    port = 0 if is_master else told(known)
    options = dict(is_master=is_master, wait_for_workers=False)
    try:
        store = dist.TCPStore("localhost", port, **options)
    except RuntimeError:  # this torch asks for libuv and was built without
        store = dist.TCPStore("localhost", port, use_libuv=False, **options)
    if is_master:
        tell(known, store.port)
    return store


# --- lost ranks ----------------------------------------------------------------------------------


def killed(rank, size, folder, elements):
    """A rank is killed during operations, while a group without that rank exists."""
    ranks.init(rank, size, folder)
    others = dist.new_group(SURVIVORS)
    dist.barrier()
    if rank == LOST:
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

    def work():
        tensor = torch.zeros(elements)
        while True:
            dist.all_reduce(tensor)

    text, seconds = timed(work)
    next_text, next_seconds = timed(dist.barrier)
    missing_text, missing_seconds = timed(hetcomm.torch.monitored_barrier)
    seconds += next_seconds + missing_seconds
    return text, next_text, missing_text, seconds, sum_of_ones(others)


def killed_in_training(rank, size, folder, sparse):
    ranks.init(rank, size, folder)
    model = DistributedDataParallel(nn.Embedding(100, 100, sparse=True) if sparse
                                    else nn.Linear(100, 100))
    rows = torch.tensor([1, 2]) if sparse else torch.ones(2, 100)
    steps = 0

    def work():
        nonlocal steps
        while True:
            if rank == LOST and steps == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            model(rows).sum().backward()
            steps += 1

    text, seconds = timed(work)
    return text, seconds, steps


def stopped(rank, size, folder):
    """A stopped rank answers nobody and keeps its connections; when it resumes it learns what happened."""
    ranks.init(rank, size, folder, timeout_s=1)
    others = dist.new_group(SURVIVORS)
    pids = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    pid = pids[LOST].item()
    if rank == LOST:
        os.kill(pid, signal.SIGSTOP)
    else:
        ranks.until(lambda: state_of(pid) == "T")
    text, seconds = timed(lambda: dist.all_reduce(torch.ones(BIG)))
    if rank == LOST:
        return text, seconds, len(SURVIVORS)
    total = sum_of_ones(others)
    if rank == 0:
        os.kill(pid, signal.SIGCONT)
    return text, seconds, total


def never_came(rank, size, folder):
    """Rank 0 detects it an eighth of the time before the others would give up."""
    found = "", 0.0
    if rank != LOST:
        # Not over a file: torch's FileStore counts its waits in whole seconds.
        store = tcp_store(folder, rank == 0)
        found = timed(lambda: init_over(store, rank, size, timeout_s=4))
    ranks.meet(rank, size, folder)  # the store's server goes with rank 0
    return found


# --- replaced ranks ------------------------------------------------------------------------------


def replaced(rank, size, folder, over_tcp, lost, dies_early):
    """The process after the last rank waits until rank |lost| is dead and takes its place.

    It also has the store's server, where there is one. The survivors make the group again over the
    same store. A rank that dies early does so while it waits for others to make the group.
    """
    spare = rank == size - 1
    size -= 1
    store = (tcp_store(folder, spare) if over_tcp
             else dist.FileStore(os.path.join(folder, "store"), -1))
    known = os.path.join(folder, "pid")
    text, seconds = "", 0.0
    if rank == lost:
        tell(known, os.getpid())
        if dies_early:
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    else:
        pid = told(known)
        if spare or dies_early:
            ranks.until(lambda: is_dead(pid))
    if not spare:
        def work():
            init_over(store, rank, size, timeout_s=2 if dies_early else 30)
            tensor = torch.zeros(1000)
            while True:
                if rank == lost and tensor[0] == 100:
                    os.kill(os.getpid(), signal.SIGKILL)
                tensor += 1
                dist.broadcast(tensor, 0)
                dist.barrier()

        text, seconds = timed(work)
        if dist.is_initialized():
            dist.destroy_process_group()
    return text, seconds, used_after(store, lost if spare else rank, size)


def used_after(store, rank, size):
    """The results of operations in a group that was made again, and in a part of it."""
    init_over(store, rank, size)
    total = torch.arange(5.0) + rank
    dist.all_reduce(total)
    parts = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(parts, torch.full((1,), float(rank)))
    message = torch.zeros(BIG)
    dist.batch_isend_irecv([
        dist.P2POp(dist.isend, torch.full((BIG,), float(rank)), (rank + 1) % size),
        dist.P2POp(dist.irecv, message, (rank - 1) % size),
    ])[-1].wait()
    half = dist.new_group([0, LOST])
    pair = torch.ones(3)
    if rank in (0, LOST):
        dist.all_reduce(pair, group=half)
    dist.barrier()
    return total.tolist(), torch.cat(parts).tolist(), message.unique().item(), pair[0].item()


def late(rank, size, folder):
    """Rank LOST joins after the others have given up once and try again."""
    store = tcp_store(folder, rank == 0)
    known = os.path.join(folder, "gave_up")
    text = ""
    if rank == LOST:
        for survivor in SURVIVORS:
            told(known + str(survivor))
    else:
        text, _ = timed(lambda: init_over(store, rank, size, timeout_s=1))
        tell(known + str(rank), 1)
    return text, used_after(store, rank, size)


def reconfigured(rank, size, folder):
    """The same by torch's own interface, where the members are those whose handles are given."""
    store = dist.FileStore(os.path.join(folder, "store"), -1)
    pid = os.path.join(folder, "pid")
    dist.init_process_group("hetcomm", store=store, rank=rank, world_size=size,
                            timeout=timedelta(seconds=20), enable_reconfigure=True)
    group = dist.group.WORLD
    ended = []
    group._register_on_completion_hook(ended.append)
    early, _ = timed(lambda: dist.all_reduce(torch.ones(1)))
    store.set(f"handle/{rank}", group.get_reconfigure_handle())
    handles = [store.get(f"handle/{each}").decode() for each in range(size)]
    first = [handles[each] for each in range(size - 1)]
    second = [handles[each] for each in (size - 1, 0, 1, 3)]
    if rank == LOST:
        tell(pid, os.getpid())
    totals = []
    for uuid, members in ((1, first), (2, second), (3, set(second[:2]))):
        if handles[rank] not in members:
            if uuid == 1:
                ranks.until(lambda: is_dead(told(pid)))
            continue
        dist._reconfigure(uuid=uuid, handles=members).wait()
        before = len(ended)
        totals.append((group.size(), sum_of_ones()))
        assert len(ended) == before + 1
        if isinstance(members, list):
            assert group.rank() == members.index(handles[rank])
        if uuid == 1:
            if rank == LOST:
                os.kill(os.getpid(), signal.SIGKILL)
            text, _ = timed(dist.barrier)
            assert "PEER_LOST" in text or "ABORTED" in text, text
    return early, totals


# --- calls that do not fit together --------------------------------------------------------------


def unfitting(rank, size, folder, kind):
    """The last rank makes a different call."""
    ranks.init(rank, size, folder, timeout_s=5)
    odd = rank == size - 1
    length = 4 + odd

    def ones(count=4):
        return torch.ones(count)

    calls = {
        "size of all_gather": lambda: dist.all_gather_into_tensor(
            ones(size * length), ones(length)),
        "size of broadcast": lambda: dist.broadcast(ones(length), 0),
        "size of reduce_scatter": lambda: dist.reduce_scatter_tensor(
            ones(length), ones(size * length)),
        "root of reduce": lambda: dist.reduce(ones(), int(odd)),
        "root of gather": lambda: dist.gather(
            ones(), [ones() for _ in range(size)] if rank == int(odd) else None, int(odd)),
        "type of all_gather": lambda: dist.all_gather_into_tensor(
            ones(16).to(torch.int32 if odd else torch.float32),
            ones(4).to(torch.int32 if odd else torch.float32)),
        "operator of reduce_scatter": lambda: dist.reduce_scatter_tensor(
            ones(4), ones(16), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM),
        "order": lambda: dist.all_gather_into_tensor(ones(16), ones()) if odd
                 else dist.all_reduce(ones()),
        "big": lambda: dist.all_reduce(ones(BIG + odd)),
    }
    # A rank that only sends is done before the others see it: it learns at its next operation.
    text, seconds = timed(calls[kind])
    next_text, next_seconds = timed(dist.barrier)
    return text, next_text, seconds + next_seconds


def unfitting_splits(rank, size, folder):
    """Rank 0 sends one element more than rank 1 expects."""
    ranks.init(rank, size, folder, timeout_s=5)
    sends = [1] * size
    if rank == 0:
        sends[1] = 2
    text, seconds = timed(lambda: dist.all_to_all_single(
        torch.empty(size), torch.ones(sum(sends)), [1] * size, sends))
    next_text, next_seconds = timed(dist.barrier)
    return text, next_text, seconds + next_seconds


def unfitting_sparse(rank, size, folder, kind):
    """The sparse tensor of the last rank differs from the others."""
    ranks.init(rank, size, folder, timeout_s=5)
    odd = rank == size - 1
    shape = {"shapes": (4, 2 + odd), "dimensions": (4, 2), "types": (4, 2)}[kind]
    dense = torch.ones(shape, dtype=torch.float64 if kind == "types" and odd else torch.float32)
    tensor = dense.to_sparse(1 if kind == "dimensions" and odd else 2)
    text, seconds = timed(lambda: dist.all_reduce(tensor))
    return text, seconds, sum_of_ones()


def text_of_failure(work):
    """None with a torch that cannot pass exceptions of works to Python."""
    try:
        failure = work.exception()
    except TypeError as error:
        assert ranks.TORCH < (2, 7) and "exception_ptr" in str(error), error
        return None
    assert isinstance(failure, dist.DistBackendError), repr(failure)
    return str(failure)


def sparse_without_a_rank(rank, size, folder):
    """A rank is missing: the wait itself reports it, and can have a time limit."""
    ranks.init(rank, size, folder, timeout_s=2)
    if rank == LOST:
        return None
    work = dist.all_reduce(torch.ones(4).to_sparse(), async_op=True)
    early, _ = timed(lambda: work.wait(timedelta(milliseconds=200)))
    text, seconds = timed(work.wait)
    return early, text, seconds, work.is_success(), text_of_failure(work)


def closed_while_coalescing(rank, size, folder):
    """Collected operations are dropped, and the end of coalescing raises."""
    ranks.init(rank, size, folder)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._start_coalescing()
    work = backend.allreduce([torch.ones(4)])
    _, seconds = timed(backend.shutdown)
    text, _ = timed(backend._end_coalescing)
    work_text, _ = timed(work.wait)
    return seconds, text, work_text


def failed_together(rank, size, folder):
    ranks.init(rank, size, folder, timeout_s=1)
    if rank != 0:
        return None
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._start_coalescing()
    dist.irecv(torch.empty(4), 1)
    work = backend._end_coalescing()
    text, _ = timed(work.wait)
    return text, work.is_success(), text_of_failure(work)


def failed_batch(rank, size, folder):
    """Operations after the failed batch work."""
    ranks.init(rank, size, folder)
    batch = [dist.P2POp(dist.isend, torch.ones(4), 1 - rank, tag=9),
             dist.P2POp(dist.irecv, torch.empty(4).to_sparse(), 1 - rank, tag=8)]
    text, _ = timed(lambda: dist.batch_isend_irecv(batch), NotImplementedError)  # torch's own
    total = sum_of_ones()
    message = torch.zeros(4)
    dist.recv(message, 1 - rank, tag=9)
    return text, total, message.tolist()


def coalescing_given_up(rank, size, folder):
    """Operations that were collected before another start never start."""
    ranks.init(rank, size, folder)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    backend._start_coalescing()
    left = backend.send([torch.ones(4)], 1 - rank, 3)
    backend._start_coalescing()
    message = torch.zeros(4)
    backend.send([torch.full((4,), 2.0)], 1 - rank, 3)
    backend.recv([message], 1 - rank, 3)
    backend._end_coalescing().wait()
    text, _ = timed(left.wait)
    return message.tolist(), text, sum_of_ones()


AT_THE_END = """
import atexit, os, signal, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
rank, folder, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("hetcomm", store=dist.FileStore(folder + "/store", -1), rank=rank,
                        world_size=2, timeout=timedelta(seconds=20))
if what == "running":
    began = threading.Event()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    future = work.get_future().then(lambda _: (began.set(), time.sleep(0.5)))
    began.wait()
elif what == "pending":
    work = dist.irecv(torch.empty(4), 1 - rank)
    future = work.get_future().then(lambda _: time.sleep(0.2))
elif what == "closed":
    group, began = dist.group.WORLD, threading.Event()
    def close(info):
        group._get_backend(torch.device("cpu")).shutdown()
        began.set()
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            time.sleep(0.001)
    group._register_on_completion_hook(close)
    # The thread of the hook drops the work, and with it many objects of Python.
    tensors = [torch.ones(1) for _ in range(20000)]
    group._get_backend(torch.device("cpu")).allreduce_coalesced(tensors)
    del tensors
    began.wait()
elif what == "later":
    later = dist.new_group([0, 1], timeout=timedelta(seconds=20))
    pending = dist.irecv(torch.empty(4), 1 - rank, group=later)
    def wait(_):
        began = time.monotonic()
        for begin in (lambda: pending, lambda: dist.irecv(torch.empty(4), 1 - rank, group=later)):
            try:
                begin().wait()
            except RuntimeError:
                pass
        if time.monotonic() - began > 10:
            print("slow")
    future = dist.irecv(torch.empty(4), 1 - rank).get_future().then(wait)
elif what == "endless":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    began = threading.Event()
    work = dist.irecv(torch.empty(4), 1 - rank)
    future = work.get_future().then(lambda _: (began.set(), threading.Event().wait()))
    dist.barrier()  # a message that is there already would have its callback run on this thread
    dist.send(torch.ones(4), 1 - rank)
    began.wait()
elif rank == 0:
    work = dist.all_reduce(torch.ones(4).to_sparse(), async_op=True)
    future = work.get_future().then(lambda _: time.sleep(0.2))
atexit.register(print, "over", flush=True)  # runs just before the groups are closed
"""


def start_to_end(folder, what):
    """Two ranks that run AT_THE_END."""
    return [
        subprocess.Popen([sys.executable, "-c", AT_THE_END, str(rank), folder, what],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)]


BY_EXCEPTION = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
rank, folder, what = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("hetcomm", store=dist.FileStore(folder + "/store", -1), rank=rank,
                        world_size=2, timeout=timedelta(seconds=20))
for i in range(100):
    if rank == 1 and i == 20:
        if what == "exit":
            sys.exit(3)
        raise ValueError("my own bug\\nwith a second line")
    if what == "message" and i == 20:
        dist.recv(torch.ones(1000), 1)
    dist.all_reduce(torch.ones(1000))
"""


def too_small(rank, size, folder, elements):
    """A receive is too small: in a batch, by its future, and next to a receive that fits."""
    ranks.init(rank, size, folder)
    if rank == 0:
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, torch.ones(elements), 1),
            dist.P2POp(dist.isend, torch.full((5,), 3.0), 1, tag=1),
        ]):
            timed(work.wait)  # the sender may learn of it
        return sum_of_ones()
    if rank == 1:
        fits = torch.zeros(5)
        short = torch.zeros(elements - 1)
        first = dist.irecv(short, 0)
        second = dist.irecv(fits, 0, tag=1)
        text, seconds = timed(first.get_future().wait)
        assert "TRUNCATED" in text and seconds < 5, text
        assert "TRUNCATED" in timed(first.wait)[0]
        second.wait()
        assert fits.eq(3).all()
    return sum_of_ones()


# --- ends that are asked for ---------------------------------------------------------------------


def aborted(rank, size, folder):
    """A thread of rank 1 aborts a group without taking part in its operations; rank 3 has made no call."""
    ranks.init(rank, size, folder)
    dist.barrier()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    if rank == 1:
        threading.Timer(0.2, lambda: backend.abort_with("enough of it")).start()
    if rank == 3:
        time.sleep(0.5)
    works = [] if rank == 3 else [dist.all_reduce(torch.ones(n), async_op=True) for n in (1, BIG)]
    errors = [work.get_future() for work in works]
    found = [timed(work.wait) for work in works] + [timed(dist.barrier)]
    for future in errors:
        found.append(timed(future.wait))
    return found, make_again(rank, size, folder)


def unmakeable(rank, size, folder, late, variable, value):
    """Settings of rank 1 prevent the first group; all ranks then make another one."""
    if rank == 1:
        os.environ[variable] = value
    if rank == late:
        time.sleep(0.5)
    text, seconds = timed(lambda: ranks.init(rank, size, folder))
    if rank == 1:
        del os.environ[variable]
    ranks.init(rank, size, folder)
    return text, seconds, sum_of_ones()


def refused(rank, size, folder, what):
    """Rank 1 refuses its own arguments; the others get the reason and do not wait."""
    ranks.init(rank, size, folder)
    dist.barrier()
    odd = rank == 1
    # What ends an operation of a group ends those before it on ranks that are not done with them.
    ranks.meet(rank, size, folder, "past")
    calls = {
        "list": lambda: dist.all_gather([torch.ones(4) for _ in range(size - odd)], torch.ones(4)),
        "rows": lambda: dist.all_to_all_single(torch.ones(size + odd), torch.ones(size)),
    }
    text, seconds = timed(calls[what], ValueError if odd else dist.DistBackendError)
    # Rank 1 stays.
    time.sleep(1.5)
    return text, seconds


def refused_by_all(rank, size, folder):
    """Only the refused calls fail."""
    ranks.init(rank, size, folder)
    for turn in range(20):
        if turn % size == rank:
            time.sleep(0.002)
        for _ in range(turn % 3):
            try:
                dist.all_gather([torch.ones(8)], torch.ones(8))
                return False
            except ValueError as error:
                assert "takes a list of" in str(error), error
        tensor = torch.ones(8)
        dist.all_reduce(tensor)
        assert tensor.eq(size).all()
    return True


def destroyed(rank, size, folder):
    """Rank 3 leaves instead of taking part in the operations of the others."""
    ranks.init(rank, size, folder)
    dist.barrier()
    ranks.meet(rank, size, folder, "past")  # no rank is in the barrier when rank 3 leaves
    if rank == 3:
        dist.destroy_process_group()
        return "", 0.0, True
    work = dist.all_reduce(torch.ones(BIG), async_op=True)
    future = work.get_future()
    text, seconds = timed(work.wait)
    return text, seconds, "no exception" not in timed(future.wait)[0]


def destroyed_with_pending(rank, size, folder):
    """Pending collective operations, one of them with a callback, end with their own group."""
    ranks.init(rank, size, folder)
    dist.barrier()
    gone = os.path.join(folder, "gone")
    # What ends an operation of a group ends those before it on ranks that are not done with them.
    ranks.meet(rank, size, folder, "past")
    if rank == 3:
        ranks.until(lambda: all(os.path.exists(f"{gone}{r}") for r in range(3)))
        return "", 0.0, True
    works = [dist.all_reduce(torch.ones(n), async_op=True) for n in (1, 1000, BIG)]
    called = threading.Event()
    works[1].get_future().then(lambda future: called.set())
    began = time.monotonic()
    dist.destroy_process_group()
    seconds = time.monotonic() - began
    open(f"{gone}{rank}", "w").close()
    text = " | ".join(timed(work.wait)[0] for work in works)
    return text, seconds, called.wait(5)


def closed_by_all(rank, size, folder):
    """Callbacks of cancelled works end a group that is already being ended."""
    ranks.init(rank, size, folder)
    dist.barrier()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    called = []

    def end(_):
        backend.shutdown()
        called.append(rank)

    for tag in range(3):
        into = torch.zeros(1)
        dist.irecv(into, (rank + 1) % size, tag=tag).get_future().add_done_callback(end)
    ranks.meet(rank, size, folder)  # the end of one rank is felt by the others
    began = time.monotonic()
    backend.shutdown()
    seconds = time.monotonic() - began
    return seconds, ranks.until(lambda: len(called) == 3) is None and len(called)


def timed_out(rank, size, folder):
    """One rank is too late; all ranks make the group again over the same store."""
    ranks.init(rank, size, folder, timeout_s=1)
    dist.barrier()
    if rank == LOST:
        time.sleep(1.5)
    text, seconds = timed(lambda: dist.all_reduce(torch.ones(100)))
    return text, seconds, make_again(rank, size, folder)


# --- forks ---------------------------------------------------------------------------------------


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((8,), float(index))


def loads_data(rank, size, folder):
    """Workers are forked and end while operations run and futures are watched."""
    ranks.init(rank, size, folder)
    model = DistributedDataParallel(nn.Linear(8, 1))
    seen = 0
    for _ in range(2):
        loader = torch.utils.data.DataLoader(Squares(), batch_size=8, num_workers=2)
        pending = dist.all_reduce(torch.ones(BIG), async_op=True)
        for rows in loader:
            model(rows).sum().backward()
            seen += len(rows)
        pending.wait()
    return seen, sum_of_ones()


def forked(rank, size, folder):
    """A child that uses the group gets an error; one that does not use it ends normally."""
    ranks.init(rank, size, folder)
    work = dist.irecv(torch.empty(1), (rank - 1) % size, tag=1)
    future = work.get_future()  # watched by a thread that the child does not have
    codes = []
    for uses in (True, False):
        pid = os.fork()
        if pid == 0:
            if uses:
                text, _ = timed(lambda: dist.all_reduce(torch.ones(1)))
                os._exit(0 if "FORKED" in text else 1)
            dist.destroy_process_group()
            os._exit(0)
        began = time.monotonic()
        ranks.until(lambda: state_of(pid) == "Z")
        codes.append((os.waitpid(pid, 0)[1], time.monotonic() - began < 5))
    dist.send(torch.ones(1), (rank + 1) % size, tag=1)
    future.wait()
    return codes, sum_of_ones()


def keys_of_the_store(rank, size, folder):
    """The keys that anyone with access finds in the store of a job without a secret."""
    path = os.path.join(folder, "port")
    port = 0
    if rank != 0:
        ranks.until(lambda: os.path.exists(path))
        with open(path) as file:
            port = int(file.read())
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    if rank == 0:
        with open(path + ".new", "w") as file:
            file.write(str(store.port))
        os.rename(path + ".new", path)
    dist.init_process_group("hetcomm", store=store, rank=rank, world_size=size,
                            timeout=timedelta(seconds=30))
    total = sum_of_ones()
    keys = store.list_keys()
    dist.barrier()
    return total, keys


def without_a_secret(rank, size, folder, variable):
    os.environ[variable] = "on"
    return timed(lambda: ranks.init(rank, size, folder) or sum_of_ones())[0]


class Secrets(ranks.TestCase):
    @unittest.skipUnless(hasattr(dist.TCPStore, "list_keys"), "the store of this torch does not list its keys")
    def test_random_key_is_deleted_from_the_store(self):
        for total, keys in ranks.run(2, keys_of_the_store):
            self.assertEqual(total, 2)
            self.assertTrue(any("hetcomm" in key for key in keys), keys)
            self.assertEqual([key for key in keys if "secret" in key], [])

    def test_job_without_a_required_secret_is_refused(self):
        for variable in ("HETCOMM_REQUIRE_TLS", "HETCOMM_REQUIRE_SECRET"):
            for text in ranks.run(2, without_a_secret, variable):
                self.assertIn("PERMISSION_DENIED", text)
                self.assertIn(variable, text)
                self.assertIn("HETCOMM_SECRET_FILE", text)


class LostRanks(ranks.TestCase):
    def test_rank_killed_during_an_operation_ends_it_with_the_reason(self):
        for elements in (10, BIG):
            with self.subTest(elements=elements):
                results = ranks.run(SIZE, killed, elements, may_die=True)
                self.assertEqual(results[LOST].code, -signal.SIGKILL)
                for rank in SURVIVORS:
                    text, next_text, missing_text, seconds, total = results[rank]
                    self.assertIn(f"rank {LOST}", text)
                    self.assertRegex(text, "PEER_LOST|ABORTED")
                    self.assertRegex(next_text, "PEER_LOST|ABORTED")
                    self.assertIn(f"Rank {LOST} failed to pass monitoredBarrier", missing_text)
                    self.assertLess(seconds, 8)
                    self.assertEqual(total, len(SURVIVORS))
                self.assertTrue(any("PEER_LOST" in results[r][0] for r in SURVIVORS), results)

    def test_rank_killed_during_training_ends_it_with_the_reason(self):
        for sparse in (False, True):
            with self.subTest(sparse=sparse):
                results = ranks.run(SIZE, killed_in_training, sparse, may_die=True)
                for rank in SURVIVORS:
                    text, seconds, steps = results[rank]
                    self.assertRegex(text, f"rank {LOST}.*(PEER_LOST|ABORTED)")
                    self.assertLess(seconds, 8)
                    self.assertEqual(steps, 3)

    def test_operations_with_a_stopped_rank_end_at_the_deadline(self):
        results = ranks.run(SIZE, stopped)
        for rank in SURVIVORS:
            text, seconds, total = results[rank]
            self.assertIn("the deadline passed", text)
            self.assertRegex(text, "TIMED_OUT|ABORTED")
            self.assertLess(seconds, 5)
            self.assertEqual(total, len(SURVIVORS))
        self.assertRegex(results[LOST][0], "TIMED_OUT|ABORTED")

    def test_sparse_operation_without_a_rank_ends_at_the_deadline(self):
        results = ranks.run(SIZE, sparse_without_a_rank)
        for rank in SURVIVORS:
            early, text, seconds, success, failure = results[rank]
            self.assertIn("still running after 200 ms", early)
            self.assertRegex(text, "TIMED_OUT|ABORTED")
            self.assertLess(seconds, 8)
            self.assertFalse(success)
            self.assertRegex(failure or text, "TIMED_OUT|ABORTED")

    def test_error_names_a_rank_that_never_joins(self):
        results = ranks.run(SIZE, never_came)
        for rank in SURVIVORS:
            text, seconds = results[rank]
            self.assertIn(f"rank {LOST} of {SIZE} did not join", text)
            self.assertLess(seconds, 8)


class ReplacedRanks(ranks.TestCase):
    def check_use(self, rank, found):
        total, parts, message, pair = found
        self.assertEqual(total, [6.0, 10.0, 14.0, 18.0, 22.0])
        self.assertEqual(parts, [0.0, 1.0, 2.0, 3.0])
        self.assertEqual(message, (rank - 1) % SIZE)
        self.assertEqual(pair, 2.0 if rank in (0, LOST) else 1.0)

    def test_new_process_replaces_a_killed_rank(self):
        for over_tcp, lost, early in ((True, 0, False), (True, LOST, False), (False, LOST, False),
                                      (True, 0, True), (True, LOST, True)):
            with self.subTest(over_tcp=over_tcp, lost=lost, early=early):
                results = ranks.run(SIZE + 1, replaced, over_tcp, lost, early, may_die=True)
                self.assertEqual(results[lost].code, -signal.SIGKILL)
                self.check_use(lost, results[SIZE][2])
                for rank in range(SIZE):
                    if rank == lost:
                        continue
                    text, seconds, found = results[rank]
                    self.assertRegex(text, "PEER_LOST|ABORTED|TIMED_OUT|did not join")
                    self.assertLess(seconds, 8)
                    self.check_use(rank, found)

    def test_group_forms_when_a_late_rank_joins(self):
        for rank, (text, found) in enumerate(ranks.run(SIZE, late)):
            self.check_use(rank, found)
            if rank != LOST:
                self.assertRegex(text, "TIMED_OUT|ABORTED|PEER_LOST|did not join")


    @unittest.skipUnless(hasattr(dist, "_reconfigure"), "this torch cannot reconfigure groups")
    def test_group_is_reconfigured_with_a_new_process(self):
        results = ranks.run(SIZE + 1, reconfigured, may_die=True)
        self.assertEqual(results[LOST].code, -signal.SIGKILL)
        for rank, expected in ((0, [4, 4, 2]), (1, [4, 4]), (3, [4, 4]), (SIZE, [4, 2])):
            early, totals = results[rank]
            self.assertIn("reconfigure() has not made it yet", early)
            self.assertEqual(totals, [(size, float(size)) for size in expected])


class Unfitting(ranks.TestCase):
    def test_mismatched_calls_raise_on_all_ranks(self):
        for kind in ("size of all_gather", "size of broadcast", "size of reduce_scatter",
                     "root of reduce", "root of gather", "type of all_gather",
                     "operator of reduce_scatter", "order", "big"):
            with self.subTest(kind):
                for text, next_text, seconds in ranks.run(SIZE, unfitting, kind):
                    self.assertIn("MISMATCH", text + next_text)
                    self.assertNotEqual(next_text, "no exception")
                    self.assertLess(seconds, 5)

    def test_mismatched_splits_raise_on_all_ranks(self):
        for text, next_text, seconds in ranks.run(SIZE, unfitting_splits):
            self.assertIn("rank 0 sent 8 bytes, and 4 are expected", text + next_text)
            self.assertIn("MISMATCH", text + next_text)
            self.assertLess(seconds, 5)

    def test_mismatched_sparse_tensors_raise_on_all_ranks(self):
        for kind in ("shapes", "dimensions", "types"):
            with self.subTest(kind=kind):
                for text, seconds, total in ranks.run(3, unfitting_sparse, kind):
                    self.assertRegex(text, f"ranks 0 and 2 have tensors of different.*{kind}")
                    self.assertLess(seconds, 4)
                    self.assertEqual(total, 3)

    def test_too_small_receive_raises(self):
        for elements in (10, BIG):
            self.all_equal(ranks.run(SIZE, too_small, elements), SIZE)


class Ends(ranks.TestCase):
    def test_abort_ends_operations_on_all_ranks(self):
        for found, total in ranks.run(SIZE, aborted):
            for text, seconds in found:
                self.assertIn("ABORTED", text)
                self.assertIn("enough of it", text)
                self.assertLess(seconds, 5)
            self.assertEqual(total, SIZE)

    def test_group_creation_failure_is_reported_and_can_be_retried(self):
        for variable, value, reason in (
            ("HETCOMM_TLS", "on", "HETCOMM_TLS_CERTIFICATE is not set"),
            ("HETCOMM_SPIN_TIME", "soon", "HETCOMM_SPIN_TIME"),  # no context
            ("HETCOMM_SECRET_FILE", "/nowhere", "/nowhere"),
        ):
            for late in (None, 0, 2):
                found = ranks.run(3, unmakeable, late, variable, value)
                for rank, (text, seconds, made) in enumerate(found):
                    self.assertIn(reason, text)
                    if rank != 1:
                        self.assertIn("rank 1", text)
                    self.assertLess(seconds, 15)
                    self.assertEqual(made, 3)

    def test_arguments_refused_on_one_rank_raise_on_all(self):
        for what, reason in (("list", "takes a list of"), ("rows", "is not a multiple of 3")):
            found = ranks.run(3, refused, what)
            for rank, (text, seconds) in enumerate(found):
                self.assertIn(reason, text)
                self.assertLess(seconds, 15)
                if rank != 1:
                    self.assertIn("rank 1 does not take part", text)

    def test_arguments_refused_on_all_ranks_have_no_further_effect(self):
        self.all_equal(ranks.run(3, refused_by_all), True)

    def test_leaving_rank_ends_operations_of_the_others(self):
        for text, seconds, future_failed in ranks.run(SIZE, destroyed)[:3]:
            self.assertRegex(text, "PEER_LOST|ABORTED")
            self.assertIn("rank 3", text)
            self.assertLess(seconds, 5)
            self.assertTrue(future_failed)

    def test_callback_can_destroy_a_group_that_is_being_destroyed(self):
        for seconds, called in ranks.run(2, closed_by_all):
            self.assertLess(seconds, 8)
            self.assertEqual(called, 3)

    def test_destroy_ends_pending_work_with_its_reason(self):
        for text, seconds, called in ranks.run(SIZE, destroyed_with_pending)[:3]:
            self.assertEqual(text.count("hetcomm: allreduce"), 3, text)
            self.assertNotIn("no exception", text)
            self.assertLess(seconds, 5)
            self.assertTrue(called)

    def test_shutdown_during_coalescing_drops_the_collected_operations(self):
        for seconds, text, work_text in ranks.run(2, closed_while_coalescing):
            self.assertLess(seconds, 4)
            self.assertIn("the process group is closed", text)
            self.assertNotEqual(work_text, "no exception")

    def test_batch_works_again_after_an_exception(self):
        for text, total, message in ranks.run(2, failed_batch):
            self.assertIn("sparse", text.lower())
            self.assertEqual((total, message), (2, [1.0] * 4))

    def test_abandoned_coalescing_starts_no_operation(self):
        for message, text, total in ranks.run(2, coalescing_given_up):
            self.assertEqual((message, total), ([2.0] * 4, 2))
            self.assertIn("CANCELLED", text)

    def test_coalesced_work_reports_the_failure_of_one_operation(self):
        text, success, failure = ranks.run(2, failed_together)[0]
        self.assertIn("TIMED_OUT", text)
        self.assertFalse(success)
        self.assertIn("TIMED_OUT", failure or text)

    def test_interpreter_exits_cleanly_without_destroying_the_group(self):
        """Callbacks in Python run or wait at that time."""
        for what in ("running", "pending", "sparse", "closed", "later"):
            with self.subTest(what=what), tempfile.TemporaryDirectory() as folder:
                for process in start_to_end(folder, what):
                    out, err = process.communicate(timeout=ranks.LIMIT_S)
                    self.assertEqual((process.returncode, out), (0, "over\n"), err)

    def test_interrupt_ends_an_exit_that_waits_for_a_callback(self):
        """A callback does not return. Ctrl-C ends the wait for it."""
        with tempfile.TemporaryDirectory() as folder:
            processes = start_to_end(folder, "endless")
            try:
                for process in processes:
                    self.assertEqual(process.stdout.readline(), "over\n")
                time.sleep(0.5)
                for process in processes:
                    process.send_signal(signal.SIGINT)
                for process in processes:
                    _, err = process.communicate(timeout=20)
                    self.assertIn("KeyboardInterrupt", err)
            finally:
                for process in processes:
                    process.kill()
                    process.communicate()

    def test_exception_on_one_rank_is_reported_to_the_others(self):
        """The text says that the process ended, and where to look."""
        read = {
            "collective": r"rank 1 does not take part in operation #\d+: its process ended by an "
                          r"exception \(ValueError: my own bug\); read its log",
            "message": "rank 1 left: its process ended.*read its log",
            "exit": "rank 1 left: its process ended.*read its log",
        }
        for what, expected in read.items():
            with self.subTest(what=what), tempfile.TemporaryDirectory() as folder:
                processes = [
                    subprocess.Popen([sys.executable, "-c", BY_EXCEPTION, str(rank), folder, what],
                                     stderr=subprocess.PIPE, text=True)
                    for rank in range(2)]
                began = time.monotonic()
                errors = [process.communicate(timeout=ranks.LIMIT_S)[1] for process in processes]
                self.assertLess(time.monotonic() - began, 15)
                self.assertEqual(processes[1].returncode, 3 if what == "exit" else 1)
                self.assertRegex(errors[0], expected)
                self.assertNotIn("order of calls", errors[0])

    def test_new_group_works_after_a_timeout(self):
        for text, seconds, total in ranks.run(SIZE, timed_out):
            self.assertRegex(text, "TIMED_OUT|ABORTED")
            self.assertLess(seconds, 5)
            self.assertEqual(total, SIZE)


class Forks(ranks.TestCase):
    def test_data_loader_workers_do_not_disturb_the_group(self):
        self.all_equal(ranks.run(SIZE, loads_data), (96, SIZE))

    def test_using_the_group_in_a_forked_child_raises(self):
        self.all_equal(ranks.run(SIZE, forked), ([(0, True), (0, True)], SIZE))


if __name__ == "__main__":
    unittest.main()
