"""What checks share: the smallest wrong answer, and how values and exceptions are told."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from minidist.grading import diagnose
from minidist.grading.answers import Answer, Attempt, Place, Problem
from minidist.grading.cases import Case
from minidist.grading.report import Feedback


def smallest(attempt: Attempt, wrong: Callable[[Answer], Feedback | None]) -> Feedback | None:
    """The feedback on the smallest answer that is wrong, with what the wrong ones share."""
    found: list[tuple[Answer, Feedback]] = []
    right: list[Case] = []
    for answer in attempt.finished:
        if answer.case.refused:
            continue
        feedback = wrong(answer)
        if feedback:
            found.append((answer, feedback))
        else:
            right.append(answer.case)
    if not found:
        return None
    answer, feedback = min(found, key=lambda pair: pair[0].case.order)
    feedback.case = str(answer.case)
    common = diagnose.only_when([a.case for a, _ in found], right)
    feedback.diagnosis = join(feedback.diagnosis, common)
    return feedback


def raised(problem: Problem) -> str:
    who = f"rank {problem.rank}" if problem.rank is not None else "it"
    text = problem.text.strip().split("\n")[0]
    first = who[0].upper() + who[1:]
    return f"{first} raised {problem.type}" + (f": {text}" if text else ".")


def how_it_got_there(problem: Problem) -> str:
    if len(problem.where) < 2:
        return ""
    lines = [f"  {p.file}:{p.line} in {p.function}\n    {p.code}" for p in problem.where]
    return "How it got there:\n" + "\n".join(lines)


def last_place(places: list[Place]) -> Place | None:
    return places[-1] if places else None


def join(*sentences: str) -> str:
    return " ".join(s for s in sentences if s)


def number(value: Tensor) -> str:
    number = value.item()
    return f"{int(number)}" if float(number).is_integer() else f"{number:.6g}"


def numbers(flat: Tensor, around: int) -> str:
    start = max(0, min(around - 2, flat.numel() - 8))
    shown = [number(v) for v in flat[start : start + 8]]
    left = "..., " if start else ""
    right = ", ..." if start + 8 < flat.numel() else ""
    return f"[{left}{', '.join(shown)}{right}]"
