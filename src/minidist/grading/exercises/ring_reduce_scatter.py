"""ring_reduce_scatter: the first pass of a ring."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist import collectives
from minidist.grading import diagnose, patterns
from minidist.grading.answers import Answer
from minidist.grading.cases import Case
from minidist.grading.collective_cases import (
    SPECIAL_DTYPES,
    WORLD_SIZES,
    chunk_nbytes,
    in_order,
    sum_on_every_rank,
    with_fractions,
)
from minidist.grading.exercise import CollectiveExercise

_DIVISIBLE = in_order(
    *(Case(n, (2 * n,)) for n in WORLD_SIZES),
    *(Case(n, (n,)) for n in (2, 3, 5)),
    Case(3, (0,)),
    Case(2, (4, 3)),
    Case(3, (3, 2, 2)),
    Case(3, (6, 5), layout="transposed"),
    Case(2, (4,), layout="every second"),
    *(Case(3, (6,), dtype) for dtype in SPECIAL_DTYPES),
    Case(3, (4,), refused=True),
    Case(2, (3, 2), refused=True),
    Case(4, (2, 4), refused=True),
    Case(2, (), refused=True),
)


def _part_of_sum(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    if case.numel == 0:
        return [inputs[0][: case.shape[0] // case.world_size]] * case.world_size
    return list(sum_on_every_rank(case, inputs)[0].chunk(case.world_size))


def _wrong_values(answer: Answer, expected: list[Tensor]) -> str:
    came, n = answer.results, answer.case.world_size
    for shift in range(1, n):
        if all(torch.equal(came[r], expected[(r + shift) % n]) for r in range(n)):
            return (
                f"Each rank returned a finished chunk, but rank r the one of rank "
                f"(r + {shift}) mod N: start the schedule {shift} chunk"
                f"{'s' if shift > 1 else ''} earlier, so that the last one to be completed "
                "on rank r is chunk r."
            )
    rank, _ = diagnose.first_difference(expected, came)
    return diagnose.wrong_sum(answer, expected, offset=rank * expected[0].numel())


EXERCISE = CollectiveExercise(
    name="ring_reduce_scatter",
    title="Ring reduce-scatter: the first pass",
    chapter="ring_allreduce",
    minutes=25,
    parameters=("mesh", "tensor"),
    cases=_DIVISIBLE,
    on_processes=with_fractions(Case(2, (4,)), Case(3, (6, 2)), Case(4, (8,))),
    gloo_op="reduce_scatter",
    expected=_part_of_sum,
    pattern=patterns.ring,
    bytes_sent=lambda case, rank: (case.world_size - 1) * chunk_nbytes(case),
    steps=lambda case: case.world_size - 1,
    reference=collectives.reduce_scatter,
    price="N - 1 chunks, that is (N - 1)/N of the tensor",
    wrong_values=_wrong_values,
)
