"""naive_ddp: data parallelism in two functions, without hooks and buckets."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from minidist.grading import replicas
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.replicas import batch, gradients, same, short
from minidist.grading.report import Feedback


class _Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


class _Spare(nn.Module):
    """A layer that every batch uses, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.used = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x)


class _Mixed(nn.Module):
    """A layer of float64 and one of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.narrow(self.wide(x).float()).double()


class _Transposed(nn.Module):
    """A weight that does not lie in memory row after row."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 3).t())

    def forward(self, x):
        return x @ self.weight


_PLAIN, _TIED, _FROZEN, _SPARE, _MIXED, _TRANSPOSED = (
    "two layers",
    "a weight that two layers share",
    "a frozen bias",
    "a layer that is never used",
    "mixed dtypes",
    "a transposed weight",
)


def _build(model: str) -> nn.Module:
    if model == _MIXED:
        module = _Mixed()
        module.wide.double()
        return replicas.with_whole_numbers(module)
    layers = {_TIED: _Tied, _SPARE: _Spare, _TRANSPOSED: _Transposed}
    module = layers[model]() if model in layers else nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    if model == _FROZEN:
        module[0].bias.requires_grad_(False)
    return replicas.with_whole_numbers(module.double())


def _start(module: nn.Module, rank: int) -> None:
    """Other parameters on every rank."""
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter += rank * (number + 1)


def _values(module: nn.Module) -> dict[str, list[float]]:
    return {
        name: parameter.detach().double().reshape(-1).tolist()
        for name, parameter in module.named_parameters()
    }


class _Hands:
    """The reader's two functions as a replica, so that DDP can play the same script."""

    def __init__(self, functions: Functions, module: nn.Module, comm: replicas.Comm):
        self.module, self.comm = module, comm
        self.share, self.average = functions
        self.share(module, comm)

    def __call__(self, x):
        return self.module(x)

    def after_backward(self) -> None:
        self.average(self.module, self.comm)


def _script(steps: int) -> replicas.Script:
    def script(replica: Any, module: nn.Module, rank: int, note: replicas.Note) -> None:
        note({"parameters": _values(module)})
        for number in range(steps):
            module.zero_grad()
            replica(batch(rank, number)).sum().backward()
            if isinstance(replica, _Hands):
                replica.after_backward()
            note({"gradients": gradients(module)})
            with torch.no_grad():
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter -= parameter.grad

    return script


def trained(functions: Functions, model: str, steps: int, world_size: int) -> dict[str, Any]:
    """The parameters of the reader's ranks at the start, and the gradients after each step."""

    def wrap(module: nn.Module, comm: replicas.Comm) -> _Hands:
        _start(module, comm.rank)
        return _Hands(functions, module, comm)

    return replicas.play(wrap, lambda: _build(model), _script(steps), world_size)


_RUNS = (
    (_PLAIN, 1, 2),
    (_PLAIN, 2, 3),
    (_PLAIN, 1, 4),
    (_PLAIN, 2, 1),
    (_FROZEN, 2, 2),
    (_TIED, 2, 3),
    (_SPARE, 2, 2),
    (_MIXED, 2, 2),
    (_TRANSPOSED, 2, 2),
)


@cache
def _ddp(model: str, steps: int, world_size: int) -> list[list[dict[str, Any]]]:
    """What PyTorch's DDP has at the same moments. It starts as rank 0 does, on every rank."""
    return replicas.play_ddp(
        lambda: _build(model), _script(steps), world_size, find_unused_parameters=model == _SPARE
    )


def _of(trial: Trial) -> tuple[str, int, int, list[list[dict[str, Any]]]]:
    model, steps, n = (trial.arguments[k] for k in ("model", "steps", "world_size"))
    return model, steps, n, _ddp(model, steps, n)


def _parameters(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    model, _, n, due = _of(trial)
    for rank in range(n):
        want, came = due[rank][0]["parameters"], said["notes"][rank][0]["parameters"]
        wrong = [name for name in want if not same(came[name], want[name])]
        if not wrong:
            continue
        frozen = {k for k, p in _build(model).named_parameters() if not p.requires_grad}
        if set(wrong) <= frozen:
            why = "Frozen parameters take part in the forward as well: they are broadcast too."
        elif not said["notes"][rank][0]["calls"]:
            why = "Nothing was sent."
        elif rank == 0:
            why = "It has changed on rank 0, and it is those of rank 0 that all should get."
        elif model == _TRANSPOSED:
            why = (
                "reshape(-1) of a weight that does not lie row after row is a copy: broadcast the "
                "parameter itself."
            )
        else:
            why = "The broadcast must arrive in the parameter itself, not in a copy of it."
        return Feedback(
            f"At the start {wrong[0]} is not rank 0's.",
            rank=rank,
            expected=short(want[wrong[0]]),
            came=short(came[wrong[0]]),
            diagnosis=why,
        )
    return None


def _averages(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    _, steps, n, due = _of(trial)
    for number in range(steps):
        for rank in range(n):
            want = due[rank][1 + number]["gradients"]
            came = said["notes"][rank][1 + number]["gradients"]
            wrong = next((name for name in want if not same(came[name], want[name])), None)
            if wrong is None:
                continue
            calls = said["notes"][rank][1 + number]["calls"]
            if want[wrong] is None:
                why = "It had no gradient on any rank, and PyTorch leaves it so: not zeros."
            elif came[wrong] is None:
                why = "Its gradient is gone."
            elif not calls and n > 1:
                why = "Nothing was sent: the gradients are never averaged."
            elif same([v / n for v in came[wrong]], want[wrong]):
                why = "It is the sum over ranks: divide by the world size, once."
            elif same([v * n for v in came[wrong]], want[wrong]):
                why = (
                    "Divided by the world size once too often: a weight that two layers share is "
                    "one parameter, with one gradient."
                )
            elif number:
                why = "It was right in the first step: hold on to no gradient of an old step."
            else:
                why = "The average must arrive in .grad itself, not in a copy of it."
            return Feedback(
                f"After step {number} the gradient of {wrong} is not PyTorch's.",
                rank=rank,
                expected=short(want[wrong]),
                came=short(came[wrong]),
                diagnosis=why,
            )
    return None


def _counts(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    model, steps, n, due = _of(trial)
    parameters = dict(_build(model).named_parameters())
    for rank in range(n):
        for moment in range(1 + steps):
            calls = said["notes"][rank][moment]["calls"]
            if moment:
                op, what = "all_reduce", f"After backward {moment - 1}"
                with_gradient = due[rank][moment]["gradients"]
                sent = [p for name, p in parameters.items() if with_gradient[name] is not None]
            else:
                op, what, sent = "broadcast", "At the start", list(parameters.values())
            nbytes = sum(p.numel() * p.element_size() for p in sent)
            came = sum(call[3] for call in calls)
            if len(calls) == len(sent) and came == nbytes and all(c[0] == op for c in calls):
                continue
            if any(call[0] != op for call in calls):
                why = f"What is due here is {op}."
            elif len(calls) > len(sent) and model == _TIED:
                why = (
                    "A weight that two layers share is sent once: module.parameters() names it so."
                )
            elif len(calls) > len(sent):
                why = "Some are sent more than once, or without need: what has no gradient is not."
            elif len(calls) < len(sent):
                why = "Here each parameter goes by itself; to send several together comes later."
            else:
                why = "They go in their own dtype."
            return Feedback(
                f"{what} the collectives are not those of the contract.",
                rank=rank,
                expected=f"{len(sent)} times {op}, {nbytes} bytes",
                came=f"{len(calls)} collectives, {came} bytes",
                diagnosis=why,
            )
    return None


EXERCISE = TrialExercise(
    name="naive_ddp",
    title="Naive DDP: rank 0's parameters, then averaged gradients",
    chapter="the_reducer",
    minutes=20,
    functions={
        "share_parameters": ("module", "comm"),
        "average_gradients": ("module", "comm"),
    },
    cases=[
        Trial(
            trained,
            f"{model}, {n} rank{'s' * (n > 1)}, {steps} step{'s' * (steps > 1)}",
            {"model": model, "steps": steps, "world_size": n},
            order,
        )
        for order, (model, steps, n) in enumerate(_RUNS)
    ],
    checks=(
        ("agree", "every rank calls the same collectives", replicas.agreed),
        ("parameters", "rank 0's parameters on every rank at the start", _parameters),
        ("averages", "gradients as PyTorch's DDP has them, live", _averages),
        ("collectives", "one collective for each parameter", _counts),
    ),
    deadline_s=10.0,
)
