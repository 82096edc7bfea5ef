"""What ours does by itself: its marks, what it refuses, and where PyTorch's gives up."""

from __future__ import annotations

import pickle

import ddp_models as models
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from minidist import run
from minidist.ddp import DistributedDataParallel, MissingGradients, allreduce_hook


def on_ranks(fn, world_size=2):
    return run(fn, world_size, process_group="gloo").results


# Marks


def marks_of_two_steps(mesh):
    marks = []
    net = models.Mlp()
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.001, record=lambda *m: marks.append(m))
    for step in range(2):
        ddp(*net.inputs(mesh.rank, step)).sum().backward()
    return marks[next(i for i, m in enumerate(marks) if m[0] == "finalize") + 1 :]


def test_marks_show_that_buckets_leave_while_the_backward_pass_goes_on():
    for marks in on_ranks(marks_of_two_steps):
        own = [(kind, name, bucket) for kind, name, bucket, _ in marks if kind != "done"]
        layer = [[f"layers.{2 * i}.{kind}" for kind in ("bias", "weight")] for i in range(4)]
        expected = [("forward", "", None), ("output", "", None), ("backward", "", None)]
        for bucket, parameters in enumerate(reversed(layer)):
            expected += [("ready", name, bucket) for name in parameters]
            expected.append(("launch", "", bucket))
        assert own == [*expected, ("wait", "", None), ("finalize", "", None)]
        assert {nbytes for kind, *_, nbytes in marks if kind in ("launch", "done")} == {1088}
        for bucket in range(4):
            of_bucket = [kind for kind, _, b, _ in marks if b == bucket and kind != "ready"]
            assert of_bucket == ["launch", "done"]


# At the start


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(3)


class Stepping(nn.Linear):
    """Its optimizer steps in the backward pass."""

    def __init__(self):
        super().__init__(2, 2)
        from torch.distributed.optim import _apply_optimizer_in_backward as apply

        apply(torch.optim.SGD, self.parameters(), {"lr": 0.1})


REFUSED = {  # name: (how to make the module, options, what is raised, what it says)
    "no parameter": (nn.ReLU, {}, RuntimeError, "doesn't have any parameter that requires a"),
    "no shape": (Lazy, {}, RuntimeError, "layer.weight has no shape yet"),
    "optimizer in backward": (Stepping, {}, NotImplementedError, "step after backward()"),
    "devices": (models.Mlp, {"device_ids": [0]}, NotImplementedError, "no device_ids: move the"),
    "precision": (models.Mlp, {"mixed_precision": 1}, NotImplementedError, "use torch.autocast"),
    "delayed": (
        models.Mlp,
        {"delay_all_reduce_named_params": [1]},
        NotImplementedError,
        "no delay_all_reduce_named_params: leave it out",
    ),
}


def test_what_is_refused():
    def fn(mesh):
        for name, (make, options, kind, says) in REFUSED.items():
            with pytest.raises(kind) as caught:
                DistributedDataParallel(make(), **options)
            assert says in str(caught.value), name
        ddp = DistributedDataParallel(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="must be callable, not int"):
            ddp.register_comm_hook(None, 3)
        ddp.register_comm_hook(None, allreduce_hook)
        with pytest.raises(RuntimeError, match="only be called once"):
            ddp.register_comm_hook(None, allreduce_hook)
        with pytest.raises(TypeError, match=r"ddp\.module\.state_dict"):
            pickle.dumps(ddp)

        # and what is taken
        kinds = DistributedDataParallel, TorchDDP
        ours, theirs = ([*kind(models.ConvNet()).state_dict()] for kind in kinds)
        assert ours == theirs and ours[0] == "module.net.0.weight"
        with pytest.warns(UserWarning, match="this forward used all parameters: the search costs"):
            net = models.Mlp()
            ddp = DistributedDataParallel(net, find_unused_parameters=True)
            ddp(*net.inputs(0, 0))
        with pytest.warns(FutureWarning, match="forward_sync_buffers is the same"):
            DistributedDataParallel(net, broadcast_buffers=True)

    on_ranks(fn, 1)


# Where PyTorch's gives up


def sparse_tables(mesh, used):
    """Two sparse tables, of which rank r uses used[r]; PyTorch's DDP raises here."""
    torch.manual_seed(mesh.rank)
    net = models.SparseTable(tables=2)
    ddp = DistributedDataParallel(net, find_unused_parameters=True)
    (words,) = net.inputs(mesh.rank, 0)
    ddp(words, used[mesh.rank]).sum().backward()
    gradients = [table.weight.grad for table in net.tables]
    return [None if g is None else g.to_dense() for g in gradients], words


def test_a_sparse_table_that_a_rank_does_not_use():
    """Its rows are the average with nothing; what nobody uses has no gradient."""
    on_no_rank, on_one = zip(
        *on_ranks(lambda mesh: [sparse_tables(mesh, used) for used in ((1, 1), (1, 2))]),
        strict=True,
    )
    (first, _), (second, _) = on_no_rank
    assert first[1] is None and second[1] is None
    assert torch.equal(first[0], second[0])
    (first, _), (second, words) = on_one
    assert torch.equal(first[1], second[1])
    assert set(first[1].abs().sum(1).nonzero().flatten().tolist()) == set(words.tolist())


def test_training_goes_on_after_an_error_that_was_caught():
    """The first iteration misses a parameter: the next ones are averaged, buckets rebuilt, too."""

    def fn(mesh):
        net = models.Branches(None)
        ddp = DistributedDataParallel(net, bucket_cap_mb=0.0001)
        x = models.numbers(mesh.rank, 0, 4, 6)
        with pytest.raises(MissingGradients):
            ddp(x, "abd").sum().backward()
        for _ in range(2):
            net.zero_grad()
            ddp(x, "cabd").sum().backward()
        indices = [bucket.indices for bucket in ddp.reducer.buckets]
        return indices, [p.grad for p in net.parameters()]

    (indices, first), (same, second) = on_ranks(fn)
    assert indices == same == [[7, 6], [3, 2], [1, 0], [5, 4]]
    assert all(map(torch.equal, first, second))


def test_a_group_is_needed():
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="no process group: call"):
        DistributedDataParallel(nn.Linear(2, 2))
