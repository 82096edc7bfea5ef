"""The machine that something is measured on, and how sizes, times and spreads are written."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

K, M = 1 << 10, 1 << 20


def machine() -> dict[str, Any]:
    """Where and under which load something is measured."""
    affinity = getattr(os, "sched_getaffinity", None)
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(errors="replace").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "processor": model,
        "processors": len(affinity(0)) if affinity else os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def size_name(nbytes: int) -> str:
    """65536 -> '64K', the way the command line takes it."""
    for unit, name in ((1 << 30, "G"), (M, "M"), (K, "K")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit}{name}"
    return str(nbytes)


def micros(seconds: float) -> str:
    """Microseconds to three digits or whole ones: '8.31', '12,345'."""
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def median_and_quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, lower quartile, upper quartile)."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return median, low, high
