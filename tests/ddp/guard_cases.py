"""What ranks do in test_guard.py: programs that train wrongly in silence, and lawful ones.

Each takes a class (ours or PyTorch's), a group and this rank. Ranks import this module, so it needs
torch and minidist only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import types
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint

from minidist.ddp import DistributedDataParallel as OurDDP


class Net(nn.Module):
    """Two layers, the second of which can be left out; and one more, for a second output."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.other = None

    def forward(self, x: Tensor, skip: bool = False) -> Tensor:
        x = self.first(x).relu()
        return x if skip else self.second(x)


class TwoHeads(Net):
    def __init__(self):
        super().__init__()
        self.third = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.second(self.first(x)), self.third(x)


def batch(rank: int, seed: int = 0) -> Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(100 * seed + rank))


def loss_of(output: Tensor) -> Tensor:
    return output.square().sum()


# Programs after which the ranks have different gradients or parameters, without a word


def unused_parameter(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    loss_of(ddp(batch(rank), skip=True)).backward()
    return ddp


def unused_output(DDP, group, rank):
    ddp = DDP(TwoHeads(), process_group=group)
    one, _other = ddp(batch(rank))
    loss_of(one).backward()
    torch.optim.SGD(ddp.parameters(), 0.1).step()
    return ddp


def two_forwards_two_backwards(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    one, two = loss_of(ddp(batch(rank))), loss_of(ddp(batch(rank, 1)))
    one.backward()
    two.backward()
    return ddp


def two_forwards_two_backwards_reversed(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    one, two = loss_of(ddp(batch(rank))), loss_of(ddp(batch(rank, 1)))
    two.backward()
    one.backward()
    return ddp


def module_called(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    loss_of(ddp.module(batch(rank))).backward()
    return ddp


def module_called_after_a_step(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    loss_of(ddp(batch(rank))).backward()
    loss_of(ddp.module(batch(rank))).backward()
    return ddp


def unfrozen(DDP, group, rank):
    net = Net()
    net.first.requires_grad_(False)
    ddp = DDP(net, process_group=group)
    net.first.requires_grad_(True)
    loss_of(ddp(batch(rank))).backward()
    return ddp


def replaced(DDP, group, rank):
    net = Net()
    ddp = DDP(net, process_group=group)
    net.second.weight = nn.Parameter(net.second.weight.detach().clone())
    loss_of(ddp(batch(rank))).backward()
    return ddp


def added(DDP, group, rank):
    net = Net()
    ddp = DDP(net, process_group=group)
    net.second = nn.Sequential(net.second, nn.Linear(4, 4))
    loss_of(ddp(batch(rank))).backward()
    return ddp


def frozen(DDP, group, rank):
    net = Net()
    ddp = DDP(net, process_group=group)
    net.second.requires_grad_(False)
    loss_of(ddp(batch(rank))).backward()
    return ddp


def retained_graph(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    loss = loss_of(ddp(batch(rank)))
    loss.backward(retain_graph=True)
    loss.backward()
    return ddp


def penalty_on_gradients_by_itself(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    x = batch(rank).requires_grad_()
    output = ddp(x)
    loss_of(output).backward(retain_graph=True)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    loss_of(slope).backward()
    return ddp


def some_inputs_only(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    loss_of(ddp(batch(rank))).backward(inputs=[ddp.module.first.weight])
    torch.optim.SGD(ddp.parameters(), 0.1).step()
    return ddp


def unused_in_an_object(DDP, group, rank):
    ddp = DDP(InObject(), process_group=group)
    loss_of(ddp(batch(rank), skip=True).hidden).backward()
    torch.optim.SGD(ddp.parameters(), 0.1).step()
    return ddp


def step_after_an_exception(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    with contextlib.suppress(ZeroDivisionError):
        loss_of(ddp(Explodes.apply(batch(rank).requires_grad_()))).backward()
    torch.optim.SGD(ddp.parameters(), 0.1).step()
    return ddp


def optimizer_in_backward(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for parameter in ddp.parameters():
        optimizer = torch.optim.SGD([parameter], 0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, it=optimizer: it.step())
    loss_of(ddp(batch(rank))).backward()
    return ddp


SILENT = {  # program: the class of our error, and what it says
    unused_parameter: ("MissingGradients", "second.weight, second.bias got no gradient: 1 of 1"),
    unused_output: ("MissingGradients", "third.weight, third.bias got no gradient"),
    two_forwards_two_backwards: ("NotSynchronized", "two forwards and then two backward passes"),
    two_forwards_two_backwards_reversed: ("NotSynchronized", "two forwards and then two backward"),
    module_called: ("NotSynchronized", "was ddp.module called instead of ddp"),
    module_called_after_a_step: ("NotSynchronized", "was ddp.module called instead of ddp"),
    unfrozen: ("ParametersChanged", "first.weight was unfrozen or added after"),
    replaced: ("ParametersChanged", "second.weight was replaced by another tensor after"),
    added: ("ParametersChanged", "second.0.weight was unfrozen or added after"),
    frozen: ("ParametersChanged", "second.weight was frozen or taken away after"),
    retained_graph: ("NotSynchronized", "a second backward pass through the same forward reached"),
    penalty_on_gradients_by_itself: ("NotSynchronized", "made a gradient of"),
    some_inputs_only: ("MissingGradients", "first.bias, second.weight, second.bias got no"),
    unused_in_an_object: ("MissingGradients", "second.weight, second.bias got no gradient"),
    step_after_an_exception: ("NotSynchronized", "an optimizer steps before the end"),
    optimizer_in_backward: ("NotSynchronized", "an optimizer steps before the end"),
}


def outcome(program, DDP, group, rank) -> tuple[str, str] | list[Tensor]:
    """The error, if it raised; else the gradients and parameters."""
    try:
        ddp = program(DDP, group, rank)
    except Exception as error:
        return type(error).__name__, str(error)
    parameters = list(ddp.module.parameters())
    return [p.grad for p in parameters if p.grad is not None] + [p.detach() for p in parameters]


def silent_failures(mesh):
    """Per program: what became of it with ours, and with PyTorch's."""
    out = {}
    for program in SILENT:
        ours, theirs = dist.new_group(), dist.new_group()
        out[program.__name__] = (
            outcome(program, OurDDP, ours, mesh.rank),
            outcome(program, TorchDDP, theirs, mesh.rank),
        )
    return out


# Lawful programs: no word, and the gradients of PyTorch's to the last bit


class Explodes(torch.autograd.Function):
    """An error in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("in backward")


@dataclasses.dataclass
class Nested:
    parts: dict[str, list[Tensor]]


class InDataclass(Net):
    def forward(self, x):
        return Nested({"y": [super().forward(x)]})


class InObject(Net):
    def forward(self, x, skip=False):
        hidden = self.first(x)
        output = types.SimpleNamespace(hidden=hidden)
        if not skip:
            output.y = self.second(hidden)
        return output


class BatchNormNet(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


class InPlaceView(Net):
    def forward(self, x):
        return super().forward(x)[:, :2]


def plain(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    loss_of(ddp(batch(rank))).backward()
    return ddp


def two_forwards_one_backward(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    (loss_of(ddp(batch(rank))) + loss_of(ddp(batch(rank, 1)))).backward()
    return ddp


def two_outputs_two_backwards(DDP, group, rank):
    ddp = DDP(TwoHeads(), process_group=group)
    for _ in range(2):
        one, two = ddp(batch(rank))
        loss_of(one).backward()
        loss_of(two).backward()
    return ddp


def two_outputs_dropped_before_two_backwards(DDP, group, rank):
    ddp = DDP(TwoHeads(), process_group=group)
    losses = [loss_of(output) for output in ddp(batch(rank))]
    for loss in losses:
        loss.backward()
    torch.optim.SGD(ddp.parameters(), 0.0).step()
    return ddp


def outputs_ignored(DDP, group, rank, **options):
    ddp = DDP(Net(), process_group=group, **options)
    for _ in range(3):
        ddp(batch(rank))
    for _ in range(3):
        ddp(batch(rank))
        loss_of(ddp(batch(rank))).backward()
    return ddp


def gradient_penalty(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(3):
        x = batch(rank).requires_grad_()
        output = ddp(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        (loss_of(output) + loss_of(slope)).backward()
    return ddp


def grad_after_backward(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    x = batch(rank).requires_grad_()
    output = ddp(x)
    loss_of(output).backward(retain_graph=True)
    torch.autograd.grad(output.sum(), x)
    return ddp


def grad_between_two_backwards(DDP, group, rank):
    ddp = DDP(TwoHeads(), process_group=group)
    x = batch(rank).requires_grad_()
    one, two = ddp(x)
    torch.autograd.grad(two.sum(), x, retain_graph=True)
    loss_of(one).backward()
    torch.autograd.grad(two.sum(), x, retain_graph=True)
    loss_of(two).backward()
    return ddp


def penalty_on_weights(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(3):
        penalty = sum(p.square().sum() for p in ddp.parameters())
        (penalty + loss_of(ddp(batch(rank)))).backward()
    return ddp


def penalty_on_parameters_not_in_forward(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(2):
        penalty = sum(p.square().sum() for p in ddp.module.second.parameters())
        (penalty + loss_of(ddp(batch(rank), skip=True))).backward()
    return ddp


def penalty_before_no_sync(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    with ddp.no_sync():
        loss = loss_of(ddp(batch(rank), skip=True))
    (sum(p.square().sum() for p in ddp.module.second.parameters()) + loss).backward()
    loss_of(ddp(batch(rank))).backward()
    return ddp


def retained_but_used_once(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(3):
        loss_of(ddp(batch(rank))).backward(retain_graph=True)
    return ddp


def no_sync(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for step in range(3):
        for micro in range(step % 2 + rank):  # uneven
            with ddp.no_sync():
                loss_of(ddp(batch(rank, micro))).backward()
        loss_of(ddp(batch(rank))).backward()
    return ddp


def backward_outside_of_no_sync(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    with ddp.no_sync():
        loss = loss_of(ddp(batch(rank)))
    loss.backward()
    loss_of(ddp(batch(rank, 1))).backward()
    return ddp


def backward_inside_of_no_sync(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    loss = loss_of(ddp(batch(rank)))
    with ddp.no_sync():
        loss.backward()
    return ddp


def object_in_no_sync(DDP, group, rank):
    ddp = DDP(InObject(), process_group=group)
    with ddp.no_sync():
        loss = loss_of(ddp(batch(rank)).y)
    loss.backward()
    loss_of(ddp(batch(rank)).y).backward()
    return ddp


def gan(DDP, group, rank):
    generator, judge = Net(), Net()
    ddp_g, ddp_d = DDP(generator, process_group=group), DDP(judge, process_group=group)
    optimizers = [torch.optim.SGD(ddp.parameters(), 0.01) for ddp in (ddp_g, ddp_d)]
    for step in range(3):
        with ddp_d.no_sync():  # gradients flow through it, and are thrown away
            loss_of(ddp_d.module(ddp_g(batch(rank, step)))).backward()
        optimizers[0].step()
        judge.zero_grad()
        fake = ddp_g(batch(rank, step)).detach()
        (loss_of(ddp_d(batch(rank))) - loss_of(ddp_d(fake))).backward()
        optimizers[1].step()
    return ddp_g


def gan_that_freezes(DDP, group, rank):
    generator, judge = Net(), Net()
    ddp_g, ddp_d = DDP(generator, process_group=group), DDP(judge, process_group=group)
    for step in range(3):
        judge.requires_grad_(False)
        loss_of(ddp_d(ddp_g(batch(rank, step)))).backward()
        judge.requires_grad_(True)
        loss_of(ddp_d(batch(rank, step))).backward()
    return ddp_g


def in_dataclass(DDP, group, rank):
    ddp = DDP(InDataclass(), process_group=group)
    for _ in range(3):
        loss_of(ddp(batch(rank)).parts["y"][0]).backward()
    return ddp


def in_object(DDP, group, rank):
    ddp = DDP(InObject(), process_group=group)
    for _ in range(3):
        loss_of(ddp(batch(rank)).y).backward()
    return ddp


def two_backwards_of_an_object(DDP, group, rank):
    ddp = DDP(ObjectOfTwo(), process_group=group)
    for _ in range(3):
        output = ddp(batch(rank))
        loss_of(output.one).backward()
        loss_of(output.two).backward()
    return ddp


class ObjectOfTwo(TwoHeads):
    def forward(self, x):
        one, two = super().forward(x)
        return types.SimpleNamespace(one=one, two=two)


def changed_in_place(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(3):
        output = ddp(batch(rank))
        output += 1
        loss_of(output.relu_()).backward()
    return ddp


def view_changed_in_place(DDP, group, rank):
    ddp = DDP(InPlaceView(), process_group=group)
    for _ in range(3):
        output = ddp(batch(rank))
        output.mul_(2)
        loss_of(output).backward()
    with ddp.no_sync():
        output = ddp(batch(rank))
        output.mul_(2)
    loss_of(output).backward()
    loss_of(ddp(batch(rank))).backward()
    return ddp


def all_ranks_evaluate(DDP, group, rank):
    ddp = DDP(BatchNormNet(), process_group=group)
    for _ in range(3):
        loss_of(ddp(batch(rank))).backward()
        ddp.eval()
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                for micro in range(2 + rank):  # only the first one is preceded by a broadcast
                    ddp(batch(rank, micro))
        ddp.train()
    return ddp


def one_rank_evaluates_without_buffers(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(3):
        loss_of(ddp(batch(rank))).backward()
        if rank == 0:
            with torch.no_grad():
                ddp(batch(rank))
    return ddp


def uneven_no_sync_with_buffers(DDP, group, rank):
    ddp = DDP(BatchNormNet(), process_group=group)
    for _ in range(3):
        for micro in range(rank):
            with ddp.no_sync():
                loss_of(ddp(batch(rank, micro))).backward()
        loss_of(ddp(batch(rank))).backward()
    return ddp


class Checkpointed(Net):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x):
        hidden = checkpoint(self.first, x, use_reentrant=self.reentrant)
        return checkpoint(self.second, hidden, use_reentrant=self.reentrant)


def checkpointed(DDP, group, rank, reentrant=False, **options):
    ddp = DDP(Checkpointed(reentrant), process_group=group, **options)
    for _ in range(3):
        loss_of(ddp(batch(rank).requires_grad_())).backward()
    return ddp


def checkpointed_reentrant(DDP, group, rank):
    return checkpointed(DDP, group, rank, reentrant=True)


def checkpointed_reentrant_static(DDP, group, rank):
    return checkpointed(DDP, group, rank, reentrant=True, static_graph=True)


def ddp_itself_checkpointed(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(3):
        loss_of(checkpoint(ddp, batch(rank), use_reentrant=False)).backward()
    return ddp


def exception_before_any_gradient(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            loss_of(Explodes.apply(ddp(batch(rank)))).backward()
        loss_of(ddp(batch(rank))).backward()
    return ddp


def exception_after_some_buckets(DDP, group, rank):
    """On all ranks: the buckets on their way arrive, and are forgotten. PyTorch's refuses to go on
    while they are, so its run has no exceptions here."""
    ddp = DDP(Net(), process_group=group, bucket_cap_mb=1e-6)
    for step in range(4):
        if DDP is OurDDP:
            handle = ddp.module.first.weight.register_hook(lambda gradient: 1 / 0)
            with contextlib.suppress(ZeroDivisionError):
                loss_of(ddp(batch(rank))).backward()
            handle.remove()
            ddp.zero_grad()
        if step == 2:
            with ddp.no_sync():
                loss_of(ddp(batch(rank))).backward()
        loss_of(ddp(batch(rank))).backward()
        if step < 3:
            ddp.zero_grad()
    return ddp


def all_inputs(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(3):
        loss_of(ddp(batch(rank))).backward(inputs=list(ddp.parameters()))
    return ddp


def inputs_in_two_parts(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    for _ in range(2):
        loss = ddp(batch(rank)).sum()  # which does not keep the output, as a square would
        loss.backward(inputs=list(ddp.module.second.parameters()), retain_graph=True)
        loss.backward(inputs=list(ddp.module.first.parameters()))
    return ddp


def wrapped_again(DDP, group, rank):
    net = Net()
    old = DDP(net, process_group=group)
    new = DDP(net, process_group=group)
    for _ in range(2):
        loss_of(new(batch(rank))).backward()
    with new.no_sync():
        loss_of(new(batch(rank))).backward()
    loss_of(new(batch(rank))).backward()
    del old
    return new


def shared_trunk(DDP, group, rank):
    trunk = nn.Linear(4, 4)
    nn.init.ones_(trunk.weight), nn.init.ones_(trunk.bias)
    one = DDP(nn.Sequential(trunk, Net()), process_group=group)
    two = DDP(nn.Sequential(trunk, Net()), process_group=group)
    for _ in range(2):
        loss_of(one(batch(rank))).backward()
        loss_of(two(batch(rank))).backward()
    return one


def other_optimizers(DDP, group, rank):
    """A step of what is not DDP's, while a reduction is on its way."""
    ddp = DDP(TwoHeads(), process_group=group)
    own = nn.Linear(4, 1)
    own(batch(rank)).sum().backward()
    one, two = ddp(batch(rank))
    loss_of(one).backward()
    torch.optim.SGD(own.parameters(), 0.1).step()
    loss_of(two).backward()
    torch.optim.SGD(ddp.parameters(), 0.0).step()
    return ddp


def static_graph_with_no_sync(DDP, group, rank):
    """PyTorch's fails: an assertion in the first window, gradients of its own in later ones."""
    options = {} if DDP is TorchDDP else {"static_graph": True}
    ddp = DDP(Net(), process_group=group, **options)
    for step in range(4):
        if step != 1:
            with ddp.no_sync():
                loss_of(ddp(batch(rank, step))).backward()
        loss_of(ddp(batch(rank))).backward()
    return ddp


def ignored_outputs_static_graph(DDP, group, rank):
    """PyTorch's counts forwards, not backwards, and then takes the first for a changed graph."""
    return outputs_ignored(DDP, group, rank, **({} if DDP is TorchDDP else {"static_graph": True}))


def module_of_no_sync(DDP, group, rank):
    ddp = DDP(Net(), process_group=group)
    with ddp.no_sync():
        loss_of(ddp.module(batch(rank))).backward()
    loss_of(ddp(batch(rank))).backward()
    return ddp


def frozen_ones_come_and_go(DDP, group, rank):
    net = Net()
    ddp = DDP(net, process_group=group)
    loss_of(ddp(batch(rank))).backward()
    net.teacher = nn.Linear(4, 4).requires_grad_(False)
    loss_of(ddp(batch(rank))).backward()
    net.teacher.weight = nn.Parameter(torch.zeros(4, 4), requires_grad=False)
    loss_of(ddp(batch(rank))).backward()
    return ddp


def unused_parameters_found_but_not_in_an_object(DDP, group, rank):
    """PyTorch's finds nothing in it, and takes all for unused."""
    options = {} if DDP is TorchDDP else {"find_unused_parameters": True}
    ddp = DDP(InObject(), process_group=group, **options)
    loss_of(ddp(batch(rank)).y).backward()
    return ddp


def dropped_before_backward(DDP, group, rank):
    """The graph keeps the Reducer; PyTorch's goes, and nobody averages."""
    net = Net()
    ddp = DDP(net, process_group=group)
    loss = loss_of(ddp(batch(rank)))
    if DDP is OurDDP:
        del ddp
    loss.backward()
    return types.SimpleNamespace(module=net)


LAWFUL = [
    plain,
    two_forwards_one_backward,
    two_outputs_two_backwards,
    two_outputs_dropped_before_two_backwards,
    outputs_ignored,
    gradient_penalty,
    grad_after_backward,
    grad_between_two_backwards,
    penalty_on_weights,
    penalty_on_parameters_not_in_forward,
    penalty_before_no_sync,
    retained_but_used_once,
    no_sync,
    backward_outside_of_no_sync,
    backward_inside_of_no_sync,
    object_in_no_sync,
    gan,
    gan_that_freezes,
    in_dataclass,
    in_object,
    two_backwards_of_an_object,
    changed_in_place,
    view_changed_in_place,
    all_ranks_evaluate,
    one_rank_evaluates_without_buffers,
    uneven_no_sync_with_buffers,
    checkpointed,
    checkpointed_reentrant,
    checkpointed_reentrant_static,
    ddp_itself_checkpointed,
    exception_before_any_gradient,
    exception_after_some_buckets,
    all_inputs,
    inputs_in_two_parts,
    wrapped_again,
    shared_trunk,
    other_optimizers,
    static_graph_with_no_sync,
    ignored_outputs_static_graph,
    module_of_no_sync,
    frozen_ones_come_and_go,
    unused_parameters_found_but_not_in_an_object,
    dropped_before_backward,
]
OTHER_BUCKETS = (  # than PyTorch's, at that time: another order of addition
    static_graph_with_no_sync,
    ignored_outputs_static_graph,
    exception_after_some_buckets,
)


def lawful_programs(mesh):
    """Per program: the gradients with ours (or its error), and with PyTorch's."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    return {
        program.__name__: tuple(
            outcome(program, DDP, group, mesh.rank) for DDP in (OurDDP, TorchDDP)
        )
        for program in LAWFUL
    }


# What remains


class Root(nn.Module):
    """A parameter and a buffer at the root, whose names have no dot."""

    def __init__(self, rank: int):
        super().__init__()
        self.own = nn.Parameter(torch.full((4,), float(rank)))
        self.mine = nn.Buffer(torch.full((4,), float(rank)))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.own + self.mine


def ignored_at_the_root(mesh):
    """Per class: the ignored gradient, its value before and after a step, the ignored buffer."""
    out = []
    for DDP in (OurDDP, TorchDDP):
        net = Root(mesh.rank)
        net._ddp_params_and_buffers_to_ignore = ["own", "mine"]
        ddp = DDP(net)
        for _ in range(3):
            ddp.zero_grad()
            loss_of(ddp(batch(mesh.rank))).backward()
        alone = Root(mesh.rank)
        alone.load_state_dict(net.state_dict())
        loss_of(alone(batch(mesh.rank))).backward()
        out.append(
            {
                "gradient is this rank's alone": torch.equal(net.own.grad, alone.own.grad),
                "parameter is this rank's": net.own[0].item() == mesh.rank,
                "buffer is this rank's": net.mine[0].item() == mesh.rank,
                "layer": net.layer.weight.grad,
            }
        )
        if DDP is OurDDP:  # and the end of the training is not disturbed by it
            with ddp.join():
                loss_of(ddp(batch(mesh.rank))).backward()
            out[0]["parameter is this rank's"] &= net.own[0].item() == mesh.rank
    return out


def static_graph_and_no_sync_in_pytorch(mesh):
    """What PyTorch's does with it in a window before any step."""

    def program(DDP, group, rank):
        ddp = DDP(Net(), process_group=group, static_graph=True)
        with ddp.no_sync():
            loss_of(ddp(batch(rank))).backward()
        loss_of(ddp(batch(rank))).backward()
        return ddp

    return outcome(program, OurDDP, None, mesh.rank), outcome(program, TorchDDP, None, mesh.rank)


def nothing_is_kept(mesh):
    """Names of what is still alive although nobody needs it any more."""
    alive = []

    def check(name, *references):
        if any(reference() is not None for reference in references):
            alive.append(name)

    gc.collect()
    gc.disable()
    ddp = OurDDP(Net())

    class Mark(torch.autograd.Function):
        """A node of the graph that holds an object, to see the graph go."""

        @staticmethod
        def forward(ctx, x):
            ctx.thing = {1}
            marks.append(weakref.ref(ctx.thing))
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    marks = []
    x = batch(mesh.rank).requires_grad_()
    for _ in range(20):
        ddp(Mark.apply(x))
    check("graphs of forwards without backward", *marks)
    if len(ddp.reducer.guard._outputs):
        alive.append("marks of outputs")
    marks.clear()
    for _ in range(3):
        output = ddp(Mark.apply(x))
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        (loss_of(output) + loss_of(slope)).backward()
    del output, slope
    x.grad = None
    check("graphs of backward passes", *marks)
    marks.clear()
    with contextlib.suppress(ZeroDivisionError):
        ddp(Mark.apply(Explodes.apply(x))).sum().backward()
    ddp(x)
    check("the graph of a broken backward pass", *marks)
    with ddp.no_sync():
        ddp(Mark.apply(x)).sum().backward()
    check("graphs of no_sync", *marks)
    net, reducer, flat = ddp.module, weakref.ref(ddp.reducer), weakref.ref(ddp.reducer.buckets[0])
    it = weakref.ref(ddp)
    for _ in range(3):
        loss_of(ddp(batch(mesh.rank))).backward()
    del ddp
    check("a DDP that was dropped", it, reducer, flat)
    loss_of(net(batch(mesh.rank))).backward()  # its hooks do no harm
    groups = len(dist.distributed_c10d._world.pg_map)
    for _ in range(3):
        OurDDP(net)
    if len(dist.distributed_c10d._world.pg_map) != groups:
        alive.append("process groups")
    gc.enable()
    return alive


def refused(mesh):
    """What comes of arguments that ours has not, and of modules that it cannot train."""
    out = {}
    for name, value in {
        "device_ids": [0],
        "output_device": 0,
        "dim": 1,
        "check_reduction": True,
        "delay_all_reduce_named_params": [("first.weight", None)],
        "param_to_hook_all_reduce": nn.Parameter(torch.zeros(1)),
        "mixed_precision": object(),
        "skip_all_reduce_unused_params": True,
        "batched_grad_copy": True,
    }.items():
        out[name] = outcome(lambda D, g, r, o={name: value}: D(Net(), **o), OurDDP, None, 0)

    def in_backward(DDP, group, rank):
        from torch.distributed.optim import _apply_optimizer_in_backward

        net = Net()
        _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1})
        return DDP(net)

    out["in backward"] = outcome(in_backward, OurDDP, None, 0)
    out["frozen"] = outcome(lambda D, g, r: D(Net().requires_grad_(False)), OurDDP, None, 0)
    out["lazy"] = outcome(lambda D, g, r: D(nn.LazyLinear(4)), OurDDP, None, 0)
    return out


def step_of_another_optimizer(mesh):
    """With a DDP alive, an optimizer of something else does what it did without."""
    ddp = OurDDP(TwoHeads())
    one, _two = ddp(batch(mesh.rank))
    loss_of(one).backward()  # half of a reduction
    net = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(net(batch(0)) - 1)
        loss.backward()
        return loss

    before = closure().item()
    optimizer.step(closure)
    return before, closure().item()
