"""What a collective returns, refuses, and does to its input."""

from __future__ import annotations

import torch
from torch import Tensor

from minidist.grading import diagnose, patterns
from minidist.grading.answers import Answer, Attempt
from minidist.grading.cases import Case, make_bases, make_inputs
from minidist.grading.checks.told import last_place, number, numbers, smallest
from minidist.grading.exercise import CollectiveExercise
from minidist.grading.report import Feedback
from minidist.trace import dtype_name


def result(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """Each rank returns a tensor of the right shape and dtype."""

    def wrong(answer: Answer) -> Feedback | None:
        for rank, want in enumerate(expected_on_ranks(exercise, answer.case)):
            came = answer.ranks[rank].result
            if came is None:
                kind = answer.ranks[rank].type
                return Feedback(
                    f"Rank {rank} returned {'nothing' if kind == 'NoneType' else 'a ' + kind}.",
                    rank=rank,
                    expected=_kind(want),
                    came=kind,
                    diagnosis="Is a `return` missing?" if kind == "NoneType" else "",
                )
            if came.shape != want.shape:
                why = ""
                parts = came.numel() % len(answer.ranks) == 0 and came.dim() == 1
                ring = exercise.pattern is patterns.ring and exercise.gloo_op == "allreduce"
                if ring and parts and came.numel() > want.numel():
                    why = "The padding is still there: cut it off and give back the input's shape."
                elif came.numel() == want.numel():
                    why = "The elements are there, in another shape: reshape at the end."
                return Feedback(
                    f"Rank {rank} returned another shape than the contract says.",
                    rank=rank, expected=_kind(want), came=_kind(came), diagnosis=why,
                )  # fmt: skip
            if came.dtype != want.dtype:
                return Feedback(
                    f"Rank {rank} returned another dtype than it was given.",
                    rank=rank,
                    expected=_kind(want),
                    came=_kind(came),
                    diagnosis="A buffer was made without dtype=tensor.dtype."
                    if came.is_floating_point() == want.is_floating_point()
                    else "A buffer was made without dtype=tensor.dtype, or `/` has turned whole "
                    "numbers into floats (the sum is asked for, not the mean).",
                )
        return None

    return smallest(attempt, wrong)


def values(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """Every element on every rank is exactly right."""

    def wrong(answer: Answer) -> Feedback | None:
        expected, came = expected_on_ranks(exercise, answer.case), answer.results
        if all(torch.equal(e, c) for e, c in zip(expected, came, strict=True)):
            return None
        rank, index = diagnose.first_difference(expected, came)
        want, have = expected[rank].reshape(-1), came[rank].reshape(-1)
        where = f"element {index}" if want.numel() > 1 else "the only element"
        return Feedback(
            f"Rank {rank} returned wrong values, first at {where}: "
            f"{number(have[index])} instead of {number(want[index])}.",
            rank=rank,
            expected=numbers(want, index),
            came=numbers(have, index),
            diagnosis=exercise.wrong_values(answer, expected),
        )

    return smallest(attempt, wrong)


def refuses(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """What the contract refuses raises ValueError, before anything is sent."""
    for answer in attempt.answers:
        if not answer.case.refused:
            continue
        sent = sum(len(r.events) for r in answer.ranks.values())
        problem = answer.problem
        if problem and problem.type == "ValueError" and not sent:
            continue
        size = answer.case.shape[0] if answer.case.shape else "none"
        came = f"{problem.type}: {problem.text}" if problem else "no error"
        if problem and problem.type == "ValueError":
            came = f"ValueError, but after {sent} sends and receives"
        return Feedback(
            "What cannot be cut into N equal parts must be refused with ValueError.",
            case=str(answer.case),
            expected=f"ValueError on every rank, nothing sent (dimension 0: {size})",
            came=came.splitlines()[0],
            place=last_place(problem.where) if problem else None,
            diagnosis="Check tensor.dim() and tensor.shape[0] % mesh.world_size first. Padding "
            "would give some ranks parts of another size, and torch.distributed refuses it, too.",
        )
    return None


def inputs(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """The input holds what it held, and the result lies in memory of its own."""

    def wrong(answer: Answer) -> Feedback | None:
        for rank, base in enumerate(make_bases(answer.case)):
            if answer.ranks[rank].input_after != _raw(base):
                return Feedback(
                    f"Rank {rank} changed its input.",
                    rank=rank,
                    expected="the input holds afterwards what it held before",
                    came="other numbers",
                    diagnosis="reshape, view and flatten do not copy: work on a clone.",
                )
            if answer.ranks[rank].alias:
                return Feedback(
                    f"Rank {rank} returned a tensor that shares memory with its input.",
                    rank=rank,
                    expected="a new tensor",
                    came="the input itself, or a view of it",
                    diagnosis="Whoever writes to the result would change the input: return a "
                    "clone, also where there is nothing to do.",
                )
        return None

    return smallest(attempt, wrong)


def expected_on_ranks(exercise: CollectiveExercise, case: Case) -> list[Tensor]:
    return exercise.expected(case, make_inputs(case))


def _kind(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"


def _raw(tensor: Tensor) -> bytes:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
