"""The closed forms: held against the simulated clock, and against each other."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist import (
    Simulated,
    allgather,
    broadcast,
    cost,
    naive_allreduce,
    reduce_scatter,
    ring_allreduce,
    run,
)

FORMS = {
    naive_allreduce: cost.naive_allreduce_cost,
    ring_allreduce: cost.ring_allreduce_cost,
    broadcast: cost.broadcast_cost,
    allgather: cost.allgather_cost,
    reduce_scatter: cost.reduce_scatter_cost,
}
USES_CHUNKS = (ring_allreduce, reduce_scatter)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(FORMS)),
    st.integers(1, 17),
    st.integers(0, 100),
    st.floats(0, 1, allow_subnormal=False),
    st.floats(0, 1, allow_subnormal=False),
)
def test_forms_are_what_the_clock_says(collective, world_size, numel, alpha, beta):
    nbytes = cost.padded_nbytes(world_size, numel, 4) if collective in USES_CHUNKS else 4 * numel
    x = torch.empty(nbytes // 4 if collective is reduce_scatter else numel, device="meta")
    trace = run(collective, world_size, x, transport=Simulated(alpha, beta)).trace
    formula = FORMS[collective](world_size, nbytes).time(alpha, beta)
    assert math.isclose(trace.duration, formula, rel_tol=1e-9, abs_tol=1e-15)


@pytest.mark.parametrize(
    ("n", "depth"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (512, 9)]
)
def test_depth_of_the_tree(n, depth):
    assert cost.broadcast_cost(n, 10).steps == depth


@given(st.integers(1, 600), st.integers(0, 10**9), st.sampled_from([1, 2, 4, 8]))
def test_padding(world_size, numel, itemsize):
    padded = cost.padded_nbytes(world_size, numel, itemsize)
    assert padded % (world_size * itemsize) == 0
    assert 0 <= padded - numel * itemsize < world_size * itemsize


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(0, 50))
def test_the_ring_meets_the_lower_bound(world_size, chunk):
    x = torch.ones(chunk * world_size)
    sent = run(ring_allreduce, world_size, x, transport="simulated").trace.bytes_sent
    bound = cost.allreduce_lower_bound(world_size, 4 * x.numel())
    assert sent == pytest.approx([bound] * world_size)


def test_bandwidths():
    """One gigabyte at one gigabyte per second: the bus bandwidth is the link's, whatever N is."""
    for n in (2, 4, 8):
        x = torch.empty(250_000_000, device="meta")
        wire = Simulated(alpha=0.0, beta=1e-9)
        trace = run(ring_allreduce, n, x, transport=wire).trace
        assert cost.algbw(trace, 1e9) == pytest.approx(1e9 * n / (2 * (n - 1)))
        assert cost.busbw("allreduce", trace, 1e9) == pytest.approx(1e9)
        trace = run(allgather, n, x, transport=wire).trace
        assert cost.busbw("allgather", trace, n * 1e9) == pytest.approx(1e9)
        trace = run(reduce_scatter, n, x, transport=wire).trace
        assert cost.busbw("reduce_scatter", trace, 1e9) == pytest.approx(1e9)
        trace = run(broadcast, 2, x, transport=wire).trace
        assert cost.busbw("broadcast", trace, 1e9) == pytest.approx(1e9)
