"""coalesced_broadcast: many tensors in few messages."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minidist.grading import replicas
from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.exercises.bucket_assignment import buckets_with
from minidist.grading.report import Feedback
from minidist.trace import dtype_name

_LARGE = 2**60 + 1  # a whole number that float64 would round

Described = list[tuple[str, tuple[int, ...], str]]  # dtype, shape, layout


class _Holder(nn.Module):
    """Holds tensors, as a module holds its parameters and buffers."""

    def __init__(self, described: Described):
        super().__init__()
        self.tensors = [_zeros(*one) for one in described]

    def fill(self, rank: int) -> _Holder:
        """Other numbers on every rank and in every tensor."""
        with torch.no_grad():
            for number, tensor in enumerate(self.tensors):
                start = 10 * rank + number + (_LARGE if tensor.dtype == torch.int64 else 0)
                values = torch.arange(start, start + tensor.numel()).reshape(tensor.shape)
                tensor.copy_(values if tensor.dtype == torch.int64 else values % 256)
        return self

    def values(self) -> list[list[float]]:
        return [tensor.detach().reshape(-1).tolist() for tensor in self.tensors]


def _zeros(dtype: str, shape: tuple[int, ...], layout: str) -> Tensor:
    tensor = torch.zeros(tuple(shape), dtype=getattr(torch, dtype))
    if layout == "transposed":
        return torch.zeros(tuple(reversed(shape)), dtype=getattr(torch, dtype)).t()
    return nn.Parameter(tensor) if layout == "parameter" else tensor


def broadcasted(
    functions: Functions, described: Described, cap: int, src: int, world_size: int
) -> dict[str, Any]:
    """What the tensors of each rank hold after the reader's broadcast."""

    def wrap(module: _Holder, comm: replicas.Comm) -> _Holder:
        module.fill(comm.rank)
        functions[0](list(module.tensors), cap, src, comm)
        return module

    def script(_: Any, module: _Holder, rank: int, note: replicas.Note) -> None:
        note({"values": module.values()})

    return replicas.play(wrap, lambda: _Holder(described), script, world_size)


def _f32(*sizes: int) -> Described:
    return [("float32", (size,), "dense") for size in sizes]


_BATCHNORM = [*_f32(8, 8), ("int64", (), "dense")] * 3
# The tensors, the cap, who sends, how many ranks.
_CASES = (
    ("three tensors, all together", _f32(5, 6, 7), 10**6, 0, 2),
    ("three tensors from rank 2", _f32(5, 6, 7), 10**6, 2, 3),
    ("one tensor beyond the cap, then two", _f32(500, 1, 1), 400, 0, 2),
    ("one a bit beyond the cap, then two", _f32(150, 1, 1), 400, 0, 2),
    ("the third overshoots", _f32(49, 50, 1000, 1), 400, 0, 2),
    ("two fill the cap", _f32(50, 50, 50), 400, 1, 2),
    ("a transposed one", [("float32", (3, 4), "transposed"), *_f32(2)], 10**6, 0, 2),
    ("parameters and an empty one", [("float32", (4, 2), "parameter"), *_f32(0, 3)], 64, 1, 2),
    ("means, variances and counters", _BATCHNORM, 10**6, 0, 4),
    ("means, variances and counters, a small cap", _BATCHNORM, 64, 3, 4),
    ("two dtypes of floats", [*_f32(10), ("float64", (5,), "dense")] * 3, 80, 1, 3),
    ("no tensors", [], 400, 0, 2),
    ("one rank", _f32(5, 6, 7), 400, 0, 1),
)


def _of(trial: Trial) -> tuple[Described, int, int, int]:
    described, cap, src, n = (trial.arguments[k] for k in ("described", "cap", "src", "world_size"))
    return described, cap, src, n


def _values(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    described, _, src, n = _of(trial)
    want = _Holder(described).fill(src).values()
    for rank in range(n):
        came = said["notes"][rank][0]["values"]
        wrong = [k for k in range(len(want)) if came[k] != want[k]]
        if not wrong:
            continue
        before = _Holder(described).fill(rank).values()
        dtype, shape, _ = described[wrong[0]]
        rounded = came[wrong[0]] != before[wrong[0]]
        if not said["notes"][rank][0]["calls"]:
            why = "Nothing was sent. What is left over at the end is sent too, full or not."
        elif {described[k][0] for k in wrong} == {"int64"} and rounded:
            why = "A large whole number was rounded, as floats do: flatten dtypes apart."
        elif src and came == _Holder(described).fill(0).values():
            why = f"Here rank {src} sends: src, not always 0."
        elif {described[k][2] for k in wrong} == {"transposed"}:
            why = (
                "reshape(-1) of a tensor that does not lie row after row is a copy: copy_ the "
                "piece into the tensor itself, viewed as its shape."
            )
        elif came == before:
            why = (
                "What arrives in the flat tensor is to be copied back into the tensors themselves."
            )
        else:
            why = "Cut the flat tensor into pieces as long as the tensors, in the same order."
        return Feedback(
            f"Tensor {wrong[0]} ({dtype}, shape {list(shape)}) is not that of rank {src}.",
            rank=rank,
            expected=str(want[wrong[0]]),
            came=str(came[wrong[0]]),
            diagnosis=why,
        )
    return None


_MISTAKES = {
    "beneath": "A tensor is added first, then the flat tensor is sent if it holds cap bytes or "
    "more: it may hold more.",
    "above": "A flat tensor that holds exactly cap bytes is full: >=, not >.",
    "elements": "The cap is in bytes: numel() * element_size().",
    "one at a time": "Each dtype keeps its flat tensor open while tensors of others come.",
}


def _messages(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    described, cap, _, n = _of(trial)
    tensors = [tensor.detach() for tensor in _Holder(described).tensors]

    def sizes(buckets: list[list[int]]) -> list[list[Any]]:
        """Dtype and bytes of each message."""
        return sorted(
            [
                dtype_name(tensors[bucket[0]].dtype),
                sum(tensors[k].numel() * tensors[k].element_size() for k in bucket),
            ]
            for bucket in buckets
        )

    def assigned(limit: int) -> list[list[int]]:
        return dist._compute_bucket_assignment_by_size(tensors, [limit])[0] if tensors else []

    want = sizes(assigned(cap))
    for rank in range(n):
        calls = said["notes"][rank][0]["calls"]
        came = sorted([dtype, nbytes] for _, _, dtype, nbytes in calls)
        other = next((op for op, *_ in calls if op != "broadcast"), None)
        if came == want and not other:
            continue
        if other:
            why = f"A broadcast is asked for, not {other}."
        elif came == sizes([[k] for k in range(len(tensors))]):
            why = "Flatten tensors of one dtype into one: each message has its own latency."
        else:
            why = next(
                (
                    text
                    for mistake, text in _MISTAKES.items()
                    if came == sizes(buckets_with(mistake, tensors, [cap], [False] * len(tensors)))
                ),
                "",
            )
        if not why and came == sizes(assigned(2**60)):
            why = "The cap bounds the memory of the flat tensors: send one when it holds cap bytes."
        return Feedback(
            "The messages are not those of the contract.",
            rank=rank,
            expected=_told(want),
            came=_told(came),
            diagnosis=why,
        )
    return None


def _told(messages: list[list[Any]]) -> str:
    sizes = ", ".join(f"{nbytes} bytes of {dtype}" for dtype, nbytes in messages[:4])
    more = ", ..." * (len(messages) > 4)
    return f"{len(messages)} ({sizes}{more})" if messages else "none"


EXERCISE = TrialExercise(
    name="coalesced_broadcast",
    title="Many tensors in few messages",
    chapter="initialization",
    minutes=30,
    functions={"coalesced_broadcast": ("tensors", "cap", "src", "comm")},
    cases=[
        Trial(
            broadcasted,
            f"{says}, {n} rank{'s' * (n > 1)}, cap {cap}, src {src}",
            {"described": described, "cap": cap, "src": src, "world_size": n},
            order,
        )
        for order, (says, described, cap, src, n) in enumerate(_CASES)
    ],
    checks=(
        ("agree", "every rank calls the same collectives", replicas.agreed),
        ("values", "the values of rank src on every rank, to the bit", _values),
        ("messages", "messages and bytes as PyTorch's own assignment has them, live", _messages),
    ),
    deadline_s=10.0,
)
