"""Pipelines of torch modules on a device, with their buffers in its memory.

Properties: steps work in the stream that was current when the pipeline was made, and may return
before their work has ended: data leaves after it, and buffers are used again after it. Gradients are
bit for bit those of the whole model on one device, for schedules of every kind, beside ranks whose
buffers are in memory of the host, with data and tensor degrees, and on back-ends without events or
streams. A step from another stream follows that stream's work, and is followed by it, and what the
caller gets outlasts what its stream does with it. A pipeline that is dropped waits for its work. Stages
without parameters work where the rank says. A plan that names another device than the modules are on is
refused on all ranks.
"""

import os
import unittest

import torch
import torch.distributed as dist
from torch import nn

import hetcomm.torch
from hetcomm import pipeline
from hetcomm.pipeline.buffers import DeviceBuffers
from ranks import TestCase, init, run
from test_pipeline import (
    ROWS, WIDTH, Block, grads_of, loss_of, own_modules, reference, rows_of, schedule_of, stop, tensor,
    weight_orders,
)

DEVICE = "standin:0"
WITHOUT = os.environ.get("HETCOMM_STANDIN_WITHOUT", "")


def start(rank, size, folder):
    import standin

    torch.set_num_threads(1)
    torch.set_default_device("cpu")  # tests say what lies on the device
    standin._set_lenient(False)
    init(rank, size, folder)
    return standin


class Late(torch.autograd.Function):
    """Work that its stream comes to late, forward and backward."""

    @staticmethod
    def forward(context, x, milliseconds):
        import standin

        context.milliseconds = milliseconds
        standin._sleep(milliseconds)
        return x.clone()

    @staticmethod
    def backward(context, grad):
        import standin

        standin._sleep(context.milliseconds)
        return grad.clone(), None


class LateBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block().double()
        self.milliseconds = 0

    def forward(self, x):
        if self.milliseconds:
            assert x.device == torch.device(DEVICE), x.device
            x = Late.apply(x, self.milliseconds)
        return self.block(x)


def late_blocks(count, seed=7):
    torch.manual_seed(seed)
    return {str(i): LateBlock() for i in range(count)}


def moved(modules, milliseconds):
    """Copies on the device, whose work is late."""
    copies = []
    for stage in modules:
        made = {}
        for name, module in stage.items():
            made[name] = LateBlock()
            made[name].load_state_dict(module.state_dict())
            made[name].to(DEVICE).milliseconds = milliseconds
        copies.append(made)
    return copies


def expected_of(model, x, y, rows, orders):
    """The loss and the gradients of the whole model on the device, whose operators round in their own way."""
    whole, = moved([model], 0)
    parts = x.to(DEVICE).split(rows), y.to(DEVICE).split(rows)
    count = len(parts[0])
    loss, grads = reference(whole, *parts, [1 / count] * count, orders)
    return loss, {key: grad.cpu() for key, grad in grads.items()}


def plan_of(stages, schedule, micro_batches, devices, **more):
    return pipeline.Plan.of(stages=stages, tensors=[tensor()], micro_batches=micro_batches, micro_batch_size=ROWS, schedule=schedule,
                            devices=devices, **more)


def expect(trainer, expected, what, exact=True):
    for key, grad in grads_of(trainer).items():
        grad = grad.cpu()
        same = torch.equal(grad, expected[key]) if exact else torch.allclose(grad, expected[key], atol=1e-12)
        assert same, (what, key, grad - expected[key])


def on_device(rank, size, folder, names, milliseconds, hosts):
    """|hosts|: ranks whose modules and buffers are in memory of the host."""
    start(rank, size, folder)
    given = []
    make = DeviceBuffers.tensor

    def seen(self, each):
        made = make(self, each)
        given.append((each.array is None, made.device))
        return made

    DeviceBuffers.tensor = seen
    for name in names:
        rank_of, schedule = schedule_of(name, size)
        micro_batches = 2 * size + 1
        stages = [pipeline.Stage([each], 2) for each in rank_of]
        devices = {each: int(each not in hosts) for each in range(size)}
        plan = plan_of(stages, schedule, micro_batches, devices)
        items = 2 * len(rank_of)
        model = late_blocks(items)
        x, y = rows_of(micro_batches * ROWS)
        expected_loss, expected = expected_of(model, x, y, ROWS, weight_orders(plan, items))
        own = own_modules(model, plan, rank)
        if rank not in hosts:
            own = moved(own, milliseconds)
            x, y = x.to(DEVICE), y.to(DEVICE)
        with pipeline.Pipeline(None, plan, own, loss=loss_of) as trainer:
            for step in range(2):
                for each in trainer.parameters():
                    each.grad = None
                loss = trainer.step(x, targets=y, number=step)
                assert abs(loss - expected_loss) < 1e-12, (name, loss, expected_loss)
                expect(trainer, expected, name, exact=not hosts)
            assert abs(trainer.evaluate(x, targets=y) - expected_loss) < 1e-12, name
            outputs = trainer.predict(x)
            assert all(each.device == x.device for each in outputs)
    if rank not in hosts:
        assert given and all(each == (True, torch.device(DEVICE)) for each in given), given
    stop()
    return True


def degrees(rank, size, folder):
    """Data parallel stages, whose gradients are added up, between devices and the host."""
    start(rank, size, folder)
    stages = [pipeline.Stage([0, 1], 2, data=2), pipeline.Stage([2], 2)]
    plan = pipeline.Plan.of(stages=stages, tensors=[pipeline.Tensor("x", "float64", (4, WIDTH))],
                            micro_batches=4, micro_batch_size=4, devices={0: 1, 1: 1, 2: 1})
    model = late_blocks(4)
    x, y = rows_of(16)
    _, expected = expected_of(model, x, y, 4, [range(4)] * 4)
    mine = torch.cat([part.chunk(2)[rank % 2] for part in x.split(4)]).to(DEVICE)
    own = moved(own_modules(model, plan, rank), 2)
    with pipeline.Pipeline(None, plan, own, loss=loss_of) as trainer:
        trainer.step(mine, targets=y.to(DEVICE))
        expect(trainer, expected, "data degree", exact=False)
        # They are added up where they lie.
        rooms = [each.room for each in trainer._added]
        assert bool(rooms) == (rank < 2) and all(each.device == torch.device(DEVICE) for each in rooms), rooms
        norm, wrong = trainer.grad_norm()
        whole = sum(float(each.pow(2).sum()) for each in expected.values()) ** 0.5
        assert not wrong and abs(norm - whole) < 1e-6, (norm, whole)
    stop()
    return True


class Shift(nn.Module):
    """A stage none of whose operators blocks on the stand-in."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ROWS, WIDTH, dtype=torch.float64))
        self.milliseconds = 0

    def forward(self, x):
        return x + Late.apply(self.weight, self.milliseconds)


def shifted(micro_batches):
    """A model whose first stage blocks nowhere, rows on the device, and the gradients."""
    torch.manual_seed(3)
    model = {"0": Shift(), "1": LateBlock()}
    for module in model.values():
        module.to(DEVICE)
    x, y = (each.to(DEVICE) for each in rows_of(micro_batches * ROWS))
    _, expected = reference(model, x.split(ROWS), y.split(ROWS), [1 / micro_batches] * micro_batches,
                            [range(micro_batches)] * 2)
    return model, x, y, {key: grad.cpu() for key, grad in expected.items()}


def ended_early(rank, size, folder):
    """Buffers are freed only when the work that reads them has ended, which outlasts the step."""
    start(rank, size, folder)
    plan = plan_of([pipeline.Stage([0], 1), pipeline.Stage([1], 1)], "gpipe", 2, {0: 1, 1: 1})
    model, x, y, expected = shifted(2)
    # The first stage reads its second gradient behind what it does with the first one.
    model["0"].milliseconds = 100
    for ends in (lambda each: each.close(), lambda each: each.set_schedule("1f1b")):
        for module in model.values():
            module.zero_grad()
        trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
        trainer.step(x, targets=y)
        ends(trainer)
        expect(trainer, expected, "ended early")
        dist.barrier()
        trainer.close()
    stop()
    return True


def late_sums(rank, size, folder):
    """Gradients that are added up over ranks, and late in their stream when the stage has its last step behind it."""
    start(rank, size, folder)
    stages = [pipeline.Stage([0, 1], 1, data=2), pipeline.Stage([2], 1)]
    plan = pipeline.Plan.of(stages=stages, tensors=[pipeline.Tensor("x", "float64", (2 * ROWS, WIDTH))],
                            micro_batches=2, micro_batch_size=2 * ROWS, devices={0: 1, 1: 1, 2: 1}, schedule="gpipe")
    model, x, y, expected = shifted(4)
    model["0"].milliseconds = 100
    mine = torch.cat([part.chunk(2)[rank % 2] for part in x.split(2 * ROWS)])
    with pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of) as trainer:
        trainer.step(mine if rank < 2 else x, targets=y)
        expect(trainer, expected, "late sums", exact=False)
    stop()
    return True


def other_streams(rank, size, folder):
    """The pipeline is made in one stream, and steps are called in another one."""
    standin = start(rank, size, folder)
    plan = plan_of([pipeline.Stage([0], 1), pipeline.Stage([1], 1)], "1f1b", 4, {0: 1, 1: 1})
    model, device_x, device_y, expected = shifted(4)
    # The last gradient of the first stage is late when the step returns.
    model["0"].milliseconds = 20
    own = own_modules(model, plan, rank)
    first, second = torch.Stream(DEVICE), torch.Stream(DEVICE)
    with standin.stream(first):
        trainer = pipeline.Pipeline(None, plan, own, loss=loss_of)
    late_x, late_y = torch.zeros_like(device_x), torch.zeros_like(device_y)
    for each in (first, second):
        each.synchronize()
    standin.current_stream().synchronize()
    with trainer, standin.stream(second):
        standin._sleep(60)  # the rows are late in the caller's stream
        late_x.copy_(device_x)
        late_y.copy_(device_y)
        trainer.step(late_x, targets=late_y)
        # In the caller's stream, which follows the step's work.
        doubled = {key: 2 * grad for key, grad in grads_of(trainer).items()}
        second.synchronize()
        for key, each in doubled.items():
            assert torch.equal(each.cpu(), 2 * expected[key]), key
    stop()
    return True


def lent_memory(rank, size, folder):
    """Gradients and outputs that are freed while the caller's stream reads them: their memory belongs to
    the pipeline's stream, in which others allocate."""
    standin = start(rank, size, folder)
    plan = plan_of([pipeline.Stage([0], 1), pipeline.Stage([1], 1)], "1f1b", 4, {0: 1, 1: 1})
    model = late_blocks(2)
    x, y = rows_of(4 * ROWS)
    _, expected = expected_of(model, x, y, ROWS, [range(4)] * 2)
    own = moved(own_modules(model, plan, rank), 1)
    outputs = [through_all(model, part) for part in x.split(ROWS)]
    x, y = x.to(DEVICE), y.to(DEVICE)
    first, second = torch.Stream(DEVICE), torch.Stream(DEVICE)
    with standin.stream(first):
        trainer = pipeline.Pipeline(None, plan, own, loss=loss_of)
    with trainer, standin.stream(second):
        for predicts in (False, True):
            if predicts:
                made = dict(enumerate(trainer.predict(x)))
            else:
                trainer.step(x, targets=y)
                made = {key: grad for key, grad in grads_of(trainer).items()}
            shapes = [each.shape for each in made.values()]
            read = {key: torch.empty_like(each) for key, each in made.items()}
            second.synchronize()
            standin._sleep(60)  # the caller reads late
            for key, each in made.items():
                read[key].copy_(each)
            del made, each
            for parameter in trainer.parameters():
                parameter.grad = None
            with standin.stream(first):
                others = [torch.full(shape, 7.0, dtype=torch.float64, device=DEVICE) for shape in shapes]
            second.synchronize()
            for key, each in read.items():
                wanted = outputs[key] if predicts else expected[key]
                assert torch.allclose(each.cpu(), wanted, atol=1e-12), (predicts, key)
            del others
    stop()
    return True


def through_all(model, x):
    for module in model.values():
        x = module(x)
    return x.detach()


def without_parameters(rank, size, folder):
    """A stage without parameters works on the device that the rank says."""
    start(rank, size, folder)

    class Double(nn.Module):
        def forward(self, x):
            assert x.device == torch.device(DEVICE)
            return 2 * x

    plan = plan_of([pipeline.Stage([0]), pipeline.Stage([1]), pipeline.Stage([2])], "1f1b", 4,
                   {0: 1, 1: 1, 2: 1})
    blocks = late_blocks(2)
    own = moved([{"0": blocks["0"]}, {"1": blocks["1"]}], 1)
    x, y = rows_of(4 * ROWS)
    x, y = x.to(DEVICE), y.to(DEVICE)
    module = own[0] if rank == 0 else own[1] if rank == 2 else Double()
    try:
        pipeline.Pipeline(None, plan, module, loss=loss_of)
        raise AssertionError("nothing says where rank 1 works")
    except (ValueError, RuntimeError) as error:
        assert "say with `device` where they work" in str(error), error
    with pipeline.Pipeline(None, plan, module, loss=loss_of, device=DEVICE) as trainer:
        loss = trainer.step(x, targets=y)
    made = [loss_of(own[1]["1"](2 * own[0]["0"](part)), target).item()
            for part, target in zip(x.split(ROWS), y.split(ROWS))]
    assert abs(loss - sum(made) / 4) < 1e-12, (loss, made)
    stop()
    return True


def left_open(rank, size, folder):
    """A pipeline that is dropped waits for the work that reads its buffers."""
    start(rank, size, folder)
    plan = plan_of([pipeline.Stage([0], 1), pipeline.Stage([1], 1)], "gpipe", 2, {0: 1, 1: 1})
    model, x, y, expected = shifted(2)
    model["0"].milliseconds = 100
    for module in model.values():
        module.zero_grad()
    trainer = pipeline.Pipeline(None, plan, own_modules(model, plan, rank), loss=loss_of)
    parameters = dict(trainer.named_parameters())
    trainer.step(x, targets=y)
    dist.barrier()
    del trainer
    for key, each in parameters.items():
        assert torch.equal(each.grad.cpu(), expected[key]), key
    stop()
    return True


def refusals(rank, size, folder):
    start(rank, size, folder)
    stages = [pipeline.Stage([0]), pipeline.Stage([1])]
    model = late_blocks(2)
    number = hetcomm.torch.device_index(DEVICE, hetcomm.torch.communicator())
    assert number == 1 and hetcomm.torch.device_index("cpu", hetcomm.torch.communicator()) == 0
    for devices, places, text in (
        ({0: 1, 1: 2}, (DEVICE, DEVICE), "gives rank 1 device 2, and its modules are on standin:0, which is"),
        ({0: 1, 1: 1}, (DEVICE, "cpu"), "a device whose memory the CPU may not touch"),
    ):
        plan = plan_of(stages, "1f1b", 4, devices)
        own = {str(rank): model[str(rank)].to(places[rank])}
        try:
            x, y = rows_of(4 * ROWS)
            pipeline.Pipeline(None, plan, own, loss=loss_of).step(x.to(places[0]), targets=y)
            raise AssertionError("it was not refused")
        except (ValueError, RuntimeError) as error:
            assert text in str(error), error
    stop()
    return True


class OnDevice(TestCase):
    def test_schedules_give_correct_gradients_on_a_lagging_stream(self):
        names = ["1f1b", "zb-v"] + (["dualpipe-v", "four-phase"] if "HETCOMM_TEST_LONG" in os.environ else [])
        self.all_equal(run(2, on_device, names, 2, ()), True)

    def test_device_and_host_ranks_share_a_pipeline(self):
        for hosts in ((0,), (1,)):
            self.all_equal(run(2, on_device, ["1f1b", "zb-h1"], 2, hosts), True)

    def test_gradients_of_data_parallel_stages_are_summed(self):
        self.all_equal(run(3, degrees), True)

    def test_buffers_outlast_the_work_that_reads_them(self):
        self.all_equal(run(2, ended_early), True)

    @unittest.skipIf("streams" in WITHOUT, "the back-end has one stream")
    def test_step_follows_the_callers_stream_and_later_work_follows_the_step(self):
        self.all_equal(run(2, other_streams), True)

    def test_late_gradients_are_summed(self):
        self.all_equal(run(3, late_sums), True)

    @unittest.skipIf("streams" in WITHOUT or "events" in WITHOUT, "memory is used again when its stream is done")
    def test_gradients_and_outputs_stay_allocated_until_read(self):
        self.all_equal(run(2, lent_memory), True)

    def test_parameterless_stages_use_the_given_device(self):
        self.all_equal(run(3, without_parameters), True)

    def test_dropped_pipeline_waits_for_its_work(self):
        self.all_equal(run(2, left_open), True)

    def test_plan_naming_a_different_device_than_the_modules_is_refused(self):
        self.all_equal(run(2, refusals), True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
