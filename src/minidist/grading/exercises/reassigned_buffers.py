"""reassigned_buffers: rank 0's buffers before every forward, also those assigned anew."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from minidist.grading import replicas
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.replicas import batch
from minidist.grading.report import Feedback

_LARGE = 2**60 + 1  # a whole number that float64 would round


class _Running(nn.Module):
    """A layer with running sums: some are assigned anew in each forward, one changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("factor", torch.ones(2))  # saved for the backward
        self.register_buffer("seen", torch.tensor(_LARGE))
        self.register_buffer("total", torch.zeros(2))
        self.register_buffer("largest", torch.zeros(1, 2), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        with torch.no_grad():
            self.seen += len(x)
            self.total = self.total + y.sum(0)
            self.largest = torch.maximum(self.largest, y.amax(0, keepdim=True))
        return y * self.factor


def _build(model: str) -> nn.Module:
    module = _Running() if model == "running sums" else nn.Sequential(nn.Linear(3, 2))
    return replicas.with_whole_numbers(module.double())


def _script(words: list[str]) -> replicas.Script:
    def script(replica: Any, module: nn.Module, rank: int, note: replicas.Note) -> None:
        if isinstance(module, _Running):  # others on every rank, and after wrapping
            module.factor = module.factor + rank
            module.seen = module.seen + rank
        for number, word in enumerate(words):
            module.train(word != "eval")
            with torch.set_grad_enabled(word != "no_grad"):
                loss = replica(batch(rank, number)).sum()
                if word == "two forwards, one backward":
                    loss = loss + replica(batch(rank, 100 + number)).sum()
            if word not in ("eval", "no_grad"):
                loss.backward()
            note({"buffers": {n: b.reshape(-1).tolist() for n, b in module.named_buffers()}})

    return script


def forwarded(functions: Functions, model: str, words: list[str], world_size: int) -> dict:
    """The buffers of the reader's replicas after each step."""
    return replicas.play(functions[0], lambda: _build(model), _script(words), world_size)


_SUMS, _NONE = "running sums", "no buffers"
_RUNS = (
    (_SUMS, ("train",), 2),
    (_SUMS, ("train", "train", "train"), 3),
    (_SUMS, ("train", "eval", "train"), 2),
    (_SUMS, ("train", "no_grad"), 4),
    (_SUMS, ("train", "two forwards, one backward"), 2),
    (_SUMS, ("train", "train"), 1),
    (_NONE, ("train", "eval"), 2),
)


@cache
def _ddp(model: str, words: tuple[str, ...], world_size: int) -> list[list[dict[str, Any]]]:
    """The buffers under PyTorch's DDP after each step."""
    return replicas.play_ddp(lambda: _build(model), _script(list(words)), world_size)


def _buffers(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    model, words, n = (trial.arguments[k] for k in ("model", "words", "world_size"))
    due = _ddp(model, tuple(words), n)
    for number, word in enumerate(words):
        for rank in range(n):
            want, came = due[rank][number]["buffers"], said["notes"][rank][number]["buffers"]
            wrong = [name for name in want if came[name] != want[name]]
            if not wrong:
                continue
            name = "total" if "total" in wrong else wrong[0]
            calls = said["notes"][rank][number]["calls"]
            last = said["notes"][n - 1][number]["buffers"]
            if not calls and word == "eval":
                why = "Every forward counts, in training or not."
            elif not calls:
                why = "Nothing was sent: the broadcast is due before every forward."
            elif wrong == ["largest"]:
                why = "This buffer is not in the state_dict (persistent=False): module.buffers()."
            elif rank == 0 and wrong == ["seen"]:
                why = "A large whole number was rounded, as float64 does: flatten dtypes apart."
            elif rank == 0:
                why = "It has changed on rank 0, and it is those of rank 0 that all should get."
            elif all(note[number]["buffers"] == last for note in said["notes"]):
                why = (
                    "All ranks have the same after the forward; the broadcast is due before the "
                    "forward, which then changes them on each rank by itself."
                )
            else:
                why = (
                    "The module has assigned a new tensor to it (self.total = ...): collect the "
                    "buffers anew before each forward."
                )
            return Feedback(
                f"After step {number} ({word}) the buffer {name} is not as under PyTorch's DDP.",
                rank=rank,
                expected=str(want[name]),
                came=str(came[name]),
                diagnosis=why,
            )
    return None


def _counts(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    model, words, n = (trial.arguments[k] for k in ("model", "words", "world_size"))
    buffers = list(_build(model).buffers())
    dtypes = len({buffer.dtype for buffer in buffers})
    nbytes = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
    for rank in range(n):
        for number, word in enumerate(words):
            forwards = 2 if word.startswith("two") else 1
            calls = said["notes"][rank][number]["calls"]
            sent = sum(count for _, _, _, count in calls)
            if len(calls) > forwards * dtypes or sent > forwards * nbytes:
                return Feedback(
                    f"Step {number} ({word}) costs more than the contract says.",
                    rank=rank,
                    expected=f"{forwards * dtypes} broadcasts, {forwards * nbytes} bytes",
                    came=f"{len(calls)}, {sent} bytes",
                    diagnosis="Flatten the buffers of one dtype into one tensor: each message has "
                    "its own latency.",
                )
    return None


EXERCISE = TrialExercise(
    name="reassigned_buffers",
    title="Buffers that are assigned anew",
    chapter="buffers",
    minutes=25,
    functions={"share_buffers": ("module", "comm")},
    cases=[
        Trial(
            forwarded,
            f"{model}, {n} rank{'s' * (n > 1)}: {', then '.join(words)}",
            {"model": model, "words": list(words), "world_size": n},
            order,
        )
        for order, (model, words, n) in enumerate(_RUNS)
    ],
    checks=(
        ("agree", "every rank calls the same collectives", replicas.agreed),
        ("buffers", "buffers as under PyTorch's DDP, live", _buffers),
        ("collectives", "one broadcast for each dtype in a forward", _counts),
    ),
    deadline_s=10.0,
)
