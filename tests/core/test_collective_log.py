"""The log of collectives: what was asked for, in order, on which group, from where."""

from __future__ import annotations

import torch
import torch.distributed as dist

from minidist import run
from minidist.collective_log import CollectiveLog


def _asks(mesh):
    side = dist.new_group([0, 1, 2])
    dist.all_reduce(torch.ones(2))  # before: not in the log
    with CollectiveLog() as log:
        dist.all_reduce(torch.ones(3, dtype=torch.float64))
        dist.broadcast(torch.ones(2, 2), src=1, group=side)
        dist.all_gather([torch.zeros(5) for _ in range(3)], torch.zeros(5))
        dist.all_gather_into_tensor(torch.zeros(15), torch.zeros(5))
        if mesh.rank == 0:
            dist.send(torch.ones(7), 1)
        if mesh.rank == 1:
            dist.recv(torch.ones(7), 0)
        first = log.take()
        dist.barrier()
        dist.all_reduce(torch.ones(1, dtype=torch.int32))
        second = log.take()
    dist.all_reduce(torch.ones(2))
    return first, second, log.calls


def test_calls_are_logged_in_order_with_what_each_rank_gives():
    first, second, rest = run(_asks, 3, process_group="gloo").results[0]
    assert [str(call) for call in first] == [
        "allreduce 3 float64",
        "broadcast 4 float32",
        "allgather 5 float32",
        "allgather_base 5 float32",
        "send 7 float32",
    ]
    assert [call.nbytes for call in first] == [24, 16, 20, 20, 28]
    assert [call.side for call in first] == [False, True, False, False, False]
    assert [str(call) for call in second if call.op != "barrier"] == ["allreduce 1 int32"]
    assert rest == []


def test_ranks_differ_only_in_what_they_asked_for():
    results = run(_asks, 3, process_group="gloo").results
    assert [str(call) for call in results[1][0]][4:] == ["recv 7 float32"]
    assert results[2][0] == results[0][0][:4]


def test_the_stack_ends_where_the_collective_was_asked_for():
    first, _, _ = run(_asks, 3, process_group="gloo").results[0]
    (asker,) = [frame for frame in first[0].stack if frame.function == "_asks"]
    assert asker.source == "dist.all_reduce(torch.ones(3, dtype=torch.float64))"
    assert first[0].stack[-1].function != "__torch_dispatch__"
