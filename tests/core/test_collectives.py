"""The collectives on every transport, against exact sums and against gloo, live."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from cases import (
    FLOATS,
    INTEGERS,
    WORLD_SIZES,
    Case,
    all_cases,
    bits,
    expected,
    run_cases,
    run_cases_and_gloo,
    several,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist import (
    MessageMismatch,
    RankFailed,
    Simulated,
    allgather,
    broadcast,
    naive_allreduce,
    reduce_scatter,
    ring_allreduce,
    run,
)


@functools.cache
def on_queue(world_size):
    """All cases by us and by gloo, in one set of processes per world size."""
    return run(run_cases_and_gloo, world_size, all_cases(world_size), process_group="gloo")


@functools.cache
def on_simulated(world_size):
    return run(run_cases, world_size, all_cases(world_size), transport="simulated")


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("transport", ["queue", "simulated"])
class TestEveryCase:
    def outcomes(self, transport, world_size):
        """(case, rank, output, faults) of every call."""
        if transport == "queue":
            per_rank = [ours for ours, _ in on_queue(world_size).results]
        else:
            per_rank = on_simulated(world_size).results
        for rank, outcomes in enumerate(per_rank):
            for case, (output, faults) in zip(all_cases(world_size), outcomes, strict=True):
                yield case, rank, output, faults

    def test_to_the_last_bit(self, transport, world_size):
        wrong = [
            (case, rank)
            for case, rank, output, _ in self.outcomes(transport, world_size)
            if bits(output) != bits(expected(case, rank, world_size))
        ]
        assert not wrong

    def test_input_is_untouched_and_output_is_new(self, transport, world_size):
        faulty = [o for o in self.outcomes(transport, world_size) if o[3]]
        assert not faulty

    def test_every_message_is_received(self, transport, world_size):
        runs = {"queue": on_queue, "simulated": on_simulated}
        assert runs[transport](world_size).trace.unreceived() == {}


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_traces_of_both_transports_are_equal(world_size):
    assert len(on_queue(world_size).trace) > 0 or world_size == 1
    assert on_queue(world_size).trace == on_simulated(world_size).trace


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_same_as_gloo(world_size):
    compared = set()
    for rank, (ours, gloo) in enumerate(on_queue(world_size).results):
        for case, (output, _), reference in zip(all_cases(world_size), ours, gloo, strict=True):
            if reference is None:
                continue
            compared.add((case.collective, case.dtype))
            assert output.shape == reference.shape, (case, rank)
            assert output.dtype == reference.dtype, (case, rank)
            if case.dtype == torch.bool:  # gloo adds the bytes: three times True is a byte of 3
                reference = reference.view(torch.uint8) != 0
            if case.dtype in INTEGERS or case.collective in ("broadcast", "allgather"):
                assert bits(output) == bits(reference), (case, rank)
            elif output.numel():
                diff = (output - reference).abs().max().item()
                assert diff <= tolerance(case.dtype, world_size), (case, rank, diff)
    dtypes = len(FLOATS) + len(INTEGERS) - 1
    assert len(compared) == 5 * dtypes  # nothing was skipped by accident


def tolerance(dtype, world_size):
    """1e-5, or for the half types: an ulp of the largest partial sum for each addition."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.finfo(dtype).eps * 4 * world_size * world_size
    return 1e-5


def test_a_wrong_order_of_additions_would_be_seen():
    """The bit comparison can tell the ring's order from the plain one; 1e-5 could not."""
    ring, naive = (Case(c, torch.float32, "not divisible") for c in ("ring", "naive"))
    assert bits(expected(ring, 0, 5)) != bits(expected(naive, 0, 5))
    assert torch.allclose(expected(ring, 0, 5), expected(naive, 0, 5), atol=1e-5)


# What refuses to run


@pytest.mark.parametrize("transport", ["queue", "simulated"])
@pytest.mark.parametrize("shape", [(7, 2), ()])
def test_reduce_scatter_refuses_what_does_not_divide(transport, shape):
    with pytest.raises(RankFailed, match="cuts dimension 0 into 3 equal parts") as error:
        run(reduce_scatter, 3, torch.ones(shape), transport=transport)
    assert isinstance(error.value.__cause__, ValueError)


@pytest.mark.parametrize("src", [-1, 3])
def test_broadcast_refuses_a_root_that_is_no_rank(src):
    with pytest.raises(RankFailed, match=f"src is {src}, but ranks go from 0 to 2"):
        run(broadcast, 3, torch.ones(2), src, transport="simulated")


@pytest.mark.parametrize("transport", ["queue", "simulated"])
@pytest.mark.parametrize("collective", [naive_allreduce, ring_allreduce, allgather, broadcast])
@pytest.mark.parametrize(
    "odd_one", [torch.ones(9), torch.ones(4, dtype=torch.float64)], ids=["shape", "dtype"]
)
def test_ranks_that_disagree_are_told_so(transport, collective, odd_one):
    inputs = [torch.ones(4), odd_one, torch.ones(4)]
    with pytest.raises(MessageMismatch, match=r"rank \d expected .* from rank \d at step \d"):
        run(collective, 3, inputs=inputs, transport=transport)


# Schedules: bytes, steps, messages


def padded(numel, world_size):
    return -(-numel // world_size) * world_size


world_sizes = st.integers(1, 9)
dtypes = st.sampled_from([*FLOATS, *INTEGERS])


@settings(max_examples=60, deadline=None)
@given(world_sizes, st.integers(0, 60), dtypes)
def test_ring_bytes_and_steps(world_size, numel, dtype):
    trace = run(
        ring_allreduce, world_size, torch.ones(numel, dtype=dtype), transport="simulated"
    ).trace
    nbytes = padded(numel, world_size) * dtype.itemsize
    assert trace.bytes_sent == [2 * nbytes * (world_size - 1) // world_size] * world_size
    assert trace.bytes_received == trace.bytes_sent
    assert trace.messages_sent == [2 * (world_size - 1)] * world_size
    for rank, events in enumerate(trace.by_rank):
        assert {(e.kind, e.peer) for e in events} <= {
            ("send", (rank + 1) % world_size),
            ("recv", (rank - 1) % world_size),
        }
        chunk = padded(numel, world_size) // world_size
        sent = [e.offset // chunk for e in events if e.kind == "send" and chunk]
        order = [(rank - s) % world_size for s in range(world_size - 1)]
        order += [(rank + 1 - s) % world_size for s in range(world_size - 1)]
        assert sent == (order if chunk else [])
    assert trace.unreceived() == {}


@settings(max_examples=60, deadline=None)
@given(world_sizes, st.integers(0, 20), dtypes, st.data())
def test_broadcast_bytes_and_steps(world_size, numel, dtype, data):
    src = data.draw(st.integers(0, world_size - 1))
    inputs = [torch.full((numel,), r % 2, dtype=dtype) for r in range(world_size)]
    result = run(broadcast, world_size, src, inputs=inputs, transport=Simulated(alpha=1.0, beta=0))
    assert all(bits(output) == bits(inputs[src]) for output in result.results)
    depth = math.ceil(math.log2(world_size))
    assert sum(result.trace.messages_sent) == world_size - 1
    assert result.trace.messages_sent[src] == depth
    assert result.trace.bytes_sent[src] == depth * numel * dtype.itemsize
    assert result.trace.duration == depth
    assert result.trace.bytes_received == [
        0 if rank == src else numel * dtype.itemsize for rank in range(world_size)
    ]


@settings(max_examples=40, deadline=None)
@given(world_sizes, st.integers(0, 20), dtypes)
def test_allgather_and_reduce_scatter_bytes_and_steps(world_size, numel, dtype):
    gathered = run(
        allgather, world_size, torch.ones(numel, dtype=dtype), transport=Simulated(1.0, 0.0)
    ).trace
    rows = torch.ones(world_size, numel, dtype=dtype)
    scattered = run(reduce_scatter, world_size, rows, transport=Simulated(1.0, 0.0)).trace
    for trace in (gathered, scattered):
        assert trace.bytes_sent == [(world_size - 1) * numel * dtype.itemsize] * world_size
        assert trace.messages_sent == [world_size - 1] * world_size
        assert trace.duration == world_size - 1
        assert trace.unreceived() == {}


@settings(max_examples=40, deadline=None)
@given(world_sizes, st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_ring_is_naive_on_integers(world_size, numel, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = [
        torch.randint(-(2**62), 2**62, (numel,), generator=generator) for _ in range(world_size)
    ]
    ring = run(ring_allreduce, world_size, inputs=inputs, transport="simulated").results
    naive = run(naive_allreduce, world_size, inputs=inputs, transport="simulated").results
    assert all(bits(a) == bits(b) == bits(ring[0]) for a, b in zip(ring, naive, strict=True))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(0, 30), dtypes, st.data())
def test_any_sizes_give_the_same_trace_on_both_transports(world_size, numel, dtype, data):
    src = data.draw(st.integers(0, world_size - 1))
    x = torch.ones(numel, dtype=dtype)
    runs = [run(several, world_size, x, src, transport=t) for t in ("queue", "simulated")]
    assert runs[0].trace == runs[1].trace
    assert [*map(bits, runs[0].results)] == [*map(bits, runs[1].results)]


def test_one_hundred_runs_one_trace():
    x = torch.arange(10.0)
    first = run(several, 5, x, 2, transport="simulated")
    for _ in range(99):
        again = run(several, 5, x, 2, transport="simulated")
        assert again.trace == first.trace
        times = [(e.start, e.end) for e in again.trace]
        assert times == [(e.start, e.end) for e in first.trace]
        assert all(map(torch.equal, again.results, first.results))
    for _ in range(10):
        assert run(several, 5, x, 2).trace == first.trace
