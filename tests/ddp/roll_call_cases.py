"""What ranks do in test_roll_call.py. Ranks import this module: it needs torch and minidist only.

In each program the last rank is the odd one out.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

import torch
import torch.distributed as dist
from guard_cases import BatchNormNet, Explodes, Net, batch, loss_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from minidist.ddp import DistributedDataParallel as OurDDP

TIMEOUT_S = 2.0


def said(program, *args) -> tuple[str, str]:
    """The class of the error that it raised, and its text, with that of its cause."""
    try:
        program(*args)
    except Exception as error:
        cause = f"\nfrom {error.__cause__}" if error.__cause__ else ""
        return type(error).__name__, str(error) + cause
    return "nothing", ""


def train(ddp, rank, steps=3, **options):
    for step in range(steps):
        loss_of(ddp(batch(rank, step), **options)).backward()


# Ranks that do different things


def one_rank_does_not_use_a_parameter(ddp, rank, odd):
    loss_of(ddp(batch(rank), skip=odd)).backward()


def one_rank_evaluates(ddp, rank, odd):
    train(ddp, rank)
    if odd:
        with torch.no_grad():
            ddp(batch(rank))
        dist.barrier(ddp.process_group)
    else:
        train(ddp, rank)


def one_rank_evaluates_with_gradients(ddp, rank, odd):
    train(ddp, rank)
    if odd:
        for _ in range(3):
            ddp(batch(rank))
    train(ddp, rank)


def one_rank_stops_at_a_barrier(ddp, rank, odd):
    train(ddp, rank, steps=2 if odd else 4)
    dist.barrier(ddp.process_group)


def one_rank_trains_longer(ddp, rank, odd):
    train(ddp, rank, steps=4 if odd else 2)
    dist.barrier(ddp.process_group)


def one_rank_goes_on_after_an_exception(ddp, rank, odd):
    train(ddp, rank)
    if odd:
        with contextlib.suppress(ZeroDivisionError):
            loss_of(ddp(Explodes.apply(batch(rank).requires_grad_()))).backward()
    train(ddp, rank)


LACK, HAVE = "lacks gradients at the end of a backward pass", "has all gradients of a backward pass"
COME = f"did not come (not within {TIMEOUT_S:g} s)"
DISAGREE = {  # program: the module, what the odd rank's error says, and what the others' say
    one_rank_does_not_use_a_parameter: (
        Net,
        ("MissingGradients", "second.weight, second.bias got no gradient", f"{{odd}} {LACK}"),
        ("RanksDisagree", f"{{others}} {HAVE}", f"{{odd}} {LACK}", "find_unused_parameters=True"),
    ),
    one_rank_evaluates: (
        BatchNormNet,
        ("RanksDisagree", "{others} runs forward", "{odd} evaluates", "call ddp.module there"),
        ("RanksDisagree", "{others} runs forward", "{odd} evaluates", "call ddp.module there"),
    ),
    one_rank_evaluates_with_gradients: (
        BatchNormNet,
        ("RanksDisagree", f"{{others}} {HAVE}", "{odd} runs forward", "equally often"),
        ("RanksDisagree", f"{{others}} {HAVE}", "{odd} runs forward", "equally often"),
    ),
    one_rank_stops_at_a_barrier: (
        Net,
        None,  # it waits at the barrier, which is not DDP's
        ("RanksDisagree", HAVE, f"{{odd}} {COME}", "ddp.join()", "rank_timeout_s"),
    ),
    one_rank_trains_longer: (
        Net,
        ("RanksDisagree", f"{{odd}} {HAVE}", f"{{others}} {COME}", "ddp.join()"),
        None,
    ),
    one_rank_goes_on_after_an_exception: (
        Net,
        ("RanksDisagree", f"{{others}} {HAVE}", "{odd} has left a backward pass by an exception"),
        ("RanksDisagree", f"{{others}} {HAVE}", "{odd} has left a backward pass by an exception"),
    ),
}


HANGS = (one_rank_does_not_use_a_parameter, one_rank_evaluates, one_rank_stops_at_a_barrier)


def ranks_disagree(mesh):
    """Per program: the error with ours, and with PyTorch's (on gloo with 2 ranks)."""
    odd = mesh.rank == mesh.world_size - 1
    with_torch = dist.get_backend() == "gloo" and mesh.world_size == 2
    out = {}
    for program, (module, *_) in DISAGREE.items():
        dist.barrier()  # the last program has let ranks go at different times
        group, theirs = (dist.new_group(timeout=timedelta(seconds=TIMEOUT_S)) for _ in range(2))
        ours = OurDDP(module(), process_group=group, rank_timeout_s=TIMEOUT_S)
        torchs = None
        if with_torch and program in HANGS:
            ddp = TorchDDP(module(), process_group=theirs)
            torchs = said(program, ddp, mesh.rank, odd)
            dist.barrier()
        out[program.__name__] = said(program, ours, mesh.rank, odd), torchs
    return out


# Ranks that wrap different modules


def layers(*shapes, **options):
    return [nn.Linear(*shape, **options) for shape in shapes]


def modules():
    """name: (what rank 0 wraps, what the last rank wraps, what the error says)."""
    transposed = nn.Linear(4, 3)
    transposed.weight = nn.Parameter(transposed.weight.detach().t().contiguous().t())
    return {
        "number": (
            nn.Sequential(*layers((4, 4), (4, 4))),
            nn.Sequential(*layers((4, 4))),
            "parameter 2: rank 0 has 1.weight (float32 [4, 4], strides [4, 1]), "
            "rank {odd} has none there",
        ),
        "more": (
            nn.Sequential(*layers((4, 4))),
            nn.Sequential(*layers((4, 4), (4, 4))),
            "parameter 2: rank 0 has none there, rank {odd} has 1.weight",
        ),
        "shape": (
            nn.Linear(4, 4),
            nn.Linear(4, 5),
            "parameter 0: rank 0 has weight (float32 [4, 4], strides [4, 1]), rank {odd} has "
            "weight (float32 [5, 4], strides [4, 1])",
        ),
        "strides": (
            nn.Linear(4, 3),
            transposed,
            "rank 0 has weight (float32 [3, 4], strides [4, 1]), rank {odd} has "
            "weight (float32 [3, 4], strides [1, 3])",
        ),
        "dtype": (
            nn.Linear(4, 4),
            nn.Linear(4, 4, dtype=torch.float64),
            "rank {odd} has weight (float64 [4, 4]",
        ),
        "order": (
            nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}),
            nn.ModuleDict({"b": nn.Linear(4, 4), "a": nn.Linear(4, 4)}),
            "parameter 0: rank 0 has a.weight (float32 [4, 4], strides [4, 1]), "
            "rank {odd} has b.weight",
        ),
        "frozen": (
            nn.Linear(4, 4),
            frozen_bias(),
            "parameter 1: rank 0 has bias (float32 [4], strides [1]), rank {odd} has none there",
        ),
    }


def frozen_bias():
    layer = nn.Linear(4, 4)
    layer.bias.requires_grad_(False)
    return layer


def different_modules(mesh):
    odd = mesh.rank == mesh.world_size - 1
    out = {}
    for name, (usual, other, _) in modules().items():
        group = dist.new_group()
        out[name] = said(lambda m=other if odd else usual, g=group: OurDDP(m, process_group=g))
    return out


def torch_on_different_order(mesh):
    """PyTorch's compares shapes only: two layers in another order are each other's."""
    usual, other, _ = modules()["order"]
    module = other if mesh.rank else usual
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_({"a": 1.0, "b": 2.0}[name[0]])
    TorchDDP(module)
    return {name: parameter.mean().item() for name, parameter in module.named_parameters()}


def one_rank_does_not_wrap(mesh):
    """First on a group without roll calls so far, then on one that has had them."""
    odd = mesh.rank == mesh.world_size - 1
    out = []
    for other_ddp in (False, True):
        group = dist.new_group()
        if other_ddp:
            OurDDP(Net(), process_group=group, rank_timeout_s=TIMEOUT_S)
        if not odd:
            out.append(
                said(lambda g=group: OurDDP(Net(), process_group=g, rank_timeout_s=TIMEOUT_S))
            )
    return out


def one_rank_destroys_its_groups(mesh):
    odd = mesh.rank == mesh.world_size - 1
    ddp = OurDDP(Net())
    train(ddp, mesh.rank)
    if odd:
        dist.destroy_process_group()
        return "nothing", ""
    return said(train, ddp, mesh.rank)


# Groups


def subgroups(mesh):
    """Several DDPs on ranks 1 and 2 of 3, each with its own roll calls; rank 0 trains nothing."""
    group = dist.new_group([1, 2])
    dropped = dist.new_group([1, 2])
    out = []
    if mesh.rank:
        for _ in range(3):
            OurDDP(Net(), process_group=dropped)
        one, two = (OurDDP(BatchNormNet(), process_group=group) for _ in range(2))
        theirs = TorchDDP(BatchNormNet(), process_group=group)
        for step in range(3):
            losses = [loss_of(ddp(batch(mesh.rank, step))) for ddp in (one, two, theirs)]
            for loss in losses[:: -1 if step else 1]:
                loss.backward()
        out = [[p.grad.clone() for p in d.module.parameters()] for d in (one, two, theirs)]
        out.append(said(one_rank_evaluates, one, mesh.rank, mesh.rank == 2))
    return out


def groups_made_again(mesh, folder):
    """The roll calls of a new default group find nothing of the last one's."""
    out = []
    for turn in range(3):
        dist.init_process_group(
            "gloo", f"file://{folder}/{turn}", rank=mesh.rank, world_size=mesh.world_size
        )
        ddp = OurDDP(BatchNormNet())
        out.append(said(train, ddp, mesh.rank))
        dist.destroy_process_group()
    return out


def world_of_one(mesh):
    ddp = OurDDP(BatchNormNet())
    with torch.no_grad():
        ddp(batch(0))
    train(ddp, 0)
    return ddp.roll_call.off


def join(mesh):
    """Uneven inputs are lawful here, with and without buffers, and no roll call disturbs them."""
    out = []
    for module in (Net, BatchNormNet):
        ddp = OurDDP(module(), rank_timeout_s=TIMEOUT_S)
        with ddp.join():
            train(ddp, mesh.rank, steps=2 + mesh.rank)
        out.append([p.detach() for p in ddp.module.parameters()])
    return out


def beside_nccl(mesh):
    ddp = OurDDP(BatchNormNet().cuda(), rank_timeout_s=TIMEOUT_S)
    odd = mesh.rank == mesh.world_size - 1

    def program():
        for step in range(3):
            loss_of(ddp(batch(mesh.rank, step).cuda())).backward()
        with torch.set_grad_enabled(not odd):
            ddp(batch(mesh.rank).cuda())

    return said(program)
