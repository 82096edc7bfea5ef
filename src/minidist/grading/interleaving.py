"""Ranks that share memory and take turns in an order chosen to hurt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import greenlet
import torch
from torch import Tensor

from minidist.mesh import Deadlock


class Window:
    """A rank's piece of shared memory. Writing and reading are moments at which others may act."""

    def __init__(self, world: Interleaving, owner: int, like: Tensor):
        self._world, self._owner = world, owner
        self._memory = torch.full_like(like, -1)

    def write(self, tensor: Tensor) -> None:
        self._world.moment(f"write {self._owner}")
        self._memory.copy_(tensor)
        self._world.moment()

    def read(self) -> Tensor:
        self._world.moment(f"read {self._owner}")
        return self._memory  # no copy: this is the memory itself


class Semaphore:
    """A counting semaphore between ranks."""

    def __init__(self, world: Interleaving, name: str, count: int):
        self._world, self._name, self._count = world, name, count

    def acquire(self) -> None:
        self._world.moment(waits_for=self)
        self._count -= 1
        self._world.moment()

    def release(self) -> None:
        self._world.moment()
        self._count += 1
        self._world.moment()


class Interleaving:
    """Ranks that take turns in an order chosen to hurt."""

    MAX_MOMENTS = 5000

    def __init__(self, world_size: int, order: Callable[[list[int]], int]):
        self.world_size, self.order = world_size, order
        self.log: list[list[Any]] = []  # [rank, "write 1" or "read 1"]
        self.waits: dict[int, Semaphore] = {}
        self.moments = 0

    def moment(self, what: str = "", waits_for: Semaphore | None = None) -> None:
        """Let the scheduler decide who goes on; return when it is this rank's turn again."""
        rank = greenlet.getcurrent().rank
        self.moments += 1
        if self.moments > self.MAX_MOMENTS:
            raise RuntimeError(f"{self.MAX_MOMENTS} steps, and no end of it")
        if waits_for is not None:
            self.waits[rank] = waits_for
        greenlet.getcurrent().parent.switch()
        if what:
            self.log.append([rank, what])

    def run(self, program: Callable[[int], Any]) -> list[Any]:
        results: list[Any] = [None] * self.world_size

        def body(rank: int) -> None:
            try:
                results[rank] = program(rank)
            except BaseException as error:
                error.minidist_rank = rank  # type: ignore[attr-defined]
                raise

        ranks = [greenlet.greenlet(lambda r=r: body(r)) for r in range(self.world_size)]
        for rank, one in enumerate(ranks):
            one.rank = rank
        try:
            while alive := [r for r, one in enumerate(ranks) if not one.dead]:
                free = [r for r in alive if r not in self.waits or self.waits[r]._count > 0]
                if not free:
                    waits = (f"rank {r} waits for {self.waits[r]._name}" for r in alive)
                    raise Deadlock("no rank can go on: " + ", ".join(waits))
                chosen = self.order(free)
                self.waits.pop(chosen, None)
                ranks[chosen].switch()
        finally:
            for one in ranks:
                if one and not one.dead:
                    one.throw(greenlet.GreenletExit)
        return results
