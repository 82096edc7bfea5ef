"""What trains wrongly in silence with PyTorch's DDP is an error with ours; what is lawful is not."""

from __future__ import annotations

import functools

import guard_cases
import pytest
import torch

from minidist import run


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
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other), rank
