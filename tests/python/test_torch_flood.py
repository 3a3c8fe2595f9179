"""Thousands of works in flight at once, with two ranks.

Proves: works end in any order and are awaited in any other order, by many threads, and every future
completes once; dropped works release their tensors while others stay pending; a deadline ends only
its own work, the oldest or one in the middle; an abort, and the end of the group, end thousands of
works with their reason; hooks receive works that nobody waits for; an operation on thousands of
tensors is one work.

With the argument "scaling", as a test of time: the cost of a work does not grow with the number of
works, and does not exceed that of Gloo.
"""

import gc
import random
import statistics
import sys
import threading
import time
import unittest
import weakref
from datetime import timedelta

import numpy
import torch
import torch.distributed as dist

import ranks

COUNT = 3000


def backend_of_world():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def text_of(wait):
    try:
        wait()
        return "no exception"
    except dist.DistBackendError as error:
        return str(error)


def shuffled(count, seed):
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def any_order(rank, size, folder):
    ranks.init(rank, size, folder)
    values = torch.arange(COUNT, dtype=torch.float32)
    dist.barrier()
    if rank == 0:
        works = {i: dist.isend(values[i:i + 1], 1, tag=i) for i in shuffled(COUNT, 1)}
        order = shuffled(COUNT, 2)
    else:
        into = torch.zeros(COUNT)
        works = {i: dist.irecv(into[i:i + 1], 0, tag=i) for i in range(COUNT)}
        order = shuffled(COUNT, 3)
    failures = []

    def wait(part):
        try:
            for i in part:
                works[i].wait()
                assert works[i].is_completed() and works[i].is_success()
        except Exception as error:  # noqa: BLE001: is shown by the main thread
            failures.append(error)

    # Two threads wait for each work.
    threads = [threading.Thread(target=wait, args=(order[k % 4::4],)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return rank == 0 or torch.equal(into, values)


def futures(rank, size, folder, order):
    """More futures than a watcher waits for at once. Those of the first works complete last."""
    ranks.init(rank, size, folder)
    dist.barrier()
    if rank == 0:
        for i in order:
            dist.isend(torch.tensor([float(i)]), 1, tag=i)
        dist.barrier()
        return True
    into = torch.zeros(COUNT)
    called = [0] * COUNT
    works = [dist.irecv(into[i:i + 1], 0, tag=i) for i in range(COUNT)]

    def note(i):
        def called_back(_):
            called[i] += 1
        return called_back

    made = [work.get_future().then(note(i)) for i, work in enumerate(works)]
    for future in made:
        future.wait()
    dist.barrier()
    return called == [1] * COUNT and torch.equal(into, torch.arange(COUNT, dtype=torch.float32))


def future_among_pending(rank, size, folder):
    """One work ends; a thousand works before and after it do not."""
    ranks.init(rank, size, folder)
    dist.barrier()
    if rank == 0:
        ranks.meet(rank, size, folder, "watched")
        dist.send(torch.ones(1), 1, tag=1000)
        dist.recv(torch.empty(1), 1)
        for i in range(2001):
            if i != 1000:
                dist.isend(torch.ones(1), 1, tag=i)
        dist.barrier()
        return True
    into = torch.zeros(2001)
    works = [dist.irecv(into[i:i + 1], 0, tag=i) for i in range(2001)]
    all_of_them = [work.get_future() for work in works]
    ranks.meet(rank, size, folder, "watched")
    all_of_them[1000].wait()
    assert sum(future.done() for future in all_of_them) == 1
    dist.send(torch.ones(1), 0)
    for future in all_of_them:
        future.wait()
    dist.barrier()
    return bool(into.eq(1).all())


def dropped(rank, size, folder):
    """Tensors are released while other works are posted, although a thousand works stay pending."""
    ranks.init(rank, size, folder)
    count = 200
    if rank == 1:
        for _ in range(count):
            dist.recv(torch.empty(100), 0, tag=7)
        ranks.meet(rank, size, folder, "received")
        for i in range(1000):
            dist.send(torch.ones(1), 0, tag=1000 + i)
        dist.barrier()
        return True
    into = torch.zeros(1000)
    kept = [dist.irecv(into[i:i + 1], 1, tag=1000 + i) for i in range(1000)]
    arrays = []
    for i in range(count):
        array = numpy.full(100, i, dtype=numpy.float32)
        arrays.append(weakref.ref(array))
        dist.isend(torch.from_numpy(array), 1, tag=7)
        del array
    ranks.meet(rank, size, folder, "received")
    gc.collect()
    # A look at the works costs the same however many there are: all have been looked at by then.
    last = torch.zeros(2000)
    others = 0
    while any(array() is not None for array in arrays) and others < 2000:
        kept.append(backend_of_world().recv([last[others:others + 1]], 0, 9))  # from itself
        backend_of_world().send([torch.ones(1)], 0, 9)
        others += 1
    left = sum(array() is not None for array in arrays)
    for work in kept:
        work.wait()
    dist.barrier()
    return left == 0 or f"{left} tensors are kept after {others} posts"


def deadlines(rank, size, folder):
    ranks.init(rank, size, folder)
    dist.barrier()
    late = {0, COUNT // 2}
    if rank == 0:
        ranks.meet(rank, size, folder, "over")
        for i in range(COUNT):
            if i not in late:
                dist.isend(torch.ones(1), 1, tag=i)
        dist.barrier()
        return True
    into = torch.zeros(COUNT)
    works = []
    for i in range(COUNT):
        if i in late or i - 1 in late:
            backend_of_world().set_timeout(timedelta(seconds=1 if i in late else 30))
        works.append(dist.irecv(into[i:i + 1], 0, tag=i))
    for i in late:
        text = text_of(works[i].wait)
        assert "TIMED_OUT" in text, (i, text)
    assert not works[1].is_completed() and not works[-1].is_completed()
    ranks.meet(rank, size, folder, "over")
    for i, work in enumerate(works):
        if i not in late:
            work.wait()
    dist.barrier()
    return [i for i in range(COUNT) if into[i] != 1] == sorted(late)


def ended(rank, size, folder, how):
    """Rank 1 ends its group, or aborts it, while thousands of works of every kind are pending."""
    ranks.init(rank, size, folder)
    dist.barrier()
    into = torch.zeros(COUNT)
    works = [dist.irecv(into[i:i + 1], 1 - rank, tag=i) for i in range(COUNT)]
    if rank == 1:
        works += [dist.broadcast(torch.zeros(1), 0, async_op=True) for _ in range(COUNT)]
    called = []
    some = [work.get_future() for work in works[::3]]
    for future in some:
        future.add_done_callback(lambda _: called.append(1))
    ranks.meet(rank, size, folder, "posted")
    began = time.monotonic()
    if rank == 1:
        if how == "abort":
            backend_of_world().abort_with("enough of it")
        else:
            dist.destroy_process_group()
    texts = {text_of(work.wait).rpartition("[")[2] for work in works}
    seconds = time.monotonic() - began
    ranks.until(lambda: len(called) == len(some))
    ranks.meet(rank, size, folder, "ended")
    return texts, seconds


def hooked(rank, size, folder):
    """The hook receives each work once, also those that nobody keeps."""
    ranks.init(rank, size, folder)
    seen = []
    dist.group.WORLD._register_on_completion_hook(lambda info: seen.append(info.seq))
    before = backend_of_world()._get_sequence_number_for_group()
    tensor = torch.zeros(1)
    kept = [dist.broadcast(tensor, 0, async_op=True) for _ in range(COUNT)]
    del kept[::2]
    ranks.until(lambda: len(seen) >= COUNT)
    kept[-1].wait()
    return sorted(seq - before for seq in seen) == list(range(COUNT))


def parts(rank, size, folder):
    """One operation with thousands of tensors."""
    ranks.init(rank, size, folder)
    tensors = [torch.full((1 + i % 3,), float(i + rank)) for i in range(COUNT)]
    backend_of_world().allreduce_coalesced(tensors).wait()
    work = backend_of_world().allreduce_coalesced(tensors)
    ranks.until(work.is_completed)
    work.wait()
    return all(bool(tensor.eq(2 * (2 * i + 1)).all()) for i, tensor in enumerate(tensors))


# --- time ----------------------------------------------------------------------------------------


def flood(rank, group, how, count):
    """Seconds from the first post to the last end, on the rank that takes longer."""
    source = torch.arange(count, dtype=torch.float32)
    into = torch.zeros(count)
    dist.barrier(group)
    if how in ("early", "late") and (rank == 0) == (how == "early"):
        time.sleep(0.5)  # the other rank posts everything first
    began = time.monotonic()
    if how == "broadcast":
        mine = into if rank else source
        works = [dist.broadcast(mine[i:i + 1], 0, group=group, async_op=True) for i in range(count)]
    elif rank == 0:
        works = [dist.isend(source[i:i + 1], 1, group=group, tag=i) for i in range(count)]
    else:
        order = reversed(range(count)) if how == "reversed" else range(count)
        works = [dist.irecv(into[i:i + 1], 0, group=group, tag=i) for i in order]
    for work in works:
        work.wait()
    seconds = time.monotonic() - began
    del works, work
    assert rank == 0 or torch.equal(source, into)
    both = [None, None]
    dist.all_gather_object(both, seconds, group=group)
    return max(both)


def floods(rank, size, folder, how, counts, runs):
    """The median of the times for each count, and at the second count those of Gloo."""
    ranks.init(rank, size, folder, timeout_s=600)
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=600))
    flood(rank, None, how, 1000)
    times = {(count, name): [] for count in counts for name in ("hetcomm", "gloo")}
    for _ in range(runs):
        for count in counts:
            times[count, "hetcomm"].append(flood(rank, None, how, count))
            if count == counts[1]:
                times[count, "gloo"].append(flood(rank, gloo, how, count))
    return {key: statistics.median(each) for key, each in times.items() if each}


class Scaling(ranks.TestCase):
    MOST = 2.4  # times as long for twice as many

    def check(self, how):
        counts = (15_000, 30_000, 60_000)
        found = ranks.run(2, floods, how, counts, 3, limit_s=900)[0]
        line = ", ".join(f"{count} {name} {seconds:.2f} s" for (count, name), seconds in found.items())
        print(f"{how}: {line}", file=sys.stderr)
        for few, many in zip(counts, counts[1:]):
            self.assertLess(found[many, "hetcomm"], self.MOST * found[few, "hetcomm"], line)
        self.assertLess(found[counts[1], "hetcomm"], found[counts[1], "gloo"], line)

    def test_cost_per_work_is_constant_with_early_receives(self):
        self.check("early")

    def test_cost_per_work_is_constant_with_late_receives(self):
        self.check("late")

    def test_cost_per_work_is_constant_with_reversed_receives(self):
        self.check("reversed")

    def test_cost_per_work_is_constant_for_broadcasts(self):
        self.check("broadcast")


class Flood(ranks.TestCase):
    def test_works_can_end_and_be_awaited_in_any_order(self):
        self.all_equal(ranks.run(2, any_order), True)

    def test_every_future_completes_once(self):
        for order in (range(COUNT), list(reversed(range(COUNT))), shuffled(COUNT, 4)):
            self.all_equal(ranks.run(2, futures, order), True)

    def test_future_completes_among_pending_works(self):
        self.all_equal(ranks.run(2, future_among_pending), True)

    def test_dropped_works_release_their_tensors(self):
        self.all_equal(ranks.run(2, dropped), True)

    def test_deadline_ends_only_its_own_work(self):
        self.all_equal(ranks.run(2, deadlines), True)

    def test_abort_ends_thousands_of_works(self):
        for texts, seconds in ranks.run(2, ended, "abort"):
            self.assertEqual(texts, {"ABORTED]"})
            self.assertLess(seconds, 20)

    def test_destroy_ends_thousands_of_works(self):
        (theirs, seconds), (own, own_seconds) = ranks.run(2, ended, "destroy")
        self.assertEqual(theirs, {"PEER_LOST]"})
        self.assertLess(seconds, 20)
        self.assertLessEqual(own, {"CANCELLED]", "ABORTED]"})
        self.assertLess(own_seconds, 20)

    def test_hook_receives_works_that_are_not_awaited(self):
        self.all_equal(ranks.run(2, hooked), True)

    def test_operation_on_thousands_of_tensors_is_one_work(self):
        self.all_equal(ranks.run(2, parts), True)


if __name__ == "__main__":
    tests = "Scaling" if "scaling" in sys.argv[1:] else "Flood"
    unittest.main(argv=[sys.argv[0], *(a for a in sys.argv[1:] if a != "scaling")],
                  defaultTest=tests)
