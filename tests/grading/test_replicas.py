"""Replicas on threads: collectives that sum, ranks that disagree, and DDP beside them."""

import pytest
import torch
from torch import nn

from minidist.grading import replicas


def build():
    return replicas.with_whole_numbers(nn.Linear(3, 2).double())


def script(replica, module, rank, note):
    replica(replicas.batch(rank, 0)).sum().backward()
    note({"gradients": replicas.gradients(module)})


def averaging(module, comm):
    def hook(parameter):
        parameter.grad /= comm.world_size
        comm.all_reduce(parameter.grad)

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(hook)
    return module


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_gradients_are_those_of_ddp_on_every_rank(world_size):
    ours = replicas.play(averaging, build, script, world_size)
    ddp = replicas.play_ddp(build, script, world_size)
    assert ours["disagreement"] is None
    for mine, due in zip(ours["notes"], ddp, strict=True):
        for name, want in due[0]["gradients"].items():
            assert replicas.same(mine[0]["gradients"][name], want)
        assert sorted(count for _, count, _, _ in mine[0]["calls"]) == [2, 6]


def calls(*per_rank):
    """A run in which rank r calls the collectives of `per_rank[r]`."""

    def wrap(module, comm):
        for numel in per_rank[comm.rank]:
            comm.all_reduce(torch.ones(numel))
        return module

    said = replicas.play(wrap, build, lambda *_: None, len(per_rank))
    return said["disagreement"]


def test_ranks_that_call_other_collectives_are_named():
    assert calls([2, 3], [2, 3]) is None
    assert calls([2], [2, 3]) == (
        "rank 0 has come to the end; rank 1 waits in all_reduce of 3 elements of float32"
    )
    assert calls([2], [1], [2]) == (
        "rank 0 waits in all_reduce of 2 elements of float32; "
        "rank 1 waits in all_reduce of 1 element of float32; "
        "rank 2 waits in all_reduce of 2 elements of float32"
    )


def test_an_exception_of_one_rank_is_told_and_not_that_the_others_waited():
    def wrap(module, comm):
        if comm.rank == 1:
            raise KeyError("mine")
        comm.all_reduce(torch.ones(1))

    with pytest.raises(KeyError, match="mine") as caught:
        replicas.play(wrap, build, lambda *_: None, 3)
    assert caught.value.minidist_rank == 1
