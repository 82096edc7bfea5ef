"""Uneven inputs: a rank that has run out of batches plays along until the last one has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

from minidist.ddp.state import BROADCAST_BYTES, broadcast_coalesced, state_of

if TYPE_CHECKING:
    from minidist.ddp.ddp import DistributedDataParallel


class DDPJoinHook(JoinHook):
    """What a rank does in the place of an iteration, and when all are through.

    It calls the same collectives as a forward and a backward, in the same order, with zeros for
    its gradients. torch.distributed.algorithms.Join decides when.
    """

    def __init__(self, ddp: DistributedDataParallel):
        self.ddp = ddp

    def main_hook(self) -> None:
        ddp, reducer = self.ddp, self.ddp.reducer
        if reducer.can_rebuild:
            reducer.rebuild_buckets()
        if ddp.will_sync_buffers():
            ddp.sync_buffers(common_rank(ddp.process_group, ddp.device, False))
        flag = torch.zeros(1, device=ddp.device)
        dist.all_reduce(flag, group=ddp.process_group)
        ddp.require_forward_param_sync = bool(flag)  # as no_sync() does on the others
        if not flag:
            return
        zeros = [bucket.zeros() for bucket in reducer.buckets]
        reductions = [reducer.reduction_of(i, flat) for i, flat in enumerate(zeros)]
        for reduction in reductions:
            reduction.wait()
        if reducer.find_unused_parameters:
            dist.all_reduce(torch.zeros_like(reducer.used), group=ddp.process_group)
        if reducer.should_rebuild:
            reducer.ready_order = list(range(len(reducer.parameters)))  # rank 0's order will count

    def post_hook(self, is_last_joiner: bool) -> None:
        """Everybody takes the model of the rank that trained longest."""
        ddp = self.ddp
        source = common_rank(ddp.process_group, ddp.device, is_last_joiner)
        state = state_of(ddp.module, ddp.parameters_to_ignore, ddp.forward_sync_buffers)
        broadcast_coalesced(ddp.process_group, state, BROADCAST_BYTES, source)


def common_rank(group: dist.ProcessGroup, device: torch.device, candidate: bool) -> int:
    """The largest rank that is a candidate. One all-reduce of one number."""
    rank = torch.tensor([dist.get_rank(group) if candidate else -1], device=device)
    dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=group)
    return int(rank)


def announce_sync(ddp: DistributedDataParallel) -> None:
    """Tell the ranks that have joined whether this iteration will reduce gradients."""
    flag = torch.full((1,), float(ddp.require_backward_grad_sync), device=ddp.device)
    dist.all_reduce(flag, group=ddp.process_group, async_op=True)
