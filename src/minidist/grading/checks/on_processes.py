"""The same collective on real processes, and next to gloo."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from minidist import verify
from minidist.grading import diagnose
from minidist.grading.answers import Answer, Attempt, attempt_on_processes
from minidist.grading.cases import Case, make_inputs, salted
from minidist.grading.checks.endings import stopped
from minidist.grading.checks.messages import leftover, messages
from minidist.grading.checks.results import inputs, result, values
from minidist.grading.checks.told import how_it_got_there, last_place, numbers, raised, smallest
from minidist.grading.exercise import CollectiveExercise
from minidist.grading.report import Feedback
from minidist.grading.sandbox import Code


def try_on_processes(
    exercise: CollectiveExercise, code: Code, deadline_s: float
) -> Iterator[Attempt]:
    """One attempt per world size, on numbers that no rank can know of another."""
    by_size: dict[int, list[Case]] = {}
    for case in exercise.on_processes:
        by_size.setdefault(case.world_size, []).append(case)
    for cases in by_size.values():
        # Five times the deadline: a rank also waits here until the last of its peers has started.
        salted_cases = [salted(case) for case in cases]
        yield attempt_on_processes(code, [exercise.name], salted_cases, 5 * deadline_s)


def processes(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """One attempt on real processes gives the same exact values."""
    if attempt.stop:
        return stopped(attempt, "on real processes")
    for answer in attempt.answers:
        if answer.problem:
            return Feedback(
                f"On real processes {raised(answer.problem)}",
                case=str(answer.case),
                rank=answer.problem.rank,
                step=answer.problem.step,
                place=last_place(answer.problem.where),
                details=how_it_got_there(answer.problem),
            )
    whole = [a for a in attempt.answers if not a.case.fractions]
    exact = replace(attempt, answers=whole)
    feedback = (
        result(exercise, exact)
        or values(exercise, exact)
        or leftover(exercise, exact)
        or messages(exercise, exact)
        or inputs(exercise, exact)
    )
    if feedback:
        feedback.sentence = (
            f"Right with simulated ranks, wrong on real processes. {feedback.sentence}"
        )
        feedback.diagnosis = (
            "Real ranks share no memory: does the function keep something in a global, or look at "
            "another rank's tensor?"
        )
    return feedback


def gloo(exercise: CollectiveExercise, attempt: Attempt) -> Feedback | None:
    """The same numbers as torch.distributed over gloo, within 1e-5."""

    def wrong(answer: Answer) -> Feedback | None:
        if not answer.case.fractions:
            return None
        for rank, (mine, theirs) in enumerate(
            zip(answer.results, gloo_outputs(exercise.gloo_op, answer.case), strict=True)
        ):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                difference = float("inf")
            else:
                difference = float((mine.double() - theirs.double()).abs().max())
            if difference > 0 and exercise.bit_equal:
                return _other_bits(answer.case, rank, mine.reshape(-1), theirs.reshape(-1))
            if not difference <= verify.TOLERANCE:
                return Feedback(
                    f"Rank {rank} differs from gloo by {difference:.3g}.",
                    rank=rank,
                    expected=numbers(theirs.reshape(-1), 0),
                    came=numbers(mine.reshape(-1), 0),
                )
        return None

    return smallest(attempt, wrong)


def _other_bits(case: Case, rank: int, mine: Tensor, theirs: Tensor) -> Feedback:
    """Close to gloo, but added in another order; where, and if we know it, in which."""
    wrong = (mine != theirs).nonzero().reshape(-1)
    index = int(wrong[0])
    why = diagnose.order_of_sum(make_inputs(case), mine)
    return Feedback(
        f"Rank {rank} has other bits than gloo in {len(wrong)} of {len(mine)} elements, first in "
        f"element {index}.",
        rank=rank,
        expected=f"element {index}: {theirs[index].item()!r}",
        came=f"element {index}: {mine[index].item()!r}",
        diagnosis=why,
    )


def gloo_outputs(op: str, case: Case) -> list[Tensor]:
    """What gloo gives on this case."""
    return verify.gloo_reference(op, case.world_size, make_inputs(case), case.src or 0)
