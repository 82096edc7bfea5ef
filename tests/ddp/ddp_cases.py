"""One training run per case, under our DDP and under PyTorch's, and what differs between them.

Ranks import this module, so it needs torch and minidist only. A case is a function of a Trail: it
wraps a model by `trail.wrap`, trains it, and notes gradients and state on its way.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import ddp_models as models
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as TorchDDP

import minidist.ddp as mini


class Trail:
    """One run of one case: who trains, on which group, and everything that it came past."""

    def __init__(self, kind: type, group: dist.ProcessGroup):
        self.kind, self.group = kind, group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.notes: list[tuple[str, Tensor | None]] = []
        self.net: Any = None
        self.ddp: Any = None
        self.first_sizes: list[int] | None = None

    @property
    def ours(self) -> bool:
        return self.kind is mini.DistributedDataParallel

    def wrap(self, net: nn.Module, **options: Any) -> Any:
        self.net = net
        self.ddp = self.kind(net, process_group=self.group, **options)
        self.note_state("wrapped")
        if self.ours:
            self.first_sizes = [bucket.nbytes for bucket in self.ddp.reducer.buckets]
        return self.ddp

    def note(self, name: str, tensor: Tensor | None) -> None:
        self.notes.append((name, None if tensor is None else tensor.detach().clone()))

    def note_gradients(self, when: str) -> None:
        for name, parameter in self.net.named_parameters():
            self.note(f"{when}: gradient of {name}", parameter.grad)

    def note_state(self, when: str) -> None:
        for name, tensor in self.net.state_dict().items():
            self.note(f"{when}: {name}", tensor)

    def layout(self) -> dict[str, Any]:
        """The buckets before and after the rebuild."""
        if self.ours:
            buckets = self.ddp.reducer.buckets if self.ddp.reducer.has_rebuilt else []
            return {
                "sizes": self.first_sizes,
                "rebuilt sizes": [bucket.nbytes for bucket in buckets],
                "rebuilt indices": [bucket.indices for bucket in buckets],
            }
        logged = self.ddp._get_ddp_logging_data()

        def ints(text: str) -> list[int]:
            return [int(word) for word in text.replace(",", " ").split()]

        indices = logged.get("rebuilt_per_bucket_param_indices", "")
        return {
            "sizes": ints(logged["bucket_sizes"]),
            "rebuilt sizes": ints(logged.get("rebuilt_bucket_sizes", "")),
            "rebuilt indices": [ints(part) for part in indices.split(",") if part.strip()],
        }


def square(output: Tensor) -> Tensor:
    return output.float().square().mean()


def train(
    trail: Trail,
    net: nn.Module,
    *,
    steps: int = 4,
    micro: int = 1,
    in_sync: Callable[[int, int], bool] | None = None,
    loss: Callable[[Any], Tensor] = square,
    set_to_none: bool = True,
    setup: Callable[[Trail, Any], object] | None = None,
    optimizer: Any = None,
    backward: Callable[[Tensor], object] = Tensor.backward,
    **options: Any,
) -> None:
    """Steps of training. `micro` backwards per step, under no_sync() but for the last one.

    in_sync(step, part): another choice of which to synchronise.
    """
    ddp = trail.wrap(net, **options)
    if setup:
        setup(trail, ddp)
    parameters = [p for p in net.parameters() if p.requires_grad]
    optimize = (optimizer or torch.optim.SGD)(parameters, lr=0.1)
    in_sync = in_sync or (lambda step, part: part == micro - 1)
    for step in range(steps):
        optimize.zero_grad(set_to_none=set_to_none)
        for part in range(micro):
            inputs = net.inputs(trail.rank, step * micro + part)
            with contextlib.nullcontext() if in_sync(step, part) else ddp.no_sync():
                backward(loss(ddp(*inputs)))
            trail.note_gradients(f"step {step}, backward {part}")
        optimize.step()
        trail.note_state(f"step {step}")


# Cases: each a function of a Trail

CASES: dict[str, Callable[[Trail], None]] = {}
SMALL = {"bucket_cap_mb": 0.001}  # 1048 bytes


def case(name: str) -> Callable[[Callable[[Trail], None]], Callable[[Trail], None]]:
    def add(fn: Callable[[Trail], None]) -> Callable[[Trail], None]:
        assert name not in CASES
        CASES[name] = fn
        return fn

    return add


def trained(name: str, make: Callable[[], nn.Module], **options: Any) -> None:
    case(name)(lambda trail: train(trail, make(), **options))


# Options

trained("plain", models.Mlp)
trained("AdamW", models.Mlp, optimizer=torch.optim.AdamW)
trained("cap, one weight", models.Mlp, **SMALL)
trained("cap, overshot", models.Mlp, bucket_cap_mb=0.0015)
trained("cap, the default given", models.Mlp, bucket_cap_mb=25)
trained("list of caps", models.Mlp, bucket_cap_mb_list=[0.0005, 0.002])
trained("find unused, none is", models.Mlp, find_unused_parameters=True)
trained("find unused, small buckets", models.Mlp, find_unused_parameters=True, **SMALL)
trained("static graph", models.Mlp, static_graph=True, steps=5)
trained("static graph, small buckets", models.Mlp, static_graph=True, steps=5, **SMALL)
trained("views", models.Mlp, gradient_as_bucket_view=True)
trained("views, small buckets", models.Mlp, gradient_as_bucket_view=True, **SMALL)
trained(
    "views, zeroed in place",
    models.Mlp,
    gradient_as_bucket_view=True,
    set_to_none=False,
    **SMALL,
)
trained("zeroed in place", models.Mlp, set_to_none=False, **SMALL)
trained("out of order", models.OutOfOrder)
trained("out of order, small buckets", models.OutOfOrder, **SMALL)
trained("another order on each rank", models.OrderOfRank, **SMALL)
trained("another order on each rank, views", models.OrderOfRank, gradient_as_bucket_view=True)
trained("float16", models.HalfMlp, **SMALL)
trained("bfloat16", models.BrainMlp, gradient_as_bucket_view=True)
trained("float64", models.DoubleMlp, gradient_as_bucket_view=True, **SMALL)


@case("create_graph")
def _(trail: Trail) -> None:
    """PyTorch's DDP raises: it copies into a gradient that has a graph. So it goes without."""

    def backward(loss: Tensor) -> None:
        loss.backward(create_graph=trail.ours)

    train(trail, models.Mlp(), backward=backward, **SMALL)


@case("no synchronisation at the start")
def _(trail: Trail) -> None:
    torch.manual_seed(0)  # else nobody would make the ranks equal
    train(trail, models.Mlp(), init_sync=False)


@case("autocast")
def _(trail: Trail) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        train(trail, models.Mlp(), **SMALL)


@case("a mesh of devices")
def _(trail: Trail) -> None:
    mesh = dist.DeviceMesh.from_group(trail.group, "cpu")
    trail.net = net = models.Mlp()
    trail.ddp = trail.kind(net, device_mesh=mesh)
    if trail.ours:
        trail.first_sizes = [bucket.nbytes for bucket in trail.ddp.reducer.buckets]
    for step in range(3):
        square(trail.ddp(*net.inputs(trail.rank, step))).backward()
        trail.note_gradients(f"step {step}")


# Models

trained("static graph, find unused", models.Mlp, static_graph=True, find_unused_parameters=True)
trained("static graph, views", models.Mlp, static_graph=True, gradient_as_bucket_view=True, **SMALL)
trained("conv", models.ConvNet)
trained("conv, small buckets, views", models.ConvNet, gradient_as_bucket_view=True, **SMALL)
trained("conv, buffers not kept", models.ConvNet, forward_sync_buffers=False)
trained("conv, buffers never", models.ConvNet, broadcast_buffers=False)
trained("conv, static graph", models.ConvNet, static_graph=True)
trained("conv, no_sync", models.ConvNet, micro=3)
trained("channels_last", models.ChannelsLast)
trained("channels_last, views", models.ChannelsLast, gradient_as_bucket_view=True)
trained("transformer", models.Transformer)
trained("transformer, small buckets", models.Transformer, **SMALL)
trained("tied", models.Tied)
trained("tied, find unused", models.Tied, find_unused_parameters=True, bucket_cap_mb=0.0002)
trained("tied, static graph", models.Tied, static_graph=True)
trained("frozen", models.Frozen, **SMALL)
trained("used twice", models.UsedTwice)
trained("used twice, static graph", models.UsedTwice, static_graph=True, bucket_cap_mb=0.0001)
trained("odd shapes", models.OddShapes)
trained("odd shapes, views", models.OddShapes, gradient_as_bucket_view=True)
trained("complex", models.Complex)
trained("complex, views", models.Complex, gradient_as_bucket_view=True)
trained("mixed dtypes", models.MixedTypes)
trained("mixed dtypes, small buckets", models.MixedTypes, bucket_cap_mb=0.0001)
trained("mixed dtypes, views", models.MixedTypes, gradient_as_bucket_view=True)
trained("strided parameters", models.Transposed)
trained("strided parameters, views", models.Transposed, gradient_as_bucket_view=True)
trained("sparse", models.SparseTable)
trained("sparse, no_sync", models.SparseTable, micro=2)
trained("sparse, find unused", models.SparseTable, find_unused_parameters=True)
trained("buffers reassigned", models.Reassigns)
trained("buffers reassigned, views", models.Reassigns, gradient_as_bucket_view=True)
trained("checkpoint", lambda: models.Checkpointed(False))
trained("checkpoint twice", lambda: models.Checkpointed(False, 2))
trained(
    "checkpoint twice, find unused",
    lambda: models.Checkpointed(False, 2),
    find_unused_parameters=True,
)
trained("checkpoint, reentrant", lambda: models.Checkpointed(True))
trained(
    "checkpoint, reentrant twice, static graph",
    lambda: models.Checkpointed(True, 2),
    static_graph=True,
    bucket_cap_mb=0.0001,
)


# Parameters that are not used


USES = {
    "on no rank": lambda rank, step: "ab",
    "on one rank": lambda rank, step: "abcd" if rank == 0 else "ab",
    "in turn": lambda rank, step: "abcd"[step % 4] if rank % 2 else "abcd"[(step + 2) % 4],
    "now and then": lambda rank, step: "abcd" if step % 2 == 0 else "cb",
}
for _name, _uses in USES.items():
    for _option in ("", ", views", ", zeroed in place", ", views, zeroed in place"):
        trained(
            f"unused {_name}{_option}",
            functools.partial(models.Branches, _uses),
            steps=5,
            find_unused_parameters=True,
            gradient_as_bucket_view="views" in _option,
            set_to_none="zeroed" not in _option,
            bucket_cap_mb=0.0001,
        )
trained(
    "unused on no rank, static graph",
    functools.partial(models.Branches, USES["on no rank"]),
    static_graph=True,
    steps=5,
    bucket_cap_mb=0.0001,
)
trained(
    "unused, old gradients kept, static graph",
    functools.partial(models.Branches, USES["on no rank"]),
    static_graph=True,
    set_to_none=False,
    gradient_as_bucket_view=True,
    steps=5,
)
trained(
    "used under no_sync only",
    functools.partial(
        models.Branches,
        lambda rank, step: "abcd"[(2 * rank + step) % 4],  # step: the number of the backward
    ),
    find_unused_parameters=True,
    micro=2,
    steps=3,
)


# no_sync

trained("no_sync", models.Mlp, micro=3, **SMALL)
trained("no_sync, views", models.Mlp, micro=3, gradient_as_bucket_view=True, **SMALL)
trained("no_sync, find unused", models.Mlp, micro=2, find_unused_parameters=True)
trained(  # in the first iteration, PyTorch's static graph does not survive it
    "no_sync, static graph",
    models.Mlp,
    micro=2,
    steps=5,
    static_graph=True,
    in_sync=lambda step, part: step == 0 or part == 1,
)
trained("no_sync, synchronised first", models.ConvNet, micro=2, in_sync=lambda step, part: not part)


# Several forwards and backwards


@case("two forwards, one backward")
def _(trail: Trail) -> None:
    net = models.ConvNet()
    ddp = trail.wrap(net)
    for step in range(4):
        first, second = net.inputs(trail.rank, step), net.inputs(trail.rank, 100 + step)
        square(ddp(*first) + ddp(*second)).backward()
        trail.note_gradients(f"step {step}")
        trail.note_state(f"step {step}")


@case("two outputs, two backwards")
def _(trail: Trail) -> None:
    net = models.TwoHeads(trunk=False)
    ddp = trail.wrap(net)
    for step in range(4):
        output = ddp(*net.inputs(trail.rank, step))
        square(output.first).backward()
        square(output.others["second"][0]).backward()
        trail.note_gradients(f"step {step}")


@case("one of two outputs, find unused")
def _(trail: Trail) -> None:
    net = models.TwoHeads(as_dict=True)

    def one_of(output: dict) -> Tensor:
        return square(output["first"])

    train(trail, net, loss=one_of, find_unused_parameters=True, bucket_cap_mb=0.0001)


trained(
    "both outputs in a dataclass, find unused",
    models.TwoHeads,
    loss=lambda output: square(output.first) + square(output.others["second"][0]),
    find_unused_parameters=True,
)
trained(
    "both outputs, static graph",
    functools.partial(models.TwoHeads, as_dict=True),
    loss=lambda output: square(output["first"]) + square(output["second"][0]),
    static_graph=True,
)


@case("forwards without a backward")
def _(trail: Trail) -> None:
    net = models.ConvNet()
    ddp = trail.wrap(net)
    for step in range(6):
        loss = square(ddp(*net.inputs(trail.rank, step)))
        if step > 2:
            loss.backward()
        trail.note_gradients(f"step {step}")
    ddp.eval()
    with torch.no_grad():
        trail.note("evaluated", ddp(*net.inputs(trail.rank, 9)))
    trail.note_state("end")


@case("gradients accumulated over steps")
def _(trail: Trail) -> None:
    """Nobody sets them to zero: the average of a sum that is an average already."""
    net = models.Mlp()
    ddp = trail.wrap(net, **SMALL)
    for step in range(4):
        square(ddp(*net.inputs(trail.rank, step))).backward()
        trail.note_gradients(f"step {step}")


# Hooks. PyTorch wants the argument `bucket` by this name, and of no type but its own.


def hooked(name: str, ours: Any, theirs: Any, make=models.Mlp, **options: Any) -> None:
    """ours(group), theirs(group): (state, hook) for our DDP and for PyTorch's."""

    def setup(trail: Trail, ddp: Any) -> None:
        ddp.register_comm_hook(*(ours if trail.ours else theirs)(trail.group))

    trained(f"hook: {name}", make, setup=setup, **options)


def bf16_of_torch(state, bucket):  # by its name, DDP knows one that needs NCCL
    return default_hooks.bf16_compress_hook(state, bucket)


def power_sgd(group: dist.ProcessGroup) -> tuple[Any, Any]:
    state = powerSGD_hook.PowerSGDState(
        group, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    return state, powerSGD_hook.powerSGD_hook


def ones_plus_one(state, bucket):
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(torch.ones_like(bucket.buffer()))
    return future.then(lambda done: done.value() + 1)


def another_buffer(state, bucket):
    """Looks at everything that a bucket has, and reduces another tensor than it was given."""
    grads, parameters = bucket.gradients(), bucket.parameters()
    assert [g.shape for g in grads] == [p.shape for p in parameters]
    weight = bucket.index() + 2 * bucket.is_last() + sum(float(g.sum() ** 2) for g in grads)
    bucket.set_buffer(bucket.buffer() * min(weight, 3))
    work = dist.all_reduce(bucket.buffer(), group=state, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def both(hook: Any) -> Any:
    return lambda group: (group, hook)


for _name, _mine, _torchs in (
    ("allreduce", mini.allreduce_hook, default_hooks.allreduce_hook),
    ("fp16", mini.fp16_compress_hook, default_hooks.fp16_compress_hook),
    ("bf16", mini.bf16_compress_hook, bf16_of_torch),
):
    hooked(f"{_name}, ours", both(_mine), both(_torchs), **SMALL)
    hooked(f"{_name}, PyTorch's on our buckets", both(_torchs), both(_torchs), **SMALL)
hooked(
    "fp16, views",
    both(mini.fp16_compress_hook),
    both(default_hooks.fp16_compress_hook),
    gradient_as_bucket_view=True,
)
# One bucket: with more, its callbacks and the next buckets call collectives in any order.
hooked("PowerSGD", power_sgd, power_sgd, steps=6)
for _name, _hook in (
    ("none", debugging_hooks.noop_hook),
    ("ones plus one", ones_plus_one),
    ("another buffer", another_buffer),
):
    hooked(_name, both(_hook), both(_hook), **SMALL)
hooked(
    "another buffer, views",
    both(another_buffer),
    both(another_buffer),
    gradient_as_bucket_view=True,
    **SMALL,
)
hooked(
    "allreduce, unused",
    both(mini.allreduce_hook),
    both(default_hooks.allreduce_hook),
    make=functools.partial(models.Branches, USES["in turn"]),
    find_unused_parameters=True,
)
hooked(
    "allreduce, static graph",
    both(mini.allreduce_hook),
    both(default_hooks.allreduce_hook),
    static_graph=True,
)


def sum_later(state: dist.ProcessGroup, buffers: dict[str, Tensor]) -> list[Any]:
    return [
        dist.all_reduce(buffer, group=state, async_op=True).get_future()
        for buffer in buffers.values()
    ]


def sum_now(state: dist.ProcessGroup, buffers: dict[str, Tensor]) -> None:
    for buffer in buffers.values():
        dist.all_reduce(buffer, group=state)


def buffer_hooked(name: str, hook: Any, after: bool) -> None:
    def setup(trail: Trail, ddp: Any) -> None:
        if trail.ours:
            ddp.register_buffer_comm_hook(trail.group, hook, after_forward=after)
            return
        from torch.nn.parallel.distributed import _BufferCommHookLocation as Location

        where = Location.POST_FORWARD if after else Location.PRE_FORWARD
        ddp._register_buffer_comm_hook(trail.group, hook, where)

    trained(name, models.Reassigns, setup=setup)


buffer_hooked("buffer hook before the forward", sum_now, after=False)
buffer_hooked("buffer hook after the forward", sum_later, after=True)


# Uneven inputs


def uneven(
    trail: Trail,
    net: nn.Module,
    setup: Any = None,
    steps: Any = None,
    sync: Any = None,
    **given: Any,
) -> None:
    """Rank r has r more batches than rank 0 (or steps(r))."""
    join = {name: given.pop(name) for name in [*given] if name in JOIN_OPTIONS}
    ddp = trail.wrap(net, **given)
    if setup:
        setup(trail, ddp)
    optimize = torch.optim.SGD(net.parameters(), lr=0.1)
    with ddp.join(**join):
        for step in range(steps(trail.rank) if steps else 2 + trail.rank):
            optimize.zero_grad()
            inputs = net.inputs(trail.rank, step)
            with ddp.no_sync() if sync and not sync(step) else contextlib.nullcontext():
                square(ddp(*inputs)).backward()
            trail.note_gradients(f"step {step}")
            optimize.step()
            trail.note_state(f"step {step}")
    trail.note_state("joined")


JOIN_OPTIONS = ("divide_by_initial_world_size", "enable", "throw_on_early_termination")


def joined(name: str, make: Callable[[], nn.Module], **options: Any) -> None:
    case(f"join: {name}")(lambda trail: uneven(trail, make(), **options))


joined("plain", models.Mlp)
joined("small buckets", models.Mlp, **SMALL)
joined("divided by those that remain", models.Mlp, divide_by_initial_world_size=False, **SMALL)
joined("views", models.Mlp, gradient_as_bucket_view=True, divide_by_initial_world_size=False)
joined("buffers", models.ConvNet)
joined("rank 0 last", models.ConvNet, steps=lambda rank: 5 - rank)
joined("no batch at all", models.Mlp, steps=lambda rank: 0 if rank == 0 else 3, **SMALL)
joined("no_sync", models.ConvNet, sync=lambda step: step % 2)
joined("static graph", models.Mlp, static_graph=True, steps=lambda rank: 3 + rank)
joined(
    "find unused",
    functools.partial(models.Branches, USES["in turn"]),
    find_unused_parameters=True,
    gradient_as_bucket_view=True,
)
joined("sparse", models.SparseTable)
joined(
    "a hook",
    models.Mlp,
    setup=lambda trail, ddp: ddp.register_comm_hook(trail.group, default_hooks.allreduce_hook),
    **SMALL,
)
joined("not enabled", models.Mlp, enable=False, steps=lambda rank: 3)


@case("join: thrown out")
def _(trail: Trail) -> None:
    net = models.Mlp()
    ddp = trail.wrap(net)
    with contextlib.suppress(RuntimeError) if trail.world_size > 1 else contextlib.nullcontext():
        with Join([ddp], throw_on_early_termination=True):
            for step in range(2 + trail.rank):
                square(ddp(*net.inputs(trail.rank, step))).backward()
                trail.note_gradients(f"step {step}")
        trail.note("not thrown out", None)


# Ignored parameters and buffers


@case("ignored")
def _(trail: Trail) -> None:
    net = models.ConvNet()
    ignored = ["net.4.weight", "net.1.running_mean"]
    TorchDDP._set_params_and_buffers_to_ignore_for_model(net, ignored)
    train(trail, net)


# Comparing


def compare_all(mesh: Any) -> dict[str, dict[str, Any]]:
    """Per case, what this rank found: see `compare`. With four ranks, some in two groups, too."""
    import recording  # noqa: F401

    warnings.simplefilter("ignore")
    group = dist.new_group(backend="recording")
    found = {name: compare(fn, group) for name, fn in CASES.items()}
    if mesh.world_size == 4:
        evens, odds = (dist.new_group(ranks, backend="recording") for ranks in ([0, 2], [1, 3]))
        for name in IN_SUBGROUPS:
            mine = odds if mesh.rank % 2 else evens
            found[f"in two groups: {name}"] = compare(CASES[name], mine)
    return found


IN_SUBGROUPS = ("conv, no_sync", "unused in turn", "join: rank 0 last", "hook: fp16, ours")


def compare(fn: Callable[[Trail], None], group: Any) -> dict[str, Any]:
    """Run a case under both. What differs, and what both came to."""
    trails, calls = [], []
    for kind in (mini.DistributedDataParallel, TorchDDP):
        group.calls.clear()
        trails.append(run_case(fn, kind, group))
        calls.append([*group.calls])
    ours, theirs = trails
    return {
        "differences": differences(ours.notes, theirs.notes),
        "notes": len(ours.notes),
        "layouts": (ours.layout(), theirs.layout()),
        "calls": calls,
        "gradients": digests(ours.notes),
    }


def run_case(fn: Callable[[Trail], None], kind: type, group: Any) -> Trail:
    torch.manual_seed(100 + dist.get_rank())  # every rank has a model of its own
    trail = Trail(kind, group)
    fn(trail)
    return trail


AT_ALL_CORNERS = (
    "conv",
    "transformer, small buckets",
    "views, small buckets",
    "static graph, small buckets",
    "unused in turn",
    "conv, no_sync",
    "bfloat16",
    "complex",
    "sparse",
    "hook: fp16, ours",
    "hook: PowerSGD",
    "buffer hook after the forward",
    "join: buffers",
    "join: divided by those that remain",
    "join: find unused",
)


def corners(mesh: Any) -> dict[str, list[str]]:
    """Per case, what differs at the other three corners from ours on the default group."""
    warnings.simplefilter("ignore")
    gloo = dist.new_group(backend="gloo")
    found = {}
    for name in AT_ALL_CORNERS:
        notes = [
            run_case(CASES[name], kind, group).notes
            for group in (dist.group.WORLD, gloo)
            for kind in (mini.DistributedDataParallel, TorchDDP)
        ]
        found[name] = [d for other in notes[1:] for d in differences(notes[0], other)]
    dist.destroy_process_group()
    return found


def differences(ours: list, theirs: list) -> list[str]:
    wrong = [
        f"{name}: {summary(mine)}, PyTorch: {summary(other)}"
        for (name, mine), (_, other) in zip(ours, theirs, strict=False)
        if not same(mine, other)
    ]
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        wrong.append(f"{len(ours)} notes, PyTorch: {len(theirs)}")
    return wrong


def summary(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    flat = tensor.to_dense().reshape(-1)
    if not flat.count_nonzero():
        return "zeros"
    return f"{flat[:3].tolist()} {tensor.dtype} {[*tensor.shape]}"


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """To the last bit, in one dtype and layout."""
    if one is None or other is None:
        return one is other
    if one.is_sparse or other.is_sparse:
        return (
            one.layout == other.layout
            and one.shape == other.shape
            and torch.equal(one._indices(), other._indices())
            and same(one._values(), other._values())
        )
    layouts = [(t.dtype, t.shape, t.stride()) for t in (one, other)]
    return layouts[0] == layouts[1] and as_bytes(one) == as_bytes(other)


def as_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def digests(notes: list) -> dict[str, str]:
    """A short text per gradient, to compare ranks with."""
    return {
        name: hashlib.md5(as_bytes(tensor.to_dense())).hexdigest()[:8]
        for name, tensor in notes
        if tensor is not None and "gradient" in name
    }
