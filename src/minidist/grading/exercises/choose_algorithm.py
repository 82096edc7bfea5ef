"""choose_algorithm: which of two allreduces is faster, by the price model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from minidist.cost import ring_allreduce_cost, tree_allreduce_cost
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.report import Feedback

MACHINES = {
    "5 microseconds and 12.5 GB/s": (5e-6, 1 / 12.5e9),
    "30 microseconds and 1 GB/s": (30e-6, 1e-9),
    "1 millisecond and 100 MB/s": (1e-3, 1e-8),
}
_CALLS = [
    (nbytes, n, alpha, beta)
    for n in (1, 2, 3, 4, 5, 8, 16, 100, 1000)
    for nbytes in (0, *(4**k for k in range(1, 15)))
    for alpha, beta in MACHINES.values()
]


def choices(functions: Functions, calls: list[tuple]) -> dict[str, Any]:
    """One answer per call."""
    answers = [functions[0](*call) for call in calls]
    return {"answers": [a if isinstance(a, str) else repr(a)[:100] for a in answers]}


def _tree(nbytes: float, n: int, alpha: float, beta: float) -> float:
    return tree_allreduce_cost(n, nbytes).time(alpha, beta)


def _ring(nbytes: float, n: int, alpha: float, beta: float) -> float:
    return ring_allreduce_cost(n, nbytes).time(alpha, beta)


def _is_a_name(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    for call, answer in zip(_CALLS, said["answers"], strict=True):
        if answer not in ("ring", "tree"):
            return Feedback(
                "The answer is neither of the two names.",
                expected='"ring" or "tree"',
                came=str(answer),
                case=_call(call),
            )
    return None


_MISTAKES: list[tuple[str, Callable[..., float], Callable[..., float]]] = [
    (
        "These are the answers of somebody who takes beta for bytes per second; it is seconds per "
        "byte: multiply.",
        lambda s, n, a, b: _ring(s, n, a, 1 / b),
        lambda s, n, a, b: _tree(s, n, a, 1 / b),
    ),
    (
        "These are the answers of somebody who sends the whole tensor in each step of the ring; "
        "a step carries one chunk, 1/N of it.",
        lambda s, n, a, b: 2 * (n - 1) * (a + s * b),
        _tree,
    ),
    (
        "These are the answers of somebody who does not count the tree's way down: it takes "
        "ceil(log2 N) steps up and as many down.",
        _ring,
        lambda s, n, a, b: _tree(s, n, a, b) / 2,
    ),
    (
        "These are the answers of somebody who does not round log2 N up: with 5 ranks a tree has 3 "
        "levels.",
        _ring,
        lambda s, n, a, b: 2 * math.log2(n) * (a + s * b),
    ),
    (
        "These are the answers of somebody who rounds log2 N down: with 5 ranks a tree has 3 "
        "levels.",
        _ring,
        lambda s, n, a, b: 2 * int(math.log2(n)) * (a + s * b),
    ),
]


def _is_faster(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    wrong = []
    for call, answer in zip(_CALLS, said["answers"], strict=True):
        ring, tree = _ring(*call), _tree(*call)
        if abs(ring - tree) > 1e-9 * max(ring, tree) and (answer == "ring") != (ring < tree):
            wrong.append((call, answer, ring, tree))
    if not wrong:
        return None
    # The one where the difference is plainest.
    call, answer, ring, tree = max(wrong, key=lambda w: max(w[2], w[3]) / min(w[2], w[3]))
    why = ""
    for sentence, of_ring, of_tree in _MISTAKES:
        if all(
            a == ("ring" if of_ring(*c) < of_tree(*c) else "tree")
            for c, a in zip(_CALLS, said["answers"], strict=True)
            if abs(of_ring(*c) - of_tree(*c)) > 1e-9 * of_ring(*c)
        ):
            why = sentence
            break
    else:
        if len(set(said["answers"])) == 1:
            why = "It is the same answer to every question: there are sizes for either."
        elif all(
            len({a for c, a in zip(_CALLS, said["answers"], strict=True) if c[0] == s}) == 1
            for s in {c[0] for c in _CALLS}
        ):
            why = (
                "The answer depends on the size alone: more ranks, a slower start or a faster wire "
                "move the crossover."
            )
    return Feedback(
        f"{len(wrong)} of {len(_CALLS)} choices are the slower one.",
        expected=f"{'ring' if ring < tree else 'tree'}: ring {_time(ring)}, tree {_time(tree)}",
        came=answer,
        case=_call(call),
        diagnosis=why,
    )


def _call(call: tuple) -> str:
    nbytes, n, alpha, beta = call
    return f"{nbytes} bytes, world size {n}, alpha {alpha:g}, beta {beta:g}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.4g} us"


EXERCISE = TrialExercise(
    name="choose_algorithm",
    title="Ring or tree: choose by size and world size",
    chapter="ring_or_tree",
    minutes=30,
    functions={"choose": ("nbytes", "world_size", "alpha", "beta")},
    cases=[Trial(choices, "all questions", {"calls": _CALLS})],
    checks=(
        ("names", 'the answer is "ring" or "tree"', _is_a_name),
        ("choices", "the faster one, on three machines, world sizes 1 to 1000", _is_faster),
    ),
)
