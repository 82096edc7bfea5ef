"""bucket_assignment: which gradients share a bucket."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minidist.grading.cases import Functions, Trial
from minidist.grading.exercise import TrialExercise
from minidist.grading.report import Feedback

_DTYPES = ("float32", "float64", "bfloat16")


def _tensor(dtype: str, shape: list[int], device: str, layout: str) -> Tensor:
    if layout == "expanded":  # one element in memory, whatever the shape
        return torch.empty(1, dtype=getattr(torch, dtype), device=device).expand(shape)
    return torch.empty(shape, dtype=getattr(torch, dtype), device=device)


def _tensors(described: list) -> list[Tensor]:
    return [_tensor(*one) for one in described]


def assigned(
    functions: Functions, described: list, limits: list[int], sparse: list[bool]
) -> dict[str, Any]:
    """What the reader's function returns, as far as it is lists of whole numbers."""
    answer = functions[0](_tensors(described), list(limits), list(sparse))
    try:
        buckets, used = answer
        return {
            "buckets": [[int(index) for index in bucket] for bucket in buckets],
            "limits": [int(limit) for limit in used],
        }
    except (TypeError, ValueError):
        return {"nothing like it": repr(answer)[:100]}


def _f32(*sizes: int) -> list:
    return [("float32", (size,), "cpu", "dense") for size in sizes]


def _in_turn(count: int, *kinds: tuple[str, int]) -> list:
    return [(dtype, (size,), "cpu", "dense") for dtype, size in kinds] * count


def _random(seed: int, count: int) -> tuple[list, list[int], list[bool]]:
    choose = random.Random(seed)
    tensors = [
        (choose.choice(_DTYPES), (choose.randint(0, 60),), choose.choice(("cpu", "meta")), "dense")
        for _ in range(count)
    ]
    limits = [choose.randint(1, 400) for _ in range(3)]
    return tensors, limits, [choose.random() < 0.1 for _ in tensors]


_MIB = 2**18  # float32s in a MiB
_F32_ON = [("float32", (10,), device, "dense") for device in ("cpu", "meta")]
_CASES = (
    ("one tensor", _f32(1), [400], ()),
    ("two that fit together", _f32(1, 1), [400], ()),
    ("one that is too large", _f32(150, 1), [400], ()),
    ("two that fill a bucket each", _f32(100, 100), [400], ()),
    ("two that fill a bucket together", _f32(99, 1, 1), [400], ()),
    ("one that overshoots", _f32(99, 1000, 1), [400], ()),
    ("a limit of 0", _f32(1, 1), [0], ()),
    ("empty tensors", _f32(0, 0, 100, 0), [400], ()),
    (
        "a scalar and a matrix",
        [("float32", s, "cpu", "dense") for s in ((), (11, 9), (1,))],
        [400],
        (),
    ),
    (
        "a tensor that is expanded",
        [("float32", (100,), "cpu", "expanded"), *_f32(1)],
        [400],
        (),
    ),
    ("a small first limit", _f32(10, 10, 10, 10), [40, 80], ()),
    ("three limits", _f32(*[10] * 7), [40, 80, 120], ()),
    ("two dtypes in turn", _in_turn(3, ("float32", 50), ("float64", 25)), [400], ()),
    (
        "two dtypes in turn, two limits",
        _in_turn(5, ("float32", 50), ("float64", 25)),
        [200, 400],
        (),
    ),
    (
        "16 bits of two kinds",
        _in_turn(3, ("float16", 4), ("bfloat16", 4), ("float32", 2)),
        [8, 16],
        (),
    ),
    ("what is left over began first", [*_in_turn(1, ("float64", 1)), *_f32(100)], [400], ()),
    ("two devices in turn", _F32_ON * 3, [80], ()),
    ("a sparse gradient between others", _f32(10, 10, 10), [1000], (1,)),
    ("a sparse gradient, then a full bucket", _f32(10, 10, 10, 10), [40, 80], (1,)),
    ("30 layers of 1 MiB", [("float32", (_MIB,), "meta", "dense")] * 30, [2**20, 25 * 2**20], ()),
)
_ARGUMENTS = [
    (says, tensors, limits, [index in sparse for index in range(len(tensors))])
    for says, tensors, limits, sparse in _CASES
] + [(f"{count} tensors of all kinds", *_random(count, count)) for count in (12, 40, 200)]


def _due(trial: Trial) -> tuple[list[list[int]], list[int]]:
    """PyTorch's answer."""
    described, limits, sparse = (trial.arguments[k] for k in ("described", "limits", "sparse"))
    return dist._compute_bucket_assignment_by_size(_tensors(described), limits, sparse)


# The special ones first: in their cases a more usual one may give the same buckets.
_MISTAKES = {
    "memory": "What counts are the bytes that would be sent, numel() * element_size(), not those "
    "of the storage.",
    "no device": "Tensors on different devices cannot lie in one flat tensor: the key is (dtype, "
    "device).",
    "a key": "Tensors of different dtypes cannot lie in one flat tensor: a bucket for each dtype.",
    "one at a time": "Each dtype keeps its bucket open while tensors of others come: do not close "
    "it when the dtype changes.",
    "beneath": "A tensor is added first, then the bucket is closed if it holds the limit or more: "
    "it may hold more.",
    "above": "A bucket that holds exactly the limit is full: >=, not >.",
    "elements": "A limit is in bytes: numel() * element_size().",
    "no rest": "What is left over at the end makes buckets too, full or not.",
    "as closed": "Buckets come in the order of their first tensors, not in that in which they "
    "were closed.",
    "shared limits": "Each dtype on each device goes through the limits by itself.",
    "first limit": "After the first bucket the next limit holds, and the last for all that follow.",
    "around": "When the limits are used up, the last one stays: it does not begin anew.",
    "sparse as dense": "A sparse gradient cannot be flattened with others: a bucket for itself.",
    "sparse closes": "A sparse gradient does not close the bucket that is open.",
}


def buckets_with(
    mistake: str, tensors: list[Tensor], limits: list[int], sparse: list[bool]
) -> list[list[int]]:
    """The buckets of who makes this mistake."""
    done: list[list[int]] = []
    open_buckets: dict[Any, list[int]] = defaultdict(list)
    nbytes: dict[Any, int] = defaultdict(int)
    closed: dict[Any, int] = defaultdict(int)
    before = None

    def close(key: Any) -> None:
        if open_buckets[key]:
            done.append(open_buckets[key])
            open_buckets[key], nbytes[key] = [], 0
            closed["all" if mistake == "shared limits" else key] += 1

    for index, tensor in enumerate(tensors):
        key = {"a key": None, "no device": tensor.dtype}.get(mistake, (tensor.dtype, tensor.device))
        if sparse[index] and mistake != "sparse as dense":
            if mistake == "sparse closes":
                close(key)
            done.append([index])
            continue
        if mistake == "one at a time" and before not in (None, key):
            close(before)
        before = key
        number = closed["all" if mistake == "shared limits" else key]
        if mistake == "around":
            number %= len(limits)
        limit = limits[0 if mistake == "first limit" else min(number, len(limits) - 1)]
        size = tensor.numel() * tensor.element_size()
        if mistake == "elements":
            size = tensor.numel()
        elif mistake == "memory":
            size = tensor.untyped_storage().nbytes()
        if mistake == "beneath" and nbytes[key] + size > limit:
            close(key)
        open_buckets[key].append(index)
        nbytes[key] += size
        if mistake != "beneath" and (
            nbytes[key] > limit or (nbytes[key] == limit and mistake != "above")
        ):
            close(key)
    if mistake != "no rest":
        for key in list(open_buckets):
            close(key)
    return done if mistake == "as closed" else sorted(done, key=min)


def _buckets(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    want = _due(trial)[0]
    if "buckets" not in said:
        return Feedback(
            "The answer is not two lists, the buckets and their limits.",
            expected=_short(want),
            came=said["nothing like it"],
        )
    came = said["buckets"]
    if came == want:
        return None
    arguments = (_tensors(trial.arguments["described"]), *_rest(trial))
    why = next((m for m in _MISTAKES if buckets_with(m, *arguments) == came), None)
    lost = set(range(len(arguments[0]))) - set(itertools.chain(*came))
    return Feedback(
        "The buckets are not PyTorch's.",
        expected=_short(want),
        came=_short(came),
        diagnosis=_MISTAKES[why] if why else f"Tensor {min(lost)} is in no bucket." * bool(lost),
    )


def _rest(trial: Trial) -> tuple[list[int], list[bool]]:
    return trial.arguments["limits"], trial.arguments["sparse"]


def _short(buckets: list) -> str:
    text = str(buckets)
    return text if len(text) <= 160 else f"{text[:150]} ..."


def _limits(trial: Trial, said: dict[str, Any]) -> Feedback | None:
    buckets, want = _due(trial)
    came = said["limits"]
    if came == want:
        return None
    sparse = trial.arguments["sparse"]
    wrong = [k for k in range(len(want)) if k >= len(came) or came[k] != want[k]]
    if len(came) != len(want):
        why = "One limit for each bucket, in the order of the buckets."
    elif all(sparse[buckets[k][0]] for k in wrong):
        why = "No limit applies to a sparse gradient; PyTorch says 0."
    elif sorted(came) == sorted(want):
        why = "The limits are right, and not sorted along with their buckets."
    else:
        why = "The limit of a bucket is the one that it was filled under, also if it is not full."
    return Feedback(
        "The buckets are PyTorch's, the limits that came with them are not.",
        expected=_short(want),
        came=_short(came),
        diagnosis=why,
    )


EXERCISE = TrialExercise(
    name="bucket_assignment",
    title="Which gradients share a bucket",
    chapter="buckets",
    minutes=25,
    functions={"bucket_assignment": ("tensors", "limits", "sparse")},
    cases=[
        Trial(
            assigned,
            f"{says}, limits {', '.join(map(str, limits))}",
            {"described": tensors, "limits": limits, "sparse": sparse},
            order,
        )
        for order, (says, tensors, limits, sparse) in enumerate(_ARGUMENTS)
    ],
    checks=(
        ("buckets", "buckets as PyTorch's own function has them, live", _buckets),
        ("limits", "the limit of each bucket", _limits),
    ),
)
