"""The backend "minidist_shared_memory": gloo's bits through shared memory, and what goes wrong.

What is not about the wire is the backend "minidist" and stands in test_backend.py.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import backend_cases
import pytest
import torch
import torch.distributed as dist
from cases import bits

from minidist import PeerLost, RankFailed, RecvTimeout, run
from minidist.transports.shared_memory import SharedMemoryLink

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux")
BACKEND = "minidist_shared_memory"


def on_ranks(world_size, fn, *args, **options):
    return run(fn, world_size, *args, process_group=BACKEND, **options)


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_call_and_every_training_is_gloos_to_the_last_bit(world_size):
    for rank, results in enumerate(
        on_ranks(world_size, backend_cases.compare_all, timeout=200).results
    ):
        wrong = [name for name, (ours, gloo) in results.items() if bits(ours) != bits(gloo)]
        assert len(results) > 60 and not wrong, rank


def test_the_messages_go_through_shared_memory():
    def fn(mesh):
        group = dist.distributed_c10d._get_default_group()
        x = torch.ones(1000)
        dist.all_reduce(x)
        name, link = dist.get_backend(), group._collectives.mesh.link
        return name, isinstance(link, SharedMemoryLink), x.sum().item(), len(group.events)

    assert on_ranks(2, fn).results == [(BACKEND, True, 2000.0, 4)] * 2


def test_subgroups_beside_other_backends():
    def fn(mesh):
        import minidist.backend  # noqa: F401

        group = dist.new_group([0, 2], backend=BACKEND)
        x = torch.tensor([float(mesh.rank)])
        if mesh.rank != 1:
            dist.all_reduce(x, group=group)
        dist.all_reduce(x)
        return x.item()

    assert run(fn, 3, process_group="gloo").results == [5.0] * 3


def test_the_memory_is_open_once_for_as_long_as_it_is_mapped():
    def fn(mesh):
        import minidist.backend  # noqa: F401

        dist.new_group(backend=BACKEND)
        dist.barrier()
        folder = "/proc/self/fd"
        return sum(
            "memfd:minidist" in os.path.realpath(f"{folder}/{fd}") for fd in os.listdir(folder)
        )

    assert run(fn, 2, process_group="gloo").results == [1, 1]


def failing(fn, world_size):
    """(kind, text, seconds) per rank of the error that `fn` raises; None if it returns."""

    def caught(mesh):
        dist.barrier()
        start = time.monotonic()
        try:
            fn(mesh)
        except RuntimeError as error:
            return type(error).__name__, str(error), time.monotonic() - start
        time.sleep(4)  # stay: the others are to find out by themselves
        return None

    return on_ranks(world_size, caught).results


def test_a_group_that_failed_on_one_rank_fails_on_the_others_long_before_the_deadline():
    def fn(mesh):
        if mesh.rank == 1:
            dist.distributed_c10d._get_default_group().abort()
            return
        dist.all_reduce(torch.ones(4))

    (kind, text, seconds), nothing = failing(fn, 2)
    assert nothing is None and kind == PeerLost.__name__ and seconds < 10
    assert "rank 0 lost its connection to rank 1" in text and "the group was aborted" in text


def test_a_rank_that_does_not_come():
    def fn(mesh):
        group = dist.new_group(timeout=timedelta(seconds=1.5))
        if mesh.rank == 0:
            dist.all_reduce(torch.ones(4), group=group)

    (kind, text, seconds), nothing = failing(fn, 2)
    assert nothing is None and kind == RecvTimeout.__name__ and 1 < seconds < 10
    assert "rank 0 waited 1.5 s for a message from rank 1" in text


def test_a_rank_that_is_killed():
    def fn(mesh):
        dist.all_reduce(torch.ones(4))
        if mesh.rank == 1:
            os.kill(os.getpid(), 9)
        dist.all_reduce(torch.ones(4))

    start = time.monotonic()
    with pytest.raises((PeerLost, RankFailed), match="rank 1"):
        on_ranks(3, fn)
    assert time.monotonic() - start < 30


def test_memory_that_cannot_be_shared_is_an_error_on_every_rank():
    def fn(mesh):
        from minidist import _memory_group

        def refuse(path, world_size):
            raise PermissionError(13, "Permission denied", path)

        if mesh.rank == 1:
            _memory_group.open_memory = refuse
        import minidist.backend  # noqa: F401

        with pytest.raises(OSError, match=r"cannot share memory.*Permission denied.*one machine"):
            dist.new_group(backend=BACKEND)
        return True

    assert run(fn, 2, process_group="gloo").results == [True, True]
