"""Grading one function: run it elsewhere, judge it here, stop at the first check that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from minidist._travel import pack
from minidist.grading import checks
from minidist.grading.answers import Attempt, attempt
from minidist.grading.checks.on_processes import try_on_processes
from minidist.grading.exercise import CollectiveExercise, Exercise
from minidist.grading.exercises import EXERCISES
from minidist.grading.prints import Printed
from minidist.grading.recordings import record_until_wrong
from minidist.grading.report import FAILED, NOT_REACHED, PASSED, CheckResult, Feedback, Report
from minidist.grading.sandbox import Code

Progress = Callable[[CheckResult], None]


def check(name: str, *functions: Callable, deadline_s: float | None = None) -> Report:
    """Grade a function of yours, for example one from a notebook cell.

    name: the exercise, for example "ring_allreduce". functions: any callable with that contract,
    or several, in the contract's order, where it asks for more than one; they run in processes of
    their own and never in this one. deadline_s: seconds for one case (if not given, 2 s for most).
    The Report shows itself in a notebook; `report.passed` is the verdict.
    Raises ValueError if there is no such exercise, or if it needs another number of functions.
    """
    exercise = exercise_named(name)
    if len(functions) != len(exercise.functions):
        raise ValueError(f"{name} asks for {', '.join(exercise.functions)}, in this order")
    return grade(exercise, ("function", pack(functions)), deadline_s=deadline_s)


def grade_file(name: str, path: Path, progress: Progress | None = None) -> Report:
    """Grade the function that a file defines. The file runs in processes of its own."""
    exercise = exercise_named(name)
    code = ("file", (str(path), path.read_bytes()))
    return grade(exercise, code, progress)


def exercise_named(name: str) -> Exercise:
    """The exercise, or a ValueError that says which there are."""
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]


def grade(
    exercise: Exercise,
    code: Code,
    progress: Progress | None = None,
    deadline_s: float | None = None,
) -> Report:
    """Check after check, simulated ranks first, then real processes and gloo."""
    began = time.monotonic()
    deadline_s = exercise.deadline_s if deadline_s is None else deadline_s
    report = Report(exercise.name, exercise.title)

    def note(name: str, title: str, feedback: Feedback | None, of: Attempt) -> bool:
        if feedback:
            report.printed_in = feedback.case if of.has(feedback.case) else None
            keep_prints(of.printed(report.printed_in))
        state = FAILED if feedback else PASSED
        done = CheckResult(name, title, state, feedback, time.monotonic() - began)
        report.checks.append(done)
        if progress:
            progress(done)
        return feedback is None

    def keep_prints(printed: Printed) -> None:
        report.printed, report.printed_cut = printed.text, printed.cut

    tried = attempt(code, list(exercise.functions), exercise.cases, deadline_s)
    keep_prints(tried.printed())
    good = True
    for name, title, judge in checks.checks_of(exercise):
        if not good:
            report.checks.append(CheckResult(name, title, NOT_REACHED))
            continue
        if (name, title, judge) not in checks.ON_PROCESSES:
            good = note(name, title, judge(exercise, tried), tried)
            continue
        if name == "processes":
            real = list(try_on_processes(exercise, code, deadline_s))
        for one in real:
            if feedback := judge(exercise, one):
                break
        good = note(name, title, feedback, one)
    if isinstance(exercise, CollectiveExercise):
        _add_recording(report, exercise, code, tried.stop is not None, deadline_s)
    report.seconds = time.monotonic() - began
    return report


def _add_recording(
    report: Report, exercise: CollectiveExercise, code: Code, stopped: bool, deadline_s: float
) -> None:
    """Where the run of the failing case first differs from the course's own, step by step."""
    failed = report.failed_check
    if stopped or not failed or not failed.feedback:
        return
    case = next((c for c in exercise.cases if str(c) == failed.feedback.case), None)
    found = case and record_until_wrong(exercise, code, case, deadline_s)
    if found:
        report.recording, divergence = found
        report.differs_at = divergence.frame
        text = divergence.text.removesuffix(f": {report.recording.error}").rstrip(".")
        failed.feedback.divergence = f"{text}."  # the error itself is in the feedback already
