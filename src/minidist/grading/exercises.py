"""The exercises: what each function is given, what it must return and what that may cost.

The files for the reader live in the course's exercises/ folder. What is needed to grade is here,
so `check("ring_allreduce", fn)` works wherever the package is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minidist import collectives
from minidist.collectives.chunks import gloo_chunks
from minidist.grading import patterns
from minidist.grading.cases import Case
from minidist.grading.tasks import TASKS, Task
from minidist.trace import Trace

WORLD_SIZES = (1, 2, 3, 4, 5, 7, 8)


@dataclass(frozen=True)
class Exercise:
    """One exercise's contract. `bytes_sent(case, rank)` and `steps(case)` are upper bounds."""

    name: str
    title: str
    chapter: str  # the chapter that it belongs to
    minutes: int
    parameters: tuple[str, ...]
    cases: Sequence[Case]
    on_processes: Sequence[Case]  # tried on real processes, and against gloo
    gloo_op: str
    expected: Callable[[Case, list[Tensor]], list[Tensor]]
    pattern: Callable[[Case, Trace], patterns.Fault | None]
    bytes_sent: Callable[[Case, int], int]
    steps: Callable[[Case], int]
    reference: Callable[..., Tensor]  # the course's own, to find the step where a run goes wrong
    price: str  # the bound on bytes in words
    deadline_s: float = 2.0  # for one case
    bit_equal: bool = False  # to gloo, not only within 1e-5

    @property
    def functions(self) -> dict[str, tuple[str, ...]]:
        """What the reader's file must define, and with which parameters."""
        return {self.name: self.parameters}


def _sum(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    total = torch.stack(inputs).sum(0, dtype=inputs[0].dtype)
    return [total] * case.world_size


def _part_of_sum(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    return list(_sum(case, inputs)[0].chunk(case.world_size)) if case.numel else [
        inputs[0][: case.shape[0] // case.world_size]
    ] * case.world_size  # fmt: skip


def _stacked(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    return [torch.stack(inputs)] * case.world_size


def _of_src(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    return [inputs[case.src or 0]] * case.world_size


def _whole(case: Case) -> int:
    return case.numel * getattr(torch, case.dtype).itemsize


def _chunk(case: Case) -> int:
    return -(-case.numel // case.world_size) * getattr(torch, case.dtype).itemsize


def _doublings(case: Case) -> int:
    return math.ceil(math.log2(case.world_size))


def _power(case: Case) -> int:
    """The largest power of two up to the world size."""
    return 1 << (case.world_size.bit_length() - 1)


def _halving_doubling_bytes(case: Case, rank: int) -> int:
    size = _power(case)
    chunk = -(-case.numel // size) * getattr(torch, case.dtype).itemsize
    leaning = rank < 2 * (case.world_size - size)
    return 2 * (size - 1) * chunk + (size * chunk if leaning else 0)


def _halving_doubling_steps(case: Case) -> int:
    return 2 * (_power(case).bit_length() - 1) + 2 * (_power(case) < case.world_size)


def _gloo_chunks(case: Case) -> list[int]:
    itemsize = getattr(torch, case.dtype).itemsize
    cuts = gloo_chunks(case.world_size, case.numel, itemsize)
    return [len(range(case.numel)[cut]) * itemsize for cut in cuts]


def _sorted(*cases: Case) -> list[Case]:
    return sorted(cases, key=lambda case: case.order)


_ANY_SHAPE = _sorted(
    *(Case(n, (2 * n,)) for n in WORLD_SIZES),
    *(Case(n, (size,)) for n, size in ((2, 3), (2, 1), (3, 4), (3, 2), (4, 10), (5, 7), (8, 5))),
    Case(2, ()),
    Case(3, ()),
    Case(3, (0,)),
    Case(4, (3, 0)),
    Case(3, (2, 3)),
    Case(3, (4, 5), layout="transposed"),
    Case(2, (5,), layout="every second"),
    *(Case(3, (7,), t) for t in ("int64", "int32", "float64", "float16", "bfloat16", "uint8")),
)
_DIVISIBLE = _sorted(
    *(Case(n, (2 * n,)) for n in WORLD_SIZES),
    *(Case(n, (n,)) for n in (2, 3, 5)),
    Case(3, (0,)),
    Case(2, (4, 3)),
    Case(3, (3, 2, 2)),
    Case(3, (6, 5), layout="transposed"),
    Case(2, (4,), layout="every second"),
    *(Case(3, (6,), t) for t in ("int64", "int32", "float64", "float16", "bfloat16", "uint8")),
    Case(3, (4,), refused=True),
    Case(2, (3, 2), refused=True),
    Case(4, (2, 4), refused=True),
    Case(2, (), refused=True),
)
_ANY_ROOT = _sorted(
    *(Case(n, (4,), src=src) for n in WORLD_SIZES for src in sorted({0, 1 % n, n // 2, n - 1})),
    Case(3, (), src=1),
    Case(3, (0,), src=2),
    Case(3, (2, 3), src=2),
    Case(3, (3, 4), layout="transposed", src=1),
    Case(2, (5,), layout="every second", src=1),
    *(
        Case(3, (5,), t, src=2)
        for t in ("int64", "int32", "float64", "float16", "bfloat16", "uint8")
    ),
)


def _real(*shapes: tuple[int, tuple[int, ...], int | None]) -> list[Case]:
    return [
        Case(n, shape, src=src, fractions=fractions)
        for n, shape, src in shapes
        for fractions in (False, True)
    ]


_GLOO_SIZES = ((1000, "float32"), (30_011, "float32"), (1001, "float16"), (1001, "bfloat16"))

_COLLECTIVES = {
    exercise.name: exercise
    for exercise in (
        Exercise(
            name="naive_allreduce",
            title="Naive allreduce: everything through rank 0",
            chapter="why_collectives",
            minutes=10,
            parameters=("mesh", "tensor"),
            cases=_ANY_SHAPE,
            on_processes=_real((2, (5,), None), (3, (5,), None), (4, (6,), None)),
            gloo_op="allreduce",
            expected=_sum,
            pattern=patterns.through_rank_0,
            bytes_sent=lambda case, rank: _whole(case) * (case.world_size - 1 if rank == 0 else 1),
            steps=lambda case: 2 * (case.world_size - 1),
            reference=collectives.naive_allreduce,
            price="the tensor once, rank 0 N - 1 times",
        ),
        Exercise(
            name="ring_reduce_scatter",
            title="Ring reduce-scatter: the first pass",
            chapter="ring_allreduce",
            minutes=25,
            parameters=("mesh", "tensor"),
            cases=_DIVISIBLE,
            on_processes=_real((2, (4,), None), (3, (6, 2), None), (4, (8,), None)),
            gloo_op="reduce_scatter",
            expected=_part_of_sum,
            pattern=patterns.ring,
            bytes_sent=lambda case, rank: (case.world_size - 1) * _chunk(case),
            steps=lambda case: case.world_size - 1,
            reference=collectives.reduce_scatter,
            price="N - 1 chunks, that is (N - 1)/N of the tensor",
        ),
        Exercise(
            name="ring_allgather",
            title="Ring allgather: the second pass",
            chapter="ring_allreduce",
            minutes=15,
            parameters=("mesh", "tensor"),
            cases=_ANY_SHAPE,
            on_processes=_real((2, (5,), None), (3, (5,), None), (4, (2, 3), None)),
            gloo_op="allgather",
            expected=_stacked,
            pattern=patterns.ring,
            bytes_sent=lambda case, rank: (case.world_size - 1) * _whole(case),
            steps=lambda case: case.world_size - 1,
            reference=collectives.allgather,
            price="N - 1 tensors, one per step",
        ),
        Exercise(
            name="ring_allreduce",
            title="Ring allreduce: two passes, any size",
            chapter="ring_allreduce",
            minutes=25,
            parameters=("mesh", "tensor"),
            cases=_ANY_SHAPE,
            on_processes=_real((2, (5,), None), (3, (8,), None), (4, (3, 3), None)),
            gloo_op="allreduce",
            expected=_sum,
            pattern=patterns.ring,
            bytes_sent=lambda case, rank: 2 * (case.world_size - 1) * _chunk(case),
            steps=lambda case: 2 * (case.world_size - 1),
            reference=collectives.ring_allreduce,
            price="2(N - 1) chunks, that is 2(N - 1)/N of the padded tensor",
        ),
        Exercise(
            name="broadcast",
            title="Broadcast: a doubling tree from any root",
            chapter="broadcast_allgather_reduce_scatter",
            minutes=25,
            parameters=("mesh", "tensor", "src"),
            cases=_ANY_ROOT,
            on_processes=_real((2, (5,), 1), (3, (5,), 2), (4, (2, 3), 1)),
            gloo_op="broadcast",
            expected=_of_src,
            pattern=patterns.tree,
            bytes_sent=lambda case, rank: _doublings(case) * _whole(case),
            steps=_doublings,
            reference=collectives.broadcast,
            price="at most ceil(log2 N) tensors",
        ),
        Exercise(
            name="tree_allreduce",
            title="Tree allreduce: up and down again",
            chapter="ring_or_tree",
            minutes=25,
            parameters=("mesh", "tensor"),
            cases=_ANY_SHAPE,
            on_processes=_real((2, (5,), None), (3, (5,), None), (4, (2, 3), None)),
            gloo_op="allreduce",
            expected=_sum,
            pattern=patterns.up_and_down,
            bytes_sent=lambda case, rank: (_doublings(case) + (rank != 0)) * _whole(case),
            steps=lambda case: 2 * _doublings(case),
            reference=collectives.tree_allreduce,
            price="one tensor up, at most ceil(log2 N) down",
        ),
        Exercise(
            name="halving_doubling",
            title="Halving and doubling: the ring's bytes in a tree's steps",
            chapter="ring_or_tree",
            minutes=45,
            parameters=("mesh", "tensor"),
            cases=_ANY_SHAPE,
            on_processes=_real((2, (5,), None), (3, (5,), None), (4, (2, 3), None)),
            gloo_op="allreduce",
            expected=_sum,
            pattern=patterns.halving_doubling,
            bytes_sent=_halving_doubling_bytes,
            steps=_halving_doubling_steps,
            reference=collectives.halving_doubling_allreduce,
            price="2(P - 1)/P of the tensor padded to a multiple of P, all of it in a fold",
        ),
        Exercise(
            name="gloo_bits",
            title="The bits of gloo: a ring that adds in gloo's order",
            chapter="your_ring_under_ddp",
            minutes=40,
            parameters=("mesh", "tensor"),
            cases=_ANY_SHAPE,
            on_processes=_sorted(
                *(case for n in (3, 4) for case in _real((n, (4 * n + 1,), None))),
                *(Case(3, (size,), t, fractions=True) for size, t in _GLOO_SIZES),
                *(Case(4, (size,), t, fractions=True) for size, t in _GLOO_SIZES),
            ),
            gloo_op="allreduce",
            expected=_sum,
            pattern=patterns.ring_to_the_left,
            bytes_sent=lambda case, rank: 2 * (sum(_gloo_chunks(case)) - min(_gloo_chunks(case))),
            steps=lambda case: 2 * (case.world_size - 1),
            reference=collectives.ring_allreduce,
            price="in each of two passes every chunk but one",
            bit_equal=True,
        ),
    )
}

EXERCISES: dict[str, Exercise | Task] = {**_COLLECTIVES, **TASKS}
