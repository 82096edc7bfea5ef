"""gloo_bits: a ring that adds in gloo's order."""

from __future__ import annotations

import torch

from minidist import collectives
from minidist.collectives.chunks import gloo_chunks
from minidist.grading import patterns
from minidist.grading.cases import Case
from minidist.grading.collective_cases import ANY_SHAPE, in_order, sum_on_every_rank, with_fractions
from minidist.grading.exercise import CollectiveExercise

_SIZES = ((1000, "float32"), (30_011, "float32"), (1001, "float16"), (1001, "bfloat16"))


def _chunks(case: Case) -> list[int]:
    """The bytes of each chunk as gloo cuts them."""
    itemsize = getattr(torch, case.dtype).itemsize
    cuts = gloo_chunks(case.world_size, case.numel, itemsize)
    return [len(range(case.numel)[cut]) * itemsize for cut in cuts]


EXERCISE = CollectiveExercise(
    name="gloo_bits",
    title="The bits of gloo: a ring that adds in gloo's order",
    chapter="your_ring_under_ddp",
    minutes=40,
    parameters=("mesh", "tensor"),
    cases=ANY_SHAPE,
    on_processes=in_order(
        *(case for n in (3, 4) for case in with_fractions(Case(n, (4 * n + 1,)))),
        *(Case(3, (size,), t, fractions=True) for size, t in _SIZES),
        *(Case(4, (size,), t, fractions=True) for size, t in _SIZES),
    ),
    gloo_op="allreduce",
    expected=sum_on_every_rank,
    pattern=patterns.ring_to_the_left,
    bytes_sent=lambda case, rank: 2 * (sum(_chunks(case)) - min(_chunks(case))),
    steps=lambda case: 2 * (case.world_size - 1),
    reference=collectives.ring_allreduce,
    price="in each of two passes every chunk but one",
    bit_equal=True,
)
