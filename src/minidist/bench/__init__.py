"""How fast is fast: our allreduce on every wire beside gloo and the memory itself, in one run."""

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
from minidist.bench.figure import figure
from minidist.bench.goals import Goal, goal_line, goals
from minidist.bench.machine import K, M, machine, micros, size_name

__all__ = [
    "ALGORITHMS",
    "BACKEND",
    "FLOOR",
    "GLOO",
    "HEADER",
    "OURS",
    "TRANSPORTS",
    "Goal",
    "K",
    "M",
    "Row",
    "bench",
    "figure",
    "floor",
    "goal_line",
    "goals",
    "line",
    "machine",
    "micros",
    "size_name",
]
