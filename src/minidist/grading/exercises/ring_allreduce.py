"""ring_allreduce: two passes of a ring, any size."""

from __future__ import annotations

import math

from torch import Tensor

from minidist import collectives
from minidist.grading import diagnose, patterns
from minidist.grading.answers import Answer
from minidist.grading.cases import Case
from minidist.grading.collective_cases import (
    ANY_SHAPE,
    chunk_nbytes,
    sum_on_every_rank,
    with_fractions,
)
from minidist.grading.exercise import CollectiveExercise


def _wrong_values(answer: Answer, expected: list[Tensor]) -> str:
    chunk = _second_pass_starts_with(answer)
    if chunk is None:
        return diagnose.wrong_sum(answer, expected)
    return (
        f"On rank 0 the second pass starts with chunk {chunk}. It must start with the chunk that "
        "the first pass has completed on this rank, (rank + 1) % N."
    )


def _second_pass_starts_with(answer: Answer) -> int | None:
    """The chunk with which rank 0 of a ring allreduce starts its second pass, if it is not chunk 1.

    Which chunk was sent is read from where the sent view starts in its memory, so this knows
    nothing of functions that copy a chunk before they send it, and then says None.
    """
    n = answer.case.world_size
    size = -(-answer.case.numel // n)
    sends = [e for e in answer.trace.by_rank[0] if e.kind == "send"]
    offsets = [e.offset or 0 for e in sends]
    due = [-step % n for step in range(n - 1)]
    if len(sends) != 2 * (n - 1) or any(math.prod(e.shape) != size for e in sends) or not size:
        return None
    if [o / size for o in offsets[: n - 1]] != due or offsets[n - 1] == size:
        return None
    return offsets[n - 1] // size


EXERCISE = CollectiveExercise(
    name="ring_allreduce",
    title="Ring allreduce: two passes, any size",
    chapter="ring_allreduce",
    minutes=25,
    parameters=("mesh", "tensor"),
    cases=ANY_SHAPE,
    on_processes=with_fractions(Case(2, (5,)), Case(3, (8,)), Case(4, (3, 3))),
    gloo_op="allreduce",
    expected=sum_on_every_rank,
    pattern=patterns.ring,
    bytes_sent=lambda case, rank: 2 * (case.world_size - 1) * chunk_nbytes(case),
    steps=lambda case: 2 * (case.world_size - 1),
    reference=collectives.ring_allreduce,
    price="2(N - 1) chunks, that is 2(N - 1)/N of the padded tensor",
    wrong_values=_wrong_values,
)
