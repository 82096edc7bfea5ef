"""ring_allgather: the second pass of a ring."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist import collectives
from minidist.grading import diagnose, patterns
from minidist.grading.answers import Answer
from minidist.grading.cases import Case, make_inputs
from minidist.grading.collective_cases import ANY_SHAPE, tensor_nbytes, with_fractions
from minidist.grading.exercise import CollectiveExercise


def _stacked(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    return [torch.stack(inputs)] * case.world_size


def _wrong_values(answer: Answer, expected: list[Tensor]) -> str:
    case, inputs, came = answer.case, make_inputs(answer.case), answer.results
    n = case.world_size
    rows = range(n)
    if all(torch.equal(came[r][s], inputs[(r - s) % n]) for r in rows for s in rows):
        return (
            "The rows stand in the order of arrival: row s holds what came at step s. "
            "Row k belongs to rank k, on every rank."
        )
    rank, index = diagnose.first_difference(expected, came)
    row = index // max(1, case.numel)
    if not came[rank][row].any():
        return f"Row {row} was never filled: a step is missing, or a row is stored elsewhere."
    for other in rows:
        if torch.equal(came[rank][row], inputs[other]):
            if all(torch.equal(came[rank][k], inputs[(rank - 1) % n]) for k in rows if k != rank):
                return (
                    "Every row holds the left neighbour's tensor: each step sends the rank's own "
                    "row again. From the second step on, send on what arrived last."
                )
            return f"Row {row} holds the tensor of rank {other}."
    return ""


EXERCISE = CollectiveExercise(
    name="ring_allgather",
    title="Ring allgather: the second pass",
    chapter="ring_allreduce",
    minutes=15,
    parameters=("mesh", "tensor"),
    cases=ANY_SHAPE,
    on_processes=with_fractions(Case(2, (5,)), Case(3, (5,)), Case(4, (2, 3))),
    gloo_op="allgather",
    expected=_stacked,
    pattern=patterns.ring,
    bytes_sent=lambda case, rank: (case.world_size - 1) * tensor_nbytes(case),
    steps=lambda case: case.world_size - 1,
    reference=collectives.allgather,
    price="N - 1 tensors, one per step",
    wrong_values=_wrong_values,
)
