"""The in-place allreduces for wires on which every rank reaches every other."""

from __future__ import annotations

import pytest
import torch
from cases import FLOATS, INTEGERS, WORLD_SIZES, bits

from minidist import MessageMismatch, run
from minidist.collectives.direct import one_shot_allreduce_, two_shot_allreduce_

on_both = pytest.mark.parametrize("allreduce_", [one_shot_allreduce_, two_shot_allreduce_])


def inputs(world_size):
    def numbers(dtype, rank, n):
        g = torch.Generator().manual_seed(rank)
        if dtype == torch.bool:
            return torch.rand(n, generator=g) < 0.3
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(n, generator=g).to(dtype)
        return torch.randint(-100, 100, (n,), generator=g).to(dtype)

    for dtype in (*FLOATS, *INTEGERS):
        yield [numbers(dtype, rank, 1003) for rank in range(world_size)]
    yield [numbers(torch.float32, rank, 200_003) for rank in range(world_size)]
    yield [numbers(torch.float32, rank, 35).view(5, 7).t() for rank in range(world_size)]
    yield [numbers(torch.float32, rank, 40).view(5, 8)[:, 1::2] for rank in range(world_size)]
    yield [numbers(torch.float64, rank, 1)[0] for rank in range(world_size)]
    yield [torch.empty(0, 3) for _ in range(world_size)]
    yield [torch.arange(2) * rank for rank in range(world_size)]  # fewer elements than ranks


@on_both
@pytest.mark.parametrize("transport", ["queue", "shared_memory", "simulated"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_sums(allreduce_, transport, world_size):
    def fn(mesh, *tensors):
        for x in tensors:
            allreduce_(mesh, x)
        return tensors

    per_rank = [*zip(*inputs(world_size), strict=True)]
    results = run(
        lambda mesh, tensors: fn(mesh, *(x.clone() for x in tensors)),
        world_size,
        inputs=per_rank,
        transport=transport,
    ).results
    for parts, *outputs in zip(zip(*per_rank, strict=True), *results, strict=True):
        assert all(bits(output) == bits(outputs[0]) for output in outputs)
        dtype = parts[0].dtype
        expected = parts[0].clone()
        for part in parts[1:]:
            expected += part
        if dtype in INTEGERS:
            assert torch.equal(outputs[0], expected)
        else:
            tolerance = 8 * world_size * torch.finfo(dtype).eps * world_size
            assert torch.allclose(outputs[0], expected, rtol=0, atol=max(1e-5, tolerance))


def test_bytes():
    for allreduce_, factor in ((one_shot_allreduce_, 3), (two_shot_allreduce_, 2 * 3 / 4)):
        trace = run(allreduce_, 4, torch.ones(1000), transport="simulated").trace
        assert trace.bytes_sent == [factor * 4000] * 4
        assert trace.unreceived() == {}


def test_strided_neighbours_are_left_alone():
    def fn(mesh):
        whole = torch.full((6, 4), float(mesh.rank))
        two_shot_allreduce_(mesh, whole[:, 1])
        one_shot_allreduce_(mesh, whole[:, 2])
        return whole.tolist()

    rows = run(fn, 3, transport="simulated").results[2]
    assert rows == [[2.0, 3.0, 3.0, 2.0]] * 6


@on_both
def test_ranks_that_disagree(allreduce_):
    with pytest.raises(MessageMismatch):
        run(allreduce_, 3, inputs=[torch.ones(6), torch.ones(9), torch.ones(6)])
