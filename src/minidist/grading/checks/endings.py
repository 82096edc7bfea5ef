"""Does the code load, run and come to an end: checks of every exercise."""

from __future__ import annotations

from typing import Any

from minidist.diagnosis import describe_waits
from minidist.grading import diagnose, patterns
from minidist.grading.answers import Attempt
from minidist.grading.cases import Case
from minidist.grading.checks.told import how_it_got_there, join, last_place, raised
from minidist.grading.exercise import CollectiveExercise, Exercise
from minidist.grading.report import Feedback
from minidist.mesh import Deadlock


def loads(exercise: Exercise, attempt: Attempt) -> Feedback | None:
    """The file loads and the function can be called as the contract says."""
    calls = {name: f"{name}({', '.join(ps)})" for name, ps in exercise.functions.items()}
    if attempt.load_problem:
        problem = attempt.load_problem
        return Feedback(
            f"The file does not load: {problem.type}: {problem.text}",
            place=problem.where[-1] if problem.where else None,
        )
    if attempt.stop and attempt.stop.case is None:
        return stopped(attempt, "while it was being loaded")
    loaded = attempt.loaded or {}
    if loaded.get("missing"):
        names = ", ".join(str(n) for n in loaded.get("names", [])) or "no function at all"
        name = next((n for n in calls if n == loaded["missing"]), exercise.name)
        return Feedback(
            f"There is no function {name} here.", expected=f"def {calls.get(name)}", came=names
        )
    if "not_callable" in loaded:
        name, kind = loaded["not_callable"]
        return Feedback(f"This is no function but a {kind}.", expected=calls.get(name, ""))
    for name, parameters in exercise.functions.items():
        feedback = _other_arguments(name, parameters, loaded.get("signatures", {}).get(name))
        if feedback:
            return feedback
    return None


def _other_arguments(name: str, due: tuple[str, ...], parameters: Any) -> Feedback | None:
    if not isinstance(parameters, list):
        return None  # Python cannot say; the calls will
    positional = [p for p in parameters if p[1] or str(p[0]).startswith("*args")]
    needed = [p for p in parameters if not p[2] and not str(p[0]).startswith("*")]
    count = len(due)
    starred = any(str(p[0]).startswith("*") and not p[1] for p in parameters)
    if (len(positional) < count and not starred) or len(needed) > count:
        shown = ", ".join(str(p[0]) for p in parameters)
        return Feedback(
            "The function takes other arguments than the contract says.",
            expected=f"{name}({', '.join(due)})",
            came=f"{name}({shown})",
        )
    return None


def no_distributed(exercise: Exercise, attempt: Attempt) -> Feedback | None:
    """Nothing of torch.distributed was called, not even in a try."""
    if not attempt.distributed:
        return None
    problems = (a.problem for a in attempt.answers if a.problem)
    place = next((last_place(p.where) for p in problems if p.type == "Distributed"), None)
    return Feedback(
        f"Calling torch.distributed is refused: this function called "
        f"{', '.join(attempt.distributed[:3])}.",
        expected="messages through mesh.send, mesh.recv and mesh.sendrecv only"
        if isinstance(exercise, CollectiveExercise)
        else "your own code",
        place=place,
        diagnosis="The exercise is to write what torch.distributed does, not to call it.",
    )


def runs(exercise: Exercise, attempt: Attempt) -> Feedback | None:
    """No rank raises."""
    failing = [
        a
        for a in attempt.answers
        if a.problem and a.problem.type != Deadlock.__name__ and not a.case.refused
    ]
    if not failing:
        return None
    answer = min(failing, key=lambda a: a.case.order)
    hanging = _hanging_cases(attempt)
    if hanging and min(c.order for c in hanging) < answer.case.order:
        return None  # the smaller case is the better story; the next check tells it
    problem = answer.problem
    assert problem is not None
    common = diagnose.only_when([a.case for a in failing], [a.case for a in attempt.finished])
    turns = isinstance(exercise, CollectiveExercise) and exercise.pattern in (
        patterns.ring,
        patterns.ring_to_the_left,
    )
    return Feedback(
        raised(problem),
        case=str(answer.case),
        rank=problem.rank,
        step=problem.step,
        place=last_place(problem.where),
        diagnosis=join(diagnose.reason_for_problem(problem, answer.case, turns), common),
        details=how_it_got_there(problem),
    )


def terminates(exercise: Exercise, attempt: Attempt) -> Feedback | None:
    """Every rank returns: no deadlock, no endless loop, no early exit."""
    stuck = [a for a in attempt.answers if a.problem and a.problem.type == Deadlock.__name__]
    if stuck:
        answer = min(stuck, key=lambda a: a.case.order)
        rank, wait = min(answer.waits.items(), default=(None, None))
        common = diagnose.only_when([a.case for a in stuck], [a.case for a in attempt.finished])
        done = [r for r in range(answer.case.world_size) if r not in answer.waits]
        return Feedback(
            "Deadlock: no rank can go on, each waits for another.",
            case=str(answer.case),
            rank=rank,
            step=wait.step if wait else None,
            place=answer.wait_places.get(rank) if rank is not None else None,
            diagnosis=join(diagnose.reason_for_deadlock(answer), common),
            details="Who waits for whom:\n" + describe_waits(answer.waits, done)
            if answer.waits
            else answer.problem.text,
        )
    if attempt.stop:
        return stopped(attempt, "in this case")
    return None


def stopped(attempt: Attempt, when: str) -> Feedback:
    stop = attempt.stop
    assert stop is not None
    case = str(stop.case) if stop.case else ""
    if stop.how == "late":
        place = last_place(stop.where)
        return Feedback(
            f"Not finished after {attempt.deadline_s:g} s {when}; an endless loop?",
            case=case,
            rank=stop.rank,
            place=place,
            diagnosis="That is the line at which it was when time was up."
            if place
            else "It was not in your own code at that moment.",
        )
    if stop.how == "silent":
        return Feedback(
            f"Not finished after {attempt.deadline_s:g} s {when}, and it did not answer.",
            case=case,
            rank=stop.rank,
        )
    if stop.how == "ended":
        return Feedback(
            f"Its process ended {when} before it gave an answer ({stop.text}).",
            case=case,
            rank=stop.rank,
            diagnosis="A function must return; os._exit, a crash or too little memory end it.",
        )
    return Feedback(
        f"Its process said something that is no answer: {stop.text}.",
        diagnosis="Leave the grader's pipes alone; whatever else your code prints is only shown.",
    )


def _hanging_cases(attempt: Attempt) -> list[Case]:
    stuck = [a.case for a in attempt.answers if a.problem and a.problem.type == Deadlock.__name__]
    return stuck + ([attempt.stop.case] if attempt.stop and attempt.stop.case else [])
