"""What an exercise is: a contract on the reader's functions, and how it is tried and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from minidist.grading import diagnose, patterns
from minidist.grading.answers import Answer
from minidist.grading.cases import Case, Trial
from minidist.grading.report import Feedback
from minidist.trace import Trace

TrialJudge = Callable[[Trial, dict[str, Any]], Feedback | None]


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """What all exercises have; each is one of the two below."""

    name: str  # also that of its module and of its folder in exercises/
    title: str
    chapter: str  # the chapter that it belongs to
    minutes: int
    deadline_s: float = 2.0  # for one case or trial


@dataclass(frozen=True, kw_only=True)
class CollectiveExercise(Exercise):
    """A collective, tried on cases. `bytes_sent(case, rank)` and `steps(case)` are upper bounds."""

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
    bit_equal: bool = False  # to gloo, not only within 1e-5
    # What wrong values look like, or ''; given the answer, and what each rank should have returned.
    wrong_values: Callable[[Answer, list[Tensor]], str] = diagnose.wrong_sum

    @property
    def functions(self) -> dict[str, tuple[str, ...]]:
        """What the reader's file must define, and with which parameters."""
        return {self.name: self.parameters}


@dataclass(frozen=True, kw_only=True)
class TrialExercise(Exercise):
    """Functions that are no collectives, tried by drivers.

    A trial is run by its driver in the reader's process; `checks` (name, title, judge), which come
    after loads, runs and terminates, see in ours what the driver said. That may be anything: a
    judge may raise a KeyError or the like on it, which becomes a feedback.
    """

    functions: dict[str, tuple[str, ...]]  # what the reader's file defines, with which parameters
    cases: Sequence[Trial]
    checks: Sequence[tuple[str, str, TrialJudge]]
