"""What exercises on collectives share: their cases, what is expected, and the units of prices."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from minidist.grading.cases import Case

WORLD_SIZES = (1, 2, 3, 4, 5, 7, 8)
SPECIAL_DTYPES = ("int64", "int32", "float64", "float16", "bfloat16", "uint8")


def in_order(*cases: Case) -> list[Case]:
    """Plain before special, small before large."""
    return sorted(cases, key=lambda case: case.order)


ANY_SHAPE = in_order(
    *(Case(n, (2 * n,)) for n in WORLD_SIZES),
    *(Case(n, (size,)) for n, size in ((2, 3), (2, 1), (3, 4), (3, 2), (4, 10), (5, 7), (8, 5))),
    Case(2, ()),
    Case(3, ()),
    Case(3, (0,)),
    Case(4, (3, 0)),
    Case(3, (2, 3)),
    Case(3, (4, 5), layout="transposed"),
    Case(2, (5,), layout="every second"),
    *(Case(3, (7,), dtype) for dtype in SPECIAL_DTYPES),
)


def with_fractions(*cases: Case) -> list[Case]:
    """Each case twice: as it is, with whole numbers, and with reals to compare with gloo."""
    return [replace(case, fractions=fractions) for case in cases for fractions in (False, True)]


def sum_on_every_rank(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    total = torch.stack(inputs).sum(0, dtype=inputs[0].dtype)
    return [total] * case.world_size


def tensor_nbytes(case: Case) -> int:
    return case.numel * getattr(torch, case.dtype).itemsize


def chunk_nbytes(case: Case) -> int:
    """Of one of N equal chunks, padded."""
    return -(-case.numel // case.world_size) * getattr(torch, case.dtype).itemsize


def doublings(case: Case) -> int:
    """ceil(log2 N): how often what one rank has must double until all have it."""
    return math.ceil(math.log2(case.world_size))
