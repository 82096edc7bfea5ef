"""What every wire between processes must do: the same results and the same trace as the others."""

from __future__ import annotations

import functools
import os
import threading
import time
from pathlib import Path

import pytest
import torch
from cases import WORLD_SIZES, all_cases, bits, run_cases, several

from minidist import PeerLost, RecvTimeout, collectives, run

WIRES = ("queue", "tcp", "shared_memory")
on_wires = pytest.mark.parametrize("transport", WIRES)


@functools.cache
def cases_on(transport, world_size):
    return run(run_cases, world_size, all_cases(world_size), transport=transport)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("transport", ["tcp", "shared_memory"])
def test_every_collective_as_on_the_queue(transport, world_size):
    ours, queues = cases_on(transport, world_size), cases_on("queue", world_size)
    assert ours.trace == queues.trace
    for rank in range(world_size):
        for case, (mine, faults), (theirs, _) in zip(
            all_cases(world_size), ours.results[rank], queues.results[rank], strict=True
        ):
            assert bits(mine) == bits(theirs), (case, rank)
            assert not faults, (case, rank)


ALLREDUCES = [
    collectives.tree_allreduce,
    collectives.halving_doubling_allreduce,
    collectives.two_shot_allreduce,
]


@pytest.mark.parametrize("transport", ["tcp", "shared_memory"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_other_allreduces_as_on_the_queue(transport, world_size):
    def all_of_them(mesh):
        x = torch.randn(1003, generator=torch.Generator().manual_seed(mesh.rank))
        return [allreduce(mesh, x) for allreduce in ALLREDUCES]

    ours, queues = (run(all_of_them, world_size, transport=t) for t in (transport, "queue"))
    assert ours.trace == queues.trace
    assert [[*map(bits, r)] for r in ours.results] == [[*map(bits, r)] for r in queues.results]


@on_wires
def test_large_messages_at_the_same_time(transport):
    """More than any buffer holds, all ranks in both directions."""

    def fn(mesh):
        n = 3_000_001
        x = torch.arange(n, dtype=torch.int32) + mesh.rank
        right, left = (mesh.rank + 1) % 3, (mesh.rank - 1) % 3
        for _ in range(3):
            x = mesh.sendrecv(right, x, left) + 1
        return torch.equal(x, torch.arange(n, dtype=torch.int32) + mesh.rank + 3)

    assert run(fn, 3, transport=transport).results == [True] * 3


@on_wires
def test_a_ring_of_large_plain_sends(transport):
    def fn(mesh):
        x = torch.full((2_000_000,), float(mesh.rank))
        for _ in range(5):
            mesh.send((mesh.rank + 1) % 3, x)
            x = mesh.recv((mesh.rank - 1) % 3)
        return x.unique().tolist()

    assert run(fn, 3, transport=transport).results == [[1.0], [2.0], [0.0]]


@on_wires
def test_a_send_is_a_copy_even_of_what_no_buffer_holds(transport):
    def fn(mesh):
        if mesh.rank == 0:
            x = torch.zeros(1_000_000)
            for value in range(6):
                x.fill_(value)
                mesh.send(1, x)
            x.fill_(-1)
            return None
        time.sleep(0.3)
        return [mesh.recv(0).unique().tolist() for _ in range(6)]

    assert run(fn, 2, transport=transport).results[1] == [[float(v)] for v in range(6)]


@on_wires
def test_what_was_received_is_kept_while_more_comes(transport):
    def fn(mesh):
        if mesh.rank == 0:
            for value in range(40):
                mesh.send(1, torch.full((20_000 + value,), value))
            return None
        kept = [mesh.recv(0) for _ in range(40)]
        return all(x.numel() == 20_000 + v and (x == v).all() for v, x in enumerate(kept))

    assert run(fn, 2, transport=transport).results[1]


@on_wires
def test_an_exchange_does_not_wait_for_a_receiver_that_is_busy_elsewhere(transport):
    """0 sends to 1 much; 1 reads it only after a message that 0 causes later, by way of 2."""

    def fn(mesh):
        big, small = torch.ones(5_000_000), torch.ones(1)
        if mesh.rank == 0:
            mesh.sendrecv(1, big, 2, like=small)
            mesh.send(2, small)
        elif mesh.rank == 1:
            mesh.recv(2)
            return mesh.recv(0).sum().item()
        else:
            mesh.send(0, small)
            mesh.recv(0)
            mesh.send(1, small)

    start = time.monotonic()
    assert run(fn, 3, transport=transport, recv_timeout_ms=5000).results[1] == 5_000_000
    assert time.monotonic() - start < 4


@on_wires
def test_a_receive_that_ran_out_of_time_goes_on_where_it_was(transport):
    """The link is asked again and again while the message is still arriving."""

    def fn(mesh):
        if mesh.rank == 0:
            time.sleep(0.2)
            mesh.send(1, torch.arange(4_000_000))
            mesh.send(1, torch.tensor(7))
            return None
        timeouts = 0
        while True:
            try:
                first, _ = mesh.link.get(0, 0.001)
                break
            except TimeoutError:
                timeouts += 1
        second, _ = mesh.link.get(0, 10)
        return timeouts, torch.equal(first, torch.arange(4_000_000)), second.item()

    timeouts, whole, after = run(fn, 2, transport=transport).results[1]
    assert timeouts > 10 and whole and after == 7


@on_wires
def test_a_rank_that_never_sends(transport):
    def fn(mesh):
        if mesh.rank == 0:
            time.sleep(30)
        mesh.recv(0)

    start = time.monotonic()
    with pytest.raises(RecvTimeout, match=r"rank 1 waited 0.5 s for a message from rank 0 at step"):
        run(fn, 2, transport=transport, recv_timeout_ms=500)
    assert time.monotonic() - start < 2.5


@on_wires
def test_a_rank_that_is_killed(transport):
    def fn(mesh):
        if mesh.rank == 2:
            time.sleep(0.2)
            os.kill(os.getpid(), 9)
        mesh.recv((mesh.rank + 1) % 3)

    start = time.monotonic()
    with pytest.raises(PeerLost, match="rank 2"):
        run(fn, 3, transport=transport)
    assert time.monotonic() - start < 2


@on_wires
def test_nothing_is_left(transport):
    def sizes(mesh):
        x = torch.ones(300_000)
        for _ in range(3):
            mesh.sendrecv(1 - mesh.rank, x, 1 - mesh.rank)
        mesh.send(1 - mesh.rank, x)  # nobody receives it

    def killed(mesh):
        sizes(mesh)
        if mesh.rank == 1:
            os.kill(os.getpid(), 9)
        mesh.recv(1)

    def open_files():
        return len(os.listdir("/proc/self/fd"))

    run(sizes, 2, transport=transport)  # the server that forks the ranks is there to stay
    before = open_files(), threading.active_count(), set(Path("/dev/shm").iterdir())
    for _ in range(3):
        run(sizes, 2, transport=transport)
        with pytest.raises(PeerLost):
            run(killed, 2, transport=transport)
    after = open_files(), threading.active_count(), set(Path("/dev/shm").iterdir())
    assert (after[0], after[1]) == (before[0], before[1])
    assert not {p for p in after[2] - before[2] if p.name.startswith("minidist")}


@on_wires
def test_every_run_has_the_same_trace(transport):
    x = torch.arange(10.0)
    first = run(several, 3, x, 2, transport="simulated").trace
    for _ in range(10):
        assert run(several, 3, x, 2, transport=transport).trace == first
