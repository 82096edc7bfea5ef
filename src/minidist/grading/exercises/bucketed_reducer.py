"""bucketed_reducer: gradients in buckets, which are sent in one order on every rank."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from minidist.grading import replicas
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.replicas import batch, gradients, same, short
from minidist.grading.report import Feedback


class _Branches(nn.Module):
    """A trunk and two branches, run in the order that the caller says; the last comes back first.

    `halfway` is called in the backward when both branches have their gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 4)
        self.halfway = None

    def forward(self, x: Tensor, order: str) -> Tensor:
        between = self.trunk(x)
        if self.halfway:
            between.register_hook(self.halfway)
        outputs = {name: getattr(self, name)(between) for name in order}
        return torch.cat([outputs["a"], outputs["b"]], 1)


def _build() -> _Branches:
    return replicas.with_whole_numbers(_Branches().double())


def _script(steps: list[list[str]]) -> replicas.Script:
    def script(replica: Any, module: nn.Module, rank: int, note: replicas.Note) -> None:
        for number, orders in enumerate(steps):
            if orders == ["zero_grad()"]:
                module.zero_grad()
                continue
            module.halfway = lambda _: note({"halfway": True})
            replica(batch(rank, number), orders[rank]).sum().backward()
            note({"gradients": gradients(module)})

    return script


def trained(functions: Functions, buckets: list[list[str]], steps: list[list[str]]) -> dict:
    """What the reader's replicas have halfway through each backward and after it."""

    def wrap(module: nn.Module, comm: replicas.Comm) -> nn.Module:
        named = dict(module.named_parameters())
        functions[0](module, comm, [[named[name] for name in bucket] for bucket in buckets])
        return module

    return replicas.play(wrap, _build, _script(steps), len(steps[0]))


def _of(*layers: str) -> tuple[str, ...]:
    return tuple(f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias"))


_ZERO = ("zero_grad()",)
_PAIR, _EACH, _LAST = (
    (_of("b", "a"), _of("trunk")),
    (_of("b"), _of("a"), _of("trunk")),
    (_of("trunk"), _of("a"), _of("b")),
)
# Buckets, and per step the order in which each rank runs its branches.
_RUNS = (
    (_PAIR, (("ab", "ab"),)),
    (_EACH, (("ab", "ab", "ab"), _ZERO, ("ab", "ab", "ab"))),
    (_PAIR, (("ab", "ba"),)),
    (_EACH, (("ab", "ba"), ("ba", "ba"))),
    (_LAST, (("ba", "ab"),)),
    (_EACH, (("ba", "ab", "ab", "ba"),)),
    (_PAIR, (("ab",), ("ba",))),
)


@cache
def _ddp(steps: tuple[tuple[str, ...], ...]) -> list[list[dict[str, Any]]]:
    """PyTorch's own gradients after each backward."""
    return replicas.play_ddp(_build, _script([list(orders) for orders in steps]), len(steps[0]))


def _backwards(trial: Trial, said: dict[str, Any]) -> list[tuple[int, int, dict, dict, dict]]:
    """(backward, rank, what came halfway, what came after it, what DDP has after it)"""
    steps = trial.arguments["steps"]
    due = _ddp(tuple(tuple(orders) for orders in steps))
    return [
        (number, rank, *said["notes"][rank][2 * number :][:2], due[rank][2 * number + 1])
        for number in range(len(steps) - steps.count(list(_ZERO)))
        for rank in range(len(steps[0]))
    ]


def _averages(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    n, buckets = len(trial.arguments["steps"][0]), trial.arguments["buckets"]
    for number, rank, halfway, after, due in _backwards(trial, said):
        for name, want in due["gradients"].items():
            came = after["gradients"][name]
            if same(came, want):
                continue
            calls = halfway["calls"] + after["calls"]
            if number and not calls:
                why = "Nothing was sent this time: a bucket that was sent is empty again."
            elif len(calls) < len(buckets):
                why = (
                    "A bucket was never sent: when one is sent, those behind it may be full "
                    "already, and no hook will come for them."
                )
            elif came and same([v / n for v in came], want):
                why = "It is the sum over ranks: divide by the world size, once."
            else:
                why = (
                    "Each gradient has a fixed place in its bucket, the same on every rank and not "
                    "that of its arrival, and the average has to come back from there into .grad."
                )
            return Feedback(
                f"After backward {number} the gradient of {name} is not PyTorch's.",
                rank=rank,
                expected=short(want),
                came=short(came),
                diagnosis=why,
            )
    return None


def _order(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    numel = {name: p.numel() for name, p in _build().named_parameters()}
    buckets = trial.arguments["buckets"]
    sizes = [sum(numel[name] for name in bucket) for bucket in buckets]
    waits = next(i for i, bucket in enumerate(buckets) if bucket[0].startswith("trunk"))
    for number, rank, halfway, after, _ in _backwards(trial, said):
        early = [count for _, count, _, _ in halfway["calls"]]
        sent = early + [count for _, count, _, _ in after["calls"]]
        if sent != sizes:
            return Feedback(
                f"Backward {number} does not send the buckets as the contract says.",
                rank=rank,
                expected=f"all_reduces of {sizes} elements",
                came=f"{sent}",
                diagnosis="Bucket 1 goes after bucket 0, also when it is full before: the order "
                "of the list is the one thing that all ranks know."
                if sorted(sent) == sorted(sizes)
                else "One all_reduce for each bucket, with all of its gradients in one tensor.",
            )
        if early != sizes[:waits]:
            return Feedback(
                f"In backward {number} both branches have their gradients, the trunk has not, and "
                "what was sent is not what is full.",
                rank=rank,
                expected=f"all_reduces of {sizes[:waits]} elements",
                came=f"{early}",
                diagnosis="Send a bucket as soon as it is full and those before it are sent, "
                "while the backward goes on.",
            )
    return None


EXERCISE = TrialExercise(
    name="bucketed_reducer",
    title="A reducer with buckets",
    chapter="the_reducer",
    minutes=40,
    functions={"reduce_in_buckets": ("module", "comm", "buckets")},
    cases=[
        Trial(
            trained,
            f"buckets {' | '.join(' '.join(bucket) for bucket in buckets)}, branches per rank: "
            + ", then ".join(" | ".join(step) for step in steps),
            {"buckets": [list(b) for b in buckets], "steps": [list(step) for step in steps]},
            order,
        )
        for order, (buckets, steps) in enumerate(_RUNS)
    ],
    checks=(
        ("agree", "every rank calls the same collectives", replicas.agreed),
        ("averages", "gradients as PyTorch's DDP has them, live", _averages),
        ("order", "one all_reduce per bucket, in order, as soon as it is full", _order),
    ),
    deadline_s=10.0,
)
