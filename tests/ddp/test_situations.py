"""The situations of the chapters on DDP: what they report is what has happened."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from minidist import MeshError, run
from minidist.ddp import DistributedDataParallel, counterparts
from minidist.ddp.situations import (
    Counting,
    averaged_buffers,
    bits_changed_by_views,
    branches,
    brief,
    digits,
    digits_steps,
    evaluates_alone,
    gradient_memory,
    hooked_steps,
    said,
    silent_faults,
    stacked,
    static_graph_counts,
    tallies,
    two_forwards_one_backward,
    uneven,
)

CLASSES = [TorchDDP, DistributedDataParallel]
BOTH = pytest.mark.parametrize("ddp_class", CLASSES)
GRADIENTS = 10_026  # of the digits net


def on_gloo(fn, *args, inputs, backend="gloo"):
    return run(fn, len(inputs), *args, inputs=inputs, process_group=backend).results


@BOTH
def test_digits_steps_see_what_travels_and_what_each_rank_holds(ddp_class):
    ranks = on_gloo(digits_steps, ddp_class, 4, {}, (1,), True, inputs=digits(2, 4))
    for steps in ranks:
        assert [brief(step.backward) for step in steps] == [
            "allreduce 10,026",
            "nothing",  # under no_sync
            "allreduce 10,026",
            "allreduce 10,026",
        ]
        assert brief(steps[0].forward) == "broadcast 96, broadcast 2"
        assert brief(steps[2].forward) == "nothing"  # the forward after one under no_sync
        assert all(step.gradient.shape == (GRADIENTS,) for step in steps)
        assert all(step.mean[0] != step.mean[1] for step in steps)
        assert steps[3].gradient.norm() > 2 * steps[0].gradient.norm()  # they add up
    first, second = ranks
    assert not torch.equal(first[1].gradient, second[1].gradient)
    assert torch.equal(first[2].gradient, second[2].gradient)


@BOTH
def test_bytes_are_counted_on_our_backend(ddp_class):
    hooks = {"none": (None, None), "half": (default_hooks.fp16_compress_hook, None)}
    ranks = on_gloo(hooked_steps, ddp_class, 2, hooks, inputs=digits(2, 2), backend="minidist")
    for rank, seen in enumerate(ranks):
        assert [step.sent[1] for step in seen["none"]] == [4 * GRADIENTS] * 2
        assert [step.sent[1] for step in seen["half"]] == [2 * GRADIENTS] * 2
        assert bool(seen["none"][1].sent[0]) == (rank == 0)  # buffers come from rank 0


@BOTH
def test_tallies_follow_the_flags(ddp_class):
    options = [{}, {"forward_sync_buffers": False}, {"broadcast_buffers": False}]
    one, two = on_gloo(_tallies, ddp_class, options, inputs=[0, 1])
    assert one == [(10, [10, 11], 12)] * 3
    assert two == [(10, [10, 11], 13), (10, [10, 12], 14), (20, [20, 22], 24)]


def _tallies(mesh, _, ddp_class, options):
    return tallies(mesh, ddp_class, 2, options)


def test_a_buffer_hook_averages_and_two_forwards_need_one_backward():
    for ddp_class in CLASSES:
        ranks = on_gloo(averaged_buffers, ddp_class, 2, inputs=digits(2, 2))
        assert ranks[0][False][1][1] != ranks[1][False][1][1]
        assert ranks[0][True][1] == ranks[1][True][1]
    own = [steps[0].mean[1] for steps in on_gloo(digits_steps, ddp_class, 1, inputs=digits(2, 1))]
    both = on_gloo(averaged_buffers, ddp_class, 1, inputs=digits(2, 1))
    assert [rank[True][0][1] for rank in both] == pytest.approx([sum(own) / 2] * 2)
    one, two = (on_gloo(two_forwards_one_backward, cls, inputs=digits(2, 2)) for cls in CLASSES)
    assert one == two and one[0] == one[1] != 0


def test_evaluating_alone_is_an_error_on_both():
    with pytest.raises(MeshError, match=r"(?i)time"):
        on_gloo(evaluates_alone, 0, TorchDDP, 1.0, inputs=digits(2, 1))
    with pytest.raises(MeshError, match="rank 1") as caught:
        on_gloo(
            evaluates_alone,
            0,
            DistributedDataParallel,
            5.0,
            {"rank_timeout_s": 1},
            inputs=digits(2, 1),
        )
    assert said(caught.value).startswith("RanksDisagree: rank 0")


@BOTH
def test_branches_and_their_gradients(ddp_class):
    ranks = on_gloo(
        branches, ddp_class, {"find_unused_parameters": True}, inputs=[["a", "ab"], ["b", "aa"]]
    )
    for steps in ranks:
        assert brief(steps[0].calls) == "allreduce 3, allreduce 3"
        assert steps[0].gradients == {"a": 0.5, "b": 1.0, "c": None}
        assert steps[1].gradients == {"a": 2.5, "b": 0.5, "c": None}


def test_a_checkpointed_layer_is_hooked_each_time():
    for use, count in (("abb", 1), ("aBB", 2)):
        result = run(static_graph_counts, 2, use, 2, process_group="gloo")
        assert result.results[0]["b.weight"] == count
        assert {"forward", "launch"} <= {mark.kind for mark in result.trace.marks[0]}


def test_stacked_layers_send_the_same_with_both_classes():
    options = [{}, {"find_unused_parameters": True}, {"static_graph": True}]
    ours, theirs = (
        run(stacked, 2, cls, 4, 3, options, process_group="gloo").results[0] for cls in CLASSES
    )
    assert ours == theirs
    assert [brief(backward) for _, backward in ours[1]] == [
        "allreduce 786,432, allreduce 262,144, allreduce 5"
    ] * 3
    assert brief(ours[2][0][1]) == "allreduce 4, allreduce 1,048,576"


@BOTH
def test_views_save_one_gradient_and_change_bits_on_three_ranks(ddp_class):
    plain, view = (
        on_gloo(gradient_memory, ddp_class, options, inputs=digits(2, 3))[0]
        for options in ({}, {"gradient_as_bucket_view": True})
    )
    assert plain["gradients and buckets"] == 2 * view["gradients and buckets"] == 8 * GRADIENTS
    assert (plain["gradients lie in buckets"], view["gradients lie in buckets"]) == (False, True)
    changed = on_gloo(bits_changed_by_views, ddp_class, 2, inputs=digits(3, 2))[0]
    assert changed[False] == [0, 0] and changed[True][0] == 0 < changed[True][1]


def test_uneven_ranks_call_the_same_with_both_classes():
    ours, theirs = (on_gloo(uneven, cls, Counting, inputs=[1, 2]) for cls in CLASSES)
    assert [rank["calls"] for rank in ours] == [rank["calls"] for rank in theirs]
    assert brief(ours[1]["calls"][0]) == (
        "allreduce 1, allreduce 1, broadcast 1, allreduce 1, allreduce 16"
    )
    for join in ({}, {"divide_by_initial_world_size": False}):
        ours, theirs = (on_gloo(uneven, cls, _layer, {}, join, inputs=[1, 3]) for cls in CLASSES)
        for a, b in zip(ours, theirs, strict=True):
            assert (a["calls"], a["after"], a["gradients"]) == (
                b["calls"],
                b["after"],
                b["gradients"],
            )
        one, three = ours
        assert len(one["calls"]) == 1 and len(three["calls"]) == 3
        assert one["after"] == [
            *(call for step in three["calls"][1:] for call in step),
            *three["after"],
        ]
        assert torch.equal(one["parameters"], three["parameters"])
        assert three["gradients"][1] == (0.5 if not join else 1.0)


def _layer():
    return nn.Linear(4, 1, bias=False)


def test_silent_faults_are_silent_in_pytorch_and_errors_in_ours():
    theirs, ours = (run(silent_faults, 2, cls, process_group="gloo").results for cls in CLASSES)
    accumulation = "static_graph with no_sync"
    for mistake, (error, gradient, right) in theirs[1].items():
        if mistake != accumulation:
            assert not error and gradient != right, mistake
            assert ours[1][mistake][0], mistake
    assert "INTERNAL ASSERT" in theirs[0][accumulation][0]
    assert ours[0][accumulation] == ("", 3.0, 3.0)
    some = run(silent_faults, 2, CLASSES[1], [accumulation], process_group="gloo").results[0]
    assert list(some) == [accumulation]


def test_every_counterpart_exists():
    rows = counterparts.rows(lambda name: name != "Reducer::autograd_hook")
    assert len(rows) == sum(map(len, counterparts.BY_CHAPTER.values()))
    assert sum("(not found)" in row["PyTorch's"] for row in rows) == 1
    (no_sync,) = (row for row in rows if row["ours"].startswith("`no_sync`"))
    assert "`ddp.py:" in no_sync["ours"] and "`distributed.py:" in no_sync["PyTorch's"]
    assert counterparts.bound_to_python("Reducer::rebuild_buckets")
    assert counterparts.bound_to_python("compute_bucket_assignment_by_size")
    assert not counterparts.bound_to_python("Reducer::mark_bucket_ready")


def test_names_in_the_library_are_found_and_others_are_not():
    names = [*counterparts.NAMES_IN_CPP, "Reducer::no_such_function"]
    found = counterparts.found_in_library(names)
    assert found == set(counterparts.NAMES_IN_CPP)
