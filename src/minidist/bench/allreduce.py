"""Our allreduce on every wire, gloo and the memory itself, measured in one run.

In the manner of nccl-tests, with two more columns. Every round runs gloo, each of our algorithms
and the floor on the same ranks, in an order that turns from round to round, so that whatever else
the machine does hits all of them. A barrier comes before each; a round's time is that of its
slowest rank; a cell is the median of its rounds. Small tensors go up to ten in a row, each with its
own memory, or one would mostly time how long a rank takes to wake up after the barrier. Every
single sum is checked.

The floor is the memory traffic that no allreduce between processes can do without, done by the same
processes at the same time, alone: of T bytes a rank must lay (N - 1)/N T of its own and T/N of sums
where others can read them, add up (N - 1)/N T, and fetch (N - 1)/N T of the others' sums.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minidist import collectives
from minidist.bench.machine import K, M, median_and_quartiles, micros, size_name
from minidist.collectives.direct import one_shot_allreduce_, two_shot_allreduce_
from minidist.cost import allreduce_lower_bound
from minidist.launch import WIRES, run
from minidist.mesh import Mesh
from minidist.transports.process_group import mesh_from_process_group

Ours = Callable[[Mesh, Tensor], Tensor | None]  # None: it works in place

OURS: dict[str, Ours] = {
    "naive": collectives.naive_allreduce,
    "ring": collectives.ring_allreduce,
    "ring_": collectives.ring_allreduce_,  # a name with a tail works in place, as gloo does
    "tree": collectives.tree_allreduce,
    "halving_doubling": collectives.halving_doubling_allreduce,
    "two_shot": collectives.two_shot_allreduce,
    "two_shot_": two_shot_allreduce_,
    "one_shot_": one_shot_allreduce_,
    "auto": collectives.allreduce,
}
BACKEND = "backend"  # torch.distributed's all_reduce on our backend: ring_ over TCP, on a thread
ALGORITHMS = (*OURS, BACKEND)
TRANSPORTS = (*WIRES, "process_group")
GLOO, FLOOR = "gloo", "floor"

LEAST_ROUNDS = 3
MOST_IN_A_ROW = 10
BYTES_IN_A_ROW = 8 << 20
RUN_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Row:
    """One cell: an algorithm on a transport with `world_size` ranks and `nbytes` per rank.

    Seconds are medians of `rounds` rounds, with the quartiles around them. Bandwidths are bytes per
    second. copy and add: what one rank's memory does while all ranks' do it; the bytes copied, the
    bytes added up.
    """

    transport: str
    algorithm: str
    world_size: int
    nbytes: int
    rounds: int
    wrong: int  # rounds in which a rank had a wrong sum
    seconds: float
    quartiles: tuple[float, float]
    gloo_seconds: float
    gloo_quartiles: tuple[float, float]
    floor_seconds: float
    copy_bandwidth: float
    add_bandwidth: float

    @property
    def algbw(self) -> float:
        """Bytes of the tensor per second."""
        return self.nbytes / self.seconds

    @property
    def busbw(self) -> float:
        """algbw times 2(N - 1)/N, as nccl-tests has it: comparable with what one link can carry."""
        return allreduce_lower_bound(self.world_size, self.nbytes) / self.seconds

    @property
    def to_gloo(self) -> float:
        """Our time over gloo's: below 1 is faster."""
        return self.seconds / self.gloo_seconds

    @property
    def to_floor(self) -> float:
        """Our time over the floor's: never much below 1."""
        return self.seconds / self.floor_seconds

    def as_json(self) -> dict[str, Any]:
        derived = ("algbw", "busbw", "to_gloo", "to_floor")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def bench(
    transports: Sequence[str] = tuple(WIRES),
    algorithms: Sequence[str] = ALGORITHMS,
    world_sizes: Sequence[int] = (2, 4),
    sizes: Sequence[int] = (K, 64 * K, M, 16 * M, 64 * M),
    repeats: int = 20,
    seconds: float = 3.0,
) -> Iterator[Row]:
    """Measure allreduce of float32; the rows of a transport and world size come together.

    transports: of TRANSPORTS. algorithms: of ALGORITHMS; "backend" brings its own connections and
    is measured once, beside "tcp". sizes: bytes per rank. repeats: rounds; a size stops earlier
    when its rounds have taken `seconds`, but not before it has three.
    """
    for transport in transports:
        names = [a for a in algorithms if a != BACKEND or transport == "tcp"]
        for world_size in world_sizes if names else ():
            on_each_rank = run(
                _on_each_rank,
                world_size,
                transport,
                {name: OURS.get(name) for name in names},
                list(sizes),
                repeats,
                seconds,
                transport=transport if transport in WIRES else "queue",
                process_group="gloo",
                timeout=RUN_TIMEOUT_S,
            ).results
            for of_size in zip(*on_each_rank, strict=True):
                yield from _rows(transport, names, world_size, of_size)


@dataclass
class _Times:
    """What one rank saw at one size: seconds of each contender and round, and wrong sums."""

    nbytes: int
    seconds: dict[str, list[float]]
    wrong: dict[str, list[bool]]


def _on_each_rank(
    mesh: Mesh,
    transport: str,
    algorithms: dict[str, Ours | None],
    sizes: list[int],
    repeats: int,
    seconds: float,
) -> list[_Times]:
    if transport == "process_group":
        mesh = mesh_from_process_group(dist.new_group(backend="gloo"))
    contenders = {GLOO: _gloo}
    for name, algorithm in algorithms.items():
        contenders[name] = _backend() if algorithm is None else _ours(mesh, algorithm)
    return [_one_size(mesh, contenders, nbytes, repeats, seconds) for nbytes in sizes]


def _gloo(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor)
    return tensor


def _ours(mesh: Mesh, algorithm: Ours) -> Callable[[Tensor], Tensor]:
    def ours(tensor: Tensor) -> Tensor:
        result = algorithm(mesh, tensor)
        return tensor if result is None else result

    return ours


def _backend() -> Callable[[Tensor], Tensor]:
    importlib.import_module("minidist.backend")  # registers it
    group = dist.new_group(backend="minidist", timeout=timedelta(minutes=5))

    def backend(tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor, group=group)
        return tensor

    return backend


def _one_size(
    mesh: Mesh,
    contenders: dict[str, Callable[[Tensor], Tensor]],
    nbytes: int,
    repeats: int,
    seconds: float,
) -> _Times:
    world_size = mesh.world_size
    # Small whole numbers: their sum is the same in any order, and wrong if one is missing.
    base = (torch.arange(max(1, nbytes // 4)) % 61).float()
    given = base + mesh.rank
    expected = world_size * base + world_size * (world_size - 1) // 2
    spare, *tensors = given.repeat(1 + _in_a_row(nbytes), 1)
    names = [*contenders, FLOOR]
    times = _Times(4 * len(given), {n: [] for n in (*names, "copy", "add")}, {n: [] for n in names})
    began = time.perf_counter()
    for number in range(-1, repeats):  # the round before the first only warms up
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            for tensor in tensors:
                tensor.copy_(given)
            dist.barrier()
            if name == FLOOR:
                took, copying, adding = floor(world_size, tensors[0], spare)
                wrong = False
            else:
                contender = contenders[name]
                start = time.perf_counter()
                results = [contender(tensor) for tensor in tensors]
                took = (time.perf_counter() - start) / len(tensors)
                wrong = not all(torch.equal(result, expected) for result in results)
                del results  # memory that they may have borrowed from the wire goes back
                mesh.events.clear()
            times.wrong[name].append(wrong)  # also while warming up
            if number >= 0:
                times.seconds[name].append(took)
                if name == FLOOR:
                    times.seconds["copy"].append(copying)
                    times.seconds["add"].append(adding)
        late = number + 1 >= LEAST_ROUNDS and time.perf_counter() - began > seconds
        stop = torch.tensor(late)
        dist.broadcast(stop, src=0)  # all ranks do the same number of rounds
        if stop:
            break
    return times


def _in_a_row(nbytes: int) -> int:
    """How many operations of this size make a round."""
    return max(1, min(MOST_IN_A_ROW, BYTES_IN_A_ROW // max(1, nbytes)))


def floor(world_size: int, tensor: Tensor, spare: Tensor) -> tuple[float, float, float]:
    """Seconds of the memory traffic of one rank: all of it, the copies, the additions."""
    rest = _rest(len(tensor), world_size)
    start = time.perf_counter()
    spare.copy_(tensor)  # rest for the others to read, and one chunk of sums
    copied = time.perf_counter()
    tensor[:rest].add_(spare[:rest])
    added = time.perf_counter()
    tensor[:rest].copy_(spare[:rest])
    end = time.perf_counter()
    return end - start, copied - start + end - added, added - copied


def _rest(numel: int, world_size: int) -> int:
    """Elements of all chunks but a rank's own."""
    return numel - numel // world_size


def _rows(
    transport: str, names: list[str], world_size: int, ranks: tuple[_Times, ...]
) -> Iterator[Row]:
    nbytes = ranks[0].nbytes
    rest = 4 * _rest(nbytes // 4, world_size)

    def slowest(name: str) -> list[float]:
        return [max(at_once) for at_once in zip(*(r.seconds[name] for r in ranks), strict=True)]

    medians, quartiles = {}, {}
    for name in ranks[0].seconds:
        medians[name], *quartiles[name] = median_and_quartiles(slowest(name))
    if any(any(r.wrong[GLOO]) for r in ranks):
        raise RuntimeError("gloo's own sum is wrong; nothing here can be held against it")
    for name in names:
        yield Row(
            transport=transport,
            algorithm=name,
            world_size=world_size,
            nbytes=nbytes,
            rounds=len(ranks[0].seconds[name]),
            wrong=sum(map(any, zip(*(r.wrong[name] for r in ranks), strict=True))),
            seconds=medians[name],
            quartiles=tuple(quartiles[name]),
            gloo_seconds=medians[GLOO],
            gloo_quartiles=tuple(quartiles[GLOO]),
            floor_seconds=medians[FLOOR],
            copy_bandwidth=(nbytes + rest) / medians["copy"],
            add_bandwidth=rest / medians["add"],
        )


HEADER = (
    f"{'size':>5} {'ranks':>5}  {'transport':13} {'algorithm':16} {'time us':>9} "
    f"{'quartiles':>17}  {'algbw':>6} {'busbw':>6} {'gloo us':>9} {'/gloo':>6} {'/floor':>6}  sum"
)


def line(row: Row) -> str:
    """A row for people; bandwidths in GB/s."""
    low, high = map(micros, row.quartiles)
    return (
        f"{size_name(row.nbytes):>5} {row.world_size:5}  {row.transport:13} {row.algorithm:16} "
        f"{micros(row.seconds):>9} {f'{low} - {high}':>17}  {row.algbw / 1e9:6.2f} "
        f"{row.busbw / 1e9:6.2f} {micros(row.gloo_seconds):>9} {row.to_gloo:6.2f} "
        f"{row.to_floor:6.2f}  {f'WRONG x {row.wrong}' if row.wrong else 'ok'}"
    )
