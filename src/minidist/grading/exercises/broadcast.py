"""broadcast: a doubling tree from any root."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist import collectives
from minidist.grading import diagnose, patterns
from minidist.grading.answers import Answer
from minidist.grading.cases import Case, make_inputs
from minidist.grading.collective_cases import (
    SPECIAL_DTYPES,
    WORLD_SIZES,
    doublings,
    in_order,
    tensor_nbytes,
    with_fractions,
)
from minidist.grading.exercise import CollectiveExercise

_ANY_ROOT = in_order(
    *(Case(n, (4,), src=src) for n in WORLD_SIZES for src in sorted({0, 1 % n, n // 2, n - 1})),
    Case(3, (), src=1),
    Case(3, (0,), src=2),
    Case(3, (2, 3), src=2),
    Case(3, (3, 4), layout="transposed", src=1),
    Case(2, (5,), layout="every second", src=1),
    *(Case(3, (5,), dtype, src=2) for dtype in SPECIAL_DTYPES),
)


def _tensor_of_src(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    return [inputs[case.src or 0]] * case.world_size


def _wrong_values(answer: Answer, expected: list[Tensor]) -> str:
    case, inputs, came = answer.case, make_inputs(answer.case), answer.results
    rank, _ = diagnose.first_difference(expected, came)
    if case.src and any(torch.equal(c, inputs[0]) for c in came[1:]):
        return (
            f"The tensor of rank 0 was handed out, but src is {case.src}: renumber the ranks, "
            "(rank - src) % world_size, so that the root counts as 0."
        )
    for other in range(case.world_size):
        if torch.equal(came[rank], inputs[other]):
            if other == rank:
                return f"Rank {rank} still has its own tensor: nothing reached it."
            return f"This is the tensor of rank {other}, not of src."
    if not came[rank].any():
        return f"Rank {rank} has zeros: nothing reached it."
    return ""


EXERCISE = CollectiveExercise(
    name="broadcast",
    title="Broadcast: a doubling tree from any root",
    chapter="broadcast_allgather_reduce_scatter",
    minutes=25,
    parameters=("mesh", "tensor", "src"),
    cases=_ANY_ROOT,
    on_processes=with_fractions(Case(2, (5,), src=1), Case(3, (5,), src=2), Case(4, (2, 3), src=1)),
    gloo_op="broadcast",
    expected=_tensor_of_src,
    pattern=patterns.tree,
    bytes_sent=lambda case, rank: doublings(case) * tensor_nbytes(case),
    steps=doublings,
    reference=collectives.broadcast,
    price="at most ceil(log2 N) tensors",
    wrong_values=_wrong_values,
)
