"""Overlap: exact on marks made by hand, and what must hold for the model whatever the numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minidist import overlap, run
from minidist.cost import ring_allreduce_cost, tree_allreduce_cost
from minidist.ddp import DistributedDataParallel, compute_bucket_assignment_by_size
from minidist.overlap import BucketTimes, Layer, Ready, Step
from minidist.trace import Mark, Trace


def marks(text):
    """'forward 0, ready w 0 40 1.5': a mark's kind, name, bucket and bytes if any, its time."""
    for line in text.split(","):
        kind, *rest, at = line.split()
        name = rest.pop(0) if kind == "ready" else ""
        bucket, nbytes = map(int, rest or (-1, 0))
        yield Mark(0, kind, name, bucket if rest else None, nbytes, float(at))


def read(text):
    return overlap.steps(Trace([[]], [marks(text)]), 0)


ONE = (
    "forward 0, output 10, backward 11, ready c 0 4 12, launch 0 4 12.5, ready b 1 8 14,"
    "launch 1 8 15, done 0 4 16, ready a 2 2 20, launch 2 2 20, done 1 8 23, done 2 2 24,"
    "wait 21, finalize 30"
)


def test_a_step():
    (step,) = read(ONE)
    assert step == Step(
        0, 0.0, 10.0, 11.0,
        (Ready("c", 0, 4, 12.0), Ready("b", 1, 8, 14.0), Ready("a", 2, 2, 20.0)),
        (BucketTimes(0, 4, 12.5, 16.0), BucketTimes(1, 8, 15.0, 23.0),
         BucketTimes(2, 2, 20.0, 24.0)),
        21.0,
        30.0,
    )  # fmt: skip
    assert step.seconds == 30 and step.backward_end == 20
    assert step.communication == 11.5  # 12.5 to 24, the overlaps counted once
    assert step.hidden == 7.5 and step.exposed == 4  # until 20
    assert step.hidden_fraction == 7.5 / 11.5


def test_a_pause_between_two_buckets_is_no_communication():
    (step,) = read(
        "forward 0, output 1, backward 1, ready b 0 4 2, launch 0 4 2, done 0 4 3,"
        "ready a 1 4 9, launch 1 4 9, done 1 4 11, wait 9.5, finalize 12"
    )
    assert (step.communication, step.hidden, step.exposed) == (3, 1, 2)
    assert overlap.torch_times([step]) == {
        "avg_forward_compute_time": 1_000_000_000,
        "avg_backward_compute_time": 8_500_000_000,
        "avg_backward_comm_time": 10_000_000_000,  # 2 to 12, the pause and the copies included
        "avg_backward_compute_comm_overlap_time": 7_500_000_000,  # 2 to 9.5
    }


def test_a_bucket_inside_another_is_counted_once():
    """Some backends reduce several buckets at once, and the second may be done first."""
    (step,) = read(
        "forward 0, output 1, backward 1, ready b 0 9 2, launch 0 9 2, ready a 1 1 3, launch 1 1 3,"
        "ready c 2 1 6, launch 2 1 6, done 1 1 4, done 2 1 7, wait 7, done 0 9 10, finalize 10"
    )
    assert (step.communication, step.hidden) == (8, 4)


def test_torch_times_are_means():
    (one,) = read(ONE)
    (two,) = read(ONE.replace("launch 0 4 12.5", "launch 0 4 14.5"))
    assert overlap.torch_times([one, two]) == {
        "avg_forward_compute_time": 10_000_000_000,
        "avg_backward_compute_time": 11_000_000_000,
        "avg_backward_comm_time": 16_500_000_000,
        "avg_backward_compute_comm_overlap_time": 7_500_000_000,
    }
    assert set(overlap.torch_times([]).values()) == {0}


def test_an_end_that_is_marked_late_belongs_to_its_own_launch():
    step = "forward {0}, output {0}, backward {0}, ready a 0 4 {1}, launch 0 4 {1}, wait {1}, {d}"
    step += "finalize {2},"
    text = step.format(0, 1, 3, d="") + "done 0 4 3.5," + step.format(10, 11, 14, d="done 0 4 12,")
    first, second = read(text.rstrip(","))
    assert first.buckets == (BucketTimes(0, 4, 1.0, 3.0),)  # at the latest when the step is
    assert second.buckets == (BucketTimes(0, 4, 11.0, 12.0),)
    (third,) = read(step.format(0, 1, 3, d="").rstrip(","))  # its end was never marked
    assert third.buckets == (BucketTimes(0, 4, 1.0, 3.0),)


def test_which_forwards_are_steps():
    reduced = "backward 7, ready a 0 4 8, launch 0 4 8, done 0 4 9, wait 9, finalize 9"
    (step,) = read("forward 0, output 1, forward 5, output 6," + reduced)  # two share a backward
    assert step.forward == 5
    (step,) = read("forward 0, output 1, backward 2, forward 5, output 6," + reduced)  # no_sync
    assert (step.forward, step.backward) == (5, 7)
    (step,) = read("forward 5, output 6, forward 6.5," + reduced)  # an evaluation in between
    assert (step.forward, step.output) == (5, 6)
    assert read("forward 0, output 1, backward 2, ready a 0 4 8, launch 0 4 8") == []
    (step,) = read("forward 0, output 1, wait 8, launch 0 4 8, done 0 4 9, finalize 9")
    assert (step.backward, step.backward_end, step.hidden) == (1, 8, 0)  # a static graph's first


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(50, 60), torch.nn.Linear(60, 70)

    def forward(self, x):
        return self.second(self.first(x))


def train(mesh, count):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Net(), bucket_cap_mb=0.01, record=mesh.mark)
    for _ in range(count):
        ddp(torch.ones(4, 50)).sum().backward()
    torch.distributed.destroy_process_group()


def test_the_steps_of_a_run():
    trace = run(train, 2, 4, process_group="gloo").trace
    for rank in range(2):
        found = overlap.steps(trace, rank)
        assert len(found) == 4
        assert [len(step.buckets) for step in found] == [1, 2, 2, 2]  # rebuilt once
        for step in found:
            times = [step.forward, step.output, step.backward, *(r.at for r in step.ready)]
            times += [step.buckets[-1].launch, step.wait, step.finalize]
            assert times == sorted(times)
            names = {r.name: r.nbytes for r in step.ready}
            assert names["first.weight"] == 4 * 50 * 60 and len(names) == 4
            for bucket in step.buckets:
                assert bucket.nbytes == sum(
                    r.nbytes for r in step.ready if r.bucket == bucket.index
                )
                last = max(r.at for r in step.ready if r.bucket == bucket.index)
                assert last <= bucket.launch <= bucket.done <= step.finalize
            assert math.isclose(step.hidden + step.exposed, step.communication)
        model = overlap.layers(found[1:])
        assert [layer.name for layer in model] == [r.name for r in found[1].ready]
        assert all(layer.seconds > 0 for layer in model)


def test_layers_of_recorded_steps():
    (one,) = read(ONE)
    (two,) = read(ONE.replace("ready b 1 8 14", "ready b 1 8 17"))
    assert overlap.layers([one, two, two]) == [
        Layer("c", 1.0, 4), Layer("b", 5.0, 8), Layer("a", 3.0, 2)
    ]  # fmt: skip
    (other,) = read(ONE.replace("ready b 1 8 14", "ready d 1 8 14"))
    with pytest.raises(ValueError, match="different orders"):
        overlap.layers([one, other])
    with pytest.raises(ValueError, match="no steps"):
        overlap.layers([])


# The model

THREE = [Layer("c", 1.0, 10), Layer("b", 2.0, 20), Layer("a", 3.0, 30)]


def test_a_prediction_by_hand():
    """On two ranks an all-reduce of n bytes takes 2 alpha + n beta."""
    step = overlap.predict(THREE, 2, alpha=0.5, beta=0.1, cap=15, forward=4.0)
    assert step.ready == (Ready("c", 0, 10, 5.0), Ready("b", 0, 20, 7.0), Ready("a", 1, 30, 10.0))
    assert step.buckets == (BucketTimes(0, 30, 7.0, 11.0), BucketTimes(1, 30, 10.0, 15.0))
    assert (step.output, step.backward, step.backward_end, step.finalize) == (4, 4, 10, 15)
    assert (step.communication, step.hidden, step.exposed) == (8, 3, 5)
    first = overlap.predict(THREE, 2, 0.5, 0.1, cap=15, first_cap=1)
    assert [b.nbytes for b in first.buckets] == [10, 20, 30]
    assert [b.done for b in first.buckets] == [3, 6, 10]
    tree = overlap.predict(THREE, 4, 0.5, 0.1, cap=60, allreduce=tree_allreduce_cost)
    assert tree.finalize == 6 + 4 * (0.5 + 6)


def test_the_best_cap_by_hand():
    # At alpha 0.1 each layer by itself: done at 6 + 0.2 + 3. At alpha 10, one message is best.
    assert overlap.best_cap(THREE, 2, 0.1, 0.1) == 10
    assert overlap.best_cap(THREE, 2, 10.0, 0.1) == 60
    assert overlap.best_cap(THREE, 2, 0.0, 0.0) == 60  # of equals the fewest messages
    with pytest.raises(ValueError, match="no layers"):
        overlap.best_cap([], 2, 0.1, 0.1)


seconds = st.floats(0, 10, allow_subnormal=False)
models = st.lists(st.builds(Layer, st.just("w"), seconds, st.integers(1, 1000)), min_size=1)
few_bytes = st.builds(Layer, st.just("w"), seconds, st.integers(1, 50))
world_sizes = st.integers(1, 9)


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


@settings(deadline=None)
@given(models, world_sizes, seconds, seconds, st.integers(0, 3000), st.none() | st.integers(0, 99))
def test_what_holds_for_every_cap(model, world_size, alpha, beta, cap, first_cap):
    step = overlap.predict(model, world_size, alpha, beta, cap, first_cap=first_cap)
    compute = sum(layer.seconds for layer in model)
    costs = [ring_allreduce_cost(world_size, b.nbytes).time(alpha, beta) for b in step.buckets]
    assert [r.nbytes for r in step.ready] == [layer.nbytes for layer in model]
    assert close(step.backward_end, compute)
    assert close(step.hidden + step.exposed, step.communication)
    assert step.seconds >= step.backward_end + costs[-1]  # nothing hides the last bucket
    assert step.seconds <= compute + sum(costs) + 1e-9 * step.seconds
    assert close(step.exposed, step.seconds - step.backward_end)  # the step waits for just that
    free = 0.0
    for bucket, cost in zip(step.buckets, costs, strict=True):  # one after the other
        assert close(bucket.done, max(free, bucket.launch) + cost)
        free = bucket.done


@given(models, st.integers(0, 3000), st.none() | st.integers(0, 99))
def test_buckets_are_those_of_the_reducer(model, cap, first_cap):
    step = overlap.predict(model, 2, 1.0, 1.0, cap, first_cap=first_cap)
    tensors = [torch.empty(layer.nbytes, dtype=torch.uint8, device="meta") for layer in model]
    limits = [cap] if first_cap is None else [first_cap, cap]
    buckets, _ = compute_bucket_assignment_by_size(tensors, limits)
    assert [r.bucket for r in step.ready] == [i for i, b in enumerate(buckets) for _ in b]


@settings(deadline=None)
@given(models, world_sizes, seconds, seconds)
def test_the_two_ends(model, world_size, alpha, beta):
    each = overlap.predict(model, world_size, alpha, beta, 0)
    assert len(each.buckets) == len(model)  # one all-reduce per parameter
    one = overlap.predict(model, world_size, alpha, beta, float("inf"))
    (bucket,) = one.buckets
    assert bucket.launch == one.backward_end and one.hidden == 0  # no overlap
    cost = ring_allreduce_cost(world_size, sum(layer.nbytes for layer in model))
    assert close(one.seconds, one.backward_end + cost.time(alpha, beta))


@settings(deadline=None, max_examples=50)
@given(
    st.lists(few_bytes, min_size=1, max_size=9),
    world_sizes,
    seconds,
    seconds,
    st.none() | st.integers(0, 99),
)
def test_no_cap_beats_the_best(model, world_size, alpha, beta, first_cap):
    def took(cap):
        return overlap.predict(model, world_size, alpha, beta, cap, first_cap=first_cap).seconds

    best = overlap.best_cap(model, world_size, alpha, beta, first_cap=first_cap)
    assert took(best) == min(took(cap) for cap in range(sum(layer.nbytes for layer in model) + 1))


@given(models, world_sizes, seconds)
def test_without_a_price_per_message_small_buckets_are_never_worse(model, world_size, beta):
    each = overlap.predict(model, world_size, 0.0, beta, 0)
    best = overlap.best_cap(model, world_size, 0.0, beta)
    assert close(each.seconds, overlap.predict(model, world_size, 0.0, beta, best).seconds)


@given(models, world_sizes)
def test_a_free_network_costs_nothing(model, world_size):
    assume(all(layer.seconds for layer in model))
    step = overlap.predict(model, world_size, 0.0, 0.0, 0)
    assert step.seconds == step.backward_end and step.exposed == 0
