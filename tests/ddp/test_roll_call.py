"""Ranks that do different things hear of it at once, on every rank, with names and a remedy."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import roll_call_cases as cases
import torch

from minidist import run


def names(ranks):
    text = ", ".join(map(str, ranks))
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def assert_says(got, kind, *texts, world_size):
    *others, odd = range(world_size)
    assert got[0] == kind, got
    for text in texts:
        assert text.format(odd=names([odd]), others=names(others)) in got[1], got[1]


@functools.cache
def disagree(world_size, backend):
    return run(cases.ranks_disagree, world_size, process_group=backend).results


@pytest.mark.parametrize("program", cases.DISAGREE, ids=lambda program: program.__name__)
@pytest.mark.parametrize("world_size, backend", [(2, "gloo"), (3, "minidist"), (4, "gloo")])
def test_all_ranks_hear_that_one_does_something_else(program, world_size, backend):
    _, odd, others = cases.DISAGREE[program]
    expected = [others] * (world_size - 1) + [odd]
    results = [rank[program.__name__] for rank in disagree(world_size, backend)]
    for (ours, _), one in zip(results, expected, strict=True):
        if one:
            assert_says(ours, *one, world_size=world_size)
    theirs = [theirs for _, theirs in results if theirs]
    assert bool(theirs) == (backend == "gloo" and world_size == 2 and program in cases.HANGS)
    if theirs:  # one rank of PyTorch's, at least, waits until the time of its group is over
        assert any("imed out" in text for _, text in theirs), theirs
    for _, text in theirs:
        assert "ddp." not in text and "rank " not in text.split("Exception raised")[0]


@functools.cache
def different_modules(world_size, backend):
    return run(cases.different_modules, world_size, process_group=backend).results


@pytest.mark.parametrize("what", cases.modules())
@pytest.mark.parametrize("world_size, backend", [(2, "gloo"), (3, "minidist")])
def test_ranks_that_wrap_different_modules(what, world_size, backend):
    says = cases.modules()[what][2].format(odd=world_size - 1)
    for rank in different_modules(world_size, backend):
        kind, text = rank[what]
        assert kind == "RanksDisagree" and says in text, text


def test_pytorch_mixes_up_parameters_in_another_order():
    first, second = run(cases.torch_on_different_order, 2, process_group="gloo").results
    assert first["a.weight"] == 1 and second["a.weight"] == 2


@pytest.mark.parametrize("backend", ["gloo", "minidist"])
def test_a_rank_that_wraps_nothing_is_missed(backend):
    *others, _ = run(cases.one_rank_does_not_wrap, 3, process_group=backend).results
    for new, later in others:
        assert new[0] == later[0] == "RanksDisagree"
        assert "not all ranks of the process group wrapped a module within 2 s" in new[1]
        assert_says(later, "RanksDisagree", "wraps a module, but {odd} did not come", world_size=3)


@pytest.mark.parametrize("backend", ["gloo", "minidist"])
def test_a_rank_that_destroys_its_process_group(backend):
    *others, _ = run(cases.one_rank_destroys_its_groups, 3, process_group=backend).results
    for got in others:
        assert_says(got, "RanksDisagree", "but {odd} did not come", "ddp.join()", world_size=3)


SCRIPT = """
import os
import sys
import torch.distributed as dist
import minidist.backend
from minidist.ddp import DistributedDataParallel
from guard_cases import Net, batch, loss_of
backend, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group(backend, f"file://{store}", rank=rank, world_size=3)
ddp = DistributedDataParallel(Net())
for step in range(2 if rank == 2 else 4):
    loss_of(ddp(batch(rank))).backward()
os._exit(0)  # gloo's threads may abort an interpreter that takes its time to end
"""


@pytest.mark.parametrize("backend", ["gloo", "minidist"])
def test_a_rank_that_has_no_more_batches_and_exits(backend, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = f"{Path(cases.__file__).parent}:{Path(cases.__file__).parents[2] / 'src'}"
    ranks = [
        subprocess.Popen(
            [sys.executable, script, backend, str(rank), str(tmp_path / "store")],
            env={"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        texts = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[2].returncode == 0, texts[2]
    for rank in (0, 1):
        assert ranks[rank].returncode == 1
        assert "RanksDisagree: " in texts[rank] and "rank 2" in texts[rank], texts[rank]


@pytest.mark.parametrize("backend", ["gloo", "minidist"])
def test_several_ddps_on_a_subgroup(backend):
    nobody, *both = run(cases.subgroups, 3, process_group=backend).results
    assert nobody == []
    for one, two, theirs, end in both:
        for ours in (one, two):
            assert all(map(torch.equal, ours, theirs))
        assert end[0] == "RanksDisagree", end
        assert "rank 0 runs forward, but rank 1 evaluates" in end[1]  # ranks of the group


def test_groups_made_again(tmp_path):
    assert run(cases.groups_made_again, 2, str(tmp_path)).results == [[("nothing", "")] * 3] * 2


def test_one_rank_calls_nobody():
    assert run(cases.world_of_one, 1, process_group="gloo").results == [True]


@pytest.mark.parametrize("backend", ["gloo", "minidist"])
def test_join_needs_no_roll_call(backend):
    first, *others = run(cases.join, 3, process_group=backend).results
    for other in others:
        for mine, its in zip(first, other, strict=True):
            assert all(map(torch.equal, mine, its))


@pytest.mark.gpu
@pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="blocked: needs two CUDA devices for two NCCL ranks"
)
def test_the_roll_call_beside_nccl():
    results = run(cases.beside_nccl, 2, process_group="nccl").results
    for got in results:
        assert_says(got, "RanksDisagree", "{others} runs forward", "{odd} eval", world_size=2)
