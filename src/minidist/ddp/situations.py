"""Situations: what ranks do in the chapters on buffers, unused parameters, hooks and joining.

Each is a function for run(..., process_group="gloo"), works with PyTorch's class and with ours, and
returns what the rank saw. Several runs of one kind go in one call, since starting ranks is what
takes the time.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from textwrap import shorten
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel.distributed import _BufferCommHookLocation
from torch.utils.checkpoint import checkpoint

from minidist.collective_log import Call, CollectiveLog
from minidist.data import DigitsNet, digits_shard
from minidist.ddp.ddp import DistributedDataParallel
from minidist.ddp.lab import NONE, Batch, Options, parts, wrapped
from minidist.mesh import Mesh, MeshError

BATCH = 16


@dataclass(frozen=True)
class Step:
    """One step of a rank: its collectives (of the default group), and what it then held.

    The collectives are of gloo; those of the backend "minidist" are not logged.
    """

    forward: list[Call]
    backward: list[Call]
    gradient: Tensor  # all gradients in one, (n,)
    mean: tuple[float, float]  # norm1.running_mean[0] before and after the forward
    sent: tuple[int, int]  # bytes of its messages in both; of the backend "minidist" only


def in_training(calls: Sequence[Call]) -> list[Call]:
    """The calls on the default group: the roll calls of our DDP have a group of their own.

    Without the stacks, which are long and would travel to the notebook.
    """
    return [replace(call, stack=()) for call in calls if not call.side]


def brief(calls: Sequence[Call]) -> str:
    """'broadcast 96, allreduce 10,026': names and elements, in their order."""
    return ", ".join(f"{call.op} {call.numel:,}" for call in calls) or "nothing"


def bytes_sent() -> int:
    """By this rank, so far. Only a group of the backend "minidist" knows; 0 for another."""
    events = getattr(dist.group.WORLD, "events", [])
    return sum(event.nbytes for event in events if event.kind == "send")


def said(error: MeshError) -> str:
    """Of what a rank raised: its type and its first sentences."""
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {shorten(str(cause), 400, placeholder=' ...')}"


def digits(world_size: int, steps: int) -> list[Batch]:
    """Each rank's first digits, enough for `steps` steps: the `inputs` of a run."""
    shards = [digits_shard(rank, world_size) for rank in range(world_size)]
    return [(images[: BATCH * steps], labels[: BATCH * steps]) for images, labels in shards]


def digits_steps(
    mesh: Mesh,
    batch: Batch,
    ddp_class: Any,
    steps: int,
    options: Options = NONE,
    quiet: Sequence[int] = (),
    adds_up: bool = False,
    zeros: bool = False,
    prepare: Callable[[Any], object] | None = None,
) -> list[Step]:
    """Forward and backward of the digits net, without an optimizer; `batch` is from digits().

    quiet: the steps that run under no_sync(). adds_up: no gradient is taken away between steps.
    zeros: fill the gradients with zeros before a step, instead of taking them away.
    prepare: called with the DDP before the first step, to register a hook.
    """
    torch.manual_seed(0)
    ddp = wrapped(mesh, ddp_class, DigitsNet(), options)
    if prepare:
        prepare(ddp)
    mean, seen = ddp.module.norm1.running_mean, []
    for step, (images, labels) in enumerate(parts(batch, steps)):
        if not adds_up:
            ddp.zero_grad(set_to_none=not zeros)
        with CollectiveLog() as log, ddp.no_sync() if step in quiet else contextlib.nullcontext():
            before, start = mean[0].item(), bytes_sent()
            loss = cross_entropy(ddp(images), labels)
            after, forward, middle = mean[0].item(), in_training(log.take()), bytes_sent()
            loss.backward()
            gradient = torch.cat([p.grad.flatten() for p in ddp.parameters()])
            backward, sent = in_training(log.take()), (middle - start, bytes_sent() - middle)
            seen.append(Step(forward, backward, gradient, (before, after), sent))
    return seen


# Buffers


class Tally(nn.Module):
    """Keeps the sum of its inputs in a buffer; each forward assigns a new tensor."""

    def __init__(self, start: float = 0.0):
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.register_buffer("total", torch.tensor([start]))
        self.found: list[float] = []  # the total at the start of each forward

    def forward(self, x: Tensor) -> Tensor:
        self.found.append(self.total.item())
        self.total = self.total + x.detach()
        return self.linear(x)


def tallies(
    mesh: Mesh, ddp_class: Any, forwards: int, options: Sequence[Options] = (NONE,)
) -> list[tuple[float, list[float], float]]:
    """Per options, a Tally that starts at 10 on rank 0 and takes in ones, at 20 on rank 1 and
    takes in twos, ...: its total once wrapped, at the start of each forward, and at the end."""
    out = []
    for these in options:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # one of the options is deprecated
            ddp = wrapped(mesh, ddp_class, Tally(10.0 * (mesh.rank + 1)), these)
        start = ddp.module.total.item()
        for _ in range(forwards):
            ddp(torch.full((1,), mesh.rank + 1.0))
        out.append((start, ddp.module.found, ddp.module.total.item()))
    return out


def two_forwards_one_backward(mesh: Mesh, batch: Batch, ddp_class: Any) -> float:
    """The first gradient of the digits net, whose statistics are saved for its backward."""
    torch.manual_seed(0)
    ddp = wrapped(mesh, ddp_class, DigitsNet(), NONE)
    images, labels = batch
    outputs = [ddp(part) for part in images.chunk(2)]
    cross_entropy(torch.cat(outputs), labels).backward()
    return ddp.module.conv1.weight.grad.flatten()[0].item()


def average_buffers(seen: list[str], buffers: dict[str, Tensor]) -> list[Any]:
    """A buffer hook: the average of all ranks' buffers instead of rank 0's.

    It writes through `.data`, as a backward may still need the versions that it knows.
    """
    seen.append(", ".join(buffers))
    for buffer in buffers.values():
        total = buffer.data.double()
        dist.all_reduce(total)
        buffer.data.copy_(total / dist.get_world_size())
    return []


def averaged_buffers(
    mesh: Mesh, batch: Batch, ddp_class: Any, steps: int
) -> dict[bool, list[tuple[float, float]]]:
    """Steps of the digits net with that hook: norm1.running_mean[0] before and after each.

    Twice: with the hook before the forward (False), and after it (True).
    """

    def register(ddp: Any, after: bool) -> None:
        if hasattr(ddp, "register_buffer_comm_hook"):
            ddp.register_buffer_comm_hook([], average_buffers, after)
        else:
            places = _BufferCommHookLocation
            place = places.POST_FORWARD if after else places.PRE_FORWARD
            ddp._register_buffer_comm_hook([], average_buffers, place)

    return {
        after: [
            step.mean
            for step in digits_steps(
                mesh, batch, ddp_class, steps, prepare=partial(register, after=after)
            )
        ]
        for after in (False, True)
    }


def evaluates_alone(
    mesh: Mesh, batch: Batch, rank: int, ddp_class: Any, timeout_s: float, options: Options = NONE
) -> str:
    """One training step; then rank `rank` evaluates the DDP while the others go on to a barrier."""
    group = dist.new_group(timeout=timedelta(seconds=timeout_s))
    ddp = wrapped(mesh, ddp_class, DigitsNet(), {"process_group": group, **options})
    images, labels = batch
    cross_entropy(ddp(images), labels).backward()
    if mesh.rank == rank:
        ddp.eval()
        with torch.no_grad():
            ddp(images)
    dist.barrier()
    return "through"


# Unused parameters, static graph


class Branches(nn.Module):
    """Three layers; a forward names those that it uses, and in capitals to checkpoint them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(1, 1, bias=False) for _ in range(3))

    def forward(self, x: Tensor, use: str) -> Tensor:
        outputs = []
        for name in use:
            layer = getattr(self, name.lower())
            outputs.append(checkpoint(layer, x, use_reentrant=True) if name.isupper() else layer(x))
        return sum(outputs)


@dataclass(frozen=True)
class BranchStep:
    calls: list[Call]
    gradients: dict[str, float | None]


def branches(
    mesh: Mesh, uses: Sequence[str], ddp_class: Any, options: Options = NONE
) -> list[BranchStep]:
    """One step per entry of `uses`, this rank's own branches; rank r's gradients are r + 1."""
    ddp = wrapped(mesh, ddp_class, Branches(), options)
    steps = []
    for use in uses:
        ddp.zero_grad()
        with CollectiveLog() as log:
            ddp(torch.full((1, 1), mesh.rank + 1.0, requires_grad=True), use).backward()
        gradients = {
            name.removesuffix(".weight"): None if p.grad is None else p.grad.item()
            for name, p in ddp.module.named_parameters()
        }
        steps.append(BranchStep(in_training(log.calls), gradients))
    return steps


def stacked(
    mesh: Mesh, ddp_class: Any, layers: int, steps: int, options: Sequence[Options]
) -> list[list[tuple[list[Call], list[Call]]]]:
    """Per options and step, the collectives of forward and backward of `layers` times 1 MiB."""
    out = []
    for these in options:
        net = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(layers)))
        # One parameter that no forward uses, where that is allowed: nobody warns of vain searching
        if these.get("find_unused_parameters"):
            net.register_parameter("spare", nn.Parameter(torch.zeros(0)))
        ddp = wrapped(mesh, ddp_class, net, these)
        with CollectiveLog() as log:
            calls = []
            for _ in range(steps):
                loss = ddp(torch.ones(1, 512)).sum()
                forward = in_training(log.take())
                loss.backward()
                calls.append((forward, in_training(log.take())))
        out.append(calls)
    return out


def static_graph_counts(mesh: Mesh, use: str, steps: int) -> dict[str, int]:
    """How often each parameter's hook came in the first of some steps with static_graph."""
    ddp = wrapped(mesh, DistributedDataParallel, Branches(), {"static_graph": True})
    for _ in range(steps):
        ddp(torch.ones(1, 1, requires_grad=True), use).backward()
    return dict(zip(ddp.reducer.names, ddp.reducer.hook_counts, strict=True))


# Views and communication hooks


def keep_buckets(kept: list[Tensor], bucket):  # PyTorch checks annotations, and refuses strings
    """A hook: the average, and the flat tensor of each bucket goes into `kept`."""
    flat = bucket.buffer()
    kept.append(flat)
    work: Any = dist.all_reduce(flat.div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def gradient_memory(
    mesh: Mesh, batch: Batch, ddp_class: Any, options: Options = NONE
) -> dict[str, Any]:
    """Bytes behind the gradients and the buckets of the digits net after three steps."""
    torch.manual_seed(0)
    ddp = wrapped(mesh, ddp_class, DigitsNet(), options)
    kept: list[Tensor] = []
    ddp.register_comm_hook(kept, keep_buckets)
    for images, labels in parts(batch, 3):
        kept.clear()
        cross_entropy(ddp(images), labels).backward()
    gradients = [p.grad for p in ddp.parameters()]
    buckets = {flat.untyped_storage().data_ptr() for flat in kept}
    behind = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*gradients, *kept)
    }
    return {
        "gradients": sum(g.numel() * g.element_size() for g in gradients),
        "gradients and buckets": sum(behind.values()),
        "gradients lie in buckets": all(
            g.untyped_storage().data_ptr() in buckets for g in gradients
        ),
    }


def bits_changed_by_views(
    mesh: Mesh, batch: Batch, ddp_class: Any, steps: int
) -> dict[bool, list[int]]:
    """How many gradients differ, per step, with and without gradient_as_bucket_view.

    Twice: with gradients taken away before each step (False), and filled with zeros (True).
    """
    changed = {}
    for zeros in (False, True):
        plain, view = (
            digits_steps(mesh, batch, ddp_class, steps, options, zeros=zeros)
            for options in (NONE, {"gradient_as_bucket_view": True})
        )
        changed[zeros] = [
            int((a.gradient != b.gradient).sum()) for a, b in zip(plain, view, strict=True)
        ]
    return changed


def hooked_steps(
    mesh: Mesh,
    batch: Batch,
    ddp_class: Any,
    steps: int,
    hooks: Mapping[str, tuple[Callable[..., Any] | None, Callable[[], Any] | None]],
) -> dict[str, list[Step]]:
    """Steps of the digits net with each of some communication hooks: (hook, what makes its state)
    by name."""

    def register(ddp: Any, name: str) -> None:
        hook, state = hooks[name]
        if hook:
            ddp.register_comm_hook(state and state(), hook)

    return {
        name: digits_steps(mesh, batch, ddp_class, steps, prepare=partial(register, name=name))
        for name in hooks
    }


# Uneven inputs


class Counting(nn.Module):
    """A layer, and in a buffer how often it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.linear(x)


def uneven(
    mesh: Mesh,
    batches: int,
    ddp_class: Any,
    build: Callable[[], nn.Module],
    options: Options = NONE,
    join: Options | None = NONE,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """`batches` steps on this rank. join: arguments of join(), or None for a loop without it.

    timeout_s: the deadline of the process group, if not the run's.
    """
    if timeout_s:
        group = dist.new_group(timeout=timedelta(seconds=timeout_s))
        options = {"process_group": group, **options}
    torch.manual_seed(mesh.rank)
    ddp = wrapped(mesh, ddp_class, build(), options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    gradients, starts = [], []
    with CollectiveLog() as log, contextlib.nullcontext() if join is None else ddp.join(**join):
        for _ in range(batches):
            starts.append(len(log.calls))
            optimizer.zero_grad()
            ddp(torch.ones(1, 4)).sum().backward()
            gradients.append(next(ddp.parameters()).grad.flatten()[0].item())
            optimizer.step()
        starts.append(len(log.calls))
    mine = [in_training(log.calls[i:]) for i in starts]
    dist.barrier()
    return {
        "gradients": gradients,
        "calls": [calls[: len(calls) - len(later)] for calls, later in pairwise(mine)],
        "after": mine[-1],
        "parameters": torch.cat([p.detach().flatten() for p in ddp.parameters()]),
    }


# Where PyTorch's DDP says nothing


def silent_faults(
    mesh: Mesh, ddp_class: Any, only: Sequence[str] = ()
) -> dict[str, tuple[str, float | None, float]]:
    """Per mistake: the error if there is one, this rank's gradient, and what would be right.

    Each rank's own gradient is its rank + 1 per use. only: the names of some of them.
    """
    mean = sum(range(1, mesh.world_size + 1)) / mesh.world_size
    x = torch.full((1, 1), mesh.rank + 1.0)

    def unused() -> tuple[nn.Module, float]:
        ddp = wrapped(mesh, ddp_class, Branches(), NONE)
        ddp(x, "a").backward()
        return ddp.module, mean

    def bypassed() -> tuple[nn.Module, float]:
        ddp = wrapped(mesh, ddp_class, Branches(), NONE)
        ddp(x, "abc").backward()
        ddp.zero_grad()
        ddp.module(x, "abc").backward()
        return ddp.module, mean

    def two_and_two() -> tuple[nn.Module, float]:
        ddp = wrapped(mesh, ddp_class, Branches(), NONE)
        losses = [ddp(x, "abc"), ddp(x, "abc")]
        for loss in losses:
            loss.backward()
        return ddp.module, 2 * mean

    def retained() -> tuple[nn.Module, float]:
        ddp = wrapped(mesh, ddp_class, Branches(), NONE)
        loss = ddp(x, "abc")
        loss.backward(retain_graph=True)
        loss.backward()
        return ddp.module, 2 * mean

    def unfrozen() -> tuple[nn.Module, float]:
        net = Branches()
        net.a.requires_grad_(False)
        ddp = wrapped(mesh, ddp_class, net, NONE)
        net.a.requires_grad_(True)
        ddp(x, "abc").backward()
        return net, mean

    def replaced() -> tuple[nn.Module, float]:
        ddp = wrapped(mesh, ddp_class, Branches(), {"find_unused_parameters": True})
        ddp.module.a.weight = nn.Parameter(torch.zeros(1, 1))
        ddp(x, "abc").backward()
        return ddp.module, mean

    def static_accumulation() -> tuple[nn.Module, float]:
        ddp = wrapped(mesh, ddp_class, Branches(), {"static_graph": True})
        with ddp.no_sync():
            ddp(x, "abc").backward()
        ddp(x, "abc").backward()
        return ddp.module, 2 * mean

    out = {}
    for name, mistake in {
        "an unused parameter, one iteration": unused,
        "ddp.module(x) with a backward": bypassed,
        "two forwards, then two backward passes": two_and_two,
        "a second backward on a retained graph": retained,
        "a parameter unfrozen after wrapping": unfrozen,
        "a parameter replaced after wrapping": replaced,
        "static_graph with no_sync": static_accumulation,
    }.items():
        if only and name not in only:
            continue
        try:
            module, right = mistake()
            gradient = module.a.weight.grad
            out[name] = ("", None if gradient is None else gradient.item(), right)
        except Exception as error:
            text = str(error).strip().splitlines()[0]
            out[name] = (f"{type(error).__name__}: {text}", None, 0.0)
    return out
