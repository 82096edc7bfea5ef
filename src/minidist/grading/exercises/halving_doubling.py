"""halving_doubling: the ring's bytes in a tree's steps."""

from __future__ import annotations

import torch

from minidist import collectives
from minidist.grading import patterns
from minidist.grading.cases import Case
from minidist.grading.collective_cases import ANY_SHAPE, sum_on_every_rank, with_fractions
from minidist.grading.exercise import CollectiveExercise


def _power(case: Case) -> int:
    """The largest power of two up to the world size."""
    return 1 << (case.world_size.bit_length() - 1)


def _bytes_sent(case: Case, rank: int) -> int:
    size = _power(case)
    chunk = -(-case.numel // size) * getattr(torch, case.dtype).itemsize
    leaning = rank < 2 * (case.world_size - size)
    return 2 * (size - 1) * chunk + (size * chunk if leaning else 0)


def _steps(case: Case) -> int:
    return 2 * (_power(case).bit_length() - 1) + 2 * (_power(case) < case.world_size)


EXERCISE = CollectiveExercise(
    name="halving_doubling",
    title="Halving and doubling: the ring's bytes in a tree's steps",
    chapter="ring_or_tree",
    minutes=45,
    parameters=("mesh", "tensor"),
    cases=ANY_SHAPE,
    on_processes=with_fractions(Case(2, (5,)), Case(3, (5,)), Case(4, (2, 3))),
    gloo_op="allreduce",
    expected=sum_on_every_rank,
    pattern=patterns.halving_doubling,
    bytes_sent=_bytes_sent,
    steps=_steps,
    reference=collectives.halving_doubling_allreduce,
    price="2(P - 1)/P of the tensor padded to a multiple of P, all of it in a fold",
)
