"""A training step under our DDP and under PyTorch's, measured in one run.

The model is a tower of linear layers: its size sets the bytes, its batch how much is computed for
them. With a batch of 1 communication is most of a step. Each contender has its own copy; they take
turns in every round, in an order that turns from round to round, with a barrier before each. A step
is a forward and a backward with all gradients averaged, a round's time that of its slowest rank. A
ratio is the median of the rounds' ratios, since what else the machine does hits a whole round.
Every gradient is compared with PyTorch's, bit by bit.

Afterwards some steps are recorded, for the overlap: ours from its marks, PyTorch's from its logging
data, in the definition that PyTorch's has.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from minidist.bench.machine import M, median_and_quartiles
from minidist.ddp import DistributedDataParallel
from minidist.launch import run
from minidist.mesh import Mesh
from minidist.overlap import Step, steps, torch_times
from minidist.trace import Trace

GLOO, SHARED_MEMORY = "gloo", "minidist_shared_memory"
BACKENDS = (GLOO, SHARED_MEMORY)
TORCH = "PyTorch's on gloo"

LAYERS = 20
WARM_UP = 3  # rounds: the buckets are rebuilt in the second
LEAST_ROUNDS = 3
RECORDED = 15  # steps
RUN_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class DDPRow:
    """One cell: our DDP on `backend` beside PyTorch's on gloo. Seconds of a step, medians.

    nbytes: of all parameters. overlap, torch_overlap: the part of communication, as PyTorch's
    logging data defines both, that fell into the backward pass. hidden, communication: of ours, as
    minidist.overlap defines them, in seconds.
    """

    backend: str
    world_size: int
    nbytes: int
    batch: int
    rounds: int
    wrong: int  # parameters whose gradients differed from PyTorch's on some rank
    seconds: float
    quartiles: tuple[float, float]
    torch_seconds: float
    torch_quartiles: tuple[float, float]
    to_torch: float  # below 1 is faster
    to_torch_quartiles: tuple[float, float]
    overlap: float
    torch_overlap: float
    hidden: float
    communication: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def bench_ddp(
    sizes: Sequence[int] = (5 * M, 25 * M, 100 * M),
    batches: Sequence[int] = (1, 32),
    world_size: int = 2,
    repeats: int = 30,
    seconds: float = 15.0,
) -> Iterator[DDPRow]:
    """Measure every size, in bytes, with every batch, on all of BACKENDS.

    repeats: rounds; a cell stops earlier when its rounds have taken `seconds`, but not before it
    has three.
    """
    for nbytes in sizes:
        for batch in batches:
            ranks = run(
                _on_each_rank,
                world_size,
                nbytes,
                batch,
                repeats,
                seconds,
                process_group=GLOO,
                timeout=RUN_TIMEOUT_S,
            ).results
            yield from _rows(world_size, batch, ranks)


def tower(nbytes: int, layers: int = LAYERS) -> nn.Module:
    """Linear layers and ReLUs with parameters of about `nbytes` bytes, the same on every rank."""
    width = max(1, round((nbytes / 4 / layers) ** 0.5))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pairs = ((nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
        return nn.Sequential(*(part for pair in pairs for part in pair))


def batch_for(module: nn.Module, batch: int, rank: int) -> Tensor:
    """What rank `rank` trains on: each rank something else."""
    width = next(module.parameters()).shape[1]
    return torch.randn(batch, width, generator=torch.Generator().manual_seed(rank))


def step(ddp: nn.Module, inputs: Tensor) -> None:
    ddp(inputs).sum().backward()


def take_turns(
    contenders: dict[str, Callable[[], None]],
    repeats: int,
    seconds: float,
    before: Callable[[str], object] = lambda name: None,
) -> dict[str, list[float]]:
    """Seconds of each contender in each round on this rank; all ranks do as many rounds.

    before: called with the contender's name, outside of what is timed.
    """
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    for number in range(-WARM_UP, repeats):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            before(name)
            dist.barrier()
            start = time.perf_counter()
            contenders[name]()
            if number >= 0:
                times[name].append(time.perf_counter() - start)
        late = number + 1 >= LEAST_ROUNDS and time.perf_counter() - began > seconds
        stop = torch.tensor(late)
        dist.broadcast(stop, src=0)
        if stop:
            break
    return times


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """The time of each round, out of the ranks' times."""
    return [max(at_once) for at_once in zip(*ranks, strict=True)]


@dataclass
class _Seen:
    """What one rank saw."""

    nbytes: int
    times: dict[str, list[float]]
    wrong: dict[str, int]
    steps: dict[str, list[Step]]
    torch_overlap: list[float]


def _on_each_rank(mesh: Mesh, nbytes: int, batch: int, repeats: int, seconds: float) -> _Seen:
    importlib.import_module("minidist.backend")  # registers it
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    torch_ddp = TorchDDP(tower(nbytes))
    inputs = batch_for(torch_ddp, batch, mesh.rank)
    ddps: dict[str, nn.Module] = {TORCH: torch_ddp} | {
        backend: DistributedDataParallel(tower(nbytes), process_group=group)
        for backend, group in groups.items()
    }

    def without_gradients(name: str) -> None:
        ddps[name].zero_grad(set_to_none=True)

    contenders = {name: (lambda ddp=ddp: step(ddp, inputs)) for name, ddp in ddps.items()}
    times = take_turns(contenders, repeats, seconds, without_gradients)
    wrong = {backend: _differing(ddps[backend], torch_ddp) for backend in BACKENDS}

    meshes = {backend: replace(mesh, marks=[]) for backend in BACKENDS}
    for backend, group in groups.items():
        ddps[backend] = DistributedDataParallel(
            tower(nbytes), process_group=group, record=meshes[backend].mark
        )
    torch_ddp._set_ddp_runtime_logging_sample_rate(1)
    overlaps: list[float] = []

    def recorded_step(name: str) -> None:
        step(ddps[name], inputs)
        if name == TORCH:
            overlaps.append(_logged_overlap(torch_ddp))

    contenders = {name: (lambda name=name: recorded_step(name)) for name in ddps}
    take_turns(contenders, min(repeats, RECORDED), seconds, without_gradients)
    dist.barrier()
    recorded = {
        backend: steps(Trace([[]], [meshes[backend].marks]), 0)[WARM_UP:] for backend in BACKENDS
    }
    size = sum(4 * parameter.numel() for parameter in torch_ddp.parameters())
    return _Seen(size, times, wrong, recorded, overlaps[WARM_UP:])


def _differing(ours: nn.Module, theirs: nn.Module) -> int:
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return sum(not torch.equal(mine.grad, its.grad) for mine, its in pairs)


def _logged_overlap(ddp: TorchDDP) -> float:
    """Overlap over communication in the last step, from PyTorch's own clock."""
    ddp.logger.set_runtime_stats_and_log()
    data = ddp._get_ddp_logging_data()
    launch, end = data["backward_comm_time_start"], data["backward_comm_time_end"]
    return max(0, data["backward_compute_time_end"] - launch) / (end - launch)


def _overlap(step: Step) -> float:
    """The same of a step of ours."""
    times = torch_times([step])
    return times["avg_backward_compute_comm_overlap_time"] / times["avg_backward_comm_time"]


def _rows(world_size: int, batch: int, ranks: Sequence[_Seen]) -> Iterator[DDPRow]:
    theirs = slowest([rank.times[TORCH] for rank in ranks])
    torch_seconds, *torch_quartiles = median_and_quartiles(theirs)
    for backend in BACKENDS:
        ours = slowest([rank.times[backend] for rank in ranks])
        seconds, *quartiles = median_and_quartiles(ours)
        ratios = [mine / its for mine, its in zip(ours, theirs, strict=True)]
        to_torch, *ratio_quartiles = median_and_quartiles(ratios)
        recorded = [step for rank in ranks for step in rank.steps[backend]]
        yield DDPRow(
            backend=backend,
            world_size=world_size,
            nbytes=ranks[0].nbytes,
            batch=batch,
            rounds=len(ours),
            wrong=max(rank.wrong[backend] for rank in ranks),
            seconds=seconds,
            quartiles=tuple(quartiles),
            torch_seconds=torch_seconds,
            torch_quartiles=tuple(torch_quartiles),
            to_torch=to_torch,
            to_torch_quartiles=tuple(ratio_quartiles),
            overlap=statistics.median(map(_overlap, recorded)),
            torch_overlap=statistics.median(x for rank in ranks for x in rank.torch_overlap),
            hidden=statistics.median(step.hidden for step in recorded),
            communication=statistics.median(step.communication for step in recorded),
        )


DDP_HEADER = (
    f"{'bytes':>8} {'batch':>5} {'ranks':>5}  {'our DDP on':22} {'step ms':>8} "
    f"{'quartiles':>17} {'PyTorch ms':>10} {'ratio':>6} {'quartiles':>11}  "
    f"{'overlap':>7} {'PyTorch':>7} {'hidden ms':>15}  gradients"
)


def ddp_line(row: DDPRow) -> str:
    """A row for people."""
    low, high = (f"{1e3 * t:.2f}" for t in row.quartiles)
    ratio_low, ratio_high = row.to_torch_quartiles
    hidden = f"{1e3 * row.hidden:.1f} of {1e3 * row.communication:.1f}"
    return (
        f"{row.nbytes / 1e6:6.1f}MB {row.batch:5} {row.world_size:5}  {row.backend:22} "
        f"{1e3 * row.seconds:8.2f} {f'{low} - {high}':>17} {1e3 * row.torch_seconds:10.2f} "
        f"{row.to_torch:6.3f} {f'{ratio_low:.2f} - {ratio_high:.2f}':>11}  {row.overlap:7.1%} "
        f"{row.torch_overlap:7.1%} {hidden:>15}  "
        f"{f'{row.wrong} WRONG' if row.wrong else 'bit-equal'}"
    )
