"""Transfers the weights of a model from a trainer to an inference engine after each training step.

    torchrun --nproc-per-node 8 examples/weight_sync.py

Ranks 0 to 3 train a small mixture-of-experts transformer with FSDP2. Ranks 4 to 7 hold the same
model in the layout of an inference engine: fused and tensor-parallel, in bfloat16.

    q, k, v        fused; each of the 4 ranks holds one query head. k and v have only 2 heads, so
                   two ranks hold the same head of k and v
    o              divided by columns
    router         replicated
    w1, w3         fused (w13); divided among 2 expert-parallel x 2 tensor-parallel ranks
    w2             divided by experts and columns
    embedding      divided by rows; the vocabulary is padded from 500 to 512 rows. The trainer ties
                   the output layer to the embedding; the engine has a separate copy (lm_head)

Each rank describes only its own tensors, and does not need the layouts of other ranks. The example
checks that the transferred weights are equal, bit by bit, to the trainer's weights.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import hetcomm.torch
from hetcomm import reshard

TRAINERS = [0, 1, 2, 3]
ENGINES = [4, 5, 6, 7]
VOCABULARY, PADDED = 500, 512
HIDDEN, HEADS, KV_HEADS, HEAD = 64, 4, 2, 16
EXPERTS, FFN, LAYERS = 4, 32, 2
EXPERT_PARALLEL, TENSOR_PARALLEL = 2, 2
STEPS = 3


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(HIDDEN, HEADS * HEAD, bias=False)
        self.k = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=False)
        self.o = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, FFN, HIDDEN) * 0.1)
        self.w3 = nn.Parameter(torch.randn(EXPERTS, FFN, HIDDEN) * 0.1)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, HIDDEN, FFN) * 0.1)

    def forward(self, x):
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, HEADS, HEAD).transpose(1, 2)
        k = self.k(x).view(batch, length, KV_HEADS, HEAD).transpose(1, 2)
        v = self.v(x).view(batch, length, KV_HEADS, HEAD).transpose(1, 2)
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, dim=1) for each in (k, v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, HEADS * HEAD))
        shares = self.router(x).softmax(-1)
        inner = nn.functional.silu(torch.einsum("blh,efh->blef", x, self.w1))
        inner = inner * torch.einsum("blh,efh->blef", x, self.w3)
        return x + torch.einsum("blef,ehf,ble->blh", inner, self.w2, shares)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x @ self.embedding.weight.T


class Trainer:
    """The training side, on ranks 0 to 3."""

    def __init__(self):
        torch.manual_seed(0)
        mesh = DeviceMesh("cpu", TRAINERS)
        self.model = Model()
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        tokens = torch.randint(VOCABULARY, (2, 8))
        loss = nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Engine:
    """The adapter for an inference engine, on ranks 4 to 7. The engine holds a box of each of the
    trainer's tensors inside one of its own tensors, which may be fused. The box has the location
    inside the engine's tensor."""

    def __init__(self, rank):
        self.place = rank - ENGINES[0]
        self.expert_rank, self.tensor_rank = divmod(self.place, TENSOR_PARALLEL)
        experts, ffn = EXPERTS // EXPERT_PARALLEL, FFN // TENSOR_PARALLEL

        def empty(*shape):
            return torch.full(shape, float("nan"), dtype=torch.bfloat16)

        self.memory = {
            "embedding": empty(PADDED // len(ENGINES), HIDDEN),
            "lm_head": empty(PADDED // len(ENGINES), HIDDEN),
        }
        for i in range(LAYERS):
            self.memory[f"{i}.qkv"] = empty(3 * HEAD, HIDDEN)
            self.memory[f"{i}.o"] = empty(HIDDEN, HEAD)
            self.memory[f"{i}.router"] = empty(EXPERTS, HIDDEN)
            self.memory[f"{i}.w13"] = empty(experts, 2 * ffn, HIDDEN)
            self.memory[f"{i}.w2"] = empty(experts, HIDDEN, ffn)
        self.views = {}  # name -> (key in memory, shape of the whole tensor, box, padded shape)
        rows = PADDED // len(ENGINES)
        for name in ("embedding", "lm_head"):
            box = self.box((rows * self.place, 0), (rows * (self.place + 1), HIDDEN))
            self.views[f"{name}.weight"] = (name, (VOCABULARY, HIDDEN), box, (PADDED, HIDDEN))
        for i in range(LAYERS):
            self.add_layer(i, experts, ffn)

    @staticmethod
    def box(begin, end, offset=0, strides=None):
        return reshard.Box(0, begin, end, offset, strides)

    def add_layer(self, i, experts, ffn):
        name = f"layers.{i}"
        head = self.place
        kv_head = self.place * KV_HEADS // len(ENGINES)
        for part, (weight, own, heads) in enumerate(
            (("q", head, HEADS), ("k", kv_head, KV_HEADS), ("v", kv_head, KV_HEADS))
        ):
            box = self.box((HEAD * own, 0), (HEAD * (own + 1), HIDDEN), part * HEAD * HIDDEN)
            self.views[f"{name}.{weight}.weight"] = (f"{i}.qkv", (heads * HEAD, HIDDEN), box, None)
        columns = self.box((0, HEAD * head), (HIDDEN, HEAD * (head + 1)))
        self.views[f"{name}.o.weight"] = (f"{i}.o", (HIDDEN, HEADS * HEAD), columns, None)
        whole = self.box((0, 0), (EXPERTS, HIDDEN))
        self.views[f"{name}.router.weight"] = (f"{i}.router", (EXPERTS, HIDDEN), whole, None)
        first = experts * self.expert_rank
        begin = ffn * self.tensor_rank
        for part, weight in enumerate(("w1", "w3")):
            box = self.box(
                (first, begin, 0),
                (first + experts, begin + ffn, HIDDEN),
                part * ffn * HIDDEN,
                (2 * ffn * HIDDEN, HIDDEN, 1),
            )
            self.views[f"{name}.{weight}"] = (f"{i}.w13", (EXPERTS, FFN, HIDDEN), box, None)
        box = self.box((first, 0, begin), (first + experts, HIDDEN, begin + ffn))
        self.views[f"{name}.w2"] = (f"{i}.w2", (EXPERTS, HIDDEN, FFN), box, None)

    # --- methods that hetcomm calls ---

    def describe(self):
        return {
            name: reshard.TensorSpec(shape, torch.bfloat16, (box,), padded_shape=padded)
            for name, (_, shape, box, padded) in self.views.items()
        }

    def view(self, name):
        return self.memory[self.views[name][0]]

    def loaded(self, names):
        pass  # a real engine might repack its weights or recapture its graphs

    # --- the check ---

    def differences(self, truth, names):
        """Returns the names of the tensors with elements that differ from the trainer's."""
        wrong = []
        for name, (memory, _, box, padded) in self.views.items():
            whole = truth[names.get(name, name)].bfloat16()
            expected = whole[tuple(slice(b, e) for b, e in zip(box.begin, box.end))]
            extents = [end - begin for begin, end in zip(box.begin, box.end)]
            strides = box.strides or torch.empty(extents).stride()
            own = torch.as_strided(self.memory[memory], extents, strides, box.offset)
            if padded is not None:
                own = own[: len(expected)]  # rows past the vocabulary are never written
            if not torch.equal(own, expected):
                wrong.append(name)
        return wrong


def main():
    dist.init_process_group("hetcomm")
    rank = dist.get_rank()
    if dist.get_world_size() != 8:
        raise SystemExit("start 8 ranks: torchrun --nproc-per-node 8 examples/weight_sync.py")
    torch.set_num_threads(1)
    trainer = Trainer() if rank in TRAINERS else None
    engine = Engine(rank) if rank in ENGINES else None
    names = {"lm_head.weight": "embedding.weight"}  # lm_head is a copy of the embedding
    transfer = reshard.StateTransfer(
        hetcomm.torch.communicator(),
        source=trainer.model.state_dict() if trainer else None,
        destination=engine,
        names=names,
    )
    wrong = 0
    for step in range(STEPS):
        if trainer:
            trainer.step()
        dist.barrier()
        start = time.perf_counter()
        transfer.run()
        took = time.perf_counter() - start
        # For the check, rank 0 broadcasts the full tensors without using a reshard plan.
        truth = [None]
        if trainer:
            state = trainer.model.state_dict()
            truth = [{name: tensor.full_tensor() for name, tensor in state.items()}]
        dist.broadcast_object_list(truth, src=0)
        found = engine.differences(truth[0], names) if engine else []
        counts = torch.tensor([len(found)])
        dist.all_reduce(counts)
        wrong += int(counts)
        if rank == ENGINES[0]:
            tensors = len(engine.views)
            print(f"step {step}: {tensors} tensors in {took * 1e3:.1f} ms, {int(counts)} differ", flush=True)
    transfer.close()
    dist.destroy_process_group()
    if wrong:
        raise SystemExit("some tensors differ")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
