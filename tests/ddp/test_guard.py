"""What PyTorch's DDP trains wrongly in silence is an error with ours; what is lawful is not."""

from __future__ import annotations

import functools

import guard_cases
import pytest
import torch

from minidist import run
from minidist.ddp.ddp import NOT_HERE

GLOO = {"process_group": "gloo"}


@functools.cache
def silent(world_size, backend):
    return run(guard_cases.silent_failures, world_size, process_group=backend).results


@pytest.mark.parametrize("program", guard_cases.SILENT, ids=lambda program: program.__name__)
@pytest.mark.parametrize("world_size, backend", [(2, "gloo"), (3, "minidist")])
def test_what_pytorch_does_silently_is_an_error(program, world_size, backend):
    kind, says = guard_cases.SILENT[program]
    results = [rank[program.__name__] for rank in silent(world_size, backend)]
    for rank, (ours, theirs) in enumerate(results):
        assert isinstance(ours, tuple), f"rank {rank}: no error"
        assert ours[0] == kind and says in ours[1], ours
        assert isinstance(theirs, list), f"PyTorch's is not silent: {theirs}"
    first, second = (theirs for _, theirs in results[:2])
    alike = [torch.equal(one, two) for one, two in zip(first, second, strict=True)]
    assert not all(alike), "PyTorch's gradients are not wrong here"


@functools.cache
def lawful(world_size, backend):
    return run(guard_cases.lawful_programs, world_size, process_group=backend).results


@pytest.mark.parametrize("program", guard_cases.LAWFUL, ids=lambda program: program.__name__)
@pytest.mark.parametrize("world_size, backend", [(1, "gloo"), (2, "minidist"), (3, "gloo")])
def test_what_is_lawful_is_no_error(program, world_size, backend):
    for rank, results in enumerate(lawful(world_size, backend)):
        ours, theirs = results[program.__name__]
        assert isinstance(ours, list), f"rank {rank}: {ours}"
        assert isinstance(theirs, list), f"rank {rank}, PyTorch's: {theirs}"
        same = torch.allclose if program in guard_cases.OTHER_BUCKETS else torch.equal
        for one, other in zip(ours, theirs, strict=True):
            assert same(one, other), rank


def test_an_ignored_parameter_at_the_root_is_left_alone_everywhere():
    """PyTorch's compares names of another form there: it broadcasts it not, but reduces it."""
    for rank, (ours, theirs) in enumerate(run(guard_cases.ignored_at_the_root, 2, **GLOO).results):
        assert {name for name, is_so in ours.items() if name != "layer" and not is_so} == set()
        assert not theirs["gradient is this rank's alone"], rank


def test_static_graph_and_no_sync_work_together():
    (ours, theirs), (others, _) = run(
        guard_cases.static_graph_and_no_sync_in_pytorch, 2, **GLOO
    ).results
    assert all(map(torch.equal, ours, others))
    assert isinstance(theirs, tuple), "PyTorch's works, too"


@pytest.mark.parametrize("world_size", [1, 2])
def test_nothing_is_kept(world_size):
    assert run(guard_cases.nothing_is_kept, world_size, **GLOO).results == [[]] * world_size


def test_what_is_not_built_is_refused_by_name():
    (refused,) = run(guard_cases.refused, 1, **GLOO).results
    for name in NOT_HERE:
        kind, text = refused.pop(name)
        assert kind == "NotImplementedError" and f"has no {name}: {NOT_HERE[name]}" in text
    kind, text = refused.pop("in backward")
    assert kind == "NotImplementedError" and "weight has its optimizer in the backward" in text
    kind, text = refused.pop("frozen")
    assert kind == "RuntimeError" and "any parameter that requires a gradient" in text
    kind, text = refused.pop("lazy")
    assert kind == "RuntimeError" and "weight has no shape yet: run one forward" in text
    assert not refused


def test_optimizers_of_something_else_are_not_disturbed():
    for before, after in run(guard_cases.step_of_another_optimizer, 2, **GLOO).results:
        assert after < before
