"""Our DDP beside PyTorch's, on the same ranks, models and data, one run per world size.

Compared to the last bit: every parameter and buffer after wrapping, every gradient after every
backward, every parameter and buffer after every step. The layouts of the buckets, and the sequence
of collectives, with shapes and dtypes, are compared as well. What is compared stands in ddp_cases.
"""

from __future__ import annotations

import functools

import ddp_cases
import pytest

from minidist import run

WORLD_SIZES = (1, 2, 3, 4)
EVERYWHERE = [(n, name) for n in WORLD_SIZES for name in ddp_cases.CASES] + [
    (4, f"in two groups: {name}") for name in ddp_cases.IN_SUBGROUPS
]
every_case = pytest.mark.parametrize(
    "world_size, name", EVERYWHERE, ids=[f"{name}-{n}" for n, name in EVERYWHERE]
)


@functools.cache
def found(world_size):
    return run(ddp_cases.compare_all, world_size, process_group="gloo", timeout=280).results


def apart_from_stale_counts(differences):
    """A rank that has joined sends, in PyTorch, its last counts of used parameters once more.

    So what nobody uses any longer gets a gradient of zeros there, where ours stays None.
    """
    stale = [d for d in differences if d.endswith(": None, PyTorch: zeros")]
    return stale, [d for d in differences if d not in stale]


@every_case
def test_gradients_parameters_and_buffers(world_size, name):
    for rank, verdicts in enumerate(found(world_size)):
        differences = verdicts[name]["differences"]
        if name == "join: find unused":
            stale, differences = apart_from_stale_counts(differences)
            if rank in (0, world_size - 1):  # the first to join never trains with one that has
                assert bool(stale) == (rank > 0)
        assert not differences, f"rank {rank}"
        assert verdicts[name]["notes"] > 5 or name.startswith("join")


@every_case
def test_layouts_of_buckets(world_size, name):
    for verdicts in found(world_size):
        ours, theirs = verdicts[name]["layouts"]
        if "join" in name:  # PyTorch has logged them too early; the collectives show their sizes
            ours, theirs = ours["sizes"], theirs["sizes"]
        assert ours == theirs


@every_case
def test_collectives(world_size, name):
    """The same calls, in the same order, of the same sizes.

    But for one thing. At the start, PyTorch's ranks compare their parameters with rank 0's by an
    all_gather and a broadcast, and only those that differ learn of it. Ours tell each other their
    layouts on a group of their own, on which nothing else happens (see roll_call.py).
    """
    for verdicts in found(world_size):
        ours, theirs = verdicts[name]["calls"]
        if name != "no synchronisation at the start":
            (count, layout), theirs = theirs[:2], theirs[2:]
            assert count == ("all_gather", [1], "int64")
            assert layout[0] == "broadcast from 0" and layout[2] == "int64"
        assert ours == theirs


# The comparisons above would be worth little if nothing had happened


LOCAL = {  # the backwards that average nothing; in all others the ranks have the same gradients
    "conv, no_sync": {f"step {s}, backward {b}" for s in range(4) for b in (0, 1)},
    "no_sync": {f"step {s}, backward {b}" for s in range(4) for b in (0, 1)},
    "no_sync, views": {f"step {s}, backward {b}" for s in range(4) for b in (0, 1)},
    "sparse, no_sync": {f"step {s}, backward 0" for s in range(4)},
    "no_sync, find unused": {f"step {s}, backward 0" for s in range(4)},
    "no_sync, static graph": {f"step {s}, backward 0" for s in range(1, 5)},
    "no_sync, synchronised first": {f"step {s}, backward 1" for s in range(4)},
    "used under no_sync only": set(),  # each rank has gradients of other parameters then
    "join: no_sync": {"step 0"},
    "hook: none": {f"step {s}, backward 0" for s in range(4)},
    "ignored": {f"step {s}, backward 0" for s in range(4)},
}


@pytest.mark.parametrize("name", ddp_cases.CASES)
def test_ranks_have_the_same_gradients_exactly_where_they_are_averaged(name):
    ranks = [verdicts[name]["gradients"] for verdicts in found(3)]
    everywhere = set.intersection(*map(set, ranks))
    differ = {note for note in everywhere if len({gradients[note] for gradients in ranks}) > 1}
    assert {note.split(":")[0] for note in differ} == LOCAL.get(name, set())
    if name == "ignored":
        assert {note.split(" of ")[1] for note in differ} == {"net.4.weight"}


def test_no_sync_saves_all_reduces():
    ours, _ = found(2)[0]["no_sync"]["calls"]
    assert [name for name, *_ in ours].count("all_reduce") == 1 + 3 * 4  # of 12 backwards, 4


@pytest.mark.parametrize("world_size", (2, 3))
def test_all_four_corners(world_size):
    """{ours, PyTorch's} x {minidist, gloo}: our ring adds in the order in which gloo does."""
    run_of_corners = run(ddp_cases.corners, world_size, process_group="minidist", timeout=280)
    for verdicts in run_of_corners.results:
        name = "join: find unused"
        _, verdicts[name] = apart_from_stale_counts(verdicts[name])
        assert verdicts == {name: [] for name in ddp_cases.AT_ALL_CORNERS}
