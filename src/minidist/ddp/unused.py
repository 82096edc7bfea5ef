"""Which parameters a backward pass will not reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.autograd import Function


def find_tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples, dicts and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from find_tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from find_tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from find_tensors(getattr(value, field.name))


def reachable(nodes: Iterable[Any]) -> set[Any]:
    """All nodes of the autograd graph that a backward pass from `nodes` may come to."""
    todo = [node for node in nodes if node is not None]
    seen = set(todo)
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                todo.append(node)
    return seen


class Sink(Function):
    """The identity on all outputs of a forward at once.

    If the loss uses only some outputs, the backward pass still goes through all of them here, with
    no gradient for the others, and so comes to the hooks of all parameters that the forward used.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # no gradient stays no gradient, and does not become zeros
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return gradients
