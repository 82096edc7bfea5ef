"""naive_allreduce: everything through rank 0."""

from __future__ import annotations

from minidist import collectives
from minidist.grading import patterns
from minidist.grading.cases import Case
from minidist.grading.collective_cases import (
    ANY_SHAPE,
    sum_on_every_rank,
    tensor_nbytes,
    with_fractions,
)
from minidist.grading.exercise import CollectiveExercise

EXERCISE = CollectiveExercise(
    name="naive_allreduce",
    title="Naive allreduce: everything through rank 0",
    chapter="why_collectives",
    minutes=10,
    parameters=("mesh", "tensor"),
    cases=ANY_SHAPE,
    on_processes=with_fractions(Case(2, (5,)), Case(3, (5,)), Case(4, (6,))),
    gloo_op="allreduce",
    expected=sum_on_every_rank,
    pattern=patterns.through_rank_0,
    bytes_sent=lambda case, rank: tensor_nbytes(case) * (case.world_size - 1 if rank == 0 else 1),
    steps=lambda case: 2 * (case.world_size - 1),
    reference=collectives.naive_allreduce,
    price="the tensor once, rank 0 N - 1 times",
)
