"""send and recv of the process group.

Proves: messages arrive in any order of tags, from a named or any source, from and into strided
tensors, in batches, and empty; works report their source, end once, keep their tensors alive and
complete futures; a receive that is too small, a dead peer, an abort from another thread and the end
of the group each raise an exception with the reason and leave the process alive.
"""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import hetcomm.torch
import ranks


def tags_in_any_order(rank, size, folder):
    ranks.init(rank, size, folder)
    if rank == 0:
        works = [dist.isend(torch.full((5,), float(tag)), 1, tag=tag) for tag in range(10)]
        for work in works:
            work.wait()
    elif rank == 1:
        into = [torch.empty(5) for _ in range(10)]
        works = {tag: dist.irecv(into[tag], 0, tag=tag) for tag in reversed(range(10))}
        for tag in (3, 9, 0, 1, 2, 8, 7, 6, 5, 4):
            works[tag].wait()
        return [tensor[0].item() for tensor in into]
    return None


def any_source(rank, size, folder):
    ranks.init(rank, size, folder)
    if rank != 0:
        # The first one is received last. One from a device does not end before that.
        work = dist.isend(torch.tensor([rank, 7]), 0, tag=rank)
        dist.send(torch.tensor([rank, 8]), 0)
        work.wait()
        return None
    sources = set()
    for _ in range(size - 1):
        tensor = torch.zeros(2, dtype=torch.long)
        source = dist.recv(tensor)
        assert tensor.tolist() == [source, 8], tensor
        sources.add(source)
    for other in range(1, size):
        tensor = torch.zeros(2, dtype=torch.long)
        assert dist.recv(tensor, tag=other) == other
        assert tensor.tolist() == [other, 7], tensor
    return sorted(sources)


def strided(rank, size, folder, length):
    ranks.init(rank, size, folder)
    whole = torch.arange(2 * length * 3, dtype=torch.float32).reshape(length, 6)
    if rank == 0:
        dist.send(whole[:, ::2], 1)
        dist.send(whole.t(), 1)
        dist.send(torch.tensor([2.5]).expand(length), 1)
        dist.send(torch.complex(whole, -whole), 1)
        return True
    holes = torch.full((length, 6), -1.0)
    dist.recv(holes[:, 1::2], 0)
    turned = torch.empty(length, 6).t()
    dist.recv(turned, 0)
    expanded = torch.empty(length)
    dist.recv(expanded, 0)
    conjugate = torch.empty(length, 6, dtype=torch.complex64)
    dist.recv(conjugate, 0)
    return (
        torch.equal(holes[:, 1::2], whole[:, ::2])
        and bool((holes[:, ::2] == -1).all())
        and torch.equal(turned, whole.t())
        and bool((expanded == 2.5).all())
        and torch.equal(conjugate, torch.complex(whole, -whole))
    )


def sizes(rank, size, folder):
    ranks.init(rank, size, folder)
    for count in (0, 1, 3, 1000, 100_000, 3_000_000):
        tensor = torch.arange(count, dtype=torch.int32) + rank
        other = torch.empty(count, dtype=torch.int32)
        works = [dist.isend(tensor, 1 - rank), dist.irecv(other, 1 - rank)]
        for work in works:
            work.wait()
        assert torch.equal(other, torch.arange(count, dtype=torch.int32) + 1 - rank), count
    return True


def batch(rank, size, folder):
    ranks.init(rank, size, folder)
    into = [torch.empty(100) for _ in range(size)]
    operations = []
    for other in range(size):
        if other != rank:
            operations.append(dist.P2POp(dist.isend, torch.full((100,), float(rank)), other))
            operations.append(dist.P2POp(dist.irecv, into[other], other))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return all(bool((into[o] == o).all()) for o in range(size) if o != rank)


def work_object(rank, size, folder):
    ranks.init(rank, size, folder)
    if rank == 0:
        time.sleep(0.2)
        dist.send(torch.ones(3), 1)
        dist.send(torch.full((3,), 2.0), 1)
        return True
    first, second = torch.zeros(3), torch.zeros(3)
    work = dist.irecv(first, 0)
    assert not work.is_completed()
    try:
        work.wait(timedelta(milliseconds=20))
        return "the wait did not end"
    except RuntimeError as error:
        assert "20 ms" in str(error), error
    later = dist.irecv(second, 0)
    future = later.get_future()
    assert future.wait()[0].tolist() == [2.0] * 3
    while not work.is_completed():
        time.sleep(0.001)
    assert work.is_success() and work._source_rank() == 0
    work.wait()
    assert work.get_future().done()
    return first.tolist() == [1.0] * 3 and future.done()


def futures_in_any_order(rank, size, folder):
    """A future whose operation has ended does not wait for an earlier one."""
    ranks.init(rank, size, folder)
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=2)
        dist.recv(torch.empty(1), 1)
        dist.send(torch.ones(1), 1, tag=1)
        return True
    futures = [dist.irecv(torch.zeros(1), 0, tag=tag).get_future() for tag in (1, 2)]
    futures[1].wait()
    assert not futures[0].done()
    dist.send(torch.ones(1), 0)
    return futures[0].wait()[0].item() == 1.0


def dropped(rank, size, folder):
    ranks.init(rank, size, folder)
    count = 200
    if rank == 0:
        for i in range(count):
            dist.isend(torch.full((5000,), float(i)), 1)
            gc.collect(0)
        dist.recv(torch.empty(1), 1)
        return True
    tensor = torch.empty(5000)
    for i in range(count):
        dist.recv(tensor, 0)
        assert tensor.eq(float(i)).all(), i
    dist.send(torch.ones(1), 0)
    return True


def message_of(function):
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return "no exception"


def too_small(rank, size, folder):
    ranks.init(rank, size, folder)
    if rank == 0:
        dist.send(torch.ones(10), 1)
        dist.send(torch.ones(4), 1)
        return True
    text = message_of(lambda: dist.recv(torch.empty(4), 0))
    after = torch.zeros(4)
    dist.recv(after, 0)
    return "TRUNCATED" in text and after.tolist() == [1.0] * 4 or text


def killed(rank, size, folder):
    ranks.init(rank, size, folder)
    if rank == 1:
        dist.send(torch.ones(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.recv(torch.empty(1), 1)
    began = time.monotonic()
    text = message_of(lambda: dist.recv(torch.empty(1), 1))
    return text, time.monotonic() - began


def timed_out(rank, size, folder):
    ranks.without_recorder()
    ranks.init(rank, size, folder, timeout_s=1)
    text = ""
    if rank == 0:
        text = message_of(lambda: dist.recv(torch.empty(1), 1, tag=5))
    else:
        time.sleep(1.2)
    other = torch.empty(1)
    works = [dist.isend(torch.tensor([float(rank)]), 1 - rank), dist.irecv(other, 1 - rank)]
    for work in works:
        work.wait()
    return text, other.item()


def aborted(rank, size, folder):
    ranks.init(rank, size, folder)
    if rank == 0:
        dist.recv(torch.empty(1), 1)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        threading.Timer(0.1, lambda: backend.abort_with("enough")).start()
    else:
        dist.send(torch.ones(1), 0)
    began = time.monotonic()
    text = message_of(lambda: dist.recv(torch.empty(1), 1 - rank, tag=9))
    return text, time.monotonic() - began


def destroyed_with_pending(rank, size, folder):
    ranks.init(rank, size, folder)
    dist.barrier()
    work = None
    if rank == 0:
        work = dist.irecv(torch.empty(1), 1, tag=3)
        pending_future = dist.irecv(torch.empty(1), 1, tag=4).get_future()
    # Rank 1 goes later: its leaving would end the receives before the own group does.
    gone = os.path.join(folder, "gone")
    if rank == 1:
        ranks.until(lambda: os.path.exists(gone))
    dist.destroy_process_group()
    if rank == 0:
        pathlib.Path(gone).touch()
        text = message_of(work.wait)
        assert pending_future.done()
        return text
    return ""


def made_again(rank, size, folder):
    """Groups are made over one store that holds values of earlier groups."""
    values = []
    for turn in range(3):
        ranks.init(rank, size, folder)
        other = torch.empty(1)
        works = [dist.isend(torch.tensor([float(turn)]), 1 - rank), dist.irecv(other, 1 - rank)]
        for work in works:
            work.wait()
        values.append(other.item())
        dist.destroy_process_group()
    return values


def short_lived(rank, size, folder):
    """Ranks leave groups as soon as they have them."""
    ranks.init(rank, size, folder)
    for _ in range(20):
        dist.destroy_process_group(dist.new_group(timeout=timedelta(seconds=10)))
    return True


def replaced(rank, size, folder):
    """A rank is killed, and another process takes its place over the same store."""
    if rank == 1:
        pid = os.fork()
        if pid == 0:
            ranks.init(rank, size, folder)
            dist.send(torch.ones(1), 0)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
    else:
        ranks.init(rank, size, folder)
        dist.recv(torch.empty(1), 1)
        assert "PEER_LOST" in message_of(lambda: dist.recv(torch.empty(1), 1))
        dist.destroy_process_group()
    ranks.init(rank, size, folder)
    tensor = torch.tensor([float(rank + 1)])
    dist.all_reduce(tensor)
    return tensor.item()


def stopped(rank, size, folder):
    """A stopped rank answers nobody and keeps its connections."""
    ranks.init(rank, size, folder, timeout_s=1)
    pid = torch.tensor([os.getpid()])
    dist.broadcast(pid, 1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        return "", 0.0
    with open(f"/proc/{pid.item()}/stat") as state:
        ranks.until(lambda: state.seek(0) == 0 and state.read().split()[2] == "T")
    began = time.monotonic()
    text = message_of(lambda: dist.all_reduce(torch.ones(1)))
    seconds = time.monotonic() - began
    os.kill(pid.item(), signal.SIGCONT)
    return text, seconds


def forked(rank, size, folder):
    ranks.init(rank, size, folder)
    pid = os.fork()
    if pid == 0:
        text = message_of(lambda: dist.send(torch.ones(1), 1 - rank))
        os._exit(0 if "FORKED" in text else 1)
    _, status = os.waitpid(pid, 0)
    other = torch.empty(1)
    works = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(other, 1 - rank)]
    for work in works:
        work.wait()
    return status == 0 and other.item() == 1.0


def refusals(rank, size, folder):
    ranks.init(rank, size, folder)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    texts = []
    for call in (
        lambda: backend.send([torch.ones(1)], 7, 0),
        lambda: backend.recv([torch.ones(3, device="meta")], 0, 0),
        lambda: backend.send([torch.ones(1), torch.ones(1)], 0, 0),
        lambda: backend.send([torch.ones(2, 2, device="cpu").to_sparse()], 0, 0),
    ):
        try:
            call()
            texts.append("no exception")
        except ValueError as error:
            texts.append(str(error))
    return texts


def loads_data(rank, size, folder):
    """Data loaders fork; the exit of their workers has no effect."""
    torch.set_default_device("cpu")  # a forked process has no streams of the device
    ranks.init(rank, size, folder)
    data = torch.utils.data.DataLoader(torch.arange(64), batch_size=8, num_workers=2)
    total = 0
    for one in data:
        other = torch.empty(1, dtype=torch.long)
        works = [dist.isend(one.sum().reshape(1), 1 - rank), dist.irecv(other, 1 - rank)]
        for work in works:
            work.wait()
        total += other.item()
    return total


def interrupted(rank, size, folder):
    """Ctrl-C ends a wait on the main thread, and the group stays usable."""
    ranks.init(rank, size, folder)
    tensor = torch.zeros(3)
    seconds = 0.0
    if rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            dist.recv(tensor, 1)
            return "no exception", 0.0
        except KeyboardInterrupt:
            seconds = time.monotonic() - began
        open(os.path.join(folder, "interrupted"), "w").close()
    else:
        ranks.until(lambda: os.path.exists(os.path.join(folder, "interrupted")))
        dist.send(torch.ones(3), 0)
    dist.all_reduce(tensor)
    return "", seconds


# A daemon thread waits while the interpreter ends.
AT_EXIT = """
import sys, threading, time, torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("hetcomm", store=dist.FileStore(folder + "/exit", 2), rank=rank, world_size=2)
dist.barrier()
if rank == 0:
    for _ in range(4):
        threading.Thread(target=lambda: dist.recv(torch.ones(3), 1), daemon=True).start()
        threading.Thread(target=lambda: dist.irecv(torch.ones(3), 1).get_future().wait(),
                         daemon=True).start()
    time.sleep(0.3)
else:
    time.sleep(1)
"""


class Messages(ranks.TestCase):
    def test_interrupt_ends_a_wait_and_the_group_stays_usable(self):
        for text, seconds in ranks.run(2, interrupted):
            self.assertEqual(text, "")
            self.assertLess(seconds, 15)

    def test_process_exits_while_threads_wait(self):
        with tempfile.TemporaryDirectory() as folder:
            running = [
                subprocess.Popen([sys.executable, "-c", AT_EXIT, str(rank), folder],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for rank in range(2)
            ]
            for process in running:
                _, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 0, errors)

    def test_messages_are_received_in_any_order_of_tags(self):
        self.assertEqual(ranks.run(2, tags_in_any_order)[1], [float(t) for t in range(10)])

    def test_receive_from_any_source_names_the_source(self):
        self.assertEqual(ranks.run(4, any_source)[0], [1, 2, 3])

    def test_strided_tensors_arrive_intact(self):
        for length in (3, 30_000):
            self.all_equal(ranks.run(2, strided, length), True)

    def test_tensors_of_many_sizes_arrive_intact(self):
        self.all_equal(ranks.run(2, sizes), True)

    def test_batched_messages_arrive_intact(self):
        self.all_equal(ranks.run(3, batch), True)

    def test_work_reports_its_source_and_ends_once(self):
        self.all_equal(ranks.run(2, work_object), True)

    def test_future_of_a_later_operation_can_complete_first(self):
        self.all_equal(ranks.run(2, futures_in_any_order), True)

    def test_messages_of_dropped_works_arrive(self):
        self.all_equal(ranks.run(2, dropped), True)

    def test_invalid_arguments_raise(self):
        for texts in ranks.run(1, refusals):
            self.assertIn("invalid rank", texts[0])
            self.assertIn("tensors with memory only", texts[1])
            self.assertIn("one tensor", texts[2])
            self.assertIn("dense", texts[3])


class Failures(ranks.TestCase):
    def test_too_small_receive_raises(self):
        self.all_equal(ranks.run(2, too_small), True)

    def test_killed_peer_ends_a_receive(self):
        (text, seconds), died = ranks.run(2, killed, may_die=True)
        self.assertIn("PEER_LOST", text)
        self.assertLess(seconds, 5)
        self.assertEqual(died.code, -signal.SIGKILL)

    def test_group_stays_usable_after_a_timeout(self):
        (text, other), (_, mine) = ranks.run(2, timed_out)
        self.assertIn("TIMED_OUT", text)
        self.assertEqual((other, mine), (1.0, 0.0))

    def test_abort_from_another_thread_ends_a_wait(self):
        for text, seconds in ranks.run(2, aborted):
            self.assertIn("ABORTED", text)
            self.assertIn("enough", text)
            self.assertLess(seconds, 5)

    def test_destroy_cancels_pending_work(self):
        self.assertIn("CANCELLED", ranks.run(2, destroyed_with_pending)[0])

    def test_groups_can_be_recreated_over_one_store(self):
        self.all_equal(ranks.run(2, made_again), [0.0, 1.0, 2.0])

    def test_groups_can_be_destroyed_immediately_after_creation(self):
        self.all_equal(ranks.run(4, short_lived), True)

    def test_new_process_replaces_a_killed_rank(self):
        self.all_equal(ranks.run(2, replaced), 3.0)

    def test_receive_from_a_stopped_rank_ends_at_the_deadline(self):
        text, seconds = ranks.run(2, stopped)[0]
        self.assertIn("TIMED_OUT", text)
        self.assertLess(seconds, 5)

    def test_forked_child_does_not_disturb_the_group(self):
        self.all_equal(ranks.run(2, forked), True)

    def test_data_loader_workers_do_not_disturb_the_group(self):
        self.all_equal(ranks.run(2, loads_data), sum(range(64)))


class Registration(unittest.TestCase):
    def test_backend_can_be_registered_repeatedly(self):
        for _ in range(3):
            hetcomm.torch.register()
        self.assertIn("hetcomm", dist.Backend.backend_list)
        self.assertNotEqual(
            dist.Backend.backend_type_map["hetcomm"], dist.ProcessGroup.BackendType.GLOO
        )


if __name__ == "__main__":
    unittest.main()
