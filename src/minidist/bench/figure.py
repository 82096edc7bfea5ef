"""The rows of a run as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minidist.bench.allreduce import ALGORITHMS, BACKEND, FLOOR, GLOO, Row
from minidist.bench.machine import size_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"naive": 0, "ring": 1, "two_shot": 2, "tree": 3, "halving_doubling": 4, "one_shot": 5}
COLOURS |= {BACKEND: 6, "auto": 7}
MARKS = ("o", "s", "P", "D", "v", "^", "X", "*")


def figure(rows: Sequence[Row]) -> Figure:
    """Time against size, log-log: a panel for each transport and world size, gloo in all of them.

    The bands are the quartiles; the dotted line is the floor; open marks are in place.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    from minidist.palette import LIGHT, PALETTE_LIGHT, figure_style

    transports = list(dict.fromkeys(row.transport for row in rows))
    world_sizes = list(dict.fromkeys(row.world_size for row in rows))
    with mpl.rc_context():
        figure_style()
        tall = 0.75 + 2.15 * len(world_sizes)
        drawn = Figure(figsize=(6.8, tall), facecolor="none", layout="constrained")
        axes = drawn.subplots(
            len(world_sizes), len(transports), sharex=True, sharey=True, squeeze=False
        )
        named = {}
        for i, world_size in enumerate(world_sizes):
            for j, transport in enumerate(transports):
                here = axes[i][j]
                cell = [r for r in rows if (r.transport, r.world_size) == (transport, world_size)]
                by_name: dict[str, list[Row]] = {}
                for row in sorted(cell, key=lambda row: row.nbytes):
                    by_name.setdefault(row.algorithm, []).append(row)
                for name, line_ in by_name.items():
                    k = COLOURS[name.rstrip("_")]
                    in_place = {"markerfacecolor": LIGHT["paper"]} if name.endswith("_") else {}
                    x = [row.nbytes for row in line_]
                    colour = PALETTE_LIGHT[k]
                    bands = zip(*(row.quartiles for row in line_), strict=True)
                    here.fill_between(x, *bands, color=colour, alpha=0.15, linewidth=0)
                    (named[name],) = here.plot(
                        x,
                        [row.seconds for row in line_],
                        color=colour,
                        marker=MARKS[k],
                        markersize=4,
                        linewidth=1.5,
                        **in_place,
                    )
                some = next(iter(by_name.values()), [])
                x = [row.nbytes for row in some]
                bands = list(zip(*(row.gloo_quartiles for row in some), strict=True))
                if bands:
                    here.fill_between(x, *bands, color=LIGHT["ink"], alpha=0.12, linewidth=0)
                (named[GLOO],) = here.plot(
                    x, [row.gloo_seconds for row in some], color=LIGHT["ink"], linestyle="--"
                )
                (named[FLOOR],) = here.plot(
                    x, [row.floor_seconds for row in some], color=LIGHT["muted"], linestyle=":"
                )
                title = f"{transport.replace('_', ' ')}, {world_size} ranks"
                here.set_title(title, fontsize=9.5)
                here.set(xscale="log", yscale="log")
                here.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size_name(round(x))))
                here.xaxis.set_minor_locator(NullLocator())
                here.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _duration(y)))
                here.yaxis.set_minor_locator(NullLocator())
                here.tick_params(labelsize=8.5)
        every = sorted({row.nbytes for row in rows})
        axes[0][0].set_xticks(every)
        drawn.supxlabel("bytes per rank", fontsize=9.5, color=LIGHT["ink"])
        order = [n for n in (*ALGORITHMS, GLOO, FLOOR) if n in named]
        drawn.legend(
            [named[name] for name in order],
            [name.replace("halving_doubling", "halving-doubling") for name in order],
            loc="outside upper center",
            ncols=len(order) if len(order) < 6 else -(-len(order) // 2),
            fontsize=8.5,
        )
    return drawn


def _duration(seconds: float) -> str:
    """1e-5 -> '10 us'."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.999 * unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds * 1e6:g} µs"
