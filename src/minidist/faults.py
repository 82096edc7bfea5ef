"""Faults on purpose, to see what they look like: `run(..., faults=[Drop(0, 1, 2)])`.

Each fault is something that happens to real clusters. Nothing here runs unless asked for.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minidist.mesh import Mesh
from minidist.transports import Label, Link
from minidist.transports.header import plain, raw_bytes


@dataclass(frozen=True)
class Drop:
    """The wire loses message `number` (0 is the first) from rank `src` to rank `dst`."""

    src: int
    dst: int
    number: int


@dataclass(frozen=True)
class Duplicate:
    """The wire delivers message `number` from `src` to `dst` twice."""

    src: int
    dst: int
    number: int


@dataclass(frozen=True)
class Corrupt:
    """One bit of the first element of message `number` from `src` to `dst` flips on the way.

    Only `run(..., checksums=True)` notices; otherwise the ranks compute with it.
    """

    src: int
    dst: int
    number: int


@dataclass(frozen=True)
class Slow:
    """Each message from `src` to `dst` arrives `seconds` later."""

    src: int
    dst: int
    seconds: float


@dataclass(frozen=True)
class Kill:
    """The process of `rank` dies when it comes to its verb call number `step`."""

    rank: int
    step: int


@dataclass(frozen=True)
class Stall:
    """`rank` stops for `seconds` before its verb call number `step`; 0: it never enters."""

    rank: int
    step: int = 0
    seconds: float = math.inf


Fault = Drop | Duplicate | Corrupt | Slow | Kill | Stall
ON_WIRES = (Drop, Duplicate, Corrupt)  # these need no process of their own and no real time


def check(faults: Sequence[Fault], world_size: int) -> None:
    """ValueError if a fault is about a rank that does not exist."""
    for fault in faults:
        ranks = [getattr(fault, name, 0) for name in ("src", "dst", "rank")]
        if not all(0 <= rank < world_size for rank in ranks):
            raise ValueError(f"{fault}: ranks go from 0 to {world_size - 1}")


def inject(mesh: Mesh, faults: Sequence[Fault]) -> None:
    """Let `faults` happen to what goes through `mesh` from now on."""
    check(faults, mesh.world_size)
    if faults:
        mesh.link = FaultyLink(mesh, faults)


class FaultyLink(Link):
    """A link to which faults happen."""

    def __init__(self, mesh: Mesh, faults: Sequence[Fault]):
        self.mesh = mesh
        self.link = mesh.link
        self.buffered = mesh.link.buffered
        self.faults = list(faults)
        self.late: dict[
            int, tuple[float, tuple[Tensor, Label]]
        ] = {}  # here, but not to be seen yet

    def now(self) -> float:
        return self.link.now()

    def put(self, dst: int, tensor: Tensor, label: Label) -> float:
        self._before(dst)
        return self._put(dst, tensor, label)

    def get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        self._before()
        return self._get(src, timeout_s)

    def exchange(
        self, dst: int, tensor: Tensor, label: Label, src: int, timeout_s: float
    ) -> tuple[Tensor, Label, float]:
        self._before(dst)
        ours = [(f.src, f.dst) for f in self.faults if hasattr(f, "src")]
        if (self.mesh.rank, dst) in ours or (src, self.mesh.rank) in ours:
            sent_at = self._put(dst, tensor, label)
            return *self._get(src, timeout_s), sent_at
        return self.link.exchange(dst, tensor, label, src, timeout_s)

    def close(self) -> None:
        self.link.close()

    def _before(self, dst: int | None = None) -> None:
        mesh = self.mesh
        for fault in self.faults:
            if not isinstance(fault, Kill | Stall):
                continue
            if (fault.rank, fault.step) != (mesh.rank, mesh.step):
                continue
            if isinstance(fault, Kill):
                os.kill(os.getpid(), signal.SIGKILL)
            # It is not in the verb yet: it waits for nobody and has sent nothing.
            wait, mesh.waits_for = mesh.waits_for, None
            if dst is not None:
                mesh.sent[dst] -= 1
            time.sleep(min(fault.seconds, 1e6))
            mesh.waits_for = wait
            if dst is not None:
                mesh.sent[dst] += 1

    def _put(self, dst: int, tensor: Tensor, label: Label) -> float:
        for fault in self.faults:
            message = self.mesh.rank, dst, label.number
            if not isinstance(fault, ON_WIRES) or (fault.src, fault.dst, fault.number) != message:
                continue
            if isinstance(fault, Drop):
                return self.now()
            if isinstance(fault, Duplicate):
                self.link.put(dst, tensor, label)
            if isinstance(fault, Corrupt):
                tensor = _flip_a_bit(tensor)
        return self.link.put(dst, tensor, label)

    def _get(self, src: int, timeout_s: float) -> tuple[Tensor, Label]:
        delays = [
            f.seconds
            for f in self.faults
            if isinstance(f, Slow) and (f.src, f.dst) == (src, self.mesh.rank)
        ]
        if not delays:
            return self.link.get(src, timeout_s)
        deadline = time.monotonic() + timeout_s
        if src not in self.late:
            message = self.link.get(src, timeout_s)
            self.late[src] = time.monotonic() + sum(delays), message
        arrival, message = self.late[src]
        time.sleep(max(0.0, min(arrival, deadline) - time.monotonic()))
        if arrival > deadline:
            raise TimeoutError
        del self.late[src]
        return message


def _flip_a_bit(tensor: Tensor) -> Tensor:
    """A copy; in its first element, the second highest bit differs (of a bool the lowest)."""
    damaged = plain(tensor).clone()
    if damaged.numel():
        mask = 1 if tensor.dtype == torch.bool else 0x40
        raw_bytes(damaged)[damaged.element_size() - 1] ^= mask
    return damaged
