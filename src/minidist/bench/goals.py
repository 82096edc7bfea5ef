"""What the course sets itself for the speed of its allreduce and its DDP, and what was reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.bench.allreduce import BACKEND, Row
from minidist.bench.ddp import GLOO, SHARED_MEMORY, DDPRow
from minidist.bench.machine import K, M, size_name


@dataclass(frozen=True)
class Goal:
    """What a cell should reach, and what it did: met if `value` is at most `bound`."""

    what: str
    transport: str
    world_size: int
    nbytes: int
    algorithm: str  # the one that was measured for it, the best of its cell
    value: float
    bound: float

    @property
    def met(self) -> bool:
        return self.value <= self.bound


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What the course sets itself, for each cell that was measured: those it misses, too.

    Shared memory at most half of gloo's time at every size, and at 16 MB and more with 2 ranks at
    most 1.5 times the floor; TCP no slower than gloo at 1 MB and more; queues no slower up to 64 KB
    and at most three times as slow at 16 MB; all with the best algorithm of the cell. The backend
    at most 15 % or 50 microseconds slower than the function that it calls.
    """
    cells: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.transport, row.world_size, row.nbytes), []).append(row)
    found = []
    for (transport, world_size, nbytes), cell in cells.items():
        here = (transport, world_size, nbytes)
        ours = [row for row in cell if row.algorithm != BACKEND]
        if ours and world_size > 1:
            best = min(ours, key=lambda row: row.seconds)
            bound = _bound_to_gloo(transport, nbytes)
            if bound:
                found.append(Goal("of gloo's time", *here, best.algorithm, best.to_gloo, bound))
            if transport == "shared_memory" and world_size == 2 and nbytes >= 16 * M:
                found.append(Goal("of the floor", *here, best.algorithm, best.to_floor, 1.5))
        by_name = {row.algorithm: row for row in cell}
        if BACKEND in by_name and "ring_" in by_name:
            backend, ring = by_name[BACKEND].seconds, by_name["ring_"].seconds
            bound = max(1.15, (ring + 50e-6) / ring)
            found.append(Goal("of ring_'s time", *here, BACKEND, backend / ring, bound))
    return found


def _bound_to_gloo(transport: str, nbytes: int) -> float | None:
    if transport == "shared_memory":
        return 0.5
    if transport == "tcp" and nbytes >= M:
        return 1.0
    if transport == "queue" and (nbytes <= 64 * K or nbytes == 16 * M):
        return 1.0 if nbytes <= 64 * K else 3.0
    return None


def ddp_goals(rows: Sequence[DDPRow]) -> list[Goal]:
    """The same for training steps, with 2 ranks and 5 to 100 MB of parameters.

    On gloo at most 1.02 of PyTorch's time, and no less overlap; on shared memory, where
    communication is most of a step (a batch of 1), at most 0.9 of PyTorch's time on gloo.
    """
    found = []
    for row in rows:
        if row.world_size != 2 or not 4.5 * M <= row.nbytes <= 110 * M:
            continue
        name = f"DDP, batch {row.batch}"
        here = (row.backend, row.world_size, round(row.nbytes / M) * M, name)
        if row.backend == GLOO:
            found.append(Goal("of PyTorch's time", *here, row.to_torch, 1.02))
            less = row.torch_overlap - row.overlap
            found.append(Goal("of communication overlaps less", *here, less, 0.0))
        if row.backend == SHARED_MEMORY and row.batch == 1:
            found.append(Goal("of PyTorch's time", *here, row.to_torch, 0.9))
    return found


def goal_line(goal: Goal) -> str:
    """A goal for people."""
    return (
        f"{'met ' if goal.met else 'MISS'} {size_name(goal.nbytes):>5} {goal.world_size:5}  "
        f"{goal.transport:13} {goal.algorithm:16} {goal.value:5.2f} {goal.what}, "
        f"goal {goal.bound:.2f}"
    )
