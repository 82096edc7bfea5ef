"""What ranks do in test_backend.py: the same calls and the same training on any process group.

Ranks import this module, so it needs torch and minidist only.
"""

from __future__ import annotations

import contextlib
import itertools

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from minidist.data import DigitsNet, digits_shard

Op = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SIZES = (0, 1, 5, 1003, 300_007)


def gloo_beside_ours() -> dist.ProcessGroup:
    """gloo on the same ranks, where the default group is ours."""
    return dist.new_group(backend="gloo")


def numbers(shape, dtype, rank: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


# Collectives: name -> what a call leaves on this rank


def sums(group) -> dict[str, Tensor]:
    """all_reduce in every dtype and size: to the last bit like gloo."""
    out = {}
    for dtype, size in itertools.product((*FLOATS, torch.int64, torch.uint8), SIZES):
        x = numbers((size,), dtype, dist.get_rank(group))
        dist.all_reduce(x, group=group)
        out[f"sum of {size} {dtype}"] = x
    return out


def calls(group) -> dict[str, Tensor]:
    """Everything else, on floats whose order of addition is the same and on integers."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    out = {}

    def f32(*shape, seed=0):
        return numbers(shape, torch.float32, rank, seed)

    def i64(*shape, seed=0):
        return numbers(shape, torch.int64, rank, seed)

    for op in (Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX):
        out[f"all_reduce {op}"] = x = f32(37)
        dist.all_reduce(x, op, group=group)
    for op in (Op.BAND, Op.BOR, Op.BXOR, Op.MIN, Op.MAX):
        out[f"all_reduce int {op}"] = x = i64(37)
        dist.all_reduce(x, op, group=group)
    out["0-dim"] = x = f32()
    dist.all_reduce(x, group=group)
    out["matrix"] = x = f32(3, 5)
    dist.all_reduce(x, group=group)
    out["complex"] = x = torch.complex(f32(7), f32(7, seed=1))
    dist.all_reduce(x, group=group)
    for root in range(n):
        source = dist.get_global_rank(group, root)
        out[f"broadcast from {root}"] = x = f32(11, seed=root)
        dist.broadcast(x, source, group=group)
        x = i64(2, 3)
        dist.reduce(x, source, group=group)
        if rank == root:
            out[f"reduce to {root}"] = x
        rows = [torch.zeros(3, 2) for _ in range(n)] if rank == root else None
        dist.gather(f32(3, 2), rows, source, group=group)
        if rank == root:
            out[f"gather to {root}"] = torch.stack(rows)
        rows = [f32(4, seed=k) for k in range(n)] if rank == root else None
        out[f"scatter from {root}"] = x = torch.zeros(4)
        dist.scatter(x, rows, source, group=group)
    rows = [torch.zeros(2, 3) for _ in range(n)]
    dist.all_gather(rows, f32(2, 3), group=group)
    out["all_gather"] = torch.stack(rows)
    out["all_gather_single"] = x = torch.zeros(2 * n, 3)
    single("all_gather", x, f32(2, 3), group=group)
    out["reduce_scatter"] = x = torch.zeros(5, dtype=torch.int64)
    dist.reduce_scatter(x, [i64(5, seed=k) for k in range(n)], group=group)
    out["reduce_scatter_single"] = x = torch.zeros(2, 3, dtype=torch.int64)
    single("reduce_scatter", x, i64(2 * n, 3), group=group)
    rows = [torch.zeros(3) for _ in range(n)]
    out["all_to_all_single"] = x = torch.zeros(2 * n, 3)
    dist.all_to_all_single(x, f32(2 * n, 3), group=group)
    to_each = [(rank + k) % n for k in range(n)]  # rank r sends (r + k) mod n rows to rank k
    from_each = [(k + rank) % n for k in range(n)]
    out["all_to_all_single, uneven"] = x = torch.zeros(sum(from_each), 2)
    dist.all_to_all_single(x, f32(sum(to_each), 2), from_each, to_each, group=group)
    things = [None] * n
    dist.all_gather_object(things, {"rank": rank, "text": "x" * rank}, group=group)
    out["all_gather_object"] = torch.tensor([len(str(t)) for t in things])
    things = [("from", rank)]
    dist.broadcast_object_list(things, dist.get_global_rank(group, n - 1), group=group)
    out["broadcast_object_list"] = torch.tensor(things[0][1])
    out["later works first"] = torch.stack(many_at_once(group))
    sparse = torch.sparse_coo_tensor([[rank, n]], f32(2, 3), (n + 1, 3), check_invariants=True)
    dist.all_reduce(sparse, group=group)
    out["sparse"] = sparse.to_dense()
    dist.barrier(group)
    return out


def single(name: str, *arguments, **options) -> None:
    """dist.all_gather_single and its like, under the name that this torch has for it."""
    old = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
    call = getattr(dist, f"{name}_single", None) or getattr(dist, old[name])
    call(*arguments, **options)


def many_at_once(group) -> list[Tensor]:
    """Five hundred calls on their way, waited for from the last to the first."""
    tensors = [torch.full((1,), float(i + dist.get_rank(group))) for i in range(500)]
    works = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    return tensors


def messages(group) -> dict[str, Tensor]:
    """send and recv in every order that must not hang. At least two ranks."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % n, (rank - 1) % n
    out = {}
    x, big = torch.zeros(3), torch.zeros(1_000_000)
    receiving = dist.irecv(x, left, group=group)  # first all receive ...
    sending = dist.isend(torch.full((3,), float(rank)), right, group=group)
    receiving.wait()
    sending.wait()
    out["irecv before isend"] = x
    sending = dist.isend(torch.full((1_000_000,), float(rank)), right, group=group)
    dist.recv(big, left, group=group)  # ... then all send what no socket buffer holds
    sending.wait()
    out["isend before recv"] = big
    first, second = torch.zeros(2), torch.zeros(2)
    sent = [dist.isend(torch.full((2,), float(tag)), right, group=group, tag=tag) for tag in (1, 2)]
    dist.recv(second, left, group=group, tag=2)
    dist.recv(first, left, group=group, tag=1)
    out["tags"] = torch.cat([first, second])
    y = torch.zeros(4)
    operations = [
        dist.P2POp(dist.irecv, y, left, group),
        dist.P2POp(dist.isend, torch.full((4,), float(rank)), right, group),
    ]
    for work in (*dist.batch_isend_irecv(operations), *sent):
        work.wait()
    out["batch_isend_irecv"] = y
    return out


def strided() -> list[str]:
    """What our backend gets wrong on tensors with gaps; gloo gets most of it wrong."""
    rank, n = dist.get_rank(), dist.get_world_size()
    wrong = []

    def check(name: str, view: Tensor, expected: Tensor, around: Tensor, before: Tensor) -> None:
        if not torch.equal(view, expected):
            wrong.append(f"{name}: {view.tolist()}, not {expected.tolist()}")
        outside = torch.ones_like(around, dtype=torch.bool)
        outside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(False)
        if not torch.equal(around[outside], before[outside]):
            wrong.append(f"{name}: touched what lies between")

    views = {
        "every second": lambda a: a.view(-1)[1::2],
        "column": lambda a: a[:, 2],
        "transposed": lambda a: a.t(),
    }
    everyone = [numbers((4, 6), torch.int64, r) for r in range(n)]
    for name, view_of in views.items():
        around = everyone[rank].clone()
        dist.all_reduce(view_of(around))
        total = view_of(sum(everyone))
        check(f"all_reduce {name}", view_of(around), total, around, everyone[rank])
        around = everyone[rank].clone()
        dist.broadcast(view_of(around), n - 1)
        check(f"broadcast {name}", view_of(around), view_of(everyone[-1]), around, everyone[rank])
        around = everyone[rank].clone()
        dist.reduce(view_of(around), 0)
        expected = view_of(sum(everyone) if rank == 0 else everyone[rank])
        check(f"reduce {name}", view_of(around), expected, around, everyone[rank])
        wide = [torch.zeros(4, 6, dtype=torch.int64) for _ in range(n)]
        dist.all_gather([view_of(w) for w in wide], view_of(everyone[rank]))
        for r, w in enumerate(wide):
            check(f"all_gather {name}", view_of(w), view_of(everyone[r]), w, torch.zeros_like(w))
        around = everyone[rank].clone()
        single_of = torch.zeros(n, *view_of(around).shape, dtype=torch.int64)
        single("all_gather", single_of, view_of(around))
        if not torch.equal(single_of, torch.stack([view_of(e) for e in everyone])):
            wrong.append(f"all_gather_single {name}")
        around = everyone[rank].clone()
        dist.scatter(view_of(around), [view_of(e) for e in everyone] if rank == 0 else None, 0)
        check(f"scatter {name}", view_of(around), view_of(everyone[rank]), around, everyone[rank])
    return wrong


# Training: name -> the module at the end


class Branches(nn.Module):
    """Uses a branch that depends on the input, so some parameters get no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.never = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, use_b: bool) -> Tensor:
        return (self.b if use_b else self.a)(x)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.table(x))


def flat(tensors) -> Tensor:
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def train_digits(group, steps: int = 4, hook=None, micro: int = 1, **options) -> nn.Module:
    """A few steps on this rank's digits; every rank starts from other parameters, DDP must care."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    torch.manual_seed(rank)
    net = DigitsNet()
    ddp = DistributedDataParallel(net, process_group=group, **options)
    if hook:
        hook(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    images, labels = digits_shard(rank, n)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(micro):
            batch = slice(32 * (step * micro + part), 32 * (step * micro + part + 1))
            with ddp.no_sync() if part < micro - 1 else contextlib.nullcontext():
                nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
        optimizer.step()
    return net


def train_branches(group) -> nn.Module:
    """Each rank uses another branch, and a third one is never used."""
    rank = dist.get_rank(group)
    torch.manual_seed(rank)
    net = Branches()
    ddp = DistributedDataParallel(net, process_group=group, find_unused_parameters=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        ddp(numbers((5, 8), torch.float32, rank, step), bool((step + rank) % 2)).sum().backward()
        optimizer.step()
    return net


def train_uneven(group, **options) -> nn.Module:
    """Rank r has r more batches than rank 0."""
    rank = dist.get_rank(group)
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    ddp = DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with Join([ddp], **options):
        for step in range(2 + rank):
            optimizer.zero_grad()
            ddp(numbers((5, 8), torch.float32, rank, step)).sum().backward()
            optimizer.step()
    return net


def train_sparse(group) -> nn.Module:
    rank = dist.get_rank(group)
    torch.manual_seed(rank)
    net = Embedded()
    ddp = DistributedDataParallel(net, process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        ddp(numbers((6,), torch.int64, rank, step) % 10).sum().backward()
        optimizer.step()
    return net


def train_two_forwards(group) -> nn.Module:
    """Two forwards and one backward: the buffer broadcast between them must not upset autograd."""
    rank = dist.get_rank(group)
    torch.manual_seed(rank)
    net = DigitsNet()
    ddp = DistributedDataParallel(net, process_group=group)
    images, _ = digits_shard(rank, dist.get_world_size(group))
    (ddp(images[:16]) + ddp(images[16:32])).sum().backward()
    return net


def fp16(group):
    return lambda ddp: ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)


def bf16(group):
    def hook(state, bucket):  # under its own name DDP wants CUDA and NCCL
        return default_hooks.bf16_compress_hook(state, bucket)

    return lambda ddp: ddp.register_comm_hook(group, hook)


def power_sgd(group):
    made = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, min_compression_rate=0.1)
    return lambda ddp: ddp.register_comm_hook(made, powerSGD_hook.powerSGD_hook)


def builtin():
    # Its sister FP16_COMPRESS is C++ that wants a future from C++: no backend in Python has one.
    return lambda ddp: ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)


TRAINING = {
    "plain": train_digits,
    "small buckets": lambda g: train_digits(g, bucket_cap_mb=0.005),
    "gradient_as_bucket_view": lambda g: train_digits(g, gradient_as_bucket_view=True),
    "static_graph": lambda g: train_digits(g, static_graph=True),
    "find_unused_parameters": lambda g: train_digits(g, find_unused_parameters=True),
    "no_sync": lambda g: train_digits(g, micro=3, steps=2),
    "fp16 hook": lambda g: train_digits(g, hook=fp16(g)),
    "bf16 hook": lambda g: train_digits(g, hook=bf16(g)),
    "PowerSGD": lambda g: train_digits(g, hook=power_sgd(g), steps=5),
    "built-in hook": lambda g: train_digits(g, hook=builtin()),
    "branches that differ": train_branches,
    "uneven inputs": train_uneven,
    "uneven inputs, divided by those that remain": lambda g: train_uneven(
        g, divide_by_initial_world_size=False
    ),
    "sparse gradients": train_sparse,
    "two forwards, one backward": train_two_forwards,
}


def compare_all(mesh) -> dict[str, tuple[Tensor, Tensor]]:
    """{name: (ours, gloo's)} of every call and every training, on this rank."""
    gloo = gloo_beside_ours()
    out = {}
    for job in (sums, calls, *((messages,) if mesh.world_size > 1 else ())):
        ours, theirs = job(dist.group.WORLD), job(gloo)
        assert ours.keys() == theirs.keys()
        out.update({name: (ours[name], theirs[name]) for name in ours})
    for name, train in TRAINING.items():
        nets = train(dist.group.WORLD), train(gloo)
        out[f"training: {name}"] = tuple(flat(net.parameters()) for net in nets)
        out[f"last gradients: {name}"] = tuple(
            flat(p.grad.to_dense() for p in net.parameters() if p.grad is not None) for net in nets
        )
        if [*nets[0].buffers()]:  # which differ between ranks until the next forward
            out[f"buffers: {name}"] = tuple(flat(net.buffers()) for net in nets)
    dist.destroy_process_group()
    return out
