"""How fast is fast: our allreduce beside gloo and the memory itself, our DDP beside PyTorch's."""

from minidist.bench.allreduce import (
    ALGORITHMS,
    BACKEND,
    FLOOR,
    GLOO,
    HEADER,
    OURS,
    TRANSPORTS,
    Row,
    bench,
    floor,
    line,
)
from minidist.bench.ddp import DDP_HEADER, DDPRow, bench_ddp, ddp_line
from minidist.bench.figure import figure
from minidist.bench.goals import Goal, ddp_goals, goal_line, goals
from minidist.bench.machine import K, M, machine, micros, size_name
from minidist.bench.sweep import CAPS, Sweep, ddp_figure, sweep, sweep_lines

__all__ = [
    "ALGORITHMS",
    "BACKEND",
    "CAPS",
    "DDP_HEADER",
    "FLOOR",
    "GLOO",
    "HEADER",
    "OURS",
    "TRANSPORTS",
    "DDPRow",
    "Goal",
    "K",
    "M",
    "Row",
    "Sweep",
    "bench",
    "bench_ddp",
    "ddp_figure",
    "ddp_goals",
    "ddp_line",
    "figure",
    "floor",
    "goal_line",
    "goals",
    "line",
    "machine",
    "micros",
    "size_name",
    "sweep",
    "sweep_lines",
]
