"""fp16_compression: gradients that travel as float16."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from minidist.grading import replicas
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.replicas import short
from minidist.grading.report import Feedback


class _Vector(nn.Module):
    """One parameter, whose gradient is what the module is called with."""

    def __init__(self, numel: int, dtype: str) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(numel, dtype=getattr(torch, dtype)))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def _gradient(kind: str, numel: int, dtype: str, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + numel)
    if kind == "whole numbers":
        values = torch.randint(-500, 500, (numel,), generator=generator)
    elif kind == "reals":
        values = torch.randn(numel, generator=generator)
    else:  # each within float16's range or beyond it, the same on all ranks
        values = torch.full((numel,), float(kind))
        values[1::2] *= -1
    return values.to(getattr(torch, dtype))


def _script(kind: str, numel: int, dtype: str) -> replicas.Script:
    def script(replica: Any, module: nn.Module, rank: int, note: replicas.Note) -> None:
        replica(_gradient(kind, numel, dtype, rank)).sum().backward()
        note({"gradient": module.w.grad.double().tolist()})

    return script


def averaged(
    functions: Functions, kind: str, numel: int, dtype: str, world_size: int
) -> dict[str, Any]:
    """What the reader's function makes of the gradients of all ranks."""

    def wrap(module: nn.Module, comm: replicas.Comm) -> nn.Module:
        module.w.register_post_accumulate_grad_hook(lambda w: functions[0](w.grad, comm))
        return module

    return replicas.play(
        wrap, lambda: _Vector(numel, dtype), _script(kind, numel, dtype), world_size
    )


_RUNS = (
    ("whole numbers", 5, "float32", 2),
    ("whole numbers", 8, "float32", 1),
    ("whole numbers", 7, "float64", 4),
    ("reals", 1000, "float32", 2),
    ("reals", 1000, "float32", 3),
    ("reals", 33, "bfloat16", 2),
    ("reals", 33, "float16", 4),
    ("40000", 5, "float32", 2),
    ("60000", 5, "float64", 4),
    ("70000", 5, "float32", 2),
)


@cache
def _hooked(kind: str, numel: int, dtype: str, world_size: int) -> list[list[dict[str, Any]]]:
    """What PyTorch's DDP gets with its own fp16_compress_hook."""
    return replicas.play_ddp(
        lambda: _Vector(numel, dtype),
        _script(kind, numel, dtype),
        world_size,
        comm_hook=fp16_compress_hook,
    )


def _wire(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    due = 2 * trial.arguments["numel"]
    for rank, (noted,) in enumerate(said["notes"]):
        calls = noted["calls"]
        sent = sum(nbytes for _, _, _, nbytes in calls)
        dtypes = sorted({dtype for _, _, dtype, _ in calls})
        if not calls and trial.arguments["world_size"] == 1:
            continue
        if len(calls) == 1 and sent == due and dtypes == ["float16"]:
            continue
        why = ""
        if sent > due:
            why = "Rounding saves nothing if the rounded numbers travel in a wider dtype."
        elif dtypes == ["bfloat16"]:
            why = "bfloat16 is as short, but keeps 8 bits of a number where float16 keeps 11."
        return Feedback(
            "What goes over the wire is not what the contract says.",
            rank=rank,
            expected=f"{due} bytes of float16 in 1 all_reduce",
            came=f"{sent} bytes of {', '.join(dtypes) or 'nothing'} in {len(calls)}",
            diagnosis=why,
        )
    return None


def _averages(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    kind, numel, dtype, n = (trial.arguments[k] for k in ("kind", "numel", "dtype", "world_size"))
    due = _hooked(kind, numel, dtype, n)
    inputs = torch.stack([_gradient(kind, numel, dtype, r).double() for r in range(n)])
    rounding = (inputs.abs().sum(0) / n * 2**-9 + 2**-20).tolist()  # of N float16 additions
    for rank in range(n):
        want, came = due[rank][0]["gradient"], said["notes"][rank][0]["gradient"]
        if all(_close(a, b, r) for a, b, r in zip(came, want, rounding, strict=True)):
            continue
        why = ""
        if any(math.isinf(v) for v in came):
            why = (
                "The sum has left float16's range (65504), though the average is in it. Divide "
                "before the sum."
            )
        elif any(math.isinf(v) for v in want):
            why = "An average beyond float16's range has to show: leave it infinite."
        elif came == inputs[rank].tolist():
            why = "It is this rank's own gradient: the average never came back into flat."
        elif all(_close(a, n * b, n * r) for a, b, r in zip(came, want, rounding, strict=True)):
            why = "It is the sum: divide by the world size."
        elif all(_close(n * a, b, n * r) for a, b, r in zip(came, want, rounding, strict=True)):
            why = "It has been divided twice."
        return Feedback(
            "The gradient is not that of PyTorch's fp16_compress_hook.",
            rank=rank,
            expected=short(want),
            came=short(came),
            diagnosis=why,
        )
    return None


def _close(one: float, other: float, rounding: float) -> bool:
    return one == other or abs(one - other) <= rounding


EXERCISE = TrialExercise(
    name="fp16_compression",
    title="Half the bytes: gradients that travel as float16",
    chapter="views_and_hooks",
    minutes=15,
    functions={"fp16_average": ("flat", "comm")},
    cases=[
        Trial(
            averaged,
            f"{numel} gradients, {kind}, {dtype}, {n} rank{'s' * (n > 1)}",
            {"kind": kind, "numel": numel, "dtype": dtype, "world_size": n},
            order,
        )
        for order, (kind, numel, dtype, n) in enumerate(_RUNS)
    ],
    checks=(
        ("agree", "every rank calls the same collectives", replicas.agreed),
        ("wire", "one all_reduce of float16, 2 bytes per element", _wire),
        ("averages", "gradients as with PyTorch's fp16_compress_hook, live", _averages),
    ),
    deadline_s=10.0,
)
