"""Hooks and callbacks of a process group, and the end of the group.

Proves: closing a group waits for hooks and callbacks that run on other threads, even if a hook has
already closed it; a close inside a hook or callback waits for none, and a hook that waits for
pending works waits for no other hook, so groups can close and await each other; a callback may drop
the group while operations of several steps are queued; an operation is not refused if no thread for
hooks or futures can be started, and a future that was refused for that reason can be requested
later; abort hooks run for operations that nobody waits for; hooks can be added and removed while
others run.
"""

import ctypes
import os
import threading
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import hetcomm.torch
import ranks

HAS_ABORT_HOOKS = hasattr(torch._C._distributed_c10d.Backend, "register_abort_hook")


def backend_of(group=None):
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


def answer(source):
    """Echoes every message until the group ends."""
    value = torch.zeros(1)
    try:
        while True:
            dist.recv(value, source)
            dist.send(value, source)
    except dist.DistBackendError:
        pass


# --- the end of a group --------------------------------------------------------------------------


def closed_while(wait, began, over, close=dist.destroy_process_group):
    """Closes the group once the thread that runs |wait| has begun; returns whether that had ended by then."""
    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    close()
    was_over = over.is_set()
    thread.join()
    return was_over


def closed_in_a_callback(rank, size, folder):
    """A callback runs on a thread that waits for its work, while another thread closes the group."""
    ranks.init(rank, size, folder)
    if rank == 1:
        return answer(0)
    began, over = threading.Event(), threading.Event()

    def wait():
        own = threading.get_ident()

        def called(_):
            if threading.get_ident() == own and not began.is_set():
                began.set()
                time.sleep(0.5)
                over.set()

        while not began.is_set():
            work = dist.irecv(torch.zeros(1), 1)
            work.get_future().add_done_callback(called)
            dist.send(torch.ones(1), 1)
            work.wait()

    # destroy_process_group() would close the group twice, and the second close waits as well.
    return closed_while(wait, began, over, backend_of().shutdown)


def closed_in_an_abort_hook(rank, size, folder):
    """The hook runs on a thread that waits for an operation."""
    ranks.without_recorder()
    ranks.init(rank, size, folder)
    backend = backend_of()
    began, over = threading.Event(), threading.Event()

    def hook():
        began.set()
        time.sleep(0.5)
        over.set()

    backend.register_abort_hook(1, hook)
    backend.set_timeout(timedelta(milliseconds=50))
    work = dist.irecv(torch.zeros(1), 1 - rank)
    texts = []

    def wait():
        try:
            work.wait()
        except dist.DistBackendError as error:
            texts.append(str(error))

    was_over = closed_while(wait, began, over)
    return was_over, len(texts), "TIMED_OUT" in texts[0]


def closed_by_a_hook(rank, size, folder):
    """The close does not wait for the work whose hook makes it."""
    ranks.init(rank, size, folder)
    backend = backend_of()
    seconds = []

    def hook(info):
        ranks.meet(rank, size, folder)
        began = time.monotonic()
        backend.shutdown()
        seconds.append(time.monotonic() - began)

    dist.group.WORLD._register_on_completion_hook(hook)
    dist.all_reduce(torch.ones(1))
    return seconds


def closed_after_a_hook(rank, size, folder):
    """A hook closes the group and keeps running, while another thread closes the group too."""
    ranks.init(rank, size, folder)
    backend = backend_of()
    began, over = threading.Event(), threading.Event()

    def hook(info):
        ranks.meet(rank, size, folder)
        backend.shutdown()
        began.set()
        time.sleep(0.5)
        over.set()

    dist.group.WORLD._register_on_completion_hook(hook)
    return closed_while(lambda: dist.all_reduce(torch.ones(1)), began, over, backend.shutdown)


def hooks_for_each_other(rank, size, folder, end):
    """A hook of each of two groups ends the other group, whose hook is running."""
    ranks.init(rank, size, folder)
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    both = threading.Barrier(2)
    seconds = []

    def hook(other):
        both.wait()
        ranks.meet(rank, size, folder)
        began = time.monotonic()
        end(other)
        seconds.append(time.monotonic() - began)

    for group, other in zip(groups, reversed(groups)):
        group._register_on_completion_hook(lambda info, other=other: hook(other))
    threads = [
        threading.Thread(target=dist.all_reduce, args=(torch.ones(1),), kwargs={"group": group})
        for group in groups
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds


def fill_freed_memory():
    """Allocates memory that this thread has freed, and fills it."""
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.malloc.restype = ctypes.c_void_p
    for size in range(256, 2048, 16):
        for _ in range(4):
            ctypes.memset(libc.malloc(size), 0xFF, size)


def dropped_in_a_callback(rank, size, folder):
    """A callback of the first operation drops the group. The second step of the next one is queued."""
    store = dist.FileStore(os.path.join(folder, "store"), size)
    groups = [
        hetcomm.torch._load().create(
            store, rank, size, timedelta(seconds=20), "own", [], None, False
        )
    ]

    def start():
        return groups[0].allreduce([torch.ones(4, device="cpu").to_sparse()])

    if rank == 1:
        ranks.meet(rank, size, folder, "added")
        works = [start(), start()]
        works[0].wait()
        ranks.meet(rank, size, folder)
        return "closed"

    dropped = threading.Event()

    def drop(_):
        time.sleep(0.5)  # the first step of the next one ends
        groups.clear()
        fill_freed_memory()
        dropped.set()

    works = [start(), start()]
    works[0].get_future().add_done_callback(drop)
    ranks.meet(rank, size, folder, "added")
    dropped.wait()
    try:
        works[1].wait()
        text = "no exception"
    except dist.DistBackendError as error:
        text = str(error)
    ranks.meet(rank, size, folder)
    return text


def closed_by_each_other(rank, size, folder):
    """A callback of each of two groups closes the other group."""
    ranks.init(rank, size, folder)
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    if rank == 1:
        # A message that is there already would have its callback run where it is added.
        ranks.meet(rank, size, folder, "added")
        for group in groups:
            dist.send(torch.ones(1), 0, group=group)
        ranks.meet(rank, size, folder)
        return 2
    both = threading.Barrier(2)
    closed = []

    def close(other):
        both.wait()
        backend_of(other).shutdown()
        closed.append(other)

    works = []
    for group, other in zip(groups, reversed(groups)):
        works.append(dist.irecv(torch.zeros(1), 1, group=group))
        works[-1].get_future().add_done_callback(lambda _, other=other: close(other))
    ranks.meet(rank, size, folder, "added")
    ranks.until(lambda: len(closed) == 2)
    ranks.meet(rank, size, folder)
    return len(closed)


# --- threads -------------------------------------------------------------------------------------


def set_stack_size(size):
    """Applies to threads created from now on, except those of Python. Returns the previous size."""
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(256)
    before = ctypes.c_size_t()
    assert libc.pthread_getattr_default_np(attributes) == 0
    assert libc.pthread_attr_getstacksize(attributes, ctypes.byref(before)) == 0
    assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(size)) == 0
    assert libc.pthread_setattr_default_np(attributes) == 0
    return before.value


def without_threads(rank, size, folder):
    ranks.init(rank, size, folder)
    seen = []
    dist.group.WORLD._register_on_completion_hook(lambda info: seen.append(info.op_type))
    into = torch.zeros(1)
    before = set_stack_size(1 << 47)  # there is no such room
    try:
        work = dist.irecv(into, 1 - rank)
        try:
            work.get_future()
            text = "no exception"
        except RuntimeError as error:
            text = str(error)
    finally:
        set_stack_size(before)
    # The future of a message that is there already needs no thread.
    ranks.meet(rank, size, folder, "asked")
    called = threading.Event()
    work.get_future().add_done_callback(lambda _: called.set())
    dist.send(torch.full((1,), 1.0 + rank), 1 - rank)
    was_called = called.wait(20)
    ranks.until(lambda: len(seen) == 2)
    return text, was_called, into.item()


# --- abort hooks ---------------------------------------------------------------------------------


def aborting_alone(rank, size, folder):
    """Nobody waits for the operation."""
    ranks.without_recorder()
    ranks.init(rank, size, folder)
    backend = backend_of()
    called = threading.Event()
    backend.register_abort_hook(1, called.set)
    backend.set_timeout(timedelta(milliseconds=50))
    work = dist.irecv(torch.zeros(1), 1 - rank)
    was_called = called.wait(20)
    ranks.meet(rank, size, folder)
    return was_called, work.is_completed()


def hooks_that_change(rank, size, folder):
    """One thread adds and removes hooks. Another calls them with Python's lock held, by asking for the
    future of a failed operation."""
    ranks.without_recorder()
    ranks.init(rank, size, folder)
    backend = backend_of()
    backend.set_timeout(timedelta(milliseconds=1))
    stops = threading.Event()
    called = []

    def change():
        while not stops.is_set():
            for number in range(50):
                backend.register_abort_hook(number, lambda: called.append(1))
            for number in range(50):
                backend.unregister_abort_hook(number)

    thread = threading.Thread(target=change)
    thread.start()
    for _ in range(20):
        works = [dist.irecv(torch.zeros(1), 1 - rank, tag=tag) for tag in range(20)]
        time.sleep(0.005)
        for work in works:
            work.get_future()
    stops.set()
    thread.join()
    ranks.meet(rank, size, folder)
    return len(called) > 0


class Ends(ranks.TestCase):
    def test_close_waits_for_a_callback_running_in_another_thread(self):
        self.assertEqual(ranks.run(2, closed_in_a_callback), [True, None])

    @unittest.skipUnless(HAS_ABORT_HOOKS, "this torch has no binding for abort hooks")
    def test_close_waits_for_an_abort_hook_running_in_another_thread(self):
        self.all_equal(ranks.run(2, closed_in_an_abort_hook), (True, 1, True))

    def test_hook_can_close_its_group(self):
        for seconds in ranks.run(2, closed_by_a_hook):
            self.assertEqual(len(seconds), 1)
            self.assertLess(seconds[0], 8)

    def test_close_waits_for_a_hook_that_has_closed_the_group(self):
        self.all_equal(ranks.run(2, closed_after_a_hook), True)

    def test_hooks_of_two_groups_can_close_and_await_each_other(self):
        ends = {
            "close": lambda group: backend_of(group).shutdown(),
            "wait": lambda group: group._wait_for_pending_works(),
        }
        for name, end in ends.items():
            with self.subTest(end=name):
                for seconds in ranks.run(2, hooks_for_each_other, end):
                    self.assertEqual(len(seconds), 2)
                    self.assertLess(max(seconds), 8)

    def test_callback_can_drop_its_group(self):
        for text in ranks.run(2, dropped_in_a_callback):
            self.assertIn("closed", text)

    def test_two_groups_can_be_closed_from_each_others_callbacks(self):
        self.all_equal(ranks.run(2, closed_by_each_other), 2)


class Threads(ranks.TestCase):
    def test_operation_completes_if_no_hook_thread_can_start(self):
        for rank, (text, called, value) in enumerate(ranks.run(2, without_threads)):
            self.assertNotEqual(text, "no exception")
            self.assertTrue(called)
            self.assertEqual(value, 2.0 - rank)


@unittest.skipUnless(HAS_ABORT_HOOKS, "this torch has no binding for abort hooks")
class AbortHooks(ranks.TestCase):
    def test_abort_hook_runs_for_an_operation_that_is_not_awaited(self):
        self.all_equal(ranks.run(2, aborting_alone), (True, True))

    def test_hooks_can_be_added_and_removed_during_calls(self):
        self.all_equal(ranks.run(2, hooks_that_change), True)


if __name__ == "__main__":
    unittest.main()
