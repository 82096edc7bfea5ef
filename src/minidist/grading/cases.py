"""Cases: the inputs on which an exercise is tried.

A case is small enough to print in one line, and its tensors follow from it alone, so the process
that runs the learner's code and the process that judges it make the same inputs independently.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

# Random whole numbers per dtype, so large that a wrong sum tells which ranks are in it. Sums over 8
# ranks stay exact; a detour through float32 shows in the dtypes that go beyond 2**24. float32
# is what feedback shows first: four digits, no signs.
_LIMITS = {
    "int64": 2**40,
    "int32": 10**6,
    "float64": 2**40,
    "float32": 10**4,
    "float16": 200,
    "bfloat16": 15,
    "uint8": 15,
}

Functions = list[Callable[..., Any]]  # the reader's, in the contract's order; a driver's first


@dataclass(frozen=True)
class Case:
    """One call on every rank: rank r calls `fn(mesh, make_inputs(case)[r])`, or with `src` too."""

    world_size: int
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "contiguous"  # or "transposed", "every second"
    src: int | None = None
    refused: bool = False  # the contract asks for a ValueError
    salts: tuple[
        int | None, ...
    ] = ()  # per rank; a rank that knows only its own cannot make others
    fractions: bool = False  # random reals instead of whole numbers, for the comparison with gloo

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) if self.shape else "0-dim"
        parts = [f"world size {self.world_size}", f"{self.dtype} {shape}"]
        if self.layout == "transposed":
            parts.append("transposed (strided)")
        if self.layout == "every second":
            parts.append("every second element (strided)")
        if self.src is not None:
            parts.append(f"src {self.src}")
        return ", ".join(parts)

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def is_plain(self) -> bool:
        """Nothing special but its world size: what feedback shows first."""
        return (
            self.layout == "contiguous"
            and self.dtype == "float32"
            and len(self.shape) == 1
            and self.numel > 0
            and not self.refused
        )

    @property
    def order(self) -> tuple[bool, int, int, int, int]:
        """Cases sort by this: plain before special, small before large.

        Where chunks matter, counts that divide come first, then longer ones, then those with fewer
        elements than ranks: a mistake in the ring itself should not show as one in the padding.
        """
        uneven = 0
        if self.src is None and self.numel % self.world_size:
            uneven = 1 if self.numel > self.world_size else 2
        return not self.is_plain, uneven, self.world_size, self.numel, self.src or 0


@dataclass(frozen=True)
class Trial:
    """One run of a driver with the reader's functions, in exercises that are no collectives.

    The driver, a function of the exercise's module, runs in the learner's process and returns plain
    values that JSON can carry: what happened, never whether it was right. That is judged outside.
    """

    driver: Callable[..., dict[str, Any]]  # called as driver(functions, **arguments)
    says: str  # the trial in words, for feedback
    arguments: dict[str, Any] = field(default_factory=dict)
    order: int = 0  # of the trials that fail, the one of the lowest order is told
    world_size: ClassVar[int] = 0  # a Case has ranks whose answers come apart; this has none
    shape: ClassVar[None] = None
    refused: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.says


def make_bases(case: Case) -> list[Tensor]:
    """Per rank the tensor that owns the memory; different numbers on every rank."""
    return [make_base(case, rank) for rank in range(case.world_size)]


def make_base(case: Case, rank: int) -> Tensor:
    """The tensor that owns the memory of rank's input."""
    shape = tuple(reversed(case.shape)) if case.layout == "transposed" else case.shape
    if case.layout == "every second":
        shape = (*shape[:-1], 2 * shape[-1])
    dtype = getattr(torch, case.dtype)
    limit = _LIMITS[case.dtype]
    salt = case.salts[rank] if case.salts else ""
    digest = hashlib.sha256(f"{case}/{rank}/{salt}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    if case.fractions:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    low = 1 if case.dtype in ("uint8", "float32") else -limit
    return torch.randint(low, limit, shape, generator=generator, dtype=torch.int64).to(dtype)


def salted(case: Case) -> Case:
    """The same case with numbers that nobody can know beforehand."""
    return replace(case, salts=tuple(secrets.randbits(63) for _ in range(case.world_size)))


def known_to(case: Case, rank: int) -> Case:
    """What of a salted case rank `rank` may know: its own salt."""
    salts = tuple(salt if r == rank else None for r, salt in enumerate(case.salts))
    return replace(case, salts=salts)


def view(case: Case, base: Tensor) -> Tensor:
    """What the function is given: `base`, or a strided view of it."""
    if case.layout == "transposed":
        return base.t()
    if case.layout == "every second":
        return base[..., ::2]
    return base


def make_inputs(case: Case) -> list[Tensor]:
    """Per rank, what the function is given."""
    return [view(case, base) for base in make_bases(case)]
