"""The laboratory: small trainings that run on ranks and say what a DDP did in them.

Each works with PyTorch's DistributedDataParallel and with ours. A rank's `batch` is (inputs,
labels); it is cut into as many parts as there are steps, and the loss is their cross entropy.
Start them with run(..., inputs=batches, process_group="gloo"). The ranks start from different
seeds, so that only what DDP does can make them agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.profiler import profile, record_function

from minidist.collective_log import Call, CollectiveLog
from minidist.ddp.ddp import DistributedDataParallel
from minidist.ddp.state import broadcast_coalesced
from minidist.mesh import Mesh

Batch = tuple[Tensor, Tensor]
Build = Callable[[], nn.Module]
Options = Mapping[str, Any]  # further arguments of the class
NONE: Options = {}


class Phase(NamedTuple):
    """What a rank asked of process groups from one moment to another."""

    when: str  # "set-up", "forward 0", "backward 0", "forward 1", ...
    calls: list[Call]


class Slice(NamedTuple):
    """A stretch of time in a profiler's trace, in milliseconds since the first one began."""

    name: str
    start: float
    end: float


def wrapped(mesh: Mesh, ddp_class: Any, module: nn.Module, options: Options) -> Any:
    """The module in a DDP; ours also marks what it does in the trace of the run."""
    if ddp_class is DistributedDataParallel:
        options = {"record": mesh.mark, **options}
    return ddp_class(module, **options)


def parts(batch: Batch, steps: int) -> Iterator[Batch]:
    inputs, labels = batch
    return zip(inputs.chunk(steps), labels.chunk(steps), strict=True)


def watch(
    mesh: Mesh, batch: Batch, ddp_class: Any, build: Build, steps: int, options: Options = NONE
) -> list[Phase]:
    """Every call on a process group while a module is wrapped and trained, phase by phase."""
    torch.manual_seed(mesh.rank)
    module = build()
    phases = []
    with CollectiveLog() as log:
        ddp = wrapped(mesh, ddp_class, module, options)
        phases.append(Phase("set-up", log.take()))
        for step, (inputs, labels) in enumerate(parts(batch, steps)):
            loss = cross_entropy(ddp(inputs), labels)
            phases.append(Phase(f"forward {step}", log.take()))
            loss.backward()
            phases.append(Phase(f"backward {step}", log.take()))
    return phases


def train(
    mesh: Mesh, batch: Batch, ddp_class: Any, build: Build, steps: int, options: Options = NONE
) -> dict[str, Tensor]:
    """The state of the module (parameters and buffers by name) after `steps` steps of SGD."""
    torch.manual_seed(mesh.rank)
    ddp = wrapped(mesh, ddp_class, build(), options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for inputs, labels in parts(batch, steps):
        optimizer.zero_grad()
        cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in ddp.module.state_dict().items()}


def profiled(
    mesh: Mesh, batch: Batch, ddp_class: Any, build: Build, steps: int, options: Options = NONE
) -> list[Slice]:
    """What torch.profiler saw of `steps` steps: forward, backward, optimizer, collectives.

    Two more steps go before, unseen: the first ones also set things up.
    """
    torch.manual_seed(mesh.rank)
    ddp = wrapped(mesh, ddp_class, build(), options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    profiler = profile()
    for step, (inputs, labels) in enumerate(parts(batch, 2 + steps)):
        if step == 2:
            profiler.start()
        with record_function("forward"):
            loss = cross_entropy(ddp(inputs), labels)
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
        with record_function("optimizer"):
            optimizer.step()
    profiler.stop()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if event.name in ("forward", "backward", "optimizer") or event.name.startswith("gloo:")
    )
    zero = spans[0][0]
    return [Slice(name, (start - zero) / 1e3, (end - zero) / 1e3) for start, end, name in spans]


def layout(
    mesh: Mesh, batch: Batch, ddp_class: Any, build: Build, steps: int, options: Options = NONE
) -> list[list[int]]:
    """The buckets after `steps` (3 or more) steps, as they are reduced: parameters by index."""
    torch.manual_seed(mesh.rank)
    ddp = wrapped(mesh, ddp_class, build(), options)
    for inputs, labels in parts(batch, steps):
        cross_entropy(ddp(inputs), labels).backward()
    if ddp_class is DistributedDataParallel:
        return [bucket.indices for bucket in ddp.reducer.buckets]
    described = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
    return [[int(index) for index in bucket.split()] for bucket in described.split(",")]


def outcome(mesh: Mesh, batch: Any, fn: Callable[..., Any], *args: Any) -> str:
    """What calling fn(mesh, batch, *args) comes to on this rank: "fine", or the error."""
    try:
        fn(mesh, batch, *args)
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        return f"{type(error).__name__}: {first}"
    return "fine"


class Weights(nn.Module):
    """Its output is its weight times the input: so the input is its weight's gradient."""

    def __init__(self, numel: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numel))

    def forward(self, gradient: Tensor) -> Tensor:
        return (self.weight * gradient).sum()


def averaged(
    mesh: Mesh, gradient: Tensor, ddp_class: Any, steps: int, options: Options = NONE
) -> Tensor:
    """What a DDP makes of one gradient per rank, (n,), in the last of `steps` iterations."""
    ddp = wrapped(mesh, ddp_class, Weights(gradient.numel()), options)
    for _ in range(steps):
        ddp.zero_grad(set_to_none=False)
        ddp(gradient).backward()
    return ddp.module.weight.grad.clone()


def wrapping(mesh: Mesh, ddp_class: Any, build: Build) -> tuple[Tensor, Tensor, list[Call]]:
    """All parameters of a module, flat, before and after it is wrapped; and what was asked for."""
    torch.manual_seed(mesh.rank)
    module = build()
    before = nn.utils.parameters_to_vector(module.parameters()).detach()
    with CollectiveLog() as log:
        wrapped(mesh, ddp_class, module, NONE)
    after = nn.utils.parameters_to_vector(module.parameters()).detach()
    return before, after, log.calls


def coalesced(mesh: Mesh, shapes: Sequence[int], cap: int) -> tuple[list[Call], list[Call], bool]:
    """What PyTorch's coalesced broadcast asks for, what ours does, and whether all is rank 0's."""
    group = dist.group.WORLD
    calls, right = [], []
    for broadcast in (dist._broadcast_coalesced, broadcast_coalesced):
        tensors = [torch.full((numel,), float(mesh.rank)) for numel in shapes]
        with CollectiveLog() as log:
            broadcast(group, tensors, cap, 0)
        calls.append(log.calls)
        right.append(not any(tensor.any() for tensor in tensors))
    return calls[0], calls[1], all(right)


class Scaled(nn.Module):
    """A linear layer after a scale of its own, which DDP is told to leave alone."""

    _ddp_params_and_buffers_to_ignore = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(1))
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(self.scale * inputs)


def ignored(mesh: Mesh, ddp_class: Any) -> tuple[float, float]:
    """The scale of a wrapped Scaled, which starts different on each rank; and its gradient."""
    torch.manual_seed(mesh.rank)
    ddp = wrapped(mesh, ddp_class, Scaled(), NONE)
    ddp(torch.full((1, 4), 1.0 + mesh.rank)).sum().backward()
    return ddp.module.scale.item(), ddp.module.scale.grad.item()


class InOrder(nn.Module):
    """Layers of 1 MiB each, defined as 0, 1, 2, ... and used in the order given."""

    def __init__(self, order: Sequence[int]):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in order)
        self.order = order

    def forward(self, inputs: Tensor) -> Tensor:
        for index in self.order:
            inputs = self.layers[index](inputs)
        return inputs


def all_reduced(
    mesh: Mesh, batch: Batch, ddp_class: Any, build: Build, steps: int, variants: Sequence[Options]
) -> list[list[list[Call]]]:
    """For each variant of the class's arguments, the all-reduces of each backward."""
    return [
        [
            [call for call in phase.calls if call.op == "allreduce" and not call.side]
            for phase in watch(mesh, batch, ddp_class, build, steps, options)
            if phase.when.startswith("backward")
        ]
        for options in variants
    ]


def averages(mesh: Mesh, gradient: Tensor) -> dict[str, tuple[Tensor, Tensor | None]]:
    """The average of one gradient per rank in three ways: by PyTorch's DDP, and by ours.

    The last way is ReduceOp.AVG, which neither of them uses.
    """
    both = TorchDDP, DistributedDataParallel
    view = {"gradient_as_bucket_view": True}  # from the second iteration on, .grad is the view
    after = gradient.clone()
    dist.all_reduce(after, op=dist.ReduceOp.AVG)
    return {
        "times 1/N, then the sum": tuple(averaged(mesh, gradient, cls, 1) for cls in both),
        "divided by N, then the sum": tuple(averaged(mesh, gradient, cls, 2, view) for cls in both),
        "the sum, then divided by N": (after, None),
    }


def two_forwards(mesh: Mesh, gradient: Tensor, ddp_class: Any) -> Tensor:
    """Two forwards, then a backward for each; the gradient that is left in .grad."""
    ddp = wrapped(mesh, ddp_class, Weights(gradient.numel()), NONE)
    first, second = ddp(gradient), ddp(gradient)
    first.backward()
    second.backward()
    return ddp.module.weight.grad
