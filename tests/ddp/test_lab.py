"""The laboratory of the chapters: it sees what happens, of PyTorch's DDP and of ours."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from minidist import run
from minidist.data import DigitsNet
from minidist.ddp import DistributedDataParallel
from minidist.ddp.lab import (
    InOrder,
    all_reduced,
    averaged,
    averages,
    coalesced,
    ignored,
    layout,
    outcome,
    profiled,
    train,
    two_forwards,
    watch,
    wrapping,
)

BOTH = pytest.mark.parametrize("ddp_class", [TorchDDP, DistributedDataParallel])


def batches(steps, world_size=2):
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(4 * steps, 1, 8, 8, generator=generator),
            torch.randint(10, (4 * steps,), generator=generator),
        )
        for _ in range(world_size)
    ]


def on_gloo(fn, *args, inputs):
    return run(fn, len(inputs), *args, inputs=inputs, process_group="gloo")


@BOTH
def test_watch_sees_every_collective_of_the_default_group(ddp_class):
    phases = on_gloo(watch, ddp_class, DigitsNet, 2, inputs=batches(2)).results[0]
    assert [phase.when for phase in phases] == [
        "set-up", "forward 0", "backward 0", "forward 1", "backward 1"
    ]  # fmt: skip
    said = {p.when: [str(call) for call in p.calls if not call.side] for p in phases}
    assert said["set-up"][-2:] == ["broadcast 10122 float32", "broadcast 2 int64"]
    assert said["forward 0"][-2:] == ["broadcast 96 float32", "broadcast 2 int64"]
    assert said["backward 0"] == said["backward 1"] == ["allreduce 10026 float32"]


def test_train_makes_the_ranks_agree_and_both_classes_too():
    theirs = on_gloo(train, TorchDDP, DigitsNet, 3, inputs=batches(3)).results
    ours = on_gloo(train, DistributedDataParallel, DigitsNet, 3, inputs=batches(3)).results
    assert list(theirs[0]) == list(DigitsNet().state_dict())
    for state in (theirs[1], ours[0], ours[1]):
        for name, tensor in theirs[0].items():
            if "running" not in name:  # a rank's own batch is in there
                assert torch.equal(tensor, state[name]), name


def test_ours_marks_what_it_does():
    marks = on_gloo(watch, DistributedDataParallel, DigitsNet, 1, inputs=batches(1)).trace.marks
    assert [mark.kind for mark in marks[0]].count("ready") == len(list(DigitsNet().parameters()))
    assert on_gloo(watch, TorchDDP, DigitsNet, 1, inputs=batches(1)).trace.marks == [[], []]


@BOTH
def test_profiled_finds_the_steps_and_the_collectives_in_them(ddp_class):
    slices = on_gloo(profiled, ddp_class, DigitsNet, 2, inputs=batches(4)).results[1]
    names = [piece.name for piece in slices]
    assert [n for n in names if ":" not in n] == ["forward", "backward", "optimizer"] * 2
    assert names.count("gloo:all_reduce") == 2 and names.count("gloo:broadcast") >= 4
    assert slices[0].start == 0 and all(piece.start <= piece.end for piece in slices)


@BOTH
def test_layout_gives_the_rebuilt_buckets(ddp_class):
    caps = {"bucket_cap_mb": 0.001}
    built = on_gloo(layout, ddp_class, DigitsNet, 3, caps, inputs=batches(3))
    assert built.results[0] == built.results[1]
    assert sorted(i for bucket in built.results[0] for i in bucket) == [*range(10)]
    assert len(built.results[0]) > 1


@BOTH
def test_outcome_is_the_error_of_each_rank(ddp_class):
    def frozen():
        return nn.Flatten().requires_grad_(False)

    said = on_gloo(outcome, watch, ddp_class, frozen, 1, inputs=batches(1)).results
    assert all("RuntimeError: DistributedDataParallel is not needed" in text for text in said)
    assert (
        on_gloo(outcome, watch, ddp_class, DigitsNet, 1, inputs=batches(1)).results == ["fine"] * 2
    )


@BOTH
@pytest.mark.parametrize("steps", [1, 2])
def test_averaged_is_the_mean_of_the_gradients_given(ddp_class, steps):
    gradients = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 8.0])]
    results = on_gloo(averaged, ddp_class, steps, inputs=gradients).results
    assert [result.tolist() for result in results] == [[2.0, 5.0]] * 2


@BOTH
def test_wrapping_makes_the_parameters_rank_zeros(ddp_class):
    results = run(wrapping, 2, ddp_class, DigitsNet, process_group="gloo").results
    (before0, after0, calls), (before1, after1, _) = results
    assert torch.equal(before0, after0) and torch.equal(after0, after1)
    assert not torch.equal(before1, after1)
    assert [str(call) for call in calls if call.op == "broadcast"][-1] == "broadcast 2 int64"


def test_coalesced_broadcasts_ask_for_the_same():
    theirs, ours, right = run(coalesced, 2, [10] * 7, 100, process_group="gloo").results[1]
    assert [call.numel for call in theirs] == [30, 30, 10]
    assert theirs == ours and right


def test_an_ignored_parameter_is_left_alone_by_ours():
    (scale0, grad0), (scale1, grad1) = run(
        ignored, 2, DistributedDataParallel, process_group="gloo"
    ).results
    assert scale0 != scale1 and grad0 != grad1


@BOTH
def test_all_reduced_is_per_variant_and_backward(ddp_class):
    inputs = [(torch.randn(4, 512), torch.zeros(4, dtype=torch.long))] * 2
    variants = [{}, {"bucket_cap_mb": 2}]
    default, capped = on_gloo(all_reduced, ddp_class, three, 2, variants, inputs=inputs).results[0]
    mib = 2**18  # elements of 4 bytes
    assert [[call.numel / mib for call in step] for step in default] == [[3], [1, 2]]
    assert [[call.numel / mib for call in step] for step in capped] == [[3], [2, 1]]


def three():
    return InOrder([2, 0, 1])


@BOTH
def test_layers_are_used_in_the_order_given(ddp_class):
    inputs = [(torch.randn(6, 512), torch.zeros(6, dtype=torch.long))] * 2
    caps = {"bucket_cap_mb": 0.1}
    built = on_gloo(layout, ddp_class, three, 3, caps, inputs=inputs)
    assert built.results == [[[1], [0], [2]]] * 2


def test_averages_are_equal_for_two_ranks_and_not_for_three():
    for world_size, equal in ((2, True), (3, False)):
        gradients = [torch.linspace(0.1, 1 + r, 1000) for r in range(world_size)]
        ways = on_gloo(averages, inputs=gradients).results[1]
        theirs = [pair[0] for pair in ways.values()]
        assert torch.equal(theirs[0], theirs[1]) is equal
        assert torch.equal(theirs[0], theirs[2]) is equal
        mean = torch.stack(gradients).mean(0)
        for by_torch, by_ours in ways.values():
            assert torch.allclose(by_torch, mean, atol=1e-6)
            assert by_ours is None or torch.equal(by_torch, by_ours)


def test_two_forwards_are_refused_by_ours_alone():
    gradients = [torch.ones(2), 2 * torch.ones(2)]
    theirs = on_gloo(two_forwards, TorchDDP, inputs=gradients).results
    assert [grad.tolist() for grad in theirs] == [[2.5, 2.5], [3.5, 3.5]]
    said = on_gloo(outcome, two_forwards, DistributedDataParallel, inputs=gradients).results
    assert all(text.startswith("NotSynchronized") for text in said)
