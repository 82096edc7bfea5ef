"""A log of the collectives that a rank asks for, whoever asks: its own code, PyTorch's, or C++."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minidist.trace import dtype_name


class Frame(NamedTuple):
    """A line of Python that was being run, with its source as it is installed."""

    function: str
    file: str
    line: int
    source: str


@dataclass(frozen=True)
class Call:
    """One collective, or one send or receive, as one rank asked for it.

    Two calls are equal when they ask for the same thing; from where, does not count.
    """

    op: str  # as PyTorch names it inside: "broadcast", "allreduce", "allgather", "send", "recv"
    numel: int  # of the tensor that this rank gives (or receives)
    dtype: str
    nbytes: int
    side: bool  # whether on another process group than the default one
    stack: tuple[Frame, ...] = field(compare=False)  # who asked, the outermost first

    def __str__(self) -> str:
        return f"{self.op} {self.numel} {self.dtype}"


class CollectiveLog(TorchDispatchMode):
    """While it is entered, each call on a process group is added to `calls`.

    It sits where PyTorch sends an operation on its way (the dispatcher), so it also sees what C++
    asks for, of gloo and NCCL alike; a process group written in Python is called past it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            self._add(func, args)
        return func(*args, **(kwargs or {}))

    def _add(self, func: Any, args: tuple[Any, ...]) -> None:
        group = next((arg for arg in args if isinstance(arg, torch.ScriptObject)), None)
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        if group is None or not tensors:
            return
        mine = tensors[-1]  # what this rank gives stands last, after the outputs
        stack = traceback.extract_stack()[:-2]  # less this log
        self.calls.append(
            Call(
                func._opname.strip("_"),
                mine.numel(),
                dtype_name(mine.dtype),
                mine.numel() * mine.element_size(),
                dist.ProcessGroup.unbox(group) != dist.group.WORLD,
                tuple(Frame(f.name, f.filename, f.lineno or 0, f.line or "") for f in stack),
            )
        )

    def take(self) -> list[Call]:
        """The calls since the last take."""
        taken, self.calls = self.calls, []
        return taken
