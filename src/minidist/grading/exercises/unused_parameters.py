"""unused_parameters: data parallelism when a batch does not use every parameter."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn

from minidist.grading import replicas
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.replicas import batch, gradients, same, short
from minidist.grading.report import Feedback


class _Branches(nn.Module):
    """A trunk and three branches; the caller says which to take. Two share a weight, one is frozen.

    With two branches it returns a tuple.
    """

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.a, self.b, self.c = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)
        if tied:
            self.b.weight = self.a.weight
            self.c.bias.requires_grad_(False)

    def forward(self, x, branches: str):
        outputs = tuple(getattr(self, name)(self.trunk(x)) for name in branches)
        return outputs if len(outputs) > 1 else outputs[0]


def _build(tied: bool) -> nn.Module:
    return replicas.with_whole_numbers(_Branches(tied).double())


def _script(steps: list[list[str]]) -> replicas.Script:
    def script(replica: Any, module: nn.Module, rank: int, note: replicas.Note) -> None:
        for number, branches in enumerate(steps):
            if branches == ["zero_grad()"]:
                module.zero_grad()
                continue
            outputs = replica(batch(rank, number), branches[rank])
            parts = outputs if isinstance(outputs, tuple) else (outputs,)
            sum((k + 1) * part.sum() for k, part in enumerate(parts)).backward()
            note({"gradients": gradients(module)})

    return script


def trained(functions: Functions, tied: bool, steps: list[list[str]]) -> dict[str, Any]:
    """What the reader's replicas have after each backward."""
    return replicas.play(functions[0], lambda: _build(tied), _script(steps), len(steps[0]))


_ZERO = ("zero_grad()",)
# Per step which branches each rank takes.
_RUNS = (
    (False, (("ab", "ab"),)),
    (False, (("a", "a"),)),
    (False, (("a", "b"),)),
    (False, (("a", "ab"), _ZERO, ("ab", "b"))),
    (False, (("a", "b", "b"), _ZERO, ("b", "a", "a"), _ZERO, ("ac", "a", "a"))),
    (False, (("ab", "ab"), ("a", "b"))),
    (False, (("a", "b", "c", "ab"),)),
    (False, (("a",),)),
    (True, (("a", "b"), _ZERO, ("c", "a"))),
    (True, (("b", "c", "c"), ("a", "b", "b"))),
)


@cache
def _ddp(tied: bool, steps: tuple[tuple[str, ...], ...]) -> list[list[dict[str, Any]]]:
    """PyTorch's own gradients after each backward."""
    script = _script([list(branches) for branches in steps])
    return replicas.play_ddp(
        lambda: _build(tied), script, len(steps[0]), find_unused_parameters=True
    )


def _backwards(trial: Trial) -> tuple[list[list[str]], list[list[dict[str, Any]]]]:
    """The branches of each backward, and what DDP has noted after it, per rank."""
    tied, steps = trial.arguments["tied"], trial.arguments["steps"]
    due = _ddp(tied, tuple(tuple(branches) for branches in steps))
    return [branches for branches in steps if branches != list(_ZERO)], due


def _averages(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    steps, due = _backwards(trial)
    for number, branches in enumerate(steps):
        for rank in range(len(branches)):
            want = due[rank][number]["gradients"]
            came = said["notes"][rank][number]["gradients"]
            for name in want:
                if want[name] is None or same(came[name], want[name]):
                    continue
                return Feedback(
                    f"After backward {number} the gradient of {name} is not PyTorch's.",
                    rank=rank,
                    expected=short(want[name]),
                    came=short(came[name]),
                    diagnosis=_why(said, number, branches, rank, came[name], want[name]),
                    details=_taken(branches),
                )
    return None


def _why(
    said: dict[str, Any],
    number: int,
    branches: list[str],
    rank: int,
    came: list[float] | None,
    want: list[float],
) -> str:
    silent = not said["notes"][rank][number]["calls"]
    if silent and number and said["notes"][rank][0]["calls"]:
        return "Nothing was sent this time: search the graph anew in every forward."
    if silent:
        return (
            "Nothing was sent: it waits for gradients that never come. Only a search through the "
            "graph, from the outputs back, says which parameters this backward will reach."
        )
    if any(len(taken) > 1 for taken in branches) and number == 0 and len(set(branches)) == 1:
        return "Search from every output, not only the first."
    if came is None:
        return "This rank has not used it, but another rank has used it: the average is due to all."
    n = len(branches)
    if any(same([v * k / n for v in came], want) for k in range(1, n)):
        return (
            "Always divide by the world size: a rank that has not used the parameter counts with "
            "zero, as if its part of the batch had no influence."
        )
    return "A rank that has not used a parameter counts with what its .grad holds, if anything."


def _untouched(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    steps, due = _backwards(trial)
    for number, branches in enumerate(steps):
        for rank in range(len(branches)):
            want = due[rank][number]["gradients"]
            came = said["notes"][rank][number]["gradients"]
            for name in want:
                if want[name] is None and came[name] is not None:
                    return Feedback(
                        f"No rank has used {name}, and after backward {number} it has a gradient.",
                        rank=rank,
                        expected="None",
                        came=short(came[name]),
                        diagnosis="None tells an optimizer to leave a parameter alone; with zeros, "
                        "momentum and weight decay go on moving it. Count the users of all ranks.",
                        details=_taken(branches),
                    )
    return None


def _counts(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    trainable = [p for p in _build(trial.arguments["tied"]).parameters() if p.requires_grad]
    most = sum(8 * p.numel() + 8 for p in trainable)
    for rank, notes in enumerate(said["notes"]):
        for number, noted in enumerate(notes):
            sent = sum(nbytes for _, _, _, nbytes in noted["calls"])
            if len(noted["calls"]) > 2 or sent > most:
                return Feedback(
                    f"Backward {number} costs more than the contract says.",
                    rank=rank,
                    expected=f"2 collectives, at most {most} bytes",
                    came=f"{len(noted['calls'])}, with {sent} bytes",
                    diagnosis="All gradients go in one tensor, and so does who has used what.",
                )
    return None


def _taken(branches: list[str]) -> str:
    lines = [f"  rank {r}: {', '.join(taken)}" for r, taken in enumerate(branches)]
    return "Which branches were used:\n" + "\n".join(lines)


EXERCISE = TrialExercise(
    name="unused_parameters",
    title="Unused parameters: gradients that never come",
    chapter="unused_static_no_sync",
    minutes=40,
    functions={"data_parallel": ("module", "comm")},
    cases=[
        Trial(
            trained,
            f"{'shared and frozen, ' * tied}branches per rank: "
            + ", then ".join(" | ".join(step) for step in steps),
            {"tied": tied, "steps": [list(step) for step in steps]},
            order,
        )
        for order, (tied, steps) in enumerate(_RUNS)
    ],
    checks=(
        ("agree", "every rank calls the same collectives", replicas.agreed),
        ("averages", "gradients as PyTorch's DDP has them, live", _averages),
        ("untouched", "a parameter that no rank has used is left alone", _untouched),
        ("collectives", "two collectives for each backward", _counts),
    ),
    deadline_s=10.0,
)
