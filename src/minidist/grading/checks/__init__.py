"""The checks, in the order in which their failure helps most. Each judges a whole attempt.

All of it runs in the grader's own process: the learner's process never sees an expected value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidist.grading.answers import Attempt
from minidist.grading.cases import Trial
from minidist.grading.checks.endings import loads, no_distributed, runs, terminates
from minidist.grading.checks.messages import chain, leftover, messages, sent_bytes
from minidist.grading.checks.on_processes import gloo, processes
from minidist.grading.checks.results import inputs, refuses, result, values
from minidist.grading.exercise import Exercise, TrialExercise
from minidist.grading.report import Feedback

Judge = Callable[[Any, Attempt], Feedback | None]


FIRST: list[tuple[str, str, Judge]] = [
    ("loads", "the function is there and takes what the contract says", loads),
    ("no_distributed", "it uses only the mesh, not torch.distributed", no_distributed),
    ("runs", "no rank raises an exception", runs),
    ("terminates", "every rank returns, no deadlock, no endless loop", terminates),
    ("result", "a tensor of the right shape and dtype", result),
    ("values", "exactly the right numbers, world sizes 1 to 8", values),
    ("refuses", "ValueError for what cannot be cut into N parts", refuses),
    ("input", "the input is left alone, the result is a new tensor", inputs),
    ("leftover", "every message sent is received", leftover),
    ("messages", "the right ranks talk to each other", messages),
    ("bytes", "no rank sends more bytes than needed", sent_bytes),
    ("steps", "no more steps than needed", chain),
]
ON_PROCESSES: list[tuple[str, str, Judge]] = [
    ("processes", "the same on real processes", processes),
    ("gloo", "equal to gloo: within 1e-5, or in every bit if the contract says so", gloo),
]
OF_TRIALS: list[tuple[str, str, Judge]] = [
    ("loads", "everything is there and takes what the contract says", loads),
    ("no_distributed", "torch.distributed is not called", no_distributed),
    ("runs", "nothing raises an exception that should not", runs),
    ("terminates", "it returns, no deadlock, no endless loop", terminates),
]


def checks_of(exercise: Exercise) -> list[tuple[str, str, Judge]]:
    """The checks of one exercise: all, less those that have nothing to look at."""
    if isinstance(exercise, TrialExercise):
        own = [(name, title, _of_all_trials(judge)) for name, title, judge in exercise.checks]
        return OF_TRIALS + own
    refusing = any(case.refused for case in exercise.cases)
    return [c for c in FIRST if c[0] != "refuses" or refusing] + ON_PROCESSES


def _of_all_trials(judge: Callable[[Trial, dict[str, Any]], Feedback | None]) -> Judge:
    """A judge of one trial's answer as a judge of the whole attempt: the first that is wrong."""

    def wrong(exercise: TrialExercise, attempt: Attempt) -> Feedback | None:
        for answer in sorted(attempt.finished, key=lambda a: a.case.order):
            try:
                feedback = judge(answer.case, answer.said)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
                feedback = Feedback("Its process said something that is no answer.")
            if feedback:
                feedback.case = feedback.case or str(answer.case)
                return feedback
        return None

    return wrong
