"""The bucket cap that is the fastest, measured, and the one that the model says is.

What the model needs is measured in the same run: how long the backward pass takes from gradient to
gradient, in steps with a single bucket, where no communication disturbs it; and alpha and beta,
fitted to all-reduces of several sizes while nothing else happens. The ranks' communication runs on
threads of its own: where those have no processor to themselves they slow the backward pass down,
and of that the model knows nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from minidist.bench.ddp import (
    GLOO,
    RUN_TIMEOUT_S,
    WARM_UP,
    DDPRow,
    batch_for,
    slowest,
    step,
    take_turns,
    tower,
)
from minidist.bench.machine import K, M, median_and_quartiles, size_name
from minidist.cost import ring_allreduce_cost
from minidist.ddp import DistributedDataParallel
from minidist.launch import run
from minidist.mesh import Mesh
from minidist.overlap import Layer, best_cap, layers, predict, steps
from minidist.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPS = (64 * K, 256 * K, M, 2 * M, 4 * M, 8 * M, 16 * M, 32 * M)
RECORDED = 10  # steps with one bucket
ALLREDUCES = 10  # of each size


@dataclass(frozen=True)
class Point:
    """One cap, in bytes: how many buckets it makes, seconds of a step, what the model expects."""

    cap: int
    buckets: int
    seconds: float
    quartiles: tuple[float, float]
    predicted: float


@dataclass(frozen=True)
class Sweep:
    """Our DDP on gloo with several caps, and the model of the same run."""

    world_size: int
    nbytes: int
    batch: int
    rounds: int
    alpha: float  # seconds per message
    beta: float  # seconds per byte
    points: tuple[Point, ...]
    best_cap: int  # the model's, of all caps there are
    best_predicted: float  # the step that it expects with that

    @property
    def fastest(self) -> Point:
        """The measured cap with the shortest step."""
        return min(self.points, key=lambda point: point.seconds)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "fastest": asdict(self.fastest)}


def sweep(
    nbytes: int = 25 * M,
    batch: int = 32,
    caps: Sequence[int] = CAPS,
    world_size: int = 2,
    repeats: int = 20,
    seconds: float = 30.0,
) -> Sweep:
    """Measure a step of the tower of `nbytes` bytes with each cap, and let the model say the same.

    All caps take turns in every round; `seconds` cuts the rounds short, as in bench_ddp.
    """
    ranks = run(
        _on_each_rank,
        world_size,
        nbytes,
        batch,
        list(caps),
        repeats,
        seconds,
        process_group=GLOO,
        timeout=RUN_TIMEOUT_S,
    ).results
    first = ranks[0]
    alpha, beta = fit(world_size, first.allreduces)
    network = (world_size, alpha, beta)
    fixed = first.forward + first.put_back  # what no cap changes
    points = []
    for cap in caps:
        times = slowest([rank.times[cap] for rank in ranks])
        median, *quartiles = median_and_quartiles(times)
        expected = predict(first.layers, *network, cap)
        points.append(
            Point(cap, first.buckets[cap], median, tuple(quartiles), fixed + expected.seconds)
        )
    best = best_cap(first.layers, *network)
    return Sweep(
        world_size,
        sum(layer.nbytes for layer in first.layers),
        batch,
        len(times),
        alpha,
        beta,
        tuple(points),
        best,
        fixed + predict(first.layers, *network, best).seconds,
    )


def fit(world_size: int, measured: dict[int, float]) -> tuple[float, float]:
    """alpha and beta of a ring that takes `measured[n]` seconds for n bytes, relative errors least.

    Neither is below 0. One rank has no messages: both are 0.
    """
    if world_size == 1:
        return 0.0, 0.0
    costs = [ring_allreduce_cost(world_size, nbytes) for nbytes in measured]
    times = np.array(list(measured.values()))
    terms = np.array([(cost.steps, cost.steps * cost.step_bytes) for cost in costs])
    scaled = terms / times[:, None]
    both, *_ = np.linalg.lstsq(scaled, np.ones(len(times)), rcond=None)
    if both.min() >= 0:
        return float(both[0]), float(both[1])
    alone = scaled.sum(axis=0) / (scaled**2).sum(axis=0)  # the best with the other one at 0
    return (float(alone[0]), 0.0) if both[1] < 0 else (0.0, float(alone[1]))


@dataclass
class _Seen:
    """What one rank saw."""

    times: dict[int, list[float]]
    buckets: dict[int, int]
    layers: list[Layer]
    forward: float
    put_back: float
    allreduces: dict[int, float]


def _on_each_rank(
    mesh: Mesh, nbytes: int, batch: int, caps: list[int], repeats: int, seconds: float
) -> _Seen:
    ddps = {cap: DistributedDataParallel(tower(nbytes), bucket_cap_mb=cap / M) for cap in caps}
    inputs = batch_for(ddps[caps[0]], batch, mesh.rank)
    contenders = {str(cap): (lambda ddp=ddp: step(ddp, inputs)) for cap, ddp in ddps.items()}
    times = take_turns(
        contenders, repeats, seconds, lambda name: ddps[int(name)].zero_grad(set_to_none=True)
    )

    alone = replace(mesh, marks=[])
    ddp = DistributedDataParallel(tower(nbytes), bucket_cap_mb=nbytes, record=alone.mark)
    for _ in range(WARM_UP + RECORDED):
        ddp.zero_grad(set_to_none=True)
        dist.barrier()
        step(ddp, inputs)
    dist.barrier()
    recorded = steps(Trace([[]], [alone.marks]), 0)[WARM_UP:]

    total = sum(4 * parameter.numel() for parameter in ddp.parameters())
    allreduces = {}
    for size in sorted({4 * K, 64 * K, M, max(4, total // 4), total}):
        tensor = torch.zeros(size // 4)
        took = []
        for _ in range(1 + ALLREDUCES):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            took.append(time.perf_counter() - start)
        allreduces[4 * len(tensor)] = statistics.median(took[1:])
    dist.barrier()
    return _Seen(
        {int(name): of_cap for name, of_cap in times.items()},
        {cap: len(ddp.reducer.buckets) for cap, ddp in ddps.items()},
        layers(recorded),
        statistics.median(s.output - s.forward for s in recorded),
        statistics.median(s.finalize - s.buckets[-1].done for s in recorded),
        allreduces,
    )


SWEEP_HEADER = f"{'cap':>6} {'buckets':>7} {'step ms':>8} {'quartiles':>17} {'the model ms':>12}"


def sweep_lines(sweep: Sweep) -> list[str]:
    """A sweep for people."""
    lines = [
        f"Bucket caps: {sweep.nbytes / 1e6:.1f} MB, batch {sweep.batch}, {sweep.world_size} ranks "
        f"on gloo, {sweep.rounds} rounds; alpha {1e6 * sweep.alpha:.1f} us, "
        f"{1e-9 / sweep.beta if sweep.beta else float('inf'):.2f} GB/s",
        SWEEP_HEADER,
    ]
    for point in sweep.points:
        low, high = (f"{1e3 * t:.2f}" for t in point.quartiles)
        lines.append(
            f"{size_name(point.cap):>6} {point.buckets:7} {1e3 * point.seconds:8.2f} "
            f"{f'{low} - {high}':>17} {1e3 * point.predicted:12.2f}"
        )
    fastest = sweep.fastest
    lines.append(
        f"Fastest cap measured: {size_name(fastest.cap)} ({1e3 * fastest.seconds:.2f} ms). The "
        f"model's: {sweep.best_cap / M:.2f} MiB ({1e3 * sweep.best_predicted:.2f} ms)."
    )
    return lines


def ddp_figure(rows: Sequence[DDPRow], sweep: Sweep | None) -> Figure:
    """Left: steps over PyTorch's, a point per cell, below 1 is faster. Right: the sweep."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    from minidist.palette import LIGHT, PALETTE_LIGHT, figure_style

    with mpl.rc_context():
        figure_style()
        panels = bool(rows) + bool(sweep)
        drawn = Figure(figsize=(3.6 * panels, 3.0), facecolor="none", layout="constrained")
        axes = list(drawn.subplots(1, panels, squeeze=False)[0])
        if rows:
            _draw_ratios(axes.pop(0), rows, LIGHT, PALETTE_LIGHT)
        if sweep:
            (here,) = axes
            x = [point.cap for point in sweep.points]
            bands = zip(*(point.quartiles for point in sweep.points), strict=True)
            low, high = ([1e3 * t for t in band] for band in bands)
            here.fill_between(x, low, high, color=PALETTE_LIGHT[0], alpha=0.15, linewidth=0)
            measured = [1e3 * point.seconds for point in sweep.points]
            here.plot(x, measured, color=PALETTE_LIGHT[0], marker="o", markersize=4, label="run")
            expected = [1e3 * point.predicted for point in sweep.points]
            here.plot(x, expected, color=LIGHT["ink"], linestyle="--", label="model")
            fastest = sweep.fastest
            here.plot(
                [fastest.cap], [1e3 * fastest.seconds], "o", color=PALETTE_LIGHT[0], markersize=9
            )
            here.plot([sweep.best_cap], [1e3 * sweep.best_predicted], "D", color=LIGHT["ink"], ms=7)
            here.set(xscale="log", ylim=(0, None))
            here.set_xticks(x)
            here.xaxis.set_major_formatter(FuncFormatter(lambda n, _: size_name(round(n))))
            here.xaxis.set_minor_locator(NullLocator())
            here.tick_params(labelsize=7.5)
            here.set_title(
                f"ms per step against bucket cap\n{sweep.nbytes / 1e6:.0f} MB, batch {sweep.batch}",
                fontsize=9.5,
            )
            here.legend(fontsize=8.5)
    return drawn


def _draw_ratios(here: Any, rows: Sequence[DDPRow], light: Any, palette: Any) -> None:
    cells = list(dict.fromkeys((row.nbytes, row.batch) for row in rows))
    backends = list(dict.fromkeys(row.backend for row in rows))
    for k, (backend, mark) in enumerate(zip(backends, "os", strict=False)):
        mine = [row for row in rows if row.backend == backend]
        x = [cells.index((row.nbytes, row.batch)) + 0.16 * (2 * k - 1) for row in mine]
        bands = zip(*(row.to_torch_quartiles for row in mine), strict=True)
        here.vlines(x, *bands, color=palette[k], linewidth=5, alpha=0.25)
        label = backend.removeprefix("minidist_").replace("_", " ")
        here.plot(x, [row.to_torch for row in mine], mark, color=palette[k], ms=5, label=label)
    here.axhline(1, color=light["ink"], linewidth=1)
    here.set_xticks(
        range(len(cells)),
        [f"{nbytes / 1e6:.0f} MB\nbatch {batch}" for nbytes, batch in cells],
        fontsize=7 if len(cells) > 3 else 8.5,
    )
    here.set_xlim(-0.6, len(cells) - 0.4)
    here.set_ylim(0, None)
    here.set_title("step of our DDP over\nPyTorch's on gloo", fontsize=9.5)
    here.legend(fontsize=8.5, loc="lower left")
