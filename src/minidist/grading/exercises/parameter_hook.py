"""parameter_hook: gradients that are averaged one by one, each as soon as it is there."""

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


class _Layers(nn.Module):
    """Two layers; `halfway` is called in the backward when the second has its gradients."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        if model == "a shared weight":
            self.second.weight = self.first.weight
        if model == "a frozen bias":
            self.second.bias.requires_grad_(False)
        self.halfway = None

    def forward(self, x: Tensor) -> Tensor:
        between = self.first(x)
        if self.halfway:
            between.register_hook(self.halfway)
        return self.second(between)


def _build(model: str) -> _Layers:
    return replicas.with_whole_numbers(_Layers(model).double())


def _script(words: list[str]) -> replicas.Script:
    def script(replica: Any, module: nn.Module, rank: int, note: replicas.Note) -> None:
        trainable = [p for p in module.parameters() if p.requires_grad]
        for number, word in enumerate(words):
            x = batch(rank, number)
            if word == "zero_grad()":
                module.zero_grad()
            elif word == ".grad set by hand":
                for p in trainable:
                    p.grad = torch.full_like(p, 2.0 * rank + 1)
            else:
                module.halfway = lambda _: note({"halfway": True})
                replica(x).sum().backward()
                module.halfway = None
                note({"gradients": gradients(module)})

    return script


def trained(functions: Functions, model: str, words: list[str], world_size: int) -> dict[str, Any]:
    """What the reader's replicas have halfway through each backward and after it."""

    def wrap(module: nn.Module, comm: replicas.Comm) -> nn.Module:
        functions[0](module, comm)
        return module

    return replicas.play(wrap, lambda: _build(model), _script(words), world_size)


_PLAIN, _SHARED, _FROZEN = "two layers", "a shared weight", "a frozen bias"
_B, _A, _Z = "backward", ".grad set by hand", "zero_grad()"
_RUNS = (
    (_PLAIN, (_B,), 2),
    (_PLAIN, (_B,), 3),
    (_PLAIN, (_B, _B), 2),
    (_PLAIN, (_B, _Z, _B), 4),
    (_PLAIN, (_A, _B), 2),
    (_PLAIN, (_B, _B), 1),
    (_SHARED, (_B, _B), 2),
    (_FROZEN, (_A, _B, _Z, _B), 3),
)


@cache
def _ddp(model: str, words: tuple[str, ...], world_size: int) -> list[list[dict[str, Any]]]:
    """PyTorch's own gradients after each backward."""
    return replicas.play_ddp(lambda: _build(model), _script(list(words)), world_size)


def _backwards(trial: Trial, said: dict[str, Any]) -> list[tuple[int, int, dict, dict, dict]]:
    """(backward, rank, what came halfway, what came after it, what DDP has after it)"""
    model, words, n = (trial.arguments[k] for k in ("model", "words", "world_size"))
    due = _ddp(model, tuple(words), n)
    return [
        (number, rank, *said["notes"][rank][2 * number :][:2], due[rank][2 * number + 1])
        for number in range(words.count(_B))
        for rank in range(n)
    ]


def _averages(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    words, n = trial.arguments["words"], trial.arguments["world_size"]
    for number, rank, halfway, after, due in _backwards(trial, said):
        for name, want in due["gradients"].items():
            came = after["gradients"][name]
            if same(came, want):
                continue
            calls = halfway["calls"] + after["calls"]
            why = ""
            if not calls and number:
                why = "Nothing was sent this time: a hook has its work in every backward."
            elif not calls:
                why = "Nothing was sent: a hook is called only when it is registered."
            elif _A in words:
                why = (
                    "Is it only the new gradient that is averaged? The average is due of all that "
                    ".grad holds, which register_hook does not get to see."
                )
            elif came and same([v / n for v in came], want):
                why = "It is the sum over ranks: divide by the world size, once."
            elif came and any(same([v * k / n for v in came], want) for k in range(1, 9)):
                why = (
                    "It has another divisor: that is the world size, however many ranks there are."
                )
            else:
                why = (
                    "Does the average get into .grad? The hook is called with the parameter, not "
                    "with its gradient: that is parameter.grad, to be changed in place."
                )
            return Feedback(
                f"After backward {number} the gradient of {name} is not PyTorch's.",
                rank=rank,
                expected=short(want),
                came=short(came),
                diagnosis=why,
            )
    return None


def _ready(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    module = _build(trial.arguments["model"])
    trainable = [p for p in module.parameters() if p.requires_grad]
    all_sizes = sorted(p.numel() for p in trainable)
    early = [p for p in module.second.parameters() if p.requires_grad]
    first = {id(p) for p in module.first.parameters()}
    early_sizes = sorted(p.numel() for p in early if id(p) not in first)
    for number, rank, halfway, after, _ in _backwards(trial, said):
        sent = sorted(numel for _, numel, _, _ in halfway["calls"])
        total = sorted(sent + [numel for _, numel, _, _ in after["calls"]])
        if total != all_sizes:
            return Feedback(
                f"Backward {number} does not send each gradient once, on its own.",
                rank=rank,
                expected=f"all_reduces of {all_sizes} elements",
                came=f"{total}",
                diagnosis="A shared weight is one parameter and needs one hook: "
                "module.parameters() names it once."
                if len(total) > len(all_sizes)
                else "Each hook sends the gradient of its own parameter.",
            )
        if sent != early_sizes:
            return Feedback(
                f"In backward {number} the second layer's gradients are there, the first's are "
                "not, and what was sent is not what is ready.",
                rank=rank,
                expected=f"all_reduces of {early_sizes} elements",
                came=f"{sent}",
                diagnosis="Send each gradient from its own hook, while the backward goes on: who "
                "waits for the last one has nothing left to hide the communication behind.",
            )
    return None


EXERCISE = TrialExercise(
    name="parameter_hook",
    title="A hook on each parameter",
    chapter="the_reducer",
    minutes=15,
    functions={"average_gradients": ("module", "comm")},
    cases=[
        Trial(
            trained,
            f"{model}, {n} rank{'s' * (n > 1)}: {', '.join(words)}",
            {"model": model, "words": list(words), "world_size": n},
            order,
        )
        for order, (model, words, n) in enumerate(_RUNS)
    ],
    checks=(
        ("agree", "every rank calls the same collectives", replicas.agreed),
        ("averages", "gradients as PyTorch's DDP has them, live", _averages),
        ("ready", "each gradient once, as soon as it is there", _ready),
    ),
    deadline_s=10.0,
)
