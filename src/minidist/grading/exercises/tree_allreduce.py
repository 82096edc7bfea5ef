"""tree_allreduce: up a tree and down again."""

from __future__ import annotations

from minidist import collectives
from minidist.grading import patterns
from minidist.grading.cases import Case
from minidist.grading.collective_cases import (
    ANY_SHAPE,
    doublings,
    sum_on_every_rank,
    tensor_nbytes,
    with_fractions,
)
from minidist.grading.exercise import CollectiveExercise

EXERCISE = CollectiveExercise(
    name="tree_allreduce",
    title="Tree allreduce: up and down again",
    chapter="ring_or_tree",
    minutes=25,
    parameters=("mesh", "tensor"),
    cases=ANY_SHAPE,
    on_processes=with_fractions(Case(2, (5,)), Case(3, (5,)), Case(4, (2, 3))),
    gloo_op="allreduce",
    expected=sum_on_every_rank,
    pattern=patterns.up_and_down,
    bytes_sent=lambda case, rank: (doublings(case) + (rank != 0)) * tensor_nbytes(case),
    steps=lambda case: 2 * doublings(case),
    reference=collectives.tree_allreduce,
    price="one tensor up, at most ceil(log2 N) down",
)
