"""Tensors that follow from a seed, and how a process describes one to the grader."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from minidist.grading.report import Feedback
from minidist.trace import dtype_name

Spec = tuple[int, str, tuple[int, ...], bool]  # the arguments of make_tensor


def make_tensor(seed: int, dtype: str, shape: tuple[int, ...], strided: bool = False) -> Tensor:
    """Whole numbers that follow from `seed`; strided: a transposed view."""
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(reversed(shape)) if strided else tuple(shape)
    values = torch.randint(0, 100, shape, generator=generator).to(getattr(torch, dtype))
    return values.t() if strided else values


def describe(value: Any) -> dict[str, Any]:
    """A tensor as JSON: its dtype, shape, first numbers and the hash of its bytes."""
    if not isinstance(value, Tensor):
        return {"type": type(value).__name__}
    flat = value.detach().contiguous().reshape(-1)
    return {
        "type": "Tensor",
        "dtype": dtype_name(value.dtype),
        "shape": list(value.shape),
        "head": [float(v) for v in flat[:6].to(torch.float64)],
        "hash": hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest(),
    }


def other_tensor(want: dict[str, Any], came: dict[str, Any]) -> Feedback | None:
    if came == want:
        return None
    if came["type"] != "Tensor":
        return Feedback(
            f"What came is a {came['type']} and no tensor.", expected=shown(want), came=came["type"]
        )
    if came["dtype"] != want["dtype"]:
        sentence, why = "It arrives with another dtype.", "The header has to say which dtype it is."
    elif came["shape"] != want["shape"]:
        sentence, why = "It arrives with another shape.", "The header has to say which shape it is."
    else:
        sentence, why = "It arrives with other numbers.", ""
    return Feedback(sentence, expected=shown(want), came=shown(came), diagnosis=why)


def shown(tensor: dict[str, Any]) -> str:
    numbers = ", ".join(f"{v:g}" for v in tensor["head"])
    return f"{tensor['dtype']} of shape {tuple(tensor['shape'])}: [{numbers}, ...]"
