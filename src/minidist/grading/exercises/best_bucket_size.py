"""best_bucket_size: how long a step takes with a bucket cap, and which cap is the best."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from minidist import overlap
from minidist.cost import ring_allreduce_cost
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.report import Feedback

Layers = Sequence[tuple[float, int]]
_KB, _MS = 1000, 1e-3


def timed(
    functions: Functions, layers: Layers, wire: tuple[int, float, float], caps: list[int]
) -> dict[str, Any]:
    """What the reader's model says of each cap, and which cap it finds."""
    given = [(seconds, nbytes) for seconds, nbytes in layers]
    seconds = [functions[0](list(given), *wire, cap) for cap in caps]
    found = functions[1](list(given), *wire)
    return {
        "seconds": [s if type(s) in (int, float) else repr(s)[:100] for s in seconds],
        "best": found if type(found) in (int, float) else repr(found)[:100],
    }


def _random_layers(seed: int, count: int) -> list[tuple[float, int]]:
    choose = random.Random(seed)
    return [(choose.randint(1, 20) * 1e-4, choose.randint(1, 900) * _KB) for _ in range(count)]


# Layers; world size, alpha, beta; caps to time. The wires: a cluster's, a slow one, a lagging one.
_EVEN = [(_MS, 100 * _KB)] * 8
_CASES = (
    ("one layer", [(_MS, 100 * _KB)], (2, 1e-4, 1e-8), [1, 10**9]),
    ("8 even layers, all in one bucket", _EVEN, (2, 1e-4, 1e-9), [800 * _KB, 10**9]),
    ("8 even layers, a bucket each", _EVEN, (2, 1e-4, 1e-9), [1]),
    ("8 even layers on a slow wire", _EVEN, (4, 1e-4, 1e-8), [100 * _KB, 300 * _KB]),
    ("8 even layers, a cap between sizes", _EVEN, (3, 1e-4, 2e-9), [250 * _KB, 301 * _KB]),
    ("8 even layers, where messages are dear", _EVEN, (8, 1e-3, 1e-9), [1, 200 * _KB]),
    ("8 even layers, one rank", _EVEN, (1, 1e-4, 1e-8), [1, 10**9]),
    ("12 layers", _random_layers(1, 12), (4, 3e-4, 2e-9), [_KB, 500 * _KB, 2000 * _KB]),
    ("20 layers", _random_layers(2, 20), (8, 1e-4, 1e-9), [300 * _KB, 10**9]),
    ("30 layers", _random_layers(3, 30), (16, 5e-5, 1e-9), [777 * _KB]),
)


def _model(trial: Trial) -> tuple[list[overlap.Layer], tuple[int, float, float]]:
    layers = trial.arguments["layers"]
    return [overlap.Layer("", s, n) for s, n in layers], trial.arguments["wire"]


def _seconds(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    layers, wire = _model(trial)
    for cap, came in zip(trial.arguments["caps"], said["seconds"], strict=True):
        want = overlap.predict(layers, *wire, cap).finalize
        if isinstance(came, str):
            return Feedback("step_seconds returns no number.", expected=f"{want:.6g}", came=came)
        if not math.isclose(came, want, rel_tol=1e-9):
            return Feedback(
                f"With a cap of {cap} bytes the step takes another time.",
                expected=f"{want:.6g} s",
                came=f"{came:.6g} s",
                diagnosis=_why(layers, wire, cap, came),
            )
    return None


def _why(layers: list[overlap.Layer], wire: tuple[int, float, float], cap: int, came: float) -> str:
    """What mistake gives just this time, if a usual one does."""
    n, alpha, beta = wire
    step = overlap.predict(layers, *wire, cap)

    def one_after_the_other(buckets: list[tuple[float, int]], price: Any) -> float:
        free = 0.0
        for launch, nbytes in buckets:
            free = max(free, launch) + price(nbytes)
        return free

    def ring(nbytes: int) -> float:
        return ring_allreduce_cost(n, nbytes).time(alpha, beta)

    launched = [(b.launch, b.nbytes) for b in step.buckets]
    late = [(step.backward_end, nbytes) for _, nbytes in launched]
    full = [(launch, nbytes) for launch, nbytes in launched if nbytes >= cap]
    under, now, nbytes = [], 0.0, 0
    for layer in layers:
        if nbytes and nbytes + layer.nbytes > cap:
            under.append((now, nbytes))
            nbytes = 0
        now, nbytes = now + layer.seconds, nbytes + layer.nbytes
    under.append((now, nbytes))
    chain = 2 * (n - 1)
    for seconds, why in (
        (
            one_after_the_other(late, ring),
            "Buckets are reduced while the backward pass computes, not after it.",
        ),
        (
            max(step.backward_end, one_after_the_other(full, ring)),
            "The rest is missing: a bucket is launched with the last gradient, full or not.",
        ),
        (
            launched[-1][0] + ring(launched[-1][1]),
            "Buckets are reduced one after the other: one begins when the one before is done.",
        ),
        (
            one_after_the_other(under, ring),
            "A bucket is closed as soon as it holds cap bytes or more; it may hold more.",
        ),
        (
            one_after_the_other(launched, lambda size: chain * (alpha + size * beta)),
            "A message of the ring is one chunk, nbytes / N.",
        ),
        (
            one_after_the_other(launched, lambda size: alpha + chain * size / n * beta),
            "There are 2(N - 1) messages, and every message pays alpha.",
        ),
    ):
        if math.isclose(came, seconds, rel_tol=1e-9):
            return why
    return ""


def _best(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    layers, wire = _model(trial)
    found = said["best"]
    if isinstance(found, str):
        return Feedback("best_cap returns no number.", expected="bytes", came=found)
    shortest = overlap.predict(layers, *wire, overlap.best_cap(layers, *wire))
    step = overlap.predict(layers, *wire, found)
    if step.finalize <= shortest.finalize * (1 + 1e-9):
        return None
    count = len(step.buckets)
    if count == 1:
        why = "One bucket for all is launched with the last gradient. Nothing can be hidden then."
    elif count == len(layers):
        why = "Every bucket pays for its messages: with one per gradient, too much is paid."
    else:
        why = (
            "Where the best cap lies no formula says: buckets change only at caps that are the "
            "bytes of a run of neighbouring layers, so try all of those."
        )
    return Feedback(
        "There is a better cap.",
        expected=f"a step of {shortest.finalize:.6g} s, in {len(shortest.buckets)} buckets",
        came=f"{step.finalize:.6g} s, in {count}, with a cap of {found} bytes",
        diagnosis=why,
    )


EXERCISE = TrialExercise(
    name="best_bucket_size",
    title="The best bucket size: derive the step, then find the cap",
    chapter="buckets",
    minutes=35,
    functions={
        "step_seconds": ("layers", "world_size", "alpha", "beta", "cap"),
        "best_cap": ("layers", "world_size", "alpha", "beta"),
    },
    cases=[
        Trial(timed, says, {"layers": layers, "wire": wire, "caps": caps}, order)
        for order, (says, layers, wire, caps) in enumerate(_CASES)
    ],
    checks=(
        ("seconds", "the step takes as long as the course's model says", _seconds),
        ("best", "no cap gives a shorter step", _best),
    ),
)
