"""Back-ends of torch without events, copy streams or pinned memory (HETCOMM_STANDIN_WITHOUT).

Proves: operations of every kind give the right results after the earlier work of the caller's
stream, also in memory that was freed and reused; messages arrive in both directions; no operation
ends with DEVICE_LOST.
"""

import unittest

import torch
import torch.distributed as dist

import ranks
from test_torch_device import COUNT, collectives, filled, init, is_all


def all_kinds(rank, size, folder):
    standin = init(rank, size, folder)
    for _ in range(2):
        for operation in collectives(rank, size):
            own = filled(-1)
            standin._sleep(20)
            own.fill_(rank + 1.0)
            work, result, expected = operation(own)
            work.wait()
            assert is_all(result, expected), operation.__name__
    dist.barrier()
    return True


def messages(rank, size, folder):
    init(rank, size, folder)
    for i in range(10):
        own = filled(10 * rank + i)
        into = filled(-1)
        works = [dist.irecv(into, (rank - 1) % size), dist.isend(own, (rank + 1) % size)]
        del own  # it is freed, and poisoned, when the message has left
        for work in works:
            work.wait()
        assert is_all(into, 10 * ((rank - 1) % size) + i), i
    # Rows of a larger tensor, whose neighbours stay.
    whole = torch.zeros(100, 64, device="standin:0")
    dist.all_reduce(whole[:, 8:24].fill_(rank + 1.0))
    assert is_all(whole[:, :8], 0) and is_all(whole[:, 24:], 0)
    return True


def mixed(rank, size, folder):
    """Ranks of the device and of the host take part in one operation."""
    init(rank, size, folder)
    own = filled(rank + 1, COUNT, "standin:0" if rank % 2 == 0 else "cpu")
    dist.all_reduce(own)
    return is_all(own, sum(range(1, size + 1)))


def futures(rank, size, folder):
    """DDP continues in callbacks of futures."""
    init(rank, size, folder)
    for early in (True, False):
        own = filled(rank + 1)
        work = dist.all_reduce(own, async_op=True)
        if not early:
            work.wait()
        after = work.get_future().then(lambda future: future.value()[0])
        assert is_all(after.wait(), sum(range(1, size + 1)))
    with dist._coalescing_manager(device=torch.device("standin:0"), async_ops=True) as joint:
        tensors = [filled(rank + i) for i in range(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    joint.wait()
    for i, tensor in enumerate(tensors):
        assert is_all(tensor, sum(range(size)) + i * size), i
    return True


class Synchronous(ranks.TestCase):
    def test_operations_of_every_kind_give_the_right_results(self):
        self.all_equal(ranks.run(2, all_kinds), True)

    def test_messages_arrive_in_both_directions(self):
        self.all_equal(ranks.run(2, messages), True)

    def test_training_continues_in_callbacks_of_futures(self):
        self.all_equal(ranks.run(2, futures), True)

    def test_device_and_host_ranks_share_an_operation(self):
        self.all_equal(ranks.run(2, mixed), True)


if __name__ == "__main__":
    unittest.main()
