"""The further allreduce algorithms: sums, prices, choice, groups, and clusters with nodes."""

from __future__ import annotations

import math

import pytest
import torch
from cases import bits
from hypothesis import given, settings
from hypothesis import strategies as st

from minidist import MessageMismatch, RankFailed, Simulated, cost, ring_allreduce, run, verify
from minidist.collectives import (
    allreduce,
    group,
    halving_doubling_allreduce,
    hierarchical_allreduce,
    measured_link,
    reduce,
    ring_allreduce_,
    tree_allreduce,
    two_shot_allreduce,
)
from minidist.collectives.auto import ALGORITHMS
from minidist.transports.simulated import nodes, steps

ALPHA, BETA = 3e-6, 1 / 7e9


def by_nodes(node_size):
    return lambda mesh, tensor: hierarchical_allreduce(mesh, tensor, node_size)


def in_place(mesh, tensor):
    result = tensor.clone()
    ring_allreduce_(mesh, result)
    return result


def backwards(mesh, tensor):
    return ring_allreduce(group(mesh, range(mesh.world_size - 1, -1, -1)), tensor)


ALL = {
    "tree": tree_allreduce,
    "halving_doubling": halving_doubling_allreduce,
    "two_shot": two_shot_allreduce,
    "in place": in_place,
    "backwards": backwards,
    **{f"nodes of {g}": by_nodes(g) for g in (1, 2, 3, 4, 100)},
    **{f"auto, {name}": lambda m, x, name=name: allreduce(m, x, name) for name in ALGORITHMS},
    "auto": allreduce,
}


def integers(world_size, shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    bound = 2**62
    return [torch.randint(-bound, bound, shape, generator=generator) for _ in range(world_size)]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None)
@given(world_size=st.integers(1, 17), numel=st.integers(0, 40), seed=st.integers(0, 9))
def test_the_sum_of_integers_on_any_number_of_ranks(name, world_size, numel, seed):
    inputs = integers(world_size, (numel,), seed)
    before = [x.clone() for x in inputs]
    ran = run(ALL[name], world_size, inputs=inputs, transport="simulated")
    assert all(torch.equal(result, sum(before)) for result in ran.results)
    assert all(map(torch.equal, inputs, before))
    assert ran.trace.unreceived() == {}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", ["0-dim", "transposed", "every second"])
def test_any_shape_and_strides(name, shape):
    view = {
        "0-dim": lambda x: x[0, 0],
        "transposed": lambda x: x.t(),
        "every second": lambda x: x[:, 1::2],
    }[shape]
    inputs = [view(x) for x in integers(5, (3, 8))]
    if name == "in place":  # its caller makes it contiguous
        inputs = [x.contiguous() for x in inputs]
    ran = run(ALL[name], 5, inputs=inputs, transport="simulated")
    for result in ran.results:
        assert result.shape == inputs[0].shape and torch.equal(result, sum(inputs))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 7, 8])
def test_all_ranks_have_the_same_bits(name, world_size):
    inputs = [torch.randn(101, generator=torch.Generator().manual_seed(r)) for r in range(8)]
    results = run(ALL[name], world_size, inputs=inputs[:world_size], transport="simulated").results
    assert {bits(result) for result in results} == {bits(results[0])}
    assert torch.allclose(results[0], sum(inputs[:world_size]), atol=1e-5)


@pytest.mark.parametrize("name", ["tree", "halving_doubling", "two_shot", "nodes of 2", "auto"])
def test_on_real_processes(name):
    inputs = integers(5, (1003,))
    ran = run(ALL[name], 5, inputs=inputs)
    assert all(torch.equal(result, sum(inputs)) for result in ran.results)
    if name != "auto":  # which measures, and so depends on the wire
        assert ran.trace == run(ALL[name], 5, inputs=inputs, transport="simulated").trace


@pytest.mark.parametrize("name", ["tree", "halving_doubling", "two_shot", "nodes of 2"])
def test_ranks_that_disagree_are_told_so(name):
    inputs = [torch.ones(8), torch.ones(8), torch.ones(16), torch.ones(8)]
    with pytest.raises(MessageMismatch, match=r"rank \d expected .* from rank \d at step \d"):
        run(ALL[name], 4, inputs=inputs, transport="simulated")


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_reduce_to_every_root(world_size):
    for dst in range(world_size):
        inputs = integers(world_size, (7,))
        ran = run(lambda m, x, dst=dst: reduce(m, x, dst), world_size, inputs=inputs)
        assert torch.equal(ran.results[dst], sum(inputs))
        assert ran.trace.bytes_sent == [56 * (rank != dst) for rank in range(world_size)]


# Gloo's bits


def both_sums(mesh, cases):
    """Our ring in gloo's order and gloo, on the same numbers."""
    out = []
    for dtype, numel in cases:
        x = torch.randn(numel, generator=torch.Generator().manual_seed(mesh.rank)).to(dtype)
        gloo = x.clone()
        torch.distributed.all_reduce(gloo)
        out.append((in_place(mesh, x), gloo, ring_allreduce(mesh, x)))
    return out


@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_the_ring_in_place_has_gloos_bits(world_size):
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    sizes = (0, 1, 2, 3, 7, 64, 1003, 65_537, 1_500_001)
    cases = [(dtype, numel) for dtype in dtypes for numel in sizes]
    ran = run(both_sums, world_size, cases, process_group="gloo").results
    other_order = 0
    for results in ran:
        for case, (ours, gloo, to_the_right) in zip(cases, results, strict=True):
            assert bits(ours) == bits(gloo), case
            other_order += bits(to_the_right) != bits(gloo)
    assert bool(other_order) == (world_size > 2)  # the comparison can tell the two rings apart


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 100))
def test_gloos_order_as_verify_describes_it(world_size, numel):
    generator = torch.Generator().manual_seed(numel)
    inputs = [torch.randn(numel, generator=generator) for _ in range(world_size)]
    results = run(in_place, world_size, inputs=inputs, transport="simulated").results
    assert all(bits(result) == bits(verify.gloo_order_sum(inputs)) for result in results)


# Groups


def test_a_group_translates_numbers_and_leaves_the_others_alone():
    def fn(mesh):
        if mesh.rank not in (5, 1, 4):
            return None
        part = group(mesh, [5, 1, 4])
        result = ring_allreduce(part, torch.tensor([mesh.rank]))
        assert part.step == mesh.step == 4 and part.events is mesh.events
        return part.rank, part.world_size, result.item()

    ran = run(fn, 6, transport="simulated")
    assert ran.results == [None, (1, 3, 10), None, None, (2, 3, 10), (0, 3, 10)]
    assert {(e.rank, e.peer) for e in ran.trace if e.kind == "send"} == {(5, 1), (1, 4), (4, 5)}


@pytest.mark.parametrize("ranks", [[0, 0], [0, 7], [-1, 0], [1, 2]])
def test_a_group_that_cannot_be(ranks):
    with pytest.raises(RankFailed) as error:
        run(lambda mesh: mesh.rank or group(mesh, ranks), 3, transport="simulated")
    assert isinstance(error.value.__cause__, ValueError)


def test_a_group_knows_only_its_own_ranks():
    with pytest.raises(RankFailed, match="ranks go from 0 to 1"):
        run(lambda mesh: group(mesh, [0, 1]).send(2, torch.ones(1)) if mesh.rank == 0 else None, 3)


# Prices


PRICED = {
    "tree": cost.tree_allreduce_cost,
    "halving_doubling": cost.halving_doubling_allreduce_cost,
    "two_shot": cost.two_shot_allreduce_cost,
    "in place": cost.ring_allreduce_cost,
    "auto, two_shot_": cost.two_shot_allreduce_in_place_cost,
    "auto, one_shot_": cost.one_shot_allreduce_in_place_cost,
    "auto, naive": cost.naive_allreduce_cost,
}


def simulated(name, world_size, nbytes, **model):
    x = torch.empty(nbytes, dtype=torch.uint8, device="meta")
    return run(ALL[name], world_size, x, transport=Simulated(**model), timeout=200).trace


@pytest.mark.parametrize("name", PRICED)
@pytest.mark.parametrize("world_size", [*range(1, 18), 31, 32, 33, 64])
def test_closed_forms_are_what_runs_take(name, world_size):
    size = 1 << (world_size.bit_length() - 1)
    nbytes = 4 * world_size * size  # divides whichever way it is cut
    trace = simulated(name, world_size, nbytes, alpha=ALPHA, beta=BETA)
    form = PRICED[name](world_size, nbytes)
    if name == "halving_doubling" and world_size > size:
        # Ranks that need not fold run ahead and are in the way of others now and then.
        assert 1 - 1e-9 <= trace.duration / form.time(ALPHA, BETA) < 1.25
        return
    assert math.isclose(trace.duration, form.time(ALPHA, BETA), rel_tol=1e-9)
    assert steps(trace) == form.steps
    if name in ("two_shot", "in place") or (name == "halving_doubling" and world_size == size):
        # Nobody sends a byte too many.
        bound = cost.allreduce_lower_bound(world_size, nbytes)
        assert trace.bytes_sent == [bound] * world_size


@pytest.mark.parametrize(
    "world_size, node_size", [(8, 4), (12, 4), (16, 2), (9, 3), (4, 4), (5, 1)]
)
def test_price_of_a_hierarchy(world_size, node_size):
    inside, across = (1e-6, 1e-11), (2e-5, 1e-9)
    nbytes = 64 * world_size * node_size
    trace = simulated(
        f"nodes of {node_size}", world_size, nbytes, link=nodes(node_size, inside, across)
    )
    near, far = cost.hierarchical_allreduce_cost(world_size, nbytes, node_size)
    expected = near.time(*inside) + far.time(*across)
    assert math.isclose(trace.duration, expected, rel_tol=1e-9)


def test_a_hierarchy_pays_where_nodes_are_far_apart():
    far = nodes(8, inside=(1e-6, 1e-11), across=(5e-5, 1e-9))
    flat, tiered = (
        simulated(name, 64, 1 << 20, link=far).duration for name in ("in place", "nodes of 8")
    )
    assert tiered < flat / 4
    near = nodes(8, inside=(1e-6, 1e-11), across=(1e-6, 1e-11))
    assert simulated("in place", 64, 1 << 30, link=near).duration < (
        simulated("nodes of 8", 64, 1 << 30, link=near).duration
    )


ALL["nodes of 8"] = by_nodes(8)


def test_a_straggler_holds_up_a_ring_for_as_long_as_it_is_late():
    on_time = simulated("in place", 8, 1 << 20, alpha=ALPHA, beta=BETA).duration
    late = simulated("in place", 8, 1 << 20, alpha=ALPHA, beta=BETA, late={3: 0.01}).duration
    assert math.isclose(late, on_time + 0.01, rel_tol=1e-9)
    # A slow link holds it up in every step.
    slow = simulated(
        "in place", 8, 1 << 20, link=lambda src, dst: (ALPHA, 10 * BETA if src == 3 else BETA)
    ).duration
    assert slow > 8 * on_time


@pytest.mark.parametrize("name", ["tree", "halving_doubling"])
def test_thousands_of_ranks(name):
    trace = simulated(name, 2048, 2048 * 4, alpha=ALPHA, beta=BETA)
    form = PRICED[name](2048, 2048 * 4)
    assert math.isclose(trace.duration, form.time(ALPHA, BETA), rel_tol=1e-9)


# The choice


def test_a_choice_says_why():
    choice = cost.choose(12, 1 << 20, 1e-5, 1e-9)
    assert choice.algorithm == min(choice.seconds, key=choice.seconds.get) == "ring"
    assert str(choice).startswith(
        "ring: 1,048,576 bytes on 12 ranks, at alpha = 10 us and 1 GB/s, take ring 2142"
    )
    assert [c.algorithm for c in cost.crossover_surface([12], [1, 1 << 30], 1e-5, 1e-9)[0]] == [
        "halving_doubling",
        "ring",
    ]


@given(st.integers(2, 300), st.floats(1e-7, 1e-3), st.floats(1e-11, 1e-7))
def test_the_crossover_is_where_both_take_as_long(world_size, alpha, beta):
    nbytes = cost.crossover("tree", "ring", world_size, alpha, beta)
    tree, ring = cost.tree_allreduce_cost, cost.ring_allreduce_cost
    if nbytes is None:
        assert world_size == 2 or tree(world_size, 1).steps >= ring(world_size, 1).steps
        return
    times = [form(world_size, nbytes).time(alpha, beta) for form in (tree, ring)]
    assert math.isclose(*times, rel_tol=1e-9)
    less, more = nbytes / 2, nbytes * 2
    assert tree(world_size, less).time(alpha, beta) < ring(world_size, less).time(alpha, beta)
    assert tree(world_size, more).time(alpha, beta) > ring(world_size, more).time(alpha, beta)


def test_the_measured_link_is_the_simulated_one():
    ran = run(measured_link, 3, transport=Simulated(alpha=ALPHA, beta=BETA))
    for alpha, beta, gap in ran.results:
        assert math.isclose(alpha, ALPHA, rel_tol=1e-9) and math.isclose(beta, BETA, rel_tol=1e-6)
        assert math.isclose(gap, ALPHA, rel_tol=1e-9)


def test_on_a_wire_without_buffers_auto_never_sends_to_everybody_at_once():
    wire = Simulated(alpha=ALPHA, beta=BETA, rendezvous=True)
    fn = lambda mesh: (allreduce(mesh, torch.ones(5)), measured_link(mesh))  # noqa: E731
    for total, (_, _, gap) in run(fn, 2, transport=wire).results:
        assert total.tolist() == [2.0] * 5 and gap is None
    assert cost.choose(2, 20, ALPHA, BETA).algorithm == "ring"
    assert cost.choose(2, 20, ALPHA, BETA, gap=ALPHA).algorithm == "one_shot_"


def test_where_waiting_is_what_costs_direct_is_faster():
    """4 ranks, a message waited for 20 us, one in a row 2 us: by size one shot, then two."""
    link = (20e-6, 1e-9, 2e-6)
    names = [cost.choose(4, nbytes, *link).algorithm for nbytes in (1 << 10, 1 << 20)]
    assert names == ["one_shot_", "two_shot_"]
    one_shot = cost.ALLREDUCE_COSTS["one_shot_"](4, 1 << 10).time(*link)
    assert math.isclose(one_shot, 20e-6 + 2 * 2e-6 + 3 * 1024e-9)
    assert ", gap = 2 us and 1 GB/s, take one_shot_ 27.07 us" in str(cost.choose(4, 1 << 10, *link))


def test_the_link_is_measured_once_and_all_ranks_know_the_same():
    def fn(mesh):
        first = measured_link(mesh)
        messages = len(mesh.events)
        return first, measured_link(mesh) is first and len(mesh.events) == messages

    for link, once in (results := run(fn, 3).results):
        assert link == results[0][0] and once
        assert 0 < link[0] < 1 and 0 <= link[1] < 1e-6 and 0 <= link[2] <= link[0]


def test_auto_takes_what_choose_says():
    def kinds(nbytes):
        x = torch.empty(nbytes, dtype=torch.uint8, device="meta")
        fn = lambda mesh: allreduce(mesh, x, link=(1e-5, 1e-9, None))  # noqa: E731
        return run(fn, 12, transport="simulated").trace

    small, large = kinds(100), kinds(1 << 24)
    assert small == simulated("halving_doubling", 12, 100)
    assert max(large.bytes_sent) == 2 * 11 * math.ceil((1 << 24) / 12)


def test_an_algorithm_that_does_not_exist():
    with pytest.raises(RankFailed, match="'rnig' is none of auto, ring, tree"):
        run(lambda mesh: allreduce(mesh, torch.ones(1), "rnig"), 2, transport="simulated")
