"""The virtual clock: closed forms, rendezvous, hundreds of ranks, replay."""

from __future__ import annotations

import gc
import math
import time

import pytest
import torch
from cases import several
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist import (
    Deadlock,
    Simulated,
    allgather,
    broadcast,
    naive_allreduce,
    reduce_scatter,
    ring_allreduce,
    run,
)
from minidist.transports.simulated import replay, steps

WIRES = [(5e-6, 8e-11), (1.0, 0.0), (0.0, 1.0), (3e-3, 7e-9), (0.0, 0.0)]


def close(measured, formula):
    return math.isclose(measured, formula, rel_tol=1e-9, abs_tol=1e-15)


def duration(collective, world_size, x, alpha, beta, *args, rendezvous=False):
    wire = Simulated(alpha, beta, rendezvous)
    return run(collective, world_size, x, *args, transport=wire).trace.duration


@pytest.mark.parametrize(("alpha", "beta"), WIRES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7, 8, 16, 33])
@pytest.mark.parametrize("rendezvous", [False, True])
def test_time_is_the_closed_form(alpha, beta, world_size, rendezvous):
    """Thakur, Rabenseifner and Gropp (2005): the rows of the table, without the reduction."""
    n, depth = world_size, math.ceil(math.log2(world_size))
    x = torch.empty(60 * n, device="meta")
    size = x.numel() * 4

    def timed(collective):
        return duration(collective, n, x, alpha, beta, rendezvous=rendezvous)

    assert close(timed(ring_allreduce), 2 * (n - 1) * (alpha + size / n * beta))
    assert close(timed(reduce_scatter), (n - 1) * (alpha + size / n * beta))
    assert close(timed(allgather), (n - 1) * (alpha + size * beta))
    assert close(timed(broadcast), depth * (alpha + size * beta))
    assert close(timed(naive_allreduce), 2 * (n - 1) * (alpha + size * beta))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(0, 50),
    st.floats(0, 1, allow_subnormal=False),
    st.floats(0, 1, allow_subnormal=False),
    st.data(),
)
def test_time_is_the_closed_form_for_any_size_and_root(world_size, numel, alpha, beta, data):
    src = data.draw(st.integers(0, world_size - 1))
    x = torch.empty(numel, device="meta")
    chunk = -(-numel // world_size) * 4
    ring = duration(ring_allreduce, world_size, x, alpha, beta)
    assert close(ring, 2 * (world_size - 1) * (alpha + chunk * beta))
    tree = duration(broadcast, world_size, x, alpha, beta, src)
    assert close(tree, math.ceil(math.log2(world_size)) * (alpha + numel * 4 * beta))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 50))
def test_steps(world_size, numel):
    def count(collective):
        return steps(run(collective, world_size, torch.ones(numel), transport="simulated").trace)

    assert count(naive_allreduce) == count(ring_allreduce) == 2 * (world_size - 1)
    assert count(allgather) == world_size - 1
    assert count(broadcast) == math.ceil(math.log2(world_size))


def test_a_rank_sends_one_message_at_a_time_and_receives_one_at_a_time():
    def out(mesh):  # rank 0 sends to all at once
        if mesh.rank == 0:
            for dst in (1, 2, 3):
                mesh.send(dst, torch.ones(1))
        else:
            mesh.recv(0)

    def into(mesh):  # all send to rank 0 at once
        if mesh.rank == 0:
            for src in (1, 2, 3):
                mesh.recv(src)
        else:
            mesh.send(0, torch.ones(1))

    def both(mesh):  # each sends and receives at the same time
        mesh.sendrecv(1 - mesh.rank, torch.ones(1), 1 - mesh.rank)

    for rendezvous in (False, True):
        wire = Simulated(1.0, 0.0, rendezvous)
        assert run(out, 4, transport=wire).trace.duration == 3
        assert run(into, 4, transport=wire).trace.duration == 3
        assert run(both, 2, transport=wire).trace.duration == 1


def test_a_buffered_send_costs_its_sender_no_time_but_a_rendezvous_does():
    def fn(mesh):
        if mesh.rank == 0:
            mesh.send(1, torch.ones(1))
            return mesh.link.now()
        mesh.recv(2)
        mesh.recv(0)

    def late(mesh):  # the receiver is busy with rank 2 before it turns to rank 0
        if mesh.rank == 2:
            mesh.send(1, torch.ones(1))
            return None
        return fn(mesh)

    assert run(late, 3, transport=Simulated(1.0, 0.0)).results[0] == 0.0
    assert run(late, 3, transport=Simulated(1.0, 0.0, rendezvous=True)).results[0] == 2.0


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
def test_the_collectives_need_no_buffers(world_size):
    """No schedule relies on a send that returns before its receiver is there."""
    x = torch.arange(4.0 * world_size)
    wire = Simulated(rendezvous=True)
    plain = run(several, world_size, x, world_size - 1, transport="simulated")
    waiting = run(several, world_size, x, world_size - 1, transport=wire)
    assert waiting.trace == plain.trace
    assert all(map(torch.equal, waiting.results, plain.results))


def test_a_long_chain_of_waits_is_found_at_once():
    def fn(mesh):
        mesh.recv((mesh.rank + 1) % mesh.world_size)

    start = time.monotonic()
    with pytest.raises(Deadlock, match=r"They wait in a circle: 0 -> 1 -> 2 -> .* -> 199 -> 0"):
        run(fn, 200, transport="simulated")
    assert time.monotonic() - start < 20


def test_512_ranks():
    x = torch.arange(5.0)
    start = time.monotonic()
    tree = run(broadcast, 512, x, 17, transport=Simulated(1.0, 0.0))
    assert tree.trace.duration == 9
    assert all(torch.equal(y, x) for y in tree.results)
    assert time.monotonic() - start < 60
    naive = run(naive_allreduce, 512, torch.ones(1), transport=Simulated(1.0, 0.0))
    assert naive.trace.duration == 2 * 511
    assert {y.item() for y in naive.results} == {512.0}


@pytest.mark.timeout(500)
def test_a_ring_of_512_ranks():
    alpha, beta = 5e-6, 8e-11
    start = time.monotonic()
    result = run(
        ring_allreduce, 512, torch.ones(1024), transport=Simulated(alpha, beta), timeout=450
    )
    print(f"ring of 512 ranks: {time.monotonic() - start:.1f} s")
    assert sum(result.trace.messages_sent) == 512 * 1022
    assert close(result.trace.duration, 1022 * (alpha + 8 * beta))
    assert all(torch.equal(y, torch.full((1024,), 512.0)) for y in result.results)


def test_meta_tensors_for_what_does_not_fit():
    x = torch.empty(10**11, device="meta")  # 400 GB on every rank
    result = run(ring_allreduce, 4, x, transport="simulated")
    assert result.results[0].is_meta and result.results[0].shape == x.shape
    assert result.trace.bytes_sent == [6 * 10**11] * 4


@pytest.mark.parametrize("transport", ["queue", Simulated(1e-3, 1e-9)])
def test_replay_gives_the_same_trace_on_another_clock(transport):
    recorded = run(several, 5, torch.ones(7), 2, transport=transport).trace
    replayed = replay(recorded, alpha=1e-3, beta=1e-9)
    simulated = run(several, 5, torch.ones(7), 2, transport=Simulated(1e-3, 1e-9)).trace
    assert replayed == recorded
    assert [(e.start, e.end) for e in replayed] == [(e.start, e.end) for e in simulated]


def test_each_rank_keeps_its_own_grad_mode():
    def fn(mesh):
        modes = [torch.is_grad_enabled()]
        other = 1 - mesh.rank
        if mesh.rank == 0:
            with torch.no_grad():
                mesh.sendrecv(other, torch.ones(1), other)
                modes.append(torch.is_grad_enabled())
            mesh.sendrecv(other, torch.ones(1), other)
        else:
            mesh.sendrecv(other, torch.ones(1), other)
            modes.append(torch.is_grad_enabled())
            mesh.sendrecv(other, torch.ones(1), other)
        return [*modes, torch.is_grad_enabled()]

    for transport in ("queue", "simulated"):
        for outer in (True, False):
            with torch.set_grad_enabled(outer):
                results = run(fn, 2, transport=transport).results
                assert torch.is_grad_enabled() is outer
            assert results == [[True, False, True], [True, True, True]]


def test_a_failing_run_leaves_the_callers_grad_mode():
    def fn(mesh):
        torch.set_grad_enabled(False)
        mesh.recv(1 - mesh.rank)

    with pytest.raises(Deadlock):
        run(fn, 2, transport="simulated")
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_clock_that_cannot_be_is_refused(wrong):
    for name in ("alpha", "beta"):
        with pytest.raises(ValueError, match=f"{name} is .* 0 or more"):
            Simulated(**{name: wrong})


def test_a_run_leaves_the_garbage_collector_as_it_was():
    before = gc.get_threshold()
    during = run(lambda mesh: gc.get_threshold(), 1, transport="simulated").results
    assert during[0][0] > before[0] and gc.get_threshold() == before


def test_several_sends_in_a_row_leave_one_after_another():
    """Each rank's second message leaves when its first has left, and is in nobody's way before."""

    def everybody(mesh):
        for hop in (1, 2):
            mesh.send((mesh.rank + hop) % 3, torch.ones(1))
        for hop in (1, 2):
            mesh.recv((mesh.rank + hop) % 3)

    assert run(everybody, 3, transport=Simulated(alpha=1.0, beta=0.0)).trace.duration == 2.0
