"""The comparison with gloo itself: it finds what differs, and names gloo's order of additions."""

from __future__ import annotations

import functools

import pytest
import torch

from minidist import PRIMITIVES, run
from minidist.data import DigitsNet, digits_gradient, digits_shard
from minidist.verify import (
    compare,
    gloo_order_sum,
    gloo_reference,
    max_abs_diff,
    ring_order_sum,
    verify_against_gloo,
)


def inputs(world_size, numel, dtype=torch.float32):
    generator = torch.Generator().manual_seed(numel)
    return [torch.randn(numel, generator=generator).to(dtype) for _ in range(world_size)]


@pytest.mark.parametrize("op", PRIMITIVES)
def test_we_match_gloo(op):
    match, diff = verify_against_gloo(op, 3, inputs(3, 12))
    assert match and diff <= 1e-5


def test_a_difference_is_seen(monkeypatch):
    monkeypatch.setattr("minidist.verify.ring_allreduce", lambda mesh, x: x * mesh.world_size)
    match, diff = verify_against_gloo("allreduce", 2, inputs(2, 12))
    assert not match and diff > 0.1


def test_an_unknown_primitive_is_refused():
    with pytest.raises(Exception, match="alltoall"):
        verify_against_gloo("alltoall", 2, inputs(2, 12))


def test_differences():
    one, nan = torch.ones(2), torch.tensor([1.0, float("nan")])
    assert max_abs_diff([one], [one]) == 0.0
    assert max_abs_diff([one, one], [one, one + 2]) == 2.0
    for other in (nan, one.double(), torch.ones(2, 1)):
        assert max_abs_diff([one], [other]) == float("inf")
    assert max_abs_diff([torch.empty(0)], [torch.empty(0)]) == 0.0
    assert max_abs_diff([torch.tensor([1 + 1j])], [torch.tensor([1 + 4j])]) == 3.0
    assert max_abs_diff([nan], [nan.clone()]) == 0.0
    infinite = torch.tensor([float("inf"), -float("inf")])
    assert max_abs_diff([infinite], [infinite.clone()]) == 0.0
    assert max_abs_diff([infinite], [-infinite]) == max_abs_diff([infinite], [one]) == float("inf")
    large = torch.tensor([2**60])  # float64 does not tell it from its neighbour
    assert max_abs_diff([large], [large + 1]) == 1.0


def test_gloo_is_given_contiguous_copies():
    strided = [torch.arange(8.0)[::2] + rank for rank in range(3)]
    assert gloo_reference("allreduce", 3, strided)[0].tolist() == [3.0, 9.0, 15.0, 21.0]


# The order in which gloo adds, to the last bit. The sizes: fewer elements than segments, around
# one segment of 1 MiB, and more than one per chunk.
@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_orders_of_addition(world_size):
    sizes = [1, 2, 7, 64, 1003, 300_007, 1_500_000]
    dtypes = [torch.float32, torch.float64, torch.bfloat16]
    cases = [(n, d) for n in sizes for d in dtypes if n < 10**6 or d == torch.float32]
    tensors = [[inputs(world_size, *case)[rank] for case in cases] for rank in range(world_size)]

    def on_gloo(mesh, mine):
        for x in mine:
            torch.distributed.all_reduce(x)
        return mine

    gloo = run(on_gloo, world_size, inputs=tensors, process_group="gloo").results[0]
    differs = 0
    for i, result in enumerate(gloo):
        per_rank = [tensors[rank][i] for rank in range(world_size)]
        assert torch.equal(result, gloo_order_sum(per_rank)), cases[i]
        differs += not torch.equal(result, ring_order_sum(per_rank))
    assert (differs > 0) == (world_size > 2)  # two numbers have one sum; three have several


@functools.cache
def compared(op, world_size):
    return compare(op, world_size)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("op", PRIMITIVES)
def test_on_real_gradients(op, world_size):
    row = compared(op, world_size)
    assert row.match and row.bytes_agree
    assert len(row.sent) == world_size
    assert row.bit_equal or op in ("allreduce", "reduce_scatter")
    gradient = digits_gradient(0, world_size)
    assert row.nbytes == 4 * gradient.numel()
    if op == "allreduce":
        assert row.sent == [2 * (row.nbytes + row.padding) * (world_size - 1) // world_size] * (
            world_size
        )


def test_the_digits():
    shards = [digits_shard(rank, 3) for rank in range(3)]
    assert sum(len(images) for images, _ in shards) == 1797
    assert shards[0][0].shape[1:] == (1, 8, 8)
    assert shards[0][0].min() >= 0 and shards[0][0].max() == 1
    state = torch.random.get_rng_state()
    first, second = digits_gradient(0, 3), digits_gradient(1, 3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, digits_gradient(0, 3))
    assert not torch.equal(first, second) and first.isfinite().all() and first.abs().max() > 0
    assert first.numel() == sum(p.numel() for p in DigitsNet().parameters())
