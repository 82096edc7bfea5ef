"""no_sync: data parallelism that can skip the communication."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn

from minidist.grading import replicas
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.replicas import batch, gradients, same, short
from minidist.grading.report import Feedback


class _Twice(nn.Module):
    """One layer that is used twice, and a second one that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(self.first(x)))


class _Mixed(nn.Module):
    """A layer of float64 and one of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(3, 2), nn.Linear(2, 2).float()

    def forward(self, x):
        return self.narrow(self.wide(x).float()).double()


def _build(model: str) -> nn.Module:
    if model == "mixed dtypes":
        module = _Mixed()
        module.wide.double()
    elif model == "shared and used twice":
        module = _Twice().double()
    else:
        module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
        if model == "a frozen bias":
            module[0].bias.requires_grad_(False)
    return replicas.with_whole_numbers(module)


def _script(words: list[str]) -> replicas.Script:
    def script(replica: Any, module: nn.Module, rank: int, note: replicas.Note) -> None:
        for number, word in enumerate(words):
            x = batch(rank, number)
            if word == "synchronised":
                replica(x).sum().backward()
            elif word == "local":
                with replica.no_sync():
                    replica(x).sum().backward()
            elif word == "inner no_sync() has ended":
                with replica.no_sync():
                    with replica.no_sync():
                        pass
                    replica(x).sum().backward()
            elif word == "an exception in no_sync()":
                try:
                    with replica.no_sync():
                        raise KeyError(word)
                except KeyError:
                    pass
            elif word == "only the backward in no_sync()":
                loss = replica(x).sum()
                with replica.no_sync():
                    loss.backward()
            elif word == "only the forward in no_sync()":
                with replica.no_sync():
                    loss = replica(x).sum()
                loss.backward()
            else:
                module.zero_grad()
            note({"gradients": gradients(module)})

    return script


def trained(functions: Functions, model: str, words: list[str], world_size: int) -> dict[str, Any]:
    """What the reader's replicas have after each word of the script."""
    return replicas.play(functions[0], lambda: _build(model), _script(words), world_size)


_SYNCHRONISES = ("synchronised", "only the backward in no_sync()")
_PLAIN, _TWICE, _FROZEN, _MIXED = (
    "two layers",
    "shared and used twice",
    "a frozen bias",
    "mixed dtypes",
)
_S, _L, _Z = "synchronised", "local", "zero_grad()"
_RUNS = (
    (_PLAIN, (_S, _Z, _S), 2),
    (_PLAIN, (_L, _L, _S), 2),
    (_PLAIN, (_L, _S, _Z, _L, _L, _S), 3),
    (_PLAIN, (_L, _S, _S), 4),
    (_PLAIN, (_L, _S), 1),
    (_TWICE, (_S, _Z, _L, _S), 3),
    (_FROZEN, (_L, _S), 2),
    (_MIXED, (_L, _L, _S), 2),
    (_PLAIN, ("an exception in no_sync()", _S), 2),
    (_PLAIN, ("only the backward in no_sync()",), 2),
    (_PLAIN, ("only the forward in no_sync()", _S), 2),
    (_PLAIN, ("inner no_sync() has ended", _S), 2),
)


@cache
def _ddp(model: str, words: tuple[str, ...], world_size: int) -> list[list[dict[str, Any]]]:
    """PyTorch's own gradients after each word."""
    return replicas.play_ddp(lambda: _build(model), _script(list(words)), world_size)


def _averages(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    model, words, n = (trial.arguments[k] for k in ("model", "words", "world_size"))
    due = _ddp(model, tuple(words), n)
    for number, word in enumerate(words):
        for rank in range(n):
            if word not in _SYNCHRONISES:
                continue
            want, came = due[rank][number]["gradients"], said["notes"][rank][number]["gradients"]
            wrong = next((name for name in want if not same(came[name], want[name])), None)
            if wrong is None:
                continue
            return Feedback(
                f"After backward {number} ({word}) the gradient of {wrong} is not PyTorch's.",
                rank=rank,
                expected=short(want[wrong]),
                came=short(came[wrong]),
                diagnosis=_why(words, number, wrong, want[wrong], said, n),
            )
    return None


def _why(
    words: list[str], number: int, name: str, want: list[float], said: dict[str, Any], n: int
) -> str:
    notes = said["notes"]
    came = notes[0][number]["gradients"][name]
    if came and same([v / n for v in came], want):
        return "It is the sum over ranks: divide by the world size, once."
    silent = not notes[0][number]["calls"]
    if silent and words[number] == "only the backward in no_sync()":
        return "What counts is where the forward ran: read the switch there, not in backward."
    if silent and "an exception in no_sync()" in words[:number]:
        return "no_sync() does not put the switch back after an exception: use try and finally."
    if silent and any(word != _S for word in words[:number]):
        return "Nothing was sent, as it does when no_sync() has not put back the switch at its end."
    if silent:
        return "Nothing was sent: the gradients are never averaged."
    if _L in words[:number]:
        return (
            "Is it only the gradient of the last backward that is averaged? The average is due of "
            "all that .grad has accumulated, which a post-accumulate hook finds there."
        )
    return ""


def _counts(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    model, words, n = (trial.arguments[k] for k in ("model", "words", "world_size"))
    each = [(p.numel(), p.element_size()) for p in _build(model).parameters() if p.requires_grad]
    due = sum(numel * itemsize for numel, itemsize in each)
    for rank in range(n):
        for number, word in enumerate(words):
            calls = said["notes"][rank][number]["calls"]
            sent = sum(nbytes for _, _, _, nbytes in calls)
            if word not in _SYNCHRONISES and calls:
                return Feedback(
                    f"Step {number} ({word}) may send nothing, and calls a collective.",
                    rank=rank,
                    expected="no collective",
                    came=f"{len(calls)}, with {sent} bytes",
                    diagnosis="The inner no_sync() has ended, the outer one has not: put back what "
                    "was before."
                    if word == "inner no_sync() has ended"
                    else "An average of averages is the same average, so averages hide it; only "
                    "the count of collectives shows that no_sync() saves nothing.",
                )
            if word in _SYNCHRONISES and (sent != due or len(calls) > len(each)):
                return Feedback(
                    f"Backward {number} ({word}) has another price than the contract says.",
                    rank=rank,
                    expected=f"{due} bytes in at most {len(each)} collectives",
                    came=f"{sent} bytes in {len(calls)}",
                    diagnosis="Some gradients go over the wire more than once." * (sent > due),
                )
    return None


EXERCISE = TrialExercise(
    name="no_sync",
    title="no_sync: skip the communication, not the sum",
    chapter="unused_static_no_sync",
    minutes=30,
    functions={"data_parallel": ("module", "comm")},
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
        ("collectives", "no collective under no_sync(), each gradient once otherwise", _counts),
    ),
    deadline_s=10.0,
)
